//! AdamW (Loshchilov and Hutter, 2019) over a pool's flat buffer: on the CPU one pass of our own, which scales the
//! gradient, rounds the parameters and clears the gradient on its way; elsewhere libtorch's fused operator.
//!
//! Weight decay applies to parameters of two or more dimensions, as Megatron-LM and the parity oracle do it. Where a run has another
//! [`Method`], each parameter has a rule of its own.

use super::adamw8bit::step_by_operators;
use super::ema::{EMA, Ema};
use super::moments::{Moments, StateSlice};
use super::muon::{nesterov, orthogonal};
use super::rule::{Method, MuonConfig, OptimizerConfig, Rule};
use crate::native::{AdamWStep, Arg, NativeError, Op, Purpose, adamw, adamw_8bit, allocated_for};
use crate::params::{OwnedPart, ParamId, ParamSpec, ParamStore};
use std::ops::Range;
use tch::{Device, Kind, Tensor};

/// Optimizer state of one pool, of the parameters that this rank changes.
pub struct AdamW {
    config: OptimizerConfig,
    fused: Op,
    pub(super) moments: Moments,
    /// Float32 parameters, laid out like them, where the model's own are of lower precision.
    pub(super) master: Option<Tensor>,
    /// The average of the float32 parameters.
    pub(super) ema: Option<Ema>,
    pub(super) num_steps: u64,
    parts: Vec<OwnedPart>,
    /// What is changed one parameter at a time; none where AdamW changes all of a part at once.
    pieces: Vec<Piece>,
}

/// This rank's part of a trained parameter, which may be empty.
struct Piece {
    id: ParamId,
    spec: ParamSpec,
    /// Its elements of the parameter, and where they lie among the rank's.
    part: Range<i64>,
    at: i64,
    values: Tensor,
}

/// Makes a whole parameter of the parts that ranks have of it, flat; every rank calls it, for the same parameters in order.
pub type Gather<'a> = &'a dyn Fn(ParamId, &Tensor) -> Result<Tensor, NativeError>;

impl AdamW {
    /// The state of a trained parameter by what its tensors are called in files.
    pub(super) fn state_of(&self, params: &ParamStore, id: ParamId) -> Vec<(&'static str, StateSlice<'_>)> {
        let (_, at) = params.owned_range(id);
        let master = self.master.as_ref().map(|master| ("master", StateSlice::of(master, at)));
        let ema = self.ema.as_ref().map(|ema| (EMA, StateSlice::of(&ema.values, at)));
        let index = params.trained_ids().position(|trained| trained == id).expect("a trained parameter");
        self.moments.of(index).into_iter().chain(master).chain(ema).collect()
    }

