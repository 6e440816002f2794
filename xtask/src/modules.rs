//! The modules of one package, and which file uses what another one defines.
//!
//! A name is followed through re-exports to the file that defines it, so `use crate::data::Sample` is an arrow to
//! `data/sample.rs`. A re-export of one's own submodules is no arrow. Neither is what tests use.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Path, Source};

/// Re-exports of re-exports are followed so far.
const MAX_HOPS: usize = 16;

type Name = Vec<String>;

/// One file uses what another one defines, at this line first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    pub from: String,
    pub to: String,
    pub line: usize,
}

#[derive(Default)]
struct Module<'a> {
    file: &'a str,
    is_test: bool,
    imports: BTreeMap<&'a str, &'a Path>,
}

/// Modules, inline ones too, by their names from the root.
#[derive(Default)]
struct Tree<'a> {
    modules: BTreeMap<Name, Module<'a>>,
    files: Vec<(&'a str, Name)>,
}

/// Returns the arrows between the files of the package of which `root` (`lib.rs`) is the first module.
pub fn arrows(root: &str, sources: &BTreeMap<String, Source>) -> Vec<Arrow> {
    let mut tree = Tree::default();
    tree.add(root, Vec::new(), false, sources);
    let mut found = BTreeMap::new();
    for (file, name) in tree.files.iter().filter(|(_, name)| !tree.modules[name].is_test) {
        for path in sources[*file].paths.iter().filter(|path| !path.is_test) {
            let here = [&name[..], &path.within].concat();
            let Some(target) = tree.resolve(&here, path, 0) else { continue };
            let to = &tree.modules[&target];
            let is_own_export = path.is_export && target.starts_with(name);
            if to.file != *file && !is_own_export && !to.is_test {
                let line = found.entry((*file, to.file)).or_insert(path.line);
                *line = path.line.min(*line);
            }
        }
    }
    let arrow = |((from, to), line): ((&str, &str), usize)| Arrow { from: from.into(), to: to.into(), line };
    found.into_iter().map(arrow).collect()
}

/// Returns the arrows that lead back to where they begin.
pub fn circles(arrows: &[Arrow]) -> Vec<&Arrow> {
    let mut onward: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in arrows {
        onward.entry(&arrow.from).or_default().insert(&arrow.to);
    }
    let reached = |start: &'_ str| {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = onward.get(start).into_iter().flatten().copied().collect();
        while let Some(file) = next.pop() {
            if reached.insert(file) {
                next.extend(onward.get(file).into_iter().flatten());
            }
        }
        reached
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> = onward.keys().map(|&file| (file, reached(file))).collect();
    let leads_back = |arrow: &&Arrow| reach.get(arrow.to.as_str()).is_some_and(|found| found.contains(&*arrow.from));
    arrows.iter().filter(leads_back).collect()
}

impl<'a> Tree<'a> {
    fn add(&mut self, file: &'a str, name: Name, is_test: bool, sources: &'a BTreeMap<String, Source>) {
        let Some(source) = sources.get(file) else { return };
        self.files.push((file, name.clone()));
        self.modules.insert(name.clone(), Module { file, is_test, ..Module::default() });
        for path in &source.paths {
            let inline = [&name[..], &path.within].concat();
            let module =
                self.modules.entry(inline).or_insert(Module { file, is_test: path.is_test, ..Module::default() });
            if let Some(alias) = path.alias.as_deref() {
                module.imports.insert(alias, path);
            }
        }
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let stem = file[folder.len()..].trim_start_matches('/').trim_end_matches(".rs");
        let own = if name.is_empty() || stem == "mod" { folder.to_owned() } else { format!("{folder}/{stem}") };
        for module in &source.modules {
            let own = [std::slice::from_ref(&own), &module.within[..]].concat().join("/");
            let candidates = match &module.file {
                Some(path) => vec![format!("{folder}/{path}")],
                None => vec![format!("{own}/{}.rs", module.name), format!("{own}/{}/mod.rs", module.name)],
            };
            let name = [&name[..], &module.within, std::slice::from_ref(&module.name)].concat();
            if let Some((file, _)) = candidates.iter().find_map(|file| sources.get_key_value(file.as_str())) {
                self.add(file, name, is_test || module.is_test, sources);
            }
        }
    }

    /// Returns the module that defines what `path`, written in `module` or inline modules of it, ends at; `None`: another crate.
    fn resolve(&self, module: &Name, path: &Path, hops: usize) -> Option<Name> {
        let first = path.names.first()?.as_str();
        match first {
            "crate" => Some(self.walk(Vec::new(), &path.names[1..], hops)),
            "self" => Some(self.walk(module.clone(), &path.names[1..], hops)),
            "super" => {
                let ups = path.names.iter().take_while(|name| *name == "super").count();
                let above = module[..module.len().checked_sub(ups)?].to_vec();
                Some(self.walk(above, &path.names[ups..], hops))
            }
            _ => {
                let is_own_import = path.alias.as_deref() == Some(first) && path.names.len() == 1;
                let is_here = self.child(module, first).is_some() || self.imported(module, first, hops).is_some();
                (is_here && !is_own_import).then(|| self.walk(module.clone(), &path.names, hops))
            }
        }
    }

    /// Follows `names` from `module` to the module that defines the last one.
    fn walk(&self, mut module: Name, names: &[String], hops: usize) -> Name {
        for name in names {
            match self.child(&module, name).or_else(|| self.imported(&module, name, hops)) {
                Some(next) => module = next,
                None => break,
            }
        }
        module
    }

    fn child(&self, module: &Name, name: &str) -> Option<Name> {
        let child = [&module[..], &[name.to_owned()]].concat();
        self.modules.contains_key(&child).then_some(child)
    }

    /// Returns the module that defines what `module` imports as `name`.
    fn imported(&self, module: &Name, name: &str, hops: usize) -> Option<Name> {
        if hops == MAX_HOPS {
            return None;
        }
        let import = *self.modules.get(module)?.imports.get(name)?;
        self.resolve(module, import, hops + 1)
    }
}
