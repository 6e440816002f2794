//! Hydra's `defaults` list: composes one tree from many files.
//!
//! An entry `group@package: option` merges `group/option.yaml` at `package`. Groups are folders next to the run's file; those in
//! `models/` are also built in, and a file next to the run's file overrides the built-in one of the same name. Without a package, files
//! in `models/` go to the package `model`, or to that of their part. Entries later in the list win, and the file itself comes last unless
//! `_self_` says where. These are supported as well: a plain file name, `optional group: option`, `override group: option`, a list of
//! options, `null` for none, a leading `/` for a group that is not relative to the including file's, the packages `_global_`, `_here_`,
//! `_group_`, and `# @package` headers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::builtin;
use super::defaults::{ENTRY_HELP, Item, final_package, header_package, split_package};
use super::edit::{Op, normalize};
use super::error::{Problem, Sources, code};
use super::node::{Entry, Kind, Node};
use super::overrides::Choice;
use super::read::{parse, read};
use super::suggest;

/// The largest depth of files that include files.
const MAX_DEPTH: usize = 16;
/// Files of one run.
const MAX_FILES: usize = 200;

pub(super) struct Composer<'a> {
    /// The directory of the run's file, where groups are looked up.
    dir: PathBuf,
    sources: &'a mut Sources,
    problems: &'a mut Vec<Problem>,
    /// Choices from the command line, then from `override` entries; the first that fits wins.
    choices: Vec<Choice>,
    /// Groups met so far, for suggestions.
    groups: Vec<String>,
    open: Vec<PathBuf>,
    num_files: usize,
}

/// The group and package of the including file.
struct Context<'a> {
    /// Group of the including file, `models/parts`.
    group: &'a str,
    /// Package of the including file, `model.foundation`.
    package: &'a str,
}

/// Returns the groups named in a file's `defaults` list, as an override would name them.
pub(super) fn groups(file: &Node) -> Vec<String> {
    let Some(Kind::Seq(items)) = file.get("defaults").map(|defaults| &defaults.kind) else {
        return Vec::new();
    };
    let parsed = items.iter().filter_map(|item| Item::parse(item).ok());
    parsed.map(|item| item.group.trim_start_matches('/').to_owned()).filter(|group| !group.is_empty()).collect()
}

impl<'a> Composer<'a> {
    /// Prepares the composition of `file`, with groups in its folder. `choices` replace options of its list; files that are read
    /// are added to `sources`, and mistakes to `problems`.
    pub fn new(file: &Path, choices: Vec<Choice>, sources: &'a mut Sources, problems: &'a mut Vec<Problem>) -> Self {
        let dir = file.parent().map(Path::to_owned).unwrap_or_default();
        Self { dir, sources, problems, choices, groups: Vec::new(), open: vec![file.to_owned()], num_files: 1 }
    }

    /// Composes the run's file, already read, with everything it includes.
    pub fn compose(mut self, file: Node) -> Node {
        let mut root = Node::empty_map(file.pos);
        let top = Context { group: "", package: "" };
        self.expand(file, &top, &mut root);
        for i in 0..self.choices.len() {
            let choice = &mut self.choices[i];
            if choice.op == Op::Add && !choice.used {
                choice.used = true;
                let (group, package) = split_package(&choice.group);
                let options = choice.option.iter().cloned().collect();
                let item = Item { group, package, options, optional: false, is_override: false, pos: Some(choice.pos) };
                self.include(item, &top, &mut root);
            }
        }
        self.report_unused();
        root
    }

