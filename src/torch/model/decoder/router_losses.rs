//! The routers' part of a micro-batch's loss.
//!
//! A micro-batch has its own load-balancing loss, over all its tokens and layers. In the loss of a step it has the
//! weight that the micro-batch's targets have among those of the step, as its tokens' losses do.

use tch::{Device, Kind, Tensor};

use super::config::Balance;
use super::recording::{Recording, RouterSums};
use crate::model::routing::{RouterLosses, Routing};
use crate::nn::moe::aux_loss;
use crate::tape::{Policy, Slot, SumOverContext, Tape};

impl Recording {
    /// Records the losses of all routers: those so far, and of earlier stages `before`. `num_layers` have routers, each of which routes
    /// `num_tokens`; `share` is as in [`RouterLosses`].
    pub fn record_losses(
        &self,
        tape: &mut Tape,
        before: RouterSums,
        num_layers: usize,
        num_tokens: i64,
        share: f64,
    ) -> RouterLosses {
        let num_rows = num_tokens * num_layers as i64;
        let (choices, z) = self.sums(before);
        // Where ranks share a row, of all its tokens; each rank counts the losses in its own share.
        let mut of_row = |slots: Vec<Slot>| match self.row.is_some() && !slots.is_empty() {
            true => tape.exchange("router sums", &slots, slots.len(), Box::new(SumOverContext)),
            false => slots,
        };
        let (choices, z) = (of_row(choices), of_row(z));
        type Forward = Box<dyn Fn(&[Tensor]) -> Tensor>;
        let mut one = |name: &str, reads: &[Slot], forward: Forward| {
            let forward = move |reads: &[Tensor]| vec![forward(reads)];
            let slot = (!reads.is_empty()).then(|| tape.run(name, &[], Policy::Keep, reads, 1, forward)[0]);
            slot.inspect(|slot| tape.keep(*slot))
        };
        let aux = move |reads: &[Tensor]| {
            let (counts, probabilities) = pairs(reads);
            aux_loss(&counts, &probabilities, num_rows)
        };
        let mean = move |reads: &[Tensor]| Tensor::stack(reads, 0).sum(Kind::Float) / num_tokens.max(1) as f64;
        RouterLosses {
            aux: one("load balancing loss", &choices, Box::new(aux)),
            z: one("router z-loss", &z, Box::new(mean)),
            indexers: None,
            share,
        }
    }

    /// Returns the sums from which a later stage makes the losses: over the layers so far, those `before` included.
    pub fn carry(&self, tape: &mut Tape, before: RouterSums, num_experts: i64, device: Device) -> RouterSums {
        let (choices, z) = self.sums(before);
        let add = move |reads: &[Tensor]| {
            let zeros = || Tensor::zeros([num_experts], (Kind::Float, device));
            let sum =
                |parts: Vec<&Tensor>| parts.into_iter().fold(zeros(), |sum, part| sum + part.to_kind(Kind::Float));
            let (counts, probabilities) = pairs(reads);
            vec![sum(counts), sum(probabilities)]
        };
        let choices = self.wanted.aux.then(|| tape.run("router sums", &[], Policy::Keep, &choices, 2, add));
        RouterSums {
            choices: choices.map(|slots| [slots[0], slots[1]]),
            z: self.wanted.z.then(|| carry_scalar(tape, "router z sum", &z, device)),
        }
    }

    /// Returns choices and probabilities in turns, and z.
    fn sums(&self, before: RouterSums) -> (Vec<Slot>, Vec<Slot>) {
        let own = self.losses.iter();
        let choices = before.choices.into_iter().chain(own.clone().filter_map(|of_layer| of_layer.choices)).flatten();
        (choices.collect(), before.z.into_iter().chain(own.filter_map(|of_layer| of_layer.z)).collect())
    }

    /// Returns the slots of the routers' results; `None` of a model without.
    pub fn finish(self) -> Option<Routing> {
        (!self.routed.is_empty()).then(|| Routing { losses: RouterLosses::default(), experts: self.routed })
    }
}

/// Records the sum of scalars for a later stage, zero of none.
pub(super) fn carry_scalar(tape: &mut Tape, name: &str, reads: &[Slot], device: Device) -> Slot {
    let add = move |reads: &[Tensor]| {
        vec![reads.iter().fold(Tensor::zeros([0i64; 0], (Kind::Float, device)), |sum, part| sum + part)]
    };
    tape.run(name, &[], Policy::Keep, reads, 1, add)[0]
}

fn pairs(tensors: &[Tensor]) -> (Vec<&Tensor>, Vec<&Tensor>) {
    tensors.chunks(2).map(|pair| (&pair[0], &pair[1])).unzip()
}

impl RouterLosses {
    /// Returns each loss with its weight in the loss of the step.
    pub fn weighted(self, balance: &Balance) -> impl Iterator<Item = (Slot, f64)> {
        let of_coefs = [(self.aux, balance.aux_loss_coef), (self.z, balance.z_loss_coef)];
        of_coefs.into_iter().filter_map(move |(slot, coef)| Some((slot?, coef * self.share)))
    }
}
