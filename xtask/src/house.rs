//! The rules of the house that no compiler checks, read from the sources:
//! imports between the rooms of a package only point down, some crates have one importer, and `unsafe` has few homes.
//!
//! It reads text, not types: paths that start at `crate::`, the name of a crate at the start of a path, and the
//! word `unsafe`, outside comments and strings. What a macro writes it does not see.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::source::{self, crate_rooms};

/// Rooms of a package from the ground up: a room may import itself and those before it.
struct Package {
    folder: &'static str,
    rooms: &'static [&'static str],
}

const PACKAGES: [Package; 2] = [
    Package {
        folder: "src/core/",
        rooms: &[
            "config",
            "message",
            "data",
            "schedule",
            "engine",
            "transport",
            "observe",
        ],
    },
    Package {
        folder: "src/torch/",
        rooms: &[
            "native", "comm", "device", "nn", "model", "parallel", "train", "engine",
        ],
    },
];

/// Crates that only one place may name, so that replacing them is a matter of one room.
const CONFINED: [(&str, &str); 2] = [
    ("actix", "actors/kernel/"),
    ("postcard", "src/core/message/codec.rs"),
];

/// Where `unsafe` may be written.
const UNSAFE_HOMES: [&str; 3] = [
    "src/torch/native/",
    "src/torch/device/",
    "src/core/transport/slab.rs",
];

/// A line that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Breach {
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
    println!(
        "{files} files read, {} against the rules of the house",
        breaches.len()
    );
    Ok(if breaches.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Reads every Rust file of the repository; returns how many, and what is wrong.
pub fn check(root: &Path) -> Result<(usize, Vec<Breach>)> {
    let mut files = Vec::new();
    for folder in ["src", "actors", "examples", "tests", "benches", "xtask"] {
        collect(&root.join(folder), &mut files)?;
    }
    files.push(root.join("build.rs"));
    files.retain(|file| file.exists());
    files.sort();
    let mut breaches = Vec::new();
    for file in &files {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy();
        breaches.extend(check_file(&name, &text));
    }
    Ok((files.len(), breaches))
}

fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) -> Result<()> {
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

/// `file` is relative to the root, with forward slashes.
fn check_file(file: &str, text: &str) -> Vec<Breach> {
    let code = source::code_only(text);
    let mut breaches = Vec::new();
    let mut add = |offset: usize, what: String| {
        let line = code[..offset].matches('\n').count() + 1;
        breaches.push(Breach {
            file: file.into(),
            line,
            what,
        });
    };
    if let Some((package, room)) = room_of(file) {
        for (offset, imported) in crate_rooms(&code) {
            let height = |name: &str| package.rooms.iter().position(|room| *room == name);
            if let (Some(own), Some(other)) = (height(room), height(&imported))
                && other > own
            {
                add(
                    offset,
                    format!(
                        "`{room}` imports `{imported}`, which is above it in {}",
                        package.folder
                    ),
                );
            }
        }
    }
    for (name, home) in CONFINED {
        if !file.starts_with(home) {
            for offset in source::crate_uses(&code, name) {
                add(offset, format!("`{name}` is imported in {home} only"));
            }
        }
    }
    if !UNSAFE_HOMES.iter().any(|home| file.starts_with(home)) {
        for offset in source::words(&code, "unsafe") {
            add(
                offset,
                format!("`unsafe` is written in {} only", UNSAFE_HOMES.join(", ")),
            );
        }
    }
    breaches
}

/// The package and the room that a file belongs to; files beside the rooms (`lib.rs`) belong to none.
fn room_of(file: &str) -> Option<(&'static Package, &str)> {
    let package = PACKAGES
        .iter()
        .find(|package| file.starts_with(package.folder))?;
    let inside = &file[package.folder.len()..];
    let room = inside.split('/').next()?.trim_end_matches(".rs");
    package.rooms.contains(&room).then_some((package, room))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_keeps_the_rules() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (files, breaches) = check(root).unwrap();
        assert!(
            files > 5,
            "only {files} files found under {}",
            root.display()
        );
        let lines: Vec<String> = breaches.iter().map(Breach::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }

    fn whats(file: &str, text: &str) -> Vec<String> {
        check_file(file, text)
            .iter()
            .map(Breach::to_string)
            .collect()
    }

    #[test]
    fn imports_point_down() {
        let text = "use crate::config::Run;\nuse crate::{\n    message::Id,\n    schedule::{pack, cost},\n};\n";
        assert!(whats("src/core/schedule/pack.rs", text).is_empty());
        let found = whats("src/core/data/collate.rs", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("src/core/data/collate.rs:4: `data` imports `schedule`"),
            "{found:?}"
        );
        assert_eq!(
            whats("src/torch/nn/rope.rs", "fn f() { crate::model::x() }").len(),
            1
        );
        assert!(whats("src/torch/lib.rs", "pub use crate::engine::Engine;").is_empty());
        assert_eq!(
            whats("src/core/engine.rs", "use crate::observe::log;").len(),
            1
        );
    }

    #[test]
    fn confined_crates_stay_where_they_are() {
        assert!(whats("actors/kernel/shell.rs", "use actix::Actor;").is_empty());
        assert_eq!(whats("actors/data.rs", "use actix::Actor;").len(), 1);
        assert_eq!(
            whats("actors/data.rs", "#[actix::main]\nasync fn main() {}").len(),
            1
        );
        assert!(
            whats(
                "actors/data.rs",
                "use crate::kernel::actix_like; // not use actix::Actor;"
            )
            .is_empty()
        );
        assert!(whats("src/core/message/codec.rs", "use postcard::to_slice;").is_empty());
    }

    #[test]
    fn unsafe_has_few_homes() {
        assert!(whats("src/torch/native/ops.rs", "unsafe { call() }").is_empty());
        assert!(whats("src/core/transport/slab.rs", "unsafe impl Send for Slab {}").is_empty());
        assert_eq!(
            whats("src/core/transport/link.rs", "unsafe { call() }").len(),
            1
        );
        assert!(
            whats(
                "src/lib.rs",
                "#![forbid(unsafe_code)] // no unsafe here\n const A: &str = \"unsafe\";"
            )
            .is_empty()
        );
    }
}
