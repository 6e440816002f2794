//! Conversations to samples: chat template, tokenizer and image processor of one model folder together, the
//! counterpart of Hugging Face's `AutoProcessor`.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::decode::{header_size, open_rgb};
use super::error::DataError;
use super::messages::{Conversation, Turn};
use super::pixels::ImageProcessor;
use super::positions::mrope_position_ids;
use super::sample::{IGNORE_INDEX, Image, Sample};
use super::template::{ChatTemplate, QWEN};
use super::tokenizer::{Token, Tokenizer, read_json, read_json_if_exists, token_text};
use crate::config::{ImageLimits, Template};
use crate::message::SampleId;

const ASSISTANT: &str = "assistant";

pub struct Processor {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    /// `None` for text models.
    images: Option<ImageProcessor>,
    max_side: usize,
    max_tokens: usize,
}

impl Processor {
    /// From the files of a model folder: `config.json`, `tokenizer.json`, `tokenizer_config.json`, the chat template,
    /// `preprocessor_config.json`. Samples of more than `max_tokens` are refused.
    pub fn open(
        model_dir: &Path,
        template: Template,
        limits: &ImageLimits,
        max_tokens: usize,
    ) -> Result<Self, DataError> {
        let config = read_json(&model_dir.join("config.json"))?;
        let tokenizer_config = read_json_if_exists(&model_dir.join("tokenizer_config.json"))?;
        let tokenizer = Tokenizer::open(model_dir, &config, &tokenizer_config)?;
        let source = match template {
            Template::Qwen => QWEN.to_owned(),
            Template::FromModel => ChatTemplate::find(model_dir, &tokenizer_config)?.ok_or_else(|| {
                DataError::file(
                    model_dir,
                    "no chat template (chat_template.jinja); set data.template to a built-in one",
                )
            })?,
        };
        let text = |key: &str| token_text(&tokenizer_config[key]).unwrap_or_default();
        let template = ChatTemplate::new(&source, text("bos_token"), text("eos_token"))?;
        let images = match config["vision_config"] {
            Json::Null => None,
            ref vision => Some(image_processor(model_dir, vision, limits)?),
        };
        Ok(Self { tokenizer, template, images, max_side: limits.max_side, max_tokens })
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// `None` for text models.
    pub fn image_processor(&self) -> Option<&ImageProcessor> {
        self.images.as_ref()
    }

    /// A training sample: assistant turns count in the loss, from behind the turn's header to its closing token.
    /// Picture files are relative to `base`.
    pub fn training_sample(&self, id: SampleId, conversation: &Conversation, base: &Path) -> Result<Sample, DataError> {
        let text = self.template.render(&conversation.turns, false)?;
        let tokens = self.tokenizer.encode(&text)?;
        let learnt = self.learnt(conversation, &text, &tokens)?;
        if !learnt.contains(&true) {
            return Err(DataError::Line("no assistant turn to learn from".to_owned()));
        }
        self.assemble(id, conversation, base, &tokens, &learnt)
    }

    /// The turns up to where the assistant is to speak: what generation starts from; nothing counts in the loss.
    pub fn prompt(&self, id: SampleId, conversation: &Conversation, base: &Path) -> Result<Sample, DataError> {
        let text = self.template.render(&conversation.turns, true)?;
        let tokens = self.tokenizer.encode(&text)?;
        self.assemble(id, conversation, base, &tokens, &vec![false; tokens.len()])
    }

    /// For each token whether it is the assistant's.
    fn learnt(&self, conversation: &Conversation, text: &str, tokens: &[Token]) -> Result<Vec<bool>, DataError> {
        let mut learnt = vec![false; tokens.len()];
        for (index, _) in conversation.turns.iter().enumerate().filter(|(_, turn)| turn.role == ASSISTANT) {
            // What stands before the turn, header included, is what one would generate from. Not asking for the
            // header serves templates that know no generation prompt; the header is then learnt as well.
            let before = &conversation.turns[..index];
            let begin = [true, false]
                .into_iter()
                .filter_map(|header| self.template.render(before, header).ok())
                .find(|prefix| text.starts_with(prefix.as_str()))
                .ok_or_else(|| {
                    DataError::Template(format!(
                        "turn {index} does not begin with the rendering of the turns before it"
                    ))
                })?
                .len();
            let first = tokens.partition_point(|token| token.start < begin);
            let end_token = tokens[first..].iter().position(|token| self.tokenizer.special().end.contains(&token.id));
            let end = match end_token {
                Some(offset) => first + offset + 1,
                // A template without an end token: up to where the rendering of the turns so far ends.
                None => {
                    let prefix = self.template.render(&conversation.turns[..=index], false)?;
                    let end = if text.starts_with(&prefix) { prefix.len() } else { text.len() };
                    tokens.partition_point(|token| token.start < end)
                }
            };
            learnt[first..end].fill(true);
        }
        Ok(learnt)
    }

    /// Loads the pictures, repeats their placeholders and numbers the positions.
    fn assemble(
        &self,
        id: SampleId,
        conversation: &Conversation,
        base: &Path,
        tokens: &[Token],
        learnt: &[bool],
    ) -> Result<Sample, DataError> {
        let image_token = self.tokenizer.special().image;
        let num_placeholders = tokens.iter().filter(|token| Some(token.id) == image_token).count();
        if num_placeholders != conversation.images.len() {
            return Err(DataError::Line(format!(
                "{} pictures, but the chat template made {num_placeholders} placeholder tokens",
                conversation.images.len()
            )));
        }
        let num_text_tokens = tokens.len() - num_placeholders;
        let (images, merge_size) = self.load(conversation, base, num_text_tokens)?;
        let mut counts = images.iter().map(|image| image.grid.num_patches() / (merge_size * merge_size));
        let num_image_tokens: usize = counts.clone().sum();
        let num_tokens = self.check_length(num_text_tokens, num_image_tokens)?;

        let mut input_ids = Vec::with_capacity(num_tokens);
        let mut counted = Vec::with_capacity(num_tokens);
        for (token, &learnt) in tokens.iter().zip(learnt) {
            let is_image = Some(token.id) == image_token;
            let count = if is_image { counts.next().unwrap_or(0) } else { 1 };
            input_ids.extend(std::iter::repeat_n(token.id, count));
            counted.extend(std::iter::repeat_n(learnt && !is_image, count));
        }
        let next = (1..=num_tokens)
            .map(|next| if next < num_tokens && counted[next] { input_ids[next] } else { IGNORE_INDEX });
        let targets = next.collect();
        let grids: Vec<_> = images.iter().map(|image| image.grid).collect();
        let position_ids = mrope_position_ids(&input_ids, image_token, &grids, merge_size);
        Ok(Sample::new(id, input_ids, position_ids, targets, images, merge_size))
    }

    fn check_length(&self, num_text_tokens: usize, num_image_tokens: usize) -> Result<usize, DataError> {
        let num_tokens = num_text_tokens + num_image_tokens;
        if num_tokens > self.max_tokens {
            return Err(DataError::TooLong { num_tokens, num_image_tokens, max_tokens: self.max_tokens });
        }
        Ok(num_tokens)
    }

    fn load(
        &self,
        conversation: &Conversation,
        base: &Path,
        num_text_tokens: usize,
    ) -> Result<(Vec<Image>, usize), DataError> {
        let Some(processor) = &self.images else {
            return match conversation.images.first() {
                None => Ok((Vec::new(), 1)),
                Some(path) => Err(DataError::image(Path::new(path), "this model takes no pictures")),
            };
        };
        // Many large pictures would take much memory before their sample turned out to be too long.
        let num_images = conversation.images.len();
        if num_text_tokens + num_images * processor.max_image_tokens() > self.max_tokens {
            let mut num_image_tokens = 0;
            for name in &conversation.images {
                let path = base.join(name);
                let (width, height) = header_size(&path, self.max_side)?;
                let num_tokens = processor.num_tokens_of_size(width as usize, height as usize);
                num_image_tokens += num_tokens.map_err(|reason| DataError::image(&path, reason))?;
            }
            self.check_length(num_text_tokens, num_image_tokens)?;
        }
        let load = |name: &String| {
            let path: PathBuf = base.join(name);
            let picture = open_rgb(&path, self.max_side)?;
            processor.process(&picture).map_err(|reason| DataError::image(&path, reason))
        };
        Ok((conversation.images.iter().map(load).collect::<Result<_, _>>()?, processor.merge_size))
    }
}

impl Conversation {
    /// The turns before the last assistant turn, and what that turn says: a question and its expected answer.
    pub fn split_answer(&self) -> Option<(Conversation, String)> {
        let at = self.turns.iter().rposition(|turn| turn.role == ASSISTANT)?;
        let turns: Vec<Turn> = self.turns[..at].to_vec();
        let num_images =
            turns.iter().flat_map(|turn| &turn.parts).filter(|part| **part == super::messages::Part::Image).count();
        let images = self.images[..num_images].to_vec();
        Some((Conversation { turns, images }, self.turns[at].joined_text()))
    }
}

/// The folder's `preprocessor_config.json`, which must agree with the vision tower of `config.json`.
fn image_processor(model_dir: &Path, vision: &Json, limits: &ImageLimits) -> Result<ImageProcessor, DataError> {
    let path = model_dir.join("preprocessor_config.json");
    let processor = ImageProcessor::open(&path, limits)?;
    for (key, value) in [
        ("patch_size", processor.patch_size),
        ("spatial_merge_size", processor.merge_size),
        ("temporal_patch_size", processor.temporal_patch_size),
    ] {
        if let Some(expected) = vision[key].as_u64()
            && expected != value as u64
        {
            return Err(DataError::file(&path, format!("{key} is {value}, but config.json says {expected}")));
        }
    }
    Ok(processor)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::data::digits::{Digits, MODEL, compose, write_model};
    use crate::data::messages::Part;

    #[derive(Deserialize)]
    struct Golden {
        texts: Vec<(String, Vec<i64>)>,
        samples: Vec<GoldenSample>,
    }

    #[derive(Deserialize)]
    struct GoldenSample {
        input_ids: Vec<i64>,
        grid: [u32; 3],
        pixel_sum: f64,
        stride: usize,
        pixels: Vec<f32>,
    }

    fn open(dir: &Path, max_tokens: usize) -> Processor {
        write_model(dir, &MODEL).unwrap();
        Processor::open(dir, Template::FromModel, &ImageLimits::default(), max_tokens).unwrap()
    }

    fn read_targets(processor: &Processor, sample: &Sample) -> String {
        let ids: Vec<i64> = sample.targets.iter().copied().filter(|&id| id != IGNORE_INDEX).collect();
        let special = processor.tokenizer.special();
        let ends = ids.iter().filter(|id| special.end.contains(id)).count();
        format!("{}+{ends}", processor.tokenizer.decode(&ids).unwrap())
    }

    /// The digits of seed 3 through transformers' `AutoProcessor` and through ours.
    #[test]
    fn equal_to_transformers() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        compose(&data, &Digits { seed: 3, num_train: 8, num_held_out: 1 }).unwrap();
        let processor = open(&folder.path().join("model"), 2048);
        let golden: Golden = serde_json::from_str(include_str!("goldens/processor.json")).unwrap();
        for (text, ids) in golden.texts {
            let ours: Vec<i64> = processor.tokenizer.encode(&text).unwrap().iter().map(|token| token.id).collect();
            assert_eq!(ours, ids, "{text}");
        }
        let lines = std::fs::read_to_string(data.join("train.jsonl")).unwrap();
        assert_eq!(golden.samples.len(), 4);
        for (line, golden) in lines.lines().zip(golden.samples) {
            let conversation = Conversation::parse(line).unwrap();
            let sample = processor.training_sample(SampleId(0), &conversation, &data).unwrap();
            assert_eq!(sample.input_ids, golden.input_ids);
            let image = &sample.images[0];
            assert_eq!([image.grid.t, image.grid.h, image.grid.w], golden.grid);
            let sum: f64 = image.pixels.iter().map(|&value| f64::from(value)).sum();
            assert!((sum - golden.pixel_sum).abs() / image.pixels.len() as f64 <= 1e-4);
            for (ours, theirs) in image.pixels.iter().step_by(golden.stride).zip(golden.pixels) {
                assert!((ours - theirs).abs() <= 2.1 / 255.0, "{ours} {theirs}");
            }
            let answer = conversation.turns[1].joined_text();
            assert_eq!(read_targets(&processor, &sample), format!("{answer}+1"));
            assert_eq!(sample.meta.num_targets as usize, answer.len() + 1);

            let (question, expected) = conversation.split_answer().unwrap();
            let prompt = processor.prompt(SampleId(0), &question, &data).unwrap();
            assert_eq!((expected, prompt.meta.num_targets), (answer, 0));
            assert_eq!(sample.input_ids[..prompt.input_ids.len()], prompt.input_ids);
        }
    }

