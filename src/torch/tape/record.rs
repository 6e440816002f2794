//! Defining a tape. Nothing is computed here.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::across::Across;
use crate::comm::Mesh;
use crate::native::NativeError;
use crate::params::{GradBuffer, ParamId};

/// A value on the tape: written once, by an operation or as an input. Integers have no gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(super) u32);

impl Slot {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A slot at an end of a tape that goes on on another rank: an input there, kept here.
#[derive(Clone, Debug)]
pub struct Boundary {
    pub slot: Slot,
    pub shape: Vec<i64>,
    pub kind: Kind,
    /// True if its gradient comes back.
    pub requires_grad: bool,
}

/// Keys and values of one layer on the tape of a piece of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct KeyValues {
    /// The keys and values of the earlier tokens of the piece's first document: inputs `[P, …]`, where there are such.
    pub past: Option<[Slot; 2]>,
    /// P.
    pub num_past: i64,
    /// The keys and values of the piece's own tokens: kept slots `[T, …]`.
    pub own: [Slot; 2],
}

/// Says what a segment leaves for its backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// The segment leaves its autograd graph.
    #[default]
    Keep,
    /// The segment leaves its inputs; the forward runs again.
    Recompute,
}

/// Describes which gradients a custom operation must give.
pub struct Needs {
    /// One for each slot read.
    pub reads: Vec<bool>,
    /// True if the gradients of the parameters are needed, of all of them or of none.
    pub params: bool,
}

/// An operation with its own backward. Both functions run without autograd.
pub trait Custom {
    /// Returns the outputs, and what `backward` is to be given. `needs` is `None` when no backward follows.
    fn forward(&self, reads: &[Tensor], needs: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>);

    /// Returns the gradients of the slots read, for those of the outputs (`None`: an output had no reader). Those of the parameters are
    /// added to `params`, in place; there is none where they are not needed.
    fn backward(
        &self,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        needs: &Needs,
        params: Option<&ParamGrads<'_>>,
    ) -> Vec<Option<Tensor>>;
}

/// An operation among ranks between segments, with its own backward: collectives of the mesh of whoever executes the tape. Both functions
/// run without autograd, once each: other ranks wait in them.
pub trait Exchange {
    /// Works like [`Custom::forward`].
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    fn forward(
        &self,
        mesh: &Mesh,
        reads: &[Tensor],
        needs: Option<&Needs>,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>), NativeError>;

    /// Works like [`Custom::backward`].
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    fn backward(
        &self,
        mesh: &Mesh,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        needs: &Needs,
    ) -> Result<Vec<Option<Tensor>>, NativeError>;
}

/// The gradients of an operation's parameters, to be added to.
pub struct ParamGrads<'a> {
    pub(super) buffer: &'a GradBuffer,
    pub(super) ids: &'a [ParamId],
}

impl ParamGrads<'_> {
    /// Returns the sum so far for the operation's parameter number `index`: a view of the parameter's shape `[…]`, float32.
    pub fn sum(&self, index: usize) -> &Tensor {
        self.buffer.view(self.ids[index])
    }
}

type Forward = Box<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

pub(super) enum Action {
    Segment { forward: Forward, policy: Policy },
    Custom(Box<dyn Custom>),
    Exchange(Box<dyn Exchange>),
    Add,
    AddRows(Rc<Tensor>),
    PutRows(Rc<Tensor>),
    TakeRows(Rc<Tensor>),
    Across(Across),
}

pub(super) struct Operation {
    pub name: String,
    pub params: Vec<ParamId>,
    pub reads: Vec<Slot>,
    pub writes: Vec<Slot>,
    pub action: Action,
    /// True if, of what the tensor-parallel ranks compute alike, the first rank alone gives the parameters' gradients.
    pub once: bool,
}

impl Operation {
    /// Returns the operation's policy where no plan says otherwise.
    pub fn policy(&self) -> Policy {
        match &self.action {
            Action::Segment { policy, .. } => *policy,
            _ => Policy::Keep,
        }
    }
}

