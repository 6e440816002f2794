//! The code that the tests of layouts share: micro-batches, a step of one rank, and the comparison with one process.

use crate::comm::{Mesh, ProcessGroup};
use crate::model::{Columns, FoundationModel, MicroBatch, ModelConfig};
use crate::native::NativeError;
use crate::params::ParamStore;
use crate::tape::{Execution, Slot, Tape};
use crate::train::{AdamWConfig, TrainState};
use loongforge_core::config::Layout;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

/// A large `eps`: rounding of a gradient near zero is not to become a whole step.
pub const ADAMW: AdamWConfig = AdamWConfig { betas: [0.9, 0.95], eps: 1e-3, weight_decay: 0.1 };
pub const CLIP: f64 = 0.5;
pub const LEARNING_RATE: f64 = 1e-2;

/// Returns a fixture's model.
pub fn model(config: &str) -> ModelConfig {
    ModelConfig::from_hf(&serde_json::from_str(config).unwrap()).unwrap()
}

/// Returns packed documents of these lengths, the tokens drawn by `seed`; `num_micro_batches` make a step.
pub fn micro_batch(lens: &[usize], seed: i64, vocab: i64, num_micro_batches: usize) -> MicroBatch {
    let (mut ids, mut positions, mut targets, mut cu_seqlens) = (Vec::new(), Vec::new(), Vec::new(), vec![0]);
    for (document, &len) in (0i64..).zip(lens) {
        let id = |at: i64| (seed * 977 + document * 131 + at * at * 7 + at * 13) % (vocab - 10) + 1;
        ids.extend((0..len as i64).map(id));
        positions.extend(0..len as i64);
        targets.extend((1..=len as i64).map(|next| if next < len as i64 { id(next) } else { -100 }));
        cu_seqlens.push(ids.len());
    }
    MicroBatch {
        samples: Rc::new([]),
        columns: Columns::of_tokens(
            Tensor::from_slice(&ids),
            Tensor::from_slice(&positions.repeat(3)).view([3, -1]).to_kind(Kind::Float),
            Tensor::from_slice(&targets),
        ),
        cu_seqlens,
        loss_scale: 1.0 / (50.0 * num_micro_batches as f64),
        num_features: Vec::new(),
        feature_grads: false,
        constant_features: Default::default(),
        row: None,
        shared_features: Vec::new(),
        past: None,
        evaluates: false,
    }
}

