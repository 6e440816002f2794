//! A pack on its way through a foundation, with the units whose features it reads, and what goes back to encoders.

use super::assembler::Assembler;
use super::buffer::TorchBuffer;
use super::stages::Filled;
use crate::model::{Column, FeatureInput, NoisePurpose, SampleRow};
use crate::tape::Slot;
use loongforge_core::engine::{EngineError, Ports};
use loongforge_core::message::{
    ActorId, Pack, PoolName, SampleId, SampleMeta, StepPlan, Tower, TowerSet, Unit, UnitId, Version,
};
use loongforge_core::transport::{Buffer, CreditGuard, Header, Parcel, ParcelKind};
use std::collections::BTreeMap;
use std::rc::Rc;
use tch::Tensor;

pub(super) struct PackWork {
    pub pack: Pack,
    pub tokens: Assembler,
    /// The units of the pack, in the order of their placeholders.
    pub units: Vec<PackUnit>,
    pub chunks: Vec<PackChunk>,
}

/// A part of a pack that goes through as one, or all of it.
pub(super) struct PackChunk {
    pub filled: Filled,
    /// Slots of the features on the tape of the first stage, by input.
    pub slots: Vec<Vec<Slot>>,
    /// The gradients of features after the backward, by input one for each level.
    pub grads: Vec<Vec<Tensor>>,
    pub is_done: bool,
}

pub(super) struct PackUnit {
    pub id: UnitId,
    /// The pool that its encoder is of.
    pub pool: PoolName,
    pub tower: Tower,
    pub num_features: i64,
    pub samples: Vec<SampleId>,
    /// Nobody computes it: its features are zeros, and its samples have no targets.
    pub is_skipped: bool,
    /// The features, and the actor that sent them.
    pub features: Option<(ActorId, Features)>,
}

pub(super) struct Features {
    pub tensors: Vec<Tensor>,
    /// Held until the micro-batch is done: the features are in use until then.
    pub credit: Option<CreditGuard>,
}

/// Returns the foundation's input that takes features of this tower.
pub(super) fn input_of(inputs: &[FeatureInput], tower: Tower) -> Result<usize, EngineError> {
    let missing = || EngineError::from(format!("the foundation takes no features of a {tower} tower"));
    inputs.iter().position(|input| input.tower == tower).ok_or_else(missing)
}

impl PackChunk {
    /// Makes a chunk that nothing has been computed of.
    pub fn new(filled: Filled) -> PackChunk {
        PackChunk { filled, slots: Vec::new(), grads: Vec::new(), is_done: false }
    }
}

impl PackUnit {
    /// Returns whether its features are yet to come.
    pub fn waits(&self) -> bool {
        self.features.is_none() && !self.is_skipped
    }

    /// Returns the rows `[features, D]` of a level of the unit's features; where it has none, those that `zeros` makes for their number.
    pub fn level(&self, index: usize, zeros: impl FnOnce(i64) -> Tensor) -> Tensor {
        match self.features.as_ref().filter(|_| !self.is_skipped) {
            Some((_, features)) => features.tensors[index].shallow_clone(),
            None => zeros(self.num_features),
        }
    }
}

impl PackWork {
    /// Returns the rows of its samples, from the plan; samples that have lost a unit have no targets.
    pub fn rows(&self, purpose: NoisePurpose) -> Rc<[SampleRow]> {
        let is_whole = |id| self.units.iter().all(|unit| !unit.is_skipped || !unit.samples.contains(&id));
        let row = |sample: &SampleMeta| {
            let row = SampleRow::new(sample, purpose);
            if is_whole(sample.id) { row } else { row.without_targets() }
        };
        self.pack.samples.iter().map(row).collect()
    }

    /// Gives up these units, unless the pack is in work already, with features of theirs.
    pub fn skip(&mut self, is_skipped: impl Fn(UnitId) -> bool) {
        if self.chunks.is_empty() {
            self.units.iter_mut().for_each(|unit| unit.is_skipped |= is_skipped(unit.id));
        }
    }

    /// Returns the number of rows of features, by input.
    pub fn num_features(&self, inputs: &[FeatureInput]) -> Vec<i64> {
        let of_input = |input: &FeatureInput| {
            let own = self.units.iter().filter(|unit| unit.tower == input.tower);
            own.map(|unit| unit.num_features).sum()
        };
        inputs.iter().map(of_input).collect()
    }

    /// Returns column `index` of the whole pack, `[before…, rows, after…]` as `column` says, in which samples that have lost a unit do
    /// not count.
    ///
    /// # Errors
    /// Data actors sent something that does not fit the samples.
    pub fn column(&self, index: usize, column: &Column) -> Result<Tensor, EngineError> {
        let rows = |sample: &SampleMeta| column.num_rows(i64::from(sample.num_tokens), 1);
        let pieces: Vec<(u32, i64)> = self.pack.samples.iter().map(|sample| (sample.owner, rows(sample))).collect();
        let whole = self.tokens.assemble(index, column.axis(), &pieces)?;
        let is_whole = self.units.iter().all(|unit| !unit.is_skipped);
        let Some(uncounted) = column.uncounted.filter(|_| !is_whole) else { return Ok(whole) };
        // What was received is not written to.
        let whole = whole.copy();
        let mut start = 0;
        for sample in &self.pack.samples {
            if self.units.iter().any(|unit| unit.is_skipped && unit.samples.contains(&sample.id)) {
                let _ = whole.narrow(column.axis(), start, rows(sample)).fill_(uncounted);
            }
            start += rows(sample);
        }
        Ok(whole)
    }

