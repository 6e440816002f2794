//! Loads a config from file, environment and command line: a checked [`RunConfig`], or every mistake.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::check::{self, Checker};
use super::compose::{self, Composer};
use super::edit::Op;
use super::error::{Problem, Report, Sources, code};
use super::interpolate;
use super::node::Node;
use super::origin::{self, KeyOrigin};
use super::overrides::{self, Override};
use super::read::{parse, read};
use super::shape::{self, SCHEMA};
use super::stages::{ListedStage, StageStart, Stages, open_last_checkpoint};
use super::validate;
use super::{RunConfig, variables, yaml};

/// A config that passed all checks.
#[derive(Debug)]
pub struct Loaded {
    pub config: RunConfig,
    /// The whole config, including defaults, in schema order.
    pub composed: Value,
    /// The origin of each value, in the same order.
    pub origins: Vec<KeyOrigin>,
    /// A line for each environment variable that begins as the program's own do, is none, and has no interpolation in the config.
    pub ignored: Vec<String>,
}

impl Loaded {
    /// Returns one line per value: `train.lr = 2e-05   from command line (override #1); file set 1e-05 (vlm.yaml:41)`.
    pub fn show_origin(&self) -> String {
        origin::render(&self.origins)
    }

    /// Returns the composed config as YAML, which loads to the same config.
    pub fn to_yaml(&self) -> String {
        yaml::dump(&self.composed)
    }

    /// Returns the composed config as JSON.
    pub fn to_json(&self) -> String {
        format!("{:#}", self.composed)
    }
}

/// Loads a run's config. `overrides` are command-line words such as `train.lr=1e-5`; `env` is the environment: `LOONGFORGE__...`
/// variables set values, and all others are available to `${oc.env:...}`. Relative paths are relative to the working directory.
///
/// # Errors
/// Returns every mistake found, as a [`Report`] whose `Display` is for the user.
pub fn load(file: &Path, overrides: &[String], env: impl Iterator<Item = (String, String)>) -> Result<Loaded, Report> {
    load_stage(file, overrides, env, StageStart::Checkpoint)
}

/// Works like [`load`]; `start` applies to a stage other than the first.
///
/// # Errors
/// Fails like [`load`].
pub fn load_stage(
    file: &Path,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
    start: StageStart,
) -> Result<Loaded, Report> {
    let mut sources = Sources::default();
    let root = read(file, &mut sources);
    let given = Given { file, overrides, env: &env.collect() };
    load_root(given, root, sources, Mode { files: Files::Here, start })
}

/// Returns a file's `stages` in order, if it has any and `overrides` select none.
///
/// # Errors
/// Fails if the file cannot be read, or its list of stages is wrong.
pub fn stages(file: &Path, overrides: &[String]) -> Result<Vec<ListedStage>, Report> {
    let mut sources = Sources::default();
    let mut problems = Vec::new();
    let root = read(file, &mut sources).map_err(|problem| problems.push(problem)).ok();
    let stages = root.map(|mut root| Stages::take(&mut root, &mut problems)).unwrap_or_default();
    if !problems.is_empty() {
        return Err(sources.report(problems));
    }
    let is_chosen = overrides.iter().any(|word| word.trim_start_matches('+').starts_with("stage="));
    Ok(if is_chosen { Vec::new() } else { stages.listed() })
}

/// Works like [`load`] for a config that another machine runs: the files and folders that it names need not exist here.
///
/// # Errors
/// Fails like [`load`].
pub fn load_elsewhere(
    file: &Path,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, Report> {
    let mut sources = Sources::default();
    let root = read(file, &mut sources);
    let given = Given { file, overrides, env: &env.collect() };
    load_root(given, root, sources, Mode { files: Files::Elsewhere, start: StageStart::Checkpoint })
}

/// Loads a config from text, without files, overrides and environment. Relative paths are relative to the working directory.
///
/// # Errors
/// Fails like [`load`].
pub fn load_text(text: &str) -> Result<Loaded, Report> {
    load_text_with(text, &[])
}

/// Works like [`load_text`], with overrides.
///
/// # Errors
/// Fails like [`load`].
pub fn load_text_with(text: &str, overrides: &[String]) -> Result<Loaded, Report> {
    let file = Path::new("config text");
    let mut sources = Sources::default();
    let root = parse(file, text, &mut sources);
    let given = Given { file, overrides, env: &BTreeMap::new() };
    load_root(given, root, sources, Mode { files: Files::Here, start: StageStart::Checkpoint })
}

/// The choice whether the files that a config names must exist.
#[derive(Clone, Copy, PartialEq)]
enum Files {
    Here,
    Elsewhere,
}

/// The mode in which a config is loaded.
#[derive(Clone, Copy)]
struct Mode {
    files: Files,
    start: StageStart,
}

/// The settings that the user gives beside the text of the file.
#[derive(Clone, Copy)]
struct Given<'a> {
    file: &'a Path,
    overrides: &'a [String],
    env: &'a BTreeMap<String, String>,
}

