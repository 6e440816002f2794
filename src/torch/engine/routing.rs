//! The routers' results in a step, summed over its micro-batches and over the pool.
//!
//! Nothing is read from the device before the end of the step.

use crate::model::{ExpertSet, Routing};
use crate::native::NativeError;
use crate::nn::moe::update_bias;
use crate::tape::Execution;
use crate::train::TrainState;
use loongforge_core::message::{ExpertLoads, RoutingReport};
use tch::{Device, Kind, Tensor};

/// Sums of one step.
#[derive(Default)]
pub(super) struct StepRouting {
    /// The loads of each set of experts of the model `[E]`, float64; `None` where no token came to it.
    loads: Vec<Option<Tensor>>,
    aux_loss: Option<Tensor>,
    z_loss: Option<Tensor>,
    indexer_loss: Option<Tensor>,
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
        let of_rows = |slot: Option<_>| slot.map(|slot| (slot, losses.share));
        let all = [
            (&mut self.aux_loss, of_rows(losses.aux)),
            (&mut self.z_loss, of_rows(losses.z)),
            (&mut self.indexer_loss, losses.indexers),
        ];
        for (sum, part) in all {
            part.into_iter().for_each(|(slot, share)| add(sum, &(run.value(slot) * share)));
        }
    }

    /// Sums the loads over the pool, in which every replica calls this once a step, and reads everything.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn reduce(
        &mut self,
        sets: &[ExpertSet],
        state: &TrainState,
        device: Device,
    ) -> Result<RoutingReport, NativeError> {
        let _no_grad = tch::no_grad_guard();
        self.loads.resize_with(sets.len(), || None);
        let own = self.loads.iter().zip(sets).map(|(load, set)| match load {
            Some(load) => load.shallow_clone(),
            None => Tensor::zeros([set.num_experts], (Kind::Double, device)),
        });
        let all = Tensor::cat(&own.collect::<Vec<_>>(), 0);
        state.all_reduce_sum(&all)?;
        let sizes: Vec<i64> = sets.iter().map(|set| set.num_experts).collect();
        self.loads = all.split_with_sizes(sizes, 0).into_iter().map(Some).collect();
        let of_host = Vec::<f64>::try_from(&all).expect("a row of numbers");
        let mut of_host = of_host.into_iter().map(|load| load as u64);
        let loads = sets.iter().map(|set| ExpertLoads {
            layer: format!("{}{}", set.layer, if set.media { " media" } else { "" }),
            tokens: of_host.by_ref().take(set.num_experts as usize).collect(),
        });
        let read = |sum: &Option<Tensor>| sum.as_ref().map(|sum| sum.double_value(&[]));
        Ok(RoutingReport {
            loads: loads.collect(),
            aux_loss: read(&self.aux_loss),
            z_loss: read(&self.z_loss),
            indexer_loss: read(&self.indexer_loss),
        })
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

#[cfg(test)]
mod tests {
    use super::StepRouting;
    use crate::comm::ProcessGroup;
    use crate::model::{ExpertSet, RoutedExperts, RouterLosses, Routing};
    use crate::params::ParamStore;
    use crate::tape::{Execution, Tape};
    use crate::train::{Lanes, TrainState};
    use std::rc::Rc;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn micro_batches_add_up_and_their_loads_move_the_biases() {
        let bias = Tensor::zeros([3], (Kind::Float, Device::Cpu));
        let set = |media: bool, bias: Option<&Tensor>| ExpertSet {
            layer: "layer 1".to_owned(),
            media,
            num_experts: 3,
            bias: bias.map(Tensor::shallow_clone),
        };
        let sets = [set(false, Some(&bias)), set(true, None)];
        let params = Rc::new(ParamStore::new(vec![], Kind::Float, Device::Cpu));
        let mut step = StepRouting::default();
        // The second micro-batch alone has a picture.
        for (text, media, share) in [([4i64, 0, 2], None, 0.25), ([4, 1, 1], Some([0i64, 5, 0]), 0.75)] {
            let mut tape = Tape::new();
            let (counts, of_media, aux) = (tape.input(false), tape.input(false), tape.input(false));
            let indexers = tape.input(false);
            let routed = |media, counts| RoutedExperts { layer: "layer 1".to_owned(), media, counts, outputs: None };
            let mut experts = vec![routed(false, counts)];
            experts.extend(media.map(|_| routed(true, of_media)));
            let mut inputs =
                vec![(counts, Tensor::from_slice(&text)), (aux, Tensor::from(2f32)), (indexers, Tensor::from(8f32))];
            inputs.extend(media.map(|media| (of_media, Tensor::from_slice(&media))));
            let run = Execution::forward_only(Rc::new(tape), params.clone(), inputs);
            let losses = RouterLosses { aux: Some(aux), z: None, indexers: Some((indexers, share / 4.0)), share };
            step.add(&sets, &Routing { losses, experts }, &run);
        }
        let state = TrainState::new(params, ProcessGroup::single(), Lanes::PerReplica, None).unwrap();
        let report = step.reduce(&sets, &state, Device::Cpu).unwrap();
        let loads: Vec<_> = report.loads.iter().map(|loads| (loads.layer.as_str(), loads.tokens.clone())).collect();
        assert_eq!(loads, [("layer 1", vec![8, 1, 3]), ("layer 1 media", vec![0, 5, 0])]);
        assert_eq!((report.aux_loss, report.z_loss, report.indexer_loss), (Some(2.0), None, Some(2.0)));
        step.balance(&sets, 0.5);
        assert_eq!(Vec::<f32>::try_from(&bias).unwrap(), [-0.5, 0.5, 0.5]);
    }

    #[test]
    fn a_replica_without_micro_batches_reports_the_pools_loads() {
        let params = Rc::new(ParamStore::new(vec![], Kind::Float, Device::Cpu));
        let state = TrainState::new(params, ProcessGroup::single(), Lanes::PerReplica, None).unwrap();
        let sets = [ExpertSet { layer: "layer 0".to_owned(), media: false, num_experts: 2, bias: None }];
        let report = StepRouting::default().reduce(&sets, &state, Device::Cpu).unwrap();
        assert_eq!(report.loads[0].tokens, [0, 0]);
    }
}
