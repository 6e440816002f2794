//! Describes how many items of a run have features in the folders of its encoder pools. The weights of a large tower are not read, so that
//! folders of towers with other weights cannot be told apart: that with most of the items counts.

use super::data::num_read;
use super::{Asked, Preflight, PreflightError};
use loongforge_core::config::{Device, EncoderPool, Placement, Products, RunConfig};
use loongforge_core::data::tools::{default_jobs, for_each_ordered};
use loongforge_core::data::{Dataset, Media, ProcessorOptions};
use loongforge_core::files::if_there;
use loongforge_core::message::{PoolName, Tower};
use loongforge_core::text::{grouped, plural};
use loongforge_torch::device::settle;
use loongforge_torch::engine::{Key, KeyedItem, how_made, stem_of_features, stored_items};
use loongforge_torch::native::faster_products;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Samples that are looked at, and for how long.
const MOST: u64 = 200;
const TIME: Duration = Duration::from_secs(10);
/// Parameters of a tower whose weights are read at most.
const MOST_PARAMETERS: u64 = 1 << 28;
/// Hexadecimal digits of the hash in a folder's name.
const HASH_DIGITS: usize = 32;

/// The items of the first samples that the run reads.
#[derive(Default)]
struct Looked {
    samples: u64,
    items: BTreeMap<Tower, HashSet<Key>>,
}

/// The items of one tower that have features among `all`, the different ones of the first samples.
struct Found<'a> {
    pool: PoolName,
    tower: Tower,
    all: u64,
    found: u64,
    /// The folder of those that are found.
    folder: &'a str,
    /// The folder is of the run's weights.
    is_sure: bool,
    /// Samples that were looked at, and those of an epoch.
    samples: [u64; 2],
    /// The pool has no encoders.
    reads: bool,
}

impl Preflight<'_> {
    /// Returns a line for each tower of a pool with a `cache_dir`: how many of its items have features there, and how many are to be
    /// computed. Of many samples only the first that the run reads are looked at. Encoders read what is made as they would make it alone,
    /// which is known if this machine's device is `asked` for.
    ///
    /// # Errors
    /// The data cannot be opened.
    pub fn cached(&self, asked: Asked) -> Result<Vec<String>, PreflightError> {
        let config = self.config;
        let mut pools = config.pools.encoders(self.folder.config.towers.set());
        pools.retain(|(_, pool, _)| pool.cache_dir.is_some());
        if pools.is_empty() {
            return Ok(Vec::new());
        }
        let maker = self.folder.maker(&ProcessorOptions::of_run(config, &config.data), self.decoder.clone())?;
        let dataset = Dataset::open(&config.data, maker, config.run.seed)?;
        let num_samples = num_read(config, dataset.len() as u64).min(dataset.len() as u64);
        let looked = look(&dataset, num_samples.min(MOST));
        let mut lines = Vec::new();
        for (name, pool, towers) in pools {
            let Some(dir) = &pool.cache_dir else { continue };
            let how = (asked.device && !pool.reads()).then(|| made_by(config, name, pool));
            for (tower, items) in looked.items.iter().filter(|(tower, _)| towers.contains(**tower)) {
                // What is wrong with weights is said elsewhere.
                let stem = stem_of_features(config, &self.folder.config, *tower, MOST_PARAMETERS).ok().flatten();
                match kept(dir, *tower, [stem.as_deref(), how.as_deref()], pool.reads()) {
                    Ok(folders) => {
                        let count = |kept: &HashSet<Key>| items.intersection(kept).count() as u64;
                        let counts = folders.iter().map(|(folder, kept)| (count(kept), folder.as_str()));
                        let (found, folder) = counts.max().unwrap_or((0, ""));
                        let (all, samples) = (items.len() as u64, [looked.samples, num_samples]);
                        let (tower, is_sure, reads) = (*tower, stem.is_some(), pool.reads());
                        lines.push(Found { pool: name, tower, all, found, folder, is_sure, samples, reads }.line());
                    }
                    Err(error) => lines.push(format!("warning: pools.{name}.cache_dir: {}: {error}", dir.display())),
                }
            }
        }
        Ok(lines)
    }
}

impl Found<'_> {
    fn line(&self) -> String {
        let Self { pool, tower, all, found, folder, is_sure, samples: [seen, whole], reads } = self;
        let of_others = if *is_sure { "" } else { ", if these are of the run's weights" };
        let missing = all - found;
        let (of, estimate) = match seen < whole {
            true => (
                format!(" in the first {} of {} samples", grouped(*seen), grouped(*whole)),
                format!("; of all samples about {}", grouped(estimate(missing, *seen, *whole))),
            ),
            false => (String::new(), String::new()),
        };
        let items = format!("{} of the {tower} tower{of}", plural("item", *all));
        if missing == 0 {
            let all = grouped(*all);
            return format!("pools.{pool}.cache_dir: all {all} {items} have features in {folder}{of_others}");
        }
        let there = match *found {
            0 => String::new(),
            found => format!(", {} have features in {folder}{of_others}", grouped(found)),
        };
        let (missing, all) = (grouped(missing), grouped(*all));
        match *reads {
            true => format!(
                "warning: pools.{pool}.replicas is 0, and {missing} of {all} {items} have no features in its cache_dir{there}\
                 {estimate}: the run would end at the first of them; `loongforge data encode CONFIG` computes them"
            ),
            false => format!("pools.{pool}.cache_dir: {missing} of {all} {items} are to be computed{there}{estimate}"),
        }
    }
}

/// Returns how many of all samples' items are missing if the first `seen` ones, which lack `missing`, are like the others.
fn estimate(missing: u64, seen: u64, whole: u64) -> u64 {
    (u128::from(missing) * u128::from(whole) / u128::from(seen.max(1))) as u64
}

