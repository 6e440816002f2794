//! A frozen language model as a tower: the log-probability of an answer, which objectives of preference compare with the
//! trained model's. So the reference is a pool of encoders like any other: of any size, on devices of its own, cached.
//!
//! An item is a document, with a row for each of its tokens: the token's id, and the token to predict there or -1. It has one
//! feature, two numbers whose sum is that of the log-probabilities of the tokens to predict: as float32, whatever the precision, and
//! what that leaves. A log-ratio is the small difference of two such sums.

use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::message::{Grid, NoPicturedText, Tower};
use serde_json::Value;
use tch::{Device, IndexOp, Kind, Tensor};

use super::config::ModelConfig;
use super::decoder::{Decoder, DecoderConfig, TextBatch, TextOptions};
use super::encoder::{EncoderFamily, EncoderModel, EncoderTape};
use super::family::NamePrefix;
use super::family::decoders::read_decoder;
use super::keys::{Keys, ModelConfigError};
use super::objective::Preference;
use super::parallel_errors::TensorParallelError;
use super::stage::Stage;
use super::towers::{FeatureInput, ModelTower, Towers};
use crate::nn::Mask;
use crate::params::{ParallelRank, ParamSpec, ParamStore, divide};
use crate::tape::Policy;

/// What the names of its parameters begin with.
pub const REFERENCE_PREFIX: &str = "reference.";
/// Values of a row: the id of a token, and the token to predict.
const VALUES: i64 = 2;

/// The model, whole or a rank's part of it.
#[derive(Clone, Debug)]
struct ReferenceFamily {
    whole: DecoderConfig,
    config: DecoderConfig,
}

struct ReferenceModel {
    decoder: Decoder,
    policy: Policy,
}

impl ModelConfig {
    /// The same, which learns from pairs of answers; `reference` is the `config.json` of the model that they are compared with,
    /// where the objective has one. `Ok(None)`: this model does not predict tokens.
    ///
    /// # Errors
    /// The reference is not a language model that is built in.
    pub fn with_preference(
        mut self,
        preference: Preference,
        reference: Option<&Value>,
    ) -> Result<Option<ModelConfig>, ModelConfigError> {
        if let Some(reference) = reference {
            let place = NamePrefix::new("reference.model.", REFERENCE_PREFIX);
            let whole = read_decoder(&Keys::new(reference), &place)?;
            let family = Arc::new(ReferenceFamily { config: whole.clone(), whole });
            let towers = self.towers.iter().cloned();
            let tower = ModelTower { tower: Tower::Reference, family, placeholders: Vec::new() };
            self.towers = Towers::new(towers.chain([tower]).collect());
        }
        let Some(foundation) = self.foundation.with_preference(preference) else { return Ok(None) };
        Ok(Some(ModelConfig { foundation, ..self }))
    }
}

impl FeatureInput {
    /// The log-probabilities of a reference model.
    pub(super) fn of_reference() -> FeatureInput {
        FeatureInput { tower: Tower::Reference, num_tensors: 1, width: 2, placeholders: Vec::new() }
    }

    /// The kind of its tensors on a foundation whose parameters are of `kind`: sums of log-probabilities need all their digits.
    pub fn kind(&self, kind: Kind) -> Kind {
        if self.tower == Tower::Reference { Kind::Float } else { kind }
    }
}

impl EncoderFamily for ReferenceFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        let specs = |config: &DecoderConfig| Decoder::stage_specs(config, &Stage::whole(config.num_layers()));
        let place = &self.config.parallel;
        match place.is_whole() {
            true => specs(&self.whole),
            false => divide(specs(&self.whole), specs(&self.config), place),
        }
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        let stage = Stage::whole(self.config.num_layers());
        Box::new(ReferenceModel { decoder: Decoder::stage(&self.config, stage, params), policy })
    }

    fn patch_dim(&self) -> i64 {
        VALUES
    }

    fn prefixes(&self) -> [&str; 2] {
        [REFERENCE_PREFIX, ""]
    }

    fn divided(&self, place: &ParallelRank) -> Result<Arc<dyn EncoderFamily>, TensorParallelError> {
        Ok(Arc::new(ReferenceFamily { config: self.whole.divided(place)?, whole: self.whole.clone() }))
    }

    fn num_features(&self, _: Grid) -> usize {
        1
    }
}

impl ReferenceModel {
    /// The tape of documents that end at `ends`, of rows `[T, 2]`.
    fn record_rows(&self, ends: &[usize], rows: &Tensor) -> EncoderTape {
        let rows = rows.to_kind(Kind::Int64);
        let [ids, targets] = [0, 1].map(|column| rows.i((.., column)).contiguous());
        let targets = Vec::<i64>::try_from(&targets).expect("a row of integers");
        let positions: Vec<f32> = ends.windows(2).flat_map(|two| (0..two[1] - two[0]).map(|at| at as f32)).collect();
        let positions = Tensor::from_slice(&positions);
        let has_axes = self.decoder.config().has_three_axes();
        let batch = TextBatch {
            input_ids: ids,
            position_ids: if has_axes { positions.repeat([3, 1]) } else { positions },
            cu_seqlens: ends.to_vec(),
            mask: Mask::Causal,
            feature_rows: Vec::new(),
            row: None,
            past: None,
            shared: None,
        };
        let options = TextOptions {
            feature_tensors: Vec::new(),
            train_features: false,
            policy: self.policy,
            keep_routing: false,
        };
        let answers = ends.windows(2).zip(0..).flat_map(|(two, number)| {
            let counted = targets[two[0]..two[1]].iter().filter(|target| **target >= 0);
            counted.map(move |_| number as i64)
        });
        let answers: Vec<i64> = answers.collect();
        // A prompt is read once for its answers.
        let (batch, targets) = batch.sharing(targets, self.decoder.config());
        let (mut tape, each) = self.decoder.log_probabilities(&batch, &targets, &options);
        let num_items = ends.len() as i64 - 1;
        let sum = move |reads: &[Tensor]| {
            let at = Tensor::from_slice(&answers).to_device(reads[0].device());
            let zeros = Tensor::zeros([num_items], (Kind::Double, reads[0].device()));
            let sums = zeros.index_add(0, &at, &reads[0].to_kind(Kind::Double));
            let rounded = sums.to_kind(Kind::Float);
            let rest = (sums - rounded.to_kind(Kind::Double)).to_kind(Kind::Float);
            vec![Tensor::stack(&[rounded, rest], 1)]
        };
        let sums = tape.run("answers", &[], Policy::Keep, &[each], 1, sum)[0];
        tape.keep(sums);
        // The rows are read while the tape is recorded; the executor gives them to an input all the same.
        let pixels = tape.input(false);
        EncoderTape { tape: Rc::new(tape), pixels, outputs: vec![sums] }
    }
}

impl EncoderModel for ReferenceModel {
    fn takes_ids(&self) -> bool {
        true
    }

    fn record(&self, grids: &[Grid]) -> EncoderTape {
        let rows: usize = grids.iter().map(|grid| grid.num_patches()).sum();
        let rows = Tensor::zeros([rows as i64, VALUES], (Kind::Float, Device::Cpu));
        self.record_rows(&ends(grids), &rows)
    }

    fn record_items(&self, grids: &[Grid], values: &Tensor) -> Result<EncoderTape, NoPicturedText> {
        Ok(self.record_rows(&ends(grids), values))
    }
}

fn ends(grids: &[Grid]) -> Vec<usize> {
    let ends = grids.iter().scan(0, |end, grid| {
        *end += grid.num_patches();
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}