    #[test]
    fn every_assistant_turn_is_learnt_and_targets_are_the_next_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let processor = open(folder.path(), 2048);
        let turns = vec![
            Turn::text("system", "Be brief."),
            Turn::text("user", "assistant?"),
            Turn::text("assistant", "yes"),
            Turn::text("user", "é"),
            Turn::text("assistant", ""),
        ];
        let conversation = Conversation { turns, images: vec![] };
        let sample = processor.training_sample(SampleId(9), &conversation, folder.path()).unwrap();
        assert_eq!(read_targets(&processor, &sample), "yes+2");
        for (at, &target) in sample.targets.iter().enumerate().filter(|(_, target)| **target != IGNORE_INDEX) {
            assert_eq!(target, sample.input_ids[at + 1]);
        }
        let len = sample.input_ids.len() as i64;
        assert_eq!(sample.position_ids, [0..len, 0..len, 0..len].into_iter().flatten().collect::<Vec<_>>());
        assert_eq!((sample.meta.id, sample.meta.num_tokens as i64), (SampleId(9), len));
    }

    /// Qwen3 adds an empty thought to the last answer only, so rendering a part is no prefix of rendering all.
    #[test]
    fn templates_that_treat_the_last_turn_differently_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), &MODEL).unwrap();
        let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}\
            <think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}\
            {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        let processor = Processor::open(folder.path(), Template::FromModel, &ImageLimits::default(), 99).unwrap();
        let turn = |role: &str, text: &str| Turn::text(role, text);
        let turns = vec![turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")];
        let sample = processor.training_sample(SampleId(0), &Conversation { turns, images: vec![] }, folder.path());
        assert_eq!(read_targets(&processor, &sample.unwrap()), "b<think></think>d+2");
    }

    #[test]
    fn what_is_wrong_with_a_sample_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let processor = open(folder.path(), 60);
        image::RgbImage::new(100, 40).save(folder.path().join("a.png")).unwrap();
        let reason = |parts: Vec<Part>, answer: &str, images: &[&str]| {
            let turns = vec![Turn { role: "user".into(), parts }, Turn::text("assistant", answer)];
            let conversation = Conversation { turns, images: images.iter().map(|name| name.to_string()).collect() };
            processor.training_sample(SampleId(0), &conversation, folder.path()).unwrap_err().to_string()
        };
        let text = |text: &str| Part::Text { text: text.into() };
        let long = reason(vec![Part::Image], &"1".repeat(60), &["a.png"]);
        assert!(long.contains("(12 of images)") && long.contains("pack.max_tokens = 60"), "{long}");
        std::fs::write(folder.path().join("c.png"), b"").unwrap();
        assert!(reason(vec![Part::Image], &"1".repeat(60), &["c.png"]).contains("c.png"));
        assert!(reason(vec![Part::Image], "1", &["b.png"]).contains("b.png"));
        let forged = reason(vec![text("<|image_pad|>")], "1", &[]);
        assert!(forged.contains("0 pictures") && forged.contains("1 placeholder"), "{forged}");
        let turns = vec![Turn::text("user", "hello")];
        let conversation = Conversation { turns, images: vec![] };
        let error = processor.training_sample(SampleId(0), &conversation, folder.path()).unwrap_err();
        assert!(error.to_string().contains("no assistant turn"));
    }

    #[test]
    fn what_is_wrong_with_a_model_folder_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let error = |template| Processor::open(dir, template, &ImageLimits::default(), 60).err().unwrap().to_string();
        assert!(error(Template::FromModel).contains("config.json"));
        write_model(dir, &MODEL).unwrap();
        std::fs::remove_file(dir.join("chat_template.jinja")).unwrap();
        assert!(error(Template::FromModel).contains("data.template"));
        let mut json = read_json(&dir.join("preprocessor_config.json")).unwrap();
        json["patch_size"] = 14.into();
        std::fs::write(dir.join("preprocessor_config.json"), json.to_string()).unwrap();
        assert!(error(Template::Qwen).contains("patch_size is 14, but config.json says 8"));
        let config = std::fs::read_to_string(dir.join("config.json")).unwrap();
        std::fs::write(dir.join("config.json"), config.replace("\"vocab_size\": 264", "\"vocab_size\": 100")).unwrap();
        assert!(error(Template::Qwen).contains("vocab_size 100"));
        std::fs::write(dir.join("tokenizer.json"), "{}").unwrap();
        assert!(error(Template::Qwen).contains("tokenizer.json"));
    }
}
