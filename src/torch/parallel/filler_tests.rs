//! Diffusion transformers whose parameters replicas share out, where one has fewer micro-batches than others.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::Zero;
use crate::comm::ProcessGroup;
use crate::model::dit_tests::{Fixture, folders};
use crate::model::{FoundationFamily, FoundationModel, MicroBatch};
use crate::params::{ParamStore, Sharding, ZeroStage};
use crate::tape::{Execution, Policy};

/// Returns the squared norm of a replica's part of the gradient, where two replicas share all parameters out. Only the first one has
/// samples.
fn squares_of_replica(folder: &Path, store: &Path, rank: usize) -> f64 {
    let mut fixture = Fixture::read(folder);
    let group = Rc::new(ProcessGroup::gloo(store, "pool", rank, 2, Duration::from_secs(60)).unwrap());
    let sharding = Sharding::new(ZeroStage::Parameters, rank, 2);
    let params = ParamStore::shared_out(fixture.family.specs(), Kind::Float, Device::Cpu, sharding);
    params.ids().for_each(|id| params.set(id, &fixture.params.get(&params.spec(id).name).detach()));
    params.set_unsharder(Rc::new(Zero::new(group.clone(), group)));
    fixture.params = Rc::new(params);
    let model = fixture.model(Policy::Keep);
    let squares = |grads: &Tensor| grads.square().sum(Kind::Double).double_value(&[]);
    if rank == 0 {
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        return squares(fixture.run(&model, &all).grads.flat());
    }
    let tape = model.record(&MicroBatch::filler(model.columns(), Device::Cpu));
    let mut run = Execution::new(tape.tape, fixture.params.clone(), Vec::new());
    run.forward().unwrap();
    run.seed(tape.loss.unwrap(), Tensor::from(1f64));
    let mut grads = fixture.params.new_grad();
    run.backward(Some(&mut grads)).unwrap();
    squares(grads.flat())
}

/// A replica that computes a filler enters all parameters, those that only pictures meet included.
#[test]
fn a_replica_that_computes_a_filler_enters_all_parameters() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let whole = fixture.run(&fixture.model(Policy::Keep), &all);
        let expected = whole.grads.flat().square().sum(Kind::Double).double_value(&[]);
        let store = tempfile::tempdir().unwrap();
        let place = &store.path().join("store");
        let found: f64 = std::thread::scope(|scope| {
            let replicas = [0, 1].map(|rank| {
                let folder = &folder;
                scope.spawn(move || squares_of_replica(folder, place, rank))
            });
            replicas.into_iter().map(|replica| replica.join().unwrap()).sum()
        });
        assert!((found / expected - 1.0).abs() < 1e-4, "{}: {found} of {expected}", folder.display());
    }
}
