//! Conversations and texts to samples: chat template, tokenizer and media processor of one model folder together, the
//! counterpart of Hugging Face's `AutoProcessor`.

use std::path::Path;

use serde_json::Value as Json;

use super::decode::{header_size, open_rgb};
use super::error::DataError;
use super::expand::{Expanded, Place, check, find};
use super::learnt::{ASSISTANT, answers, mask};
use super::media::{self, Expansion, Kind, MediaProcessor};
use super::messages::{Conversation, MediaSource, Part, Turn};
use super::positions::{PositionKind, Span};
use super::sample::{IGNORE_INDEX, Sample};
use super::source::Piece;
use super::template::{ChatTemplate, built_in};
use super::tokenizer::{Token, Tokenizer, read_json_if_exists};
use crate::config::{Data, ImageLimits, Phase, Template, VideoLimits};
use crate::message::SampleId;

/// What a run says of samples.
#[derive(Clone, Debug)]
pub struct ProcessorOptions {
    pub template: Template,
    pub image: ImageLimits,
    pub video: VideoLimits,
    /// A longer sample is refused.
    pub max_tokens: usize,
    pub phase: Phase,
}

impl ProcessorOptions {
    pub fn new(data: &Data, phase: Phase) -> Self {
        let Data { template, image, video, pack, .. } = *data;
        Self { template, image, video, max_tokens: pack.max_tokens, phase }
    }
}

impl Default for ProcessorOptions {
    /// As the model's files say, of any length; a chat template is not needed until it is used.
    fn default() -> Self {
        Self {
            template: Template::FromModel,
            image: ImageLimits::default(),
            video: VideoLimits::default(),
            max_tokens: usize::MAX,
            phase: Phase::Pretrain,
        }
    }
}

pub struct Processor {
    tokenizer: Tokenizer,
    /// `None` where the model has none, which base models do not need.
    template: Option<ChatTemplate>,
    /// `None` for text models.
    media: Option<Box<dyn MediaProcessor>>,
    /// Whether the template writes pictures and videos itself.
    writes: [bool; 2],
    /// The token that features replace, as text; empty for text models.
    placeholder: String,
    positions: PositionKind,
    phase: Phase,
    max_side: usize,
    max_tokens: usize,
}

