//! A frozen language model that is built as a tower: the log-probability of an answer, which objectives of preference compare with the
//! trained model's. So the reference is a pool of encoders like any other: of any size, on devices of its own, cached.
//!
//! An item is a document (`reference_items.rs`). It has one feature, two numbers whose sum is that of the log-probabilities of the
//! tokens to predict: as float32, whatever the precision, and what that leaves. A log-ratio is the small difference of two such sums.
//!
//! A reference that sees pictures has a tower and a projector of its own, as frozen as the rest of it: those of the model that is
//! trained may change.

use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::message::{Grid, NoPicturedText, Tower};
use tch::{Kind, Tensor};

use super::config::ModelConfig;
use super::decoder::{Decoder, DecoderConfig, TextBatch, TextOptions};
use super::encoder::{EncoderFamily, EncoderModel, EncoderTape};
use super::objective::Preference;
use super::parallel_errors::TensorParallelError;
use super::reference_items::{Documents, Pictured, VALUES};
use super::stage::Stage;
use super::towers::{FeatureInput, ModelTower, Towers};
use super::vision::{VisionConfig, VisionEncoder};
use crate::device::upload;
use crate::native::is_dry_run;
use crate::params::{ParallelRank, ParamSpec, ParamStore, divide};
use crate::tape::{Policy, Slot, Tape};

/// The prefix of the names of a reference model's parameters.
pub const REFERENCE_PREFIX: &str = "reference.";

/// The reasons why a model cannot learn from answers, or cannot be their reference model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswersError {
    #[error("it is only supported for language models with a single decoder, which {model_type} is not")]
    NotOfTokens { model_type: String },
    #[error(
        "a reference model can only read text, and pictures with a built-in tower, but {model_type} has another {tower} tower: \
         choose orpo or simpo, which have no reference"
    )]
    Tower { model_type: String, tower: Tower },
    #[error(
        "the reference must read pictures in the same way as the model, which takes {own}, but {model_type} takes {other}"
    )]
    OtherPictures { own: String, model_type: String, other: String },
}

/// The model, whole or a rank's part of it.
#[derive(Clone, Debug)]
struct ReferenceFamily {
    whole: DecoderConfig,
    config: DecoderConfig,
    /// `None`: it reads text alone.
    pictures: Option<Pictures>,
}

/// The vision tower of a reference model and the placeholders that its features replace.
#[derive(Clone, Debug)]
struct Pictures {
    whole: VisionConfig,
    config: VisionConfig,
    placeholders: Vec<i64>,
    /// The numbers of features of grids of 4, 8 and 16 patches a side.
    num_features: [usize; 3],
}

struct ReferenceModel {
    decoder: Decoder,
    pictures: Option<(VisionEncoder, Pictures)>,
    policy: Policy,
    kind: Kind,
}

impl ModelConfig {
    /// Returns the same model, which learns from pairs of answers; `reference` is the model that they are compared with, where the
    /// objective has one.
    ///
    /// # Errors
    /// One of them does not predict tokens, the reference has a tower of something else than pictures, or it sees pictures otherwise.
    pub fn with_preference(
        mut self,
        preference: Preference,
        reference: Option<&ModelConfig>,
    ) -> Result<ModelConfig, AnswersError> {
        let not_of_tokens = |model: &ModelConfig| AnswersError::NotOfTokens { model_type: model.model_type.clone() };
        let foundation = self.foundation.with_preference(preference).ok_or_else(|| not_of_tokens(&self))?;
        if let Some(reference) = reference {
            let decoder = reference.decoder().ok_or_else(|| not_of_tokens(reference))?;
            let (pictures, own) = (Pictures::of(reference)?, Pictures::of(&self)?);
            let sees = |it: &Option<Pictures>| it.as_ref().map_or_else(|| "no pictures".to_owned(), Pictures::sees);
            let [own, other] = [&own, &pictures].map(sees);
            if own != other {
                let model_type = reference.model_type.clone();
                return Err(AnswersError::OtherPictures { own, model_type, other });
            }
            let whole = DecoderConfig { names: decoder.names.clone().under(REFERENCE_PREFIX), ..decoder.clone() };
            let family = Arc::new(ReferenceFamily { config: whole.clone(), whole, pictures });
            let towers = self.towers.iter().cloned();
            let tower = ModelTower { tower: Tower::Reference, family, placeholders: Vec::new() };
            self.towers = Towers::new(towers.chain([tower]).collect());
        }
        Ok(ModelConfig { foundation, ..self })
    }
}

