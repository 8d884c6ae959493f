//! The door: opens an engine with good defaults and re-exports the services.
