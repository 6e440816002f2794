//! A decoder as a foundation.

use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::config::{ContextAttention, LossWeighting};
use loongforge_core::message::Tower;
use tch::{Kind, Tensor};

use super::batch::{Targets, TextBatch, TextOptions};
use super::config::DecoderConfig;
use super::generate::{Prompt, generate};
use super::transformer::Decoder;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::{Column, INPUT_IDS, LABELS, POSITION_IDS, label_column, token_columns};
use crate::model::decoding::Decoding;
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationShape, FoundationTape};
use crate::model::objective::{Answers, Groups, Pairs, Preference, PreferenceLoss};
use crate::model::parallel_errors::{ContextParallelError, TensorParallelError};
use crate::model::routing::ExpertSet;
use crate::model::stage::{Stage, StageError};
use crate::model::towers::FeatureInput;
use crate::params::{ParallelRank, ParamSpec, ParamStore, divide};
use crate::tape::Policy;

/// The key that needs whole rows where samples are pairs of answers.
const PAIRS: &str = "train.preference";

/// A decoder that features go into, whole or a rank's part of it.
#[derive(Debug)]
pub struct DecoderFamily {
    whole: DecoderConfig,
    /// The part of the decoder that this rank computes.
    config: DecoderConfig,
    inputs: Vec<FeatureInput>,
    /// Samples are pairs of answers, and this is what is learned of them.
    preference: Option<Preference>,
}

impl DecoderFamily {
    /// Returns the whole decoder, in which these features replace tokens.
    pub fn new(config: DecoderConfig, inputs: Vec<FeatureInput>) -> DecoderFamily {
        DecoderFamily { whole: config.clone(), config, inputs, preference: None }
    }
}

impl FoundationFamily for DecoderFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        self.stage_specs(&Stage::whole(self.config.num_layers()))
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn columns(&self) -> Vec<Column> {
        let labels = self.preference.filter(|it| matches!(it.loss, PreferenceLoss::Kto(_)));
        token_columns().into_iter().chain(labels.map(|it| label_column(it.group_size))).collect()
    }

    fn shape(&self) -> FoundationShape {
        self.config.shape()
    }

    fn as_decoder(&self) -> Option<&DecoderConfig> {
        Some(&self.config)
    }

    fn with_preference(&self, preference: Preference) -> Option<Arc<dyn FoundationFamily>> {
        let mut inputs = self.inputs.clone();
        if preference.loss.needs_reference() {
            inputs.push(FeatureInput::of_reference());
        }
        let (whole, config) = (self.whole.clone(), self.config.clone());
        Some(Arc::new(DecoderFamily { whole, config, inputs, preference: Some(preference) }))
    }

    fn divided(&self, place: &ParallelRank) -> Result<Arc<dyn FoundationFamily>, TensorParallelError> {
        let (whole, inputs) = (self.whole.clone(), self.inputs.clone());
        let config = whole.divided(place)?;
        Ok(Arc::new(DecoderFamily { config, whole, inputs, preference: self.preference }))
    }

    fn check_context(&self, ranks: usize, attention: ContextAttention) -> Result<(), ContextParallelError> {
        if ranks > 1 && self.preference.is_some() {
            return Err(ContextParallelError::Pairs);
        }
        self.config.check_context(ranks, attention)
    }

    fn needs_whole_rows(&self) -> Option<&'static str> {
        self.preference.map(|_| PAIRS).or_else(|| self.config.needs_whole_rows())
    }

    fn has_experts(&self) -> bool {
        self.config.num_experts().is_some()
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        self.build_stage(&Stage::whole(self.config.num_layers()), params, policy)
    }

    fn num_layers(&self) -> usize {
        self.config.num_layers()
    }

    fn check_stage(&self, stage: &Stage) -> Result<(), StageError> {
        let compares = self.preference.is_some_and(|preference| preference.loss.needs_reference());
        if compares && !stage.is_whole() {
            return Err(StageError::Reference);
        }
        stage.check(&self.config)
    }

    fn stage_specs(&self, stage: &Stage) -> Vec<ParamSpec> {
        let (place, whole) = (&self.config.parallel, Decoder::stage_specs(&self.whole, stage));
        if place.is_whole() { whole } else { divide(whole, Decoder::stage_specs(&self.config, stage), place) }
    }

    fn shared_by_stages(&self) -> Vec<String> {
        let [first, last] = [true, false]
            .map(|is_first| Decoder::stage_specs(&self.config, &Stage { layers: 0..0, is_first, is_last: !is_first }));
        let both = first.into_iter().filter(|spec| last.iter().any(|other| other.name == spec.name));
        both.map(|spec| spec.name).collect()
    }

    fn build_stage(&self, stage: &Stage, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        Box::new(DecoderModel {
            decoder: Decoder::stage(&self.config, stage.clone(), params),
            inputs: self.inputs.clone(),
            columns: self.columns().into(),
            preference: self.preference,
            policy,
        })
    }
}

struct DecoderModel {
    decoder: Decoder,
    inputs: Vec<FeatureInput>,
    columns: Rc<[Column]>,
    preference: Option<Preference>,
    policy: Policy,
}

impl DecoderModel {
    /// Returns the positions of a batch's tokens, as the decoder takes them, on the host where they are there.
    fn positions(&self, batch: &MicroBatch) -> Tensor {
        self.decoder.axes_of(batch.columns.get_on_host(POSITION_IDS))
    }
}

