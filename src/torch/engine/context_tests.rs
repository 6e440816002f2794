//! Steps of decoders whose rows several ranks share against those of one process. One thread a rank, real groups.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use loongforge_core::config::{ContextAttention, Layout};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use crate::comm::{Mesh, ProcessGroup};
use crate::model::{Columns, INPUT_IDS, MicroBatch, ModelConfig};
use crate::nn::RopeScaling;
use crate::params::ParamStore;
use crate::tape::{ContextShard, Execution, Policy};
use crate::train::{AdamWConfig, Lanes, TrainState};

const QWEN3: &str = include_str!("../tests/fixtures/qwen3-seed1/config.json");
const DEEPSEEK: &str = include_str!("../tests/fixtures/deepseek_v2-seed1/config.json");
const STEPS: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns documents of uneven lengths in one row.
fn batch(step: usize) -> MicroBatch {
    let lens = [[19, 1, 44, 3, 61], [5, 90, 2, 2, 29], [128, 1, 1, 1, 1], [30, 31, 32, 33, 2], [7, 8, 64, 48, 1]][step];
    let (mut ids, mut positions, mut targets, mut ends) = (Vec::new(), Vec::new(), Vec::new(), vec![0usize]);
    for (document, len) in lens.into_iter().enumerate() {
        let id = |at: i64| ((document + 5 * step) as i64 * 31 + at * at * 7) % 50 + 1;
        ids.extend((0..len).map(id));
        positions.extend(0..len);
        targets.extend((1..=len).map(|next| if next < len && next % 5 > 0 { id(next) } else { -100 }));
        ends.push(ids.len());
    }
    let num_targets = targets.iter().filter(|target| **target >= 0).count();
    MicroBatch {
        samples: Rc::new([]),
        columns: Columns::of_tokens(
            Tensor::from_slice(&ids),
            Tensor::from_slice(&positions.repeat(3)).view([3, -1]).to_kind(Kind::Float),
            Tensor::from_slice(&targets),
        ),
        cu_seqlens: ends,
        loss_scale: 1.0 / num_targets as f64,
        num_features: Vec::new(),
        feature_grads: false,
        constant_features: Default::default(),
        row: None,
        shared_features: Vec::new(),
        past: None,
        evaluates: false,
    }
}

/// The rank's loss in every step, and the pool's gradient.
type Steps = Vec<(f64, Tensor)>;

fn steps(config: &Value, mesh: Rc<Mesh>, group: ProcessGroup, attention: ContextAttention) -> Steps {
    let family = ModelConfig::from_hf(config).unwrap();
    let params = ParamStore::new(family.foundation.specs(), Kind::Float, Device::Cpu);
    params.init_random(3);
    let optimizer = AdamWConfig { betas: [0.9, 0.95], eps: 1e-3, weight_decay: 0.1 };
    let mut pool = TrainState::new(Rc::new(params), group, Lanes::PerReplica, Some(optimizer)).unwrap();
    let model = family.foundation.build(pool.params(), Policy::Keep);
    let step = |step: usize| {
        let whole = batch(step);
        let (ranks, rank) = (mesh.cp.world(), mesh.cp.rank());
        let batch = match ranks {
            1 => whole,
            _ => {
                let row = Rc::new(ContextShard::new(&whole.cu_seqlens, ranks, rank, attention, Device::Cpu));
                whole.share(row, Vec::new())
            }
        };
        let made = model.record(&batch);
        let loss = made.loss.unwrap();
        let mut run = Execution::new(made.tape, pool.params().clone(), vec![]).with_mesh(mesh.clone());
        run.forward().unwrap();
        run.seed(loss, Tensor::ones_like(run.value(loss)));
        let lane = pool.own_lane();
        run.backward(pool.lane(lane)).unwrap();
        pool.reduce().unwrap();
        let grad = pool.lane(lane).unwrap().flat().copy();
        pool.commit(1.0, 0.01).unwrap();
        (run.value(loss).double_value(&[]), grad)
    };
    (0..STEPS).map(step).collect()
}

