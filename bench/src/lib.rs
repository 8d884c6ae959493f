//! Benches: what is measured, against whom, and how.
