//! A sample of several documents against its documents apart.

use super::super::layout_tests::{mesh, on_ranks};
use super::*;
use crate::comm::Mesh;
use crate::model::{ModelConfig, Stage};
use crate::params::ParamStore;
use crate::tape::Policy;
use crate::train::{AdamWConfig, Lanes};
use loongforge_core::message::{Pack, PackId, SampleId, SampleMeta};
use loongforge_core::schedule::Pipeline;
use loongforge_core::transport::Header;
use loongforge_core::transport::{Buffer, HostTensor, TensorMeta};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tch::{Device, Kind};

const CONFIG: &str = include_str!("../tests/fixtures/qwen3-seed1/config.json");
/// Tokens of the documents.
const LENS: [u32; 3] = [5, 9, 3];

/// Returns the ids, positions and targets of documents end to end; the last token of each has no target.
fn tokens(documents: &[usize]) -> [Vec<i64>; 3] {
    let (mut ids, mut positions, mut targets) = (Vec::new(), Vec::new(), Vec::new());
    for &document in documents {
        let len = i64::from(LENS[document]);
        let id = |at: i64| (document as i64 * 31 + at * 7) % 50 + 1;
        ids.extend((0..len).map(id));
        positions.extend(0..len);
        targets.extend((1..=len).map(|next| if next < len { id(next) } else { -100 }));
    }
    [ids, positions.repeat(3), targets]
}

/// Holds a tensor of a sender, and counts those that were given back.
struct Lent(HostTensor, Arc<AtomicUsize>);

impl Buffer for Lent {
    fn meta(&self) -> TensorMeta {
        self.0.meta()
    }

    fn copy_to(&self, out: &mut [u8]) {
        self.0.copy_to(out);
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.0.bytes()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
    }
}

/// Returns the columns of documents end to end.
fn columns(documents: &[usize], given_back: &Arc<AtomicUsize>) -> Vec<Box<dyn Buffer>> {
    let [ids, positions, targets] = tokens(documents);
    let len = ids.len();
    let positions: Vec<f32> = positions.iter().map(|at| *at as f32).collect();
    let lent = |tensor| Box::new(Lent(tensor, given_back.clone())) as Box<dyn Buffer>;
    vec![
        lent(HostTensor::from_i64(&ids, &[len])),
        lent(HostTensor::from_f32(&positions, &[3, len])),
        lent(HostTensor::from_i64(&targets, &[len])),
    ]
}

/// The gradients of parameters by their names.
type Gradients = BTreeMap<String, Vec<f64>>;

/// Returns the loss and gradient of a step whose packs are samples of documents.
fn step(packs: &[&[&[usize]]]) -> (f64, Vec<f64>) {
    let (loss, grads) = step_on(packs, Rc::new(Mesh::single()), 0);
    (loss, grads.into_values().flatten().collect())
}

/// Returns the loss and gradients by name of one rank's stage.
fn step_on(packs: &[&[&[usize]]], mesh: Rc<Mesh>, chunk_tokens: usize) -> (f64, Gradients) {
    let config = ModelConfig::from_hf(&serde_json::from_str(CONFIG).unwrap()).unwrap();
    let pipeline = Pipeline { ranks: mesh.pp.world(), virtual_stages: 1 };
    let family = config.foundation;
    let stage = Stage::all(pipeline.layers(family.num_layers()).unwrap()).swap_remove(mesh.pp.rank());
    let params = ParamStore::new(family.stage_specs(&stage), Kind::Float, Device::Cpu);
    params.init_random(3);
    let optimizer = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };
    let pool = TrainState::new(Rc::new(params), mesh.data.clone(), Lanes::PerReplica, Some(optimizer)).unwrap();
    let pool = pool.with_stages(mesh.pp.clone(), &family.shared_by_stages());
    let model = family.build_stage(&stage, pool.params(), Policy::Keep);
    let (leads, replica_ranks) = (mesh.is_leader(), mesh.replica.world() as u32);
    let (replica, replicas) = (mesh.place().dp as u32, mesh.layout().dp as u32);
    let mut worker = FoundationWorker::new(
        Replica::foundation(replica),
        Stages::new(mesh, pipeline, vec![model], chunk_tokens),
        pool,
        BTreeMap::new(),
    );
    let sample = |(id, &documents): (usize, &&[usize])| {
        let lens: Vec<u32> = documents.iter().map(|&document| LENS[document]).collect();
        let num_targets = lens.iter().map(|len| len - 1).sum();
        let meta = SampleMeta::of_tokens(SampleId(id as u64), lens.iter().sum(), num_targets);
        SampleMeta { documents: if lens.len() > 1 { lens } else { Vec::new() }, ..meta }
    };
    let packs_of_plan = packs.iter().enumerate().map(|(index, samples)| Pack {
        id: PackId { step: StepId(0), index: index as u32 },
        replica: Replica::foundation(index as u32 % replicas),
        samples: samples.iter().enumerate().map(sample).collect(),
    });
    worker.plan(&StepPlan {
        step: StepId(0),
        purpose: Default::default(),
        cursor: SampleId(9),
        learning_rate: 0.1,
        num_targets: LENS.iter().map(|len| u64::from(len - 1)).sum(),
        replica_ranks: [(PoolName::FOUNDATION, replica_ranks)].into(),
        packs: packs_of_plan.collect(),
        units: Vec::new(),
    });
    let (events, _told) = flume::bounded(1);
    let mut ports = Ports::new(ActorId::foundation(0), events, BTreeMap::new());
    let given_back = Arc::new(AtomicUsize::new(0));
    for (index, samples) in packs.iter().enumerate() {
        let tensors = columns(&samples.concat(), &given_back);
        let kind = ParcelKind::Columns(PackId { step: StepId(0), index: index as u32 });
        if leads && index as u32 % replicas == replica {
            let parcel = Parcel::new(Header { kind, version: Version(0) }, tensors);
            worker.arrive(ActorId::data(0), parcel, &mut ports).unwrap();
        }
    }
    let mut is_busy = || worker.work(Version(0), &mut ports).unwrap() == Progress::Busy;
    let mut goes_on = is_busy();
    let sends_on = leads && replica_ranks > 1;
    assert!(!sends_on || given_back.load(SeqCst) >= 3, "credit of columns that are sent on");
    while goes_on {
        goes_on = is_busy();
    }
    assert!(worker.is_finished());
    let lane = worker.rank.state.own_lane();
    if let (_, Some(sums)) = worker.rank.state.lane_and_sums(lane) {
        // All sums are on their way: those of matrices and those of norms.
        assert_eq!(sums.num_begun(), (2, 2));
    }
    worker.rank.state.reduce().unwrap();
    let params = worker.rank.state.params().clone();
    let grad = |id| Vec::try_from(worker.rank.state.reduced(id).unwrap().view([-1]).to_kind(Kind::Double)).unwrap();
    let grads = params.trained_ids().map(|id| (params.spec(id).name.clone(), grad(id))).collect();
    (worker.loss(), grads)
}

