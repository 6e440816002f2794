//! A frozen encoder with a cache against the same without, and one that has no parameters.

use super::cached::{encode_apart, encode_each, input};
use super::*;
use crate::comm::ProcessGroup;
use crate::model::{EncoderFamily, EncoderModel, LatentPatch, ModelConfig, PixelLatents};
use crate::params::{Init, ParamSpec, ParamStore};
use crate::tape::{Execution, Policy};
use crate::train::hf::{FilesOf, SINGLE_FILE, Shards, write_tensor_file};
use crate::train::{AdamWConfig, Export, Lanes, load_state, save_state};
use loongforge_core::engine::Ports;
use loongforge_core::message::{Grid, ItemId, ItemMeta, PackId, SampleId, StepId, Unit, UnitItem};
use loongforge_core::transport::{Header, HostTensor};
use std::cell::RefCell;
use std::rc::Rc;
use tch::{Device, Kind};

const CONFIG: &str = include_str!("../tests/fixtures/qwen3_vl-seed1/config.json");
const GRIDS: [Grid; 3] = [Grid { t: 1, h: 4, w: 4 }, Grid { t: 1, h: 2, w: 6 }, Grid { t: 2, h: 2, w: 4 }];

fn encoder() -> (Box<dyn EncoderModel>, TrainState, i64) {
    let json: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    let vision = &json["vision_config"];
    let of = |key: &str| vision[key].as_i64().unwrap();
    let channels = of("in_channels") * of("temporal_patch_size") * of("patch_size").pow(2);
    let model = ModelConfig::from_hf(&json).unwrap();
    let family = model.towers.get(Tower::Vision).unwrap();
    let params = ParamStore::new(family.specs(), Kind::Float, Device::Cpu);
    params.init_random(3);
    let pool = TrainState::new(Rc::new(params), ProcessGroup::single(), Lanes::PerReplica, None).unwrap();
    (family.build(pool.params(), Policy::Keep), pool, channels)
}

/// Returns pixels of an item, told apart by `seed`.
fn pixels(grid: Grid, channels: i64, seed: i64) -> Tensor {
    let len = grid.num_cells() as i64 * channels;
    (Tensor::arange(len, (Kind::Float, Device::Cpu)) * (0.37 + seed as f64)).sin().view([-1, channels])
}

fn together(model: &dyn EncoderModel, pool: &TrainState, grids: &[Grid], pixels: &Tensor) -> Vec<Tensor> {
    let record = model.record(grids);
    let mut run =
        Execution::forward_only(record.tape, pool.params().clone(), vec![(record.pixels, pixels.shallow_clone())]);
    run.forward().unwrap();
    record.outputs.iter().map(|&slot| run.value(slot).copy()).collect()
}

#[test]
fn kept_features_have_the_bits_of_those_that_were_made() {
    let (model, pool, channels) = encoder();
    let unit = |items: &[usize]| {
        let grids: Vec<Grid> = items.iter().map(|&item| GRIDS[item]).collect();
        let parts: Vec<Tensor> = items.iter().map(|&item| pixels(GRIDS[item], channels, item as i64)).collect();
        (grids, Tensor::cat(&parts, 0))
    };
    let bits = |levels: &[Tensor]| -> Vec<u32> {
        let values = levels.iter().flat_map(|level| Vec::<f32>::try_from(level.reshape([-1])).unwrap());
        values.map(f32::to_bits).collect()
    };
    let mut cache = FeatureCache::new(1 << 20);
    let (grids, all) = unit(&[0, 1, 2]);
    let (made, hits) = encode_each(&mut cache, (Tower::Vision, &*model), &pool, &grids, &all).unwrap();
    assert_eq!(hits, 0);
    for (ours, whole) in made.iter().zip(together(&*model, &pool, &grids, &all)) {
        assert_eq!(ours.size(), whole.size());
        assert!((ours - whole).abs().max().double_value(&[]) < 1e-5);
    }
    let apart = encode_apart(&*model, &pool, &grids, &all).unwrap();
    assert_eq!(bits(&apart), bits(&made), "without a cache");
    // Another unit of the same items and a new one: what is kept and what is made again are the same.
    let (grids, some) = unit(&[2, 0]);
    let (kept, hits) = encode_each(&mut cache, (Tower::Vision, &*model), &pool, &grids, &some).unwrap();
    let (again, misses) =
        encode_each(&mut FeatureCache::new(1), (Tower::Vision, &*model), &pool, &grids, &some).unwrap();
    assert_eq!((hits, misses), (2, 0));
    assert_eq!(bits(&kept), bits(&again));
    let features = |item: usize| {
        GRIDS[item].num_cells() as i64 * made[0].size()[0]
            / GRIDS.iter().map(|grid| grid.num_cells() as i64).sum::<i64>()
    };
    assert_eq!(bits(&kept)[..8], bits(&[made[0].narrow(0, features(0) + features(1), features(2))])[..8]);
}

