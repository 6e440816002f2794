//! A picture to draw lines and text on, for plots and sheets. Fonts are part of the program.

use std::convert::Infallible;

use embedded_graphics::Drawable;
use embedded_graphics::Pixel;
use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::{Rgb888, RgbColor};
use embedded_graphics::prelude::Primitive;
use embedded_graphics::primitives::{Line, PrimitiveStyle};
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};
use image::{Rgb, RgbImage};

pub(super) struct Canvas(pub RgbImage);

impl Canvas {
    /// Makes a white picture of this size in pixels.
    pub fn white(width: u32, height: u32) -> Self {
        Self(RgbImage::from_pixel(width, height, Rgb([255; 3])))
    }

    /// Draws a line of `width` pixels; what lies outside is left out.
    pub fn line(&mut self, from: Point, to: Point, color: Rgb888, width: u32) {
        let Ok(()) = Line::new(from, to).into_styled(PrimitiveStyle::with_stroke(color, width)).draw(self);
    }

    /// `at` is the middle of the text's height, and its left, middle or right as `align` says.
    pub fn text(&mut self, text: &str, at: Point, align: Alignment, font: &MonoFont<'_>, color: Rgb888) {
        let style = TextStyleBuilder::new().alignment(align).baseline(Baseline::Middle).build();
        let Ok(_) = Text::with_text_style(text, at, MonoTextStyle::new(font, color), style).draw(self);
    }

    /// Copies a picture; what lies outside is cut off.
    pub fn paste(&mut self, picture: &RgbImage, left: u32, top: u32) {
        image::imageops::replace(&mut self.0, picture, i64::from(left), i64::from(top));
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(self.0.width(), self.0.height())
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        for Pixel(Point { x, y }, color) in pixels {
            if let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y))
                && let Some(pixel) = self.0.get_pixel_mut_checked(x, y)
            {
                *pixel = Rgb([color.r(), color.g(), color.b()]);
            }
        }
        Ok(())
    }
}