/// Reads the first samples of the run, as many as there is time for.
fn look(dataset: &Dataset, most: u64) -> Looked {
    let start = Instant::now();
    let mut looked = Looked::default();
    let items = |position| {
        let sample = dataset.sample(position).ok()?;
        let items = sample.meta.items.iter().zip(&sample.media);
        let key = |media: &Media| KeyedItem::new(media.tower, media.grid, &media.pixels).key;
        Some(items.map(|(meta, media)| (meta.tower, key(media))).collect::<Vec<_>>())
    };
    // What there is no time for is estimated.
    let _ = for_each_ordered(default_jobs(), 0..most, items, |_, found: Option<Vec<(Tower, Key)>>| {
        looked.samples += 1;
        for (tower, key) in found.into_iter().flatten() {
            looked.items.entry(tower).or_default().insert(key);
        }
        if start.elapsed() < TIME { Ok(()) } else { Err(()) }
    });
    looked
}

/// Returns what the names of the folders that a pool's encoders read end with.
fn made_by(config: &RunConfig, name: PoolName, pool: &EncoderPool) -> String {
    let (device, actor) = match config.pools.placement {
        Placement::Separate => (pool.device.unwrap_or(config.device), name),
        Placement::Colocated => (config.device, PoolName::FOUNDATION),
    };
    // As the run settles them.
    let products = match config.run.products {
        _ if config.device != Device::Cpu => Products::Auto,
        Products::Auto => faster_products(),
        products => products,
    };
    how_made(matches!(settle(device).0, Device::Cuda(_)), products, config.threads_for(actor))
}

/// Returns the items that folders of a tower in `dir` have features of, by the folder's name, which begins with `stem` and ends with `how`
/// if these are known. A pool without encoders reads those of all folders with the same hash: they are `joined`, by that part of the name.
fn kept(
    dir: &Path,
    tower: Tower,
    [stem, how]: [Option<&str>; 2],
    joined: bool,
) -> io::Result<BTreeMap<String, HashSet<Key>>> {
    let mut found: BTreeMap<String, HashSet<Key>> = BTreeMap::new();
    for entry in if_there(fs::read_dir(dir))?.into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let hash = name.strip_prefix(tower.name()).and_then(|rest| rest.strip_prefix('-'));
        let Some(hash) = hash.and_then(|rest| rest.split('-').next()) else { continue };
        let own = format!("{tower}-{hash}");
        let is_own = stem.map_or(hash.len() == HASH_DIGITS, |stem| stem == own);
        let is_so_made = how.is_none_or(|how| name[own.len()..].strip_prefix('-') == Some(how));
        if is_own && is_so_made && entry.path().is_dir() {
            let group = if joined { own } else { name.clone() };
            found.entry(group).or_default().extend(stored_items(&entry.path())?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_of_all_samples_or_estimated() {
        let found = |found, samples, reads: bool| {
            let folder = "vae-0a-cpu-plain-1";
            let (pool, tower, all, is_sure) = (PoolName::ENCODER, Tower::Vae, 200, !reads);
            Found { pool, tower, all, found, folder, is_sure, samples, reads }.line()
        };
        let cases = [
            (
                200,
                [96, 96],
                "pools.encoder.cache_dir: all 200 items of the vae tower have features in vae-0a-cpu-plain-1",
            ),
            (0, [96, 96], "pools.encoder.cache_dir: 200 of 200 items of the vae tower are to be computed"),
            (
                150,
                [200, 80_000],
                "pools.encoder.cache_dir: 50 of 200 items of the vae tower in the first 200 of 80,000 samples are to be computed, \
                 150 have features in vae-0a-cpu-plain-1; of all samples about 20,000",
            ),
        ];
        for (number, samples, expected) in cases {
            assert_eq!(found(number, samples, false), expected);
        }
        let reads = found(199, [96, 96], true);
        let begins = "warning: pools.encoder.replicas is 0, and 1 of 200 items of the vae tower have no features";
        assert!(reads.starts_with(begins) && reads.contains("`loongforge data encode CONFIG`"), "{reads}");
        assert!(reads.contains("vae-0a-cpu-plain-1, if these are of the run's weights"), "{reads}");
        assert_eq!(estimate(0, 0, 10), 0);
    }

    #[test]
    fn folders_of_other_towers_and_files_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let hash = "0123456789abcdef".repeat(2);
        for (tower, threads) in [("vae", 1), ("vae", 2), ("text", 1)] {
            fs::create_dir(dir.path().join(format!("{tower}-{hash}-cpu-plain-{threads}"))).unwrap();
        }
        fs::create_dir(dir.path().join("vae-notes")).unwrap();
        fs::write(dir.path().join(format!("vae-{hash}")), "").unwrap();
        let own = format!("vae-{hash}");
        let found = |known: [Option<&str>; 2], joined| kept(dir.path(), Tower::Vae, known, joined).unwrap();
        assert_eq!((found([None; 2], false).len(), found([Some(own.as_str()), None], false).len()), (2, 2));
        let of_two_threads = found([None, Some("cpu-plain-2")], false);
        assert_eq!(of_two_threads.into_keys().collect::<Vec<_>>(), [format!("{own}-cpu-plain-2")]);
        assert!(found([None, Some("cuda-plain-2")], false).is_empty());
        assert!(found([Some("vae-of-other-weights"), None], false).is_empty());
        assert_eq!(found([None; 2], true).into_keys().collect::<Vec<_>>(), [own]);
        assert!(kept(&dir.path().join("gone"), Tower::Vae, [None; 2], false).unwrap().is_empty());
    }
}
