//! Lays out a store in memory whose parameters ranks share out.

use std::cell::RefCell;
use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::flat_param::{FlatParam, OwnedPart};
use super::frozen_unit::FrozenUnit;
use super::grads::GradBuffer;
use super::id::ParamId;
use super::sharding::{Sharding, ZeroStage};
use super::spec::{ParamSpec, Role};
use super::store::{Param, ParamStore, Unsharder};
use crate::native::{NativeError, Purpose, allocated_for};

/// The parameters that become a unit.
struct Group {
    name: String,
    trained: bool,
    of_experts: bool,
    specs: Vec<ParamSpec>,
}

impl Group {
    /// Makes the group that this parameter belongs to, without parameters.
    fn of(spec: &ParamSpec) -> Group {
        let of_experts = spec.shard.as_ref().is_some_and(|shard| shard.of_experts);
        let trained = spec.role == Role::Trained;
        Group { name: FlatParam::name_of(spec), trained, of_experts, specs: Vec::new() }
    }

    fn key(&self) -> (&str, bool, bool) {
        (&self.name, self.trained, self.of_experts)
    }
}

/// Returns the parts of `values`, the elements from `first` on in the store's order, that the optimizer changes alike: `params` are the
/// parameters there, in that order, and the gap behind each is its own. `at` is where they lie in the optimizer's state.
fn parts(values: &Tensor, at: i64, first: i64, params: &[&Param]) -> Vec<OwnedPart> {
    let values = values.data();
    let end = first + values.numel() as i64;
    let begins = params.iter().map(|param| param.offset.clamp(first, end));
    let mut begins: Vec<i64> = begins.chain([end]).collect();
    begins[0] = first;
    let mut found: Vec<(i64, i64, bool, f64)> = Vec::new();
    for (param, ends) in params.iter().zip(begins.windows(2)).filter(|(_, ends)| ends[0] < ends[1]) {
        let (decays, rate) = (param.spec.decays(), param.spec.rate);
        match found.last_mut().filter(|(.., former, other)| (*former, *other) == (decays, rate)) {
            Some((_, end, ..)) => *end = ends[1],
            None => found.push((ends[0], ends[1], decays, rate)),
        }
    }
    let part = |(start, end, decays, rate): (i64, i64, bool, f64)| OwnedPart {
        at: at + start - first,
        values: values.narrow(0, start - first, end - start),
        decays,
        rate,
    };
    found.into_iter().map(part).collect()
}

impl ParamStore {
    /// Works like `new` for this rank's share.
    pub fn shared_out(specs: Vec<ParamSpec>, kind: Kind, device: Device, sharding: Sharding) -> ParamStore {
        allocated_for(Purpose::Parameters, || match sharding.is_none() {
            true => ParamStore::whole(specs, kind, device),
            false => ParamStore::in_units(specs, kind, device, sharding),
        })
    }

