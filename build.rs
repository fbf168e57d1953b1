//! Tells the binary what it was built from and with.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = said(Command::new(rustc).arg("--version"));
    let revision = std::env::var("TOLLGATE_REVISION")
        .unwrap_or_else(|_| said(Command::new("git").args(["rev-parse", "--short=12", "HEAD"])));
    println!("cargo::rustc-env=TOLLGATE_RUSTC={version}");
    println!("cargo::rustc-env=TOLLGATE_REVISION={revision}");
    println!("cargo::rerun-if-env-changed=TOLLGATE_REVISION");
    println!("cargo::rerun-if-changed=build.rs");
    // Grows with every commit; absent from a source archive, where naming it would rebuild each time.
    if std::path::Path::new(".git/logs/HEAD").exists() {
        println!("cargo::rerun-if-changed=.git/logs/HEAD");
    }
}

/// The first line that a command prints; "unknown" where it cannot run, as in a source archive.
fn said(command: &mut Command) -> String {
    command
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| text.lines().next().map(str::to_owned))
        .unwrap_or_else(|| "unknown".to_owned())
}
