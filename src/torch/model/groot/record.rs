//! The tape of a micro-batch: states of tokens once a sample, rows for each draw of noise through the layers, and the weighted error of
//! velocities.

use std::rc::Rc;

use tch::Tensor;

use super::config::GrootConfig;
use super::context::ContextLayer;
use super::flowing::{Flowing, Noise};
use super::layout::Layout;
use super::network::{Layer, Network, Sees};
use super::rows::{Drawn, condition};
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::foundation::FoundationTape;
use crate::model::objective::FlowSettings;
use crate::model::policy::PolicyNetwork;
use crate::model::towers::FeatureInput;
use crate::tape::{Policy, Slot, Tape};

impl PolicyNetwork for Network {
    type Noise = Noise;

    fn draw(&self, batch: &MicroBatch, rows: &[SampleRow], seed: u64) -> Noise {
        Noise::draw(&self.config, batch, rows, seed)
    }

    fn record(
        &self,
        batch: &MicroBatch,
        rows: &[SampleRow],
        noise: &Noise,
        flow: &FlowSettings,
        _inputs: &[FeatureInput],
    ) -> FoundationTape {
        let mut tape = Tape::new();
        let GrootConfig { options, .. } = &self.config;
        let keys = noise.dropout.each_ref().map(|keys| keys.as_ref().map(Tensor::shallow_clone));
        let ids = batch.input_ids();
        let tokens = (ids.as_slice(), batch.cu_seqlens.as_slice());
        let layout = Rc::new(Layout::new(&self.config, tokens, options.noise_draws as usize, keys, self.device));
        let (features, states) = self.record_states(&mut tape, batch);
        let context = self.record_context(&mut tape, states, &layout);
        let text = tape.take_rows(context, layout.text.tokens.clone());
        let pictures = tape.take_rows(context, layout.pictures.tokens.clone());
        let flowing = Flowing::new(&self.config, batch, noise, self.device);
        let weight = flowing.weight(rows, |time| if batch.evaluates { 1.0 } else { flow.weight.at(time) });
        let Flowing { drawn, target, .. } = flowing;
        let (embodiment, drawn) = (drawn.embodiment.shallow_clone(), Rc::new(drawn));
        let (mut x, condition) = self.record_rows(&mut tape, &drawn);
        for (number, layer) in self.layers.iter().enumerate() {
            let seen = match layer.sees {
                Sees::Rows => None,
                Sees::Text => Some(text),
                Sees::Pictures => Some(pictures),
            };
            x = self.record_layer(&mut tape, &format!("layer {number}"), layer, [x, condition], seen, &layout);
        }
        let part = self.head.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &embodiment)];
        let velocity = tape.run("head", &self.head.ids, self.policy, &[x, condition], 1, forward)[0];
        let target = tape.run("target", &[], Policy::Keep, &[], 1, move |_| vec![target.shallow_clone()])[0];
        let loss = flow.kind.record(&mut tape, velocity, target, weight, batch.loss_scale);
        FoundationTape::of_loss(tape, vec![features], loss)
    }
}

impl Network {
    /// Records the states that actions see, of tokens whose states are `x`.
    fn record_context(&self, tape: &mut Tape, mut x: Slot, layout: &Rc<Layout>) -> Slot {
        let policy = self.policy;
        if self.config.options.insulate {
            x = tape.run("insulate", &[], Policy::Keep, &[x], 1, |reads| vec![reads[0].detach()])[0];
        }
        if let Some(norm) = &self.context.norm {
            let part = norm.part.clone();
            x = tape.run("context norm", &norm.ids, policy, &[x], 1, move |reads| vec![part.forward_wide(&reads[0])])
                [0];
        }
        for (number, layer) in self.context.layers.iter().enumerate() {
            let (part, at) = (layer.attend.part.clone(), layout.clone());
            let forward = move |reads: &[Tensor]| vec![ContextLayer::attended(&part, &reads[0], &at)];
            let name = format!("context {number}");
            let y = tape.run(format!("{name} attention"), &layer.attend.ids, policy, &[x], 1, forward)[0];
            x = tape.add(x, y);
            let (part, at) = (layer.feed_forward.part.clone(), layout.clone());
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &at.dropout[0])];
            let y = tape.run(format!("{name} mlp"), &layer.feed_forward.ids, policy, &[x], 1, forward)[0];
            x = tape.add(x, y);
        }
        x
    }

    /// Records the rows of all draws, and the condition of their norms.
    fn record_rows(&self, tape: &mut Tape, drawn: &Rc<Drawn>) -> (Slot, Slot) {
        let (part, kind, of) = (self.rows.part.clone(), self.kind, drawn.clone());
        let forward = move |_: &[Tensor]| vec![part.forward(&of, kind)];
        let rows = tape.run("rows", &self.rows.ids, self.policy, &[], 1, forward)[0];
        let (part, of) = (self.condition.part.clone(), drawn.clone());
        let forward = move |_: &[Tensor]| vec![condition(&part, &of)];
        (rows, tape.run("condition", &self.condition.ids, self.policy, &[], 1, forward)[0])
    }

    /// Records the rows behind a layer, which sees tokens `seen`, or the rows.
    fn record_layer(
        &self,
        tape: &mut Tape,
        name: &str,
        layer: &Layer,
        [x, condition]: [Slot; 2],
        seen: Option<Slot>,
        layout: &Rc<Layout>,
    ) -> Slot {
        let (part, at, sees) = (layer.attend.part.clone(), layout.clone(), layer.sees);
        let forward =
            move |reads: &[Tensor]| vec![Layer::attended((&part, sees), &reads[0], &reads[1], reads.get(2), &at)];
        let reads: Vec<Slot> = [x, condition].into_iter().chain(seen).collect();
        let y = tape.run(format!("{name} attention"), &layer.attend.ids, self.policy, &reads, 1, forward)[0];
        let x = tape.add(x, y);
        let (part, at) = (layer.feed_forward.part.clone(), layout.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &at.dropout[1])];
        let y = tape.run(format!("{name} mlp"), &layer.feed_forward.ids, self.policy, &[x], 1, forward)[0];
        tape.add(x, y)
    }
}
