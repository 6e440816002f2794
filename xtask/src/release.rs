//! `cargo xtask release`: the program with configs, licenses and checksums as one archive in `target/release-archive`. Nothing is
//! uploaded. libtorch is not in it: `pip install torch==2.11.0` brings it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::gpu::copy;
use crate::setup;
use crate::tasks::{self, Profile, cargo, run};

const INSTALL: &str = "\
loongforge: the program, its configs and licenses; Linux on x86-64.

It needs libtorch 2.11.0, for example of `pip install torch==2.11.0`:

    export LD_LIBRARY_PATH=$(python3 -c 'import torch, os; print(os.path.join(torch.__path__[0], \"lib\"))')
    ./loongforge doctor
    ./loongforge run configs/sft_text.yaml

`sha256sum --check SHA256SUMS` compares every file.
";

/// Packs a build; says where the archive is.
pub fn release(root: &Path, profile: Profile) -> Result<PathBuf> {
    setup::setup(root, false)?;
    let program = tasks::build(root, profile)?;
    let name = format!("loongforge-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let folder = root.join("target/release-archive");
    let staged = folder.join(&name);
    if staged.exists() {
        fs::remove_dir_all(&staged).with_context(|| staged.display().to_string())?;
    }
    fs::create_dir_all(&staged)?;
    if run(Command::new("strip").arg("-o").arg(staged.join("loongforge")).arg(&program))? != 0 {
        bail!("strip failed");
    }
    for file in ["configs", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff"] {
        copy(&root.join(file), &staged.join(file))?;
    }
    // Attributions of the data that is compiled in.
    for data in ["digits", "spoken_digits"] {
        copy(&root.join(format!("src/core/data/{data}/ATTRIBUTION.md")), &staged.join(format!("licenses/{data}.md")))?;
    }
    fs::write(staged.join("licenses/crates.txt"), crates(root)?)?;
    fs::write(staged.join("INSTALL.txt"), INSTALL)?;
    checksums(&staged, "find . -type f ! -name SHA256SUMS | LC_ALL=C sort | xargs -d '\\n' sha256sum > SHA256SUMS")?;
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    // The same files make the same archive.
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-czf"]).arg(&archive);
    tar.arg("-C").arg(&folder).arg(&name);
    if run(&mut tar)? != 0 {
        bail!("tar failed");
    }
    checksums(&folder, &format!("sha256sum {name}.tar.gz > {name}.tar.gz.sha256"))?;
    Ok(archive)
}

fn checksums(folder: &Path, command: &str) -> Result<()> {
    match run(Command::new("sh").args(["-c", command]).current_dir(folder))? {
        0 => Ok(()),
        _ => bail!("sha256sum failed"),
    }
}

/// Lists every crate that is linked, with its license.
fn crates(root: &Path) -> Result<String> {
    let mut tree = cargo(root);
    tree.args(["tree", "--offline", "--package", "loongforge", "--edges", "normal", "--prefix", "none"]);
    tree.args(["--format", "{p} {l}"]).current_dir(root).stderr(Stdio::inherit());
    let output = tree.output().context("cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree failed");
    }
    let text = String::from_utf8(output.stdout)?;
    // Our own crates have a path.
    let mut lines: Vec<&str> =
        text.lines().filter(|line| !line.contains("(/")).map(|line| line.trim_end_matches(" (*)")).collect();
    lines.sort_unstable();
    lines.dedup();
    Ok(lines.join("\n") + "\n")
}

/// Packs the tests' build, unpacks it elsewhere, compares the checksums and asks the program for its version.
pub fn try_release(root: &Path) -> Result<ExitCode> {
    let archive = release(root, Profile::Dev)?;
    let there = root.join("target/release-archive/there");
    if there.exists() {
        fs::remove_dir_all(&there)?;
    }
    fs::create_dir_all(&there)?;
    let script = "tar -xzf \"$1\" && cd loongforge-* && sha256sum --check --quiet SHA256SUMS && grep -q serde licenses/crates.txt \
        && ./loongforge --version --verbose && ./loongforge check configs/sft_text.yaml --no-device";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(&archive).current_dir(&there);
    Ok(ExitCode::from(run(&mut shell)?))
}
