//! Reading a fixture folder: the model's config, and the batch as one packed row.

use crate::model::{
    DecoderConfig, DeepseekV4Names, FixtureError, FreshNames, ModelConfig, ModelTower, fixture_json as json,
    fixture_tensors as tensors,
};
use crate::params::Rounding;
use crate::train::AdamWConfig;
use loongforge_core::message::{Grid, Tower, TowerSet};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// One sequence of the batch.
pub(crate) struct Document {
    pub input_ids: Vec<i64>,
    /// Shifted: at each token the one to predict, or -100.
    pub targets: Vec<i64>,
    /// `[T]` or `[3, T]`, float.
    pub position_ids: Tensor,
    /// The items of each tower that the sequence has items of.
    pub items: Vec<TowerItems>,
}

/// The items of a tower in one sequence.
pub(crate) struct TowerItems {
    pub tower: Tower,
    pub grids: Vec<Grid>,
    /// `[P, X]`: their patches or frames, end to end.
    pub values: Tensor,
}

impl Document {
    /// Returns the items of a tower, if there are any.
    pub fn items_of(&self, tower: Tower) -> Option<&TowerItems> {
        self.items.iter().find(|items| items.tower == tower)
    }
}

pub(crate) struct Fixture {
    pub config: ModelConfig,
    pub documents: Vec<Document>,
    pub expected: BTreeMap<String, Tensor>,
    /// 1 where the padded batch has a token, `[sequences, longest]`.
    pub attention_mask: Tensor,
    pub adamw: AdamWConfig,
    pub learning_rate: f64,
    pub clip_norm: f64,
    pub num_steps: i64,
    /// The parameters' type.
    pub kind: Kind,
    /// The device of the models; the reference's tensors stay on the CPU.
    pub device: Device,
    /// True if it has adapters of PEFT: they alone are trained then.
    pub has_adapter: bool,
    /// The type that the frozen weights of its linear maps are rounded to, in the reference as well.
    pub rounding: Rounding,
    /// The reference's greedy continuation of each document, from `generated.json` where there is one.
    pub generated: Option<Vec<Vec<i64>>>,
}

impl Fixture {
    /// Returns the language model. Panics of a model that has none, which [`Fixture::read`] refuses.
    pub fn decoder(&self) -> &DecoderConfig {
        self.config.decoder().expect("a fixture of a language model")
    }

    /// Reads a fixture's folder.
    ///
    /// # Errors
    /// A file cannot be read, or the model is none that is computed here.
    pub fn read(folder: &Path) -> Result<Fixture, FixtureError> {
        let config = ModelConfig::from_hf(&json(&folder.join("config.json"))?);
        let mut config = config.map_err(|source| FixtureError::Config { folder: folder.to_owned(), source })?;
        let inputs = tensors(&folder.join("inputs.safetensors"))?;
        let expected = under_our_names(tensors(&folder.join("expected.safetensors"))?);
        let summary = json(&folder.join("fixture.json"))?;
        let documents = documents(&config, &inputs)?;
        if let Some(weight) = summary["mtp_loss_weight"].as_f64() {
            // The reference takes the mean over the head's own targets, of which each document has one less.
            let missing =
                || FixtureError::Missing { file: "config.json", key: "a family with prediction heads".into() };
            let weight = weight * num_targets(&documents, 0) as f64 / num_targets(&documents, 1) as f64;
            if config.edit_decoder(|decoder| decoder.enable_mtp(1, weight)) != Some(true) {
                return Err(missing());
            }
        }
        let adamw = &summary["adamw"];
        let number = |value: &Value, key: &str| {
            value.as_f64().ok_or_else(|| FixtureError::Missing { file: "fixture.json", key: format!("adamw.{key}") })
        };
        let setting = |key: &str| number(&adamw[key], key);
        Ok(Fixture {
            documents,
            attention_mask: get(&inputs, "attention_mask")?.to_kind(Kind::Bool),
            config,
            expected,
            adamw: AdamWConfig {
                betas: [number(&adamw["betas"][0], "betas")?, number(&adamw["betas"][1], "betas")?],
                eps: setting("eps")?,
                weight_decay: setting("weight_decay")?,
            },
            learning_rate: setting("lr")?,
            clip_norm: setting("clip_norm")?,
            num_steps: setting("steps")? as i64,
            kind: Kind::Float,
            device: Device::Cpu,
            rounding: match summary["frozen_precision"].as_str() {
                None => Rounding::None,
                Some("nf4") => Rounding::Nf4,
                Some(other) => {
                    let key = format!("a known frozen_precision, not {other}");
                    return Err(FixtureError::Missing { file: "fixture.json", key });
                }
            },
            has_adapter: folder.join("adapter_config.json").is_file(),
            generated: generated(folder)?,
        })
    }

