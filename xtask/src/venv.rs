//! Virtual environments of Python, for what Python packages check.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::tasks::run;

/// A virtual environment of Python with packages, lines of a requirements file; `None`, and a line that says so, where it
/// cannot be had.
pub fn venv(root: &Path, name: &str, packages: &str) -> Result<Option<PathBuf>> {
    let venv = root.join("target").join(name);
    if venv.join("complete").exists() {
        return Ok(Some(venv));
    }
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let requirements = venv.join("requirements.txt");
    if made == 0 {
        std::fs::write(&requirements, packages)?;
        let mut pip = Command::new(venv.join("bin/python"));
        if run(pip.args(["-m", "pip", "install", "--quiet", "-r"]).arg(&requirements))? == 0 {
            std::fs::write(venv.join("complete"), "")?;
            return Ok(Some(venv));
        }
    }
    println!("not run: {} cannot be installed", packages.split("==").next().unwrap_or(packages));
    let _ = std::fs::remove_dir_all(&venv);
    Ok(None)
}
