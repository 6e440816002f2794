//! Describes whether the folders that a run writes into may be written, as far as that is known before they are there.

use loongforge_core::config::{OffloadTo, RunConfig};
use loongforge_core::message::{Tower, TowerSet};
use rustix::fs::{Access, access};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Why a folder cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{key}: cannot write into {}: {}: {source}; name a folder that you may write into", dir.display(), at.display())]
pub struct FolderProblem {
    key: String,
    dir: PathBuf,
    /// The folder itself, or the deepest of those above it that is there.
    at: PathBuf,
    source: io::Error,
}

/// Refuses folders of a run that it could not make, or not write into. `towers`: those of its model.
///
/// # Errors
/// The first of them.
pub fn check(config: &RunConfig, towers: TowerSet) -> Result<(), FolderProblem> {
    let (wandb, mlflow) = (config.log.wandb.as_ref(), config.log.mlflow.as_ref());
    let offload = config.train.optimizer.offload.as_ref().filter(|offload| offload.to == OffloadTo::Disk);
    let own = [
        ("run.dir", Some(&config.run.dir)),
        ("checkpoint.dir", Some(&config.checkpoint.dir)),
        ("log.wandb.dir", wandb.and_then(|it| it.dir.as_ref())),
        // Of a store that is there, the folder of the experiment counts.
        ("log.mlflow.dir", mlflow.and_then(|it| it.dir.as_ref()).filter(|dir| !dir.is_dir())),
        ("train.optimizer.offload.path", offload.and_then(|offload| offload.path.as_ref())),
    ];
    let own = own.into_iter().map(|(key, dir)| (key.to_owned(), dir));
    // Who only reads features writes none.
    let writing = config.pools.encoders(towers).into_iter().filter(|(_, pool, _)| !pool.reads());
    // Where all features may be there already, none need be written.
    let caches = writing.filter_map(|(name, pool, set)| {
        let dir = pool.cache_dir.as_ref()?;
        without_folder(dir, set).map(|_| (format!("pools.{name}.cache_dir"), Some(dir)))
    });
    own.chain(caches).filter_map(|(key, dir)| Some((key, dir?))).try_for_each(|(key, dir)| {
        let Some(at) = deepest(dir) else { return Ok(()) };
        let asked = match at.is_dir() {
            true => access(at, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from),
            false => Err(ErrorKind::NotADirectory.into()),
        };
        asked.map_err(|source| FolderProblem { key, dir: dir.clone(), at: at.to_owned(), source })
    })
}

/// Returns a line for each pool that reads features from a folder in which there are none of one of its towers.
pub fn without_features(config: &RunConfig, towers: TowerSet) -> Vec<String> {
    let mut lines = Vec::new();
    // What a store has is fetched when the run begins.
    let reading = config.pools.encoders(towers).into_iter().filter(|(_, pool, _)| pool.reads());
    for (name, pool, set) in reading.filter(|(_, pool, _)| pool.cache_store.is_none()) {
        let Some(dir) = &pool.cache_dir else { continue };
        if let Some(tower) = without_folder(dir, set) {
            let dir = dir.display();
            lines.push(format!(
                "warning: pools.{name}.replicas is 0, and {dir} has no features of the {tower} tower: the run would end at its \
                 first sample with one; `loongforge data encode CONFIG` computes them"
            ));
        }
    }
    lines
}

/// Returns the first of these towers of which a folder of features has none, whatever their weights.
fn without_folder(dir: &Path, towers: TowerSet) -> Option<Tower> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let found: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let is_missing = |tower: &Tower| !found.iter().any(|folder| folder.starts_with(&format!("{tower}-")));
    towers.iter().find(is_missing)
}

/// Returns the deepest part of a path that is there.
fn deepest(dir: &Path) -> Option<&Path> {
    let mut parts = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    parts.find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_path_that_is_there_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(deepest(&dir.path().join("a/b")), Some(dir.path()));
        assert_eq!(deepest(&file.join("below")), Some(file.as_path()));
        assert_eq!(deepest(Path::new("no-such-folder/below")), Some(Path::new(".")));
    }

    #[test]
    fn folders_of_features_are_known_by_their_towers() {
        let dir = tempfile::tempdir().unwrap();
        let both = [Tower::Vision, Tower::Text].into_iter().collect::<TowerSet>();
        assert_eq!(without_folder(&dir.path().join("gone"), both), Some(Tower::Vision));
        std::fs::create_dir(dir.path().join("vision-0a1b")).unwrap();
        assert_eq!(without_folder(dir.path(), both), Some(Tower::Text));
        std::fs::create_dir(dir.path().join("text-0a1b")).unwrap();
        assert_eq!(without_folder(dir.path(), both), None);
    }
}
