//! A decoder as a foundation.

use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::config::ContextAttention;
use tch::Tensor;

use super::batch::{Targets, TextBatch, TextOptions};
use super::config::DecoderConfig;
use super::generate::{Prompt, generate};
use super::transformer::Decoder;
use crate::model::batch::MicroBatch;
use crate::model::decoding::Decoding;
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationTape};
use crate::model::parallel_errors::{ContextParallelError, TensorParallelError};
use crate::model::routing::ExpertSet;
use crate::model::stage::{Stage, StageError};
use crate::params::{ParallelRank, ParamSpec, ParamStore, divide};
use crate::tape::Policy;

/// A decoder that features go into, whole or a rank's part of it.
pub struct DecoderFamily {
    whole: DecoderConfig,
    /// Holds what this rank computes of it.
    config: DecoderConfig,
    placeholders: Vec<i64>,
    num_feature_tensors: usize,
}

impl DecoderFamily {
    /// The whole decoder, in which `num_feature_tensors` tensors of features replace the tokens `placeholders`.
    pub fn new(config: DecoderConfig, placeholders: Vec<i64>, num_feature_tensors: usize) -> DecoderFamily {
        DecoderFamily { whole: config.clone(), config, placeholders, num_feature_tensors }
    }
}

impl FoundationFamily for DecoderFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        self.stage_specs(&Stage::whole(self.config.num_layers()))
    }

    fn divided(&self, place: &ParallelRank) -> Result<Arc<dyn FoundationFamily>, TensorParallelError> {
        let (whole, placeholders) = (self.whole.clone(), self.placeholders.clone());
        let num_feature_tensors = self.num_feature_tensors;
        Ok(Arc::new(DecoderFamily { config: whole.divided(place)?, whole, placeholders, num_feature_tensors }))
    }

    fn check_context(&self, ranks: usize, attention: ContextAttention) -> Result<(), ContextParallelError> {
        self.config.check_context(ranks, attention)
    }

    fn needs_whole_rows(&self) -> Option<&'static str> {
        self.config.needs_whole_rows()
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
            placeholders: self.placeholders.clone(),
            num_feature_tensors: self.num_feature_tensors,
            policy,
        })
    }
}

struct DecoderModel {
    decoder: Decoder,
    placeholders: Vec<i64>,
    num_feature_tensors: usize,
    policy: Policy,
}

impl FoundationModel for DecoderModel {
    fn num_feature_tensors(&self) -> usize {
        self.num_feature_tensors
    }

    fn feature_dim(&self) -> i64 {
        self.decoder.config().hidden_size
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        // Positions come with three axes, of which a model of one axis takes the first.
        let axes = match self.decoder.config().has_three_axes() {
            true => batch.position_ids.shallow_clone(),
            false => batch.position_ids.get(0),
        };
        let text = TextBatch {
            input_ids: batch.input_ids.shallow_clone(),
            position_ids: axes,
            cu_seqlens: batch.cu_seqlens.clone(),
            feature_rows: self.feature_rows(batch),
            row: batch.row.clone(),
            past: batch.past,
        };
        let targets = Targets { labels: batch.targets(), scale: batch.loss_scale, evaluates: batch.evaluates };
        let options = TextOptions {
            num_feature_tensors: self.num_feature_tensors,
            train_features: batch.feature_grads,
            policy: self.policy,
            keep_routing: false,
        };
        let recorded = self.decoder.tape(&text, Some(&targets), &options);
        FoundationTape {
            tape: Rc::new(recorded.tape),
            features: recorded.features,
            loss: recorded.loss,
            predicted: recorded.predicted,
            inbound: recorded.inbound,
            outbound: recorded.outbound,
            key_values: recorded.key_values,
            routing: recorded.routing,
        }
    }

    fn feature_rows(&self, batch: &MicroBatch) -> Vec<i64> {
        let placeholder = |(row, id): (i64, &i64)| self.placeholders.contains(id).then_some(row);
        (0..).zip(&batch.input_ids()).filter_map(placeholder).collect()
    }

    fn pieces(&self, batch: &MicroBatch, chunk_tokens: usize) -> Result<Vec<MicroBatch>, &'static str> {
        let counts = |ids: &[i64]| ids.iter().filter(|id| self.placeholders.contains(id)).count() as i64;
        match self.decoder.config().needs_whole_rows() {
            Some(what) => Err(what),
            None => Ok(batch.pieces(chunk_tokens, counts)),
        }
    }

    fn generate(&self, batch: &MicroBatch, features: &[Tensor], decoding: &Decoding) -> Option<Vec<Vec<i64>>> {
        if !self.decoder.config().parallel.is_whole() {
            return None;
        }
        let (ids, rows) = (batch.input_ids(), self.feature_rows(batch));
        let axes = self.decoder.config().has_three_axes();
        let positions = if axes { batch.position_ids.shallow_clone() } else { batch.position_ids.get(0) };
        let prompt = |ends: &[usize]| {
            let (start, end) = (ends[0] as i64, ends[1] as i64);
            let before = rows.partition_point(|row| *row < start);
            let own = &rows[before..rows.partition_point(|row| *row < end)];
            let of_own = |level: &Tensor| level.narrow(0, before as i64, own.len() as i64);
            Prompt {
                input_ids: ids[ends[0]..ends[1]].to_vec(),
                position_ids: positions.narrow(-1, start, end - start),
                feature_rows: own.iter().map(|row| row - start).collect(),
                features: features.iter().filter(|_| !own.is_empty()).map(of_own).collect(),
            }
        };
        let prompts: Vec<Prompt> = batch.cu_seqlens.windows(2).map(prompt).collect();
        Some(generate(&self.decoder, &prompts, decoding))
    }

    fn expert_sets(&self) -> Vec<ExpertSet> {
        self.decoder.expert_sets()
    }

    fn bias_update_rate(&self) -> f64 {
        self.decoder.config().balance.bias_update_rate
    }
}
