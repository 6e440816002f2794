//! The parameters of one pool in one flat buffer, or a rank's share of them.
//!
//! One buffer makes the optimizer one fused operator, a reduction one collective and a checkpoint one slice a name. The order is fixed:
//! first the trained parameters that decay (two or more dimensions), then the other trained ones, then the frozen ones, each part as
//! declared. Gradients and the optimizer's state cover the trained front alone. Within a part those of another learning rate come apart.
//! Where replicas share them out, the same order holds within each unit. Every parameter starts at a multiple of `ALIGN` elements; the
//! gaps stay zero. A parameter of which the loss has no gradient, such as a router's balancing bias, is a buffer: float32 and on its own.
//! Frozen weights that are rounded or lie on the host are in units of their own.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::flat_param::FlatParam;
use super::frozen_unit::{FrozenUnit, in_frozen_units};
use super::grads::{GradBuffer, GradUnit};
use super::id::{ALIGN, ParamId};
use super::init::values;
use super::lora::{ADAPTER_PARTS, DropoutSeed, Masks};
use super::sharding::{Sharding, ZeroStage};
use super::spec::{ParamSpec, Role};
use crate::native::{NativeError, Purpose, allocated_for, release};

pub(super) struct Param {
    pub spec: ParamSpec,
    /// The parameter's first element in the store's order; a buffer and what is in a frozen unit have none.
    pub offset: i64,
    pub len: i64,
    /// The unit of the parameter, where replicas share parameters out.
    pub unit: Option<usize>,
    /// The frozen unit of the parameter, and its place there.
    pub frozen: Option<(usize, usize)>,
    pub leaf: Tensor,
}

/// Parameters of one pool. A leaf is a view of the flat buffer, so changing the buffer changes every model built on it.
///
/// ```
/// use loongforge_torch::params::{Init, ParamSpec, ParamStore};
/// use tch::{Device, Kind};
///
/// let specs = vec![ParamSpec::new("weight", &[2, 3], Init::Normal(0.1)), ParamSpec::new("bias", &[2], Init::Zeros)];
/// let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
/// params.init_random(1);
/// assert_eq!(params.get("weight").size(), [2, 3]);
/// assert_eq!(params.get("bias").abs().sum(Kind::Float).double_value(&[]), 0.0);
/// ```
pub struct ParamStore {
    pub(super) flat: Tensor,
    pub(super) params: Vec<Param>,
    by_name: HashMap<String, ParamId>,
    pub(super) num_trained: i64,
    /// The number of trained parameters, which come first.
    pub(super) trained: usize,
    dropout_seed: DropoutSeed,
    pub(super) sharding: Sharding,
    pub(super) units: Vec<FlatParam>,
    pub(super) frozen: Vec<FrozenUnit>,
    pub(super) unsharder: RefCell<Option<Rc<dyn Unsharder>>>,
    /// Brings the frozen units.
    pub(super) frozen_unsharder: RefCell<Option<Rc<dyn Unsharder>>>,
    /// The norms of DoRA's whole rows, for weights whose rows are cut among ranks: `[out]`, by the path of the map.
    joint_norms: BTreeMap<String, Tensor>,
}

impl ParamStore {
    /// Makes a store of zeros. Panics when two specs share a name.
    pub fn new(specs: Vec<ParamSpec>, kind: Kind, device: Device) -> ParamStore {
        ParamStore::shared_out(specs, kind, device, Sharding::none())
    }

