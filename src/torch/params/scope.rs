//! Looking parameters up by name while a layer is built, and noting which ones it took.

use std::cell::RefCell;

use tch::Tensor;

use super::id::ParamId;
use super::init::key_of;
use super::lora::{Adapter, HeldInputs};
use super::shard::Shard;
use super::store::ParamStore;

/// A store seen from a prefix. The parameters that are taken are noted: a segment that runs the layer differentiates by them.
pub struct Scope<'a> {
    store: &'a ParamStore,
    prefix: String,
    taken: RefCell<Vec<ParamId>>,
}

impl<'a> Scope<'a> {
    /// Looks names up behind `prefix`.
    pub fn new(store: &'a ParamStore, prefix: impl Into<String>) -> Scope<'a> {
        Scope { store, prefix: prefix.into(), taken: RefCell::default() }
    }

    /// Takes the leaf of `prefix + name`, in the shape `[…]` of its spec. Panics where the store has no such parameter.
    pub fn take(&self, name: &str) -> Tensor {
        let id = self.store.id(&format!("{}{name}", self.prefix));
        self.taken.borrow_mut().push(id);
        self.store.leaf(id).shallow_clone()
    }

    /// Works like [`Scope::take`]; `None` where the model was declared without the parameter.
    pub fn take_if(&self, name: &str) -> Option<Tensor> {
        self.store.find(&format!("{}{name}", self.prefix)).map(|_| self.take(name))
    }

    /// Works like `take_if` for a bias: `None` as well where another rank adds it.
    pub(crate) fn take_bias(&self, name: &str) -> Option<Tensor> {
        let id = self.store.find(&format!("{}{name}", self.prefix))?;
        let adds = |shard: &Shard| !shard.after_sum || shard.is_first();
        self.store.spec(id).shard.as_ref().is_none_or(adds).then(|| self.take(name))
    }

    /// Returns the adapter of the linear map `prefix + name`, where the store has one.
    pub(crate) fn take_adapter(&self, name: &str) -> Option<Adapter> {
        let path = format!("{}{name}", self.prefix);
        let of_a = self.store.spec(self.store.find(&format!("{path}.lora_A.weight"))?);
        let [a, b] = ["lora_A", "lora_B"].map(|part| self.take(&format!("{name}.{part}.weight")));
        let spec = of_a.adapter.expect("an adapter's first parameter tells its scale");
        let inputs = HeldInputs::of(of_a.shard.as_ref(), a.device());
        let magnitude = self.take_if(&format!("{name}.lora_magnitude_vector"));
        let norms = self.store.joint_norms().get(&path).map(Tensor::shallow_clone);
        let (seed, key) = (self.store.dropout_seed(), key_of(0, &path));
        Some(Adapter { a, b, magnitude, norms, spec, seed, inputs, key })
    }

    /// Returns the ids of the parameters that have been taken, in order.
    pub fn into_ids(self) -> Vec<ParamId> {
        self.taken.into_inner()
    }
}
