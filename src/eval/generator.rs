//! A trained model that answers questions about pictures and recordings: a checkpoint's folder, encoder and decoder in one thread.

use crate::eval::forward::ForwardModel;
use crate::model::folder::ModelFolder;
use crate::model::locate::ModelFolders;
use anyhow::{Context, Result, ensure};
use loongforge_core::checkpoint::{MANIFEST, Manifest};
use loongforge_core::config::{AudioLimits, ImageLimits, JsonMap, VideoLimits};
use loongforge_core::data::{
    Conversation, DataError, Locator, MediaDecoder, MediaSource, Part, Processor, ProcessorOptions, Sample, Turn,
    VideoSource,
};
use loongforge_core::files;
use loongforge_core::message::SampleId;
use loongforge_torch::model::{Continued, Decoding, Prompt, Sampling};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::{Device, Kind};

/// Seconds that a recording of a prompt may last, unless the model's run took longer ones.
const MAX_PROMPT_SECONDS: f64 = 600.0;

/// Files that a question is about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files<'a> {
    pub images: &'a [PathBuf],
    /// Animated GIFs, MP4 files, and folders of frames.
    pub videos: &'a [PathBuf],
    pub recordings: &'a [PathBuf],
}

/// Answers many questions at a time.
pub struct Reader {
    model: ForwardModel,
    processor: Arc<Processor>,
    stop_token_ids: Vec<i64>,
}

impl Reader {
    /// Loads a Hugging Face folder, for example a checkpoint of a run, in float32. Where it holds adapters alone, they are
    /// added to their base.
    ///
    /// # Errors
    /// The folder lacks a file, or it is torn or of a model that is not built in.
    pub fn open(folder: &Path, device: Device) -> Result<Self> {
        Self::open_as(folder, Kind::Float, device)
    }

    /// Works like [`Reader::open`], with weights of this kind in memory.
    ///
    /// # Errors
    /// Fails as [`Reader::open`] does.
    pub fn open_as(folder: &Path, kind: Kind, device: Device) -> Result<Self> {
        Self::of(ForwardModel::load(&ModelFolders::find(folder, None)?, Some(kind), device)?)
    }

    /// Works like [`Reader::open_as`] on as many ranks as there are `devices`; see [`ForwardModel::load_among`].
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn open_among(folder: &Path, kind: Kind, devices: &[Device]) -> Result<Self> {
        Self::of(ForwardModel::load_among(&ModelFolders::find(folder, None)?, kind, devices)?)
    }

    /// Works like [`Reader::open_as`] in as many stages as there are `devices`; see [`ForwardModel::load_staged`].
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn open_staged(folder: &Path, kind: Kind, devices: &[Device]) -> Result<Self> {
        Self::of(ForwardModel::load_staged(&ModelFolders::find(folder, None)?, Some(kind), devices)?)
    }

    /// Lets a model answer that is loaded. Prompts are read as in its run, where its folder is a checkpoint.
    ///
    /// # Errors
    /// Its folder lacks a file of its processor, or has a manifest that cannot be read.
    pub fn of(model: ForwardModel) -> Result<Self> {
        let ModelFolder { path, json, .. } = model.folder();
        let processor = Arc::new(Processor::open(path, json, &as_in_run(path)?)?);
        let stop_token_ids = processor.tokenizer().special().end.iter().copied().collect();
        Ok(Self { model, processor, stop_token_ids })
    }

    /// Lets `decoder` decode pictures and recordings; else this process does.
    ///
    /// # Errors
    /// Somebody shares the processor.
    pub fn with_decoder(self, decoder: Arc<dyn MediaDecoder>) -> Result<Self> {
        self.with_processor(|processor| Ok(processor.with_decoder(decoder)))
    }

    /// Sets variables of the chat template for every prompt, over those of the model's run.
    ///
    /// # Errors
    /// There is no chat template, or it has no such variable; or somebody shares the processor.
    pub fn with_template_kwargs(self, kwargs: JsonMap) -> Result<Self> {
        self.with_processor(|processor| processor.with_template_kwargs(kwargs))
    }

