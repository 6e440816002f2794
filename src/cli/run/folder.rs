//! A run's folder: the checkpoint that `--resume` means, and that no former run is lost by mistake.

use super::args::ResumeFrom;
use super::left_aside;
use super::same_trained::expect_same_trained;
use super::settings::differences;
use crate::cli::UsageError;
use crate::model::folder::ModelFolder;
use crate::run::compose::{Composition, Resume, is_own, precision_name};
use crate::run::packs::data_fingerprint;
use crate::run::snapshots::Snapshots;
use crate::run::uploads::{self, Unfit};
use anyhow::{Context, anyhow, bail};
use loongforge_actors::checkpoint::DATA;
use loongforge_core::checkpoint::{CheckpointError, MANIFEST, Manifest, StoredCheckpoints, latest, published};
use loongforge_core::config::{Device, OnChange, Products, RunConfig};
use loongforge_core::data::Fingerprint;
use loongforge_core::files::{step_name, steps_of};
use loongforge_core::message::StepId;
use loongforge_core::observe::Console;
use loongforge_core::store::{check_store_url, is_store_url};
use loongforge_core::text::counted;
use loongforge_torch::native::expect_products;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Ending of the large files.
const TENSORS: &str = ".safetensors";

/// The checks of a checkpoint before a run goes on from it.
pub struct Expect<'a> {
    /// The run's composed config.
    pub composed: &'a Value,
    /// The contents of its files are taken for what was written, without reading them.
    pub trust: bool,
    /// Other settings than those that it was written with are refused.
    pub strict: bool,
    /// `checkpoint.upload` is looked at as well.
    pub stored: bool,
}

/// Finds the checkpoint that `--resume` means; the one in memory if that is of a later step.
///
/// # Errors
/// Fails if there is no such checkpoint, it is damaged, or it is not of this run.
pub fn find_resume(
    wanted: Option<&ResumeFrom>,
    expect: &Expect<'_>,
    composition: &Composition,
    snapshots: Option<&Snapshots>,
    console: &Console,
) -> anyhow::Result<Option<Resume>> {
    let Some(wanted) = wanted else { return Ok(None) };
    let config = composition.config();
    let on_disk = match *wanted == ResumeFrom::Newest && expect.stored {
        true => fetch_newest(config, console)?,
        false => latest(&config.checkpoint.dir)?,
    };
    if let Some(resume) = from_memory(on_disk.as_deref(), snapshots, console) {
        return Ok(Some(resume));
    }
    let checkpoint = match wanted {
        ResumeFrom::Newest => {
            let found = on_disk.map_or_else(|| left_aside::beginning(config, console), |found| Ok(Some(found)))?;
            // A launcher may pass --resume from the first start on.
            let Some(found) = found else { return Ok(None) };
            found
        }
        ResumeFrom::Named(url) if is_store_url(url) => fetch_named(url, config, expect.stored, console)?,
        ResumeFrom::Named(path) => named(path, &config.checkpoint.dir)?,
    };
    let manifest = Manifest::read(&checkpoint).map_err(|error| match error {
        CheckpointError::Torn { .. } => anyhow!(error).context(way_around(&checkpoint)),
        _ => anyhow!(error),
    })?;
    let names_folder = matches!(wanted, ResumeFrom::Named(path) if !is_store_url(path));
    if names_folder && expect.stored && !is_own(&checkpoint, config) {
        let text = std::fs::read(checkpoint.join(MANIFEST)).ok();
        let name = checkpoint.display().to_string();
        uploads::expect_stored(config, &name, text.as_deref(), manifest.num_steps).map_err(of_store)?;
    }
    let verify = |is_wanted: fn(&str) -> bool| match expect.trust {
        true => Ok(()),
        false => manifest
            .verify_some(&checkpoint, is_wanted)
            .with_context(|| format!("{}, or this one without verification with --trust", way_around(&checkpoint))),
    };
    // What is read first is verified first: a damaged config.json is not another model.
    verify(|name| !name.ends_with(TENSORS))?;
    expect_same_run(&checkpoint, &manifest, expect, composition, console)?;
    left_aside::tell(&checkpoint, manifest.num_steps, config, console)?;
    verify(|name| name.ends_with(TENSORS))?;
    Ok(Some(Resume { checkpoint, first_step: StepId(manifest.num_steps), state: manifest.scheduler }))
}

