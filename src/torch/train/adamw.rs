//! AdamW (Loshchilov and Hutter, 2019) over a pool's flat buffer: on the CPU one pass of our own, which scales the
//! gradient, rounds the parameters and clears the gradient on its way; elsewhere libtorch's fused operator.
//!
//! Weight decay applies to parameters of two or more dimensions, as Megatron-LM and the parity oracle do it. Where a run has another
//! [`OptimizerMethod`], each parameter has a rule of its own.

use super::adamw8bit::step_by_operators;
use super::ema::{EMA, Ema};
use super::moments::Moments;
use super::muon::{nesterov, orthogonal};
use super::offloaded_step::{Change, MomentsOf, step_on_host};
use super::placed::{Places, StateSlice, StateTensor};
use super::rule::{MuonConfig, OptimizerConfig, OptimizerMethod, Rule};
use crate::native::{AdamWStep, Arg, NativeError, Op, Purpose, allocated_for};
use crate::params::{OwnedPart, ParamId, ParamSpec, ParamStore};
use crate::tape::Transfers;
use std::ops::Range;
use tch::{Device, Kind, Tensor};

/// Optimizer state of one pool, of the parameters that this rank changes.
pub struct AdamW {
    config: OptimizerConfig,
    fused: Op,
    pub(super) moments: Moments,
    /// Float32 parameters, laid out like them, where the model's own are of lower precision.
    pub(super) master: Option<StateTensor>,
    /// The average of the float32 parameters.
    pub(super) ema: Option<Ema>,
    pub(super) num_steps: u64,
    /// The places of the state.
    pub(super) places: Places,
    /// Brings gradients to state that is across a bus, and weights back.
    pub(super) transfers: Option<Transfers>,
    /// The rank's elements, in parts that are changed alike and have their state in one place.
    pub(super) parts: Vec<OwnedPart>,
    /// The parts that are changed one parameter at a time; none where AdamW changes all of a part at once.
    pieces: Vec<Piece>,
}

/// This rank's part of a trained parameter, which may be empty.
struct Piece {
    id: ParamId,
    spec: ParamSpec,
    /// The piece's elements of the parameter, and their place among the rank's.
    part: Range<i64>,
    at: i64,
    values: Tensor,
}

/// Makes a whole parameter of the parts that ranks have of it, flat; every rank calls it, for the same parameters in order.
pub type Gather<'a> = &'a dyn Fn(ParamId, &Tensor) -> Result<Tensor, NativeError>;

impl AdamW {
    /// Returns the state of a trained parameter by what its tensors are called in files.
    pub(super) fn state_of(&self, params: &ParamStore, id: ParamId) -> Vec<(&'static str, StateSlice<'_>)> {
        let (_, at) = params.owned_range(id);
        let master = self.master.as_ref().map(|master| ("master", master.slice(at, 1)));
        let ema = self.ema.as_ref().map(|ema| (EMA, ema.values.slice(at, 1)));
        let index = params.trained_ids().position(|trained| trained == id).expect("a trained parameter");
        self.moments.of(index).into_iter().chain(master).chain(ema).collect()
    }

