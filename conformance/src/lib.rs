//! One suite that every backend must pass.
