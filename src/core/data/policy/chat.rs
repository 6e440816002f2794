//! Samples of a policy that is told pictures and task as a chat: GR00T, whose backbone is Qwen3-VL (N1.7) or Eagle 3 (N1.6). All that is
//! written is the folder's own: its chat template, tokenizer and processor of pictures.

use image::RgbImage;
use serde_json::Value as Json;

use super::groot_framing::Framing;
use crate::data::card::{GrootVersion, groot_backbone, groot_keys};
use crate::data::error::DataError;
use crate::data::processor::{Processor, ProcessorFolders, ProcessorOptions};
use crate::data::sample::{Media, Sample};
use crate::data::source::{Part, Turn};
use crate::message::{PicturedText, SampleId, Tower};

/// The prompt of a robot without a task.
const TASK: &str = "Perform the task.";

/// The processor of the backbone.
pub struct Chat {
    processor: Processor,
    framing: Framing,
    /// True if pictures come before the task (N1.7).
    pictures_first: bool,
    /// True if the backbone is a tower, which takes the whole chat as an item.
    as_item: bool,
}

impl Chat {
    /// Opens the processor in a model's folder, whose `config.json` is `config`.
    ///
    /// # Errors
    /// A file of the folder is missing or wrong.
    pub fn open(
        folders: ProcessorFolders<'_>,
        config: &Json,
        options: &ProcessorOptions,
        version: GrootVersion,
    ) -> Result<Chat, DataError> {
        let processor = Processor::open_from(folders, &groot_backbone(config), options)?;
        processor.expect_template()?;
        let framing = Framing::of_folder(version, groot_keys(config), folders.model)?;
        let (pictures_first, as_item) = (version == GrootVersion::N1_7, options.policy.prefix_tower);
        Ok(Chat { processor, framing, pictures_first, as_item })
    }

    /// Makes the chat of a task and what is seen; nothing counts in a loss of tokens.
    ///
    /// # Errors
    /// A picture cannot be framed, or the sample does not fit the processor.
    pub fn sample(&self, id: SampleId, task: &str, pictures: &[&RgbImage]) -> Result<Sample, DataError> {
        let pictures: Vec<RgbImage> = pictures
            .iter()
            .map(|picture| self.framing.apply(picture).map_err(DataError::Line))
            .collect::<Result<_, _>>()?;
        let text = Part::Text { text: formal(if task.is_empty() { TASK } else { task }) };
        let mut parts = vec![Part::Image; pictures.len()];
        parts.insert(if self.pictures_first { pictures.len() } else { 0 }, text);
        let sample = self.processor.shown(id, &[Turn::new("user", parts)], &pictures)?;
        Ok(if self.as_item { read_by_tower(sample) } else { sample })
    }
}

/// Returns the sample whose tokens and pictures are one item of a text tower, which makes a feature of each token.
fn read_by_tower(sample: Sample) -> Sample {
    let Sample { meta, input_ids, position_ids, targets, media, num_sources, .. } = sample;
    let grids = media.iter().map(|item| item.grid).collect();
    let text = PicturedText { ids: input_ids, positions: position_ids, grids };
    let patches: Vec<&[f32]> = media.iter().map(|item| item.pixels.as_slice()).collect();
    let (grid, pixels) = text.item(&patches);
    let PicturedText { ids, positions, .. } = text;
    let item = Media { tower: Tower::Text, grid, num_features: ids.len(), pixels };
    let sample = Sample::new(meta.id, ids, positions, targets, vec![item]);
    Sample { num_sources, ..sample }
}

/// Reduces a task to small letters, digits, underscores and spaces.
fn formal(task: &str) -> String {
    task.to_lowercase().chars().filter(|it| it.is_alphanumeric() || it.is_whitespace() || *it == '_').collect()
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