/// Relative to each parameter's largest value.
fn assert_near(found: &Gradients, expected: &Gradients, tolerance: f64, what: &str) {
    for (name, expected) in expected {
        let most = expected.iter().fold(0f64, |most, value| most.max(value.abs()));
        let error = expected.iter().zip(&found[name]).fold(0f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(error <= tolerance * most, "{name}: {error} of {most}, {what}");
    }
}

#[test]
fn a_replica_of_two_stages_computes_what_one_rank_does() {
    let packs: &[&[&[usize]]] = &[&[&[0, 1]], &[&[2]]];
    let (loss, expected) = step_on(packs, Rc::new(Mesh::single()), 0);
    for chunk_tokens in [0, 4] {
        let ranks = on_ranks(2, |path, rank| step_on(packs, mesh(path, 1, 2, rank), chunk_tokens));
        assert_eq!(ranks[0].0, 0.0, "the first stage has no loss");
        assert!((ranks[1].0 - loss).abs() < 1e-6 * loss, "{} and {loss}", ranks[1].0);
        let found: Gradients = ranks.into_iter().flat_map(|(_, grads)| grads).collect();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        assert_near(&found, &expected, 1e-5, &format!("chunks of {chunk_tokens}"));
    }
}

/// Sends are over at the end of the step: later packs of it would wait for the credit.
#[test]
fn a_leader_gives_the_credit_of_columns_back_that_it_sends_on() {
    let packs: &[&[&[usize]]] = &[&[&[0, 1, 2]]];
    let (loss, expected) = step_on(packs, Rc::new(Mesh::single()), 0);
    let ranks = on_ranks(2, |path, rank| step_on(packs, mesh(path, 1, 2, rank), 0));
    assert!((ranks[1].0 - loss).abs() < 1e-6 * loss, "{} and {loss}", ranks[1].0);
    let found: Gradients = ranks.into_iter().flat_map(|(_, grads)| grads).collect();
    assert_near(&found, &expected, 1e-5, "one pack");
}

/// One of which has two packs, and its first backward is not the last.
#[test]
fn replicas_that_sum_within_their_last_backward_compute_what_one_does() {
    let packs: &[&[&[usize]]] = &[&[&[0]], &[&[1]], &[&[2]]];
    let (loss, expected) = step_on(packs, Rc::new(Mesh::single()), 0);
    let ranks = on_ranks(2, |path, rank| step_on(packs, mesh(path, 2, 1, rank), 0));
    assert!((ranks[0].0 + ranks[1].0 - loss).abs() < 1e-6 * loss);
    for (_, found) in &ranks {
        assert_near(found, &expected, 1e-6, "two replicas");
    }
}

#[test]
fn a_sample_of_documents_computes_what_its_documents_do() {
    let together = step(&[&[&[0, 1, 2]]]);
    // Packed by the step: the same row.
    assert_eq!(together, step(&[&[&[0], &[1], &[2]]]));
    assert_eq!(together, step(&[&[&[0, 1], &[2]]]));
    // Each alone: other sums.
    let apart = step(&[&[&[0]], &[&[1]], &[&[2]]]);
    assert!((together.0 - apart.0).abs() < 1e-6 * together.0, "{} and {}", together.0, apart.0);
    let norm = |grad: &[f64]| grad.iter().map(|value| value * value).sum::<f64>().sqrt();
    let difference: Vec<f64> = together.1.iter().zip(&apart.1).map(|(left, right)| left - right).collect();
    assert!(norm(&difference) < 1e-6 * norm(&together.1), "{} of {}", norm(&difference), norm(&together.1));
}