    /// Refuses prompts of more tokens, those with many pictures before these are decoded.
    ///
    /// # Errors
    /// Somebody shares the processor.
    pub fn with_max_tokens(self, max_tokens: usize) -> Result<Self> {
        self.with_processor(|processor| Ok(processor.with_max_tokens(max_tokens)))
    }

    fn with_processor(self, change: impl FnOnce(Processor) -> Result<Processor, DataError>) -> Result<Self> {
        let processor = Arc::into_inner(self.processor).context("the model's processor is shared already")?;
        Ok(Self { processor: Arc::new(change(processor)?), ..self })
    }

    /// Returns the tokens that end an answer.
    pub fn stop_token_ids(&self) -> &[i64] {
        &self.stop_token_ids
    }

    /// Returns the model that answers.
    pub fn model(&self) -> &ForwardModel {
        &self.model
    }

    /// Returns the processor that makes tokens of prompts and text of answers.
    pub fn processor(&self) -> &Processor {
        &self.processor
    }

    /// Returns the processor for other threads.
    pub fn shared_processor(&self) -> Arc<Processor> {
        self.processor.clone()
    }

    /// Returns what `text` about these files becomes before an answer. A written `<image>`, `<video>` or `<audio>` stands for the next
    /// file of its kind, as in data; else pictures are first, then videos, then recordings, as Qwen's examples have them.
    ///
    /// # Errors
    /// A file is missing or unusable, the model takes none of its kind, or the text has places for more or fewer.
    pub fn question(&self, text: &str, files: &Files<'_>) -> Result<Sample> {
        let (parts, media) = files.placed(text)?;
        let conversation = Conversation { turns: vec![Turn::new("user", parts)], media };
        Ok(self.processor.prompt(SampleId(0), &conversation, Path::new(""))?)
    }

    /// `text` before it is continued.
    ///
    /// # Errors
    /// The tokenizer refuses it.
    pub fn text(&self, text: &str) -> Result<Sample> {
        Ok(self.processor.text_prompt(SampleId(0), text)?)
    }

    /// Answers of at most `max_new_tokens` tokens: the most likely ones, or by chance.
    ///
    /// # Errors
    /// The model made tokens that are no text.
    pub fn answer(
        &self,
        questions: &[&Sample],
        max_new_tokens: usize,
        sampling: Option<Sampling>,
    ) -> Result<Vec<String>> {
        let prompts: Vec<Prompt> = questions.iter().map(|question| self.model.prompt(question)).collect();
        let decoding =
            Decoding { max_new_tokens, stop_token_ids: self.stop_token_ids.clone(), sampling, ..Decoding::default() };
        let mut answers = vec![Vec::new(); prompts.len()];
        self.model.continue_each(&prompts, &vec![decoding; prompts.len()], &mut |index, continued| {
            if let Continued::Token(token) = continued {
                answers[index].push(token);
            }
            true
        })?;
        let decode = |ids: &Vec<i64>| self.processor.tokenizer().decode(ids).context("decoding an answer");
        answers.iter().map(decode).collect()
    }
}

impl Files<'_> {
    fn placed(&self, text: &str) -> Result<(Vec<Part>, Vec<MediaSource>)> {
        let file = |path: &PathBuf| Locator::File(path.display().to_string());
        let video = |path: &PathBuf| MediaSource::Video(VideoSource { locators: vec![file(path)], fps: None });
        let images = self.images.iter().map(|path| (Part::Image, MediaSource::Image(file(path)))).collect();
        let videos = self.videos.iter().map(|path| (Part::Video, video(path))).collect();
        let recordings =
            self.recordings.iter().map(|path| (Part::Audio, MediaSource::Audio(file(path).into()))).collect();
        placed(text, [("<image>", images), ("<video>", videos), ("<audio>", recordings)])
    }
}

