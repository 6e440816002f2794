//! The architecture rules that no compiler checks, read from the sources: imports never point up from one floor of a
//! package to a higher one, files use each other in no circle, some crates have one importer, and `unsafe` has few homes.
//! No file is larger than a fixture may be.
//!
//! A folder that re-exports what its files define is in no circle with them, and tests may use what they like of their
//! package's files; floors hold for tests, too. What a macro puts together is not seen ([`crate::source`]).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::modules::{Arrow, arrows, circles};
use crate::source::Source;

/// The floors of a package from the ground up, each with its rooms: folders, and files beside them. A room may import
/// those of lower floors, and its neighbors as long as no files make a circle.
struct Package {
    folder: &'static str,
    floors: &'static [&'static [&'static str]],
}

impl Package {
    fn floor(&self, room: &str) -> Option<usize> {
        self.floors.iter().position(|rooms| rooms.contains(&room))
    }
}

/// The root comes last: its folder holds those of core and torch.
const PACKAGES: [Package; 4] = [
    Package {
        folder: "src/core/",
        floors: &[
            &["clock", "files", "numbers", "rng", "store", "text", "threads"],
            &["config", "message"],
            &["data", "schedule"],
            &["simulate", "checkpoint", "robot", "openai"],
            &["engine", "transport", "observe"],
            &["fuzz"],
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
    Package {
        folder: "actors/",
        floors: &[
            &["checkpoint", "effect", "random"],
            &["journal"],
            &["scheduler"],
            &["kernel"],
            &["launch", "drill", "watch"],
        ],
    },
    Package {
        folder: "src/",
        floors: &[
            &["sandbox", "model"],
            &["checkpoint", "estimate", "eval", "policy"],
            &["answer", "serve"],
            &["preflight"],
            &["run"],
            &["drill"],
            &["cli"],
        ],
    },
];

/// Folders of a package that are none of its rooms: programs of their own.
const PROGRAMS: [&str; 4] = ["tests", "benches", "examples", "core"];

/// Crates that only one place may name, so that replacing them is a matter of one room.
const CONFINED: [(&str, &str); 2] = [("actix", "actors/kernel/"), ("postcard", "src/core/message/codec.rs")];

/// The folders in which `unsafe` may be written: calls into C++, device memory, and the shared-memory slab.
const UNSAFE_HOMES: [&str; 3] = ["src/torch/native/", "src/torch/device/", "src/core/transport/slab/"];

/// Bytes of the largest file: fixtures are tiny, so that a clone stays small.
const MAX_FILE_BYTES: u64 = 300_000;

/// Files that are larger: the sounds of a newcomer's run.
const LARGE_FILES: [&str; 2] = ["src/core/data/spoken_digits/held_out.ogg", "src/core/data/spoken_digits/train.ogg"];

/// A line that breaks a rule; 0: the file does.
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
    for folder in ["src", "actors", "examples", "tests", "benches", "xtask", "docs", "configs", "fuzz"] {
        collect(&root.join(folder), &mut files)?;
    }
    files.push(root.join("build.rs"));
    files.retain(|file| file.exists());
    let mut breaches = Vec::new();
    for file in &files {
        let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy();
        breaches.extend(too_large(&name, fs::metadata(file)?.len()));
    }
    files.retain(|file| is_rust(file));
    let mut sources = BTreeMap::new();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy();
        sources.insert(name.into_owned(), Source::read(&text).with_context(|| file.display().to_string())?);
    }
    breaches.extend(check_sources(&sources));
    Ok((files.len(), breaches))
}

/// Returns a file by its path from the root and its bytes, where it is too large.
fn too_large(file: &str, bytes: u64) -> Option<Breach> {
    let what = format!("{bytes} bytes, more than {MAX_FILE_BYTES}: make the fixture smaller");
    let is_large = bytes > MAX_FILE_BYTES && !LARGE_FILES.contains(&file);
    is_large.then(|| Breach { file: file.to_owned(), line: 0, what })
}

pub fn is_rust(file: &Path) -> bool {
    file.extension().is_some_and(|ext| ext == "rs")
}

/// Collects all files in a folder, but for what is built in it.
pub fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        let is_built = ["target", "__pycache__", "node_modules"].iter().any(|name| path.ends_with(name));
        if path.is_dir() && !is_built {
            collect(&path, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Checks files by their paths from the root.
fn check_sources(sources: &BTreeMap<String, Source>) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (file, source) in sources {
        let breach = |line: usize, what: String| Breach { file: file.clone(), line, what };
        if let Some((package, room)) = room_of(file) {
            let Some(own) = package.floor(room) else {
                breaches.push(breach(1, format!("`{room}` has no floor in {} (xtask/src/house.rs)", package.folder)));
                continue;
            };
            for path in source.paths.iter().filter(|path| path.names[0] == "crate") {
                let Some(to) = path.names.get(1) else { continue };
                if package.floor(to) > Some(own) {
                    let what = format!("`{room}` imports `{to}`, which is above it in {}", package.folder);
                    breaches.push(breach(path.line, what));
                }
            }
        }
        for (name, home) in CONFINED {
            if !file.starts_with(home) {
                let uses = source.paths.iter().filter(|path| path.names[0] == name);
                breaches.extend(uses.map(|path| breach(path.line, format!("`{name}` is imported in {home} only"))));
            }
        }
        if !UNSAFE_HOMES.iter().any(|home| file.starts_with(home)) {
            let homes = UNSAFE_HOMES.join(", ");
            let what = format!("`unsafe` is written in {homes} only");
            breaches.extend(source.unsafe_lines.iter().map(|&line| breach(line, what.clone())));
        }
    }
    breaches.extend(circling(sources));
    breaches
}

/// Returns the uses that lead back to where they are.
fn circling(sources: &BTreeMap<String, Source>) -> Vec<Breach> {
    let roots = PACKAGES.iter().map(|package| format!("{}lib.rs", package.folder));
    let arrows: Vec<_> = roots.flat_map(|root| arrows(&root, sources)).collect();
    let breach = |arrow: &Arrow| Breach {
        file: arrow.from.clone(),
        line: arrow.line,
        what: format!("uses {}, which leads back here", arrow.to),
    };
    circles(&arrows).into_iter().map(breach).collect()
}

/// Returns the package and the room that a file belongs to; `lib.rs`, `main.rs` and programs beside the rooms belong to none.
fn room_of(file: &str) -> Option<(&'static Package, &str)> {
    let package = PACKAGES.iter().find(|package| file.starts_with(package.folder))?;
    let inside = &file[package.folder.len()..];
    let room = inside.split('/').next()?.trim_end_matches(".rs");
    let is_room = !PROGRAMS.contains(&room) && !["lib", "main", "build"].contains(&room);
    is_room.then_some((package, room))
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

    /// One that the list lacks is called unknown where a user sets it.
    #[test]
    fn variables_of_the_environment_are_listed() {
        const PREFIX: &str = "LOONGFORGE_";
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let list = fs::read_to_string(root.join("src/core/config/variables.rs")).unwrap();
        let mut files = Vec::new();
        for folder in ["src", "actors", "examples", "tests", "benches", "xtask", ".ci"] {
            collect(&root.join(folder), &mut files).unwrap();
        }
        let is_program =
            |file: &Path| file.extension().is_none_or(|ext| ["rs", "py", "sh"].iter().any(|it| ext == *it));
        for file in files.iter().filter(|file| is_program(file) && !file.ends_with("variables.rs")) {
            let text = String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned();
            for rest in text.split(PREFIX).skip(1) {
                let end = rest.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
                let name = &rest[..end.unwrap_or(rest.len())];
                let is_listed = list.contains(&format!("\"{PREFIX}{name}\""));
                let is_other = name.is_empty() || name.starts_with('_') || name.starts_with("TEST_");
                assert!(is_listed || is_other, "{}: {PREFIX}{name} is not in variables.rs", file.display());
            }
        }
    }

    fn all(files: &[(&str, &str)]) -> Vec<String> {
        let read = |(file, text): &(&str, &str)| (file.to_string(), Source::read(text).unwrap());
        check_sources(&files.iter().map(read).collect()).iter().map(Breach::to_string).collect()
    }

    fn whats(file: &str, text: &str) -> Vec<String> {
        all(&[(file, text)])
    }

    /// A package in which `engine/link.rs` uses what `transport/edge.rs` defines, by two re-exports.
    const TREE: [(&str, &str); 5] = [
        ("src/core/lib.rs", "pub mod engine; pub mod transport;"),
        ("src/core/engine/mod.rs", "mod link; pub use link::Link;"),
        ("src/core/engine/link.rs", "use crate::transport::Edge as E; pub struct Link(E);"),
        ("src/core/transport/mod.rs", "mod edge; pub use self::edge::Edge;"),
        ("src/core/transport/edge.rs", "pub struct Edge;"),
    ];

    #[test]
    fn files_in_a_circle_are_found_through_re_exports() {
        assert_eq!(all(&TREE), [""; 0], "a folder that re-exports its files is in no circle with them");
        let back = |text| TREE.map(|(file, old)| (file, if file.ends_with("edge.rs") { text } else { old }));
        let found = all(&back("\npub struct Edge(super::super::engine::Link);"));
        let expected = [
            "src/core/engine/link.rs:1: uses src/core/transport/edge.rs, which leads back here",
            "src/core/transport/edge.rs:2: uses src/core/engine/link.rs, which leads back here",
        ];
        assert_eq!(found, expected);
        assert_eq!(all(&back("#[cfg(test)] mod tests { use crate::engine::Link; }")), [""; 0]);
    }

    #[test]
    fn imports_point_down() {
        let text = "use crate::config::Run;\nuse crate::{\n    message::Id,\n    engine::{Host, Ports},\n};\n";
        assert!(whats("src/core/transport/local.rs", text).is_empty());
        let found = whats("src/core/data/collate.rs", text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("src/core/data/collate.rs:4: `data` imports `engine`"), "{found:?}");
        assert_eq!(whats("src/torch/nn/rope.rs", "fn f() { crate::model::x() }").len(), 1);
        assert_eq!(whats("actors/kernel/shell.rs", "use crate::launch::EdgeSpec;").len(), 1);
        assert_eq!(whats("src/model/folder.rs", "use crate::cli::exit;").len(), 1);
        assert!(whats("src/torch/lib.rs", "pub use crate::engine::Engine;").is_empty());
        assert!(whats("src/core/attic.rs", "")[0].contains("`attic` has no floor"));
    }

    #[test]
    fn confined_crates_stay_where_they_are() {
        assert!(whats("actors/kernel/shell.rs", "use actix::Actor;").is_empty());
        assert_eq!(whats("actors/watch/handle.rs", "use actix::Actor;").len(), 1);
        assert_eq!(whats("actors/watch/handle.rs", "#[actix::main]\nasync fn main() {}").len(), 1);
        assert!(whats("actors/watch/handle.rs", "use crate::kernel::actix_like; // not use actix::Actor;").is_empty());
        assert!(whats("src/core/message/codec.rs", "use postcard::to_slice;").is_empty());
    }

    #[test]
    fn large_files_are_named() {
        let found = |file, bytes| too_large(file, bytes).map(|breach| breach.to_string());
        assert_eq!(found("src/torch/tests/fixtures/a/model.safetensors", 300_000), None);
        assert!(found("src/torch/tests/fixtures/a/model.safetensors", 300_001).unwrap().contains("300001 bytes"));
        assert_eq!(found(LARGE_FILES[1], 2_000_000), None);
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
