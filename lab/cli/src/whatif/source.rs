// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file of a device's parameters: the shipped one, or the one that `--parameters` names.

use std::path::Path;

use memlift::ground::input_file;
use memlift_cli::failure::Failure;
use memlift_model::parameters::{Parameters, Schema};
use memlift_model::whatif::parameters;

use crate::PARAMETERS_BYTES_MAX;

/// A device's file.
pub struct Source {
    /// Name of the file, for errors.
    pub file: String,
    /// Contents of the file.
    pub text: String,
    /// Fields that it must have.
    pub schema: &'static Schema,
}

impl Source {
    /// The file at `path`, or the shipped one of the device of this name.
    ///
    /// # Errors
    /// The device has no parameters; the file cannot be read, is too long, or is no text.
    pub fn open(device: &str, path: Option<&Path>) -> Result<Source, Failure> {
        let (shipped, schema) =
            parameters(device).ok_or_else(|| Failure::Usage(format!("{device} has no parameters")))?;
        let Some(path) = path else {
            return Ok(Source {
                file: format!("parameters of {}", schema.device),
                text: shipped.to_owned(),
                schema,
            });
        };
        let text = input_file::text(path, PARAMETERS_BYTES_MAX).map_err(|error| {
            Failure::about(&error, format!("{}: {error}: give a file of parameters", path.display()))
        })?;
        Ok(Source { file: path.display().to_string(), text, schema })
    }

    /// The parameters in it.
    ///
    /// # Errors
    /// A field that is missing, unknown or out of range.
    pub fn parameters(&self) -> Result<Parameters, Failure> {
        Parameters::parse(&self.file, &self.text, self.schema)
            .map_err(|error| Failure::Failed(error.to_string()))
    }
}