/// Ids above 256 are not all numbers of bfloat16.
#[test]
fn ids_of_tokens_are_not_rounded() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/towers/umt5/config.json");
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(folder).unwrap()).unwrap();
    let model = ModelConfig::from_hf(&json).unwrap();
    let family = model.towers.get(Tower::Text).unwrap();
    let params = ParamStore::new(family.specs(), Kind::BFloat16, Device::Cpu);
    let text = family.build(&params, Policy::Keep);
    let ids = Tensor::from_slice(&[257f32, 3001.0]).view([2, 1]);
    assert_eq!(input(&*text, &ids, Kind::BFloat16), ids);
    let (vision, ..) = encoder();
    assert_eq!(input(&*vision, &ids, Kind::BFloat16).kind(), Kind::BFloat16);
}

/// Such units are done when their features are sent, and keep no activations.
#[test]
fn units_of_frozen_towers_have_no_share_of_a_budget_for_activations() {
    let (replica, step) = (Replica::new(PoolName::ENCODER, 0), StepId(0));
    let unit = |index: u32, tower: Tower| {
        let meta = ItemMeta { tower, grid: GRIDS[0], num_features: 4 };
        let item = UnitItem { id: ItemId { sample: SampleId(0), index }, owner: 0, meta };
        Unit {
            id: UnitId { step, index },
            lane: Lane(0),
            encoder: replica,
            pack: PackId { step, index: 0 },
            replica: Replica::foundation(0),
            items: vec![item],
        }
    };
    let plan = StepPlan {
        step,
        purpose: Default::default(),
        cursor: SampleId(1),
        learning_rate: 0.1,
        num_targets: 1,
        replica_ranks: Default::default(),
        packs: Vec::new(),
        units: vec![unit(0, Tower::Vision), unit(1, Tower::Audio), unit(2, Tower::Audio)],
    };
    let num_trained = |trained: &[Tower]| {
        let worker = EncoderWorker::new(replica, TowerModels::default(), encoder().1, None);
        let mut worker = worker.with_trained(trained.iter().copied().collect());
        worker.plan(&plan);
        worker.steps[0].num_trained()
    };
    assert_eq!([&[Tower::Vision][..], &[Tower::Audio], &Tower::ALL].map(num_trained), [1, 2, 3]);
}

