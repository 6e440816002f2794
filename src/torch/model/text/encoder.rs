//! A text tower and its projector: texts to features for the foundation.

use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::message::{Grid, NoPicturedText};
use tch::{Kind, Tensor};

use super::clip::{ClipTextConfig, ClipTextTower};
use super::decoder::DecoderTower;
use super::pictured::PicturedTexts;
use super::t5::T5Config;
use super::t5_tower::T5Tower;
use crate::device::upload;
use crate::model::audio::{AudioProjector, AudioProjectorConfig};
use crate::model::decoder::{DecoderConfig, Interleaved};
use crate::model::encoder::{EncoderFamily, EncoderModel, EncoderTape};
use crate::model::parallel_errors::TensorParallelError;
use crate::model::tower_blocks::Divided;
use crate::model::vision::{VisionConfig, VisionEncoder};
use crate::native::is_dry_run;
use crate::params::{ParallelRank, ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// An encoder as data. A text is an item of as many rows as it has tokens; each text is computed alone.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    pub tower: TextTowerConfig,
    /// The states that are taken, side by side: 0 are the embeddings, others those after so many layers (`hidden_states` of
    /// transformers). At least one, below `tower.num_layers()` + 1.
    pub layers: Vec<usize>,
    /// True if the last layer's states are behind the last norm; of a tower other than a decoder they always are.
    pub normed: bool,
    /// Tokens at the beginning of each text, such as a template's, that have no features.
    pub drop_tokens: usize,
    /// The tower of pictures that stand among a text's tokens (Qwen-Image-Edit), of a decoder.
    pub pictures: Option<Pictures>,
    /// `None`: features are the states.
    pub projector: Option<AudioProjectorConfig>,
}

/// Pictures among the tokens of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Pictures {
    pub tower: VisionConfig,
    /// The token that a feature of a picture replaces.
    pub placeholder: i64,
}

/// A tower.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "one a model")]
pub enum TextTowerConfig {
    T5(T5Config),
    Clip(ClipTextConfig),
    Decoder(DecoderConfig),
}

impl TextTowerConfig {
    /// Returns the width of a state.
    pub fn width(&self) -> i64 {
        match self {
            TextTowerConfig::T5(config) => config.width,
            TextTowerConfig::Clip(config) => config.block.width,
            TextTowerConfig::Decoder(config) => config.hidden_size,
        }
    }

    /// Returns the number of blocks of the tower, used or not.
    pub fn num_layers(&self) -> usize {
        match self {
            TextTowerConfig::T5(config) => config.num_layers,
            TextTowerConfig::Clip(config) => config.num_layers,
            TextTowerConfig::Decoder(config) => config.num_layers(),
        }
    }

    /// Returns the part of the tower that the rank at `place` computes.
    fn divided(&self, place: &ParallelRank) -> Result<TextTowerConfig, TensorParallelError> {
        Ok(match self {
            TextTowerConfig::T5(config) => TextTowerConfig::T5(config.divided(place)?),
            TextTowerConfig::Clip(config) => {
                let block = config.block.divided(place, "text_encoder.num_attention_heads")?;
                TextTowerConfig::Clip(ClipTextConfig { block, ..config.clone() })
            }
            TextTowerConfig::Decoder(config) => TextTowerConfig::Decoder(config.divided(place)?),
        })
    }
}

impl TextConfig {
    /// Returns the width of the states of a token, side by side.
    pub fn width(&self) -> i64 {
        self.tower.width() * self.layers.len() as i64
    }

    fn is_split(&self) -> bool {
        let parallel = match &self.tower {
            TextTowerConfig::T5(config) => &config.parallel,
            TextTowerConfig::Clip(config) => &config.block.parallel,
            TextTowerConfig::Decoder(config) => &config.parallel,
        };
        parallel.tp > 1
    }

    /// Returns the layers that are computed, and whether the last norm is.
    fn depth(&self) -> (usize, bool) {
        let deepest = self.layers.iter().copied().max().unwrap_or(0);
        let is_normed = self.normed || !matches!(self.tower, TextTowerConfig::Decoder(_));
        (deepest, is_normed && deepest == self.tower.num_layers())
    }
}

/// The encoder on the parameters of a store.
struct TextEncoder {
    tower: Tower,
    pictures: Option<(VisionEncoder, Pictures)>,
    layers: Vec<usize>,
    drop_tokens: usize,
    projector: Option<AudioProjector>,
    policy: Policy,
    kind: Kind,
    /// True if ranks share the tower's layers.
    is_split: bool,
}

enum Tower {
    T5(Box<T5Tower>),
    Clip(Box<ClipTextTower>),
    Decoder(Box<DecoderTower>),
}

impl EncoderFamily for TextConfig {
    fn specs(&self) -> Vec<ParamSpec> {
        let (num_layers, with_norm) = self.depth();
        let mut specs = match &self.tower {
            TextTowerConfig::T5(config) => config.specs(num_layers, with_norm),
            TextTowerConfig::Clip(config) => config.specs(num_layers, with_norm),
            TextTowerConfig::Decoder(config) => DecoderTower::specs(config, num_layers, with_norm),
        };
        specs.extend(self.pictures.iter().flat_map(|pictures| pictures.tower.specs()));
        specs.extend(self.projector.iter().flat_map(AudioProjectorConfig::specs));
        specs
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        let (num_layers, with_norm) = self.depth();
        let tower = match &self.tower {
            TextTowerConfig::T5(config) => Tower::T5(Box::new(T5Tower::new(config, num_layers, with_norm, params))),
            TextTowerConfig::Clip(config) => {
                Tower::Clip(Box::new(ClipTextTower::new(config, num_layers, with_norm, params)))
            }
            TextTowerConfig::Decoder(config) => {
                Tower::Decoder(Box::new(DecoderTower::new(config, num_layers, with_norm, params)))
            }
        };
        let pictures = |it: &Pictures| (VisionEncoder::new(&it.tower, params, policy), it.clone());
        Box::new(TextEncoder {
            tower,
            pictures: self.pictures.as_ref().map(pictures),
            kind: params.flat().kind(),
            is_split: self.is_split(),
            layers: self.layers.clone(),
            drop_tokens: self.drop_tokens,
            projector: self.projector.as_ref().map(|config| AudioProjector::new(config, params)),
            policy,
        })
    }