impl FeatureInput {
    /// Returns the log-probabilities of a reference model.
    pub(super) fn of_reference() -> FeatureInput {
        FeatureInput { tower: Tower::Reference, num_tensors: 1, width: 2, placeholders: Vec::new() }
    }

    /// Returns whether the loss has a gradient of it: the log-probabilities of a reference model are constants.
    pub fn has_gradient(&self) -> bool {
        self.tower != Tower::Reference
    }

    /// Returns the kind of its tensors on a foundation whose parameters are of `kind`: sums of log-probabilities need all their digits.
    pub fn kind(&self, kind: Kind) -> Kind {
        if self.tower == Tower::Reference { Kind::Float } else { kind }
    }
}

impl Pictures {
    /// Returns the vision tower of a model that has no other towers; `None` without towers.
    fn of(model: &ModelConfig) -> Result<Option<Pictures>, AnswersError> {
        let unknown = |tower| AnswersError::Tower { model_type: model.model_type.clone(), tower };
        if let Some(it) = model.towers.iter().find(|it| it.tower != Tower::Vision) {
            return Err(unknown(it.tower));
        }
        let Some(it) = model.towers.iter().next() else { return Ok(None) };
        let known = it.family.as_any().and_then(|family| family.downcast_ref::<VisionConfig>());
        let whole = known.ok_or_else(|| unknown(it.tower))?.clone().under(REFERENCE_PREFIX);
        let num_features = [4, 8, 16].map(|side| it.family.num_features(Grid { t: 1, h: side, w: side }));
        Ok(Some(Pictures { config: whole.clone(), whole, placeholders: it.placeholders.clone(), num_features }))
    }

    /// Returns a description of the items that the model takes: two models that get the same items must have the same one.
    fn sees(&self) -> String {
        let (values, merge) = (self.whole.patch_dim(), self.whole.projector.merge);
        let [few, more, most] = self.num_features;
        format!(
            "patches of {values} values in blocks of {merge} × {merge}, {few}, {more} and {most} features of 4, 8 and 16 patches a side, at \
             the tokens {:?}",
            self.placeholders
        )
    }
}

impl EncoderFamily for ReferenceFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        let specs = |config: &DecoderConfig, tower: Option<&VisionConfig>| {
            let mut specs = Decoder::stage_specs(config, &Stage::whole(config.num_layers()));
            specs.extend(tower.into_iter().flat_map(VisionConfig::specs));
            specs
        };
        let (whole, place) = (specs(&self.whole, self.pictures.as_ref().map(|it| &it.whole)), &self.config.parallel);
        match place.is_whole() {
            true => whole,
            false => divide(whole, specs(&self.config, self.pictures.as_ref().map(|it| &it.config)), place),
        }
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        let stage = Stage::whole(self.config.num_layers());
        let pictures = |it: &Pictures| (VisionEncoder::new(&it.config, params, policy), it.clone());
        Box::new(ReferenceModel {
            decoder: Decoder::stage(&self.config, stage, params),
            pictures: self.pictures.as_ref().map(pictures),
            policy,
            kind: params.flat().kind(),
        })
    }

    fn patch_dim(&self) -> i64 {
        if self.pictures.is_some() { 1 } else { VALUES }
    }

    fn prefixes(&self) -> [&str; 2] {
        [REFERENCE_PREFIX, ""]
    }

    fn divided(&self, place: &ParallelRank) -> Result<Arc<dyn EncoderFamily>, TensorParallelError> {
        let pictures = |it: &Pictures| Ok(Pictures { config: it.whole.local(place)?, ..it.clone() });
        let pictures = self.pictures.as_ref().map(pictures).transpose()?;
        Ok(Arc::new(ReferenceFamily { config: self.whole.divided(place)?, whole: self.whole.clone(), pictures }))
    }

    fn num_features(&self, _: Grid) -> usize {
        1
    }
}

