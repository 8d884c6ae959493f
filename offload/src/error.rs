// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reasons that an engine cannot be opened. Errors of single operations are in `submit`, those of regions in `region`.

use memlift_ground::config::ConfigError;

/// Reason that an engine cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A key of the configuration has a value that is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `engine.isa` names an instruction set that this CPU lacks.
    #[error(
        "engine.isa = {name}: this CPU lacks it; take `auto`, or one of those that `memlift doctor` lists"
    )]
    Isa {
        /// The name in the configuration.
        name: String,
    },
    /// `engine.disable` names facilities that do not exist.
    #[error("engine.disable names {unknown}; the facilities are {known}")]
    Facility {
        /// Names that no facility has.
        unknown: String,
        /// Existing names, for the message.
        known: String,
    },
}
