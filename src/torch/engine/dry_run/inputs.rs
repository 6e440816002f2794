//! Stand-ins for the inputs that an engine in a dry run would receive from other actors: tokens, pixels, features and gradients without
//! values.

use super::Course;
use crate::engine::buffer::TorchBuffer;
use crate::engine::pack_work::input_of;
use crate::model::{Column, FeatureInput, INPUT_IDS, POSITION_IDS, TARGETS};
use crate::native::{bytes, uncounted};
use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::engine::{Engine, EngineError};
use loongforge_core::message::{ActorId, ItemMeta, Pack, Replica, Role, StepPlan, Unit, UnitId, Version};
use loongforge_core::transport::{Buffer, Header, Parcel, ParcelKind, TensorMeta};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use tch::{Device, Kind, Tensor};

impl Course {
    /// Everything that others send for a step.
    pub(super) fn receive(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        let foundation = self.engine.foundation().map(|part| (part.inputs().to_vec(), part.columns()));
        if let Some((inputs, columns)) = foundation {
            let place = self.layout.place(self.me.index as usize);
            let leads = (place.pp, place.cp, place.tp) == (0, 0, 0);
            for pack in plan.packs_of(Replica::new(self.me.pool, place.dp as u32)).filter(|_| leads) {
                if !columns.is_empty() {
                    self.receive_tokens(pack, &columns)?;
                }
                for unit in plan.units_of(pack.id) {
                    if unit.is_skipped() || self.encodes(unit) {
                        continue;
                    }
                    let from = match self.colocated {
                        true => ActorId::foundation(unit.encoder.index),
                        false => unit.encoder.leader(Role::Encoder, self.ranks_of(unit)),
                    };
                    let FeatureInput { width, num_tensors, .. } = inputs[input_of(&inputs, unit.tower())?];
                    let shape = [unit.num_features() as i64, width];
                    let kind = self.kind;
                    let tensors =
                        (0..num_tensors).map(|_| buffer(|| Tensor::empty(shape, (kind, Device::Cpu)))).collect();
                    self.arrive(from, ParcelKind::Features(unit.id), plan, tensors)?;
                }
            }
        }
        let units: Vec<Unit> = plan.units.iter().filter(|unit| self.encodes(unit)).cloned().collect();
        for unit in units {
            let owners: BTreeSet<u32> = unit.items.iter().map(|item| item.owner).collect();
            for owner in owners {
                let own = unit.items.iter().filter(|item| item.owner == owner);
                let patches = own.map(|item| item.meta.grid.num_cells() as i64).sum();
                let width = self.towers.get(unit.tower()).map_or(0, |family| family.patch_dim());
                let pixels = read(|| Tensor::empty([patches, width], (Kind::Float, Device::Cpu)));
                self.arrive(ActorId::data(owner), ParcelKind::Items(unit.id), plan, vec![pixels])?;
            }
        }
        Ok(())
    }

    fn receive_tokens(&mut self, pack: &Pack, columns: &[Column]) -> Result<(), EngineError> {
        let owners: BTreeSet<u32> = pack.samples.iter().map(|sample| sample.owner).collect();
        for owner in owners {
            let (mut ids, mut positions, mut targets) = (Vec::new(), Vec::new(), Vec::new());
            for sample in pack.samples.iter().filter(|sample| sample.owner == owner) {
                let len = sample.num_tokens as usize;
                let placeholder = |tower| {
                    let found = self.towers.iter().find(|it| it.tower == tower);
                    found.and_then(|it| it.placeholders.first().copied()).unwrap_or(0)
                };
                let media = |item: &ItemMeta| std::iter::repeat_n(placeholder(item.tower), item.num_features as usize);
                let prompt = len - (sample.num_targets as usize).min(len);
                ids.extend(sample.items.iter().flat_map(media).chain(std::iter::repeat(0)).take(len));
                let asked = prompt.max(1) as u32;
                let both = [asked, sample.num_tokens.saturating_sub(asked)];
                let lens: &[u32] = if self.restarts { &both } else { sample.document_lens() };
                positions.extend(lens.iter().flat_map(|&len| (0..len).map(|at| at as f32)));
                targets.extend((0..len).map(|at| if at < prompt { IGNORE_INDEX } else { 0 }));
            }
            let positions = positions.repeat(3);
            let own = pack.samples.iter().filter(|sample| sample.owner == owner).count() as i64;
            // Of columns beside those of tokens, such as labels of answers, the values do not matter.
            let tensor = |column: &Column| match column.name {
                INPUT_IDS => read(|| Tensor::from_slice(&ids)),
                POSITION_IDS => read(|| Tensor::from_slice(&positions).view([3, -1])),
                TARGETS => read(|| Tensor::from_slice(&targets)),
                _ => {
                    let size = column.size(column.num_rows(ids.len() as i64, own));
                    read(|| Tensor::zeros(&size, (column.kind, Device::Cpu)))
                }
            };
            let tensors = columns.iter().map(tensor).collect();
            let header = Header { kind: ParcelKind::Columns(pack.id), version: Version(0) };
            self.engine.arrive(ActorId::data(owner), Parcel::new(header, tensors), &mut self.ports)?;
        }
        Ok(())
    }

