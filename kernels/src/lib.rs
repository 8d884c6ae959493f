//! The hands: CPU routines that copy, fill, compare and check, one folder per instruction set.
