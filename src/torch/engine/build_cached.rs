//! Builds the engines that encode into a `cache_dir` and those that read from it, from the run's configuration.

use super::actor_spec::{EngineSpec, OwnPool, build_state, device_of, own_pool, policy, settle, settle_thread};
use super::cache_folder::CacheFolder;
use super::cache_name::CacheName;
use super::elastic::Membership;
use super::encoder::{EncoderWorker, TowerModels};
use super::feature_encoder::FeatureEncoder;
use super::feature_reader::FeatureReader;
use super::pool_specs::{encoder_specs, tower_part};
use super::stored_towers::StoredTowers;
use super::weight_budget::encoder_within_budget;
use crate::comm::Mesh;
use crate::model::{ModelConfig, ModelTower, Towers};
use crate::params::{ParamSpec, ParamStore, Role, Sharding};
use crate::train::{Lanes, TrainState};
use loongforge_core::config::{Device, EncoderPool, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{PoolName, Replica, Tower, TowerPart};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Returns the folders of what the towers of a pool make, in `dir`.
pub(super) fn cache_folders(
    spec: &EngineSpec,
    own: &OwnPool<'_>,
    params: &ParamStore,
    dir: &Path,
) -> Result<BTreeMap<Tower, CacheFolder>, EngineError> {
    let key = format!("pools.{}.cache_dir", own.name);
    let specs = encoder_specs(&spec.config, &own.towers, &spec.model.tree)?;
    expect_whole(own.name, own.pool, &trained_parts(&spec.config, &own.towers, &specs))?;
    let how = (params.flat().device(), spec.config.run.products);
    let open = |it: &ModelTower| {
        let names = params.names().filter(|name| is_of(&own.towers, it, name)).collect();
        let name = CacheName::new(it, params.flat().kind(), how, names, |name| Ok(params.value(params.id(name))))?;
        let folder = CacheFolder::open(dir, &name.to_string(), own.pool.cache_store.as_deref())
            .map_err(|error| format!("{key}: {}: {error}", dir.display()))?;
        Ok((it.tower, folder))
    };
    own.towers.iter().map(open).collect()
}

fn is_of(towers: &Towers, it: &ModelTower, name: &str) -> bool {
    towers.part_of(name).is_some_and(|(tower, _)| tower == it.tower)
}

/// Returns the keys of the parts that have trained parameters among these.
pub(super) fn trained_parts(config: &RunConfig, towers: &Towers, specs: &[ParamSpec]) -> Vec<&'static str> {
    let trained = specs.iter().filter(|spec| spec.role == Role::Trained);
    let key = |spec: &ParamSpec| {
        let name = spec.pieces.first().map_or(spec.name.as_str(), |piece| piece.name.as_str());
        tower_part(config, towers, name).0
    };
    trained.map(key).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Features can be kept of towers that do not change, with their projectors, and that one actor has as a whole.
///
/// # Errors
/// Parts of the pool are `trained`, or its parameters are split.
pub(super) fn expect_whole(name: PoolName, pool: &EncoderPool, trained: &[&str]) -> Result<(), EngineError> {
    let key = format!("pools.{name}.cache_dir");
    if !trained.is_empty() {
        let (parts, freeze) = (trained.join(" and "), trained.iter().map(|part| format!("{part}.freeze=true")));
        let (is, freeze) = (if trained.len() > 1 { "are" } else { "is" }, freeze.collect::<Vec<_>>().join(" "));
        return Err(format!(
            "{key}: features change with every step, since {parts} {is} trained; leave it out, or set {freeze} \
             (features are kept as the projector makes them)"
        )
        .into());
    }
    if pool.tensor_parallel > 1 || pool.zero > 2 {
        return Err(format!(
            "{key}: the pool's actors must have whole parameters: set tensor_parallel to 1 and zero below 3"
        )
        .into());
    }
    Ok(())
}

fn cache_dir<'a>(own: &OwnPool<'a>) -> Result<&'a PathBuf, EngineError> {
    let missing = || format!("pools.{}.cache_dir is not set: there is no folder of features", own.name);
    own.pool.cache_dir.as_ref().ok_or_else(|| missing().into())
}