fn load_root(
    given: Given<'_>,
    root: Result<Node, Problem>,
    mut sources: Sources,
    mode: Mode,
) -> Result<Loaded, Report> {
    let mut problems = Vec::new();
    let assembled = assemble(given, root, &mut sources, mode.start, &mut problems);
    let loaded = assembled.and_then(|assembled| finish(assembled, given.env, mode.files, &sources, &mut problems));
    let ignored = variables::ignored(given.env.keys(), |name| sources.read_variable(name));
    match loaded {
        Some(loaded) => Ok(Loaded { ignored, ..loaded }),
        None => Err(Report { ignored, ..sources.report(problems) }),
    }
}

/// The composed tree, before defaults.
struct Assembled {
    tree: Node,
    /// False if files are missing.
    is_whole: bool,
    /// True if `model.load` is a folder of checkpoints, whose last one is meant.
    loads_last_checkpoint: bool,
}

/// Composes the files and applies environment and command line.
fn assemble(
    Given { file, overrides, env }: Given<'_>,
    root: Result<Node, Problem>,
    sources: &mut Sources,
    start: StageStart,
    problems: &mut Vec<Problem>,
) -> Option<Assembled> {
    let mut root = root.map_err(|problem| problems.push(problem)).ok();
    let stages = root.as_mut().map(|root| Stages::take(root, problems));
    let groups = root.as_ref().map(compose::groups).unwrap_or_default();
    let (mut choices, mut edits) = (Vec::new(), Vec::new());
    for (i, text) in overrides.iter().enumerate() {
        match overrides::parse(text, i + 1, sources, |name| groups.iter().any(|group| group == name)) {
            Ok(Override::Group(choice)) => choices.push(choice),
            Ok(Override::Key(edit)) => edits.push(edit),
            Err(problem) => problems.push(problem),
        }
    }
    // The last choice on the command line wins; those before it are as good as not written.
    let mut seen = BTreeSet::new();
    choices.reverse();
    choices.retain(|choice| choice.op == Op::Add || seen.insert(choice.group.clone()));
    choices.reverse();
    let root = root?;
    let mut composition = Vec::new();
    let mut tree = Composer::new(file, choices, sources, &mut composition).compose(root);
    let is_whole = composition.is_empty();
    problems.append(&mut composition);
    let from_env: Vec<_> = env.iter().filter_map(|(name, value)| overrides::parse_env(name, value, sources)).collect();
    // Without its stage a config lacks keys that nobody needs to hear of.
    let chosen = stages.unwrap_or_default().choose(&mut edits).map_err(|problem| problems.push(problem)).ok()?;
    if let Some(chosen) = &chosen {
        chosen.lay(&mut tree);
    }
    for edit in from_env.into_iter().chain(edits.into_iter().map(Ok)) {
        if let Err(problem) = edit.and_then(|edit| edit.apply(&mut tree)) {
            problems.push(problem);
        }
    }
    let settled = chosen.map_or(Ok(false), |chosen| chosen.settle(&mut tree, start));
    let loads_last_checkpoint = settled.map_err(|problem| problems.push(problem)).unwrap_or(false);
    Some(Assembled { tree, is_whole, loads_last_checkpoint })
}

/// Adds defaults, resolves interpolations, checks and types the tree.
fn finish(
    Assembled { mut tree, is_whole, loads_last_checkpoint }: Assembled,
    env: &BTreeMap<String, String>,
    files: Files,
    sources: &Sources,
    problems: &mut Vec<Problem>,
) -> Option<Loaded> {
    let mut failed = BTreeSet::new();
    let mut found = Vec::new();
    check::refuse_code(&mut tree, "", &mut found);
    shape::spell_out(&mut tree, &SCHEMA);
    shape::fill_defaults(&mut tree, &SCHEMA);
    interpolate::resolve(&mut tree, &|name| env.get(name).cloned(), &mut found, &mut failed);
    if let Some(Err(problem)) = loads_last_checkpoint.then(|| open_last_checkpoint(&mut tree)) {
        // What else is wrong with the model depends on it.
        problems.push(problem);
        return None;
    }
    Checker { sources, problems: &mut found, failed: &mut failed }.check(&mut tree, &SCHEMA, "");
    let config = serde_json::from_value::<RunConfig>(tree.to_json());
    match &config {
        Ok(config) => validate::validate(config, &tree, &failed, &mut found),
        Err(error) => found.push(Problem::new(code::WRONG_TYPE, None, error.to_string())),
    }
    // With a file missing from the defaults list, everything it would have said is missing, too.
    found.retain(|p| is_whole || !matches!(p.code, code::MISSING_KEY | code::INTERPOLATION));
    found.retain(|p| files == Files::Here || p.code != code::NO_SUCH_FILE);
    problems.append(&mut found);
    let config = config.ok().filter(|_| problems.is_empty())?;
    let composed = serde_json::to_value(&config).ok()?;
    let origins = origin::origins(&tree, &composed, sources);
    Some(Loaded { config, composed, origins, ignored: Vec::new() })
}