    fn in_units(specs: Vec<ParamSpec>, kind: Kind, device: Device, sharding: Sharding) -> ParamStore {
        let is_shared = |spec: &ParamSpec| spec.role != Role::Buffer && !spec.is_apart();
        let (shared, others): (Vec<_>, Vec<_>) = specs.into_iter().partition(is_shared);
        let (trained, frozen): (Vec<_>, Vec<_>) = shared.into_iter().partition(|spec| spec.role == Role::Trained);
        let num_trained = trained.len();
        let mut groups: Vec<Group> = Vec::new();
        for spec in trained.into_iter().chain(frozen) {
            let group = Group::of(&spec);
            match groups.iter_mut().find(|known| known.key() == group.key()) {
                Some(known) => known.specs.push(spec),
                None => groups.push(Group { specs: vec![spec], ..group }),
            }
        }
        // Offsets first, memory then.
        let align = sharding.align;
        let (mut end, mut at, mut placed, mut units) = (0, 0, Vec::new(), Vec::new());
        for Group { name, trained, of_experts, specs } in groups {
            let (start, slices) = (end, sharding.slices(of_experts));
            for spec in ParamSpec::in_order(specs).into_iter().flatten() {
                let len = spec.num_elements();
                placed.push((units.len(), end, spec));
                end = (end + len + align - 1) / align * align;
            }
            let step = align * slices.world as i64;
            let len = (end - start + step - 1) / step * step;
            end = start + len;
            let apart = sharding.shared == ZeroStage::Parameters && slices.world > 1;
            let (whole, own) = (Tensor::new(), Tensor::new());
            units.push(FlatParam { name, trained, start, len, at, whole, own, slices, of_experts, apart });
            at += len / slices.world as i64;
        }
        let only_own = sharding.shared == ZeroStage::Parameters;
        let flat = Tensor::zeros([if only_own { at } else { end }], (kind, device));
        // Leaves are views of these; what collectives write to are the same bytes with a version of their own, so that
        // autograd does not take a parameter that comes back for one that has changed.
        let base = |unit: &FlatParam| match unit.apart {
            true => Tensor::empty([unit.len], (kind, device)),
            false => flat.narrow(0, if only_own { unit.at } else { unit.start }, unit.len),
        };
        let bases: Vec<Tensor> = units.iter().map(base).collect();
        let mut params: Vec<Param> = Vec::with_capacity(placed.len() + others.len());
        for (unit, offset, spec) in placed {
            let len = spec.num_elements();
            let leaf = bases[unit].narrow(0, offset - units[unit].start, len).view(spec.shape.as_slice());
            let leaf = leaf.set_requires_grad(spec.role == Role::Trained);
            params.push(Param { leaf, spec, offset, len, unit: Some(unit), frozen: None });
        }
        for (unit, base) in units.iter_mut().zip(bases) {
            let own = unit.own_part();
            let first = if only_own { unit.at } else { unit.start + own.start };
            unit.own = flat.narrow(0, first, own.end - own.start);
            unit.whole = base.data();
            unit.release();
        }
        let trained_len = units.iter().filter(|unit| unit.trained).map(|unit| unit.len).sum();
        let mut store = ParamStore::of(flat, params, others);
        (store.sharding, store.units) = (sharding, units);
        (store.num_trained, store.trained) = (trained_len, num_trained);
        store
    }

    /// Returns how parameters, gradients and optimizer state are shared among replicas.
    pub fn sharding(&self) -> Sharding {
        self.sharding
    }

    /// Returns the units of parameters, trained ones first; none where replicas share nothing out.
    pub fn units(&self) -> &[FlatParam] {
        &self.units
    }

    /// Returns the weights that are rounded or lie on the host, by layers.
    pub fn frozen_units(&self) -> &[FrozenUnit] {
        &self.frozen
    }

    /// Returns the frozen unit of a parameter, where it is in one.
    pub fn frozen_unit_of(&self, id: ParamId) -> Option<usize> {
        self.params[id.index()].frozen.map(|(unit, _)| unit)
    }

    /// Returns the unit of a parameter; a buffer has none.
    pub fn unit_of(&self, id: ParamId) -> Option<usize> {
        self.params[id.index()].unit
    }

    /// Returns whether the values of a parameter are here between tapes, and not only a slice of them, or held in another
    /// way.
    pub fn is_here(&self, id: ParamId) -> bool {
        self.frozen_unit_of(id).is_none() && !self.unit_of(id).is_some_and(|unit| self.units[unit].apart)
    }

    /// Has the parameters `now` brought here: see [`Unsharder::enter`].
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn enter(&self, now: &[ParamId], next: &[ParamId], grads: Option<&mut GradBuffer>) -> Result<(), NativeError> {
        let unsharder = |of: &RefCell<Option<Rc<dyn Unsharder>>>| of.borrow().clone();
        unsharder(&self.frozen_unsharder).map_or(Ok(()), |frozen| frozen.enter(self, now, next, None))?;
        unsharder(&self.unsharder).map_or(Ok(()), |shared| shared.enter(self, now, next, grads))
    }

