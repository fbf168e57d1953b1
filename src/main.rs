//! argv to exit code.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// Spends a third of the system's time on a request's memory, and gives back what a crowd took once it is gone.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    tollgate::cli::main()
}