    /// Merges the included files of `file`, and `file` itself, into `root`.
    fn expand(&mut self, mut file: Node, context: &Context<'_>, root: &mut Node) {
        let defaults = file.map_mut().and_then(|map| map.remove("defaults"));
        let mut own = Some(file);
        let items = match defaults.map(|entry| entry.node) {
            Some(Node { kind: Kind::Seq(items), .. }) => items,
            None => Vec::new(),
            Some(other) => {
                let message = format!("`defaults` must be a list, found {}", other.describe());
                self.problems.push(Problem::new(code::DEFAULTS, other.pos, message).help(ENTRY_HELP));
                Vec::new()
            }
        };
        let mut parsed = Vec::new();
        for item in &items {
            match Item::parse(item) {
                Ok(item) if item.is_override => self.add_choice(item, context),
                Ok(item) => parsed.push(item),
                Err(problem) => self.problems.push(problem),
            }
        }
        for item in parsed {
            if item.group.is_empty() && item.options == ["_self_"] {
                if let Some(own) = own.take() {
                    self.place(own, context.package, root);
                }
            } else {
                self.include(item, context, root);
            }
        }
        if let Some(own) = own {
            self.place(own, context.package, root);
        }
    }

    /// Resolves one entry and merges its files into `root`.
    fn include(&mut self, mut item: Item, context: &Context<'_>, root: &mut Node) {
        let group = match item.group.strip_prefix('/') {
            Some(absolute) => absolute.to_owned(),
            None => join_group(context.group, &item.group),
        };
        if !item.group.is_empty() {
            self.groups.push(match &item.package {
                Some(package) => format!("{group}@{package}"),
                None => group.clone(),
            });
            let package = item.package.as_deref().map(|p| final_package(p, &group, context.package));
            let fits = |choice: &&mut Choice| match choice.group.split_once('@') {
                Some((g, p)) => g == group && (item.package.as_deref() == Some(p) || package.as_deref() == Some(p)),
                None => choice.group == group,
            };
            if let Some(choice) = self.choices.iter_mut().filter(|c| c.op != Op::Add).find(fits) {
                choice.used = true;
                item.options = choice.option.iter().cloned().collect();
                item.pos = Some(choice.pos);
            }
        }
        for option in std::mem::take(&mut item.options) {
            self.include_file(&item, &group, &option, context, root);
        }
    }

    fn include_file(&mut self, item: &Item, group: &str, option: &str, context: &Context<'_>, root: &mut Node) {
        let name = option.strip_suffix(".yaml").unwrap_or(option);
        let path = match name.strip_prefix('/') {
            Some(absolute) if item.group.is_empty() => self.dir.join(format!("{absolute}.yaml")),
            _ => self.dir.join(group).join(format!("{}.yaml", name.trim_start_matches('/'))),
        };
        let problem = |message: String| Problem::new(code::DEFAULTS, item.pos, message);
        if name.contains("${") {
            return self
                .problems
                .push(problem(format!("`{option}`: interpolation is not supported inside the `defaults` list")));
        }
        if self.open.contains(&path) {
            let chain: Vec<_> = self.open.iter().chain([&path]).map(|p| p.display().to_string()).collect();
            return self.problems.push(problem(format!("the `defaults` list is circular: {}", chain.join(" -> "))));
        }
        if self.open.len() > MAX_DEPTH || self.num_files >= MAX_FILES {
            return self.problems.push(problem(format!(
                "the `defaults` lists name more than {MAX_FILES} files, or are nested deeper than {MAX_DEPTH}"
            )));
        }
        let builtin = match path.is_file() {
            true => None,
            false => path
                .strip_prefix(&self.dir)
                .ok()
                .and_then(Path::to_str)
                .and_then(|path| builtin::text(path.strip_suffix(".yaml")?)),
        };
        if builtin.is_none() && !path.is_file() {
            if !item.optional {
                let problem = no_option(problem, group, name, &self.dir);
                self.problems.push(problem);
            }
            return;
        }
        let source = self.sources.len();
        let read = match builtin {
            Some(text) => parse(&path, text, self.sources),
            None => read(&path, self.sources),
        };
        let node = match read {
            Ok(node) => node,
            Err(problem) => return self.problems.push(problem),
        };
        let header = header_package(self.sources.lines(source));
        let written = item.package.clone().or(header);
        let default = match group {
            _ if item.group.is_empty() => "_here_",
            "models/image_encoder" => "_global_.model.image_encoder",
            "models/image_projector" => "_global_.model.image_projector",
            "models/audio_encoder" => "_global_.model.audio_encoder",
            "models/audio_projector" => "_global_.model.audio_projector",
            "models/text_encoder" => "_global_.model.text_encoder",
            _ if group.starts_with("models/") => "_global_.model",
            _ => item.group.trim_start_matches('/'),
        };
        let package = final_package(written.as_deref().unwrap_or(default), group, context.package);
        // A group option in a sub-directory makes that directory its group.
        let inner_group = name.rsplit_once('/').map_or(group.to_owned(), |(dir, _)| join_group(group, dir));
        self.open.push(path);
        self.num_files += 1;
        self.expand(node, &Context { group: &inner_group, package: &package }, root);
        self.open.pop();
    }

