//! AdamW with moments in bytes against bitsandbytes, Muon against `torch.optim.Muon` (`tests/oracle/make_optimizers.py`), and both
//! among replicas that share them out, saved and resumed.

use super::adamw8bit::step_by_operators;
use super::hf::Shards;
use super::{
    AdamW, AdamWConfig, Adjust, Export, Lanes, MuonConfig, Offload, OptimizerConfig, OptimizerMethod, TrainState,
    load_state, save_state,
};
use crate::comm::ProcessGroup;
use crate::device::set_intra_op_threads;
use crate::native::{AdamWStep, MOMENT_BLOCK, QuantizedMoment, adamw_8bit};
use crate::params::{Init, ParamSpec, ParamStore, Sharding, StoredTensor, ZeroStage};
use loongforge_core::message::Lane;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);
const ADAMW: AdamWConfig = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };
pub(super) const MUON: MuonConfig = MuonConfig { momentum: 0.95, adjust: Adjust::MatchRmsAdamw, lr_ratio: 1.0 };

fn theirs() -> HashMap<String, Tensor> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/quantized/optimizers.safetensors");
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

fn largest(x: &Tensor) -> f64 {
    x.abs().max().double_value(&[])
}

/// Returns a linear map's weight of this shape alone, as the optimizer changes it.
fn alone(weight: &Tensor, method: OptimizerMethod) -> (ParamStore, AdamW) {
    let spec = ParamSpec::new("layers.0.map.weight", &weight.size(), Init::Zeros);
    let params = ParamStore::new(vec![ParamSpec { is_linear: true, ..spec }], Kind::Float, Device::Cpu);
    params.set(params.id("layers.0.map.weight"), weight);
    let optimizer = AdamW::new(&params, OptimizerConfig { adamw: ADAMW, method, offload: None }).unwrap();
    (params, optimizer)
}

#[test]
fn moments_in_bytes_are_bitsandbytes() {
    let theirs = theirs();
    let (params, mut optimizer) = alone(&theirs["adamw.weight"], OptimizerMethod::AdamW8bit);
    let id = params.id("layers.0.map.weight");
    for step in 0..3 {
        let grad = Tensor::zeros([params.num_trained()], CPU);
        grad.narrow(0, 0, 5000).copy_(&theirs[&format!("adamw.grad.{step}")].view([-1]));
        assert!(optimizer.step(&grad, 1.0, 1e-2, true).unwrap() && largest(&grad) == 0.0);
        let expected = &theirs[&format!("adamw.weight.{step}")];
        // A moment that is as far from one number as from another may become either, and moves a weight by a part of the rate.
        let error = (params.leaf(id).detach() - expected).abs();
        assert!(largest(&error) < if step == 0 { 1e-6 } else { 2e-3 }, "step {step}: {error:?}");
        assert!(error.gt(1e-6).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]) < 0.002, "step {step}");
    }
    let state: HashMap<_, _> = optimizer.state_of(&params, id).into_iter().collect();
    for (ours, codes, absmax) in [("exp_avg", "state1", "absmax1"), ("exp_avg_sq", "state2", "absmax2")] {
        let wide = |codes: &Tensor| codes.reshape([-1]).narrow(0, 0, 5000).to_kind(Kind::Float);
        let off = (wide(state[ours].tensor) - wide(&theirs[&format!("adamw.{codes}")])).abs();
        assert!(largest(&off) <= 1.0 && off.mean(Kind::Float).double_value(&[]) < 0.002, "{ours}: {off:?}");
        let (found, expected) = (state[&*format!("{ours}_absmax")].tensor, &theirs[&format!("adamw.{absmax}")]);
        assert!(found.allclose(expected, 1e-4, 0.0, false), "{ours}: {found} and {expected}");
    }
}

