//! argv to exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate::cli::main()
}
