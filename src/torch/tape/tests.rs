//! A small model of twelve layers, run as one autograd graph and as a tape under both policies.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::{Custom, Execution, Needs, ParamGrads, Policy, Slot, Tape};
use crate::native::{MemoryWatch, grad};
use crate::params::{GradBuffer, Init, ParamId, ParamSpec, ParamStore};

const LAYERS: usize = 12;
pub(super) const WIDTH: i64 = 32;
pub(super) const TOKENS: i64 = 64;

pub(super) fn params() -> Rc<ParamStore> {
    let mut specs = vec![ParamSpec::new("head", &[WIDTH, WIDTH], Init::Normal(0.2))];
    for layer in 0..LAYERS {
        specs.push(ParamSpec::new(format!("{layer}.norm"), &[WIDTH], Init::Ones));
        specs.push(ParamSpec::new(format!("{layer}.up"), &[4 * WIDTH, WIDTH], Init::Normal(0.2)));
        specs.push(ParamSpec::new(format!("{layer}.down"), &[WIDTH, 4 * WIDTH], Init::Normal(0.1)));
    }
    let store = ParamStore::new(specs, Kind::Float, Device::Cpu);
    store.init_random(1);
    Rc::new(store)
}

fn ids(params: &ParamStore, layer: usize) -> [ParamId; 3] {
    ["norm", "up", "down"].map(|name| params.id(&format!("{layer}.{name}")))
}

fn branch(x: &Tensor, [norm, up, down]: &[Tensor; 3]) -> Tensor {
    x.rms_norm([WIDTH], Some(norm), 1e-6).linear(up, None::<Tensor>).gelu("none").linear(down, None::<Tensor>)
}

/// Two rows of features are put into the input, and added again after the second layer.
fn rows() -> Rc<Tensor> {
    Rc::new(Tensor::from_slice(&[3i64, 40]))
}

/// The head is tied: it is read at both ends.
pub(super) fn tape(params: &Rc<ParamStore>, policy: Policy) -> (Tape, [Slot; 2], Slot) {
    let mut tape = Tape::new();
    let (input, features) = (tape.input(true), tape.input(true));
    let head = params.get("head");
    let tied = head.shallow_clone();
    let first = move |reads: &[Tensor]| vec![reads[0].matmul(&head)];
    let embedded = tape.run("embed", &[params.id("head")], policy, &[input], 1, first)[0];
    let mut x = tape.put_rows(embedded, rows(), features);
    for layer in 0..LAYERS {
        let ids = ids(params, layer);
        let leaves = ids.map(|id| params.leaf(id).shallow_clone());
        let forward = move |reads: &[Tensor]| vec![branch(&reads[0], &leaves)];
        let y = tape.run(format!("layer {layer}"), &ids, policy, &[x], 1, forward)[0];
        x = tape.add(x, y);
        if layer == 1 {
            x = tape.add_rows(x, rows(), features);
        }
    }
    let x = tape.take_rows(x, Rc::new(counted()));
    let last = move |reads: &[Tensor]| vec![reads[0].linear(&tied, None::<Tensor>)];
    let output = tape.run("head", &[params.id("head")], policy, &[x], 1, last)[0];
    (tape, [input, features], output)
}

/// Returns the rows that the head reads.
fn counted() -> Tensor {
    Tensor::from_slice(&[0i64, 3, 17, 63])
}

pub(super) fn random(shape: &[i64], name: &str) -> Tensor {
    let store = ParamStore::new(vec![ParamSpec::new(name, shape, Init::Normal(1.0))], Kind::Float, Device::Cpu);
    store.init_random(2);
    store.get(name).detach().copy()
}

pub(super) struct Results {
    pub output: Tensor,
    pub inputs: Vec<Tensor>,
    pub grads: GradBuffer,
    pub held: i64,
    pub peak: i64,
}

fn on_tape(params: &Rc<ParamStore>, policy: Policy) -> Results {
    let (tape, slots, output) = tape(params, policy);
    let values = vec![(slots[0], random(&[TOKENS, WIDTH], "x")), (slots[1], random(&[2, WIDTH], "features"))];
    let (seed, mut grads) = (random(&[4, WIDTH], "seed"), params.new_grad());
    let watch = MemoryWatch::start();
    let mut execution = Execution::new(Rc::new(tape), params.clone(), values);
    execution.forward().unwrap();
    let held = watch.current();
    execution.seed(output, seed);
    execution.backward(Some(&mut grads)).unwrap();
    let inputs = slots.iter().map(|slot| execution.input_grad(*slot).unwrap()).collect();
    Results { output: execution.value(output).shallow_clone(), inputs, grads, held, peak: watch.peak() }
}

pub(super) fn on_one_graph(params: &Rc<ParamStore>) -> Results {
    let input = random(&[TOKENS, WIDTH], "x").set_requires_grad(true);
    let features = random(&[2, WIDTH], "features").set_requires_grad(true);
    let head = params.get("head");
    let mut x = input.matmul(&head).index_copy(0, &rows(), &features);
    for layer in 0..LAYERS {
        // The norm reads its input twice: as one read, its two gradients are summed before the residual's is added.
        let read = x.view_as(&x);
        x = &x + branch(&read, &ids(params, layer).map(|id| params.leaf(id).shallow_clone()));
        if layer == 1 {
            x = x.index_add(0, &rows(), &features);
        }
    }
    let output = x.index_select(0, &counted()).linear(&head, None::<Tensor>);
    let leaves: Vec<_> = params.ids().map(|id| params.leaf(id)).collect();
    let wanted: Vec<_> = [&input, &features].into_iter().chain(leaves).collect();
    let mut found = grad(&[&output], &[&random(&[4, WIDTH], "seed")], &wanted).unwrap().into_iter().flatten();
    let inputs = vec![found.next().unwrap(), found.next().unwrap()];
    let mut grads = params.new_grad();
    params.ids().zip(found).for_each(|(id, grad)| grads.add(id, &grad));
    Results { output: output.detach(), inputs, grads, held: 0, peak: 0 }
}

