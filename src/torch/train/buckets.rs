//! Sums of gradients over replicas, bucket by bucket, that begin while the last backward of a step goes on (Li et al. 2020,
//! "PyTorch Distributed: experiences on accelerating data parallel training").
//!
//! A backward comes to the store's end first, so buckets go from there to its front. Parameters that do not decay, such as norms, lie
//! together behind all layers and come last. That order is the same on all ranks, and a rank begins a bucket when it has begun all before
//! it, even where it has no micro-batch.

use std::rc::Rc;

use tch::Tensor;

use crate::comm::{ProcessGroup, Started};
use crate::native::{NativeError, Purpose, allocated_for};
use crate::params::{FlatParam, GradBuffer, ParamId, ParamStore, ZeroStage};

/// Elements of a bucket, but for parameters that are larger: 24 MiB.
pub(super) const ELEMENTS: i64 = 6 << 20;

/// The sums of one replica's lane.
pub struct Buckets {
    params: Rc<ParamStore>,
    data: Rc<ProcessGroup>,
    /// Ranks with the same experts, where those are spread.
    of_experts: Rc<ProcessGroup>,
    buckets: Vec<Bucket>,
    /// The number of buckets that are on their way.
    begun: usize,
    started: Vec<Started>,
    /// This rank's slices, where the optimizer's state is shared out.
    slices: Option<Tensor>,
}

struct Bucket {
    ids: Vec<ParamId>,
    of_experts: bool,
    /// Elements of the gradients, with the gaps.
    start: i64,
    len: i64,
    /// The slice of what is shared out.
    own: Option<(i64, i64)>,
}

impl Buckets {
    /// Makes buckets of at most so many `elements`; units, where the optimizer's state is shared out.
    pub(super) fn new(
        params: Rc<ParamStore>,
        data: Rc<ProcessGroup>,
        of_experts: Rc<ProcessGroup>,
        elements: i64,
    ) -> Buckets {
        let buckets = match params.sharding().shared {
            ZeroStage::Nothing => of_ranges(&params, elements),
            _ => of_units(&params),
        };
        Buckets { params, data, of_experts, buckets, begun: 0, started: Vec::new(), slices: None }
    }

    /// Begins the buckets whose parameters' gradients are `done`, up to the first that is not.
    ///
    /// # Errors
    /// A rank is gone.
    pub fn begin(&mut self, grads: &GradBuffer, done: impl Fn(&[ParamId]) -> bool) -> Result<(), NativeError> {
        while let Some(bucket) = self.buckets.get(self.begun).filter(|bucket| done(&bucket.ids)) {
            let _no_grad = tch::no_grad_guard();
            let flat = grads.flat();
            let group = if bucket.of_experts { &self.of_experts } else { &self.data };
            let sums = flat.narrow(0, bucket.start, bucket.len);
            self.started.push(match bucket.own {
                None => group.start_all_reduce_sum(&sums)?,
                Some((at, len)) => {
                    let empty = || flat.new_empty([self.params.num_owned()], (flat.kind(), flat.device()));
                    let empty = || allocated_for(Purpose::Buffers, empty);
                    let slices = self.slices.get_or_insert_with(empty);
                    group.start_reduce_scatter_sum_into(&slices.narrow(0, at, len), &sums)?
                }
            });
            self.begun += 1;
        }
        Ok(())
    }

    /// Returns how many buckets are on their way, and of how many.
    pub fn num_begun(&self) -> (usize, usize) {
        (self.begun, self.buckets.len())
    }

    /// Begins those that are left and waits for all: the sums, or this rank's slices of them.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub(super) fn finish(&mut self, grads: &GradBuffer) -> Result<Tensor, NativeError> {
        self.begin(grads, |_| true)?;
        self.started.drain(..).try_for_each(Started::wait)?;
        self.begun = 0;
        Ok(self.slices.take().unwrap_or_else(|| grads.flat().shallow_clone()))
    }

    /// Waits for what was begun and forgets it.
    pub(super) fn forget(&mut self) {
        self.started.clear();
        (self.begun, self.slices) = (0, None);
    }
}

/// Returns the neighbors in the store of one kind together.
fn of_ranges(params: &ParamStore, elements: i64) -> Vec<Bucket> {
    let is_matrix = |id: &ParamId| params.spec(*id).shape.len() >= 2;
    let (matrices, others): (Vec<ParamId>, Vec<ParamId>) = params.trained_ids().partition(is_matrix);
    let mut buckets: Vec<Bucket> = Vec::new();
    for ids in [matrices, others] {
        let mut open = false;
        for id in ids.into_iter().rev() {
            let (start, len) = params.range(id);
            let of_experts = params.spec(id).shard.as_ref().is_some_and(|shard| shard.of_experts);
            let joins =
                |last: &&mut Bucket| open && last.of_experts == of_experts && last.start + last.len - start <= elements;
            match buckets.last_mut().filter(joins) {
                Some(last) => {
                    last.len += last.start - start;
                    last.start = start;
                    last.ids.push(id);
                }
                None => buckets.push(Bucket { ids: vec![id], of_experts, start, len, own: None }),
            }
            open = true;
        }
    }
    buckets
}