/// A list of operations, built for one micro-batch by a model.
#[derive(Default)]
pub struct Tape {
    pub(super) operations: Vec<Operation>,
    pub(super) num_slots: u32,
    pub(super) inputs: Vec<(Slot, bool)>,
    pub(super) kept: Vec<Slot>,
    /// Slots of operations that gradients flow back to, whatever comes before them.
    pub(super) flowing: Vec<Slot>,
    once: bool,
}

impl Tape {
    /// Returns a tape without operations.
    pub fn new() -> Tape {
        Tape::default()
    }

    /// Records a value that whoever executes the tape supplies. Where `requires_grad`, its gradient can be read afterwards.
    pub fn input(&mut self, requires_grad: bool) -> Slot {
        let slot = self.new_slots(1)[0];
        self.inputs.push((slot, requires_grad));
        slot
    }

    /// Adds a segment: `forward` maps the values of `reads` to those of the new slots, by operations with autograd, using no parameters
    /// but `params`. Shapes and types are the operation's own.
    pub fn run(
        &mut self,
        name: impl Into<String>,
        params: &[ParamId],
        policy: Policy,
        reads: &[Slot],
        writes: usize,
        forward: impl Fn(&[Tensor]) -> Vec<Tensor> + 'static,
    ) -> Vec<Slot> {
        self.push(name.into(), params, reads, writes, Action::Segment { forward: Box::new(forward), policy })
    }

    /// Records an operation with its own backward, such as a fused loss.
    pub fn custom(
        &mut self,
        name: impl Into<String>,
        params: &[ParamId],
        reads: &[Slot],
        writes: usize,
        custom: Box<dyn Custom>,
    ) -> Vec<Slot> {
        self.push(name.into(), params, reads, writes, Action::Custom(custom))
    }

    /// Records an operation among ranks.
    pub fn exchange(
        &mut self,
        name: impl Into<String>,
        reads: &[Slot],
        writes: usize,
        exchange: Box<dyn Exchange>,
    ) -> Vec<Slot> {
        self.push(name.into(), &[], reads, writes, Action::Exchange(exchange))
    }

    /// Records the residual: `a + b`, of one shape.
    pub fn add(&mut self, a: Slot, b: Slot) -> Slot {
        self.push("add".into(), &[], &[a, b], 1, Action::Add)[0]
    }

    /// Records `base` `[T, …]` with `values` `[N, …]` added to the rows `rows` `[N]` (int64, each at most once).
    pub fn add_rows(&mut self, base: Slot, rows: Rc<Tensor>, values: Slot) -> Slot {
        self.push("add_rows".into(), &[], &[base, values], 1, Action::AddRows(rows))[0]
    }

    /// Records `base` `[T, …]` with its rows `rows` `[N]` (int64, each at most once) replaced by `values` `[N, …]`.
    pub fn put_rows(&mut self, base: Slot, rows: Rc<Tensor>, values: Slot) -> Slot {
        self.push("put_rows".into(), &[], &[base, values], 1, Action::PutRows(rows))[0]
    }

    /// Records the rows `rows` `[N]` (int64, each at most once) of `base` `[T, …]`.
    pub fn take_rows(&mut self, base: Slot, rows: Rc<Tensor>) -> Slot {
        self.push("take_rows".into(), &[], &[base], 1, Action::TakeRows(rows))[0]
    }

    /// Into a sharded region: what all tensor-parallel ranks have alike. Its gradient is the sum of theirs.
    pub fn copy_to_region(&mut self, x: Slot) -> Slot {
        self.across("enter", x, Across::CopyTo)
    }

    /// Records the way out of a sharded region: the sum of what the ranks have.
    pub fn reduce_from_region(&mut self, x: Slot) -> Slot {
        self.across("leave", x, Across::ReduceFrom)
    }