    /// Merges a file's own keys at its package.
    fn place(&mut self, mut own: Node, package: &str, root: &mut Node) {
        if let Err(problem) = normalize(&mut own, package) {
            return self.problems.push(problem);
        }
        for name in package.rsplit('.').filter(|name| !name.is_empty()) {
            let pos = own.pos;
            let entry = Entry { key: pos, node: own };
            own = Node::new(Kind::Map(BTreeMap::from([(name.to_owned(), entry)])), pos);
        }
        root.merge(own);
    }

    fn add_choice(&mut self, item: Item, context: &Context<'_>) {
        let group = match item.group.strip_prefix('/') {
            Some(absolute) => absolute.to_owned(),
            None => join_group(context.group, &item.group),
        };
        let group = item.package.map_or(group.clone(), |package| format!("{group}@{package}"));
        let Some(pos) = item.pos else { return };
        let option = item.options.into_iter().next();
        self.choices.push(Choice { op: Op::Set, group, option, pos, used: false });
    }

    fn report_unused(&mut self) {
        self.groups.sort();
        self.groups.dedup();
        for choice in self.choices.iter().filter(|choice| !choice.used && choice.op != Op::Force) {
            let message = format!("no group `{}` in the `defaults` list", choice.group);
            let problem = Problem::new(code::DEFAULTS, Some(choice.pos), message);
            let near = suggest::nearest(&choice.group, self.groups.iter().map(String::as_str));
            let problem = near.into_iter().fold(problem, |p, near| p.label(format!("did you mean `{near}`?")));
            let groups = if self.groups.is_empty() {
                "it is empty".to_owned()
            } else {
                format!("it has {}", self.groups.join(", "))
            };
            let option = choice.option.as_deref().unwrap_or("option");
            self.problems.push(problem.help(format!("{groups}; `+{}={option}` adds one", choice.group)));
        }
    }
}

fn join_group(parent: &str, name: &str) -> String {
    if parent.is_empty() || name.is_empty() { format!("{parent}{name}") } else { format!("{parent}/{name}") }
}

fn no_option(problem: impl Fn(String) -> Problem, group: &str, name: &str, dir: &Path) -> Problem {
    let folder = dir.join(group);
    let shown = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.clone() };
    let mut names: Vec<String> = std::fs::read_dir(&shown)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".yaml")?.to_owned()))
        .chain(builtin::options(group).map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    if !folder.as_os_str().is_empty() && !folder.is_dir() && names.is_empty() {
        let near = suggest::nearest(group, builtin::groups()).map(|near| format!("did you mean `{near}`?"));
        let problem = problem(format!("no group `{group}`: there is no directory `{}`", folder.display()))
            .help(format!("groups are directories beside the run's file, in `{}`, or built in", dir.display()));
        return near.into_iter().fold(problem, Problem::label);
    }
    let message = if group.is_empty() {
        format!("no config `{name}`")
    } else {
        format!("no option `{name}` in the group `{group}`")
    };
    let near = suggest::nearest(name, names.iter().map(String::as_str)).map(|near| format!("did you mean `{near}`?"));
    let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let place = if folder.is_dir() || group.is_empty() { shown.display().to_string() } else { group.to_owned() };
    let problem = problem(message).help(format!("`{place}` has {listed}"));
    near.into_iter().fold(problem, Problem::label)
}
