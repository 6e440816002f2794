//! Stages: one file with `stages`, each of which is a run. The keys of a stage override the file's, and each stage starts from the
//! last checkpoint of the previous one.

use std::collections::BTreeSet;
use std::path::Path;

use crate::files::newest_checkpoint;

use super::edit::{Edit, Op, normalize};
use super::error::{Problem, code};
use super::node::{Entry, Kind, Node, PARTS, Pos};

/// Maximum number of stages.
const MAX_STAGES: usize = 64;
/// The key that lists stages.
const KEY: &str = "stages";
/// The override that selects a stage.
const WORD: &str = "stage";
/// Keys that a stage must not set, since they follow from its name.
const OF_THE_NAME: [&str; 3] = ["run.name", "run.dir", "checkpoint.dir"];
const UPLOAD: &str = "checkpoint.upload";
/// Keys that a stage takes from the checkpoint that it starts from.
const IN_THE_CHECKPOINT: [&str; 2] = ["load", "config"];
/// A folder of adapters has this file.
const ADAPTER: &str = "adapter_config.json";

/// The model that a stage other than the first starts from, if its own keys name none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageStart {
    /// The last checkpoint of the previous stage.
    Checkpoint,
    /// The model of the first stage, to check a stage before there is a checkpoint.
    FirstModel,
}

/// A stage of a file, for commands that handle all stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedStage {
    pub name: String,
    /// True if it starts from the last checkpoint of the previous stage.
    pub follows: bool,
}

/// The stages of a file, in order.
#[derive(Debug, Default)]
pub(super) struct Stages(Vec<Stage>);

#[derive(Debug)]
struct Stage {
    name: String,
    pos: Pos,
    keys: Node,
}

/// The selected stage, and the name of the previous one.
#[derive(Debug)]
pub(super) struct Chosen {
    stage: Stage,
    before: Option<String>,
}

impl Stages {
    /// Removes the list from a file's own keys and returns it.
    pub fn take(file: &mut Node, problems: &mut Vec<Problem>) -> Self {
        let Some(Entry { key, node }) = file.map_mut().and_then(|map| map.remove(KEY)) else { return Self::default() };
        let (pos, Kind::Seq(items)) = (node.pos.or(key), node.kind) else {
            problems.push(Problem::new(code::STAGES, key, "`stages` must be a list of maps with a `name`"));
            return Self::default();
        };
        if items.is_empty() || items.len() > MAX_STAGES {
            problems.push(Problem::new(code::STAGES, pos, format!("`stages` must have 1 to {MAX_STAGES} entries")));
            return Self::default();
        }
        let (mut stages, mut names) = (Vec::new(), BTreeSet::new());
        for item in items {
            match Stage::read(item) {
                Ok(stage) if !names.insert(stage.name.clone()) => {
                    let message = format!("two stages are called `{}`", stage.name);
                    problems.push(Problem::new(code::STAGES, Some(stage.pos), message));
                }
                Ok(stage) => stages.push(stage),
                Err(problem) => problems.push(problem),
            }
        }
        Self(stages)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|stage| stage.name.clone()).collect()
    }

    /// Returns the stages in order, with whether each starts from the checkpoint of the previous one.
    pub fn listed(&self) -> Vec<ListedStage> {
        let follows = |index: usize, stage: &Stage| index > 0 && !stage.has_model();
        let listed = self.0.iter().enumerate();
        listed.map(|(index, stage)| ListedStage { name: stage.name.clone(), follows: follows(index, stage) }).collect()
    }

    /// Removes the word `stage=NAME` from `edits` and returns that stage; `None` if the file has no stages.
    ///
    /// # Errors
    /// No stage has this name, the file has no stages, or it has some and the word is missing.
    pub fn choose(mut self, edits: &mut Vec<Edit>) -> Result<Option<Chosen>, Problem> {
        let mut word = None;
        edits.retain(|edit| {
            let is_word = matches!(&edit.path[..], [(name, _)] if name == WORD);
            if is_word {
                word = Some((edit.path[0].1, edit.value.as_ref().map(Node::to_text)));
            }
            !is_word
        });
        let names = self.names().join(", ");
        match word {
            None if self.0.is_empty() => Ok(None),
            None => Err(Problem::new(code::STAGES, None, format!("this config has stages: {names}")).help(
                "choose one with `stage=NAME`; without it, `loongforge run` and `loongforge check` process all, one after another",
            )),
            Some((pos, _)) if self.0.is_empty() => {
                Err(Problem::new(code::STAGES, Some(pos), "this config has no `stages`, so none can be chosen"))
            }
            Some((pos, name)) => {
                let found = self.0.iter().position(|stage| Some(&stage.name) == name.as_ref());
                let index = found.ok_or_else(|| {
                    let message = format!("no stage `{}`; the stages are {names}", name.unwrap_or_default());
                    Problem::new(code::STAGES, Some(pos), message)
                })?;
                let before = index.checked_sub(1).map(|before| self.0[before].name.clone());
                Ok(Some(Chosen { stage: self.0.swap_remove(index), before }))
            }
        }
    }
}

