//! The input files of a command, and the model that is to read them.

use super::{UsageError, environment, tell_ignored};
use crate::cli::asking::at_least_one;
use crate::cli::decode_worker::decoder;
use crate::model::folder::ModelFolder;
use crate::model::hub_data;
use crate::model::locate::find_model;
use clap::Args;
use loongforge_core::config::{
    self, EpisodeRange, Format, Learn, Loaded, ModelKind, Phase, SandboxMode, Select, Template, TooLong, TrainFile,
};
use loongforge_core::data::tools::{self, Inputs};
use loongforge_core::data::{BadSample, Learned, MediaDecoder, PolicyOptions, ProcessorOptions, SampleMaker};
use loongforge_core::observe::{Console, safe};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Args)]
pub struct InputArgs {
    /// Sample files, or a run's config, whose `data.train` is read
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Format of the files, as in `data.train` [default: auto-detect]
    #[arg(long, value_parser = format)]
    format: Option<Format>,
    /// Renamed fields, as in `data.train`: messages=dialogue,images=picture
    #[arg(long, value_name = "FIELD=NAME", value_delimiter = ',', value_parser = column)]
    columns: Vec<(String, String)>,
    /// Folder that relative names of pictures, videos and recordings start at, as in `data.train` [default: the file's]
    #[arg(long, value_name = "FOLDER")]
    media_dir: Option<String>,
    /// Episodes of a LeRobot data set, as in `data.train`: 0-99,120,200- [default: all]
    #[arg(long, value_name = "EPISODES", value_delimiter = ',')]
    episodes: Vec<EpisodeRange>,
    /// Read at most this many samples of each PATH, as in `data.train` [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_samples: Option<u64>,
    /// Samples that `--max-samples` keeps, as in `data.train`: first or random [default: first]
    #[arg(long, value_name = "WHICH", requires = "max_samples", value_parser = select)]
    select: Option<Select>,
    /// System message of conversations that have none, as in `data.train`
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    system: Option<String>,
    /// Number of threads [default: number of cores]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    jobs: Option<usize>,
    /// Decode pictures, videos and recordings in this process instead of sandboxed ones
    #[arg(long)]
    no_sandbox: bool,
}

#[derive(Args)]
pub struct ModelArgs {
    /// Model whose tokenizer, template and processor read the samples: a folder, a run folder (its newest checkpoint) or a hub id
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Chat template, as in `data.template` [default: the model's]
    #[arg(long, requires = "model")]
    template: Option<String>,
    /// Loss mask, as in `train.phase`
    #[arg(long, requires = "model", value_name = "PHASE", default_value = "sft")]
    phase: String,
    /// Answers in the loss, as in `train.learn`: all or last
    #[arg(long, requires = "model", value_name = "ANSWERS", default_value = "all")]
    learn: String,
    /// Maximum number of tokens; longer samples are skipped and counted
    #[arg(long, requires = "model", value_name = "TOKENS", value_parser = at_least_one)]
    max_tokens: Option<usize>,
    /// Truncate longer samples, as `data.pack.too_long: truncate`
    #[arg(long, requires = "max_tokens")]
    truncate: bool,
}

impl InputArgs {
    /// Returns the paths as given.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns the format, if given.
    pub fn format(&self) -> Option<Format> {
        self.format
    }

    /// Returns whether renamed fields were given.
    pub fn renames(&self) -> bool {
        !self.columns.is_empty()
    }

    /// Returns whether a folder of pictures, videos and recordings was given.
    pub fn names_media(&self) -> bool {
        self.media_dir.is_some()
    }

    /// Returns whether episodes were given.
    pub fn chooses_episodes(&self) -> bool {
        !self.episodes.is_empty()
    }

    /// Returns whether a number of samples was given.
    pub fn limits_samples(&self) -> bool {
        self.max_samples.is_some()
    }

    /// Returns whether a system message was given.
    pub fn names_system(&self) -> bool {
        self.system.is_some()
    }

    /// Opens the files as they are, for any reader.
    ///
    /// # Errors
    /// Fails if a file cannot be read or fetched, or is not of its format.
    pub fn open(&self) -> anyhow::Result<Inputs> {
        Ok(self.open_as(None, usize::MAX)?.0)
    }

    /// Opens the files as `maker` reads them in a run with samples of at most `max_tokens`: the model may determine the format of a
    /// file if none is given, and longer texts are cut. Conversations of a config have the message of its `data.system`.
    ///
    /// # Errors
    /// Fails as [`InputArgs::open`] does.
    pub fn open_for(&self, maker: Option<&dyn SampleMaker>, max_tokens: usize) -> anyhow::Result<Inputs> {
        let (inputs, systems) = self.open_as(maker, max_tokens)?;
        Ok(inputs.with_systems(&systems))
    }

