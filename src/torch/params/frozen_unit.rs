//! Frozen weights of a layer that are held as float8 or on the host, and whole on the device only while a tape reads them.

use tch::{Device, Kind, Tensor};

use super::flat_param::FlatParam;
use super::float8::{fill_from_float8, to_float8};
use super::id::ALIGN;
use super::spec::{Held, ParamSpec};
use crate::native::{Purpose, allocate, allocated_for, release, uncounted};

/// The frozen linear maps of one layer that are held in one way.
pub struct FrozenUnit {
    held: Held,
    /// What leaves are views of, `[len]` of the store's kind. It has memory only while it is in use.
    whole: Tensor,
    /// Always there, `[len]`: of the store's kind, or float8.
    values: Tensor,
    /// Of float8: a scale for each row of all weights, on the device.
    scales: Option<Tensor>,
    weights: Vec<Place>,
}

/// Where a weight lies in its unit.
struct Place {
    start: i64,
    first_row: i64,
    shape: Vec<i64>,
}

impl Place {
    fn of(&self, flat: &Tensor) -> Tensor {
        flat.narrow(0, self.start, self.shape.iter().product()).view(self.shape.as_slice())
    }

    fn num_rows(&self) -> i64 {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    fn rows_of(&self, flat: &Tensor) -> Tensor {
        self.of(flat).flatten(0, -2)
    }

    fn scales_of(&self, all: &Tensor) -> Tensor {
        all.narrow(0, self.first_row, self.num_rows())
    }
}

/// A weight: the number of its unit, its number there, and its leaf.
type Placed = (usize, usize, ParamSpec, Tensor);

/// Weights of a store, by units, with their leaves.
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
        let (mut end, mut num_rows, mut weights) = (0, 0, Vec::new());
        for spec in specs {
            let place = Place { start: end, first_row: num_rows, shape: spec.shape.clone() };
            end = (end + spec.num_elements() + ALIGN - 1) / ALIGN * ALIGN;
            num_rows += place.num_rows();
            weights.push(place);
        }
        let at_rest = if held.fp8 { Kind::Float8e4m3fn } else { kind };
        let values = match (held.on_host, device) {
            (false, _) => Tensor::zeros([end], (at_rest, device)),
            // On a CPU, too, it is memory that is not the device's.
            (true, Device::Cpu) => uncounted(|| Tensor::zeros([end], (at_rest, Device::Cpu))),
            (true, _) => uncounted(|| Tensor::zeros([end], (at_rest, Device::Cpu)).pin_memory(device)),
        };
        let scales = held.fp8.then(|| Tensor::ones([num_rows], (Kind::Float, device)));
        let base = Tensor::empty([end], (kind, device));
        let leaves = weights.iter().map(|place| place.of(&base)).collect();
        // The same bytes with a version of their own: to autograd a weight that comes back is none that has changed.
        let whole = base.data();
        release(&whole);
        (FrozenUnit { held, whole, values, scales, weights }, leaves)
    }

    pub fn held(&self) -> Held {
        self.held
    }

    /// What is always there, `[len]`.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// All of it, `[len]`: what a tape reads. Its memory may be released.
    pub fn whole(&self) -> &Tensor {
        &self.whole
    }

    /// Memory for the weights, which are not there yet.
    pub fn allocate(&self) {
        allocated_for(Purpose::Buffers, || allocate(&self.whole));
    }

    pub fn release(&self) {
        release(&self.whole);
    }

    /// Fills the memory with weights: `values` are those of the unit, on its device.
    pub fn fill(&self, values: &Tensor) {
        let Some(scales) = &self.scales else { return self.whole.shallow_clone().copy_(values) };
        for place in &self.weights {
            fill_from_float8(&place.of(&self.whole), &place.rows_of(values), &place.scales_of(scales));
        }
    }

    /// Overwrites weight `at`. `given`: of float8, the scales of its rows where they are above 0.
    pub(super) fn set(&self, at: usize, weight: &Tensor, given: Option<&Tensor>) {
        let place = &self.weights[at];
        match &self.scales {
            None => place.of(&self.values).copy_(weight),
            Some(scales) => {
                let (float8, of_rows) = to_float8(weight, given);
                place.rows_of(&self.values).copy_(&float8);
                place.scales_of(scales).copy_(&of_rows);
            }
        }
    }

    /// A copy of weight `at`, as a tape reads it.
    pub(super) fn weight(&self, at: usize) -> Tensor {
        let (place, device) = (&self.weights[at], self.whole.device());
        let made = Tensor::empty(place.shape.as_slice(), (self.whole.kind(), device));
        match &self.scales {
            None => made.shallow_clone().copy_(&place.of(&self.values)),
            Some(scales) => {
                let values = place.rows_of(&self.values).to_device(device);
                fill_from_float8(&made, &values, &place.scales_of(scales));
            }
        }
        made
    }
}