    /// Returns all tensors of the state that have elements.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.state().flat_map(StateTensor::tensors)
    }

    fn state(&self) -> impl Iterator<Item = &StateTensor> {
        self.moments.tensors().chain(self.master.as_ref()).chain(self.ema.as_ref().map(|ema| &ema.values))
    }

    /// Returns the number of bytes of the state that are off the device.
    pub fn offloaded_bytes(&self) -> u64 {
        self.state().map(StateTensor::bytes_away).sum()
    }

    /// Returns the state for `params` as they are now.
    ///
    /// # Errors
    /// libtorch lacks the fused operator, or there is no place for what is to lie off the device.
    pub fn new(params: &ParamStore, config: impl Into<OptimizerConfig>) -> Result<Self, NativeError> {
        let config = config.into();
        let places = Places::new(params, config.offload.clone());
        let parts = cut_at(places.elements_away, params.owned());
        let zeros = || places.zeros(params.num_owned(), places.elements_away, Kind::Float);
        let transfers = places.is_across_a_bus().then(|| Transfers::new(params.flat().device(), None));
        let mut adamw = Self {
            fused: Op::find("aten::_fused_adamw_", "")?,
            moments: Moments::new(params, config.method, &places)?,
            master: (params.flat().kind() != Kind::Float).then(zeros).transpose()?,
            ema: None,
            num_steps: 0,
            transfers: transfers.transpose()?,
            places,
            pieces: if config.method == OptimizerMethod::AdamW { Vec::new() } else { pieces(params, &parts) },
            parts,
            config,
        };
        adamw.refresh_master();
        Ok(adamw)
    }

    /// Takes the parameters' present values as the master copy.
    pub(super) fn refresh_master(&mut self) {
        let _no_grad = tch::no_grad_guard();
        for part in self.master.iter().flat_map(|master| self.parts.iter().map(move |part| (master, part))) {
            let (master, OwnedPart { at, values, .. }) = part;
            master.narrow(*at, values.numel() as i64).copy_(values);
        }
    }

    /// Takes one step along `-grad · grad_scale`, where `grad` is `[num_owned]`, float32, laid out as the optimizer's state. Returns
    /// whether it left `grad` zero, as it does with `may_zero` where that costs no pass of its own; else `grad` may be left scaled. It is
    /// for parameters that no other rank has parts of.
    ///
    /// # Errors
    /// The operator failed.
    pub fn step(
        &mut self,
        grad: &Tensor,
        grad_scale: f64,
        learning_rate: f64,
        may_zero: bool,
    ) -> Result<bool, NativeError> {
        self.step_among(grad, grad_scale, learning_rate, may_zero, &|_, part| Ok(part.shallow_clone()))
    }

    /// Works like [`AdamW::step`] where ranks have parts of parameters; `gather` gives a whole parameter from the part that this rank
    /// has.
    ///
    /// # Errors
    /// Fails as [`AdamW::step`] does, and where a rank is gone.
    pub fn step_among(
        &mut self,
        grad: &Tensor,
        grad_scale: f64,
        learning_rate: f64,
        may_zero: bool,
        gather: Gather<'_>,
    ) -> Result<bool, NativeError> {
        let _no_grad = tch::no_grad_guard();
        self.num_steps += 1;
        let kind = self.parts.first().map(|part| (part.values.kind(), part.values.device()));
        let on_cpu =
            kind.is_some_and(|(kind, device)| device == Device::Cpu && matches!(kind, Kind::Float | Kind::BFloat16));
        let numbers = |decays: bool, rate: f64| AdamWStep {
            learning_rate: learning_rate * rate,
            betas: self.config.adamw.betas,
            eps: self.config.adamw.eps,
            weight_decay: if decays { self.config.adamw.weight_decay } else { 0.0 },
            number: self.num_steps,
            grad_scale,
            zero_grad: may_zero,
        };
        let mut across = Vec::new();
        let mut change = |change: Change| {
            let is_across = self.transfers.is_some() && change.at < self.places.elements_away;
            if is_across {
                across.push(change);
                return Ok(());
            }
            self.change(&change, on_cpu)
        };
        if self.config.method == OptimizerMethod::AdamW {
            for OwnedPart { at, values, decays, rate } in &self.parts {
                let (at, len) = (*at, values.numel() as i64);
                let moments = MomentsOf::Float(self.moments.adamw_at(at, len));
                let (values, grad) = (values.shallow_clone(), grad.narrow(0, at, len));
                change(Change { at, values, grad, moments, step: numbers(*decays, *rate) })?;
            }
        }
        for (index, piece) in self.pieces.iter().enumerate() {
            let step = numbers(piece.spec.decays(), piece.spec.rate);
            let len = piece.part.end - piece.part.start;
            let grad = grad.narrow(0, if len == 0 { 0 } else { piece.at }, len);
            let moments = match self.moments.rule(index) {
                Rule::Muon(muon) => {
                    let momentum = self.moments.muon(index, len);
                    allocated_for(Purpose::Buffers, || {
                        let own = grad.to_device(momentum.device()) * grad_scale;
                        let update = nesterov(&momentum, &own, &muon).to_device(piece.values.device());
                        self.change_by_muon(piece, &gather(piece.id, &update)?, &muon, &step)
                    })?;
                    if on_cpu && may_zero {
                        let _ = grad.shallow_clone().zero_();
                    }
                    continue;
                }
                _ if len == 0 => continue,
                Rule::AdamW => MomentsOf::Float(self.moments.adamw(index, len)),
                Rule::AdamW8bit => MomentsOf::Bytes(self.moments.adamw_8bit(index, len)),
            };
            change(Change { at: piece.at, values: piece.values.shallow_clone(), grad, moments, step })?;
        }
        if let Some(transfers) = &self.transfers {
            let master = self.master.as_ref().map(|master| |at, len| master.narrow(at, len));
            let master = master.as_ref().map(|master| master as &dyn Fn(i64, i64) -> Tensor);
            step_on_host(transfers, &across, master, &|at, target| self.average(at, target))?;
        }
        Ok(on_cpu && may_zero && self.transfers.is_none())
    }

    /// Returns the float32 values of `values`, which lie from `at` on.
    fn target(&self, at: i64, values: &Tensor) -> Tensor {
        let master = self.master.as_ref().map(|master| master.narrow(at, values.numel() as i64));
        master.unwrap_or_else(|| values.shallow_clone())
    }

    /// Takes a step where the state is on the weights' device.
    fn change(&self, change: &Change, on_cpu: bool) -> Result<(), NativeError> {
        let Change { at, values, grad, moments, step } = change;
        let target = self.target(*at, values);
        let rounded = self.master.as_ref().map(|_| values);
        if on_cpu {
            moments.step_on_cpu(&target, rounded, grad, step);
        } else {
            if step.grad_scale != 1.0 {
                // In its place: another tensor would take as much memory as all gradients.
                let _ = grad.shallow_clone().g_mul_scalar_(step.grad_scale);
            }
            match moments {
                MomentsOf::Float([mean, square]) => self.step_fused(&target, grad, [mean, square], step)?,
                MomentsOf::Bytes(moments) => {
                    allocated_for(Purpose::Buffers, || step_by_operators(&target, grad, moments, step));
                }
            }
            rounded.into_iter().for_each(|values| values.shallow_clone().copy_(&target));
        }
        self.average(*at, &target);
        Ok(())
    }

    /// Changes a parameter along its whole `update`, flat or of its shape.
    fn change_by_muon(
        &self,
        piece: &Piece,
        update: &Tensor,
        muon: &MuonConfig,
        step: &AdamWStep,
    ) -> Result<(), NativeError> {
        if piece.part.is_empty() {
            return Ok(());
        }
        let is_cut = piece.spec.is_cut_within_matrices();
        let spec = if is_cut { piece.spec.whole() } else { piece.spec.clone() };
        let whole = orthogonal(&spec, &update.view(spec.shape.as_slice()), muon)?;
        let own = match &piece.spec.shard {
            Some(shard) if is_cut => shard.take(&whole),
            _ => whole,
        };
        let own = own.reshape([-1]).narrow(0, piece.part.start, piece.part.end - piece.part.start);
        let mut target = self.target(piece.at, &piece.values);
        let rate = step.learning_rate * muon.lr_ratio;
        let _ = target.g_mul_scalar_(1.0 - rate * step.weight_decay);
        let _ = target.g_add_(&(own.to_device(target.device()) * -rate));
        if self.master.is_some() {
            piece.values.shallow_clone().copy_(&target);
        }
        self.average(piece.at, &target);
        Ok(())
    }

    fn average(&self, at: i64, target: &Tensor) {
        if let Some(ema) = &self.ema {
            ema.update(at, target, self.num_steps);
        }
    }

    /// Takes a step by libtorch's fused operator, for a gradient that is scaled.
    fn step_fused(
        &self,
        target: &Tensor,
        grad: &Tensor,
        moments: [&Tensor; 2],
        step: &AdamWStep,
    ) -> Result<(), NativeError> {
        // Written there: a copy from the host would wait for all that a GPU has yet to do.
        let steps = Tensor::full([], step.number as f64, (Kind::Float, target.device()));
        self.fused.call(&[
            Arg::Tensors(&[target]),
            Arg::Tensors(&[grad]),
            Arg::Tensors(&[moments[0]]),
            Arg::Tensors(&[moments[1]]),
            Arg::Tensors(&[]),
            Arg::Tensors(&[&steps]),
            Arg::Double(step.learning_rate),
            Arg::Double(step.betas[0]),
            Arg::Double(step.betas[1]),
            Arg::Double(step.weight_decay),
            Arg::Double(step.eps),
            Arg::Bool(false),
            Arg::Bool(false),
        ])?;
        Ok(())
    }
}