/// Says how to resume although a checkpoint is damaged: from the newest one before it whose files are all there.
fn way_around(damaged: &Path) -> String {
    let name = damaged.file_name().unwrap_or_default().to_string_lossy();
    let before = steps_of(&name).zip(damaged.parent()).and_then(|(steps, dir)| {
        let all = published(dir).ok()?;
        all.into_iter().rev().find(|(found, path)| *found < steps && Manifest::read(path).is_ok())
    });
    let other = before.map_or_else(|| "PATH".to_owned(), |(_, path)| path.display().to_string());
    format!("cannot resume: use another checkpoint with --resume={other}")
}

/// Returns the checkpoint in memory where it is of a later step than that on the disk.
fn from_memory(on_disk: Option<&Path>, snapshots: Option<&Snapshots>, console: &Console) -> Option<Resume> {
    let newest = snapshots.map_or(Ok(None), Snapshots::newest).unwrap_or_else(|error| {
        console.line(&format!("warning: cannot resume from memory: {error}"));
        None
    });
    let (checkpoint, manifest) = newest?;
    let on_disk = on_disk.and_then(|path| Manifest::read(path).ok());
    if on_disk.is_some_and(|on_disk| on_disk.num_steps >= manifest.num_steps) {
        return None;
    }
    console.line(&format!("resuming from memory, after {}", counted(manifest.num_steps, "step")));
    let first_step = StepId(manifest.num_steps);
    Some(Resume { checkpoint, first_step, state: manifest.scheduler })
}

/// # Errors
/// The checkpoint is of another model, or was made with settings that cannot be changed.
fn expect_same_run(
    checkpoint: &Path,
    manifest: &Manifest,
    expect: &Expect<'_>,
    composition: &Composition,
    console: &Console,
) -> anyhow::Result<()> {
    let config = composition.config();
    let same = composition.folder().expect_same(&ModelFolder::open_plain(checkpoint)?);
    same.map_err(UsageError::of)?;
    let (theirs, ours) = (manifest.precision.as_str(), precision_name(config.train.precision));
    if theirs != ours {
        let path = checkpoint.display();
        let what = format!(
            "{path} has train.precision {theirs}, but this run has {ours}: resume with train.precision={theirs}"
        );
        return Err(UsageError(what).into());
    }
    expect_same_optimizer(checkpoint, manifest, config)?;
    expect_same_products(checkpoint, manifest, composition)?;
    expect_same_data(checkpoint, composition)?;
    expect_settings(checkpoint, manifest, expect, console)?;
    expect_same_trained(checkpoint, composition, console)?;
    if config.train.ema.is_some() && !has_averages(&manifest.config) {
        let path = checkpoint.display();
        return Err(UsageError(format!(
            "{path} has no averages of the weights: the run that made it had no train.ema. Resume with train.ema=null, or begin a \
             new run with the checkpoint's weights (model.load)"
        ))
        .into());
    }
    if config.train.ema.is_none() && has_averages(&manifest.config) {
        let path = checkpoint.display();
        console.line(&format!(
            "warning: {path} has averages of the weights, but this run has no train.ema: they are dropped, and checkpoints will \
             have none"
        ));
    }
    Ok(())
}

/// Returns the checkpoint that a folder means: itself, or the newest one of a run or of its folder of checkpoints. The name of a
/// checkpoint alone means that of the run, whose `checkpoints` these are.
///
/// # Errors
/// There is no such folder, or no checkpoint in it.
fn named(path: &str, checkpoints: &Path) -> anyhow::Result<PathBuf> {
    let is_step = steps_of(path).is_some() && !Path::new(path).is_dir();
    let folder = if is_step { checkpoints.join(path) } else { PathBuf::from(path) };
    let wrong = |what: &str| UsageError(format!("--resume={path}: {what}"));
    if is_step && !folder.is_dir() {
        return Err(wrong(&format!("{} has no such checkpoint", checkpoints.display())).into());
    }
    if !folder.is_dir() {
        return Err(wrong("there is no such folder").into());
    }
    if folder.join(MANIFEST).exists() {
        return Ok(folder);
    }
    let newest = |dir: PathBuf| latest(&dir).transpose();
    let found = [folder.join("checkpoints"), folder].into_iter().find_map(newest);
    found.ok_or_else(|| wrong("it is not a checkpoint of a run, and contains none"))?.map_err(Into::into)
}