pub(super) fn assert_bit_equal(a: &Results, b: &Results) {
    assert_eq!(a.output, b.output);
    assert_eq!(a.inputs, b.inputs);
    assert_eq!(a.grads.flat(), b.grads.flat());
    assert!(a.grads.flat().norm().double_value(&[]) > 1.0, "the gradients are not trivial");
}

#[test]
fn keep_and_recompute_give_the_bits_of_one_graph() {
    let params = params();
    let one = on_one_graph(&params);
    assert_bit_equal(&on_tape(&params, Policy::Keep), &one);
    assert_bit_equal(&on_tape(&params, Policy::Recompute), &one);
}

#[test]
fn recompute_at_least_halves_the_peak_of_memory() {
    let params = params();
    let (keep, recompute) = (on_tape(&params, Policy::Keep), on_tape(&params, Policy::Recompute));
    assert!(2 * recompute.peak <= keep.peak, "{} bytes against {}", recompute.peak, keep.peak);
    assert!(2 * recompute.held <= keep.held, "{} bytes against {}", recompute.held, keep.held);
}

#[test]
fn forward_only_keeps_nothing_but_the_output() {
    let params = params();
    let (tape, slots, output) = tape(&params, Policy::Keep);
    let values = vec![(slots[0], random(&[TOKENS, WIDTH], "x")), (slots[1], random(&[2, WIDTH], "features"))];
    let watch = MemoryWatch::start();
    let mut execution = Execution::forward_only(Rc::new(tape), params.clone(), values);
    execution.forward().unwrap();
    assert_eq!(watch.current(), 4 * WIDTH * 4);
    assert_eq!(execution.value(output), &on_one_graph(&params).output);
}

#[test]
fn a_frozen_pool_passes_gradients_through_and_gets_none() {
    let params = params();
    let trained = on_tape(&params, Policy::Keep);
    params.set_trainable(false);
    let frozen = on_tape(&params, Policy::Keep);
    assert_eq!(frozen.inputs, trained.inputs);
    assert_eq!(frozen.grads.flat().abs().max().double_value(&[]), 0.0);
}

#[test]
fn backward_frees_what_forward_kept() {
    let params = params();
    let (tape, slots, output) = tape(&params, Policy::Keep);
    let values = vec![(slots[0], random(&[TOKENS, WIDTH], "x")), (slots[1], random(&[2, WIDTH], "features"))];
    let (seed, mut grads) = (random(&[4, WIDTH], "seed"), params.new_grad());
    let watch = MemoryWatch::start();
    let mut execution = Execution::new(Rc::new(tape), params.clone(), values);
    execution.forward().unwrap();
    execution.seed(output, seed);
    execution.backward(Some(&mut grads)).unwrap();
    // The output, and the gradients of the two inputs.
    assert_eq!(watch.current(), (4 + TOKENS + 2) * WIDTH * 4);
}

/// `sum(x²) · w` with its own backward.
struct SquareSum {
    weight: Tensor,
}

impl Custom for SquareSum {
    fn forward(&self, reads: &[Tensor], needs: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let sum = reads[0].square().sum(Kind::Float);
        let saved = if needs.is_some() { vec![reads[0].shallow_clone(), sum.copy()] } else { Vec::new() };
        (vec![sum * &self.weight], saved)
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        needs: &Needs,
        params: Option<&ParamGrads<'_>>,
    ) -> Vec<Option<Tensor>> {
        let gradient = grads[0].as_ref().unwrap();
        if let Some(params) = params {
            let _ = params.sum(0).shallow_clone().g_add_(&(&saved[1] * gradient));
        }
        vec![needs.reads[0].then(|| &saved[0] * 2.0 * &self.weight * gradient)]
    }
}

#[test]
fn a_custom_operation_uses_its_own_backward() {
    let params = Rc::new(ParamStore::new(vec![ParamSpec::new("w", &[], Init::Ones)], Kind::Float, Device::Cpu));
    params.init_random(0);
    let mut tape = Tape::new();
    let x = tape.input(true);
    let custom = Box::new(SquareSum { weight: params.get("w") });
    let y = tape.custom("square sum", &[params.id("w")], &[x], 1, custom)[0];
    let mut execution = Execution::new(Rc::new(tape), params.clone(), vec![(x, Tensor::from_slice(&[1f32, 2.0]))]);
    execution.forward().unwrap();
    assert_eq!(execution.value(y).double_value(&[]), 5.0);
    execution.seed(y, Tensor::from(3f32));
    let mut grads = params.new_grad();
    execution.backward(Some(&mut grads)).unwrap();
    assert_eq!(execution.input_grad(x).unwrap(), Tensor::from_slice(&[6f32, 12.0]));
    assert_eq!(grads.flat().double_value(&[0]), 15.0);
}
