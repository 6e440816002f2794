//! Pictures that are edited (Qwen-Image-Edit): their sizes for the autoencoder and for the text tower, and the prompt in which the text
//! tower sees them. Models whose text tower reads only texts do not use it.

use std::path::Path;

use image::RgbImage;
use serde_json::Value as Json;

use crate::config::{ImageLimits, VideoLimits};
use crate::data::card::{Edits, ModelCard};
use crate::data::contexts::TextProcessor;
use crate::data::error::DataError;
use crate::data::media::{self, Expansion, Filter, MediaKind, MediaProcessor, Piece, resize_as_pillow};
use crate::data::positions::{PositionKind, Span};
use crate::data::processor::ProcessorFolders;
use crate::data::sample::Media;
use crate::message::{PicturedText, Tower};
use crate::text::counted;

/// Pixels of a picture for the autoencoder, unless the run says otherwise, and for the text tower where it has its own.
const AREA: u64 = 1024 * 1024;
const SHOWN_AREA: u64 = 384 * 384;
/// Sides are multiples of so many pixels.
const UNIT: f64 = 32.0;

/// The pictures that a model edits, as its text tower is shown them in the prompt.
pub struct PromptPictures {
    edits: Edits,
    processor: Box<dyn MediaProcessor>,
    /// Stands for a picture in a text.
    marker: String,
    /// The token that is repeated for each feature of a picture.
    placeholder: i64,
    positions: PositionKind,
}

impl PromptPictures {
    /// Opens them as the pipeline of `config` shows them, with the preprocessor config in `media_dir` and the tokenizer of `text`; `None`
    /// of a model whose text tower sees no pictures.
    ///
    /// # Errors
    /// The preprocessor config is missing or wrong, or the tokenizer has no token for pictures.
    pub fn open(media_dir: &Path, config: &Json, text: &TextProcessor) -> Result<Option<Self>, DataError> {
        let Some(edits) = ModelCard::of(config).edits() else { return Ok(None) };
        let (encoder, tokenizer) = (&config["text_encoder"], text.tokenizer());
        let limits = (&ImageLimits::default(), &VideoLimits::default());
        let missing = || DataError::file(&media_dir.join("config.json"), "text_encoder has no image_token_id");
        let processor = media::open(ProcessorFolders::of(media_dir), encoder, tokenizer, limits)?;
        let processor = processor.ok_or_else(missing)?;
        let placeholder = tokenizer.special().image.ok_or_else(missing)?;
        let marker = processor.markers().of(MediaKind::Image).inline.clone();
        Ok(Some(Self { edits, processor, marker, placeholder, positions: ModelCard::of(encoder).positions() }))
    }

    /// Returns the pictures of a sample for the autoencoder and for the text tower, of `area` pixels for the autoencoder.
    ///
    /// # Errors
    /// The reason: they are too many or too few, or have no size of whole tokens.
    pub fn sized(&self, pictures: &[RgbImage], area: Option<u64>) -> Result<[Vec<RgbImage>; 2], String> {
        if self.edits == Edits::One && pictures.len() != 1 {
            return Err(format!("has {} pictures to edit, but this model takes one", pictures.len()));
        }
        let all = |area| pictures.iter().map(|picture| of_area(picture, area)).collect::<Result<Vec<_>, _>>();
        let own = all(area.unwrap_or(AREA))?;
        let shown = if self.edits == Edits::One { own.clone() } else { all(SHOWN_AREA)? };
        Ok([own, shown])
    }

    /// Makes the item of a text and of the pictures that are shown before it.
    ///
    /// # Errors
    /// The reason: the text has a picture's token of its own, or nothing is left of it.
    pub fn item(&self, processor: &TextProcessor, text: &str, shown: &[RgbImage]) -> Result<Media, String> {
        let before = (1..=shown.len()).map(|number| match self.edits {
            Edits::One => self.marker.clone(),
            Edits::Numbered => format!("Picture {number}: {}", self.marker),
        });
        let ids = processor.ids(&(before.collect::<String>() + text))?;
        let pictures = shown.iter().map(|picture| self.processor.image(picture)).collect::<Result<Vec<_>, _>>()?;
        let num_places = ids.iter().filter(|id| **id == self.placeholder).count();
        if num_places != pictures.len() {
            let (places, count) = (counted(num_places as u64, "placeholder token"), pictures.len());
            return Err(format!("has {places} of pictures, but {}", counted(count as u64, "picture")));
        }
        let (mut expanded, mut spans, mut left) = (Vec::new(), Vec::new(), pictures.iter());
        for part in ids.split_inclusive(|id| *id == self.placeholder) {
            let (text, picture) = match part.split_last() {
                Some((last, text)) if *last == self.placeholder => (text, left.next()),
                _ => (part, None),
            };
            expanded.extend_from_slice(text);
            spans.push(Span::Text(text.len()));
            for run in picture.into_iter().flat_map(runs) {
                expanded.extend(std::iter::repeat_n(self.placeholder, run.len()));
                spans.push(Span::Run(run));
            }
        }
        let num_features = processor.num_features(expanded.len())?;
        let media = || pictures.iter().flat_map(|picture| &picture.media);
        let text = PicturedText {
            ids: expanded,
            positions: self.positions.ids(&spans),
            grids: media().map(|item| item.grid).collect(),
        };
        let patches: Vec<&[f32]> = media().map(|item| item.pixels.as_slice()).collect();
        let (grid, pixels) = text.item(&patches);
        Ok(Media { tower: Tower::Text, grid, num_features, pixels })
    }
}

fn runs(picture: &Expansion) -> impl Iterator<Item = media::Run> {
    picture.pieces.iter().filter_map(|piece| match piece {
        Piece::Run(run) => Some(*run),
        Piece::Text(_) | Piece::Number(_) => None,
    })
}

/// Returns a picture of about this many pixels and nearly the same shape, smaller or larger: `calculate_dimensions` of the pipelines.
fn of_area(picture: &RgbImage, area: u64) -> Result<RgbImage, String> {
    let ratio = f64::from(picture.width()) / f64::from(picture.height());
    let width = (area as f64 * ratio).sqrt();
    let [columns, rows] = [width, width / ratio].map(|side| (side / UNIT).round_ties_even() * UNIT);
    if columns < UNIT || rows < UNIT {
        let (width, height) = picture.dimensions();
        return Err(format!(
            "is {width}×{height} pixels: resized to {area} pixels, a side would be shorter than {UNIT}"
        ));
    }
    let resized = resize_as_pillow(picture, columns as usize, rows as usize, Filter::Lanczos)?.into_owned();
    RgbImage::from_raw(columns as u32, rows as u32, resized).ok_or_else(|| "cannot be resized".to_owned())
}

#[cfg(test)]
mod tests {
    use image::RgbImage;

    use super::{AREA, SHOWN_AREA, of_area};

    #[test]
    fn sizes_are_those_of_the_pipelines() {
        // `calculate_dimensions` of diffusers 0.42.
        for (size, area, expected) in [
            ((1920, 1080), AREA, (1376, 768)),
            ((1920, 1080), SHOWN_AREA, (512, 288)),
            ((100, 100), SHOWN_AREA, (384, 384)),
            ((50, 70), 64 * 64, (64, 64)),
            ((60, 200), SHOWN_AREA, (224, 704)),
        ] {
            let made = of_area(&RgbImage::new(size.0, size.1), area).unwrap();
            assert_eq!(made.dimensions(), expected, "{size:?}");
        }
        assert!(of_area(&RgbImage::new(2000, 1), 4096).unwrap_err().contains("is 2000×1 pixels"));
    }
}