impl ReferenceModel {
    fn record_documents(&self, documents: Documents) -> EncoderTape {
        let mut tape = Tape::new();
        let input = tape.input(false);
        let (features, feature_rows) = match &self.pictures {
            Some((encoder, pictures)) if !documents.grids.is_empty() => {
                let rows = documents.rows_of(&pictures.placeholders);
                (self.record_pictures(&mut tape, input, encoder, &documents), vec![rows])
            }
            // The rows are read while the tape is recorded; the executor gives them to an input all the same.
            _ => (Vec::new(), Vec::new()),
        };
        let config = self.decoder.config();
        let batch = TextBatch {
            input_ids: Tensor::from_slice(&documents.ids),
            position_ids: documents.positions(config.has_three_axes()),
            cu_seqlens: documents.ends.clone(),
            mask: config.sees.mask_of(&documents.ids, &documents.ends, &documents.targets),
            feature_rows,
            row: None,
            past: None,
            shared: None,
        };
        let options = TextOptions {
            feature_tensors: features.iter().map(Vec::len).collect(),
            train_features: false,
            policy: self.policy,
            keep_routing: false,
        };
        let (answers, num_items) = (documents.answers(), documents.ends.len() as i64 - 1);
        // A prompt is read once for its answers.
        let (batch, targets) = batch.sharing(documents.targets, config);
        let (mut tape, each) = self.decoder.log_probabilities((tape, features), &batch, &targets, &options);
        let sum = move |reads: &[Tensor]| {
            let at = upload(&Tensor::from_slice(&answers), reads[0].device());
            let zeros = Tensor::zeros([num_items], (Kind::Double, reads[0].device()));
            let sums = zeros.index_add(0, &at, &reads[0].to_kind(Kind::Double));
            let rounded = sums.to_kind(Kind::Float);
            let rest = (sums - rounded.to_kind(Kind::Double)).to_kind(Kind::Float);
            vec![Tensor::stack(&[rounded, rest], 1)]
        };
        let sums = tape.run("answers", &[], Policy::Keep, &[each], 1, sum)[0];
        tape.keep(sums);
        EncoderTape { tape: Rc::new(tape), pixels: input, outputs: vec![sums] }
    }

    /// Records the features of the documents' pictures, whose patches are among the values of `input`, by input of the decoder and level.
    fn record_pictures(
        &self,
        tape: &mut Tape,
        input: Slot,
        encoder: &VisionEncoder,
        documents: &Documents,
    ) -> Vec<Vec<Slot>> {
        let take = documents.take_patches(self.kind);
        let forward = move |reads: &[Tensor]| vec![take(&reads[0])];
        let patches = tape.run("patches", &[], Policy::Recompute, &[input], 1, forward)[0];
        vec![encoder.record_on(tape, &documents.grids, patches)]
    }
}

impl EncoderModel for ReferenceModel {
    fn takes_ids(&self) -> bool {
        true
    }

    /// Records documents whose values are not known yet; only their sizes are.
    fn record(&self, grids: &[Grid]) -> EncoderTape {
        self.record_documents(match &self.pictures {
            None => {
                Documents::of_rows(grids, &Tensor::zeros([Documents::num_rows(grids), VALUES], tch::kind::FLOAT_CPU))
            }
            Some((_, pictures)) => Documents::like(grids, &pictures.pictured()),
        })
    }

    fn record_items(&self, grids: &[Grid], values: &Tensor) -> Result<EncoderTape, NoPicturedText> {
        let documents = match &self.pictures {
            None => Documents::of_rows(grids, values),
            Some(_) if is_dry_run() => return Ok(self.record(grids)),
            Some((_, pictures)) => Documents::of_values(grids, values, &pictures.pictured())?,
        };
        Ok(self.record_documents(documents))
    }
}

impl Pictures {
    fn pictured(&self) -> Pictured<'_> {
        let num_features = |grid| self.whole.num_features(grid);
        Pictured {
            placeholders: &self.placeholders,
            patch_dim: self.whole.patch_dim(),
            num_features: Box::new(num_features),
        }
    }
}
