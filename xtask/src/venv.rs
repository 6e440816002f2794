//! Virtual environments of Python, for what Python packages check.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::tasks::run;

/// The file of an environment that is written last, with its packages.
const COMPLETE: &str = "complete";

/// The packages that have clients: of policies, of a language model, of runs and of object stores.
const CLIENTS: &str = "openpi-client==0.1.2\ntyping_extensions==4.16.0\nvla-eval==0.8.0\npyarrow==20.0.0\npillow==13.0.0\nopenai==3.54.0\nwandb==0.31.0\nmlflow-skinny==3.17.2\nmoto[server]==5.2.5\n";

/// Makes a virtual environment of Python with packages, lines of a requirements file; `None`, and a line that says so, where it cannot be
/// had.
pub fn venv(root: &Path, name: &str, packages: &str) -> Result<Option<PathBuf>> {
    let venv = root.join("target").join(name);
    if is_complete(&venv, packages) {
        return Ok(Some(venv));
    }
    let _ = fs::remove_dir_all(&venv);
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let requirements = venv.join("requirements.txt");
    if made == 0 {
        fs::write(&requirements, packages)?;
        let mut pip = Command::new(venv.join("bin/python"));
        if run(pip.args(["-m", "pip", "install", "--quiet", "-r"]).arg(&requirements))? == 0 {
            fs::write(venv.join(COMPLETE), packages)?;
            return Ok(Some(venv));
        }
    }
    println!("not run: {} cannot be installed", packages.split("==").next().unwrap_or(packages));
    let _ = fs::remove_dir_all(&venv);
    Ok(None)
}

/// Returns whether an environment has these packages, and not those of an older list.
fn is_complete(venv: &Path, packages: &str) -> bool {
    fs::read_to_string(venv.join(COMPLETE)).is_ok_and(|installed| installed == packages)
}

/// Tells a command which Python has the clients; says so where they cannot be had.
pub fn give_clients(root: &Path, command: &mut Command) -> Result<()> {
    if let Some(venv) = venv(root, "policy-clients", CLIENTS)? {
        command.env("LOONGFORGE_CLIENT_PYTHON", venv.join("bin/python"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_of_other_packages_is_made_anew() {
        let venv = std::env::temp_dir().join(format!("xtask-venv-{}", std::process::id()));
        fs::create_dir_all(&venv).unwrap();
        assert!(!is_complete(&venv, "mkdocs==1.6.1"), "half made");
        fs::write(venv.join(COMPLETE), "mkdocs==1.6.1").unwrap();
        assert!(is_complete(&venv, "mkdocs==1.6.1") && !is_complete(&venv, "mkdocs==1.6.2"));
        fs::remove_dir_all(venv).unwrap();
    }
}
