//! The optimizer against its formula, lanes against one replica, state against itself.

use super::hf::Shards;
use super::{AdamWConfig, Export, Lanes, TrainState, WeightsError, load_state, load_weights, save_state, save_weights};
use crate::comm::ProcessGroup;
use crate::params::{Init, ParamSpec, ParamStore};
use loongforge_core::message::Lane;
use std::rc::Rc;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

const CONFIG: AdamWConfig = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };

fn store(kind: Kind) -> Rc<ParamStore> {
    let specs = vec![ParamSpec::new("norm", &[3], Init::Ones), ParamSpec::new("weight", &[4, 3], Init::Normal(0.5))];
    let store = ParamStore::new(specs, kind, Device::Cpu);
    store.init_random(11);
    Rc::new(store)
}

fn pool(kind: Kind, group: ProcessGroup, lanes: Lanes) -> TrainState {
    TrainState::new(store(kind), group, lanes, Some(CONFIG)).unwrap()
}

/// Adds a gradient that depends on the lane and the round.
fn add_grads(pool: &mut TrainState, lane: u32, round: u32) {
    let params = pool.params().clone();
    for id in params.ids() {
        let shape = params.spec(id).shape.clone();
        let count: i64 = shape.iter().product();
        let grad = grad_of(count, lane, round);
        pool.lane(Lane(lane)).unwrap().add(id, &grad.view(shape.as_slice()));
    }
}

fn grad_of(count: i64, lane: u32, round: u32) -> Tensor {
    (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.37 + f64::from(lane * 7 + round)).sin()
}

fn bits(pool: &TrainState) -> Vec<f64> {
    Vec::<f64>::try_from(pool.params().flat().detach().to_kind(Kind::Double)).unwrap()
}

#[test]
fn adamw_is_its_formula() {
    let mut pool = pool(Kind::Float, ProcessGroup::single(), Lanes::PerReplica);
    let params = pool.params().clone();
    let values = |name: &str| Vec::<f64>::try_from(params.get(name).detach().view([-1]).to_kind(Kind::Double)).unwrap();
    for name in ["weight", "norm"] {
        assert!(values(name).iter().any(|value| *value != 0.0));
    }
    let (lr, decay, beta1, beta2): (f64, f64, f64, f64) = (1e-2, 0.1, 0.9, 0.95);
    let mut want: Vec<Vec<f64>> = ["weight", "norm"].map(values).to_vec();
    let mut moments = want.iter().map(|part| vec![(0.0, 0.0); part.len()]).collect::<Vec<_>>();
    for step in 1..=3 {
        add_grads(&mut pool, 0, step);
        pool.reduce().unwrap();
        pool.commit(0.5, lr).unwrap();
        for (part, decays) in [(0, true), (1, false)] {
            for (index, value) in want[part].iter_mut().enumerate() {
                let grad = 0.5 * (index as f64 * 0.37 + f64::from(step)).sin();
                let (m, v) = &mut moments[part][index];
                *m = beta1 * *m + (1.0 - beta1) * grad;
                *v = beta2 * *v + (1.0 - beta2) * grad * grad;
                if decays {
                    *value -= lr * decay * *value;
                }
                let (m, v) = (*m / (1.0 - beta1.powi(step as i32)), *v / (1.0 - beta2.powi(step as i32)));
                *value -= lr * m / (v.sqrt() + 1e-8);
            }
        }
    }
    for (name, want) in ["weight", "norm"].into_iter().zip(want) {
        for (found, want) in values(name).into_iter().zip(want) {
            // Float32 against float64 over three steps.
            assert!((found - want).abs() < 2e-6, "{name}: {found} and {want}");
        }
    }
}

