//! Tests that any other layout continues what ranks save of their parts, bit for bit.

use super::hf::{FilesOf, Shards, save_weights_among};
use super::{
    AdamWConfig, Adjust, Export, Lanes, MuonConfig, OptimizerConfig, OptimizerMethod, TrainState, gather_whole,
    load_state, load_weights, save_state,
};
use crate::comm::{Mesh, ProcessGroup};
use crate::device::set_intra_op_threads;
use crate::model::ModelConfig;
use crate::params::{ParallelRank, ParamStore};
use loongforge_core::config::Layout;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

const CONFIG: AdamWConfig = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_moe-bias-yarn-tied")
}

/// Returns the fixture's model in bfloat16, with masters.
fn pool(mesh: Rc<Mesh>, method: OptimizerMethod) -> TrainState {
    let config = std::fs::read(fixture().join("config.json")).unwrap();
    let config = ModelConfig::from_hf(&serde_json::from_slice(&config).unwrap()).unwrap();
    let config = config.decoder().unwrap().clone();
    let specs = config.divided_specs(&ParallelRank::of(&mesh, false)).unwrap();
    let params = Rc::new(ParamStore::new(specs, Kind::BFloat16, Device::Cpu));
    load_weights(&params, &fixture()).unwrap();
    let optimizer = OptimizerConfig { adamw: CONFIG, method, offload: None };
    TrainState::with(params, ProcessGroup::single(), Lanes::PerReplica, Some(optimizer)).unwrap().split_among(mesh)
}

/// Takes a step along gradients that depend on the round; each part comes from one of the ranks that hold it. Returns the norm.
fn step(pool: &mut TrainState, round: i64) -> f64 {
    let (params, lane) = (pool.params().clone(), pool.own_lane());
    let (first, first_of_experts) =
        pool.mesh().map_or((true, true), |mesh| (mesh.data.rank() == 0, mesh.expert_data.rank() == 0));
    for id in params.trained_ids() {
        let shard = params.spec(id).shard.as_ref().unwrap();
        if shard.is_first() && if shard.of_experts { first_of_experts } else { first } {
            let count: i64 = shard.shape.iter().product();
            let whole = (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.37 + round).sin();
            let part = shard.take(&whole.view(shard.shape.as_slice()));
            pool.lane(lane).unwrap().add(id, &part);
        }
    }
    let squares = pool.reduce().unwrap();
    pool.commit(0.5, 1e-2).unwrap();
    squares
}

/// Returns the weights and the optimizer's state, whole.
fn numbers(pool: &TrainState) -> Vec<(String, Vec<f64>)> {
    let (params, mesh, optimizer) = (pool.params(), pool.mesh().unwrap(), pool.optimizer().unwrap());
    let of = |id| {
        let spec = params.spec(id);
        let state = optimizer.state_of(params, id).into_iter();
        let parts = state.map(|(_, slice)| pool.gather_slice(id, &slice).unwrap());
        let tensors = std::iter::once(params.leaf(id).detach()).chain(parts);
        let whole = |part: Tensor| gather_whole(spec, &part, mesh).unwrap().to_kind(Kind::Double).view([-1]);
        (spec.name.clone(), Vec::try_from(Tensor::cat(&tensors.map(whole).collect::<Vec<_>>(), 0)).unwrap())
    };
    let mut all: Vec<_> = params.trained_ids().map(of).collect();
    all.sort_by(|(left, _), (right, _)| left.cmp(right));
    all
}

/// Returns the result of `body` on each rank, one thread each.
fn on_ranks<T: Send>(layout: Layout, body: impl Fn(Rc<Mesh>) -> T + Sync) -> Vec<T> {
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("store");
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (store, body) = (&store, &body);
            scope.spawn(move || {
                set_intra_op_threads(1);
                body(Rc::new(Mesh::join(store, "pool", layout, rank, Duration::from_secs(60)).unwrap()))
            })
        };
        let ranks: Vec<_> = (0..layout.ranks()).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn what_a_layout_saves_every_other_continues() {
    continues(OptimizerMethod::AdamW);
}

/// Matrices are made orthogonal whole, whoever has parts of them.
#[test]
fn so_it_is_with_muon() {
    continues(OptimizerMethod::Muon(MuonConfig { momentum: 0.9, adjust: Adjust::Original, lr_ratio: 2.0 }));
}