impl DecoderModel {
    /// Returns the weight of the target of each of the batch's own tokens; `None`: all count alike.
    fn target_weights(&self, batch: &MicroBatch) -> Option<Vec<f32>> {
        let weighting = self.decoder.config().weighting;
        if weighting == LossWeighting::Token || batch.evaluates || batch.samples.is_empty() {
            return None;
        }
        let of_sample = |sample: &SampleRow| {
            let weight = weighting.of_target(sample.num_targets) as f32;
            std::iter::repeat_n(weight, sample.num_tokens)
        };
        let all: Vec<f32> = batch.samples.iter().flat_map(of_sample).collect();
        Some(match &batch.row {
            None => all,
            Some(row) => row.split().rows(row.rank()).iter().map(|row| all[*row as usize]).collect(),
        })
    }
}

impl FoundationModel for DecoderModel {
    fn columns(&self) -> &Rc<[Column]> {
        &self.columns
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        let labels = batch.targets();
        let text = TextBatch {
            input_ids: batch.columns.get_on_host(INPUT_IDS).shallow_clone(),
            position_ids: self.positions(batch),
            cu_seqlens: batch.cu_seqlens.clone(),
            mask: self.decoder.config().sees.mask_of(&batch.input_ids(), &batch.cu_seqlens, &labels),
            feature_rows: self.feature_rows(batch),
            row: batch.row.clone(),
            past: batch.past,
            shared: None,
        };
        // Prompts that are continued have no targets.
        let is_prompt = batch.evaluates && batch.samples.iter().all(|sample| sample.num_targets == 0);
        let preference = self.preference.filter(|_| !is_prompt);
        let answers = preference.map(|preference| match preference.loss {
            PreferenceLoss::Kto(weights) => {
                let samples: Vec<usize> = batch.samples.iter().map(|sample| sample.num_tokens).collect();
                let good = Vec::<i64>::try_from(batch.columns.get_on_host(LABELS)).expect("a row of integers");
                let (beta, ends) = (preference.beta, &batch.cu_seqlens);
                Answers::Groups(Groups::new(weights, beta, ends, &labels, &samples, &good))
            }
            _ => Answers::Pairs(Pairs::new(preference, &batch.cu_seqlens, &labels)),
        });
        let neftune = self.decoder.config().neftune.filter(|_| !batch.evaluates);
        let noise = neftune.and_then(|neftune| neftune.of(batch, self.decoder.config().hidden_size));
        let weights = self.target_weights(batch);
        let (text, labels) = match &answers {
            Some(_) => text.sharing(labels, self.decoder.config()),
            None => (text, labels),
        };
        let weights = weights.map(|all| text.shared.as_ref().map_or_else(|| all.clone(), |shared| shared.of(&all)));
        let targets = Targets { labels, weights, scale: batch.loss_scale, evaluates: batch.evaluates, answers, noise };
        let options = TextOptions {
            feature_tensors: self.inputs.iter().map(|input| input.num_tensors).collect(),
            train_features: batch.feature_grads,
            policy: self.policy,
            keep_routing: false,
        };
        let is_constant = |input: usize| batch.constant_features.contains(self.inputs[input].tower);
        let recorded = self.decoder.tape_with_constants(&text, Some(&targets), &options, is_constant);
        let mut features = recorded.features;
        let of_reference = self.inputs.iter().position(|input| input.tower == Tower::Reference);
        if let (Some(input), Some(slot)) = (of_reference, recorded.reference) {
            features[input] = vec![slot];
        }
        FoundationTape {
            tape: Rc::new(recorded.tape),
            features,
            loss: recorded.loss,
            measures: recorded.measures,
            predicted: recorded.predicted,
            inbound: recorded.inbound,
            outbound: recorded.outbound,
            key_values: recorded.key_values,
            routing: recorded.routing,
        }
    }

    fn weighting(&self) -> LossWeighting {
        self.decoder.config().weighting
    }

    fn feature_rows(&self, batch: &MicroBatch) -> Vec<Vec<i64>> {
        let ids = batch.input_ids();
        self.inputs.iter().map(|input| input.rows(&ids)).collect()
    }

    fn dropout_rows(&self, batch: &MicroBatch) -> Vec<Tensor> {
        let place = self.decoder.config().parallel;
        match &batch.row {
            Some(row) => vec![row.rows()],
            // Outside of regions tokens are split among ranks.
            None if place.tp > 1 && place.sequence => {
                let (own, device) = (place.part(batch.num_tokens()), self.decoder.device);
                vec![Tensor::arange(own.end - own.start, (Kind::Int64, device)) + own.start]
            }
            None => Vec::new(),
        }
    }

    fn pieces(&self, batch: &MicroBatch, chunk_tokens: usize) -> Result<Vec<MicroBatch>, &'static str> {
        let counts = |ids: &[i64]| self.inputs.iter().map(|input| input.rows(ids).len() as i64).collect();
        match self.preference.map(|_| PAIRS).or_else(|| self.decoder.config().needs_whole_rows()) {
            Some(what) => Err(what),
            None => Ok(batch.pieces(chunk_tokens, counts)),
        }
    }

    fn generate(&self, batch: &MicroBatch, features: &[Vec<Tensor>], decoding: &Decoding) -> Option<Vec<Vec<i64>>> {
        if !self.decoder.config().parallel.is_whole() {
            return None;
        }
        let mut prompts = Prompt::of_batch(batch, &self.feature_rows(batch), features);
        if !self.decoder.config().has_three_axes() {
            prompts.iter_mut().for_each(|prompt| prompt.position_ids = prompt.position_ids.get(0));
        }
        Some(generate(&self.decoder, &prompts, decoding))
    }

    fn expert_sets(&self) -> Vec<ExpertSet> {
        self.decoder.expert_sets()
    }

    fn bias_update_rate(&self) -> f64 {
        self.decoder.config().balance.bias_update_rate
    }
}