/// Returns the parts of a prompt and its files in their order. A placeholder that is written stands for the next file of its kind; files of
/// a kind without one are before the text.
///
/// # Errors
/// The text has more or fewer placeholders than there are files of their kind.
fn placed(text: &str, kinds: [(&str, Vec<(Part, MediaSource)>); 3]) -> Result<(Vec<Part>, Vec<MediaSource>)> {
    let (mut parts, mut media, mut written) = (Vec::new(), Vec::new(), Vec::new());
    for (placeholder, files) in kinds {
        let places = text.matches(placeholder).count();
        // Without files it is text.
        if places > 0 && !files.is_empty() {
            let num_files = files.len();
            ensure!(
                places == num_files,
                "the prompt has {places} {placeholder}, and there {} of this kind: write one for each, or none",
                if num_files == 1 { "is 1 file".to_owned() } else { format!("are {num_files} files") }
            );
            written.push((placeholder, files.into_iter()));
            continue;
        }
        for (part, file) in files {
            parts.push(part);
            media.push(file);
        }
    }
    let mut rest = text;
    loop {
        let places = written.iter_mut().filter_map(|(placeholder, files)| {
            let placeholder: &str = placeholder;
            Some((rest.find(placeholder)?, placeholder.len(), files))
        });
        let Some((at, len, files)) = places.min_by_key(|(at, ..)| *at) else { break };
        if at > 0 {
            parts.push(Part::Text { text: rest[..at].to_owned() });
        }
        if let Some((part, file)) = files.next() {
            parts.push(part);
            media.push(file);
        }
        rest = &rest[at + len..];
    }
    if !rest.is_empty() || written.is_empty() {
        parts.push(Part::Text { text: rest.to_owned() });
    }
    Ok((parts, media))
}

