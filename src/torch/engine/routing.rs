//! What routers did in a step, summed over its micro-batches and over the pool.
//!
//! Nothing is read from the device before the end of the step.

use crate::model::{ExpertSet, Routing};
use crate::native::NativeError;
use crate::nn::moe::update_bias;
use crate::tape::Execution;
use crate::train::Pool;
use loongforge_core::message::{ExpertLoads, RoutingReport};
use tch::{Device, Kind, Tensor};

/// Sums of one step.
#[derive(Default)]
pub(super) struct StepRouting {
    /// Of each set of experts of the model `[E]`, float64; `None` where no token came to it.
    loads: Vec<Option<Tensor>>,
    aux_loss: Option<Tensor>,
    z_loss: Option<Tensor>,
}

impl StepRouting {
    /// Adds what a micro-batch's forward left. `sets` are the model's.
    pub fn add(&mut self, sets: &[ExpertSet], routing: &Routing, run: &Execution) {
        let _no_grad = tch::no_grad_guard();
        self.loads.resize_with(sets.len(), || None);
        for routed in &routing.experts {
            let place = sets.iter().position(|set| (&set.layer, set.media) == (&routed.layer, routed.media));
            add(&mut self.loads[place.expect("the model has these experts")], run.value(routed.counts));
        }
        let losses = &routing.losses;
        for (sum, slot) in [(&mut self.aux_loss, losses.aux), (&mut self.z_loss, losses.z)] {
            slot.into_iter().for_each(|slot| add(sum, &(run.value(slot) * losses.share)));
        }
    }

    /// Sums the loads over the pool, in which every replica calls this once a step, and reads everything.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn reduce(&mut self, sets: &[ExpertSet], pool: &Pool, device: Device) -> Result<RoutingReport, NativeError> {
        let _no_grad = tch::no_grad_guard();
        self.loads.resize_with(sets.len(), || None);
        let own = self.loads.iter().zip(sets).map(|(load, set)| match load {
            Some(load) => load.shallow_clone(),
            None => Tensor::zeros([set.num_experts], (Kind::Double, device)),
        });
        let all = Tensor::cat(&own.collect::<Vec<_>>(), 0);
        pool.all_reduce_sum(&all)?;
        let sizes: Vec<i64> = sets.iter().map(|set| set.num_experts).collect();
        self.loads = all.split_with_sizes(sizes, 0).into_iter().map(Some).collect();
        let of_host = Vec::<f64>::try_from(&all).expect("a row of numbers");
        let mut of_host = of_host.into_iter().map(|load| load as u64);
        let loads = sets.iter().map(|set| ExpertLoads {
            layer: format!("{}{}", set.layer, if set.media { " media" } else { "" }),
            tokens: of_host.by_ref().take(set.num_experts as usize).collect(),
        });
        let read = |sum: &Option<Tensor>| sum.as_ref().map(|sum| sum.double_value(&[]));
        Ok(RoutingReport { loads: loads.collect(), aux_loss: read(&self.aux_loss), z_loss: read(&self.z_loss) })
    }

    /// Moves the balancing biases by `rate` against the reduced loads.
    pub fn balance(&self, sets: &[ExpertSet], rate: f64) {
        for (set, load) in sets.iter().zip(&self.loads) {
            if let (Some(bias), Some(load)) = (&set.bias, load) {
                update_bias(bias, load, rate);
            }
        }
    }
}

fn add(sum: &mut Option<Tensor>, part: &Tensor) {
    let part = part.to_kind(Kind::Double);
    *sum = Some(match sum.take() {
        Some(sum) => sum + part,
        None => part,
    });
}