/// Returns the same parts, none of which has elements on both sides of `cut`.
fn cut_at(cut: i64, parts: Vec<OwnedPart>) -> Vec<OwnedPart> {
    let each = |part: OwnedPart| {
        let (len, first) = (part.values.numel() as i64, (cut - part.at).max(0));
        let ranges = if first > 0 && first < len { vec![(0, first), (first, len - first)] } else { vec![(0, len)] };
        let of =
            move |(start, len)| OwnedPart { at: part.at + start, values: part.values.narrow(0, start, len), ..part };
        ranges.into_iter().map(of).collect::<Vec<_>>()
    };
    parts.into_iter().flat_map(each).collect()
}

/// This rank's parts of all trained parameters, in the store's order.
fn pieces(params: &ParamStore, parts: &[OwnedPart]) -> Vec<Piece> {
    let piece = |id: ParamId| {
        let (part, at) = params.owned_range(id);
        let (spec, len) = (params.spec(id).clone(), part.end - part.start);
        let found = parts
            .iter()
            .find(|whole| (whole.at..whole.at + whole.values.numel() as i64).contains(&at) && !part.is_empty());
        let values = match found {
            Some(whole) => whole.values.narrow(0, at - whole.at, len),
            None => Tensor::empty([0], (params.flat().kind(), params.flat().device())),
        };
        Piece { id, spec, part, at, values }
    };
    params.trained_ids().map(piece).collect()
}
