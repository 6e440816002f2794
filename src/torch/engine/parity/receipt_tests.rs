//! A step whose parcels all come through shared memory: nothing is copied on receipt, and the credit comes back.

use super::super::buffer::copied_bytes;
use super::super::encoder::{EncoderWorker, TowerModels};
use super::super::foundation::FoundationWorker;
use super::super::pack_work::EncoderPeers;
use super::super::stages::Stages;
use super::PoolLayouts;
use super::alone;
use super::plan::{Batch, DATA};
use crate::comm::ProcessGroup;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;
use crate::train::parity::Fixture;
use crate::train::{Lanes, TrainState, load_weights};
use loongforge_core::engine::{Ports, Progress};
use loongforge_core::message::{ActorId, Epoch, PoolName, Regroup, Replica, StepPlan, Tower, TowerSet, Unit, Version};
use loongforge_core::transport::{Edge, Mail, Mailbox, SlabEdge, SlabListener};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tch::Device;

const ENCODER: ActorId = ActorId::encoder(0);
const FOUNDATION: ActorId = ActorId::foundation(0);
const CREDIT: usize = 4 << 20;

/// Computes a step of a fixture, each pool with edges of its own.
struct Step {
    encoder: EncoderWorker,
    foundation: FoundationWorker,
    batch: Batch,
    plan: StepPlan,
    folder: PathBuf,
    place: tempfile::TempDir,
}

/// An edge over shared memory and the mailbox that it leads to.
struct Way {
    edge: Option<Box<dyn Edge>>,
    from: ActorId,
    mailbox: Mailbox,
    _own: Mailbox,
    _listener: SlabListener,
}

impl Way {
    fn new(place: &Path, from: ActorId, to: ActorId) -> Way {
        let path = place.join(format!("{}-{}", from.role.name(), to.role.name()));
        let (own, mailbox) = (Mailbox::new(1, 4), Mailbox::new(1, 4));
        let listener = SlabListener::bind(&path, to).unwrap();
        let edge = SlabEdge::connect(&path, from, to, CREDIT, &own.sender()).unwrap();
        listener.accept(&[from], &mailbox.sender(), Duration::from_secs(30)).unwrap();
        Way { edge: Some(Box::new(edge)), from, mailbox, _own: own, _listener: listener }
    }

    fn ports(&mut self, to: ActorId) -> Ports {
        let edges = BTreeMap::from([(to, self.edge.take().unwrap())]);
        Ports::new(self.from, flume::bounded(8).0, edges)
    }

    fn parcels(&self) -> impl Iterator<Item = loongforge_core::transport::Parcel> + '_ {
        std::iter::from_fn(|| match self.mailbox.try_recv() {
            Some(Mail::Parcel { parcel, .. }) => Some(parcel),
            _ => None,
        })
    }
}

impl Step {
    fn new(fixture: &str) -> Step {
        Self::of(fixture, Tower::ALL.into_iter().collect())
    }

    /// Works like `new`, where the encoder wants gradients of the features of these towers alone.
    fn of(fixture: &str, wanted: TowerSet) -> Step {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
        let fixture = Fixture::read(&folder).unwrap();
        let families = fixture.config.clone();
        let pool = |specs: Vec<ParamSpec>| {
            let params = Rc::new(ParamStore::new(specs, fixture.kind, Device::Cpu));
            load_weights(&params, &folder).unwrap();
            TrainState::new(params, ProcessGroup::single(), Lanes::PerReplica, Some(fixture.adamw)).unwrap()
        };
        let of_foundation = pool(families.foundation.specs());
        let model = families.foundation.build(of_foundation.params(), Policy::Keep);
        let towers = families.towers.set();
        let part = |is_wanted: bool| -> TowerSet {
            towers.iter().filter(|&tower| wanted.contains(tower) == is_wanted).collect()
        };
        let peers = [(PoolName::ENCODER, EncoderPeers { trained: part(true), frozen: part(false), ranks: 1 })].into();
        let foundation = FoundationWorker::new(Replica::foundation(0), Stages::whole(model), of_foundation, peers);
        let of_encoder = pool(families.towers.specs());
        let models = TowerModels::new(&families.towers, of_encoder.params(), |_| Policy::Keep);
        let encoder = EncoderWorker::new(Replica::encoder(0), models, of_encoder, None)
            .with_item_credit(CREDIT, &families.towers)
            .with_trained(wanted);
        let batch = Batch::new(fixture, 1);
        let plan = batch.plan(0, &PoolLayouts::default(), 0.0);
        Step { encoder, foundation, batch, plan, folder, place: tempfile::tempdir().unwrap() }
    }

