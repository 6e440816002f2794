//! AdamW (Loshchilov and Hutter, 2019) over a pool's flat buffer: on the CPU one pass of our own, which scales the
//! gradient, rounds the parameters and clears the gradient on its way; elsewhere libtorch's fused operator.
//!
//! Weight decay applies to parameters of two or more dimensions, as Megatron-LM and the parity oracle do it.

use crate::native::{AdamWStep, Arg, NativeError, Op, adamw};
use crate::nn::ParamStore;
use tch::{Device, Kind, Tensor};

/// Constants of the optimizer; the learning rate comes with each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
}

/// Optimizer state of one pool, float32, laid out like its parameters.
pub struct AdamW {
    config: AdamWConfig,
    fused: Op,
    pub(super) exp_avg: Tensor,
    pub(super) exp_avg_sq: Tensor,
    /// Float32 parameters, where the model's own are of lower precision.
    pub(super) master: Option<Tensor>,
    pub(super) num_steps: u64,
}

impl AdamW {
    /// State for `params` as they are now.
    ///
    /// # Errors
    /// libtorch lacks the fused operator.
    pub fn new(params: &ParamStore, config: AdamWConfig) -> Result<Self, NativeError> {
        let flat = trained(params);
        let zeros = || Tensor::zeros(flat.size(), (Kind::Float, flat.device()));
        Ok(Self {
            config,
            fused: Op::find("aten::_fused_adamw_", "")?,
            exp_avg: zeros(),
            exp_avg_sq: zeros(),
            master: (flat.kind() != Kind::Float).then(|| flat.to_kind(Kind::Float)),
            num_steps: 0,
        })
    }

    /// Takes the parameters' present values as the master copy, after they were set from outside.
    pub fn refresh_master(&mut self, params: &ParamStore) {
        if let Some(master) = &mut self.master {
            master.copy_(&trained(params));
        }
    }

    /// One step along `-grad · grad_scale`, where `grad` is flat, float32 and in the order of `params`. Returns whether it
    /// left `grad` zero, as it does with `may_zero` where that costs no pass of its own.
    ///
    /// # Errors
    /// The operator failed.
    pub fn step(
        &mut self,
        params: &ParamStore,
        grad: &Tensor,
        grad_scale: f64,
        learning_rate: f64,
        may_zero: bool,
    ) -> Result<bool, NativeError> {
        let _no_grad = tch::no_grad_guard();
        self.num_steps += 1;
        let flat = trained(params);
        let on_cpu = flat.device() == Device::Cpu && matches!(flat.kind(), Kind::Float | Kind::BFloat16);
        let (decayed, end) = (params.num_decay(), flat.size()[0]);
        let scaled = if on_cpu || grad_scale == 1.0 { grad.shallow_clone() } else { grad * grad_scale };
        for (start, len, weight_decay) in [(0, decayed, self.config.weight_decay), (decayed, end - decayed, 0.0)] {
            if len == 0 {
                continue;
            }
            let part = |tensor: &Tensor| tensor.narrow(0, start, len);
            let step = AdamWStep {
                learning_rate,
                betas: self.config.betas,
                eps: self.config.eps,
                weight_decay,
                number: self.num_steps,
                grad_scale,
                zero_grad: may_zero,
            };
            let target = part(self.master.as_ref().unwrap_or(&flat));
            let moments = [&part(&self.exp_avg), &part(&self.exp_avg_sq)];
            if on_cpu {
                let rounded = self.master.as_ref().map(|_| part(&flat));
                adamw(&target, rounded.as_ref(), &part(grad), moments, &step);
            } else {
                self.step_fused(&target, &part(&scaled), moments, &step)?;
            }
        }
        if let Some(master) = self.master.as_ref().filter(|_| !on_cpu) {
            trained(params).copy_(master);
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

/// The part of the flat buffer that the optimizer changes.
fn trained(params: &ParamStore) -> Tensor {
    params.flat().detach().narrow(0, 0, params.num_trained())
}