/// Returns how the run whose checkpoint is in `folder` read its samples, but for limits on their tokens; as the model's files say where
/// there was no run. Recordings may last at least [`MAX_PROMPT_SECONDS`].
///
/// # Errors
/// The manifest cannot be read, or has other settings than a run's.
fn as_in_run(folder: &Path) -> Result<ProcessorOptions> {
    let mut usual = ProcessorOptions::default();
    usual.audio.max_seconds = MAX_PROMPT_SECONDS;
    let path = folder.join(MANIFEST);
    if !path.is_file() {
        return Ok(usual);
    }
    // Other files of the checkpoint may be gone: a copy to generate with needs no optimizer state.
    let text = files::read(&path, files::MAX_TEXT_BYTES).with_context(|| path.display().to_string())?;
    let manifest = Manifest::parse(&text, folder)?;
    let data = &manifest.config["data"];
    let named = |key: &str| format!("{}: config.data.{key}", path.display());
    let image: Option<ImageLimits> = serde_json::from_value(data["image"].clone()).with_context(|| named("image"))?;
    let video: Option<VideoLimits> = serde_json::from_value(data["video"].clone()).with_context(|| named("video"))?;
    let kwargs: serde_json::Result<Option<JsonMap>> = serde_json::from_value(data["template_kwargs"].clone());
    let template_kwargs = kwargs.with_context(|| named("template_kwargs"))?.unwrap_or_default();
    let system: Option<String> = serde_json::from_value(data["system"].clone()).with_context(|| named("system"))?;
    let (image, video) = (image.unwrap_or(usual.image), video.unwrap_or(usual.video));
    let seconds = |key: &str| -> Result<Option<f64>> {
        serde_json::from_value(data["audio"][key].clone()).with_context(|| named(&format!("audio.{key}")))
    };
    let audio = AudioLimits {
        min_seconds: seconds("min_seconds")?.unwrap_or(usual.audio.min_seconds),
        max_seconds: seconds("max_seconds")?.unwrap_or_default().max(MAX_PROMPT_SECONDS),
        ..usual.audio
    };
    Ok(ProcessorOptions { template_kwargs, system, image, video, audio, ..usual })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_are_where_a_prompt_has_their_placeholders_else_before_it() {
        let told_all = |text: &str, files: [&[&str]; 3]| {
            let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
            let [images, videos, recordings] = files.map(paths);
            let files = Files { images: &images, videos: &videos, recordings: &recordings };
            let (parts, media) = files.placed(text)?;
            let mut names = media.iter().map(MediaSource::name);
            let shown = parts.iter().map(|part| match part {
                Part::Text { text } => format!("[{text}]"),
                _ => names.next().unwrap_or("?").to_owned(),
            });
            anyhow::Ok(shown.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(told_all("Who?", [&["a"], &["v.mp4"], &["b"]]).unwrap(), "a v.mp4 b [Who?]");
        assert_eq!(told_all("In <video>, who?", [&["a"], &["v"], &[]]).unwrap(), "a [In ] v [, who?]");
        let told = |text: &str, images: &[&str], recordings: &[&str]| told_all(text, [images, &[], recordings]);
        assert_eq!(told("Who?", &["a"], &["b", "c"]).unwrap(), "a b c [Who?]");
        assert_eq!(told("", &[], &["b"]).unwrap(), "b []");
        assert_eq!(told("<audio>Who?", &[], &["b"]).unwrap(), "b [Who?]");
        assert_eq!(
            told("First <audio>, <image> and <audio>", &["a"], &["b", "c"]).unwrap(),
            "[First ] b [, ] a [ and ] c"
        );
        assert_eq!(told("Is <audio> in it?", &["a"], &["b"]).unwrap(), "a [Is ] b [ in it?]");
        assert_eq!(told("What is <image>?", &[], &["b"]).unwrap(), "b [What is <image>?]");
        let error = told("<audio> or <audio>?", &[], &["b"]).unwrap_err().to_string();
        assert!(error.contains("the prompt has 2 <audio>, and there is 1 file of this kind"), "{error}");
    }

    #[test]
    fn prompts_are_read_as_in_the_run_of_a_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let with = |config: serde_json::Value| {
            let manifest = Manifest { config, ..Manifest::of_files(2, Default::default()) };
            std::fs::write(dir.path().join(MANIFEST), manifest.to_text()).unwrap();
            as_in_run(dir.path())
        };
        let usual = as_in_run(dir.path()).unwrap();
        let kwargs = json!({"enable_thinking": false});
        let data = json!({"image": {"max_pixels": 4096}, "video": {"fps": 2.0}, "template_kwargs": kwargs,
            "audio": {"min_seconds": 0.02, "max_seconds": 1800.0, "max_tokens": 9}, "pack": {"max_tokens": 64},
            "system": "Be brief."});
        let own = with(json!({"data": data})).unwrap();
        assert_eq!((own.image.max_pixels, own.video.fps), (Some(4096), Some(2.0)));
        assert_eq!((own.image.max_side, own.max_tokens), (usual.image.max_side, usual.max_tokens));
        assert_eq!(own.template_kwargs["enable_thinking"], false);
        assert_eq!((own.system.as_deref(), usual.system), (Some("Be brief."), None));
        assert_eq!(own.audio, AudioLimits { min_seconds: 0.02, max_seconds: 1800.0, max_tokens: None });
        let short = with(json!({"data": {"audio": {"max_seconds": 30.0}}})).unwrap();
        assert_eq!([short.audio.max_seconds, usual.audio.max_seconds], [600.0; 2]);
        // Nothing is known of a run that a test has made up.
        let unknown = with(json!(null)).unwrap();
        assert_eq!((unknown.image, unknown.video), (usual.image, usual.video));
        let error = format!("{:#}", with(json!({"data": {"video": {"fps": "two"}}})).unwrap_err());
        assert!(error.contains("config.data.video: invalid type"), "{error}");
        let error = format!("{:#}", with(json!({"data": {"audio": {"max_seconds": "two"}}})).unwrap_err());
        assert!(error.contains("config.data.audio.max_seconds: invalid type"), "{error}");
    }
}