impl Processor {
    /// From the files of a model folder: the tokenizer, `tokenizer_config.json`, the chat template and, where `config`
    /// has a vision tower, `preprocessor_config.json` and `video_preprocessor_config.json`. `config` is the model's
    /// `config.json`.
    ///
    /// # Errors
    /// A file is missing, wrong or of another model; for `sft`, also the chat template.
    pub fn open(model_dir: &Path, config: &Json, options: &ProcessorOptions) -> Result<Self, DataError> {
        let tokenizer_config = read_json_if_exists(&model_dir.join("tokenizer_config.json"))?;
        let tokenizer = Tokenizer::open(model_dir, config, &tokenizer_config)?;
        let source = match built_in(options.template) {
            Some(source) => Some(source.to_owned()),
            None => ChatTemplate::find(model_dir, &tokenizer_config)?,
        };
        let template = source.map(|source| ChatTemplate::new(&source, &tokenizer_config)).transpose()?;
        if template.is_none() && options.phase == Phase::Sft {
            return Err(no_template(model_dir));
        }
        let media = media::open(model_dir, config, &tokenizer, (&options.image, &options.video))?;
        let image_token = tokenizer.special().image.and_then(|id| tokenizer.token(id));
        let mut processor = Self {
            placeholder: image_token.unwrap_or_default(),
            positions: PositionKind::of(config),
            tokenizer,
            template,
            media,
            writes: [true; 2],
            phase: options.phase,
            max_side: options.image.max_side,
            max_tokens: options.max_tokens,
        };
        processor.writes = [Part::Image, Part::Video].map(|part| processor.template_writes(part));
        Ok(processor)
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// `None` for text models.
    pub fn media_processor(&self) -> Option<&dyn MediaProcessor> {
        self.media.as_deref()
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// # Errors
    /// The model has no chat template, and none was chosen.
    pub fn expect_template(&self) -> Result<&ChatTemplate, DataError> {
        self.template.as_ref().ok_or_else(|| no_template(Path::new("the model")))
    }

    /// A training sample of a conversation. Files are relative to `base`. In `sft` the assistant's turns count in the
    /// loss, from behind a turn's header to its closing token; else everything but pictures and videos.
    pub fn training_sample(&self, id: SampleId, conversation: &Conversation, base: &Path) -> Result<Sample, DataError> {
        let template = self.expect_template()?;
        let turns = self.written(&conversation.turns);
        let text = template.render(&turns, false)?;
        let (expanded, expansions) = self.expand(&text, conversation, base)?;
        let mut tokens = self.tokenizer.encode(&expanded.text)?;
        let learnt = match self.phase {
            Phase::Sft => {
                let answers = answers(template, &turns, &text)?;
                let learnt = mask(&answers, &tokens, &self.tokenizer, |at| expanded.place(at));
                if !learnt.contains(&true) {
                    return Err(DataError::Line("no assistant turn to learn from".to_owned()));
                }
                learnt
            }
            Phase::Pretrain | Phase::Midtrain => {
                self.end(&mut tokens, expanded.text.len())?;
                vec![true; tokens.len()]
            }
        };
        self.assemble(id, &tokens, &learnt, &expanded.runs, expansions)
    }

    /// A training sample of a text, all of which counts in the loss.
    pub(super) fn text_sample(&self, id: SampleId, piece: &Piece) -> Result<Sample, DataError> {
        let text = &piece.text;
        let mut tokens = match piece.begins {
            true => self.tokenizer.encode_document(text)?,
            false => self.tokenizer.encode(text)?,
        };
        if piece.ends {
            self.end(&mut tokens, text.len())?;
        }
        let learnt = vec![true; tokens.len()];
        self.assemble(id, &tokens, &learnt, &[], Vec::new())
    }

    /// The turns up to where the assistant is to speak: what generation starts from; nothing counts in the loss.
    pub fn prompt(&self, id: SampleId, conversation: &Conversation, base: &Path) -> Result<Sample, DataError> {
        let text = self.expect_template()?.render(&self.written(&conversation.turns), true)?;
        let (expanded, expansions) = self.expand(&text, conversation, base)?;
        let tokens = self.tokenizer.encode(&expanded.text)?;
        self.assemble(id, &tokens, &vec![false; tokens.len()], &expanded.runs, expansions)
    }

    /// A text to be continued as it is.
    pub fn text_prompt(&self, id: SampleId, text: &str) -> Result<Sample, DataError> {
        let tokens = self.tokenizer.encode_document(text)?;
        self.assemble(id, &tokens, &vec![false; tokens.len()], &[], Vec::new())
    }

    /// Ends a document.
    fn end(&self, tokens: &mut Vec<Token>, start: usize) -> Result<(), DataError> {
        let eos = self.tokenizer.special().eos.ok_or_else(|| {
            DataError::Tokenizer("no eos_token in tokenizer_config.json and no eos_token_id in config.json".to_owned())
        })?;
        if tokens.last().is_none_or(|token| token.id != eos) {
            tokens.push(Token { id: eos, start });
        }
        Ok(())
    }

    /// Whether a turn with such a part is rendered with a marker.
    fn template_writes(&self, part: Part) -> bool {
        let (Some(template), Some(media)) = (&self.template, &self.media) else { return true };
        let markers = media.markers();
        let text = Part::Text { text: "?".to_owned() };
        let turn = Turn { role: "user".to_owned(), parts: vec![part, text] };
        template.render(&[turn], false).is_ok_and(|text| find(&text, markers).len() == 1)
    }

    /// The turns with pictures and videos as text where the template knows none.
    fn written(&self, turns: &[Turn]) -> Vec<Turn> {
        let mut turns = turns.to_vec();
        let Some(media) = &self.media else { return turns };
        for part in turns.iter_mut().flat_map(|turn| &mut turn.parts) {
            let inline = match part {
                Part::Image if !self.writes[0] => &media.markers().inline_image,
                Part::Video if !self.writes[1] => &media.markers().inline_video,
                _ => continue,
            };
            *part = Part::Text { text: inline.clone() };
        }
        turns
    }

    /// Loads pictures and videos and puts them in place of their markers.
    fn expand(
        &self,
        text: &str,
        conversation: &Conversation,
        base: &Path,
    ) -> Result<(Expanded, Vec<Expansion>), DataError> {
        let Some(media) = &self.media else {
            return match conversation.media.first() {
                None => Ok((Expanded::new(text, &[], &[], ""), Vec::new())),
                Some(source) => {
                    let reason = format!("this model takes no {}", source.kind().name());
                    Err(DataError::image(Path::new(source.path()), reason))
                }
            };
        };
        let places = find(text, media.markers());
        check(&places, conversation.media.iter().map(MediaSource::kind))?;
        self.check_images(text, &places, conversation, base)?;
        let load = |source: &MediaSource| {
            let (path, expansion) = match source {
                MediaSource::Image(name) => {
                    let path = base.join(name);
                    let expansion = media.image(&open_rgb(&path, self.max_side)?);
                    (path, expansion)
                }
                MediaSource::Video(video) => {
                    let frames = media::load(video, base, self.max_side, media.sampling())?;
                    (base.join(source.path()), media.video(&frames))
                }
            };
            expansion.map_err(|reason| DataError::image(&path, reason))
        };
        let expansions: Vec<Expansion> = conversation.media.iter().map(load).collect::<Result<_, _>>()?;
        Ok((Expanded::new(text, &places, &expansions, &self.placeholder), expansions))
    }

    /// Many large pictures would take much memory before their sample turned out to be too long: their headers say so.
    fn check_images(
        &self,
        text: &str,
        places: &[Place],
        conversation: &Conversation,
        base: &Path,
    ) -> Result<(), DataError> {
        let Some(media) = &self.media else { return Ok(()) };
        let num_images = places.iter().filter(|place| place.kind == Kind::Image).count();
        if num_images == 0 || num_images.saturating_mul(media.max_image_features()) <= self.max_tokens {
            return Ok(());
        }
        let mut num_image_tokens = 0;
        for name in conversation.images() {
            let path = base.join(name);
            let (width, height) = header_size(&path, self.max_side)?;
            let num_features = media.num_image_features(width as usize, height as usize);
            num_image_tokens += num_features.map_err(|reason| DataError::image(&path, reason))?;
        }
        let num_text_tokens = self.tokenizer.encode(text)?.len().saturating_sub(places.len());
        self.check_length(num_text_tokens, num_image_tokens)
    }

    fn check_length(&self, num_text_tokens: usize, num_image_tokens: usize) -> Result<(), DataError> {
        let (num_tokens, max_tokens) = (num_text_tokens + num_image_tokens, self.max_tokens);
        match num_tokens > max_tokens {
            true => Err(DataError::TooLong { num_tokens, num_image_tokens, max_tokens }),
            false => Ok(()),
        }
    }

    /// Repeats the placeholders, one token of each run, and numbers the positions.
    fn assemble(
        &self,
        id: SampleId,
        tokens: &[Token],
        learnt: &[bool],
        runs: &[media::Run],
        expansions: Vec<Expansion>,
    ) -> Result<Sample, DataError> {
        let image_token = self.tokenizer.special().image.filter(|_| self.media.is_some());
        let num_placeholders = tokens.iter().filter(|token| Some(token.id) == image_token).count();
        if num_placeholders != runs.len() {
            let (made, expected) = (num_placeholders, runs.len());
            return Err(DataError::Line(format!(
                "the text became {made} placeholder tokens, but pictures and videos take {expected}"
            )));
        }
        let num_features = expansions.iter().map(Expansion::num_features).sum();
        debug_assert_eq!(runs.iter().map(|run| run.len()).sum::<usize>(), num_features);
        self.check_length(tokens.len() - runs.len(), num_features)?;

        let num_tokens = tokens.len() - runs.len() + num_features;
        let (mut input_ids, mut counted) = (Vec::with_capacity(num_tokens), Vec::with_capacity(num_tokens));
        let (mut spans, mut runs, mut num_text) = (Vec::new(), runs.iter(), 0);
        for (token, &learnt) in tokens.iter().zip(learnt) {
            let run = if Some(token.id) == image_token { runs.next() } else { None };
            let count = run.map_or(1, |run| run.len());
            input_ids.extend(std::iter::repeat_n(token.id, count));
            counted.extend(std::iter::repeat_n(learnt && run.is_none(), count));
            match run {
                None => num_text += 1,
                Some(&run) => spans.extend([Span::Text(std::mem::take(&mut num_text)), Span::Run(run)]),
            }
        }
        spans.push(Span::Text(num_text));
        let next = (1..=num_tokens)
            .map(|next| if next < num_tokens && counted[next] { input_ids[next] } else { IGNORE_INDEX });
        let targets = next.collect();
        let media = expansions.into_iter().flat_map(|expansion| expansion.media).collect();
        Ok(Sample::new(id, input_ids, self.positions.ids(&spans), targets, media))
    }
}

fn no_template(model_dir: &Path) -> DataError {
    DataError::file(model_dir, "no chat template (chat_template.jinja); set data.template to a built-in one")
}

impl Conversation {
    /// The turns before the last assistant turn, and what that turn says: a question and its expected answer.
    pub fn split_answer(&self) -> Option<(Conversation, String)> {
        let at = self.turns.iter().rposition(|turn| turn.role == ASSISTANT)?;
        let turns: Vec<Turn> = self.turns[..at].to_vec();
        let num_media = turns.iter().map(Turn::num_media).sum();
        let media = self.media[..num_media].to_vec();
        Some((Conversation { turns, media }, self.turns[at].joined_text()))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::data::digits::{Digits, MODEL, compose, write_model};
    use crate::data::tokenizer::read_json;

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
        reopen(dir, Template::FromModel, max_tokens).unwrap()
    }

    fn reopen(dir: &Path, template: Template, max_tokens: usize) -> Result<Processor, DataError> {
        let config = read_json(&dir.join("config.json"))?;
        let options = ProcessorOptions { template, max_tokens, phase: Phase::Sft, ..Default::default() };
        Processor::open(dir, &config, &options)
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
            let image = &sample.media[0];
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
        let conversation = Conversation::text(turns);
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
        let processor = reopen(folder.path(), Template::FromModel, 99).unwrap();
        let turn = |role: &str, text: &str| Turn::text(role, text);
        let turns = vec![turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")];
        let sample = processor.training_sample(SampleId(0), &Conversation::text(turns), folder.path());
        assert_eq!(read_targets(&processor, &sample.unwrap()), "b<think></think>d+2");
    }

    #[test]
    fn what_is_wrong_with_a_sample_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let processor = open(folder.path(), 60);
        image::RgbImage::new(100, 40).save(folder.path().join("a.png")).unwrap();
        let reason = |parts: Vec<Part>, answer: &str, images: &[&str]| {
            let turns = vec![Turn { role: "user".into(), parts }, Turn::text("assistant", answer)];
            let media = images.iter().map(|name| MediaSource::Image(name.to_string())).collect();
            let conversation = Conversation { turns, media };
            processor.training_sample(SampleId(0), &conversation, folder.path()).unwrap_err().to_string()
        };
        let text = |text: &str| Part::Text { text: text.into() };
        let long = reason(vec![Part::Image], &"1".repeat(60), &["a.png"]);
        assert!(long.contains("(12 of images)") && long.contains("pack.max_tokens = 60"), "{long}");
        std::fs::write(folder.path().join("c.png"), b"").unwrap();
        assert!(reason(vec![Part::Image], &"1".repeat(60), &["c.png"]).contains("c.png"));
        assert!(reason(vec![Part::Image], "1", &["b.png"]).contains("b.png"));
        let forged = reason(vec![text("<|image_pad|>")], "1", &[]);
        assert!(forged.contains("0 pictures") && forged.contains("of 1 pictures"), "{forged}");
        let turns = vec![Turn::text("user", "hello")];
        let conversation = Conversation::text(turns);
        let error = processor.training_sample(SampleId(0), &conversation, folder.path()).unwrap_err();
        assert!(error.to_string().contains("no assistant turn"));
    }

    #[test]
    fn what_is_wrong_with_a_model_folder_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let error = |template| reopen(dir, template, 60).err().unwrap().to_string();
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
    /// A picture of one feature and a video of 2 × 1 × 1 between texts, in the model of the digits.
    #[test]
    fn pictures_and_videos_become_placeholders_positions_and_media() {
        let folder = tempfile::tempdir().unwrap();
        let processor = open(folder.path(), 200);
        for index in 0..3 {
            image::RgbImage::new(16, 16).save(folder.path().join(format!("{index}.png"))).unwrap();
        }
        let line = r#"{"messages":[{"role":"user","content":"a<image>b<video>"},{"role":"assistant","content":"c"}],
            "images":["0.png"],"videos":[{"video":["0.png","1.png","2.png"],"fps":2}]}"#;
        let conversation = Conversation::parse(line).unwrap();
        let sample = processor.training_sample(SampleId(0), &conversation, folder.path()).unwrap();
        let grids: Vec<_> = sample.media.iter().map(|item| (item.grid.t, item.grid.h, item.grid.w)).collect();
        assert_eq!(grids, [(1, 2, 2), (2, 2, 2)]);
        let text: String = sample
            .input_ids
            .iter()
            .map(|&id| match processor.tokenizer.token(id).unwrap() {
                token if token == "Ċ" => "\n".to_owned(),
                token => token.replace('Ġ', " "),
            })
            .collect();
        assert_eq!(
            text,
            "<|im_start|>user\na<|vision_start|><|image_pad|><|vision_end|>b\
             <0.2 seconds><|vision_start|><|image_pad|><|vision_end|>\
             <1.0 seconds><|vision_start|><|image_pad|><|vision_end|><|im_end|>\n\
             <|im_start|>assistant\nc<|im_end|>\n"
        );
        // Every box is of one place, so that positions count on.
        let len = sample.input_ids.len() as i64;
        assert_eq!(sample.position_ids, [0..len, 0..len, 0..len].into_iter().flatten().collect::<Vec<_>>());
        assert_eq!(read_targets(&processor, &sample), "c+1");

        let whole = ProcessorOptions { phase: Phase::Pretrain, ..Default::default() };
        let config = read_json(&folder.path().join("config.json")).unwrap();
        let whole = Processor::open(folder.path(), &config, &whole).unwrap();
        let sample = whole.training_sample(SampleId(0), &conversation, folder.path()).unwrap();
        // All but the first token and the placeholders, and the end of the document.
        assert_eq!(sample.meta.num_targets as usize, sample.input_ids.len() - 4);
        assert_eq!(sample.input_ids.last(), whole.tokenizer.special().eos.as_ref());
        let error = whole.text_prompt(SampleId(0), "<|image_pad|>").unwrap_err().to_string();
        assert!(error.contains("1 placeholder"), "{error}");
    }

    /// DeepSeek-R1 and others end the header in a thought that training turns may lack.
    #[test]
    fn only_what_is_generated_is_learnt_whatever_the_header() {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), &MODEL).unwrap();
        let turns = |answer: &str| {
            let turn = |role: &str, text: &str| Turn::text(role, text);
            Conversation::text(vec![
                turn("user", "a"),
                turn("assistant", answer),
                turn("user", "b"),
                turn("assistant", "<t>"),
            ])
        };
        let learnt = |template: &str, answer: &str| {
            std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
            let processor = reopen(folder.path(), Template::FromModel, 99).unwrap();
            let sample = processor.training_sample(SampleId(0), &turns(answer), folder.path()).unwrap();
            read_targets(&processor, &sample)
        };
        let body = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
        let think = format!("{body}{{% if add_generation_prompt %}}<|im_start|>assistant\n<think>\n{{% endif %}}");
        assert_eq!(learnt(&think, "x"), "x<t>+2");
        assert_eq!(learnt(&think, "<think>\nx"), "x<t>+2");
        // No generation prompt at all: the content is found by itself.
        assert_eq!(learnt(body, "x"), "x<t>+2");
        // No closing token that the tokenizer knows: up to the end of the turn.
        let plain = "{% for m in messages %}{{ m.role }}: {{ m.content }};\n{% endfor %}\
            {% if add_generation_prompt %}assistant: {% endif %}";
        assert_eq!(learnt(plain, "x"), "x;\n<t>;\n+0");
    }
}