/// The state of one optimizer is of no use to another.
///
/// # Errors
/// The checkpoint has that of another type.
fn expect_same_optimizer(checkpoint: &Path, manifest: &Manifest, config: &RunConfig) -> anyhow::Result<()> {
    // Checkpoints of versions that had one optimizer do not name it.
    let Some(theirs) = manifest.config["train"]["optimizer"]["type"].as_str() else { return Ok(()) };
    let ours = serde_json::to_value(config.train.optimizer.kind)?;
    let ours = ours.as_str().unwrap_or_default();
    if theirs != ours {
        let path = checkpoint.display();
        return Err(UsageError(format!(
            "{path} has the state of train.optimizer.type {theirs}, but this run has {ours}: resume with \
             train.optimizer.type={theirs}, or begin a run with model.load={path}"
        ))
        .into());
    }
    Ok(())
}

/// Returns the newest checkpoint that the run goes on from: the one that is here, or that of `checkpoint.upload`, fetched, where it is
/// newer.
fn fetch_newest(config: &RunConfig, console: &Console) -> anyhow::Result<Option<PathBuf>> {
    let dir = &config.checkpoint.dir;
    let Some(url) = config.checkpoint.upload.as_deref() else { return Ok(latest(dir)?) };
    let stored = uploads::fetch_left_aside(config).and_then(|()| uploads::newest_to_resume(config));
    // What the store says to be left aside is not the newest here either.
    let here = latest(dir)?;
    let steps = here.as_deref().and_then(|path| Manifest::read(path).ok()).map(|manifest| manifest.num_steps);
    let newest = match (stored, steps) {
        (Ok(newest), _) => newest,
        (Err(error), Some(_)) => {
            console.line(&format!("warning: checkpoint.upload cannot be read, and is not used: {error}"));
            None
        }
        // To begin anew would be another run.
        (Err(error), None) => return Err(anyhow!(error).context("cannot resume: checkpoint.upload cannot be read")),
    };
    let Some(num_steps) = newest.filter(|newest| steps.is_none_or(|steps| steps < *newest)) else { return Ok(here) };
    console.line(&format!("fetching the checkpoint of {} from {url}", counted(num_steps, "step")));
    Ok(Some(uploads::fetch(url, num_steps, dir)?))
}

/// Returns the checkpoint at `url`, or the newest one in the folder there, fetched into the run's folder of checkpoints. `stored`:
/// `checkpoint.upload` is looked at first, since what is fetched is the run's own from then on.
fn fetch_named(url: &str, config: &RunConfig, stored: bool, console: &Console) -> anyhow::Result<PathBuf> {
    let dir = &config.checkpoint.dir;
    check_store_url(url).map_err(|reason| UsageError(format!("--resume={url} {reason}")))?;
    let url = url.trim_end_matches('/');
    let named = url.rsplit_once('/').and_then(|(folder, name)| Some((folder, steps_of(name)?)));
    let (folder, num_steps) = match named {
        Some(named) => named,
        None => match StoredCheckpoints::new(url).newest_kept()? {
            Some(num_steps) => (url, num_steps),
            None => bail!("{url} has no checkpoint"),
        },
    };
    let (from, to) = (StoredCheckpoints::new(folder), dir.join(step_name(num_steps)));
    if to.exists() {
        // A run that begins again has fetched it before its scheduler died.
        if !stored && is_fetched(&to, &from, num_steps)? {
            return Ok(to);
        }
        let (url, dir, to) = (from.url(num_steps), dir.display(), to.display());
        bail!(
            "{url} would be fetched into {dir}, which already has {to}: resume that with --resume={to}, or remove it"
        );
    }
    // Without a manifest there is none to fetch, which is said below.
    if stored && let Some(text) = from.manifest(num_steps)? {
        uploads::expect_stored(config, &from.url(num_steps), Some(&text), num_steps).map_err(of_store)?;
    }
    console.line(&format!("fetching the checkpoint of {} from {folder}", counted(num_steps, "step")));
    Ok(uploads::fetch(folder, num_steps, dir)?)
}