#[test]
fn fixed_lanes_give_the_same_bits_on_any_number_of_replicas() {
    let alone = |lanes: u32| {
        let mut pool = pool(Kind::Float, ProcessGroup::single(), Lanes::Fixed(lanes));
        for round in 0..2 {
            (0..lanes).for_each(|lane| add_grads(&mut pool, lane, round));
            pool.reduce().unwrap();
            pool.commit(0.9, 1e-2).unwrap();
        }
        bits(&pool)
    };
    for (lanes, world) in [(4, 2), (3, 2), (4, 4), (2, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let replica = |rank: usize, path: std::path::PathBuf| {
            let group = ProcessGroup::gloo(&path, "pool", rank, world, Duration::from_secs(60)).unwrap();
            let mut pool = pool(Kind::Float, group, Lanes::Fixed(lanes));
            for round in 0..2 {
                (rank as u32..lanes).step_by(world).for_each(|lane| add_grads(&mut pool, lane, round));
                pool.reduce().unwrap();
                pool.commit(0.9, 1e-2).unwrap();
            }
            bits(&pool)
        };
        let found: Vec<Vec<f64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..world).map(|rank| (rank, path.clone())).collect();
            let threads = threads.into_iter().map(|(rank, path)| scope.spawn(move || replica(rank, path)));
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let want = alone(lanes);
        assert!(found.iter().all(|replica| *replica == want), "{lanes} lanes on {world} replicas");
    }
}

/// Three rounds on replicas that change after each: who comes takes the state of the first, lanes belong to whom the round
/// gives them, and a reduction that one misses leaves them as they were.
#[test]
fn replicas_that_come_and_go_give_the_bits_of_one() {
    // Replicas of each round, in the order of their ranks, and whose the four lanes are.
    const ROUNDS: [(&[usize], [usize; 4]); 3] =
        [(&[0, 1, 2], [0, 1, 2, 0]), (&[2, 0], [2, 0, 2, 2]), (&[0, 3, 2], [3, 2, 2, 0])];
    let alone = {
        let mut pool = pool(Kind::BFloat16, ProcessGroup::single(), Lanes::Fixed(4));
        for round in 0..3 {
            (0..4).for_each(|lane| add_grads(&mut pool, lane, round));
            pool.reduce().unwrap();
            pool.commit(0.9, 1e-2).unwrap();
        }
        bits(&pool)
    };
    let folder = tempfile::tempdir().unwrap();
    let replica = |me: usize| {
        let mut pool = pool(Kind::BFloat16, ProcessGroup::single(), Lanes::Fixed(4)).elastic(0);
        let mut is_new = true;
        for (round, (members, of)) in ROUNDS.into_iter().enumerate() {
            let Some(rank) = members.iter().position(|&member| member == me) else { continue };
            let store = folder.path().join(format!("store-{round}"));
            let group = |name, timeout| ProcessGroup::gloo(&store, name, rank, members.len(), timeout);
            pool.set_group(group("pool", Duration::from_secs(60)).unwrap());
            if round > 0 {
                // All but the first take what it has; for those that are not new it is what they have.
                let before = bits(&pool);
                pool.take_from_first().unwrap();
                assert!(is_new || before == bits(&pool));
            }
            is_new = false;
            for lane in (0..4).filter(|&lane| of[lane] == me) {
                let params = pool.params().clone();
                for id in params.ids() {
                    let shape = params.spec(id).shape.clone();
                    let grad = grad_of(shape.iter().product(), lane as u32, round as u32);
                    pool.any_lane(Lane(lane as u32)).unwrap().add(id, &grad.view(shape.as_slice()));
                }
            }
            let rank_of = |replica: usize| members.iter().position(|&member| member == replica).unwrap();
            let owners = (0..4).map(|lane| (Lane(lane as u32), rank_of(of[lane]))).collect();
            // Reduced once in vain, as where another one could not.
            pool.reduce_among(&owners).unwrap();
            pool.reduce_among(&owners).unwrap();
            pool.commit(0.9, 1e-2).unwrap();
        }
        bits(&pool)
    };
    let found: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let replica = &replica;
        let threads: Vec<_> = (0..4).map(|me| scope.spawn(move || replica(me))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Replica 1 was there in the first round alone.
    assert!([0, 2, 3].into_iter().all(|me| found[me] == alone) && found[1] != alone);
}

#[test]
fn an_aborted_step_leaves_nothing() {
    let mut pool = pool(Kind::Float, ProcessGroup::single(), Lanes::PerReplica);
    let before = bits(&pool);
    add_grads(&mut pool, 0, 1);
    assert!(pool.reduce().unwrap() > 0.0);
    pool.abort();
    assert_eq!(bits(&pool), before);
    assert_eq!(pool.reduce().unwrap(), 0.0);
}

#[test]
fn state_comes_back_bit_for_bit() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let step = |pool: &mut TrainState, round| {
            add_grads(pool, 0, round);
            pool.reduce().unwrap();
            pool.commit(1.0, 1e-2).unwrap();
        };
        let folder = tempfile::tempdir().unwrap();
        let mut first = pool(kind, ProcessGroup::single(), Lanes::PerReplica);
        step(&mut first, 1);
        let files = save_state(&first, folder.path(), &Export::Weights(Shards::single()), "encoder").unwrap();
        assert_eq!(files[0].tensors, ["norm", "weight"]);
        step(&mut first, 2);

        let mut second = pool(kind, ProcessGroup::single(), Lanes::PerReplica);
        load_state(&mut second, folder.path(), "encoder", true).unwrap();
        step(&mut second, 2);
        assert_eq!(bits(&first), bits(&second), "{kind:?}");
    }
}

