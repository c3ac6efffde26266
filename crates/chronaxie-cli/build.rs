//! The commit that is built, where git knows it.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CHRONAXIE_COMMIT");
    // A build outside a clone (a package, a container) may name the commit.
    let named = std::env::var("CHRONAXIE_COMMIT").ok().filter(|c| !c.is_empty());
    if let Some(commit) = named.or_else(|| git(&["rev-parse", "HEAD"])) {
        println!("cargo::rustc-env=CHRONAXIE_BUILD_COMMIT={commit}");
    }
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|p| Path::new(p).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}