/// Returns whether a folder is the checkpoint of so many steps in this store, by its manifest.
fn is_fetched(folder: &Path, from: &StoredCheckpoints, num_steps: u64) -> anyhow::Result<bool> {
    let there = from.manifest(num_steps)?;
    Ok(there.is_some() && std::fs::read(folder.join(MANIFEST)).ok() == there)
}

/// Makes a usage error of whatever is wrong with a store, unless the store does not answer.
fn of_store(error: Unfit) -> anyhow::Error {
    match error {
        Unfit::Store(_) => error.into(),
        _ => UsageError(error.to_string()).into(),
    }
}

/// Other products than the checkpoint's make other bits.
fn expect_same_products(checkpoint: &Path, manifest: &Manifest, composition: &Composition) -> anyhow::Result<()> {
    let (asked, recorded) = (composition.config().run.products, manifest.scheduler.products);
    if composition.config().device != Device::Cpu || recorded == Products::Auto {
        return Ok(());
    }
    if asked == Products::Auto {
        return expect_products(recorded).map_err(|error| anyhow!("{}: {error}", checkpoint.display()));
    }
    if asked != recorded {
        let [asked, recorded] = [asked, recorded].map(Products::name);
        let path = checkpoint.display();
        tracing::warn!(
            "run.products is {asked}, but {path} was trained with {recorded}: the continued run is not bit-identical"
        );
    }
    Ok(())
}

/// A position in the stream means the same sample only while the files are the same.
fn expect_same_data(checkpoint: &Path, composition: &Composition) -> anyhow::Result<()> {
    let config = composition.config();
    let path = checkpoint.join(DATA);
    if !path.exists() {
        return Ok(());
    }
    let named = || path.display().to_string();
    let then: Fingerprint = serde_json::from_slice(&std::fs::read(&path).with_context(named)?).with_context(named)?;
    let Some(difference) = then.difference(&data_fingerprint(config, composition.folder())?) else { return Ok(()) };
    let what = format!("the data changed since {}: {difference}", checkpoint.display());
    match config.data.on_change {
        OnChange::Refuse => {
            let help = "to continue at the same position of the new order, set data.on_change=accept";
            return Err(UsageError(format!("{what}; {help}")).into());
        }
        OnChange::Accept => tracing::warn!("{what}"),
    }
    Ok(())
}

/// Returns whether a checkpoint, by the config that it was written with, has averages of weights.
fn has_averages(then: &Value) -> bool {
    then.pointer("/train/ema").is_some_and(|ema| !ema.is_null())
}

/// Tells how settings differ from those that the checkpoint was written with.
fn expect_settings(
    checkpoint: &Path,
    manifest: &Manifest,
    expect: &Expect<'_>,
    console: &Console,
) -> anyhow::Result<()> {
    let differences = differences(&manifest.config, expect.composed);
    if differences.is_empty() {
        return Ok(());
    }
    let what = format!("settings differ from those of {}:", checkpoint.display());
    if expect.strict {
        return Err(UsageError(format!("--strict: {what}\n  {}", differences.join("\n  "))).into());
    }
    console.line(&what);
    differences.iter().for_each(|line| console.line(&format!("  {line}")));
    Ok(())
}

