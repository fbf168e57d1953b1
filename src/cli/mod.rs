//! What operators type: one file a command.

pub mod check;
pub mod dump;
pub mod schema;

/// Exit code of a configuration that cannot be used, as `sysexits.h` has it.
pub const EX_CONFIG: u8 = 78;