/// Runs one thread a rank.
pub fn on_ranks<T: Send>(world: usize, body: impl Fn(&Path, usize) -> T + Sync) -> Vec<T> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world)
            .map(|rank| {
                let (body, path) = (&body, &path);
                scope.spawn(move || body(path, rank))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Returns the groups of a rank of `dp` replicas of `pp` stages.
pub fn mesh(path: &Path, dp: usize, pp: usize, rank: usize) -> Rc<Mesh> {
    let layout = Layout { pp, ..Layout::replicas(dp) };
    Rc::new(Mesh::join(path, "pool", layout, rank, Duration::from_secs(60)).unwrap())
}

pub fn join(path: &Path, name: &str, rank: usize, world: usize) -> ProcessGroup {
    ProcessGroup::gloo(path, name, rank, world, Duration::from_secs(60)).unwrap()
}

/// Values that a tape begins with.
type Inputs = Vec<(Slot, Tensor)>;

/// Returns executions that keep everything.
pub fn begin(params: &Rc<ParamStore>) -> impl FnMut(usize, Rc<Tape>, Inputs) -> Result<Execution, NativeError> + use<> {
    let params = params.clone();
    move |_, tape, inputs| Ok(Execution::new(tape, params.clone(), inputs))
}

/// Runs forward and backward of one micro-batch, and returns its loss.
pub fn compute(model: &dyn FoundationModel, pool: &mut TrainState, batch: &MicroBatch) -> f64 {
    let record = model.record(batch);
    let mut run = Execution::new(record.tape, pool.params().clone(), vec![]);
    run.forward().unwrap();
    let slot = record.loss.unwrap();
    let loss = run.value(slot).double_value(&[]);
    run.seed(slot, Tensor::from(1.0));
    let lane = pool.own_lane();
    run.backward(pool.lane(lane)).unwrap();
    loss
}

/// The results of training.
#[derive(Default)]
pub struct Course {
    /// The losses of this rank's micro-batches.
    pub losses: Vec<f64>,
    pub norms: Vec<f64>,
    /// The values of the last step.
    pub grads: BTreeMap<String, Tensor>,
    pub weights: BTreeMap<String, Tensor>,
}

impl Course {
    /// Reduces and applies a step of which the micro-batches are computed.
    pub fn end_step(&mut self, pool: &mut TrainState, loss: f64) {
        self.losses.push(loss);
        self.norms.push(pool.reduce().unwrap().sqrt());
        let params = pool.params().clone();
        let name = |id| params.spec(id).name.clone();
        self.grads = params.trained_ids().map(|id| (name(id), pool.reduced(id).unwrap().copy())).collect();
        pool.commit(CLIP, LEARNING_RATE).unwrap();
        self.weights = weights(pool);
    }

    /// Adds the averages of the weights, which are the weights meanwhile.
    pub fn add_averages(&mut self, pool: &mut TrainState) {
        pool.use_ema().unwrap();
        assert!(pool.uses_ema());
        self.weights.extend(weights(pool).into_iter().map(|(name, average)| (format!("{name}.ema"), average)));
        pool.use_own().unwrap();
        assert!(weights(pool).iter().all(|(name, own)| own.equal(&self.weights[name])));
    }
}

fn weights(pool: &TrainState) -> BTreeMap<String, Tensor> {
    let params = pool.params();
    let whole = || params.ids().map(|id| (params.spec(id).name.clone(), params.value(id).copy())).collect();
    pool.with_whole(whole).unwrap()
}

/// Panics where two courses differ by more than `tolerance`, relative to the largest value of each tensor, or to a thousandth of the
/// largest gradient where a gradient is smaller: `tolerance` 1e-5 of that is less than float32 rounds the largest by, and gradients of
/// norms of keys are what is left of summands thousands of times as large.
pub fn assert_equal(found: &Course, expected: &Course, tolerance: f64, what: &str) {
    assert_eq!(found.losses.len(), expected.losses.len());
    let numbers = |pair: (&Vec<f64>, &Vec<f64>), name: &str| {
        for (step, (found, expected)) in pair.0.iter().zip(pair.1).enumerate() {
            let error = (found - expected).abs() / expected.abs();
            // Norms are sums of other blocks.
            assert!(error <= tolerance.max(1e-7), "{what}: {name} of step {step}: {found} and {expected}");
        }
    };
    numbers((&found.losses, &expected.losses), "loss");
    numbers((&found.norms, &expected.norms), "norm");
    let most = |x: &Tensor| x.to_kind(Kind::Double).abs().max().double_value(&[]);
    for (found, expected, kind) in
        [(&found.grads, &expected.grads, "gradient"), (&found.weights, &expected.weights, "weight")]
    {
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
        let largest = expected.values().map(most).fold(0.0, f64::max);
        let least = if kind == "gradient" { 1e-3 * largest } else { 0.0 };
        for (name, found) in found {
            let (error, size) = (most(&(found - &expected[name])), most(&expected[name]));
            assert!(error <= tolerance * size.max(least), "{what}: {kind} of {name}: {error} of {size}");
        }
    }
}

/// Returns the sum over ranks of their losses, with what else the first has.
pub fn together(courses: Vec<Course>) -> Course {
    let mut courses = courses.into_iter();
    let mut sum = courses.next().unwrap();
    for course in courses {
        sum.losses.iter_mut().zip(course.losses).for_each(|(sum, loss)| *sum += loss);
    }
    sum
}

pub const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);