    fn patch_dim(&self) -> i64 {
        1
    }

    fn prefixes(&self) -> [&str; 2] {
        ["text_encoder.", "text_projector."]
    }

    fn is_projector(&self, name: &str) -> bool {
        self.projector.as_ref().is_some_and(|projector| projector.has(name))
    }

    fn divided(&self, place: &ParallelRank) -> Result<Arc<dyn EncoderFamily>, TensorParallelError> {
        // Ranks have all tokens between layers.
        let place = ParallelRank { sequence: false, ..*place };
        let pictures = |it: &Pictures| Ok(Pictures { tower: it.tower.local(&place)?, ..it.clone() });
        let pictures = self.pictures.as_ref().map(pictures).transpose()?;
        let local = TextConfig { tower: self.tower.divided(&place)?, pictures, ..self.clone() };
        Ok(Arc::new(Divided { local, whole: self.clone(), place }))
    }

    fn num_features(&self, grid: Grid) -> usize {
        // An item with pictures may tell its tokens by its rows.
        let tokens = if grid.h > 1 { grid.h as usize } else { grid.num_cells() };
        tokens.saturating_sub(self.drop_tokens)
    }
}

impl EncoderModel for TextEncoder {
    fn takes_ids(&self) -> bool {
        true
    }

    fn record(&self, grids: &[Grid]) -> EncoderTape {
        let mut tape = Tape::new();
        let ids = tape.input(false);
        let mut ends = vec![0];
        grids.iter().for_each(|grid| ends.push(ends[ends.len() - 1] + grid.num_cells()));
        self.record_texts(tape, (ids, ids), &ends, None)
    }

    fn record_items(&self, grids: &[Grid], values: &Tensor) -> Result<EncoderTape, NoPicturedText> {
        let Some((encoder, Pictures { tower, placeholder })) = &self.pictures else { return Ok(self.record(grids)) };
        let patch_dim = tower.patch_dim();
        let texts = match is_dry_run() {
            true => PicturedTexts::like(grids, patch_dim, |grid| tower.num_features(grid)),
            false => PicturedTexts::read(grids, values, *placeholder, patch_dim)?,
        };
        let mut tape = Tape::new();
        let input = tape.input(false);
        let take_ids = texts.take_ids();
        if texts.grids.is_empty() {
            let forward = move |reads: &[Tensor]| vec![take_ids(&reads[0])];
            let ids = tape.run("ids", &[], Policy::Recompute, &[input], 1, forward)[0];
            return Ok(self.record_texts(tape, (input, ids), &texts.ends, None));
        }
        let take_patches = texts.take_patches(patch_dim, self.kind);
        let forward = move |reads: &[Tensor]| vec![take_ids(&reads[0]), take_patches(&reads[0])];
        let parts = tape.run("parts", &[], Policy::Recompute, &[input], 2, forward);
        let features = encoder.record_on(&mut tape, &texts.grids, parts[1]);
        let rows = Rc::new(upload(&Tensor::from_slice(&texts.rows), values.device()));
        let among = Interleaved { positions: texts.positions(), features: Some((rows, features)) };
        Ok(self.record_texts(tape, (input, parts[0]), &texts.ends, Some(among)))
    }
}

impl TextEncoder {
    /// Records texts that end at `ends` among tokens; `input` is the tape's input, of which `ids` are made.
    fn record_texts(
        &self,
        mut tape: Tape,
        (input, ids): (Slot, Slot),
        ends: &[usize],
        among: Option<Interleaved>,
    ) -> EncoderTape {
        let kept = |ends: &[usize]| (ends[0] + self.drop_tokens) as i64..ends[1] as i64;
        let kept: Vec<i64> = ends.windows(2).flat_map(kept).collect();
        let states = match &self.tower {
            Tower::T5(tower) => tower.record(&mut tape, ends, ids, self.policy),
            Tower::Clip(tower) => tower.record(&mut tape, ends, ids, self.policy),
            Tower::Decoder(tower) => tower.record(&mut tape, ends, ids, among, self.policy),
        };
        let taken: Vec<Slot> = self.layers.iter().map(|layer| states[*layer]).collect();
        let drops = self.drop_tokens > 0;
        let forward = move |reads: &[Tensor]| {
            let side_by_side = Tensor::cat(reads, -1);
            let rows = || upload(&Tensor::from_slice(&kept), side_by_side.device());
            vec![if drops { side_by_side.index_select(0, &rows()) } else { side_by_side }]
        };
        // The projector is not split.
        tape.set_alike(self.is_split);
        let features = tape.run("states", &[], self.policy, &taken, 1, forward)[0];
        let features = match &self.projector {
            Some(projector) => projector.record(&mut tape, features, self.policy),
            None => features,
        };
        EncoderTape { tape: Rc::new(tape), pixels: input, outputs: vec![features] }
    }
}
