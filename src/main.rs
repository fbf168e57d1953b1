//! argv to exit code.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// A request takes about a tenth fewer instructions with it than with the system's, and what a crowd took goes back
/// some seconds after it is gone.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    tollgate::cli::main()
}