    /// Lays out parameters that no ranks share out, zeros, of a kind and on a device.
    pub(super) fn whole(specs: Vec<ParamSpec>, kind: Kind, device: Device) -> ParamStore {
        let (trained, others): (Vec<_>, Vec<_>) = specs.into_iter().partition(|spec| spec.role == Role::Trained);
        let [decayed, undecayed] = ParamSpec::in_order(trained);
        let (frozen, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|spec| spec.role == Role::Frozen && !spec.is_apart());
        let mut end = 0;
        let mut placed = Vec::new();
        let mut place = |specs: Vec<ParamSpec>| {
            for spec in specs {
                placed.push((end, spec));
                end = (end + placed[placed.len() - 1].1.num_elements() + ALIGN - 1) / ALIGN * ALIGN;
            }
            (end, placed.len())
        };
        place(decayed);
        let (num_trained, trained) = place(undecayed);
        let (len, _) = place(frozen);

        let flat = Tensor::zeros([len], (kind, device));
        let mut params: Vec<Param> = Vec::with_capacity(placed.len() + others.len());
        for (offset, spec) in placed {
            let len = spec.num_elements();
            let leaf = flat.narrow(0, offset, len).view(spec.shape.as_slice());
            let leaf = leaf.set_requires_grad(spec.role == Role::Trained);
            params.push(Param { leaf, spec, offset, len, unit: None, frozen: None });
        }
        ParamStore { num_trained, trained, ..ParamStore::of(flat, params, others) }
    }

    /// Makes a store of `params` with `others` behind: frozen units and buffers. The caller sets the numbers of trained parameters.
    pub(super) fn of(flat: Tensor, mut params: Vec<Param>, others: Vec<ParamSpec>) -> ParamStore {
        let (apart, buffers): (Vec<_>, Vec<_>) = others.into_iter().partition(ParamSpec::is_apart);
        let (frozen, placed) = in_frozen_units(apart, flat.kind(), flat.device());
        for (unit, at, spec, leaf) in placed {
            let len = spec.num_elements();
            params.push(Param { len, spec, offset: -1, unit: None, frozen: Some((unit, at)), leaf });
        }
        for spec in buffers {
            let leaf = Tensor::zeros(spec.shape.as_slice(), (Kind::Float, flat.device()));
            params.push(Param { len: spec.num_elements(), spec, offset: -1, unit: None, frozen: None, leaf });
        }
        let mut by_name = HashMap::new();
        for (index, param) in params.iter().enumerate() {
            let former = by_name.insert(param.spec.name.clone(), ParamId(index as u32));
            assert!(former.is_none(), "parameter {} is declared twice", param.spec.name);
        }
        let cut = params.iter().filter_map(|param| {
            let path = param.spec.name.strip_suffix(ADAPTER_PARTS[2])?;
            let weight = by_name.get(&format!("{path}.weight"))?;
            let cuts = &params[weight.index()].spec.shard.as_ref()?.cuts;
            let norms = || Tensor::ones(param.spec.shape.as_slice(), (flat.kind(), flat.device()));
            cuts.iter().any(|cut| cut.dim == 1).then(|| (path.to_owned(), norms()))
        });
        let joint_norms = cut.collect();
        ParamStore {
            joint_norms,
            flat,
            params,
            by_name,
            num_trained: 0,
            trained: 0,
            dropout_seed: DropoutSeed::default(),
            sharding: Sharding::none(),
            units: Vec::new(),
            frozen,
            unsharder: RefCell::default(),
            frozen_unsharder: RefCell::default(),
        }
    }

    /// Returns the leaf of parameter `name`, in the shape `[…]` of its spec; its values may not be here: see [`ParamStore::value`].
    /// Panics where the model did not declare it.
    pub fn get(&self, name: &str) -> Tensor {
        self.leaf(self.id(name)).shallow_clone()
    }

    /// Returns the parameter of this name. Panics where there is none.
    pub fn id(&self, name: &str) -> ParamId {
        self.find(name).unwrap_or_else(|| panic!("no parameter {name}"))
    }

    /// Returns the parameter of this name; `None` if there is none.
    pub fn find(&self, name: &str) -> Option<ParamId> {
        self.by_name.get(name).copied()
    }

