//! What of a pool's parameters a rank keeps where replicas share them out (ZeRO; Rajbhandari et al. 2020).
//!
//! The parameters of one layer are a *unit*: they lie together, padded so that every rank has an equal slice. A rank
//! always has its slices; what else it has depends on [`Shared`]. Who moves slices about is a [`Keeper`].

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::grads::GradBuffer;
use super::params::{ALIGN, Param, ParamId, ParamSpec, ParamStore, Role};
use crate::native::{NativeError, allocate, release};

/// What replicas share out, each with all before it: ZeRO-1, -2 and -3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shared {
    #[default]
    Nothing,
    /// The optimizer's state.
    State,
    /// Sums of gradients.
    Gradients,
    Parameters,
}

impl Shared {
    /// Of `pools.*.zero`. Panics above 3.
    pub fn of_level(level: usize) -> Shared {
        [Shared::Nothing, Shared::State, Shared::Gradients, Shared::Parameters][level]
    }
}

/// Among how many ranks what is shared out, and which of them this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    pub shared: Shared,
    pub rank: usize,
    pub world: usize,
}

impl Sharding {
    /// Everything is here.
    pub fn none() -> Sharding {
        Sharding { shared: Shared::Nothing, rank: 0, world: 1 }
    }

    pub fn is_none(&self) -> bool {
        self.world == 1 || self.shared == Shared::Nothing
    }
}

/// Parameters that are sliced together.
pub struct Unit {
    pub(super) name: String,
    pub(super) trained: bool,
    /// Of the store's order, with the gaps.
    pub(super) start: i64,
    pub(super) len: i64,
    /// Elements at its front that decay.
    pub(super) decayed: i64,
    /// Where this rank's slice begins among its slices.
    pub(super) at: i64,
    pub(super) whole: Tensor,
    pub(super) own: Tensor,
}

impl Unit {
    /// Where a layer begins in the names of its parameters: up to the first number, or else the module.
    pub(super) fn name_of(spec: &ParamSpec) -> String {
        let parts: Vec<&str> = spec.name.split('.').collect();
        let number = parts.iter().position(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        parts[..number.map_or(parts.len().max(2) - 1, |number| number + 1)].join(".")
    }

    /// As its parameters' names begin.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_trained(&self) -> bool {
        self.trained
    }

    /// All of it, `[len]`: what a collective fills. Its memory may be released.
    pub fn whole(&self) -> &Tensor {
        &self.whole
    }

    /// This rank's slice, always there.
    pub fn own(&self) -> &Tensor {
        &self.own
    }

    /// First element and number of elements in the store's order.
    pub fn range(&self) -> (i64, i64) {
        (self.start, self.len)
    }

    /// First element and number of elements of this rank's slice among its slices of all units.
    pub fn own_range(&self) -> (i64, i64) {
        (self.at, self.own.numel() as i64)
    }

    /// Memory for the parameters, which are not there yet.
    pub fn allocate(&self) {
        allocate(&self.whole);
    }

    pub fn release(&self) {
        release(&self.whole);
    }

    /// This rank's elements, counted from the unit's start.
    pub(super) fn own_part(&self, sharding: &Sharding) -> std::ops::Range<i64> {
        let len = self.len / sharding.world as i64;
        sharding.rank as i64 * len..(sharding.rank as i64 + 1) * len
    }
}

/// A part of what this rank's optimizer changes.
pub struct OwnedPart {
    /// Where it lies in the optimizer's state.
    pub at: i64,
    pub values: Tensor,
    pub decays: bool,
}

/// Brings parameters to where a tape reads them, and takes away what the ranks sum. All ranks run tapes that visit the
/// same units in the same order.
pub trait Keeper {
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
    /// As [`Keeper::enter`].
    fn leave(&self, params: &ParamStore, grads: Option<&mut GradBuffer>) -> Result<(), NativeError>;
}