    /// Says that a tape has ended: see [`Unsharder::leave`].
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn leave(&self, grads: Option<&mut GradBuffer>) -> Result<(), NativeError> {
        let unsharder = |of: &RefCell<Option<Rc<dyn Unsharder>>>| of.borrow().clone();
        unsharder(&self.frozen_unsharder).map_or(Ok(()), |frozen| frozen.leave(self, None))?;
        unsharder(&self.unsharder).map_or(Ok(()), |shared| shared.leave(self, grads))
    }

    /// Sets who brings the frozen units.
    pub fn set_frozen_unsharder(&self, unsharder: Rc<dyn Unsharder>) {
        *self.frozen_unsharder.borrow_mut() = Some(unsharder);
    }

    /// Sets who brings parameters and takes gradients away, where replicas share them out.
    pub fn set_unsharder(&self, unsharder: Rc<dyn Unsharder>) {
        *self.unsharder.borrow_mut() = Some(unsharder);
    }

    /// Returns the part of a parameter that this rank's optimizer has, as elements of it and its place in the optimizer's state.
    pub fn owned_range(&self, id: ParamId) -> (std::ops::Range<i64>, i64) {
        let param = &self.params[id.index()];
        let Some(unit) = param.unit.map(|unit| &self.units[unit]) else {
            return (0..param.len, param.offset);
        };
        let (own, from) = (unit.own_part(), param.offset - unit.start);
        let start = own.start.clamp(from, from + param.len);
        let end = own.end.clamp(start, from + param.len);
        (start - from..end - from, unit.at + (start - own.start).max(0))
    }

    /// Returns the parts that this rank's optimizer changes: the same bytes with a version of their own, since a view of a leaf that a
    /// model made once would lose its gradient with a change that is counted.
    pub fn owned(&self) -> Vec<OwnedPart> {
        let trained = &self.params[..self.trained];
        if self.units.is_empty() {
            let all = self.flat.narrow(0, 0, self.num_trained);
            return parts(&all, 0, 0, &trained.iter().collect::<Vec<_>>());
        }
        let of_unit = |(number, unit): (usize, &FlatParam)| {
            let own: Vec<&Param> = trained.iter().filter(|param| param.unit == Some(number)).collect();
            parts(&unit.own, unit.at, unit.start + unit.own_part().start, &own)
        };
        self.units.iter().enumerate().filter(|(_, unit)| unit.trained).flat_map(of_unit).collect()
    }

    /// Returns this rank's slices of `flat` `[num_trained]`, trained elements in the store's order: a view `[own len]` for each trained
    /// unit.
    pub fn owned_slices(&self, flat: &Tensor) -> Vec<Tensor> {
        let slice = |unit: &FlatParam| {
            let own = unit.own_part();
            flat.narrow(0, unit.start + own.start, own.end - own.start)
        };
        self.units.iter().filter(|unit| unit.trained).map(slice).collect()
    }

