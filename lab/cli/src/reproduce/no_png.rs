// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Instead of `png` in a build without that feature.

/// Cannot be made.
pub enum Raster {}

impl Raster {
    /// Refuses, and says what to do.
    pub fn new() -> Result<Raster, String> {
        Err("this build has no PNG: use --svg, or build with the feature `png`".to_owned())
    }

    /// There is no value to call it with.
    pub fn draw(&self, _svg: &str) -> Result<Vec<u8>, String> {
        match *self {}
    }
}
