//! The mind: runs descriptors. Submit, place, run, complete.