/// Its units are encoded, sent and finished, its steps applied, and a checkpoint has no file of it.
#[test]
fn a_tower_without_parameters_is_an_encoder_like_others() {
    let family = PixelLatents { channels: 3, patch: LatentPatch([1, 2, 2]) };
    let params = Rc::new(ParamStore::new(family.specs(), Kind::BFloat16, Device::Cpu));
    params.init_random(1);
    let mut pool = TrainState::new(params, ProcessGroup::single(), Lanes::Fixed(4), None).unwrap();
    pool.reduce().unwrap();
    pool.commit(1.0, 0.1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let export = Export::Weights(Shards { of: FilesOf::Whole, first: 1, count: 0, total: 1, max_size: 1 << 30 });
    assert!(save_state(&pool, folder.path(), &export, "vae").unwrap().is_empty());
    let others = [("foundation.norm.weight".to_owned(), Tensor::ones([3], (Kind::Float, Device::Cpu)))];
    write_tensor_file(&others, &[], folder.path(), SINGLE_FILE).unwrap();
    load_state(&mut pool, folder.path(), "vae", true).unwrap();

    let models = TowerModels::only(Tower::Vae, family.build(pool.params(), Policy::Keep));
    let mut worker = EncoderWorker::new(Replica::new(PoolName::ENCODER, 0), models, pool, None);
    let (values, rows) = sent_by(&mut worker, &family);
    assert_eq!((rows.size(), rows.kind()), (vec![2 + 9, 12], Kind::BFloat16));
    // The second token of the second item: its channels, and of each the square of two rows and two columns.
    let frame = values[1].narrow(0, 0, 12).view([2, 6, 3]);
    let square = frame.narrow(1, 2, 2).permute([2, 0, 1]).flatten(0, -1).to_kind(Kind::BFloat16);
    assert_eq!(rows.get(3), square);
}

/// Has an encoder encode two items of a unit that are folded into latents, and returns their values and the features that it sends.
fn sent_by(worker: &mut EncoderWorker, family: &PixelLatents) -> (Vec<Tensor>, Tensor) {
    let grids = [Grid { t: 1, h: 4, w: 2 }, Grid { t: 3, h: 2, w: 6 }];
    let id = UnitId { step: StepId(0), index: 0 };
    let item = |index: usize| {
        let num_features = family.num_features(grids[index]) as u32;
        let meta = ItemMeta { tower: Tower::Vae, grid: grids[index], num_features };
        UnitItem { id: ItemId { sample: SampleId(index as u64), index: 0 }, owner: 0, meta }
    };
    let unit = Unit {
        id,
        lane: Lane(0),
        encoder: Replica::new(PoolName::ENCODER, 0),
        pack: PackId { step: StepId(0), index: 0 },
        replica: Replica::foundation(0),
        items: (0..grids.len()).map(item).collect(),
    };
    worker.plan(&StepPlan {
        step: StepId(0),
        purpose: Default::default(),
        cursor: SampleId(2),
        learning_rate: 0.1,
        num_targets: 2,
        replica_ranks: Default::default(),
        packs: Vec::new(),
        units: vec![unit],
    });
    let values: Vec<Tensor> = grids.iter().enumerate().map(|(at, grid)| pixels(*grid, 3, at as i64)).collect();
    let all: Vec<f32> = Tensor::cat(&values, 0).flatten(0, -1).try_into().unwrap();
    let items = Parcel::new(
        Header { kind: ParcelKind::Items(id), version: Version(0) },
        vec![Box::new(HostTensor::from_f32(&all, &[all.len() / 3, 3]))],
    );
    worker.arrive(ActorId::data(0), items).unwrap();
    let (events, _told) = flume::bounded(8);
    let mut ports = Ports::new(ActorId::foundation(0), events, BTreeMap::new());
    while worker.work(Version(0), &mut ports).unwrap() == Progress::Busy {}
    assert!(worker.is_finished(0));
    let sent = ports.take_own().unwrap();
    assert_eq!(sent.header.kind, ParcelKind::Features(id));
    let rows = sent.tensors.into_iter().map(|buffer| TorchBuffer::into_tensor(buffer, Device::Cpu)).next().unwrap();
    (values, rows)
}

/// A tower's features do not depend on what else is in its pool.
#[test]
fn items_of_a_frozen_tower_are_encoded_one_by_one_also_beside_a_trained_one() {
    const ADAMW: AdamWConfig = AdamWConfig { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0 };
    let family = PixelLatents { channels: 3, patch: LatentPatch([1, 2, 2]) };
    let recorded = |is_trained: bool| {
        let of_other = ParamSpec::new("other.w", &[4], Init::Zeros);
        let params = Rc::new(ParamStore::new(vec![of_other], Kind::Float, Device::Cpu));
        let optimizer = is_trained.then_some(ADAMW);
        let pool = TrainState::new(params, ProcessGroup::single(), Lanes::Fixed(1), optimizer).unwrap();
        let (model, counts) = (family.build(pool.params(), Policy::Keep), Rc::new(RefCell::new(Vec::new())));
        let told = counts.clone();
        let model = move |grids: &[Grid]| {
            told.borrow_mut().push(grids.len());
            model.record(grids)
        };
        let models = TowerModels::only(Tower::Vae, Box::new(model));
        let worker = EncoderWorker::new(Replica::new(PoolName::ENCODER, 0), models, pool, None);
        drop(sent_by(&mut worker.with_trained(TowerSet::default()).one_by_one(true), &family));
        counts.take()
    };
    assert_eq!([recorded(false), recorded(true)], [[1, 1], [1, 1]]);
}
