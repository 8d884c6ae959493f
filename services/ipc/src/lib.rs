//! Call another process with arrays: sync, async and pipelined.