fn on_ranks(config: &Value, ranks: usize, attention: ContextAttention, store: &Path) -> Vec<Steps> {
    let run = |rank: usize| {
        let layout = Layout { cp: ranks, ..Layout::default() };
        let mesh = Rc::new(Mesh::join(store, "pool", layout, rank, TIMEOUT).unwrap());
        let group = ProcessGroup::gloo(store, "gradients", rank, ranks, TIMEOUT).unwrap();
        steps(config, mesh, group, attention)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn check(config: &Value, ranks: usize, attention: ContextAttention) {
    let expected = steps(config, Rc::new(Mesh::single()), ProcessGroup::single(), attention);
    let folder = tempfile::tempdir().unwrap();
    let found = on_ranks(config, ranks, attention, &folder.path().join("store"));
    for step in 0..STEPS {
        let loss: f64 = found.iter().map(|rank| rank[step].0).sum();
        let error = (loss / expected[step].0 - 1.0).abs();
        assert!(error < 1e-5, "{attention:?} on {ranks} ranks: loss {loss} of step {step} is off by {error}");
        let grad = &expected[step].1;
        for rank in &found {
            let error = ((&rank[step].1 - grad).norm() / grad.norm()).double_value(&[]);
            assert!(error < 1e-5, "{attention:?} on {ranks} ranks: gradients of step {step} are off by {error}");
        }
    }
}

#[test]
fn a_dense_decoder_steps_as_on_one_rank() {
    let config = serde_json::from_str(QWEN3).unwrap();
    check(&config, 2, ContextAttention::Ring);
    check(&config, 4, ContextAttention::Ring);
    check(&config, 2, ContextAttention::Ulysses);
}

#[test]
fn experts_and_latent_attention_step_as_on_one_rank() {
    let mut config: Value = serde_json::from_str(DEEPSEEK).unwrap();
    config["aux_loss_alpha"] = json!(0.05);
    check(&config, 2, ContextAttention::Ring);
    check(&config, 2, ContextAttention::Ulysses);
}

/// Returns a row with pictures: the rank's loss, and the gradients of all features of every level.
fn with_features(config: &Value, mesh: &Rc<Mesh>, attention: ContextAttention) -> (f64, Vec<Tensor>) {
    let family = ModelConfig::from_hf(config).unwrap();
    let params = Rc::new(ParamStore::new(family.foundation.specs(), Kind::Float, Device::Cpu));
    params.init_random(3);
    let model = family.foundation.build(&params, Policy::Keep);
    let mut whole = batch(0);
    // All pictures in the longest document, so that a rank may have few.
    let picture = config["image_token_id"].as_i64().unwrap();
    let _ = whole.columns.get(INPUT_IDS).narrow(0, 70, 9).fill_(picture);
    let _ = whole.columns.get(INPUT_IDS).narrow(0, 100, 6).fill_(picture);
    let rows = model.feature_rows(&whole);
    assert_eq!(rows[0].len(), 15);
    (whole.num_features, whole.feature_grads) = (vec![15], true);
    let input = &model.inputs()[0];
    let level = |level: usize| {
        let values = Tensor::arange(15 * input.width, (Kind::Float, Device::Cpu)) * (0.3 + level as f64);
        values.sin().view([15, -1])
    };
    let mut features: Vec<Tensor> = (0..input.num_tensors).map(level).collect();
    let mut batch = whole;
    if mesh.cp.world() > 1 {
        let (ranks, rank) = (mesh.cp.world(), mesh.cp.rank());
        let row = Rc::new(ContextShard::new(&batch.cu_seqlens, ranks, rank, attention, Device::Cpu));
        let own = row.features(&rows[0]);
        features = features.iter().map(|level| level.index_select(0, &Tensor::from_slice(&own))).collect();
        batch = batch.share(row, vec![own]);
    }
    let made = model.record(&batch);
    let inputs = made.features[0].iter().copied().zip(features).collect();
    let mut run = Execution::new(made.tape, params, inputs).with_mesh(mesh.clone());
    run.forward().unwrap();
    let loss = made.loss.unwrap();
    run.seed(loss, Tensor::ones_like(run.value(loss)));
    run.backward(None).unwrap();
    let grads = made.features[0].iter().map(|slot| run.input_grad(*slot).unwrap());
    let grads = match &batch.row {
        Some(row) => {
            grads.map(|grad| row.gather_features(&mesh.cp, &grad, &batch.shared_features[0], 15).unwrap()).collect()
        }
        None => grads.collect(),
    };
    (run.value(loss).double_value(&[]), grads)
}

#[test]
fn features_go_where_their_places_are() {
    let config: Value = serde_json::from_str(include_str!("../tests/fixtures/qwen3_vl-seed1/config.json")).unwrap();
    let (expected, of_features) = with_features(&config, &Rc::new(Mesh::single()), ContextAttention::Ring);
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let run = |rank: usize| {
        let layout = Layout { cp: 2, ..Layout::default() };
        let mesh = Rc::new(Mesh::join(&store, "pool", layout, rank, TIMEOUT).unwrap());
        with_features(&config, &mesh, ContextAttention::Ring)
    };
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let loss = found[0].0 + found[1].0;
    assert!((loss / expected - 1.0).abs() < 1e-5, "{loss} and {expected}");
    for (_, grads) in &found {
        assert_eq!(grads.len(), of_features.len());
        for (grad, expected) in grads.iter().zip(&of_features) {
            let error = ((grad - expected).norm() / expected.norm()).double_value(&[]);
            assert!(error < 1e-5, "gradients of features are off by {error}");
        }
    }
}

#[test]
fn what_cannot_be_split_says_why() {
    let decoder = |config: &str| {
        let model = ModelConfig::from_hf(&serde_json::from_str(config).unwrap()).unwrap();
        model.decoder().unwrap().clone()
    };
    let qwen = decoder(QWEN3);
    assert!(qwen.check_context(2, ContextAttention::Ring).is_ok());
    let error = qwen.check_context(3, ContextAttention::Ulysses).unwrap_err().to_string();
    assert!(error.contains("context_parallel=3") && error.contains("ring"), "{error}");
    let sparse = decoder(include_str!("../tests/fixtures/deepseek_v3.2-seed1/config.json"));
    let error = sparse.check_context(2, ContextAttention::Ring).unwrap_err().to_string();
    assert!(error.contains("sparse attention"), "{error}");
    let mut pictures = decoder(include_str!("../tests/fixtures/qwen2.5_vl-seed1/config.json"));
    assert!(pictures.check_context(2, ContextAttention::Ring).is_ok());
    pictures.layers[0].rope.scaling = RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 16, alpha: None };
    let error = pictures.check_context(2, ContextAttention::Ring).unwrap_err().to_string();
    assert!(error.contains("rotary embeddings") && error.contains("context_parallel to 1"), "{error}");
    let capped = decoder(include_str!("../tests/fixtures/gemma2-seed1/config.json"));
    let error = capped.check_context(2, ContextAttention::Ring).unwrap_err().to_string();
    assert!(error.contains("layer 0") && error.contains("a sliding window"), "{error}");
    let recurrent = decoder(include_str!("../tests/fixtures/qwen3_next-seed1/config.json"));
    let error = recurrent.check_context(2, ContextAttention::Ring).unwrap_err().to_string();
    assert!(error.contains("gated delta net") && error.contains("context_parallel"), "{error}");
}