/// Adapters that a run goes on from come when the optimizer is there.
#[test]
fn values_that_were_set_later_are_those_that_steps_change() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let mut pool = pool(kind, ProcessGroup::single(), Lanes::PerReplica);
        let params = pool.params().clone();
        let id = params.id("norm");
        params.set(id, &Tensor::from_slice(&[8f32, -8.0, 16.0]));
        pool.refresh_master();
        add_grads(&mut pool, 0, 1);
        pool.reduce().unwrap();
        pool.commit(1.0, 1e-2).unwrap();
        let found = Vec::<f64>::try_from(params.leaf(id).detach().to_kind(Kind::Double)).unwrap();
        let is_near = |(found, set): (&f64, f64)| (found - set).abs() < 0.1;
        assert!(found.iter().zip([8.0, -8.0, 16.0]).all(is_near), "{kind:?}: {found:?}");
    }
}

#[test]
fn weights_of_another_model_are_refused_whole() {
    let folder = tempfile::tempdir().unwrap();
    save_weights(&store(Kind::Float), folder.path(), &Shards::single()).unwrap();
    let specs = vec![
        ParamSpec::new("norm", &[3], Init::Ones),
        ParamSpec::new("weight", &[3, 4], Init::Zeros),
        ParamSpec::new("bias", &[4], Init::Zeros),
    ];
    let other = ParamStore::new(specs, Kind::Float, Device::Cpu);
    let error = load_weights(&other, folder.path()).unwrap_err().to_string();
    assert!(error.contains("weight  checkpoint [4, 3], model [3, 4]"), "{error}");
    assert!(error.contains("missing (1):\n    bias  model [4]"), "{error}");
    assert_eq!(other.flat().abs().sum(Kind::Float).double_value(&[]), 0.0);
}

#[test]
fn a_torn_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let params = store(Kind::Float);
    let error = || load_weights(&params, folder.path()).unwrap_err();
    assert!(matches!(error(), WeightsError::NoWeights { .. }));
    assert!(error().to_string().ends_with("(nor its .index.json)"), "{}", error());
    for (name, part) in [
        ("vae", "it has vae.safetensors: name"),
        ("text", "it has text.safetensors and 1 more"),
        ("model-00001-of-00002", "it has model-00001-of-00002.safetensors, but not the index"),
    ] {
        std::fs::write(folder.path().join(name).with_extension("safetensors"), "").unwrap();
        assert!(error().to_string().contains(part), "{}", error());
    }
    save_weights(&params, folder.path(), &Shards::single()).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for len in [0, 7, 8, 30, whole.len() - 1] {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = load_weights(&params, folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("model.safetensors") && error.contains("not a whole safetensors file"),
            "{len}: {error}"
        );
    }
}
