//! Frozen weights of a layer that are rounded or lie on the host, and whole on the device only while a tape reads them.

use tch::{Device, Kind, Tensor};

use super::flat_param::FlatParam;
use super::matrices::matrices;
use super::rounded::{Rounded, fill, round};
use super::rounding::{RowRange, Sizes, padded, rows_of};
use super::spec::{Held, ParamSpec};
use crate::native::{Purpose, allocate, allocated_for, pinned, release, uncounted};

/// The frozen linear maps of one layer that are held in one way.
pub struct FrozenUnit {
    held: Held,
    /// The memory that leaves are views of, `[len]` of the store's kind. It is allocated only while it is in use.
    whole: Tensor,
    /// Always there, flat: of the store's kind and laid out as `whole`, or rounded.
    values: Tensor,
    /// The numbers beside rounded values, on the device: float32 scales or maxima, and maxima that are rounded themselves.
    scales: Tensor,
    codes: Tensor,
    weights: Vec<WeightInUnit>,
}

/// The place of a weight in its unit.
struct WeightInUnit {
    start: i64,
    shape: Vec<i64>,
    /// The start of what was made of it, and its size.
    at: Sizes,
    sizes: Sizes,
    matrices: Vec<RowRange>,
}

impl WeightInUnit {
    fn of(&self, flat: &Tensor) -> Tensor {
        flat.narrow(0, self.start, self.shape.iter().product()).view(self.shape.as_slice())
    }

    fn values_of(&self, all: &Tensor) -> Tensor {
        all.narrow(0, self.at.values, self.sizes.values).view([rows_of(&self.shape).0, -1])
    }

    fn scales_of(&self, all: &Tensor) -> Tensor {
        all.narrow(0, self.at.scales, self.sizes.scales)
    }

    fn codes_of(&self, all: &Tensor) -> Tensor {
        all.narrow(0, self.at.codes, self.sizes.codes)
    }
}

/// A weight: the number of its unit, its number there, and its leaf.
type Placed = (usize, usize, ParamSpec, Tensor);

/// Returns the weights of a store, by units, with their leaves.
pub(super) fn in_frozen_units(specs: Vec<ParamSpec>, kind: Kind, device: Device) -> (Vec<FrozenUnit>, Vec<Placed>) {
    let mut groups: Vec<(String, Held, Vec<ParamSpec>)> = Vec::new();
    for spec in specs {
        let (name, held) = (FlatParam::name_of(&spec), spec.held);
        match groups.iter_mut().find(|group| (&group.0, group.1) == (&name, held)) {
            Some(group) => group.2.push(spec),
            None => groups.push((name, held, vec![spec])),
        }
    }
    let (mut units, mut placed) = (Vec::new(), Vec::new());
    for (index, (_, held, specs)) in groups.into_iter().enumerate() {
        let (unit, leaves) = FrozenUnit::new(held, &specs, kind, device);
        let members = specs.into_iter().zip(leaves).enumerate();
        placed.extend(members.map(|(at, (spec, leaf))| (index, at, spec, leaf)));
        units.push(unit);
    }
    (units, placed)
}

impl FrozenUnit {
    fn new(held: Held, specs: &[ParamSpec], kind: Kind, device: Device) -> (FrozenUnit, Vec<Tensor>) {
        let (mut end, mut at, mut weights) = (0, Sizes::default(), Vec::new());
        for spec in specs {
            let matrices = matrices(spec);
            let sizes = held.rounding.sizes(&spec.shape, &matrices);
            weights.push(WeightInUnit { start: end, shape: spec.shape.clone(), at, sizes, matrices });
            end += padded(spec.num_elements());
            at.values += padded(sizes.values);
            at.scales += sizes.scales;
            at.codes += sizes.codes;
        }
        let at_rest = held.rounding.kind(kind);
        let values = match (held.on_host, device) {
            (false, _) => Tensor::zeros([at.values], (at_rest, device)),
            // On a CPU, too, it is memory that is not the device's.
            (true, Device::Cpu) => uncounted(|| Tensor::zeros([at.values], (at_rest, Device::Cpu))),
            (true, _) => uncounted(|| pinned(&Tensor::zeros([at.values], (at_rest, Device::Cpu)))),
        };
        let scales = Tensor::ones([at.scales], (Kind::Float, device));
        let codes = Tensor::zeros([at.codes], (Kind::Uint8, device));
        let base = Tensor::empty([end], (kind, device));
        let leaves = weights.iter().map(|place| place.of(&base)).collect();
        // The same bytes with a version of their own: to autograd a weight that comes back is none that has changed.
        let whole = base.data();
        release(&whole);
        (FrozenUnit { held, whole, values, scales, codes, weights }, leaves)
    }

    /// Returns where the unit's weights lie and in what form.
    pub fn held(&self) -> Held {
        self.held
    }

    /// Returns the part that is always there, flat `[elements]`: the weights in the store's kind, or their rounded values in the kind of
    /// the rounding.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Returns all of it, `[len]`: what a tape reads. Its memory may be released.
    pub fn whole(&self) -> &Tensor {
        &self.whole
    }

    /// Memory for the weights, which are not there yet.
    pub fn allocate(&self) {
        allocated_for(Purpose::Buffers, || allocate(&self.whole));
    }

    /// Frees the whole weights until they are filled again.
    pub fn release(&self) {
        release(&self.whole);
    }

    /// Fills the memory with weights: `values` are those of [`FrozenUnit::values`], flat `[elements]`, on the unit's device.
    pub fn fill(&self, values: &Tensor) {
        if !self.held.rounding.is_some() {
            return self.whole.shallow_clone().copy_(values);
        }
        for place in &self.weights {
            self.fill_one(place, &place.of(&self.whole), values);
        }
    }

    /// Fills `into` with the weight at `place` of rounded `values`.
    fn fill_one(&self, place: &WeightInUnit, into: &Tensor, values: &Tensor) {
        let codes = (place.sizes.codes > 0).then(|| place.codes_of(&self.codes));
        let rounded = Rounded { values: place.values_of(values), scales: place.scales_of(&self.scales), codes };
        fill(self.held.rounding, into, &rounded, &place.matrices);
    }

    /// Overwrites weight `at`. `given`: see [`round`].
    pub(super) fn set(&self, at: usize, weight: &Tensor, given: Option<&Tensor>) {
        let place = &self.weights[at];
        if !self.held.rounding.is_some() {
            return place.of(&self.values).copy_(weight);
        }
        let rounded = round(self.held.rounding, weight, given, &place.matrices);
        place.values_of(&self.values).copy_(&rounded.values);
        place.scales_of(&self.scales).copy_(&rounded.scales);
        if let Some(codes) = &rounded.codes {
            place.codes_of(&self.codes).copy_(codes);
        }
    }

    /// Returns a copy of weight `at`, as a tape reads it.
    pub(super) fn weight(&self, at: usize) -> Tensor {
        let (place, device) = (&self.weights[at], self.whole.device());
        let made = Tensor::empty(place.shape.as_slice(), (self.whole.kind(), device));
        match self.held.rounding.is_some() {
            false => made.shallow_clone().copy_(&place.of(&self.values)),
            true => self.fill_one(place, &made, &self.values.to_device(device)),
        }
        made
    }

    /// Returns the rounded weight `at`: values, the numbers beside them, and rounded maxima.
    #[cfg(test)]
    pub(super) fn rounded(&self, at: usize) -> [Tensor; 3] {
        let place = &self.weights[at];
        [place.values_of(&self.values), place.scales_of(&self.scales), place.codes_of(&self.codes)]
    }
}
