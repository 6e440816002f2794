//! AdamW (Loshchilov and Hutter, 2019) over a pool's flat buffer: two calls of libtorch's fused operator a step.
//!
//! Weight decay applies to parameters of two or more dimensions, as Megatron-LM and the parity oracle do it.

use crate::native::{Arg, NativeError, Op};
use crate::nn::ParamStore;
use tch::{Kind, Tensor};

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

    /// One step along `-grad`, a flat float32 gradient in the order of `params`.
    ///
    /// # Errors
    /// The operator failed.
    pub fn step(&mut self, params: &ParamStore, grad: &Tensor, learning_rate: f64) -> Result<(), NativeError> {
        let _no_grad = tch::no_grad_guard();
        let flat = trained(params);
        let target = self.master.as_ref().unwrap_or(&flat);
        self.num_steps += 1;
        let steps = Tensor::from(self.num_steps as f32).to_device(target.device());
        let (decayed, end) = (params.num_decay(), target.size()[0]);
        for (start, len, weight_decay) in [(0, decayed, self.config.weight_decay), (decayed, end - decayed, 0.0)] {
            if len == 0 {
                continue;
            }
            let part = |tensor: &Tensor| tensor.narrow(0, start, len);
            self.fused.call(&[
                Arg::Tensors(&[&part(target)]),
                Arg::Tensors(&[&part(grad)]),
                Arg::Tensors(&[&part(&self.exp_avg)]),
                Arg::Tensors(&[&part(&self.exp_avg_sq)]),
                Arg::Tensors(&[]),
                Arg::Tensors(&[&steps]),
                Arg::Double(learning_rate),
                Arg::Double(self.config.betas[0]),
                Arg::Double(self.config.betas[1]),
                Arg::Double(weight_decay),
                Arg::Double(self.config.eps),
                Arg::Bool(false),
                Arg::Bool(false),
            ])?;
        }
        if let Some(master) = &self.master {
            trained(params).copy_(master);
        }
        Ok(())
    }
}

/// The part of the flat buffer that the optimizer changes.
fn trained(params: &ParamStore) -> Tensor {
    params.flat().detach().narrow(0, 0, params.num_trained())
}