fn continues(method: OptimizerMethod) {
    let mut alone = pool(Rc::new(Mesh::single()), method);
    let norms = [step(&mut alone, 1), step(&mut alone, 2)];
    let after_two = numbers(&alone);
    step(&mut alone, 3);
    let after_three = numbers(&alone);

    let folder = tempfile::tempdir().unwrap();
    // Two files, which two of the ranks write.
    let shards = Shards { of: FilesOf::Whole, first: 1, count: 2, total: 2, max_size: 20_000 };
    let layout = Layout { tp: 2, ep: 2, ..Layout::replicas(2) };
    let saved = on_ranks(layout, |mesh| {
        let mut pool = pool(mesh, method);
        let found = [step(&mut pool, 1), step(&mut pool, 2)];
        assert!(found.iter().zip(norms).all(|(found, norm)| (found / norm - 1.0).abs() < 1e-6), "{found:?} {norms:?}");
        assert_eq!(numbers(&pool), after_two);
        save_state(&pool, folder.path(), &Export::Weights(shards), "pool").unwrap()
    });
    let files: Vec<usize> = saved.iter().map(Vec::len).collect();
    assert_eq!(files, [2, 1, 0, 0]);
    let names = |files: &[loongforge_core::message::SavedFile]| {
        files.iter().flat_map(|file| file.tensors.clone()).collect::<Vec<_>>()
    };
    let index: serde_json::Map<_, _> = saved
        .iter()
        .flatten()
        .flat_map(|file| names(std::slice::from_ref(file)).into_iter().map(|name| (name, file.name.clone().into())))
        .collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": index });
    std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();

    for layout in [Layout::default(), Layout { tp: 4, ..Layout::default() }, Layout { ep: 2, ..Layout::replicas(2) }] {
        on_ranks(layout, |mesh| {
            let mut pool = pool(mesh, method);
            load_state(&mut pool, folder.path(), "pool", true).unwrap();
            assert_eq!(numbers(&pool), after_two, "{layout}");
            step(&mut pool, 3);
            assert_eq!(numbers(&pool), after_three, "{layout}");
        });
    }
}

/// The rank that cannot write its file gives its parts of the files that others write.
#[test]
fn a_file_that_cannot_be_written_keeps_no_rank_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let shards = Shards { of: FilesOf::Whole, first: 1, count: 2, total: 2, max_size: 20_000 };
    // A folder is in the way of the first file, which the first rank writes.
    std::fs::create_dir(folder.path().join(shards.name(0))).unwrap();
    for in_networks in [false, true] {
        let saved = on_ranks(Layout { tp: 2, ..Layout::default() }, |mesh| {
            let pool = pool(mesh, OptimizerMethod::AdamW);
            let export = if in_networks { Export::Networks(vec![shards]) } else { Export::Weights(shards) };
            save_state(&pool, folder.path(), &export, "pool").map_err(|error| error.is_of_disk())
        });
        assert_eq!(saved[0].as_ref().err(), Some(&true));
        assert_eq!(saved[1].as_ref().map(Vec::len), Ok(1));
    }
}

/// The experts of each token of DeepSeek-V4, which a folder has as whole numbers.
#[test]
fn tables_of_whole_numbers_are_saved_as_such() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/deepseek_v4-seed1");
    let load = |place: &ParallelRank, from: &Path| {
        let config = std::fs::read(source.join("config.json")).unwrap();
        let config = ModelConfig::from_hf(&serde_json::from_slice(&config).unwrap()).unwrap();
        let specs = config.decoder().unwrap().divided_specs(place).unwrap();
        let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
        load_weights(&params, from).unwrap();
        params
    };
    let folder = tempfile::tempdir().unwrap();
    on_ranks(Layout { tp: 2, ..Layout::default() }, |mesh| {
        let params = load(&ParallelRank::of(&mesh, false), &source);
        save_weights_among(&params, &mesh, folder.path().into(), &Shards::single()).unwrap();
    });
    let whole = ParallelRank::of(&Mesh::single(), false);
    let (before, after) = (load(&whole, &source), load(&whole, folder.path()));
    for id in before.ids() {
        assert_eq!(before.leaf(id).detach(), after.leaf(id).detach(), "{}", before.spec(id).name);
    }
}
