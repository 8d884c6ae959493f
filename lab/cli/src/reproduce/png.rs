// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A drawing as PNG, for whoever cannot show SVG.
//!
//! - **Flow** SVG ─▶ resvg, with the fonts of this machine ─▶ pixels, twice as many either way ─▶ PNG
//! - **Rule** a drawing without its words is none: where there is no font it is refused, with what to install
//! - **Not here** what is drawn (`svg`)

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// Pixels for a unit of the drawing.
const SCALE: f32 = 2.0;
/// Font families that Debian, Fedora and most others have, tried before any other.
const FAMILIES: [&str; 4] = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial"];

/// Draws with the fonts of this machine, which are looked for once.
pub struct Raster {
    options: Options<'static>,
}

impl Raster {
    /// Looks for fonts. The error says what to install.
    pub fn new() -> Result<Raster, String> {
        let mut fonts = fontdb::Database::new();
        fonts.load_system_fonts();
        let there = |family: &str| {
            fonts
                .faces()
                .any(|face| face.families.iter().any(|(name, _)| name == family))
                .then(|| family.to_owned())
        };
        let any = || fonts.faces().find_map(|face| face.families.first().map(|(name, _)| name.clone()));
        let family = FAMILIES.iter().find_map(|family| there(family)).or_else(any).ok_or(
            "no font on this machine, so a PNG would have no words: install one (apt install fonts-dejavu-core), or use --svg",
        )?;
        fonts.set_sans_serif_family(family);
        Ok(Raster { options: Options { fontdb: Arc::new(fonts), ..Options::default() } })
    }

    /// The bytes of a PNG file.
    pub fn draw(&self, svg: &str) -> Result<Vec<u8>, String> {
        let tree = Tree::from_str(svg, &self.options).map_err(|error| error.to_string())?;
        let pixels = |side: f32| (side * SCALE).ceil() as u32;
        let mut picture = Pixmap::new(pixels(tree.size().width()), pixels(tree.size().height()))
            .ok_or("the drawing has no pixels")?;
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut picture.as_mut());
        picture.encode_png().map_err(|error| error.to_string())
    }
}