    /// Returns a tensor of the reference, in the shape and type of the file.
    ///
    /// # Errors
    /// The fixture has no such tensor.
    pub fn expect(&self, key: &str) -> Result<&Tensor, FixtureError> {
        let missing = || FixtureError::Missing { file: "expected.safetensors", key: key.to_owned() };
        self.expected.get(key).ok_or_else(missing)
    }

    /// Returns the norms of the reference's gradients.
    pub fn grad_norms(&self) -> impl Iterator<Item = f64> {
        let norms = self.expected.iter().filter(|(key, _)| key.starts_with("grad_norm/"));
        norms.map(|(_, norm)| norm.double_value(&[]))
    }

    /// Returns the norm up to which a gradient is zero in exact arithmetic.
    pub fn rounding(&self) -> f64 {
        1e-8 * self.grad_norms().map(|norm| norm * norm).sum::<f64>().sqrt()
    }

    /// Returns the number of targets that the loss counts.
    pub fn num_targets(&self) -> usize {
        num_targets(&self.documents, 0)
    }
}

/// Returns the towers of the model of the fixture in `folder`.
///
/// # Errors
/// Its config cannot be read.
pub fn towers_of(folder: &Path) -> Result<TowerSet, FixtureError> {
    let config = ModelConfig::from_hf(&json(&folder.join("config.json"))?);
    let config = config.map_err(|source| FixtureError::Config { folder: folder.to_owned(), source })?;
    Ok(config.towers.set())
}

/// Returns the number of targets from the `first` of each document on.
fn num_targets(documents: &[Document], first: usize) -> usize {
    documents.iter().flat_map(|document| &document.targets[first..]).filter(|target| **target >= 0).count()
}

fn documents(config: &ModelConfig, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<Document>, FixtureError> {
    let list = |key: &str| get(inputs, key).map(integers);
    let (input_ids, labels, ends) = (list("packed.input_ids")?, list("packed.labels")?, list("packed.cu_seqlens")?);
    let three_axes = config.decoder().is_some_and(DecoderConfig::has_three_axes);
    let positions =
        get(inputs, if three_axes { "packed.mrope_position_ids" } else { "packed.position_ids" })?.to_kind(Kind::Float);
    let towers = config.towers.iter().map(|it| Source::open(inputs, it));
    let mut towers = towers.collect::<Result<Vec<_>, _>>()?;
    let mut documents = Vec::new();
    for ends in ends.windows(2) {
        let (start, end) = (ends[0] as usize, ends[1] as usize);
        let ids = &input_ids[start..end];
        let items = towers.iter_mut().map(|source| source.take(ids));
        let items = items.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        let mut targets = labels[start + 1..end].to_vec();
        targets.push(-100);
        documents.push(Document {
            input_ids: ids.to_vec(),
            targets,
            position_ids: positions.narrow(-1, ends[0], ends[1] - ends[0]),
            items,
        });
    }
    Ok(documents)
}

/// The items of a tower that no sequence has taken yet.
struct Source<'a> {
    it: &'a ModelTower,
    grids: std::vec::IntoIter<Grid>,
    /// `None` where the fixture has no items of this tower.
    values: Option<Tensor>,
    /// Rows of `values` that were taken.
    taken: i64,
}

impl<'a> Source<'a> {
    fn open(inputs: &BTreeMap<String, Tensor>, it: &'a ModelTower) -> Result<Self, FixtureError> {
        let (values, grids) = match it.tower {
            Tower::Vision => pictures(inputs, it.family.patch_dim())?,
            Tower::Audio => items(inputs, "audio_frames", "audio_lengths")?,
            Tower::Text => items(inputs, "text_ids", "text_lengths")?,
            // Sequences of tokens have no latents and no answers.
            Tower::Vae | Tower::Reference => (None, Vec::new()),
        };
        Ok(Source { it, grids: grids.into_iter(), values, taken: 0 })
    }

    /// Returns the items whose placeholders are among the tokens of a sequence; `None`: there are none.
    fn take(&mut self, input_ids: &[i64]) -> Result<Option<TowerItems>, FixtureError> {
        let mut open = input_ids.iter().filter(|id| self.it.placeholders.contains(id)).count();
        let mut grids = Vec::new();
        while open > 0 {
            let key = format!("a size for every item of the {} tower", self.it.tower);
            let missing = || FixtureError::Missing { file: "inputs.safetensors", key };
            let grid = self.grids.next().ok_or_else(missing)?;
            open = open.saturating_sub(self.it.family.num_features(grid));
            grids.push(grid);
        }
        let rows = grids.iter().map(|grid| grid.num_cells() as i64).sum::<i64>();
        let values = self.values.as_ref().filter(|_| !grids.is_empty()).map(|all| all.narrow(0, self.taken, rows));
        self.taken += rows;
        Ok(values.map(|values| TowerItems { tower: self.it.tower, grids, values }))
    }
}