fn of_units(params: &ParamStore) -> Vec<Bucket> {
    let of_unit = |index: usize| params.trained_ids().filter(move |id| params.unit_of(*id) == Some(index)).collect();
    let units = params.units().iter().enumerate().filter(|(_, unit)| unit.is_trained()).rev();
    let bucket = |(index, unit): (usize, &FlatParam)| {
        let (start, len) = unit.range();
        Bucket { ids: of_unit(index), of_experts: unit.is_of_experts(), start, len, own: Some(unit.own_range()) }
    };
    units.map(bucket).collect()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use tch::{Device, Kind, Tensor};

    use super::of_ranges;
    use crate::comm::ProcessGroup;
    use crate::params::{Init, ParamSpec, ParamStore, Shard};
    use crate::tape::{Execution, Policy, Tape};
    use crate::train::{AdamWConfig, Lanes, TrainState};

    const LAYERS: usize = 4;

    fn specs() -> Vec<ParamSpec> {
        let layer = |layer: usize| {
            let name = |what: &str| format!("layers.{layer}.{what}");
            [ParamSpec::new(name("w"), &[16, 16], Init::Normal(0.3)), ParamSpec::new(name("norm"), &[16], Init::Ones)]
        };
        (0..LAYERS).flat_map(layer).collect()
    }

    #[test]
    fn buckets_go_from_the_end_of_one_kind_to_its_front() {
        let shard = Shard { of_experts: true, ..Shard::whole(&[4, 8, 8]) };
        let mut specs = specs();
        let experts = ParamSpec::new("layers.2.experts", &[2, 8, 8], Init::Zeros);
        specs.insert(5, ParamSpec { shard: Some(shard), ..experts });
        let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
        let found: Vec<_> = of_ranges(&params, 600).iter().map(|it| (it.start, it.len, it.of_experts)).collect();
        // Four matrices of 256, of which the experts' 128 lie before the last; then the norms.
        assert_eq!(found, [(896, 256, false), (768, 128, true), (256, 512, false), (0, 256, false), (1152, 64, false)]);
    }

    /// Runs a step of two micro-batches on one of two ranks. Returns where the backward was, by its next layer, when each bucket was
    /// begun, and the sums.
    fn step(path: &std::path::Path, rank: usize, overlapped: bool) -> (Vec<usize>, Tensor) {
        let group = ProcessGroup::gloo(path, &format!("{overlapped}"), rank, 2, Duration::from_secs(30)).unwrap();
        let params = Rc::new(ParamStore::new(specs(), Kind::Float, Device::Cpu));
        params.init_random(1);
        let config = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0 };
        let mut pool = TrainState::new(params.clone(), group, Lanes::PerReplica, Some(config)).unwrap();
        if overlapped {
            pool = pool.in_buckets_of(300);
        }
        let mut begun = Vec::new();
        for micro_batch in 0..2 {
            let (mut tape, mut ends) = (Tape::new(), Vec::new());
            let input = tape.input(false);
            let mut x = input;
            for layer in 0..LAYERS {
                let ids = ["w", "norm"].map(|what| params.id(&format!("layers.{layer}.{what}")));
                let leaves = ids.map(|id| params.leaf(id).shallow_clone());
                let forward = move |reads: &[Tensor]| vec![(reads[0].matmul(&leaves[0]) * &leaves[1]).tanh()];
                x = tape.run(format!("{layer}"), &ids, Policy::Keep, &[x], 1, forward)[0];
                ends.push(ids);
            }
            let value = Tensor::arange(48, (Kind::Float, Device::Cpu)).view([3, 16]);
            let value = (value * (0.1 + rank as f64 + 3.0 * micro_batch as f64)).sin();
            let mut run = Execution::new(Rc::new(tape), params.clone(), vec![(input, value)]);
            run.forward().unwrap();
            run.seed(x, Tensor::ones_like(run.value(x)));
            let lane = pool.own_lane();
            let (mut grads, mut sums) = pool.lane_and_sums(lane);
            while run.backward_step(grads.as_deref_mut()).unwrap() {
                if let (Some(sums), true) = (&mut sums, micro_batch == 1) {
                    let before = sums.num_begun().0;
                    sums.begin(grads.as_deref().unwrap(), |ids| run.is_past(ids)).unwrap();
                    let left = ends.iter().filter(|ids| !run.is_past(&ids[..])).count();
                    begun.extend(vec![left; sums.num_begun().0 - before]);
                }
            }
        }
        pool.reduce().unwrap();
        let _no_grad = tch::no_grad_guard();
        let all = params.trained_ids().map(|id| pool.reduced(id).unwrap().reshape([-1])).collect::<Vec<_>>();
        (begun, Tensor::cat(&all, 0))
    }

    #[test]
    fn sums_begin_while_layers_are_still_to_come_and_have_the_same_bits() {
        let folder = tempfile::tempdir().unwrap();
        let path = &folder.path().join("store");
        std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| scope.spawn(move || [true, false].map(|how| step(path, rank, how))));
            for rank in ranks {
                let [(begun, sums), (none, expected)] = rank.join().unwrap();
                // A layer's matrix is a bucket, begun with all layers below it to come; norms are the last.
                assert_eq!(begun, [3, 2, 1, 0, 0]);
                assert!(none.is_empty());
                assert_eq!(sums, expected);
            }
        });
    }
}