    /// Opens the files, and returns with them `data.system` of the config that names each.
    fn open_as(
        &self,
        maker: Option<&dyn SampleMaker>,
        max_tokens: usize,
    ) -> anyhow::Result<(Inputs, Vec<Option<String>>)> {
        let (mut files, mut systems): (Vec<TrainFile>, Vec<Option<String>>) = (Vec::new(), Vec::new());
        for path in &self.paths {
            if is_config(path) {
                self.expect_nothing_of_a_set(path)?;
                let loaded = loaded(path)?;
                tell_ignored(&loaded);
                let data = loaded.config.data;
                systems.extend(data.train.iter().map(|_| data.system.clone()));
                files.extend(data.train);
            } else {
                let format = self.format.unwrap_or_default();
                let episodes = self.chooses_episodes().then(|| self.episodes.clone());
                let columns = self.columns.iter().cloned().collect();
                let (media_dir, system) = (self.media_dir.clone(), self.system.clone());
                let (max_samples, select) = (self.max_samples, self.select.unwrap_or_default());
                let file = TrainFile::new(path.as_path());
                files.push(TrainFile { format, columns, media_dir, episodes, max_samples, select, system, ..file });
                systems.push(None);
            }
        }
        if let Some(maker) = maker {
            files.iter_mut().for_each(|file| file.format = maker.format(file.format));
        }
        let paths = files.iter().flat_map(|file| &file.path.0).map(String::as_str);
        hub_data::fetch_paths(paths).map_err(UsageError::of)?;
        let inputs = match maker {
            Some(maker) => Inputs::open_cut(files, max_tokens, &|text: &str| maker.num_tokens(text))?,
            None => Inputs::open(files)?,
        };
        let inputs = inputs.with_decoder(self.decoder());
        let console = Console::stderr();
        inputs.left_out().iter().for_each(|left| console.line(&format!("warning: {left}")));
        Ok((inputs, systems))
    }

    /// Refuses options that state what a config states of its data sets.
    fn expect_nothing_of_a_set(&self, config: &Path) -> Result<(), UsageError> {
        let of_a_set = [
            ("--format", self.format.is_some()),
            ("--columns", self.renames()),
            ("--media-dir", self.names_media()),
            ("--episodes", self.chooses_episodes()),
            ("--max-samples", self.limits_samples()),
            ("--system", self.names_system()),
        ];
        let given: Vec<&str> = of_a_set.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect();
        if given.is_empty() {
            return Ok(());
        }
        let (config, given) = (config.display(), given.join(", "));
        Err(UsageError(format!(
            "{config}: a config states this of its data sets: leave out {given}, or name the files instead"
        )))
    }

    /// Returns how a run on these files makes samples of a robot policy: as the config among the paths says, and with the statistics
    /// of the LeRobot data sets.
    fn policy(&self) -> Result<PolicyOptions, UsageError> {
        let mut options = PolicyOptions::default();
        for path in &self.paths {
            if is_config(path) {
                let config = loaded(path)?.config;
                options.settings = config.policy;
                options.sets.extend(config.data.train);
            } else {
                options.sets.push(TrainFile::new(path.as_path()));
            }
        }
        let paths = options.sets.iter().flat_map(|file| &file.path.0).map(String::as_str);
        hub_data::fetch_paths(paths).map_err(UsageError::of)?;
        Ok(options)
    }

    /// Fetches those of the paths that are of the hub, for commands that open no samples.
    ///
    /// # Errors
    /// Fails if one cannot be fetched.
    pub fn fetch(&self) -> Result<(), UsageError> {
        let paths = self.paths.iter().filter_map(|path| path.to_str());
        hub_data::fetch_paths(paths).map_err(UsageError::of)
    }

    /// Returns the decoder of pictures, sound and videos: in a sandbox unless the user turned that off.
    pub fn decoder(&self) -> Arc<dyn MediaDecoder> {
        let console = Console::stderr();
        let mode = if self.no_sandbox { SandboxMode::Off } else { SandboxMode::Auto };
        decoder(mode, move |warning| console.line(&format!("warning: {warning}")))
    }

    /// Returns whether a number of threads was given.
    pub fn sets_jobs(&self) -> bool {
        self.jobs.is_some()
    }

