//! Puts the model configs of `configs/models` into the library, so that a program without the repository has them.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&manifest).join("../../configs/models").canonicalize()?;
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    walk(&root, "models", &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for (name, path) in files {
        writeln!(table, "    ({name:?}, include_str!({path:?})),").expect("a string takes all");
    }
    table += "]\n";
    let out = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("builtin.rs"), table)
}

/// Collects `models/FAMILY/NAME` and the path of every `.yaml` file.
fn walk(dir: &Path, group: &str, files: &mut Vec<(String, String)>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", dir.display());
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let full = format!("{group}/{name}");
        if path.is_dir() {
            walk(&path, &full, files)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push((full, path.display().to_string()));
        }
    }
    Ok(())
}
