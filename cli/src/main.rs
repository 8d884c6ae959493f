//! The memlift command.
fn main() {}
