//! The architecture rules that no compiler checks, read from the sources:
//! imports between the rooms of a package never point up, some crates have one importer, and `unsafe` has few homes.
//!
//! It reads text, not types: paths that start at `crate::`, the name of a crate at the start of a path, and the
//! word `unsafe`, outside comments and strings. What a macro writes it does not see.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::source::{self, crate_rooms};

/// The floors of a package from the ground up, each with its rooms. A room may import those of lower floors,
/// and its neighbors as long as that makes no circle.
struct Package {
    folder: &'static str,
    floors: &'static [&'static [&'static str]],
}

impl Package {
    fn floor(&self, room: &str) -> Option<usize> {
        self.floors.iter().position(|rooms| rooms.contains(&room))
    }
}

const PACKAGES: [Package; 2] = [
    Package {
        folder: "src/core/",
        floors: &[
            &["files", "rng", "text"],
            &["config", "message"],
            &["data", "schedule"],
            &["simulate", "checkpoint"],
            &["engine", "transport", "observe"],
        ],
    },
    Package {
        folder: "src/torch/",
        floors: &[
            &["native", "comm", "device"],
            &["params"],
            &["nn"],
            &["tape"],
            &["model"],
            &["parallel"],
            &["train"],
            &["engine"],
        ],
    },
];

/// Crates that only one place may name, so that replacing them is a matter of one room.
const CONFINED: [(&str, &str); 2] = [("actix", "actors/kernel/"), ("postcard", "src/core/message/codec.rs")];

/// The folders in which `unsafe` may be written: calls into C++, device memory, and the shared-memory slab.
const UNSAFE_HOMES: [&str; 3] = ["src/torch/native/", "src/torch/device/", "src/core/transport/slab/"];

/// A line that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Breach {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// Prints every breach; the exit code is 1 if there is one.
pub fn report(root: &Path) -> Result<ExitCode> {
    let (files, breaches) = check(root)?;
    for breach in &breaches {
        println!("{breach}");
    }
    println!("{files} files read, {} against the architecture rules", breaches.len());
    Ok(if breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads every Rust file of the repository; returns how many, and what is wrong.
fn check(root: &Path) -> Result<(usize, Vec<Breach>)> {
    let mut files = Vec::new();
    for folder in ["src", "actors", "examples", "tests", "benches", "xtask"] {
        collect(&root.join(folder), &mut files)?;
    }
    files.push(root.join("build.rs"));
    files.retain(|file| file.exists());
    files.sort();
    let mut sources = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy();
        sources.push((name.into_owned(), source::code_only(&text)));
    }
    Ok((files.len(), check_sources(&sources)))
}

pub fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Checks files, each a path relative to the root and its code (see [`source::code_only`]).
fn check_sources(sources: &[(String, String)]) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut sideways = Vec::new();
    for (file, code) in sources {
        let breach = |offset: usize, what: String| {
            let line = code[..offset].matches('\n').count() + 1;
            Breach { file: file.clone(), line, what }
        };
        for import in imports(file, code) {
            let Import { package, from, to, offset } = &import;
            let (own, other) = (package.floor(from), package.floor(to));
            if other > own {
                let what = format!("`{from}` imports `{to}`, which is above it in {}", package.folder);
                breaches.push(breach(*offset, what));
            } else if other == own && from != to {
                let what = format!("`{from}` imports its neighbor `{to}`, which leads back to `{from}`");
                let breach = breach(*offset, what);
                sideways.push((import, breach));
            }
        }
        for (name, home) in CONFINED {
            if !file.starts_with(home) {
                let uses = source::crate_uses(code, name);
                breaches.extend(uses.map(|at| breach(at, format!("`{name}` is imported in {home} only"))));
            }
        }
        if !UNSAFE_HOMES.iter().any(|home| file.starts_with(home)) {
            let homes = UNSAFE_HOMES.join(", ");
            let uses = source::words(code, "unsafe");
            breaches.extend(uses.map(|at| breach(at, format!("`unsafe` is written in {homes} only"))));
        }
    }
    breaches.extend(circles(&sideways));
    breaches
}

/// An import of one room by another (or itself) of the same package.
struct Import {
    package: &'static Package,
    from: String,
    to: String,
    offset: usize,
}

fn imports(file: &str, code: &str) -> Vec<Import> {
    let Some((package, from)) = room_of(file) else {
        return Vec::new();
    };
    let rooms = crate_rooms(code).into_iter().filter(|(_, to)| package.floor(to).is_some());
    rooms.map(|(offset, to)| Import { package, from: from.into(), to, offset }).collect()
}

/// Returns the imports between neighbors that lead back to where they came from.
fn circles(sideways: &[(Import, Breach)]) -> Vec<Breach> {
    let leads_back = |(start, _): &&(Import, Breach)| {
        let mut reached = vec![start.to.as_str()];
        let mut next = 0;
        while next < reached.len() {
            let onward = sideways
                .iter()
                .map(|(import, _)| import)
                .filter(|import| import.package.folder == start.package.folder && import.from == reached[next]);
            let new: Vec<&str> = onward.map(|import| import.to.as_str()).filter(|to| !reached.contains(to)).collect();
            reached.extend(new);
            next += 1;
        }
        reached.contains(&start.from.as_str())
    };
    sideways.iter().filter(leads_back).map(|(_, breach)| breach.clone()).collect()
}

/// The package and the room that a file belongs to; files beside the rooms (`lib.rs`) belong to none.
fn room_of(file: &str) -> Option<(&'static Package, &str)> {
    let package = PACKAGES.iter().find(|package| file.starts_with(package.folder))?;
    let inside = &file[package.folder.len()..];
    let room = inside.split('/').next()?.trim_end_matches(".rs");
    package.floor(room).map(|_| (package, room))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_keeps_the_rules() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (files, breaches) = check(root).unwrap();
        assert!(files > 5, "only {files} files found under {}", root.display());
        let lines: Vec<String> = breaches.iter().map(Breach::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }

    fn all(files: &[(&str, &str)]) -> Vec<String> {
        let code = |(file, text): &(&str, &str)| (file.to_string(), source::code_only(text));
        let sources: Vec<_> = files.iter().map(code).collect();
        check_sources(&sources).iter().map(Breach::to_string).collect()
    }

    fn whats(file: &str, text: &str) -> Vec<String> {
        all(&[(file, text)])
    }

    #[test]
    fn neighbors_import_each_other_one_way_only() {
        let engine = ("src/core/engine/mod.rs", "use crate::transport::Edge;");
        let transport = ("src/core/transport/mod.rs", "use crate::observe::Log;");
        let observe = ("src/core/observe.rs", "use crate::engine::Event;");
        assert!(all(&[engine, transport]).is_empty());
        let found = all(&[engine, transport, observe]);
        assert_eq!(found.len(), 3, "the circle is all three: {found:?}");
        let elsewhere = ("src/torch/comm/mod.rs", "use crate::native::x;");
        assert!(all(&[engine, elsewhere]).is_empty());
    }

    #[test]
    fn imports_point_down() {
        let text = "use crate::config::Run;\nuse crate::{\n    message::Id,\n    engine::{Host, Ports},\n};\n";
        assert!(whats("src/core/transport/local.rs", text).is_empty());
        let found = whats("src/core/data/collate.rs", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("src/core/data/collate.rs:4: `data` imports `engine`"), "{found:?}");
        assert_eq!(whats("src/torch/nn/rope.rs", "fn f() { crate::model::x() }").len(), 1);
        assert!(whats("src/torch/lib.rs", "pub use crate::engine::Engine;").is_empty());
        assert_eq!(whats("src/core/message/ids.rs", "use crate::engine::Event;").len(), 1);
    }

    #[test]
    fn confined_crates_stay_where_they_are() {
        assert!(whats("actors/kernel/shell.rs", "use actix::Actor;").is_empty());
        assert_eq!(whats("actors/data.rs", "use actix::Actor;").len(), 1);
        assert_eq!(whats("actors/data.rs", "#[actix::main]\nasync fn main() {}").len(), 1);
        assert!(whats("actors/data.rs", "use crate::kernel::actix_like; // not use actix::Actor;").is_empty());
        assert!(whats("src/core/message/codec.rs", "use postcard::to_slice;").is_empty());
    }

    #[test]
    fn unsafe_has_few_homes() {
        assert!(whats("src/torch/native/ops.rs", "unsafe { call() }").is_empty());
        assert!(whats("src/core/transport/slab/map.rs", "unsafe impl Send for Slab {}").is_empty());
        assert_eq!(whats("src/core/transport/link.rs", "unsafe { call() }").len(), 1);
        assert!(
            whats("src/lib.rs", "#![forbid(unsafe_code)] // no unsafe here\n const A: &str = \"unsafe\";").is_empty()
        );
    }
}
