//! File, environment and command line → a checked [`RunConfig`], or every mistake in them.

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
use super::validate;
use super::{RunConfig, yaml};

/// A config that may be run.
#[derive(Debug)]
pub struct Loaded {
    pub config: RunConfig,
    /// The whole config, defaults included, in schema order.
    pub composed: Value,
    /// Tells where each value comes from, in the same order.
    pub origins: Vec<KeyOrigin>,
}

impl Loaded {
    /// One line a value: `train.lr = 2e-05   from command line (override #1); file said 1e-05 (vlm.yaml:41)`.
    pub fn show_origin(&self) -> String {
        origin::render(&self.origins)
    }

    /// The composed config as YAML, which loads to the same config.
    pub fn to_yaml(&self) -> String {
        yaml::dump(&self.composed)
    }

    /// The composed config as JSON.
    pub fn to_json(&self) -> String {
        format!("{:#}", self.composed)
    }
}

/// Loads a run's config. `overrides` are command-line words such as `train.lr=1e-5`; `env` is the environment, of which
/// `LOONGFORGE__...` variables are values and the others serve `${oc.env:...}`. Relative paths are the process's.
///
/// # Errors
/// Every mistake found, as a [`Report`] whose `Display` is for the user.
pub fn load(file: &Path, overrides: &[String], env: impl Iterator<Item = (String, String)>) -> Result<Loaded, Report> {
    let mut sources = Sources::default();
    let root = read(file, &mut sources);
    load_root(file, root, overrides, &env.collect(), sources, Files::Here)
}

/// Works like [`load`] for a config that another machine runs: files and folders that it names need not be here.
///
/// # Errors
/// As [`load`].
pub fn load_elsewhere(
    file: &Path,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, Report> {
    let mut sources = Sources::default();
    let root = read(file, &mut sources);
    load_root(file, root, overrides, &env.collect(), sources, Files::Elsewhere)
}

/// Loads a config from its text: no file, no overrides, no environment. Relative paths are the process's.
///
/// # Errors
/// As [`load`].
pub fn load_text(text: &str) -> Result<Loaded, Report> {
    load_text_with(text, &[])
}

/// [`load_text`] with overrides.
///
/// # Errors
/// As [`load`].
pub fn load_text_with(text: &str, overrides: &[String]) -> Result<Loaded, Report> {
    let file = Path::new("config text");
    let mut sources = Sources::default();
    let root = parse(file, text, &mut sources);
    load_root(file, root, overrides, &BTreeMap::new(), sources, Files::Here)
}

/// Says whether the files that a config names must be there.
#[derive(Clone, Copy, PartialEq)]
enum Files {
    Here,
    Elsewhere,
}

fn load_root(
    file: &Path,
    root: Result<Node, Problem>,
    overrides: &[String],
    env: &BTreeMap<String, String>,
    mut sources: Sources,
    files: Files,
) -> Result<Loaded, Report> {
    let mut problems = Vec::new();
    let assembled = assemble(file, root, overrides, env, &mut sources, &mut problems);
    let loaded = assembled.and_then(|(tree, is_whole)| finish(tree, is_whole, env, files, &sources, &mut problems));
    loaded.ok_or_else(|| sources.report(problems))
}

/// Composes the files and applies environment and command line. False with the tree: parts of it are missing.
fn assemble(
    file: &Path,
    root: Result<Node, Problem>,
    overrides: &[String],
    env: &BTreeMap<String, String>,
    sources: &mut Sources,
    problems: &mut Vec<Problem>,
) -> Option<(Node, bool)> {
    let root = root.map_err(|problem| problems.push(problem)).ok();
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
    for edit in from_env.into_iter().chain(edits.into_iter().map(Ok)) {
        if let Err(problem) = edit.and_then(|edit| edit.apply(&mut tree)) {
            problems.push(problem);
        }
    }
    Some((tree, is_whole))
}

/// Fills, resolves, checks and types the tree.
fn finish(
    mut tree: Node,
    is_whole: bool,
    env: &BTreeMap<String, String>,
    files: Files,
    sources: &Sources,
    problems: &mut Vec<Problem>,
) -> Option<Loaded> {
    let mut failed = BTreeSet::new();
    let mut found = Vec::new();
    check::refuse_code(&mut tree, "", &mut found);
    shape::fill_defaults(&mut tree, &SCHEMA);
    interpolate::resolve(&mut tree, &|name| env.get(name).cloned(), &mut found, &mut failed);
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
    Some(Loaded { config, composed, origins })
}
