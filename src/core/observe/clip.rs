//! Pictures and clips that a model has made, as files: PNG, and animated GIF.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use image::codecs::gif::{GifEncoder, Repeat};
use image::{Delay, DynamicImage, Frame, RgbImage};

use super::error::{ObserveError, save_png};
use crate::files::draft_of;

/// Frames of a strip at most: a longer clip is shown by so many even ones.
const STRIP_FRAMES: usize = 8;

/// Frames of one size; a picture is one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Clip {
    pub frames: Vec<RgbImage>,
    /// Frames a second.
    pub fps: f64,
}

impl Clip {
    /// Frames of `values`, `[frames, rows, columns, channels]` from −1 to 1, of one channel or three; values beyond are cut.
    ///
    /// # Panics
    /// There are other numbers of values or channels.
    pub fn from_values(values: &[f32], [frames, rows, columns, channels]: [usize; 4], fps: f64) -> Self {
        assert!(channels == 1 || channels == 3, "{channels} channels");
        assert_eq!(values.len(), frames * rows * columns * channels, "values of a clip");
        // As diffusers rounds.
        let level = |value: &f32| ((value / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
        let frame = |values: &[f32]| {
            let pixels = values.chunks(channels).flat_map(|pixel| {
                let [red, green, blue] = [0, channels / 2, channels - 1].map(|channel| level(&pixel[channel]));
                [red, green, blue]
            });
            let pixels = pixels.collect();
            RgbImage::from_raw(columns as u32, rows as u32, pixels).expect("a pixel for each place")
        };
        Self { frames: values.chunks((rows * columns * channels).max(1)).map(frame).collect(), fps }
    }

    /// Writes `STEM.png` of a picture; of a clip `STEM.gif`, and `STEM.png` with its frames side by side. Returns the name of
    /// the file to look at.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, folder: &Path, stem: &str) -> Result<String, ObserveError> {
        fs::create_dir_all(folder).map_err(|error| ObserveError::write(folder, error))?;
        let picture = format!("{stem}.png");
        save_png(&self.strip(), &folder.join(&picture))?;
        if self.frames.len() < 2 {
            return Ok(picture);
        }
        let name = format!("{stem}.gif");
        self.write_gif(&folder.join(&name))?;
        Ok(name)
    }

    /// Frames of it side by side, the first and the last among them.
    pub fn strip(&self) -> RgbImage {
        let count = self.frames.len().min(STRIP_FRAMES);
        let at = |index: usize| if count < 2 { 0 } else { index * (self.frames.len() - 1) / (count - 1) };
        let shown: Vec<&RgbImage> = (0..count).filter_map(|index| self.frames.get(at(index))).collect();
        let (width, height) = shown.first().map_or((1, 1), |frame| frame.dimensions());
        let mut strip = RgbImage::new(width * shown.len().max(1) as u32, height);
        for (frame, left) in shown.into_iter().zip((0i64..).step_by(width.max(1) as usize)) {
            image::imageops::replace(&mut strip, frame, left, 0);
        }
        strip
    }

    /// Writes by way of a file beside it, so that a reader never sees half a clip.
    fn write_gif(&self, path: &Path) -> Result<(), ObserveError> {
        let draft = draft_of(path);
        let write = |error| ObserveError::write(&draft, error);
        let picture = |source| ObserveError::Picture { path: path.to_path_buf(), source };
        let mut file = BufWriter::new(File::create(&draft).map_err(write)?);
        {
            let mut encoder = GifEncoder::new(&mut file);
            encoder.set_repeat(Repeat::Infinite).map_err(picture)?;
            let delay = Delay::from_numer_denom_ms(100_000, (self.fps * 100.0).round().max(1.0) as u32);
            for frame in &self.frames {
                let pixels = DynamicImage::ImageRgb8(frame.clone()).into_rgba8();
                encoder.encode_frame(Frame::from_parts(pixels, 0, 0, delay)).map_err(picture)?;
            }
        }
        file.flush().map_err(write)?;
        fs::rename(&draft, path).map_err(|error| ObserveError::write(path, error))
    }
}

#[cfg(test)]
mod tests {
    use image::codecs::gif::GifDecoder;
    use image::{AnimationDecoder, Rgb};
    use std::io::BufReader;

    use super::*;

    #[test]
    fn a_picture_is_a_png_and_a_clip_moves() {
        let folder = tempfile::tempdir().unwrap();
        let gray = Clip::from_values(&[-1.0, 1.0, 0.0, 7.0], [1, 2, 2, 1], 1.0);
        assert_eq!(gray.frames[0].as_raw(), &[0, 0, 0, 255, 255, 255, 128, 128, 128, 255, 255, 255]);
        assert_eq!(gray.write(folder.path(), "a").unwrap(), "a.png");
        assert_eq!(image::open(folder.path().join("a.png")).unwrap().into_rgb8(), gray.frames[0]);

        // Twelve frames, red that fades.
        let values: Vec<f32> = (0..12).flat_map(|frame| [1.0 - frame as f32 / 6.0, -1.0, -1.0].repeat(6)).collect();
        let clip = Clip::from_values(&values, [12, 2, 3, 3], 8.0);
        assert_eq!(clip.write(folder.path(), "b").unwrap(), "b.gif");
        let strip = image::open(folder.path().join("b.png")).unwrap().into_rgb8();
        assert_eq!(strip.dimensions(), (8 * 3, 2));
        let ends = [strip.get_pixel(0, 0), strip.get_pixel(23, 1)];
        assert_eq!(ends, [clip.frames[0].get_pixel(0, 0), clip.frames[11].get_pixel(2, 1)]);
        let file = BufReader::new(File::open(folder.path().join("b.gif")).unwrap());
        let frames = GifDecoder::new(file).unwrap().into_frames().collect_frames().unwrap();
        assert_eq!(frames.len(), 12);
        assert_eq!(frames[0].delay().numer_denom_ms(), (120, 1), "an eighth of a second, in hundredths");
        let found = frames[0].buffer().get_pixel(0, 0).0;
        assert_eq!(Rgb([found[0], found[1], found[2]]), *clip.frames[0].get_pixel(0, 0));
    }
}
