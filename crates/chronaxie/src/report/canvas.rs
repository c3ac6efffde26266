//! What every picture is drawn on: SVG and PNG alike, with a font of the library's own.

use crate::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::sync::OnceLock;

pub(super) const FONT: &str = "DejaVu Sans";
const FONT_BYTES: &[u8] = include_bytes!("font/DejaVuSans-Latin.ttf");
/// Pixels of the PNG for each at which a picture is laid out.
const PNG_SCALE: u32 = 2;

pub(super) const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);
pub(super) const FAINT: RGBColor = RGBColor(0x8c, 0x95, 0x9f);
pub(super) const GRID: RGBColor = RGBColor(0xea, 0xee, 0xf2);

/// A picture that lays itself out in pixels of `SIZE`, each `scale` wide.
pub(super) trait Picture {
    const SIZE: (u32, u32);
    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, scale: u32) -> Result<()>;
}

pub(super) fn failed(e: impl std::fmt::Display) -> Error {
    Error::value(format!("the picture cannot be drawn: {e}"))
}

/// The picture as SVG.
pub(super) fn svg<P: Picture>(picture: &P) -> Result<String> {
    font()?;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, P::SIZE).into_drawing_area();
        picture.draw(&area, 1)?;
        area.present().map_err(failed)?;
    }
    Ok(text)
}

/// The picture as PNG, in RGB.
pub(super) fn png<P: Picture>(picture: &P) -> Result<Vec<u8>> {
    font()?;
    let (width, height) = (P::SIZE.0 * PNG_SCALE, P::SIZE.1 * PNG_SCALE);
    let mut pixels = vec![0; width as usize * height as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        picture.draw(&area, PNG_SCALE)?;
        area.present().map_err(failed)?;
    }
    encode(&pixels, width, height)
}

/// RGB bytes as a PNG file.
fn encode(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().and_then(|mut w| w.write_image_data(pixels)).map_err(failed)?;
    Ok(file)
}

/// The font is registered once a process.
fn font() -> Result<()> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let ok = *REGISTERED.get_or_init(|| register_font(FONT, FontStyle::Normal, FONT_BYTES).is_ok());
    if ok { Ok(()) } else { Err(failed("its font is not a font")) }
}