/// Returns what the names of folders with the features of a frozen tower begin with in a run that begins now: `TOWER-HASH`. `None`: the
/// tower has more than `most` parameters, which are not read.
///
/// # Errors
/// The model has no such tower, or its weights are missing or of another model.
pub fn stem_of_features(
    config: &RunConfig,
    model: &ModelConfig,
    tower: Tower,
    most: u64,
) -> Result<Option<String>, EngineError> {
    let towers = model.towers.only([tower].into_iter().collect());
    let it = towers.iter().next().ok_or_else(|| format!("the model has no {tower} tower"))?;
    let specs = encoder_specs(config, &towers, &model.tree)?;
    if specs.iter().map(|spec| spec.num_elements() as u64).sum::<u64>() > most {
        return Ok(None);
    }
    let stored = StoredTowers::new(config, None, specs)?;
    let value = |name: &str| {
        let spec = stored.specs.iter().find(|spec| spec.name == name).expect("a name of theirs");
        Ok(stored.value(spec)?)
    };
    let names = stored.specs.iter().map(|spec| spec.name.as_str()).collect();
    let name = CacheName::new(it, stored.kind(), (tch::Device::Cpu, config.run.products), names, value)?;
    Ok(Some(name.stem().to_owned()))
}

/// Returns an actor of a pool without encoders.
pub(super) fn build_reader(spec: &EngineSpec, own: &OwnPool<'_>) -> Result<EncoderWorker, EngineError> {
    let config = &spec.config;
    let specs = encoder_specs(config, &own.towers, &spec.model.tree)?;
    expect_whole(own.name, own.pool, &trained_parts(config, &own.towers, &specs))?;
    let dir = cache_dir(own)?;
    let checkpoint = spec.resume.as_ref().map(|(checkpoint, _)| checkpoint).or(spec.frozen_from.as_ref());
    let stored = StoredTowers::new(config, checkpoint.map(PathBuf::as_path), specs)?;
    // The one that encoders would compute on; the run has settled its own, and not those of pools.
    let device = match crate::device::settle(device_of(config, spec.me, Some(own))).0 {
        Device::Cpu | Device::Auto => tch::Device::Cpu,
        Device::Cuda(_) => tch::Device::Cuda(0),
    };
    let name = |it: &ModelTower| {
        let own: Vec<_> = stored.specs.iter().filter(|spec| is_of(&own.towers, it, &spec.name)).collect();
        let value = |name: &str| {
            let spec = own.iter().find(|spec| spec.name == name).expect("a name of theirs");
            Ok(stored.value(spec)?)
        };
        let names = own.iter().map(|spec| spec.name.as_str()).collect();
        Ok((it.tower, CacheName::new(it, stored.kind(), (device, config.run.products), names, value)?))
    };
    let names = own.towers.iter().map(name).collect::<Result<Vec<_>, EngineError>>()?;
    let params = Rc::new(ParamStore::new(Vec::new(), stored.kind(), tch::Device::Cpu));
    let reader = FeatureReader::open(own.name, (dir, own.pool.cache_store.as_deref()), names, stored)?;
    let mut state = TrainState::new(params, Mesh::single().data, Lanes::PerReplica, None)?;
    let replica = Replica::new(own.name, spec.me.index);
    let actors = own.pool.num_actors() as u32;
    let membership = own.pool.is_elastic().then(|| Membership::new(replica, actors, spec.rendezvous.clone()));
    if membership.is_some() {
        state = state.elastic(spec.me.index as usize);
    }
    let worker = EncoderWorker::reading(replica, reader, state, membership);
    Ok(worker.with_item_credit(config.edges.pixels.credit.bytes() as usize, &own.towers))
}

/// Builds what encodes items of an encoder pool's towers on this thread, outside of a run, as the actor `spec.me` would.
///
/// # Errors
/// The pool has no `cache_dir` or is trained, the device is absent, or weights are missing or of another model.
pub fn build_feature_encoder(spec: &EngineSpec) -> Result<FeatureEncoder, EngineError> {
    let own = own_pool(spec).ok_or("the pool has no tower of this model")?;
    let dir = cache_dir(&own)?;
    let device = settle_thread(spec, Some(&own))?;
    let params = encoder_specs(&spec.config, &own.towers, &spec.model.tree)?;
    expect_whole(own.name, own.pool, &trained_parts(&spec.config, &own.towers, &params))?;
    let params = encoder_within_budget(&spec.config, params)?;
    let mesh = Mesh::single();
    let state = build_state(spec, device, params, Lanes::PerReplica, mesh.data.clone(), Sharding::none())?;
    let state = settle(spec, own.name.as_str(), state)?;
    let part = |tower| spec.config.model.tower_part(tower, TowerPart::Encoder).1;
    let models = TowerModels::new(&own.towers, state.params(), |tower| policy(part(tower)));
    let folders = cache_folders(spec, &own, state.params(), dir)?;
    Ok(FeatureEncoder::new(models, state, folders))
}