#[test]
fn operators_take_the_same_steps() {
    let len = 3 * MOMENT_BLOCK + 77;
    let numbers = |factor: f64| (Tensor::arange(len, CPU) * factor).sin();
    let moments = || {
        [(), ()].map(|()| QuantizedMoment {
            codes: Tensor::zeros([len], (Kind::Uint8, Device::Cpu)),
            maxima: Tensor::zeros([4], CPU),
        })
    };
    let (fused, plain) = ((numbers(0.3), moments()), (numbers(0.3), moments()));
    let rounded = Tensor::zeros([len], (Kind::BFloat16, Device::Cpu));
    for number in 1..=3 {
        let step = AdamWStep {
            learning_rate: 1e-2,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.1,
            number,
            grad_scale: 0.5,
            zero_grad: false,
        };
        let grad = numbers(0.7 + number as f64);
        adamw_8bit(&fused.0, Some(&rounded), &grad, &fused.1, &step);
        step_by_operators(&plain.0, &(&grad * 0.5), &plain.1, &step);
        assert_eq!(rounded, fused.0.to_kind(Kind::BFloat16));
    }
    let error = (&fused.0 - &plain.0).abs();
    assert!(error.gt(1e-6).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]) < 0.01, "{error:?}");
    for (fused, plain) in fused.1.iter().zip(&plain.1) {
        let off = (fused.codes.to_kind(Kind::Float) - plain.codes.to_kind(Kind::Float)).abs();
        assert!(largest(&off) <= 1.0 && off.mean(Kind::Float).double_value(&[]) < 0.01);
        assert!(fused.maxima.allclose(&plain.maxima, 1e-5, 0.0, false));
    }
}

/// Those are what GPUs have; on a CPU weights of float16 have no pass of ours.
#[test]
fn libtorchs_operators_take_the_same_steps_along_a_scaled_gradient() {
    let stepped = |kind: Kind| {
        let spec = ParamSpec::new("layers.0.map.weight", &[6, 8], Init::Zeros);
        let params = ParamStore::new(vec![spec], kind, Device::Cpu);
        let id = params.id("layers.0.map.weight");
        params.set(id, &(Tensor::arange(48, CPU).view([6, 8]) / 16.0 - 1.5));
        let mut optimizer = AdamW::new(&params, ADAMW).unwrap();
        for (frequency, scale) in [(1.0, 0.25), (2.0, 1.0), (3.0, 0.01)] {
            let grad = (Tensor::arange(params.num_trained(), CPU) * frequency).sin();
            optimizer.step(&grad, scale, 1e-2, false).unwrap();
        }
        match optimizer.state_of(&params, id).into_iter().find(|(name, _)| *name == "master") {
            Some((_, master)) => master.tensor.narrow(0, master.at, 48).view([6, 8]),
            None => params.get("layers.0.map.weight").detach(),
        }
    };
    let error = largest(&(stepped(Kind::Float) - stepped(Kind::Half)));
    assert!(error < 1e-5, "{error}");
}

#[test]
fn muon_is_torchs() {
    set_intra_op_threads(1);
    // The factor of the shape is multiplied before the rate here: a rounding of float32. Without AVX-512 libtorch rounds products of
    // bfloat16 otherwise, so that torch.optim.Muon itself is up to 1.5e-4 off what it was recorded with.
    #[cfg(target_arch = "x86_64")]
    let tolerance = if is_x86_feature_detected!("avx512f") { 1e-6 } else { 3e-4 };
    #[cfg(not(target_arch = "x86_64"))]
    let tolerance = 3e-4;
    let theirs = theirs();
    for shape in ["wide", "tall"] {
        for (name, adjust) in [("original", Adjust::Original), ("match_rms_adamw", Adjust::MatchRmsAdamw)] {
            let method = OptimizerMethod::Muon(MuonConfig { adjust, lr_ratio: 4.0, ..MUON });
            let (params, mut optimizer) = alone(&theirs[&format!("muon.{shape}")], method);
            for step in 0..3 {
                let grad = theirs[&format!("muon.{shape}.grad.{step}")].view([-1]);
                optimizer.step(&grad, 1.0, 5e-3, false).unwrap();
            }
            let id = params.id("layers.0.map.weight");
            let error = largest(&(params.leaf(id).detach() - &theirs[&format!("muon.{shape}.{name}")]));
            assert!(error < tolerance, "{shape}, {name}: {error}");
            let (suffix, slice) = &optimizer.state_of(&params, id)[0];
            let expected = theirs[&format!("muon.{shape}.momentum")].view([-1]);
            assert_eq!((*suffix, slice.tensor.narrow(0, slice.at, expected.size()[0])), ("momentum_buffer", expected));
        }
    }
}