impl ParamStore {
    /// As `new`, this rank's share.
    pub fn shared_out(specs: Vec<ParamSpec>, kind: Kind, device: Device, sharding: Sharding) -> ParamStore {
        if sharding.is_none() {
            return ParamStore::whole(specs, kind, device);
        }
        let (others, buffers): (Vec<_>, Vec<_>) = specs.into_iter().partition(|spec| spec.role != Role::Buffer);
        let (trained, frozen): (Vec<_>, Vec<_>) = others.into_iter().partition(|spec| spec.role == Role::Trained);
        let num_trained = trained.len();
        let mut groups: Vec<(String, bool, Vec<ParamSpec>)> = Vec::new();
        for (spec, of_trained) in
            trained.into_iter().map(|spec| (spec, true)).chain(frozen.into_iter().map(|spec| (spec, false)))
        {
            let name = Unit::name_of(&spec);
            match groups.iter_mut().find(|(known, of, _)| (&*known, *of) == (&name, of_trained)) {
                Some((.., specs)) => specs.push(spec),
                None => groups.push((name, of_trained, vec![spec])),
            }
        }
        // Offsets first, memory then.
        let (mut end, mut placed, mut units) = (0, Vec::new(), Vec::new());
        for (name, trained, specs) in groups {
            let start = end;
            let (decayed, undecayed): (Vec<_>, Vec<_>) = specs.into_iter().partition(|spec| spec.shape.len() >= 2);
            let mut place = |specs: Vec<ParamSpec>| {
                for spec in specs {
                    let len = spec.num_elements();
                    placed.push((units.len(), end, spec));
                    end = (end + len + ALIGN - 1) / ALIGN * ALIGN;
                }
                end - start
            };
            let decayed = place(decayed);
            place(undecayed);
            let step = ALIGN * sharding.world as i64;
            let len = (end - start + step - 1) / step * step;
            end = start + len;
            units.push((name, trained, start, len, decayed));
        }
        let (world, rank) = (sharding.world as i64, sharding.rank as i64);
        let apart = sharding.shared == Shared::Parameters;
        let flat = Tensor::zeros([if apart { end / world } else { end }], (kind, device));
        // Leaves are views of these; what collectives write to are the same bytes with a version of their own, so that
        // autograd does not take a parameter that comes back for one that has changed.
        let bases: Vec<Tensor> = units
            .iter()
            .map(|(_, _, start, len, _)| match apart {
                true => Tensor::empty([*len], (kind, device)),
                false => flat.narrow(0, *start, *len),
            })
            .collect();
        let mut params: Vec<Param> = Vec::with_capacity(placed.len() + buffers.len());
        for (unit, offset, spec) in placed {
            let len = spec.num_elements();
            let leaf = bases[unit].narrow(0, offset - units[unit].2, len).view(spec.shape.as_slice());
            let leaf = leaf.set_requires_grad(spec.role == Role::Trained);
            params.push(Param { leaf, spec, offset, len, unit: Some(unit) });
        }
        let units = units.into_iter().zip(bases).map(|((name, trained, start, len, decayed), base)| {
            let (at, own_len) = (start / world, len / world);
            let own = flat.narrow(0, if apart { at } else { start + rank * own_len }, own_len);
            let unit = Unit { name, trained, start, len, decayed, at, whole: base.data(), own };
            if apart {
                release(&unit.whole);
            }
            unit
        });
        let units: Vec<Unit> = units.collect();
        let trained_len = units.iter().filter(|unit| unit.trained).map(|unit| unit.len).sum();
        let mut store = ParamStore::of(flat, params, buffers);
        (store.sharding, store.units) = (sharding, units);
        (store.num_trained, store.trained) = (trained_len, num_trained);
        store
    }

    pub fn sharding(&self) -> Sharding {
        self.sharding
    }

    /// Trained ones first; none where replicas share nothing out.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The unit of a parameter; a buffer has none.
    pub fn unit_of(&self, id: ParamId) -> Option<usize> {
        self.params[id.index()].unit
    }

    /// Whether the values of a parameter are here between tapes, and not only a slice of them.
    pub fn is_here(&self, id: ParamId) -> bool {
        self.sharding.shared < Shared::Parameters || self.unit_of(id).is_none()
    }

    /// Who brings parameters and takes gradients away, where replicas share them out.
    pub fn keeper(&self) -> Option<Rc<dyn Keeper>> {
        self.keeper.borrow().clone()
    }

    pub fn set_keeper(&self, keeper: Rc<dyn Keeper>) {
        *self.keeper.borrow_mut() = Some(keeper);
    }

    /// The part of a parameter that this rank's optimizer has, as elements of it and its place in the optimizer's state.
    pub fn owned_range(&self, id: ParamId) -> (std::ops::Range<i64>, i64) {
        let param = &self.params[id.index()];
        let Some(unit) = param.unit.map(|unit| &self.units[unit]) else {
            return (0..param.len, param.offset);
        };
        let (own, from) = (unit.own_part(&self.sharding), param.offset - unit.start);
        let start = own.start.clamp(from, from + param.len);
        let end = own.end.clamp(start, from + param.len);
        (start - from..end - from, unit.at + (start - own.start).max(0))
    }

    /// What this rank's optimizer changes.
    pub fn owned(&self) -> Vec<OwnedPart> {
        let part = |values: &Tensor, at: i64, decayed: i64| {
            let values = values.detach();
            let (len, decayed) = (values.numel() as i64, decayed.clamp(0, values.numel() as i64));
            let cut = [(0, decayed, true), (decayed, len - decayed, false)];
            cut.into_iter().filter(|(_, len, _)| *len > 0).map(move |(start, len, decays)| OwnedPart {
                at: at + start,
                values: values.narrow(0, start, len),
                decays,
            })
        };
        if self.units.is_empty() {
            return part(&self.flat.narrow(0, 0, self.num_trained), 0, self.num_decay).collect();
        }
        let trained = self.units.iter().filter(|unit| unit.trained);
        trained.flat_map(|unit| part(&unit.own, unit.at, unit.decayed - unit.own_part(&self.sharding).start)).collect()
    }

    /// This rank's slices of `flat`, trained elements in the store's order.
    pub fn owned_slices(&self, flat: &Tensor) -> Vec<Tensor> {
        let slice = |unit: &Unit| {
            let own = unit.own_part(&self.sharding);
            flat.narrow(0, unit.start + own.start, own.end - own.start)
        };
        self.units.iter().filter(|unit| unit.trained).map(slice).collect()
    }

    /// Elements of the optimizer's state on this rank.
    pub fn num_owned(&self) -> i64 {
        self.num_trained / self.sharding.world as i64
    }
}