    /// Into a sharded region: all of the `rows` that are split among the ranks.
    pub fn gather_to_region(&mut self, x: Slot, rows: i64) -> Slot {
        self.across("gather", x, Across::GatherTo { rows })
    }

    /// Records the way out of a sharded region: this rank's of the `rows` of the sum of what the ranks have.
    pub fn reduce_scatter_from_region(&mut self, x: Slot, rows: i64) -> Slot {
        self.across("scatter", x, Across::ReduceScatterFrom { rows })
    }

    /// Records all of the `rows` that are split among the ranks, for what all of them then compute alike, outside of a region.
    pub fn gather_rows(&mut self, x: Slot, rows: i64) -> Slot {
        self.across("collect", x, Across::GatherRows { rows })
    }

    /// This rank's of the `rows` of what all ranks have alike.
    pub fn split_rows(&mut self, x: Slot, rows: i64) -> Slot {
        self.across("part", x, Across::SplitRows { rows })
    }

    /// Records something that all ranks compute alike within a region, such as a loss of the routers: its gradient counts once.
    pub fn count_once(&mut self, x: Slot) -> Slot {
        self.across("once", x, Across::CountOnce)
    }

    /// Records the logarithm of the sum over the ranks of exponentials.
    pub fn log_sum_exp(&mut self, x: Slot) -> Slot {
        self.across("log_sum_exp", x, Across::LogSumExp)
    }

    /// Sets whether the operations that follow are computed alike by all tensor-parallel ranks, outside of regions, so that the gradients
    /// of their parameters are to be counted once.
    pub fn set_alike(&mut self, alike: bool) {
        self.once = alike;
    }

    /// Records the exchange of the counts of rows for each expert `[E]`: those of all expert-parallel ranks, `[ranks,
    /// E]`, on the host.
    pub fn all_counts(&mut self, counts: Slot) -> Slot {
        self.across("counts", counts, Across::Counts)
    }

    /// Records the sending of rows sorted by expert to the ranks that have the experts; there they are sorted by expert, and counted.
    /// `counts` are of [`Tape::all_counts`].
    pub fn to_experts(&mut self, rows: Slot, counts: Slot) -> [Slot; 2] {
        let written = self.push("to experts".into(), &[], &[rows, counts], 2, Action::Across(Across::ToExperts));
        [written[0], written[1]]
    }

    /// Records the way back of rows from their experts.
    pub fn from_experts(&mut self, rows: Slot, counts: Slot) -> Slot {
        self.push("from experts".into(), &[], &[rows, counts], 1, Action::Across(Across::FromExperts))[0]
    }

    fn across(&mut self, name: &str, x: Slot, across: Across) -> Slot {
        self.push(name.into(), &[], &[x], 1, Action::Across(across))[0]
    }

    /// Keeps a slot's value to the end although something reads it. A slot that nothing reads is kept anyway.
    pub fn keep(&mut self, slot: Slot) {
        self.kept.push(slot);
    }

    /// Has gradients flow back to a slot that an operation writes, also where nothing before it needs any. On other ranks something
    /// before it may need them, and these ranks wait for this one in collectives between.
    pub fn let_gradients_flow(&mut self, slot: Slot) {
        self.flowing.push(slot);
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Returns whether no operation was recorded.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Returns the operations' names in order, for traces and plans.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.operations.iter().map(|operation| operation.name.as_str())
    }

    fn push(&mut self, name: String, params: &[ParamId], reads: &[Slot], writes: usize, action: Action) -> Vec<Slot> {
        assert!(reads.iter().all(|slot| slot.0 < self.num_slots), "{name} reads a slot of another tape");
        let written = self.new_slots(writes);
        let once = self.once;
        let operation =
            Operation { name, params: params.to_vec(), reads: reads.to_vec(), writes: written.clone(), action, once };
        self.operations.push(operation);
        written
    }

    fn new_slots(&mut self, count: usize) -> Vec<Slot> {
        let first = self.num_slots;
        self.num_slots += count as u32;
        (first..self.num_slots).map(Slot).collect()
    }
}