#[test]
fn muon_makes_each_matrix_of_the_checkpoint_orthogonal() {
    let theirs = theirs();
    let (wide, grad) = (&theirs["muon.wide"], &theirs["muon.wide.grad.0"]);
    let piece =
        |name: &str, start, len| StoredTensor { rows: Some((start, len)), ..StoredTensor::whole(name, &[len, 40]) };
    let spec = ParamSpec::new("layers.0.qk.weight", &[24, 40], Init::Zeros);
    let fused = ParamSpec { is_linear: true, ..spec }.stored_as(vec![piece("q", 0, 16), piece("k", 16, 8)]);
    let params = ParamStore::new(vec![fused], Kind::Float, Device::Cpu);
    params.set(params.id("layers.0.qk.weight"), wide);
    let config = OptimizerConfig { adamw: ADAMW, method: OptimizerMethod::Muon(MUON), offload: None };
    let mut optimizer = AdamW::new(&params, config).unwrap();
    optimizer.step(&grad.view([-1]), 1.0, 1e-2, false).unwrap();
    let each = [(0, 16), (16, 8)].map(|(start, len)| {
        let (params, mut optimizer) = alone(&wide.narrow(0, start, len), OptimizerMethod::Muon(MUON));
        optimizer.step(&grad.narrow(0, start, len).reshape([-1]), 1.0, 1e-2, false).unwrap();
        params.get("layers.0.map.weight").detach()
    });
    assert_eq!(params.get("layers.0.qk.weight").detach(), Tensor::cat(&each, 0));
}

/// Returns a layer whose parameters have every rule.
fn pool(kind: Kind, group: ProcessGroup, shared: ZeroStage, method: OptimizerMethod) -> TrainState {
    pool_with(kind, group, shared, method, None)
}

/// Returns the same pool with the optimizer's state in this place.
pub(super) fn pool_with(
    kind: Kind,
    group: ProcessGroup,
    shared: ZeroStage,
    method: OptimizerMethod,
    offload: Option<Offload>,
) -> TrainState {
    let map = ParamSpec::new("layers.0.map.weight", &[70, 60], Init::Normal(0.5));
    let specs = vec![
        ParamSpec::new("embed.weight", &[97, 44], Init::Normal(0.5)),
        ParamSpec { is_linear: true, ..map },
        ParamSpec::new("layers.0.norm", &[60], Init::Ones),
        ParamSpec::new("layers.0.small", &[5, 3], Init::Normal(0.5)),
    ];
    let sharding = method.sharding(Sharding::new(shared, group.rank(), group.world()));
    let params = ParamStore::shared_out(specs, kind, Device::Cpu, sharding);
    params.init_random(11);
    let optimizer = OptimizerConfig { adamw: ADAMW, method, offload };
    TrainState::with(Rc::new(params), group, Lanes::PerReplica, Some(optimizer)).unwrap().with_ema(Some(0.9)).unwrap()
}

/// A step along a gradient that the first replica gives.
pub(super) fn step(pool: &mut TrainState, round: u32) {
    let (params, lane) = (pool.params().clone(), Lane(pool.rank() as u32));
    params.enter(&params.ids().collect::<Vec<_>>(), &[], pool.lane(lane)).unwrap();
    for id in params.ids() {
        let shape = params.spec(id).shape.clone();
        let count: i64 = shape.iter().product();
        let grad = (Tensor::arange(count, CPU) * 0.37 + f64::from(round)).sin() * f64::from(lane.0 == 0);
        pool.lane(lane).unwrap().add(id, &grad.view(shape.as_slice()));
    }
    params.leave(pool.lane(lane)).unwrap();
    pool.reduce().unwrap();
    pool.commit(0.5, 1e-2).unwrap();
}