impl Stage {
    fn read(item: Node) -> Result<Self, Problem> {
        let pos = item.pos;
        let problem = |message: &str| Problem::new(code::STAGES, pos, message);
        let mut keys = item;
        let name = keys.map_mut().and_then(|map| map.remove("name"));
        let Some(Entry { node: Node { kind: Kind::Text(name), pos: Some(pos), .. }, .. }) = name else {
            return Err(problem("a stage must be a map with a `name`, which must be text"));
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            let message = format!("the stage name `{name}` must have 1 to 64 characters: letters, digits, `_` and `-`");
            return Err(Problem::new(code::STAGES, Some(pos), message));
        }
        normalize(&mut keys, "")?;
        for key in ["defaults", KEY] {
            if keys.get(key).is_some() {
                let help = "put what all stages share at the top of the file";
                return Err(problem(&format!("a stage cannot set `{key}`")).help(help));
            }
        }
        if let Some(key) = OF_THE_NAME.iter().find(|key| keys.get(key).is_some()) {
            let help = format!("set it at the top of the file; the stage's name, `{name}`, is appended to it");
            return Err(problem(&format!("a stage cannot set `{key}`")).help(help));
        }
        Ok(Self { name, pos, keys })
    }

    /// Returns whether the stage names the model that it starts from.
    fn has_model(&self) -> bool {
        self.keys.get("model.load").is_some()
    }
}

impl Chosen {
    /// Merges the stage's keys into the file's.
    pub fn lay(&self, tree: &mut Node) {
        tree.merge(self.stage.keys.clone());
    }

    /// Names the run and its folders after the stage. This comes last, since the command line may have changed these keys. Returns
    /// whether `model.load` is now a folder of checkpoints whose last one the stage starts from.
    ///
    /// # Errors
    /// The stage would start from adapters alone, or a key that it sets has no place in the tree.
    pub fn settle(self, tree: &mut Node, start: StageStart) -> Result<bool, Problem> {
        let text = |tree: &Node, path: &str| match tree.get(path).map(|node| &node.kind) {
            Some(Kind::Text(text)) => Some(text.clone()),
            _ => None,
        };
        let [name, dir, checkpoints] = OF_THE_NAME.map(|path| text(tree, path));
        // The checker says that a run without a name has none.
        let Some(name) = name else { return Ok(false) };
        let named = |stage: &str| format!("{name}-{stage}");
        let below = |folder: &Option<String>, stage: &str| folder.as_ref().map(|folder| format!("{folder}/{stage}"));
        let before = self.before.as_deref().filter(|_| !self.stage.has_model());
        before.map_or(Ok(()), |before| self.expect_no_adapter(tree, before))?;
        let before = before.filter(|_| start == StageStart::Checkpoint);
        if let Some(before) = before {
            let run = below(&dir, before).unwrap_or_else(|| format!("runs/{}", named(before)));
            let folder = below(&checkpoints, before).unwrap_or_else(|| format!("{run}/checkpoints"));
            self.forget_first_model(tree);
            self.set(tree, "model.load", folder)?;
        }
        self.set(tree, "run.name", named(&self.stage.name))?;
        for (path, folder) in [("run.dir", dir), ("checkpoint.dir", checkpoints)] {
            if let Some(folder) = below(&folder, &self.stage.name) {
                self.set(tree, path, folder)?;
            }
        }
        // The stages' checkpoints have the same names.
        if let Some(url) = below(&text(tree, UPLOAD).map(|url| url.trim_end_matches('/').to_owned()), &self.stage.name)
        {
            self.set(tree, UPLOAD, url)?;
        }
        Ok(before.is_some())
    }