    /// Returns the number of elements of the optimizer's state on this rank.
    pub fn num_owned(&self) -> i64 {
        if self.units.is_empty() {
            return self.num_trained;
        }
        self.units.iter().filter(|unit| unit.trained).map(|unit| unit.own_range().1).sum()
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use crate::params::{Init, ParamSpec, ParamStore, Shard, Sharding, Slices, ZeroStage};

    /// Returns a layer on one of four replicas over which experts are spread in pairs.
    fn store(rank: usize, of_experts: Slices) -> ParamStore {
        let shard = Shard { of_experts: true, ..Shard::whole(&[4, 8, 8]) };
        let experts = ParamSpec::new("layers.0.experts", &[2, 8, 8], Init::Zeros);
        let specs = vec![
            ParamSpec::new("layers.0.up", &[16, 8], Init::Zeros),
            ParamSpec { shard: Some(shard), ..experts },
            ParamSpec::new("layers.0.norm", &[8], Init::Zeros),
        ];
        let sharding = Sharding { of_experts, ..Sharding::new(ZeroStage::Parameters, rank, 4) };
        ParamStore::shared_out(specs, Kind::Float, Device::Cpu, sharding)
    }

    #[test]
    fn spread_experts_are_a_unit_in_slices_of_their_own() {
        for rank in 0..4 {
            let store = store(rank, Slices { rank: rank / 2, world: 2 });
            let lens: Vec<_> = store.units().iter().map(|unit| (unit.is_of_experts(), unit.own_range())).collect();
            // 16 x 8 and 8 padded to a multiple of 4 x 16, by four; 2 x 8 x 8 by two.
            assert_eq!(lens, [(false, (0, 48)), (true, (48, 64))]);
            assert_eq!((store.num_owned(), store.flat().size()[0]), (112, 112));
            let (experts, at) = store.owned_range(store.id("layers.0.experts"));
            assert_eq!((experts, at), ((rank as i64 / 2 * 64..(rank as i64 / 2 + 1) * 64), 48));
        }
    }

    #[test]
    fn what_has_another_rate_is_apart_whoever_holds_it() {
        let specs = || {
            ["layers.0.a", "layers.0.b", "layers.1.b", "layers.1.a"].map(|name| {
                let rate = if name.ends_with('b') { 16.0 } else { 1.0 };
                ParamSpec { rate, ..ParamSpec::new(name, &[8, 8], Init::Zeros) }
            })
        };
        let parts = |sharding| {
            let store = ParamStore::shared_out(specs().into(), Kind::Float, Device::Cpu, sharding);
            store.owned().iter().map(|part| (part.at, part.values.numel(), part.rate)).collect::<Vec<_>>()
        };
        assert_eq!(parts(Sharding::none()), [(0, 128, 1.0), (128, 128, 16.0)]);
        for rank in 0..3 {
            // A third of a layer is 48 elements, of which 64 of each rate lie side by side.
            let of_layer = [vec![(0, 48, 1.0)], vec![(0, 16, 1.0), (16, 32, 16.0)], vec![(0, 48, 16.0)]];
            let own = of_layer[rank].iter();
            let expected: Vec<_> =
                own.clone().copied().chain(own.map(|(at, len, rate)| (at + 48, *len, *rate))).collect();
            assert_eq!(parts(Sharding::new(ZeroStage::Parameters, rank, 3)), expected);
        }
    }

    #[test]
    fn a_view_of_a_parameter_has_a_gradient_whatever_the_optimizer_has_done() {
        let store = ParamStore::new(vec![ParamSpec::new("table", &[4, 8], Init::Ones)], Kind::Float, Device::Cpu);
        let view = store.get("table").view([-1]);
        for step in 0..2 {
            for part in store.owned() {
                let _ = part.values.shallow_clone().fill_(f64::from(step));
            }
            assert_eq!(view.mean(Kind::Float).double_value(&[]), f64::from(step));
            assert!(view.requires_grad(), "after {} changes", step + 1);
            view.sum(Kind::Float).backward();
        }
        let grad = store.get("table").grad();
        assert!(grad.defined() && grad.mean(Kind::Float).double_value(&[]) == 2.0);
    }

    #[test]
    fn what_one_rank_has_alone_is_always_whole() {
        let store = store(3, Slices { rank: 0, world: 1 });
        let experts = store.id("layers.0.experts");
        assert!(store.is_here(experts) && !store.is_here(store.id("layers.0.up")));
        assert!(!store.units()[1].is_apart());
        store.set(experts, &Tensor::ones([2, 8, 8], (Kind::Float, Device::Cpu)));
        assert_eq!(store.flat().sum(Kind::Double).double_value(&[]), 128.0);
        assert_eq!(store.leaf(experts).sum(Kind::Double).double_value(&[]), 128.0);
    }
}
