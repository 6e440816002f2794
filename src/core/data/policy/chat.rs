//! Samples of a policy that is told pictures and task as a chat: GR00T, whose backbone is Qwen3-VL. All that is written is the folder's
//! own: its chat template, tokenizer and processor of pictures.

use image::RgbImage;
use serde_json::Value as Json;

use super::groot_spec::{CROP, SIDE};
use crate::data::card::groot_backbone;
use crate::data::error::DataError;
use crate::data::media::{middle, resize_bicubic};
use crate::data::processor::{Processor, ProcessorFolders, ProcessorOptions};
use crate::data::sample::Sample;
use crate::data::source::{Part, Turn};
use crate::message::SampleId;

/// The prompt of a robot without a task.
const TASK: &str = "Perform the task.";

/// The processor of the backbone.
pub struct Chat {
    processor: Processor,
}

impl Chat {
    /// # Errors
    /// A file of the folder is missing or wrong.
    pub fn open(folders: ProcessorFolders<'_>, config: &Json, options: &ProcessorOptions) -> Result<Chat, DataError> {
        let processor = Processor::open_from(folders, &groot_backbone(config), options)?;
        processor.expect_template()?;
        Ok(Chat { processor })
    }

    /// The chat of a task and what is seen; nothing counts in a loss of tokens.
    pub fn sample(&self, id: SampleId, task: &str, pictures: &[&RgbImage]) -> Result<Sample, DataError> {
        let pictures: Vec<RgbImage> =
            pictures.iter().map(|picture| cropped(picture).map_err(DataError::Line)).collect::<Result<_, _>>()?;
        let text = Part::Text { text: formal(if task.is_empty() { TASK } else { task }) };
        let parts = pictures.iter().map(|_| Part::Image).chain([text]).collect();
        self.processor.shown(id, &[Turn::new("user", parts)], &pictures)
    }
}

/// Small letters, digits, underscores and spaces alone.
fn formal(task: &str) -> String {
    task.to_lowercase().chars().filter(|it| it.is_alphanumeric() || it.is_whitespace() || *it == '_').collect()
}

/// A picture made square, whatever its sides are; its middle, as large again.
///
/// # Errors
/// The reason: it has no pixels.
fn cropped(picture: &RgbImage) -> Result<RgbImage, String> {
    let square = resize_bicubic(picture, SIDE, SIDE)?;
    let middle = middle(&square, (SIDE, SIDE), (CROP, CROP));
    let middle = of_bytes(middle, CROP)?;
    let whole = resize_bicubic(&middle, SIDE, SIDE)?.into_owned();
    of_bytes(whole, SIDE)
}

fn of_bytes(bytes: Vec<u8>, side: usize) -> Result<RgbImage, String> {
    RgbImage::from_raw(side as u32, side as u32, bytes).ok_or_else(|| "a picture of another size".to_owned())
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
