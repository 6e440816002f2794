//! The language model: its first layers, and what they return of the last, before the last norm or behind it.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::config::{GrootConfig, of_part};
use crate::device::upload;
use crate::model::batch::MicroBatch;
use crate::model::columns::{Columns, INPUT_IDS, POSITION_IDS};
use crate::model::decoder::{Decoder, Interleaved};
use crate::model::stage::Stage;
use crate::model::tower_blocks::Part;
use crate::model::towers::FeatureInput;
use crate::nn::RmsNorm;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

fn all_layers(config: &GrootConfig) -> Stage {
    Stage { layers: 0..config.backbone.num_layers(), is_first: true, is_last: false }
}

/// Returns the parameters of the language model: its layers, and its last norm, which is frozen where nothing reads it.
pub(super) fn specs(config: &GrootConfig) -> Vec<ParamSpec> {
    let (decoder, tuned) = (&config.backbone, config.tuned);
    let first_trained = decoder.num_layers().saturating_sub(tuned.top_llm_layers);
    let tops: Vec<String> = (first_trained..decoder.num_layers()).map(|number| decoder.layer_prefix(number)).collect();
    let is_trained = |spec: &ParamSpec| tuned.llm || tops.iter().any(|prefix| spec.name.starts_with(prefix));
    let layers = Decoder::stage_specs(decoder, &all_layers(config)).into_iter();
    let mut specs: Vec<ParamSpec> = layers.map(|spec| if is_trained(&spec) { spec } else { spec.frozen() }).collect();
    let norm = decoder.norm.specs("", &decoder.names.norm, decoder.hidden_size);
    specs.extend(of_part(config.last_norm && tuned.llm, norm));
    specs
}

/// The language model on its parameters.
pub(super) struct Backbone {
    decoder: Decoder,
    norm: Option<Part<RmsNorm>>,
    input: FeatureInput,
    device: Device,
}

impl Backbone {
    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &GrootConfig, params: &ParamStore) -> Backbone {
        let decoder = &config.backbone;
        let norm = || Part::new(params, "", |scope| decoder.norm.build(scope, &decoder.names.norm));
        Backbone {
            norm: config.last_norm.then(norm),
            decoder: Decoder::stage(&config.backbone, all_layers(config), params),
            input: config.input.clone(),
            device: params.flat().device(),
        }
    }

    /// Records the states `[T, D]` of a batch's tokens. Returns the slots of features as well.
    pub fn record(&self, tape: &mut Tape, batch: &MicroBatch, policy: Policy) -> (Vec<Slot>, Slot) {
        let has_features = batch.has_features(0);
        let num_tensors = if has_features { self.input.num_tensors } else { 0 };
        let features: Vec<Slot> = (0..num_tensors).map(|_| tape.input(batch.feature_grads)).collect();
        let ids = batch.columns.get(INPUT_IDS).unsqueeze(1);
        let rows = self.rows(&batch.input_ids());
        let among = Interleaved {
            positions: batch.columns.get(POSITION_IDS).to_kind(Kind::Float),
            features: has_features.then(|| (Rc::new(rows), features.clone())),
        };
        let ids = ids.to_device(self.device);
        let ids = tape.run("ids", &[], Policy::Keep, &[], 1, move |_| vec![ids.shallow_clone()])[0];
        let states = self.decoder.record_states(tape, &batch.cu_seqlens, ids, Some(among), policy);
        let last = *states.last().expect("the embeddings");
        let Some(norm) = &self.norm else { return (features, last) };
        let part = norm.part.clone();
        let normed = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        (features, tape.run("last norm", &norm.ids, policy, &[last], 1, normed)[0])
    }

    fn rows(&self, ids: &[i64]) -> Tensor {
        upload(&Tensor::from_slice(&self.input.rows(ids)), self.device)
    }

    /// Returns the same states at once, without gradients. Returns `[T, D]`; features are `[N, D]`.
    pub fn forward(&self, columns: &Columns, cu_seqlens: &[usize], features: &[Tensor]) -> Tensor {
        let ids = columns.get(INPUT_IDS);
        let of_pictures = Vec::<i64>::try_from(ids).expect("a row of integers");
        let rows = self.rows(&of_pictures);
        let last = self.decoder.last_state(cu_seqlens, ids, columns.get(POSITION_IDS), &rows, features);
        match &self.norm {
            Some(norm) => norm.part.forward(&last),
            None => last,
        }
    }
}