    /// Returns the bytes in flight on the edge of items while the step waits for features' gradients, and on that of features while they
    /// wait for tokens; then the loss. `meanwhile` is called between. All credit has come back in the end.
    fn run(
        mut self,
        meanwhile: impl FnOnce(&mut EncoderWorker, &mut FoundationWorker, &StepPlan),
    ) -> ([usize; 2], f64) {
        let place = self.place.path();
        let way = |from, to| Way::new(place, from, to);
        let (mut pixels, mut tokens) = (way(DATA, ENCODER), way(DATA, FOUNDATION));
        let (mut features, mut grads) = (way(ENCODER, FOUNDATION), way(FOUNDATION, ENCODER));
        let (mut of_encoder, mut of_foundation) = (features.ports(FOUNDATION), grads.ports(ENCODER));
        self.encoder.plan(&self.plan);
        self.foundation.plan(&self.plan);
        for unit in &self.plan.units {
            pixels.edge.as_mut().unwrap().try_send(self.batch.pixels(unit)).unwrap();
        }
        for parcel in pixels.parcels() {
            self.encoder.arrive(DATA, parcel).unwrap();
        }
        while !self.encoder.has_encoded() {
            self.encoder.work(Version(0), &mut of_encoder).unwrap();
        }
        for parcel in features.parcels() {
            self.foundation.arrive(ENCODER, parcel, &mut of_foundation).unwrap();
        }
        meanwhile(&mut self.encoder, &mut self.foundation, &self.plan);
        let held = [pixels.edge.as_mut().unwrap().load().0, of_encoder.loads()[0].in_flight as usize];
        for pack in &self.plan.packs {
            tokens.edge.as_mut().unwrap().try_send(self.batch.tokens(pack.id)).unwrap();
        }
        for parcel in tokens.parcels() {
            self.foundation.arrive(DATA, parcel, &mut of_foundation).unwrap();
        }
        while self.foundation.work(Version(0), &mut of_foundation).unwrap() == Progress::Busy {}
        assert!(self.foundation.is_finished());
        let mut num_returned = 0;
        for parcel in grads.parcels() {
            self.encoder.arrive(FOUNDATION, parcel).unwrap();
            num_returned += 1;
        }
        let is_wanted = |unit: &&Unit| self.encoder.is_trained(unit.tower());
        assert_eq!(num_returned, self.plan.units.iter().filter(is_wanted).count(), "gradients that somebody wants");
        while self.encoder.work(Version(0), &mut of_encoder).unwrap() == Progress::Busy {}
        assert!(self.encoder.is_finished(0));
        let loads = [of_encoder.loads(), of_foundation.loads()].map(|loads| loads[0].in_flight as usize);
        let own = [pixels, tokens].map(|mut way| way.edge.as_mut().unwrap().load().0);
        assert_eq!((loads, own), ([0; 2], [0; 2]), "credit that did not come back");
        (held, self.foundation.loss())
    }
}

fn loss_of_one_process(folder: &Path) -> f64 {
    let place = tempfile::tempdir().unwrap();
    alone(folder, place.path(), &PoolLayouts::default()).unwrap().losses[0]
}

#[test]
fn a_step_between_processes_copies_nothing_on_receipt() {
    for name in ["qwen3_vl-seed1", "qwen2.5_omni-seed1"] {
        let step = Step::new(name);
        let expected = loss_of_one_process(&step.folder);
        let before = copied_bytes();
        let (held, loss) = step.run(|_, _, _| {});
        assert_eq!(copied_bytes() - before, 0, "{name}");
        assert!(held.iter().all(|bytes| *bytes > 0), "{name}: what waits is where its sender has put it");
        assert_eq!(loss, expected, "{name}");
    }
}

/// One of two towers in a pool is frozen: no gradient of its features is sent, and nobody waits for one.
#[test]
fn gradients_of_features_go_back_to_the_towers_that_are_trained() {
    for tower in [Tower::Vision, Tower::Audio] {
        let step = Step::of("qwen2.5_omni-seed1", [tower].into_iter().collect());
        let units = step.plan.units.iter().filter(|unit| unit.tower() == tower).count();
        assert!((1..step.plan.units.len()).contains(&units), "both towers have units");
        let expected = loss_of_one_process(&step.folder);
        let (_, loss) = step.run(|_, _, _| {});
        assert!((loss - expected).abs() <= 1e-6 * expected.abs(), "{tower}: {loss}, {expected}");
    }
}

#[test]
fn a_step_that_is_shared_out_anew_gives_all_credit_back() {
    let step = Step::new("qwen3_vl-seed1");
    let expected = loss_of_one_process(&step.folder);
    let before = copied_bytes();
    let (held, loss) = step.run(|encoder, foundation, plan| {
        let regroup = Regroup {
            pool: PoolName::ENCODER,
            epoch: Epoch(1),
            members: vec![0],
            num_current: 1,
            left: vec![1],
            moved: Default::default(),
            step: plan.step,
            plans: vec![Arc::new(plan.clone())],
        };
        foundation.regroup(&regroup);
        encoder.regroup(&regroup);
    });
    // The patches that a backward reads again are taken over only where members come and go.
    assert_eq!(held[1], 0);
    assert!(copied_bytes() > before);
    assert_eq!(loss, expected);
}
