//! The forward of units: items to features, which are computed, kept from before or read from a folder.

use super::EncoderWorker;
use super::cached::{encode_apart, encode_each, input};
use super::unit_work::{Phase, UnitWork};
use crate::engine::assembler::Assembler;
use crate::engine::buffer::TorchBuffer;
use crate::engine::feature_reader::Missing;
use crate::params::Masks;
use crate::tape::Execution;
use loongforge_core::engine::{EngineError, Ports, fault};
use loongforge_core::message::{Event, Tower, UnitId, Version};
use loongforge_core::transport::{Buffer, Header, Parcel, ParcelKind};
use tch::{Kind, Tensor};

impl EncoderWorker {
    /// Returns the step and the unit that can be encoded next, by their places: all of its items are there, and no unit before it in its
    /// queue waits for items. There is a queue for each replica, in the order of its packs: the features of a later pack would take the
    /// credit that an earlier pack's need. Where ranks meet in a unit there is one queue.
    fn next_ready(&self, version: Version) -> Option<[usize; 2]> {
        let (trained, in_step) = (self.state.is_trained(), self.in_step());
        let steps = self.steps.iter().enumerate().filter(|(_, step)| !trained || step.id.0 == version.0);
        let mut units =
            steps.flat_map(|(at, step)| step.units.iter().enumerate().map(move |(unit, work)| ([at, unit], work)));
        let mut blocked = Vec::new();
        let ready = |(_, work): &([usize; 2], &UnitWork)| {
            let queue = if in_step { None } else { Some(work.unit.replica) };
            let waits = matches!(work.phase, Phase::Waiting) && !blocked.contains(&queue);
            if waits && !work.pixels.is_complete() {
                blocked.push(queue);
            }
            waits && work.pixels.is_complete()
        };
        units.find(ready).map(|(place, _)| place)
    }

    /// Encodes the next unit whose items are there, and sends its features.
    pub(super) fn encode_next(&mut self, version: Version, ports: &mut Ports) -> Result<Option<UnitId>, EngineError> {
        if self.lacks {
            return Ok(None);
        }
        let Some(place @ [step, unit]) = self.next_ready(version) else { return Ok(None) };
        let work = &mut self.steps[step].units[unit];
        if self.membership.is_some() {
            ports.at(Some(work.unit.id));
        }
        let patches: Vec<(u32, i64)> =
            work.unit.items.iter().map(|item| (item.owner, item.meta.grid.num_cells() as i64)).collect();
        let mut pixels = work.pixels.assemble(0, 0, &patches)?;
        if fault::poison(ports.me(), "nan_input", &work.samples()) {
            pixels = pixels.to_kind(Kind::Float) * f64::NAN;
        }
        work.pixels = Assembler::new(std::iter::empty());
        let encoded = match self.reader.is_some() || self.cache.is_some() {
            true => self.kept(place, &pixels, ports)?,
            false => Some(self.computed(place, &pixels, version, ports)?),
        };
        let Some((features, phase)) = encoded else { return Ok(None) };
        let work = &mut self.steps[step].units[unit];
        let id = work.unit.id;
        // All ranks of an encoder have its features.
        if self.mesh.tp.rank() == 0 {
            ports.send(work.reader, parcel_of(id, version, &features))?;
        }
        work.phase = phase;
        Ok(Some(id))
    }

    /// Returns a unit's features from the cache or the folder, where they are there; a cache computes the others. `None`: some are
    /// missing, and nobody computes them.
    fn kept(
        &mut self,
        [step, unit]: [usize; 2],
        pixels: &Tensor,
        ports: &mut Ports,
    ) -> Result<Option<(Vec<Tensor>, Phase)>, EngineError> {
        let work = &self.steps[step].units[unit];
        let tower = work.unit.tower();
        let (features, num_cached) = match (&mut self.reader, &mut self.cache) {
            (Some(reader), _) => match reader.read(tower, &work.unit.items, pixels) {
                Ok(features) => (features, work.unit.items.len() as u32),
                Err(Missing { sample, error }) => {
                    self.lacks = true;
                    ports.emit(Event::NoFeatures { sample, error });
                    return Ok(None);
                }
            },
            (None, Some(cache)) => {
                encode_each(cache, (tower, self.models.of(tower)?), &self.state, &work.grids(), pixels)?
            }
            (None, None) => unreachable!("one of them is there"),
        };
        ports.timings.cached_items += num_cached;
        Ok(Some((features, Phase::Done)))
    }

    /// Runs the tower on a unit's items, and returns the features. Where they are trained, the tape waits for their gradients.
    fn computed(
        &mut self,
        [step, unit]: [usize; 2],
        pixels: &Tensor,
        version: Version,
        ports: &mut Ports,
    ) -> Result<(Vec<Tensor>, Phase), EngineError> {
        let alive = self.steps[step].num_trained();
        let tower = self.steps[step].units[unit].unit.tower();
        // Whatever other towers are in the pool. A reference model computes what answers have in common once.
        let is_apart = self.one_by_one && !self.is_trained(tower) && tower != Tower::Reference;
        let work = &mut self.steps[step].units[unit];
        let (id, grids) = (work.unit.id, work.grids());
        let model = self.models.of(tower)?;
        let (outputs, run) = match is_apart {
            true => {
                self.state.params().set_dropout(None);
                (encode_apart(model, &self.state, &grids, pixels)?, None)
            }
            false => {
                let record = model.record_items(&grids, pixels)?;
                let (params, trained) = (self.state.params().clone(), self.state.is_trained() && work.trains);
                params.set_dropout(work.trains.then(|| Masks::new(id.seed(), Vec::new())));
                let rows = pixels.size()[0];
                let input = input(model, pixels, params.flat().kind());
                if trained && self.membership.is_some() && input.kind() == pixels.kind() {
                    work.read_again = Some(pixels.shallow_clone());
                }
                let inputs = vec![(record.pixels, input)];
                let mut run = match trained {
                    true => self.activations.begin(record.tape, params, inputs, rows, alive)?,
                    false => Execution::forward_only(record.tape, params, inputs),
                };
                run = run.with_mesh(self.mesh.clone());
                run.forward()?;
                let outputs = record.outputs.iter().map(|&slot| run.value(slot).shallow_clone()).collect();
                (outputs, trained.then_some((run, record.outputs)))
            }
        };
        let broken = fault::poison(ports.me(), "nan_features", &work.samples());
        let value = |output: &Tensor| if broken { output * f64::NAN } else { output.shallow_clone() };
        let cut = i64::from(fault::lies(ports.me(), "lie_shape"));
        let features: Vec<Tensor> = outputs.iter().map(|output| value(output).slice(0, cut, None, 1)).collect();
        if fault::lies(ports.me(), "lie_claim") {
            let other = UnitId { index: id.index ^ 1, ..id };
            ports.send(work.reader, parcel_of(other, version, &features))?;
        }
        let phase = run.map_or(Phase::Done, |run| Phase::Sent { run });
        Ok((features, phase))
    }
}

/// Returns the features of a unit, one tensor `[F, D]` of each level.
fn parcel_of(unit: UnitId, version: Version, features: &[Tensor]) -> Parcel {
    let header = Header { kind: ParcelKind::Features(unit), version };
    Parcel::new(header, features.iter().map(|level| Box::new(TorchBuffer::new(level)) as Box<dyn Buffer>).collect())
}