    /// Returns the number of threads that read samples: the given one, or a default for this machine.
    pub fn jobs(&self) -> usize {
        jobs(self.jobs)
    }
}

/// Returns whether a file is a run's config, and not one of samples.
fn is_config(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn loaded(path: &Path) -> Result<Loaded, UsageError> {
    config::load(path, &[], environment()).map_err(|report| UsageError(report.to_string()))
}

/// Returns the given number of threads, or the default for this machine.
pub fn jobs(jobs: Option<usize>) -> usize {
    jobs.unwrap_or_else(tools::default_jobs)
}

/// Reads an option that is a format of data, by its name in `data.train`.
///
/// # Errors
/// Fails if no format has this name.
pub fn format(text: &str) -> Result<Format, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

/// Returns a bad sample and its reason, without what would change the terminal, and where its files are looked for if one is not there.
pub fn described(bad: &BadSample) -> String {
    let told = safe(&bad.to_string());
    match bad.reason.contains("No such file or directory") {
        true => format!(
            "{told}; files are looked for in the folder of their list, or in --media-dir (of a config's data set: \
             media_dir)"
        ),
        false => told,
    }
}

/// Reads which samples are kept of a set with too many, by its name in `data.train`.
fn select(text: &str) -> Result<Select, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

/// Reads a field of a format and the name that the files have for it.
fn column(text: &str) -> Result<(String, String), String> {
    let (field, name) = text.split_once('=').ok_or("expected FIELD=NAME, such as messages=dialogue")?;
    Ok((field.to_owned(), name.to_owned()))
}

/// Prints what the model's maker of samples noticed of the samples that it made, each once with its count.
pub fn print_notes(maker: Option<&dyn SampleMaker>) {
    let notes = maker.into_iter().flat_map(|maker| maker.notes());
    notes.for_each(|note| eprintln!("warning: {}", safe(&note)));
}

impl ModelArgs {
    /// Returns the length above which samples are too long.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens.unwrap_or(usize::MAX)
    }

    /// Opens the model; returns `None` if none was named. Pictures are decoded as `input` says.
    ///
    /// # Errors
    /// Fails if the model cannot be read, or an option is not one of its names.
    pub fn open(&self, input: &InputArgs) -> anyhow::Result<Option<Box<dyn SampleMaker>>> {
        let Some(model) = &self.model else { return Ok(None) };
        let folder = find_model(model).map_err(UsageError::of)?;
        let folder = ModelFolder::open_plain(&folder).map_err(UsageError::of)?;
        let mut options = ProcessorOptions {
            template: match &self.template {
                Some(name) => {
                    let known = serde_json::from_value::<Template>(name.as_str().into());
                    known.map_err(|error| UsageError(format!("--template: {error}")))?
                }
                None => Template::FromModel,
            },
            learned: Learned {
                phase: serde_json::from_value::<Phase>(self.phase.as_str().into())
                    .map_err(|error| UsageError(format!("--phase: {error}")))?,
                learn: serde_json::from_value::<Learn>(self.learn.as_str().into())
                    .map_err(|error| UsageError(format!("--learn: {error}")))?,
            },
            max_tokens: self.max_tokens.unwrap_or(usize::MAX),
            too_long: if self.truncate { TooLong::Truncate } else { TooLong::Skip },
            ..ProcessorOptions::default()
        };
        let decoder = input.decoder();
        let made = folder.maker(&options, decoder.clone());
        // The folder of a policy to start from has no statistics, and its features need not have the names of the data's.
        if made.is_err() && folder.model_kind() == ModelKind::Policy {
            options.policy = input.policy()?;
            return Ok(Some(folder.maker(&options, decoder)?));
        }
        Ok(Some(made?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::robot::pads::{PadsSet, compose_pads};
    use serde_json::json;
    use std::fs;

    fn input(path: PathBuf) -> InputArgs {
        InputArgs {
            paths: vec![path],
            format: None,
            columns: Vec::new(),
            media_dir: None,
            episodes: Vec::new(),
            max_samples: None,
            select: None,
            system: None,
            jobs: Some(1),
            no_sandbox: true,
        }
    }

    fn model(folder: &Path) -> ModelArgs {
        ModelArgs {
            model: Some(folder.display().to_string()),
            template: None,
            phase: "sft".to_owned(),
            learn: "all".to_owned(),
            max_tokens: None,
            truncate: false,
        }
    }

    /// A policy to start from has no statistics of its own.
    #[test]
    fn frames_are_read_with_the_statistics_of_their_set() {
        let dir = tempfile::tempdir().unwrap();
        let pads = dir.path().join("pads");
        compose_pads(&pads, &PadsSet { num_episodes: 2, ..PadsSet::default() }).unwrap();
        let (input, model) = (input(pads.join("train")), model(&pads.join("model")));
        let maker = model.open(&input).unwrap();
        let inputs = input.open_for(maker.as_deref(), model.max_tokens()).unwrap();
        let stats = tools::stats(&inputs, maker.as_deref(), 1, |_, _| ());
        assert!(inputs.len() > 2 && stats.bad.is_empty(), "{:?}", stats.bad.first().map(ToString::to_string));
    }

    #[test]
    fn fields_may_have_other_names_and_pictures_another_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let line = serde_json::json!({"question": "<image>a", "answer": "b", "image": "0.png"});
        fs::write(&path, line.to_string()).unwrap();
        let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pipelines/qwen_image_edit_plus");
        let columns = ["instruction=question", "output=answer"].map(|text| column(text).unwrap());
        let input =
            InputArgs { columns: columns.to_vec(), media_dir: Some(pictures.display().to_string()), ..input(path) };
        let shown = tools::show(&input.open().unwrap(), 0, None);
        assert!(shown.is_ok_and(|shown| shown.media.len() == 1));
        assert!(column("question").unwrap_err().contains("FIELD=NAME"));
    }

    #[test]
    fn limits_and_system_messages_are_those_of_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        fs::write(&path, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n".repeat(9)).unwrap();
        let turns = |inputs: &Inputs| tools::show(inputs, 0, None).unwrap().turns;
        let said = ("system".to_owned(), "Be brief.".to_owned());
        let given = InputArgs { max_samples: Some(4), system: Some("Be brief.".to_owned()), ..input(path.clone()) };
        let inputs = given.open().unwrap();
        assert_eq!((inputs.len(), &turns(&inputs)[0]), (4, &said));

        let train = json!({"steps": 1, "global_batch_size": 1, "lr": 1e-3});
        let model = json!({"load": dir.path().join("m"), "weights": "random"});
        fs::create_dir(dir.path().join("m")).unwrap();
        for name in ["config.json", "tokenizer.json"] {
            fs::write(dir.path().join("m").join(name), "{}").unwrap();
        }
        let [brief, long, silent] = ["Be brief.", "Be long.", ""].map(|system| {
            let system = Some(system).filter(|system| !system.is_empty());
            let data = json!({"system": system, "train": [{"path": path, "max_samples": 3}]});
            let run = json!({"run": {"name": "a"}, "model": model, "data": data, "train": train});
            let config = dir.path().join(format!("{}.yaml", system.map_or(0, str::len)));
            fs::write(&config, run.to_string()).unwrap();
            config
        });
        let inputs = input(brief.clone()).open_for(None, usize::MAX).unwrap();
        assert_eq!((inputs.len(), &turns(&inputs)[0]), (3, &said));
        // Each config has its own message, and a file none.
        let all = InputArgs { paths: vec![silent, brief.clone(), long, path.clone()], ..input(path.clone()) };
        let inputs = all.open_for(None, usize::MAX).unwrap();
        let first = [0, 3, 6, 9].map(|index| tools::show(&inputs, index, None).unwrap().turns.swap_remove(0).1);
        assert_eq!(first, ["a", "Be brief.", "Be long.", "a"]);
        // A limit of another number than the config's would show what no run reads.
        let error = InputArgs { max_samples: Some(4), ..input(brief) }.open().err().unwrap().to_string();
        assert!(error.contains(".yaml: a config states this of its data sets: leave out --max-samples"), "{error}");
        assert!(select("random").is_ok() && select("last").unwrap_err().contains("random"));
    }

    /// A picture with a caption, and a Diffusers folder, whose settings of pictures lie in a folder of its own.
    #[test]
    fn files_are_read_as_in_a_run_of_the_model() {
        let pipeline = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pipelines/qwen_image_edit_plus");
        let dir = tempfile::tempdir().unwrap();
        let (picture, path) = (pipeline.join("0.png"), dir.path().join("metadata.jsonl"));
        let line = serde_json::json!({"file_name": picture, "text": "a red house", "edit_image": picture});
        fs::write(&path, line.to_string()).unwrap();
        let (input, model) = (input(path), model(&pipeline.join("model")));
        let maker = model.open(&input).unwrap();
        let inputs = input.open_for(maker.as_deref(), model.max_tokens()).unwrap();
        let stats = tools::stats(&inputs, maker.as_deref(), 1, |_, _| ());
        assert_eq!((inputs.len(), stats.bad.len()), (1, 0), "{:?}", stats.bad.first().map(ToString::to_string));
        assert!(input.open().unwrap().len() == 1);
    }
}
