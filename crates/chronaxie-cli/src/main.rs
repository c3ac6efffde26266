//! The `chronaxie` command.
fn main() {}
