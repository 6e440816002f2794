//! Attention of a row that ranks share against that of one process: outputs, and gradients of queries, keys and values.
//! One thread a rank, real groups.

use std::rc::Rc;
use std::time::Duration;

use loongforge_core::config::{ContextAttention, Layout};
use tch::{Device, Kind, Tensor};

use super::{ContextShard, RowSplit};
use crate::comm::Mesh;
use crate::native::grad;
use crate::nn::{Mask, PackedAttention};
use crate::params::{Init, ParamSpec, ParamStore};
use crate::tape::{Execution, Policy, Tape};

const SCALE: f64 = 0.3;

#[derive(Clone, Copy)]
struct Shape {
    heads: i64,
    kv_heads: i64,
    width: i64,
    values: i64,
    kind: Kind,
}

/// Returns the queries, keys, values and the gradient of the output, of all tokens.
fn tensors(tokens: i64, shape: Shape) -> [Tensor; 4] {
    let Shape { heads, kv_heads, width, values, kind } = shape;
    let draw = |name: &str, size: &[i64]| {
        let store = ParamStore::new(vec![ParamSpec::new(name, size, Init::Normal(1.0))], Kind::Double, Device::Cpu);
        store.init_random(4);
        store.get(name).detach().copy().to_kind(kind)
    };
    [
        draw("q", &[tokens, heads, width]),
        draw("k", &[tokens, kv_heads, width]),
        draw("v", &[tokens, kv_heads, values]),
        draw("dy", &[tokens, heads * values]),
    ]
}

/// Returns the output, and gradients of queries, keys and values, from the definition.
fn on_one(cu_seqlens: &[usize], shape: Shape) -> Vec<Tensor> {
    let [q, k, v, dy] = tensors(*cu_seqlens.last().unwrap() as i64, shape);
    let leaves = [q, k, v].map(|x| x.set_requires_grad(true));
    let [q, k, v] = &leaves;
    let y = PackedAttention::new(cu_seqlens, Mask::Causal, Device::Cpu).forward_with(q, k, v, SCALE.into());
    let grads = grad(&[&y], &[&dy], &[q, k, v]).unwrap();
    std::iter::once(y.detach()).chain(grads.into_iter().flatten()).collect()
}

/// Returns the same among ranks, put together in the order of the row.
fn on_ranks(cu_seqlens: &[usize], shape: Shape, ranks: usize, method: ContextAttention) -> Vec<Tensor> {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let run = |rank: usize| {
        let layout = Layout { cp: ranks, ..Layout::default() };
        let mesh = Rc::new(Mesh::join(&store, "pool", layout, rank, Duration::from_secs(60)).unwrap());
        let row = Rc::new(ContextShard::new(cu_seqlens, ranks, rank, method, Device::Cpu));
        let mine = tensors(*cu_seqlens.last().unwrap() as i64, shape).map(|x| x.index_select(0, &row.rows()));
        let mut tape = Tape::new();
        let slots = [tape.input(true), tape.input(true), tape.input(true)];
        let y = row.attention(&mut tape, "layer 0", slots, SCALE, Policy::Keep);
        let params = Rc::new(ParamStore::new(Vec::new(), shape.kind, Device::Cpu));
        let inputs = slots.iter().zip(&mine).map(|(slot, x)| (*slot, x.shallow_clone())).collect();
        let mut execution = Execution::new(Rc::new(tape), params, inputs).with_mesh(mesh.clone());
        execution.forward().unwrap();
        let output = execution.value(y).copy();
        execution.seed(y, mine[3].shallow_clone());
        execution.backward(None).unwrap();
        mesh.world.barrier().unwrap();
        let grads = slots.iter().map(|slot| execution.input_grad(*slot).unwrap());
        std::iter::once(output).chain(grads).collect::<Vec<Tensor>>()
    };
    let found: Vec<Vec<Tensor>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let places = Tensor::from_slice(&RowSplit::new(cu_seqlens, ranks).places());
    let joined = |which: usize| {
        let parts: Vec<&Tensor> = found.iter().map(|rank| &rank[which]).collect();
        Tensor::cat(&parts, 0).index_select(0, &places)
    };
    (0..4).map(joined).collect()
}

fn error(found: &Tensor, expected: &Tensor) -> f64 {
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    (&found - &expected).abs().max().double_value(&[]) / expected.abs().max().double_value(&[])
}

fn check(cu_seqlens: &[usize], shape: Shape, ranks: usize, method: ContextAttention, tolerance: f64) {
    let expected = on_one(cu_seqlens, shape);
    let found = on_ranks(cu_seqlens, shape, ranks, method);
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let error = error(found, expected);
        let what = ["y", "dq", "dk", "dv"][at];
        assert!(error <= tolerance, "{what} of {cu_seqlens:?} on {ranks} ranks, {method:?}: {error}");
    }
}

const UNEVEN: &[usize] = &[0, 1, 40, 43, 43, 110, 117, 120];
const PLAIN: Shape = Shape { heads: 4, kv_heads: 2, width: 8, values: 8, kind: Kind::Double };

#[test]
fn keys_go_round_and_nothing_changes() {
    for ranks in [2, 4] {
        check(UNEVEN, PLAIN, ranks, ContextAttention::Ring, 1e-12);
        check(&[0, 64], Shape { kv_heads: 4, ..PLAIN }, ranks, ContextAttention::Ring, 1e-12);
    }
    check(UNEVEN, Shape { kind: Kind::Float, ..PLAIN }, 3, ContextAttention::Ring, 1e-5);
    check(&[0, 50, 100, 150], Shape { kv_heads: 1, ..PLAIN }, 2, ContextAttention::Ring, 1e-12);
}

#[test]
fn heads_are_exchanged_and_nothing_changes() {
    for ranks in [2, 4] {
        check(UNEVEN, PLAIN, ranks, ContextAttention::Ulysses, 1e-12);
    }
    check(UNEVEN, Shape { kind: Kind::Float, kv_heads: 4, ..PLAIN }, 2, ContextAttention::Ulysses, 1e-5);
}

#[test]
fn values_may_be_narrower_than_keys() {
    let shape = Shape { kv_heads: 4, width: 12, values: 8, ..PLAIN };
    check(UNEVEN, shape, 2, ContextAttention::Ring, 1e-12);
    check(UNEVEN, shape, 2, ContextAttention::Ulysses, 1e-12);
}

#[test]
fn bfloat16_goes_round_as_well() {
    check(&[0, 90, 128], Shape { kind: Kind::BFloat16, ..PLAIN }, 2, ContextAttention::Ring, 4e-2);
}