    /// All tensors of the state.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.moments.tensors().chain(self.master.as_ref()).chain(self.ema.as_ref().map(|ema| &ema.values))
    }

    /// State for `params` as they are now.
    ///
    /// # Errors
    /// libtorch lacks the fused operator.
    pub fn new(params: &ParamStore, config: impl Into<OptimizerConfig>) -> Result<Self, NativeError> {
        let config = config.into();
        let parts = params.owned();
        let options = (Kind::Float, params.flat().device());
        let zeros = || allocated_for(Purpose::Optimizer, || Tensor::zeros([params.num_owned()], options));
        let mut adamw = Self {
            config,
            fused: Op::find("aten::_fused_adamw_", "")?,
            moments: Moments::new(params, config.method),
            master: (params.flat().kind() != Kind::Float).then(zeros),
            ema: None,
            num_steps: 0,
            pieces: if config.method == Method::AdamW { Vec::new() } else { pieces(params, &parts) },
            parts,
        };
        adamw.refresh_master();
        Ok(adamw)
    }

    /// Takes the parameters' present values as the master copy.
    fn refresh_master(&mut self) {
        let _no_grad = tch::no_grad_guard();
        for part in self.master.iter().flat_map(|master| self.parts.iter().map(move |part| (master, part))) {
            let (master, OwnedPart { at, values, .. }) = part;
            master.narrow(0, *at, values.numel() as i64).copy_(values);
        }
    }

    /// One step along `-grad · grad_scale`, where `grad` is flat, float32 and laid out as the parameters. Returns whether it
    /// left `grad` zero, as it does with `may_zero` where that costs no pass of its own. For parameters that no other rank has
    /// parts of.
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

    /// Works like [`AdamW::step`] where ranks have parts of parameters.
    ///
    /// # Errors
    /// As there, or a rank is gone.
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
        let scaled = if on_cpu || grad_scale == 1.0 { grad.shallow_clone() } else { grad * grad_scale };
        let numbers = |decays: bool, rate: f64| AdamWStep {
            learning_rate: learning_rate * rate,
            betas: self.config.adamw.betas,
            eps: self.config.adamw.eps,
            weight_decay: if decays { self.config.adamw.weight_decay } else { 0.0 },
            number: self.num_steps,
            grad_scale,
            zero_grad: may_zero,
        };
        if self.config.method == Method::AdamW {
            for OwnedPart { at, values, decays, rate } in &self.parts {
                let part = |tensor: &Tensor| tensor.narrow(0, *at, values.numel() as i64);
                let moments = [part(&self.moments.exp_avg), part(&self.moments.exp_avg_sq)];
                self.change(*at, values, &part(&scaled), &moments, &numbers(*decays, *rate), on_cpu)?;
            }
        }
        for (index, piece) in self.pieces.iter().enumerate() {
            let step = numbers(piece.spec.decays(), piece.spec.rate);
            let len = piece.part.end - piece.part.start;
            let grad = scaled.narrow(0, if len == 0 { 0 } else { piece.at }, len);
            match self.moments.rule(index) {
                Rule::Muon(muon) => {
                    let grad_scale = if on_cpu { grad_scale } else { 1.0 };
                    let momentum = self.moments.muon(index, len);
                    allocated_for(Purpose::Buffers, || {
                        let update = nesterov(&momentum, &(&grad * grad_scale), &muon);
                        self.change_by_muon(piece, &gather(piece.id, &update)?, &muon, &step)
                    })?;
                    if on_cpu && may_zero {
                        let _ = grad.shallow_clone().zero_();
                    }
                }
                _ if len == 0 => {}
                Rule::AdamW => {
                    let moments = self.moments.adamw(index, len);
                    self.change(piece.at, &piece.values, &grad, &moments, &step, on_cpu)?;
                }
                Rule::AdamW8bit => self.change_8bit(index, piece, &grad, &step, on_cpu),
            }
        }
        Ok(on_cpu && may_zero)
    }

    /// The float32 values of `values`, which lie from `at` on.
    fn target(&self, at: i64, values: &Tensor) -> Tensor {
        let master = self.master.as_ref().map(|master| master.narrow(0, at, values.numel() as i64));
        master.unwrap_or_else(|| values.shallow_clone())
    }

    /// Changes what lies from `at` on by AdamW. Off the CPU the gradient is scaled.
    fn change(
        &self,
        at: i64,
        values: &Tensor,
        grad: &Tensor,
        [mean, square]: &[Tensor; 2],
        step: &AdamWStep,
        on_cpu: bool,
    ) -> Result<(), NativeError> {
        let target = self.target(at, values);
        let rounded = self.master.as_ref().map(|_| values);
        if on_cpu {
            adamw(&target, rounded, grad, [mean, square], step);
        } else {
            self.step_fused(&target, grad, [mean, square], step)?;
            rounded.into_iter().for_each(|values| values.shallow_clone().copy_(&target));
        }
        self.average(at, &target);
        Ok(())
    }

    /// Changes a parameter by AdamW with moments in bytes.
    fn change_8bit(&self, index: usize, piece: &Piece, grad: &Tensor, step: &AdamWStep, on_cpu: bool) {
        let target = self.target(piece.at, &piece.values);
        let rounded = self.master.as_ref().map(|_| &piece.values);
        let moments = self.moments.adamw_8bit(index, target.numel() as i64);
        if on_cpu {
            adamw_8bit(&target, rounded, grad, &moments, step);
        } else {
            allocated_for(Purpose::Buffers, || step_by_operators(&target, grad, &moments, step));
            rounded.into_iter().for_each(|values| values.shallow_clone().copy_(&target));
        }
        self.average(piece.at, &target);
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
        let _ = target.g_add_(&(own * -rate));
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

    /// By libtorch's fused operator; the gradient is scaled.
    fn step_fused(
        &self,
        target: &Tensor,
        grad: &Tensor,
        moments: [&Tensor; 2],
        step: &AdamWStep,
    ) -> Result<(), NativeError> {
        let steps = Tensor::from(step.number as f32).to_device(target.device());
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
