//! The script of the Dockerfile in a folder of its own; docker is not needed for that.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::tasks::{self, Profile, run};

/// Copies the repository's files into an empty folder and runs `xtask/image.sh` there on the tests' build.
pub fn try_image(root: &Path) -> Result<ExitCode> {
    let program = tasks::build(root, Profile::Dev)?;
    let folder = root.join("target/image");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut copy = Command::new("sh");
    copy.args(["-c", "git ls-files -z | xargs -0 cp --parents -t \"$1\"", "sh"]).arg(&folder).current_dir(root);
    if run(&mut copy)? != 0 {
        bail!("the repository's files cannot be copied into {}", folder.display());
    }
    let mut script = Command::new("sh");
    script.arg("xtask/image.sh").arg(root.join(program)).current_dir(&folder);
    Ok(ExitCode::from(run(&mut script)?))
}