/// Refuses a folder or a store that has checkpoints.
///
/// # Errors
/// Fails if one of them has, or cannot be read.
pub fn expect_no_run(config: &RunConfig) -> anyhow::Result<()> {
    let Some((_, former)) = published(&config.checkpoint.dir)?.pop() else {
        return uploads::expect_none_stored(config).map_err(of_store);
    };
    let former = former.display();
    let what = format!(
        "run.dir already holds a run ({former}): resume it with --resume, start over with --overwrite, or set run.name"
    );
    Err(UsageError(what).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::load_text;
    use loongforge_core::files::LeftAside;
    use serde_json::json;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_checkpoint_that_was_fetched_is_known_by_its_manifest() {
        let (dir, stored) = (tempfile::tempdir().unwrap(), StoredCheckpoints::new("memory:///fetched"));
        let [same, other] = [("same", 4), ("other", 5)].map(|(name, num_steps)| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join(MANIFEST), Manifest::of_files(num_steps, BTreeMap::new()).to_text()).unwrap();
            path
        });
        stored.send(&same, &mut BTreeSet::new()).unwrap();
        let gone = dir.path().join("gone");
        assert!(is_fetched(&same, &stored, 4).unwrap());
        assert!(!is_fetched(&other, &stored, 4).unwrap() && !is_fetched(&gone, &stored, 4).unwrap());
        assert!(!is_fetched(&gone, &stored, 6).unwrap());
    }

    #[test]
    fn a_checkpoint_of_the_run_can_be_named_by_its_step() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(step_name(8));
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join(MANIFEST), Manifest::of_files(8, BTreeMap::new()).to_text()).unwrap();
        assert_eq!(named("step-00000008", dir.path()).unwrap(), path);
        let error = |name: &str| named(name, dir.path()).unwrap_err().to_string();
        assert!(error("step-00000009").ends_with("has no such checkpoint"), "{}", error("step-00000009"));
        assert!(error("gone").ends_with("there is no such folder"), "{}", error("gone"));
    }

    #[test]
    fn the_error_of_a_damaged_checkpoint_names_the_whole_one_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second, third] = [2, 4, 6].map(|num_steps| {
            let path = dir.path().join(step_name(num_steps));
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join(MANIFEST), Manifest::of_files(num_steps, BTreeMap::new()).to_text()).unwrap();
            path
        });
        std::fs::remove_file(second.join(MANIFEST)).unwrap();
        let told = way_around(&third);
        assert!(told.ends_with(&format!("--resume={}", first.display())), "{told}");
        assert!(way_around(&first).ends_with("--resume=PATH"), "{}", way_around(&first));
    }

    /// The run had taken five steps here; another machine resumed it after two, and has taken four.
    #[test]
    fn a_run_that_was_resumed_on_another_machine_is_not_resumed_from_what_that_one_left_aside() {
        const YAML: &str = include_str!("../../../configs/sft_text.yaml");
        let [here, there] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.checkpoint.dir = here.path().to_owned();
        config.checkpoint.upload = Some("memory:///machines".to_owned());
        let stored = StoredCheckpoints::new("memory:///machines");
        let save = |dir: &Path, num_steps: u64| {
            let path = dir.join(step_name(num_steps));
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join(MANIFEST), Manifest::of_files(num_steps, BTreeMap::new()).to_text()).unwrap();
            stored.send(&path, &mut BTreeSet::new()).unwrap();
        };
        [2, 5].into_iter().for_each(|num_steps| save(here.path(), num_steps));
        let newest = || fetch_newest(&config, &Console::stderr()).unwrap();
        assert_eq!(newest(), Some(here.path().join(step_name(5))));
        let left = LeftAside::of(here.path(), here.path().join(step_name(2)), Some(2)).unwrap();
        stored.set_left_aside(Some(serde_json::to_vec(&left).unwrap())).unwrap();
        assert_eq!(newest(), Some(here.path().join(step_name(2))));
        save(there.path(), 4);
        assert_eq!(newest(), Some(here.path().join(step_name(4))));
        assert_eq!(LeftAside::read(here.path()).unwrap(), Some(left.clone()));
        // A later record of another machine holds, and an earlier one does not.
        let none = LeftAside { checkpoints: BTreeMap::new(), ..left.clone() };
        for (noted_at, expected) in [(8, 5), (7, 5)] {
            let other = if noted_at == 8 { &none } else { &left };
            let other = LeftAside { noted_at, ..other.clone() };
            stored.set_left_aside(Some(serde_json::to_vec(&other).unwrap())).unwrap();
            assert_eq!(newest(), Some(here.path().join(step_name(expected))));
        }
    }

    #[test]
    fn a_checkpoint_has_averages_where_its_run_kept_some() {
        assert!(has_averages(&json!({"train": {"ema": 0.99}})));
        assert!(!has_averages(&json!({"train": {"ema": null}})) && !has_averages(&json!({})));
    }
}
