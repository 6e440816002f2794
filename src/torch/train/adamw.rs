//! AdamW (Loshchilov and Hutter, 2019) over a pool's flat buffer: on the CPU one pass of our own, which scales the
//! gradient, rounds the parameters and clears the gradient on its way; elsewhere libtorch's fused operator.
//!
//! Weight decay applies to parameters of two or more dimensions, as Megatron-LM and the parity oracle do it.

use super::ema::{EMA, Ema};
use crate::native::{AdamWStep, Arg, NativeError, Op, Purpose, adamw, allocated_for};
use crate::params::{OwnedPart, ParamStore};
use tch::{Device, Kind, Tensor};

/// Constants of the optimizer; the learning rate comes with each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
}

/// Optimizer state of one pool, float32, laid out like the parameters that this rank changes.
pub struct AdamW {
    config: AdamWConfig,
    fused: Op,
    pub(super) exp_avg: Tensor,
    pub(super) exp_avg_sq: Tensor,
    /// Float32 parameters, where the model's own are of lower precision.
    pub(super) master: Option<Tensor>,
    /// The average of the float32 parameters.
    pub(super) ema: Option<Ema>,
    pub(super) num_steps: u64,
    parts: Vec<OwnedPart>,
}

impl AdamW {
    /// The state by what its tensors are called in files.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let parts = [
            ("exp_avg", Some(&self.exp_avg)),
            ("exp_avg_sq", Some(&self.exp_avg_sq)),
            ("master", self.master.as_ref()),
            (EMA, self.ema.as_ref().map(|ema| &ema.values)),
        ];
        parts.into_iter().filter_map(|(name, tensor)| Some((name, tensor?)))
    }

    /// State for `params` as they are now.
    ///
    /// # Errors
    /// libtorch lacks the fused operator.
    pub fn new(params: &ParamStore, config: AdamWConfig) -> Result<Self, NativeError> {
        let parts = params.owned();
        let options = (Kind::Float, params.flat().device());
        let zeros = || allocated_for(Purpose::Optimizer, || Tensor::zeros([params.num_owned()], options));
        let mut adamw = Self {
            config,
            fused: Op::find("aten::_fused_adamw_", "")?,
            exp_avg: zeros(),
            exp_avg_sq: zeros(),
            master: (params.flat().kind() != Kind::Float).then(zeros),
            ema: None,
            num_steps: 0,
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

    /// One step along `-grad · grad_scale`, where `grad` is flat, float32 and laid out as the state. Returns whether it
    /// left `grad` zero, as it does with `may_zero` where that costs no pass of its own.
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
        let _no_grad = tch::no_grad_guard();
        self.num_steps += 1;
        let Some(first) = self.parts.first() else { return Ok(false) };
        let kind = first.values.kind();
        let on_cpu = first.values.device() == Device::Cpu && matches!(kind, Kind::Float | Kind::BFloat16);
        let scaled = if on_cpu || grad_scale == 1.0 { grad.shallow_clone() } else { grad * grad_scale };
        for OwnedPart { at, values, decays, rate } in &self.parts {
            let part = |tensor: &Tensor| tensor.narrow(0, *at, values.numel() as i64);
            let step = AdamWStep {
                learning_rate: learning_rate * rate,
                betas: self.config.betas,
                eps: self.config.eps,
                weight_decay: if *decays { self.config.weight_decay } else { 0.0 },
                number: self.num_steps,
                grad_scale,
                zero_grad: may_zero,
            };
            let master = self.master.as_ref().map(part);
            let moments = [&part(&self.exp_avg), &part(&self.exp_avg_sq)];
            let target = master.as_ref().unwrap_or(values);
            if on_cpu {
                adamw(target, master.as_ref().map(|_| values), &part(grad), moments, &step);
            } else {
                self.step_fused(target, &part(&scaled), moments, &step)?;
                if let Some(master) = &master {
                    values.shallow_clone().copy_(master);
                }
            }
            if let Some(ema) = &self.ema {
                ema.update(*at, target, self.num_steps);
            }
        }
        Ok(on_cpu && may_zero)
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