    /// Returns the ids of all parameters, in the order of their declaration.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.params.len() as u32).map(ParamId)
    }

    /// Returns the trained parameters, which are the first.
    pub fn trained_ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.trained as u32).map(ParamId)
    }

    /// Returns the names of all parameters, in the order of their ids.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.params.iter().map(|param| param.spec.name.as_str())
    }

    /// Returns how the parameter was declared.
    pub fn spec(&self, id: ParamId) -> &ParamSpec {
        &self.params[id.0 as usize].spec
    }

    /// Returns the tensor that models read, in the shape `[…]` of its spec: a view of the flat buffer, which autograd takes for a leaf.
    pub fn leaf(&self, id: ParamId) -> &Tensor {
        &self.params[id.0 as usize].leaf
    }

    /// Returns the values of a parameter that is here or in a frozen unit, in the shape `[…]` of its spec, without a gradient.
    pub fn value(&self, id: ParamId) -> Tensor {
        let param = &self.params[id.index()];
        param.frozen.map_or_else(|| param.leaf.detach(), |(unit, at)| self.frozen[unit].weight(at))
    }

    /// Returns the offset and length in the flat buffer, in elements. Panics for a buffer, and for what is in a frozen unit.
    pub fn range(&self, id: ParamId) -> (i64, i64) {
        let param = &self.params[id.0 as usize];
        assert!(param.offset >= 0, "{} is not in the flat buffer", param.spec.name);
        (param.offset, param.len)
    }

    /// Returns all that this rank always has: the buffer, or where replicas share parameters out its slices. It is `[len]`.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Returns the number of trained elements at the front of the store's order, their gaps included.
    pub fn num_trained(&self) -> i64 {
        self.num_trained
    }

    /// Returns the number of parameters' elements, without the gaps.
    pub fn num_elements(&self) -> i64 {
        self.params.iter().map(|param| param.len).sum()
    }

    /// Sets whether gradients of the trained parameters are computed; a frozen pool's are not. Call it before a tape runs.
    pub fn set_trainable(&self, trainable: bool) {
        for param in &self.params[..self.trained] {
            let _ = param.leaf.set_requires_grad(trainable);
        }
    }

    /// Adapters' dropout: on with these masks, which are to be others for every micro-batch, or off.
    pub fn set_dropout(&self, masks: Option<Masks>) {
        self.dropout_seed.set(masks);
    }

    /// Adapters' dropout has the masks of a run of this seed; without a call those of seed 0.
    pub fn set_run_seed(&self, seed: u64) {
        self.dropout_seed.set_run(seed);
    }

    pub(super) fn dropout_seed(&self) -> DropoutSeed {
        self.dropout_seed.clone()
    }

    /// Overwrites a parameter, or what this rank has of it, with `values` of the shape `[…]` of its spec. Panics when the shape differs;
    /// converts kind and device.
    pub fn set(&self, id: ParamId, values: &Tensor) {
        let param = &self.params[id.0 as usize];
        assert_eq!(values.size(), param.spec.shape, "shape of {}", param.spec.name);
        if let Some((unit, at)) = param.frozen {
            return self.frozen[unit].set(at, values, None);
        }
        if self.is_here(id) {
            param.leaf.detach().copy_(values);
            return;
        }
        let (part, at) = self.owned_range(id);
        if !part.is_empty() {
            let len = part.end - part.start;
            self.flat.narrow(0, at, len).copy_(&values.reshape([-1]).narrow(0, part.start, len));
        }
    }

    /// Works like [`ParamStore::set`] of a weight in a frozen unit, with a number for each row `[.., out]`: of float8 the scales of which
    /// its values are multiples, or 0 where they are not; of int8 the largest magnitudes of whole rows. Panics of another parameter.
    pub fn set_scaled(&self, id: ParamId, values: &Tensor, scales: &Tensor) {
        let (unit, at) = self.params[id.index()].frozen.expect("a weight in a frozen unit");
        self.frozen[unit].set(at, values, Some(scales));
    }

    /// Works like [`ParamStore::set`] with `values` of the whole parameter `[…]`, of which the rank may hold a part.
    pub fn set_whole(&self, id: ParamId, values: &Tensor) {
        let spec = self.spec(id);
        match &spec.shard {
            Some(shard) if spec.is_rounded_by_whole_rows() => {
                let most = values.to_kind(Kind::Float).abs().amax([-1i64].as_slice(), true).expand_as(values);
                self.set_scaled(id, &shard.take(values), &shard.take(&most).select(-1, 0));
            }
            Some(shard) => self.set(id, &shard.take(values)),
            None => self.set(id, values),
        }
    }

    /// Draws every parameter from its `Init`; what a parameter gets depends on `seed` and its name alone.
    pub fn init_random(&self, seed: u64) {
        self.init_where(seed, |_| true);
    }

    /// Works like [`ParamStore::init_random`] for those whose name is wanted.
    pub fn init_where(&self, seed: u64, wanted: impl Fn(&ParamSpec) -> bool) {
        for id in self.ids().filter(|id| wanted(self.spec(*id))) {
            let param = &self.params[id.0 as usize];
            let shape = param.spec.whole_shape();
            let drawn = values(param.spec.init, seed, &param.spec.name, shape.iter().product::<i64>() as usize);
            self.set_whole(id, &Tensor::from_slice(&drawn).view(shape));
        }
    }

    /// Returns the norms `[out]` of rows that several ranks have together, by the paths of their maps; the training state keeps them up
    /// to date.
    pub fn joint_norms(&self) -> &BTreeMap<String, Tensor> {
        &self.joint_norms
    }

    /// Returns zero gradients of the trained parameters, float32 whatever the parameters are.
    pub fn new_grad(&self) -> GradBuffer {
        allocated_for(Purpose::Gradients, || self.new_zeros())
    }

    fn new_zeros(&self) -> GradBuffer {
        let options = (Kind::Float, self.flat.device());
        let trained = &self.params[..self.trained];
        if self.sharding.shared < ZeroStage::Gradients {
            let flat = Tensor::zeros([self.num_trained], options);
            let view = |param: &Param| flat.narrow(0, param.offset, param.len).view(param.spec.shape.as_slice());
            return GradBuffer { views: trained.iter().map(view).collect(), flat, units: vec![], unit_of: [].into() };
        }
        let of_unit = |unit: &FlatParam| GradUnit { whole: Tensor::empty([unit.len], options), is_open: false };
        let units: Vec<GradUnit> = self.units.iter().filter(|unit| unit.trained).map(of_unit).collect();
        let unit_of: Vec<usize> = trained.iter().filter_map(|param| param.unit).collect();
        let view = |param: &Param| {
            let unit = param.unit.expect("a trained parameter has a unit where they are shared out");
            let whole = units[unit].whole.narrow(0, param.offset - self.units[unit].start, param.len);
            whole.view(param.spec.shape.as_slice())
        };
        let views = trained.iter().map(view).collect();
        units.iter().for_each(|unit| release(&unit.whole));
        GradBuffer { views, flat: Tensor::zeros([self.num_owned()], options), units, unit_of: unit_of.into() }
    }
}

/// Brings parameters to where a tape reads them, and takes away what the ranks sum. All ranks run tapes that visit the
/// same units in the same order.
pub trait Unsharder {
    /// `now` are about to be read, and `next` will be; gradients of `now` are about to be added to `grads`.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    fn enter(
        &self,
        params: &ParamStore,
        now: &[ParamId],
        next: &[ParamId],
        grads: Option<&mut GradBuffer>,
    ) -> Result<(), NativeError>;

    /// A tape has ended: nothing is in use.
    ///
    /// # Errors
    /// Fails as [`Unsharder::enter`] does.
    fn leave(&self, params: &ParamStore, grads: Option<&mut GradBuffer>) -> Result<(), NativeError>;
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
