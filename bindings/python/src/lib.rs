//! The Python face: import memlift.
