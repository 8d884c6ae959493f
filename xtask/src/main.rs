//! Checks of the project that cargo does not have.
fn main() {}