/// Returns the rows of all items, such as the frames of recordings `[F, mel bins]`, and how many each item has.
fn items(
    inputs: &BTreeMap<String, Tensor>,
    rows: &str,
    lengths: &str,
) -> Result<(Option<Tensor>, Vec<Grid>), FixtureError> {
    let Some(values) = inputs.get(rows) else { return Ok((None, Vec::new())) };
    let lens = integers(get(inputs, lengths)?);
    let grid = |len: i64| Grid { t: len as u32, h: 1, w: 1 };
    Ok((Some(values.shallow_clone()), lens.into_iter().map(grid).collect()))
}

/// Returns the same, where the reference's names of tensors are those of a folder that transformers saved under its modules' names.
fn under_our_names(expected: BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    let inner = |key: &String| key.split_once('/').map(|(_, name)| name.to_owned());
    let names: Vec<String> = expected.keys().filter_map(inner).collect();
    let names = || names.iter().map(String::as_str);
    let (deepseek, fresh) = (DeepseekV4Names::of(names()), FreshNames::of(names()));
    let ours = |name: &str| match (deepseek, fresh) {
        (Some(names), _) => names.ours(name),
        (None, Some(names)) => names.ours(name),
        (None, None) => name.to_owned(),
    };
    let renamed = |key: String| match key.split_once('/') {
        Some((quantity, name)) => format!("{quantity}/{}", ours(name)),
        None => key,
    };
    expected.into_iter().map(|(key, value)| (renamed(key), value)).collect()
}

/// Returns all pictures' patches `[P, X]` and their sizes. Without a table of sizes pictures are tiles `[tiles, 3, H, W]`, each an item
/// of its own, to be cut into patches row by row.
fn pictures(inputs: &BTreeMap<String, Tensor>, patch_dim: i64) -> Result<(Option<Tensor>, Vec<Grid>), FixtureError> {
    let grid = |side: &[i64]| Grid { t: side[0] as u32, h: side[1] as u32, w: side[2] as u32 };
    if let Some(patches) = inputs.get("vision_patches") {
        let sizes = integers(get(inputs, "vision_sizes")?).chunks(3).map(grid).collect();
        return Ok((Some(patches.shallow_clone()), sizes));
    }
    let Some(pixels) = inputs.get("pixel_values") else { return Ok((None, Vec::new())) };
    if let Some(table) = inputs.get("image_grid_thw") {
        return Ok((Some(pixels.flatten(1, -1)), integers(table).chunks(3).map(grid).collect()));
    }
    if let Some(table) = inputs.get("target_sizes") {
        // Rows of patches, all pictures side by side: `[1, 3, patch, patches * patch]`.
        let (channels, side) = (pixels.size()[1], pixels.size()[2]);
        let patches = pixels.reshape([channels, side, -1, side]).permute([2, 0, 1, 3]).reshape([-1, patch_dim]);
        let grids = integers(table).chunks(2).map(|side| grid(&[1, side[0], side[1]])).collect();
        return Ok((Some(patches), grids));
    }
    let [tiles, channels, height, width] = pixels
        .size4()
        .map(|(t, c, h, w)| [t, c, h, w])
        .map_err(|_| FixtureError::Missing { file: "inputs.safetensors", key: "image_grid_thw".into() })?;
    let side = ((patch_dim / channels) as f64).sqrt() as i64;
    let (rows, columns) = (height / side, width / side);
    // A convolution leaves out what is no whole patch.
    let whole = pixels.narrow(2, 0, rows * side).narrow(3, 0, columns * side);
    let patches = whole.reshape([tiles, channels, rows, side, columns, side]).permute([0, 2, 4, 1, 3, 5]);
    let grid = Grid { t: 1, h: rows as u32, w: columns as u32 };
    Ok((Some(patches.reshape([-1, patch_dim])), vec![grid; tiles as usize]))
}

fn generated(folder: &Path) -> Result<Option<Vec<Vec<i64>>>, FixtureError> {
    let path = folder.join("generated.json");
    if !path.is_file() {
        return Ok(None);
    }
    let tokens = serde_json::from_value(json(&path)?["tokens"].take());
    tokens.map(Some).map_err(|source| FixtureError::Json { path, source })
}

fn get<'a>(tensors: &'a BTreeMap<String, Tensor>, key: &str) -> Result<&'a Tensor, FixtureError> {
    tensors.get(key).ok_or_else(|| FixtureError::Missing { file: "inputs.safetensors", key: key.to_owned() })
}

fn integers(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(tensor.to_kind(Kind::Int64).flatten(0, -1)).expect("a flat tensor of int64 is a list")
}
