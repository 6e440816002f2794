//! Fills the `cache_dir` of a run's encoder pools, without the run.
//!
//! ```text
//! visits ─▶ feeders: decode, cut into items, drop what was seen ─▶ encoders of the item's pool ─▶ cache_dir
//! ```

mod encoders;
mod feeders;
mod totals;
mod visits;

use self::encoders::Encoders;
pub use self::totals::{EncodeError, Encoded, TowerTotals};
use self::visits::{Visit, Visits};
use super::compose::Composition;
use crate::eval::held_out_sets;
use crate::preflight::expect_weights;
use loongforge_core::config::RunConfig;
use loongforge_core::data::tools::Share;
use loongforge_core::data::{Dataset, MediaDecoder, ProcessorOptions};
use loongforge_core::engine::WithHeldOut;
use loongforge_core::message::{PoolName, Tower, TowerSet};
use loongforge_torch::engine::check_engines;
use std::sync::Arc;

/// The pools of a run that have a folder for features.
pub struct EncodeJob {
    config: RunConfig,
    composition: Composition,
    pools: Vec<(PoolName, TowerSet)>,
    samples: WithHeldOut,
    visits: Visits,
}

impl EncodeJob {
    /// Returns the job of a run's config.
    ///
    /// # Errors
    /// There is no pool with a folder, the run would be refused for its layout or weights, or the data cannot be opened.
    pub fn new(composition: Composition, decoder: &Arc<dyn MediaDecoder>, share: Share) -> Result<Self, EncodeError> {
        let (mut config, folder) = (composition.config().clone(), composition.folder());
        config.run.products = composition.products();
        let towers = folder.config.towers.set();
        let all = config.pools.encoders(towers);
        let first = all.first().map(|(name, ..)| *name).ok_or(EncodeError::NoTowers)?;
        let pools: Vec<_> = all.iter().filter(|(_, pool, _)| pool.cache_dir.is_some()).collect();
        let pools: Vec<(PoolName, TowerSet)> = pools.into_iter().map(|(name, _, set)| (*name, *set)).collect();
        if pools.is_empty() {
            return Err(EncodeError::NoFolder(first));
        }
        check_engines(&config, &folder.config).map_err(EncodeError::Refused)?;
        expect_weights(&config, folder)?;
        let maker = folder.maker(&ProcessorOptions::of_run(&config, &config.data), decoder.clone())?;
        let train = Dataset::open(&config.data, maker, config.run.seed)?;
        let sets = held_out_sets::open_during(&config, folder, Some(decoder))?;
        let evaluation = held_out_sets::spec(&config, folder, &sets);
        let visits = Visits::new(&config, train.len() as u64, evaluation.as_ref(), share);
        let sets = sets.0.into_iter().map(|set| set.dataset).chain(sets.1).collect();
        Ok(Self { config, samples: WithHeldOut { train, sets }, visits, pools, composition })
    }

    /// Returns the greatest number of visits.
    pub fn num_visits(&self) -> u64 {
        self.visits.len()
    }

    /// Returns the lines on what is not encoded.
    pub fn notes(&self) -> Vec<String> {
        let all = self.config.pools.encoders(self.composition.folder().config.towers.set());
        let others = all.into_iter().filter(|(name, ..)| self.pools.iter().all(|(own, _)| own != name));
        let note = |(name, _, towers): (PoolName, _, TowerSet)| {
            let towers: Vec<&str> = towers.iter().map(Tower::name).collect();
            format!("the pool `{name}` ({}) has no cache_dir and is skipped", towers.join(", "))
        };
        others.map(note).chain(self.visits.note()).collect()
    }

    /// Encodes what is missing, on so many threads that read samples. `done` is called after each visit.
    ///
    /// # Errors
    /// An encoder cannot be built, or an item not be encoded or written; or no sample can be used.
    pub fn run(self, feeders: usize, done: impl Fn(&Visit) + Sync) -> Result<Encoded, EncodeError> {
        let Self { config, composition, pools, samples, visits } = self;
        let model = composition.folder().config.clone();
        let (encoders, queues) = Encoders::new(&config, &model, &pools);
        let (fed, towers) = std::thread::scope(|scope| {
            let encoders = encoders.start(scope);
            // The queues end with the feeders.
            let fed = feeders::feed(&samples, &visits, queues, feeders, &done);
            (fed, encoders.join())
        });
        let towers = towers?;
        match fed.bad.first() {
            Some(first) if fed.visits == [0, 0] => Err(EncodeError::AllBad(first.clone())),
            _ => Ok(Encoded { towers, visits: fed.visits, bad: fed.bad }),
        }
    }
}