    /// Data actors send columns of it only where the model has some.
    pub fn new(pack: &Pack, plan: &StepPlan, has_columns: bool) -> PackWork {
        let unit = |unit: &Unit| PackUnit {
            id: unit.id,
            pool: unit.encoder.pool,
            tower: unit.tower(),
            num_features: unit.num_features() as i64,
            is_skipped: unit.is_skipped(),
            samples: unit.items.iter().map(|item| item.id.sample).collect(),
            features: None,
        };
        PackWork {
            tokens: Assembler::new(pack.samples.iter().filter(|_| has_columns).map(|sample| sample.owner)),
            units: plan.units_of(pack.id).map(unit).collect(),
            pack: pack.clone(),
            chunks: Vec::new(),
        }
    }

    /// Frees what an evaluation has read.
    pub fn forget(&mut self) {
        self.chunks.clear();
        self.units.clear();
    }

    /// Returns the features' gradients to those who sent them, keeps them in `returned`, and frees the features.
    /// Gradients are `[features, D]` a level, as the features.
    ///
    /// # Errors
    /// The model has no input from a unit's tower, or a gradient is none that an edge can carry.
    pub fn give_back(
        &mut self,
        inputs: &[FeatureInput],
        how: &Return,
        returned: &mut BTreeMap<UnitId, Vec<Tensor>>,
        ports: &mut Ports,
    ) -> Result<(), EngineError> {
        let chunks: Vec<PackChunk> = self.chunks.drain(..).filter(|chunk| !chunk.grads.is_empty()).collect();
        let of_input = |input: usize| {
            // Of a chunk without rows of an input there are no gradients of it.
            let levels: Vec<&Vec<Tensor>> = chunks.iter().filter_map(|chunk| chunk.grads.get(input)).collect();
            let num_levels = levels.iter().map(|levels| levels.len()).max().unwrap_or(0);
            let level = |level: usize| {
                match levels.iter().filter_map(|levels| levels.get(level)).collect::<Vec<_>>().as_slice() {
                    // Of a row that was not cut.
                    [whole] => whole.shallow_clone(),
                    parts => Tensor::cat(parts, 0),
                }
            };
            (0..num_levels).map(level).collect::<Vec<Tensor>>()
        };
        let levels: Vec<Vec<Tensor>> = (0..inputs.len()).map(of_input).collect();
        let mut rows = vec![0; inputs.len()];
        for unit in self.units.drain(..) {
            let input = input_of(inputs, unit.tower)?;
            let grads = levels[input].iter().map(|grad| grad.narrow(0, rows[input], unit.num_features)).collect();
            let grads: Vec<Tensor> = grads;
            rows[input] += unit.num_features;
            if unit.is_skipped {
                continue;
            }
            let (from, features) = unit.features.expect("the pack is whole");
            drop(features);
            how.give_back(unit.id, (unit.pool, from), &grads, ports)?;
            returned.insert(unit.id, grads);
        }
        Ok(())
    }
}

/// The properties of an encoder pool that a foundation needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderPeers {
    /// The towers whose encoders want gradients of their features.
    pub trained: TowerSet,
    /// The pool's other towers.
    pub frozen: TowerSet,
    /// Actors of one encoder: its first sends the features, and all of them get the gradients.
    pub ranks: u32,
}

impl EncoderPeers {
    /// Returns whether encoders wait for the gradients of every unit.
    pub fn wants_all(&self) -> bool {
        !self.trained.is_empty() && self.frozen.is_empty()
    }
}

/// Describes how gradients go back.
#[derive(Clone)]
pub(super) struct Return {
    pub encoders: BTreeMap<PoolName, EncoderPeers>,
    pub version: Version,
}

impl Return {
    /// Returns the gradients of a unit's features to the encoder of `pool` that has sent them; there are none of a frozen tower's.
    /// Each level is `[features, D]`.
    ///
    /// # Errors
    /// The gradient is none that the edge can carry; an encoder that is gone is no error.
    pub fn give_back(
        &self,
        id: UnitId,
        (pool, to): (PoolName, ActorId),
        grads: &[Tensor],
        ports: &mut Ports,
    ) -> Result<(), EngineError> {
        let peers = self.encoders.get(&pool).filter(|peers| !peers.trained.is_empty() && !grads.is_empty());
        let Some(EncoderPeers { ranks, .. }) = peers else { return Ok(()) };
        let header = Header { kind: ParcelKind::Gradient(id), version: self.version };
        for index in to.index..to.index + ranks {
            let tensors = grads.iter().map(|grad| Box::new(TorchBuffer::new(grad)) as Box<dyn Buffer>);
            ports.send(ActorId { index, ..to }, Parcel::new(header, tensors.collect()))?;
        }
        Ok(())
    }
}
