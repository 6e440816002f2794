//! Threads that encode: as many of a pool as it has replicas, one at least.

use super::feeders::Queues;
use super::totals::{EncodeError, TowerTotals};
use loongforge_core::config::RunConfig;
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, PoolName, Tower, TowerSet};
use loongforge_torch::engine::{EngineSpec, FeatureEncoder, KeyedItem, build_feature_encoder};
use loongforge_torch::model::ModelConfig;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Features that wait in memory for longer are written.
const FLUSH: Duration = Duration::from_secs(20);

/// Encoders that are to be started.
pub struct Encoders(Vec<(EngineSpec, flume::Receiver<KeyedItem>)>);

/// Encoders that work.
pub struct Working<'scope>(Vec<(PoolName, ScopedJoinHandle<'scope, Result<Totals, EngineError>>)>);

type Totals = BTreeMap<Tower, TowerTotals>;

impl Encoders {
    /// Makes the encoders of these pools, and the queues of items to them.
    pub fn new(config: &RunConfig, model: &ModelConfig, pools: &[(PoolName, TowerSet)]) -> (Self, Queues) {
        let (mut encoders, mut queues) = (Vec::new(), Queues::new());
        for (name, towers) in pools {
            let pool = config.pools.encoder_pool(*name).expect("a pool of the config");
            let replicas = pool.replicas.max(1);
            let (sender, receiver) = flume::bounded(2 * replicas);
            queues.extend(towers.iter().map(|tower| (tower, sender.clone())));
            for index in 0..replicas as u32 {
                let spec = EngineSpec {
                    config: config.clone(),
                    model: model.clone(),
                    me: ActorId::encoder_of(*name, index),
                    rendezvous: PathBuf::new(),
                    local_rank: None,
                    place: None,
                    resume: None,
                    frozen_from: None,
                    reads: false,
                    stop_token_ids: Vec::new(),
                    samples: None,
                };
                encoders.push((spec, receiver.clone()));
            }
        }
        (Self(encoders), queues)
    }

    /// Starts a thread for each encoder.
    pub fn start<'scope>(self, scope: &'scope Scope<'scope, '_>) -> Working<'scope> {
        let start = |(spec, items): (EngineSpec, flume::Receiver<KeyedItem>)| {
            (spec.me.pool, scope.spawn(move || work(&spec, &items)))
        };
        Working(self.0.into_iter().map(start).collect())
    }
}

impl Working<'_> {
    /// Waits for all encoders, and returns what they have done together.
    ///
    /// # Errors
    /// Fails if an encoder has failed.
    pub fn join(self) -> Result<Totals, EncodeError> {
        let mut all = Totals::new();
        let mut failed = None;
        for (pool, handle) in self.0 {
            // Operators that fail panic, such as for lack of memory.
            let ended = handle.join().unwrap_or_else(|_| Err("it panicked, for the reason printed above".into()));
            match ended {
                Ok(totals) => {
                    for (tower, own) in totals {
                        let total = all.entry(tower).or_default();
                        total.items += own.items;
                        total.found += own.found;
                        total.bytes += own.bytes;
                        total.folder = own.folder;
                    }
                }
                Err(source) => failed = failed.or(Some(EncodeError::Encoder { pool, source })),
            }
        }
        failed.map_or(Ok(all), Err)
    }
}

fn work(spec: &EngineSpec, items: &flume::Receiver<KeyedItem>) -> Result<Totals, EngineError> {
    let mut encoder = build_feature_encoder(spec)?;
    let empty = |(tower, folder)| (tower, TowerTotals { folder, ..TowerTotals::default() });
    let mut totals: Totals = encoder.folders().map(empty).collect();
    let mut flushed = Instant::now();
    for item in items {
        encode(&mut encoder, &item, &mut totals)?;
        if flushed.elapsed() > FLUSH {
            encoder.flush()?;
            flushed = Instant::now();
        }
    }
    encoder.flush()?;
    Ok(totals)
}

fn encode(encoder: &mut FeatureEncoder, item: &KeyedItem, totals: &mut Totals) -> Result<(), EngineError> {
    let total = totals.entry(item.tower).or_default();
    total.items += 1;
    match encoder.encode(item)? {
        Some(bytes) => total.bytes += bytes,
        None => total.found += 1,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_that_panics_is_an_error_of_its_pool() {
        let ended = std::thread::scope(|scope| {
            let handle = scope.spawn(|| -> Result<Totals, EngineError> { panic!("out of memory") });
            Working(vec![(PoolName::ENCODER, handle)]).join()
        });
        let error = ended.unwrap_err().to_string();
        assert!(error.starts_with("encoder of the pool `encoder`: it panicked"), "{error}");
    }
}