/// Returns the weights and the state, whole.
pub(super) fn numbers(pool: &TrainState) -> Vec<(String, Vec<f64>)> {
    let (params, optimizer, own) = (pool.params(), pool.optimizer().unwrap(), pool.own_values());
    let mut found = Vec::new();
    for id in params.trained_ids() {
        let name = &params.spec(id).name;
        let wide = |whole: Tensor| Vec::<f64>::try_from(whole.to_kind(Kind::Double).view([-1])).unwrap();
        found.push((name.clone(), wide(pool.gather_state(id, &own).unwrap())));
        for (suffix, slice) in optimizer.state_of(params, id) {
            found.push((format!("{name}.{suffix}"), wide(pool.gather_slice(id, &slice).unwrap())));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

#[test]
fn replicas_share_them_out_save_and_go_on() {
    for (method, rules) in
        [(OptimizerMethod::AdamW8bit, "exp_avg_absmax"), (OptimizerMethod::Muon(MUON), "momentum_buffer")]
    {
        for (kind, shared) in [
            (Kind::BFloat16, ZeroStage::State),
            (Kind::Float, ZeroStage::Gradients),
            (Kind::BFloat16, ZeroStage::Parameters),
        ] {
            let mut one = pool(kind, ProcessGroup::single(), ZeroStage::Nothing, method);
            (0..3).for_each(|round| step(&mut one, round));
            let expected = numbers(&one);
            assert!(expected.iter().any(|(name, _)| name.ends_with(rules)));
            let folder = tempfile::tempdir().unwrap();
            let rank = |rank: usize| {
                set_intra_op_threads(1);
                let store = folder.path().join("store");
                let group = ProcessGroup::gloo(&store, "pool", rank, 2, Duration::from_secs(60)).unwrap();
                let mut pool = pool(kind, group, shared, method);
                (0..3).for_each(|round| step(&mut pool, round));
                save_state(&pool, folder.path(), &Export::Weights(Shards::single()), "pool").unwrap();
                numbers(&pool)
            };
            let found = std::thread::scope(|scope| {
                let ranks = [0, 1].map(|index| scope.spawn(move || rank(index)));
                ranks.map(|rank| rank.join().unwrap())
            });
            assert!(found[0] == expected && found[1] == expected, "{method:?}, {kind:?}, {shared:?}");
            let mut resumed = pool(kind, ProcessGroup::single(), ZeroStage::Nothing, method);
            load_state(&mut resumed, folder.path(), "pool", true).unwrap();
            assert_eq!(numbers(&resumed), expected, "{method:?}, {kind:?}, {shared:?}");
            [&mut one, &mut resumed].into_iter().for_each(|pool| step(pool, 3));
            assert_eq!(numbers(&resumed), numbers(&one), "{method:?}, {kind:?}, {shared:?}: a step later");
        }
    }
}

#[test]
fn state_of_another_optimizer_is_refused() {
    let saved = |method| {
        let folder = tempfile::tempdir().unwrap();
        let mut pool = pool(Kind::Float, ProcessGroup::single(), ZeroStage::Nothing, method);
        step(&mut pool, 0);
        save_state(&pool, folder.path(), &Export::Weights(Shards::single()), "pool").unwrap();
        folder
    };
    let methods = [OptimizerMethod::AdamW, OptimizerMethod::AdamW8bit, OptimizerMethod::Muon(MUON)];
    for from in methods {
        let folder = saved(from);
        for to in methods.into_iter().filter(|to| *to != from) {
            let mut pool = pool(Kind::Float, ProcessGroup::single(), ZeroStage::Nothing, to);
            let error = load_state(&mut pool, folder.path(), "pool", true).unwrap_err().to_string();
            assert!(error.contains("train.optimizer.type"), "{from:?} to {to:?}: {error}");
        }
    }
}