    /// Takes the gradients of features that were sent, and returns whether there were any.
    pub(super) fn return_gradients(&mut self, plan: &StepPlan) -> Result<bool, EngineError> {
        let mut shapes: BTreeMap<UnitId, Vec<TensorMeta>> = BTreeMap::new();
        for (kind, metas) in self.outbox.drain() {
            if let ParcelKind::Features(unit) = kind {
                shapes.insert(unit, metas);
            }
        }
        let any = !shapes.is_empty();
        let units = plan.units.iter().filter_map(|unit| Some((unit, shapes.remove(&unit.id)?)));
        for (unit, metas) in units.collect::<Vec<_>>() {
            if !self.engine.trains_encoder(unit.tower()) {
                continue;
            }
            let gradient = |meta: &TensorMeta| {
                let shape: Vec<i64> = meta.shape.iter().map(|&dim| dim as i64).collect();
                buffer(|| Tensor::empty(shape, (self.kind, Device::Cpu)))
            };
            let tensors = metas.iter().map(gradient).collect();
            self.arrive(plan.leader(unit.replica), ParcelKind::Gradient(unit.id), plan, tensors)?;
        }
        Ok(any)
    }

    /// Returns whether a unit is encoded here.
    fn encodes(&self, unit: &Unit) -> bool {
        match self.colocated {
            true => self.me.role == Role::Foundation && unit.encoder.index == self.me.index,
            false => unit.encoder == Replica::new(self.me.pool, self.me.index / self.ranks_of(unit)),
        }
    }

    /// Returns the number of ranks of the encoder of a unit.
    fn ranks_of(&self, unit: &Unit) -> u32 {
        self.encoder_ranks.get(&unit.encoder.pool).copied().unwrap_or(1)
    }

    fn arrive(
        &mut self,
        from: ActorId,
        kind: ParcelKind,
        plan: &StepPlan,
        tensors: Vec<Box<dyn Buffer>>,
    ) -> Result<(), EngineError> {
        let header = Header { kind, version: Version(plan.step.0) };
        self.engine.arrive(from, Parcel::new(header, tensors), &mut self.ports)
    }
}

/// Returns a tensor that comes as bytes: whoever gives its memory back makes another one, and counts it.
fn read(make: impl FnOnce() -> Tensor) -> Box<dyn Buffer> {
    Box::new(Lent(uncounted(make)))
}

/// Returns a tensor that another actor has made, and counts.
fn buffer(make: impl FnOnce() -> Tensor) -> Box<dyn Buffer> {
    uncounted(|| Box::new(TorchBuffer::new(&make())))
}

/// Bytes of somebody else.
struct Lent(Tensor);

impl Buffer for Lent {
    fn meta(&self) -> TensorMeta {
        TorchBuffer::new(&self.0).meta()
    }

    fn copy_to(&self, _out: &mut [u8]) {}

    fn bytes(&self) -> Option<&[u8]> {
        Some(bytes(&self.0))
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