    /// Refuses adapters that the stage does not name itself: they belong to the first model, and the checkpoint of the stage `before`
    /// contains them already.
    fn expect_no_adapter(&self, tree: &Node, before: &str) -> Result<(), Problem> {
        let keys = PARTS.map(|part| format!("model.{part}.lora.adapter"));
        let mut inherited = keys.iter().filter(|key| self.stage.keys.get(key).is_none());
        let set = |key: &str| tree.get(key).filter(|node| !matches!(node.kind, Kind::Null));
        let Some((key, node)) = inherited.find_map(|key| Some((key, set(key)?))) else { return Ok(()) };
        let message = format!(
            "`{key}` would be added again in the stage `{}`, which starts from the last checkpoint of the stage `{before}`",
            self.stage.name
        );
        let help =
            "set it in the stage whose model it belongs to, instead of at the top of the file or on the command line";
        Err(Problem::new(code::STAGES, node.pos, message).help(help))
    }

    /// Removes the first stage's model source, except for keys that the stage sets itself.
    fn forget_first_model(&self, tree: &mut Node) {
        let own = self.stage.keys.get("model");
        let says = |path: &str| own.is_some_and(|own| own.get(path).is_some());
        let Some(Kind::Map(model)) =
            tree.map_mut().and_then(|map| map.get_mut("model")).map(|entry| &mut entry.node.kind)
        else {
            return;
        };
        model.retain(|key, _| says(key) || !matches!(&**key, "weights" | "config"));
        for part in PARTS {
            if let Some(keys) = model.get_mut(part).and_then(|entry| entry.node.map_mut()) {
                keys.retain(|key, _| says(&format!("{part}.{key}")) || !IN_THE_CHECKPOINT.contains(&&**key));
            }
        }
    }

    fn set(&self, tree: &mut Node, path: &str, value: String) -> Result<(), Problem> {
        let pos = self.stage.pos;
        let path = path.split('.').map(|name| (name.to_owned(), pos)).collect();
        let value = Some(Node::new(Kind::Text(value), Some(pos)));
        Edit { op: Op::Force, path, value }.apply(tree)
    }
}

/// Replaces the folder that `model.load` names by its last checkpoint.
pub(super) fn open_last_checkpoint(tree: &mut Node) -> Result<(), Problem> {
    let load = tree.map_mut().and_then(|map| map.get_mut("model")).and_then(|entry| entry.node.map_mut());
    let Some(Node { kind: Kind::Text(folder), pos, .. }) =
        load.and_then(|model| model.get_mut("load")).map(|entry| &mut entry.node)
    else {
        return Ok(());
    };
    let newest = newest_checkpoint(Path::new(folder)).map_err(|error| {
        Problem::new(code::STAGES, *pos, format!("the checkpoints that this stage starts from, `{folder}`: {error}"))
    });
    match newest?.and_then(|path| path.to_str().map(str::to_owned)) {
        Some(newest) if Path::new(&newest).join(ADAPTER).exists() => {
            let message =
                format!("the checkpoint that this stage starts from, `{newest}`, holds only adapters, not a model");
            let help = "set `checkpoint.merge_lora: true` in the previous stage, or `model.load` in this one";
            return Err(Problem::new(code::STAGES, *pos, message).help(help));
        }
        Some(newest) => *folder = newest,
        None => {
            let message =
                format!("this stage starts from the last checkpoint of the previous stage, but `{folder}` has none");
            let help = "run that stage first, or set `model.load` in this one";
            return Err(Problem::new(code::STAGES, *pos, message).help(help));
        }
    }
    Ok(())
}
