//! A run's folder: the checkpoint that `--resume` means, and that no former run is lost by mistake.

use crate::cli::UsageError;
use crate::compose::{Composition, Resume, precision_name};
use crate::folder::ModelFolder;
use crate::snapshots::Snapshots;
use anyhow::{Context, bail};
use loongforge_actors::checkpoint::{DATA, Manifest, clean, latest};
use loongforge_core::config::{OnChange, RunConfig};
use loongforge_core::data::{Fingerprint, fingerprint as data_fingerprint};
use loongforge_core::message::StepId;
use loongforge_core::observe::Console;
use std::path::{Path, PathBuf};

/// The checkpoint that `--resume` means; the one in memory where that is of a later step.
pub fn find_resume(
    wanted: Option<&str>,
    composition: &Composition,
    snapshots: Option<&Snapshots>,
    console: &Console,
) -> anyhow::Result<Option<Resume>> {
    let Some(wanted) = wanted else { return Ok(None) };
    let config = composition.config();
    let on_disk = latest(&config.checkpoint.dir)?;
    let newest = snapshots.map_or(Ok(None), Snapshots::newest).unwrap_or_else(|error| {
        console.line(&format!("warning: not from memory: {error}"));
        None
    });
    if let Some((checkpoint, manifest)) = newest
        && on_disk
            .as_ref()
            .and_then(|path| Manifest::read(path).ok())
            .is_none_or(|on_disk| on_disk.num_steps < manifest.num_steps)
    {
        console.line(&format!("from memory: {} steps are done", manifest.num_steps));
        let first_step = StepId(manifest.num_steps);
        return Ok(Some(Resume { checkpoint, first_step, state: manifest.scheduler }));
    }
    let checkpoint = match wanted {
        "auto" => match on_disk {
            Some(checkpoint) => checkpoint,
            // A launcher may pass --resume from the first start on.
            None => return Ok(None),
        },
        path => PathBuf::from(path),
    };
    let manifest = Manifest::read(&checkpoint)?;
    composition.folder().expect_same(&ModelFolder::open_plain(&checkpoint)?)?;
    let (theirs, ours) = (manifest.precision.as_str(), precision_name(config.train.precision));
    if theirs != ours {
        let path = checkpoint.display();
        bail!("{path} has train.precision {theirs}, this run {ours}: resume with train.precision={theirs}");
    }
    expect_same_data(&checkpoint, config)?;
    Ok(Some(Resume { checkpoint, first_step: StepId(manifest.num_steps), state: manifest.scheduler }))
}

/// A position in the stream means the same sample only while the files are the same.
fn expect_same_data(checkpoint: &Path, config: &RunConfig) -> anyhow::Result<()> {
    let path = checkpoint.join(DATA);
    if !path.exists() {
        return Ok(());
    }
    let named = || path.display().to_string();
    let then: Fingerprint = serde_json::from_slice(&std::fs::read(&path).with_context(named)?).with_context(named)?;
    let Some(difference) = then.difference(&data_fingerprint(&config.data)?) else { return Ok(()) };
    let what = format!("the data changed since {}: {difference}", checkpoint.display());
    match config.data.on_change {
        OnChange::Refuse => bail!("{what}; to go on at its place in the new order, set data.on_change=accept"),
        OnChange::Accept => eprintln!("warning: {what}"),
    }
    Ok(())
}

/// Makes the run's folder, and sees to it that no former run is lost by mistake.
pub fn prepare_folder(config: &RunConfig, resumes: bool, overwrite: bool) -> anyhow::Result<()> {
    let (dir, checkpoints) = (&config.run.dir, &config.checkpoint.dir);
    // Only checkpoints are removed: the folder may hold what is not ours.
    while !resumes && let Some(former) = latest(checkpoints)? {
        if !overwrite {
            let former = former.display();
            let what = format!(
                "run.dir already holds a run ({former}): go on with --resume, begin anew with --overwrite, or set run.name"
            );
            return Err(UsageError(what).into());
        }
        std::fs::remove_dir_all(&former).with_context(|| format!("checkpoint.dir: {}", former.display()))?;
    }
    writable(dir, "run.dir")?;
    writable(checkpoints, "checkpoint.dir")?;
    Ok(clean(checkpoints)?)
}

fn writable(dir: &Path, key: &str) -> anyhow::Result<()> {
    let named = || format!("{key}: cannot write into {}", dir.display());
    std::fs::create_dir_all(dir).with_context(named)?;
    tempfile::tempfile_in(dir).with_context(named)?;
    Ok(())
}
