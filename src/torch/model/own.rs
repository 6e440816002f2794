//! Families that a program brings itself: parts of models that are put together, and whole foundations, by `model_type`.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use loongforge_core::message::{Grid, Tower};
use serde_json::Value;

use super::config::ModelConfig;
use super::encoder::{EncoderFamily, EncoderModel};
use super::foundation::FoundationFamily;
use super::keys::ModelConfigError;
use super::parallel_errors::TensorParallelError;
use super::towers::{FeatureInput, Towers};
use crate::params::{ParallelRank, ParamSpec, ParamStore};
use crate::tape::Policy;

/// The arguments from which an own encoder is made.
#[derive(Clone, Copy, Debug)]
pub struct EncoderPart<'a> {
    /// The part's section of the model's `config.json`.
    pub config: &'a Value,
    /// The names of its parameters must begin with this: `image_encoder.`, `audio_encoder.`.
    pub prefix: &'a str,
    /// The width of the features that the foundation takes.
    pub width: i64,
}

/// The arguments from which an own foundation is made.
#[derive(Clone, Copy, Debug)]
pub struct FoundationPart<'a> {
    /// The `config.json` of a model of this alone, or the section `foundation` of a model of parts.
    pub config: &'a Value,
    /// The names of its parameters must begin with this: `foundation.`, or nothing where there is no other part.
    pub prefix: &'a str,
    /// The features that towers give to it, which its [`FoundationFamily::inputs`] must name. The list is empty where only its shape is
    /// asked for, to make towers of the right width.
    pub inputs: &'a [FeatureInput],
}

/// Makes an encoder; an error says what is wrong with the config.
pub type ReadEncoder = dyn Fn(EncoderPart<'_>) -> Result<Arc<dyn EncoderFamily>, String> + Send + Sync;
/// Makes a foundation; an error says what is wrong with the config.
pub type ReadFoundation = dyn Fn(FoundationPart<'_>) -> Result<Arc<dyn FoundationFamily>, String> + Send + Sync;

/// Families by the `model_type` of their config.
#[derive(Default)]
pub struct OwnFamilies {
    pub image_encoders: BTreeMap<String, Box<ReadEncoder>>,
    pub audio_encoders: BTreeMap<String, Box<ReadEncoder>>,
    pub foundations: BTreeMap<String, Box<ReadFoundation>>,
}

static OWN: OnceLock<OwnFamilies> = OnceLock::new();

/// Adds families to those that are built in, for the rest of the process.
///
/// # Errors
/// A foundation has the name of a built-in model, or this was called before.
pub fn register_families(families: OwnFamilies) -> Result<(), String> {
    if let Some(name) = families.foundations.keys().find(|name| ModelConfig::supported().any(|known| known == *name)) {
        return Err(format!("the model_type `{name}` is built in: choose another name"));
    }
    OWN.set(families).map_err(|_| "families are already registered: register all of them at once".to_owned())
}

/// Returns every foundation of one's own.
pub(super) fn own_foundations() -> impl Iterator<Item = &'static str> {
    OWN.get().into_iter().flat_map(|own| own.foundations.keys()).map(String::as_str)
}

/// Returns the encoder of one's own that `config`, the section `key` of a model of parts, asks for; `None`: it asks for none.
pub(super) fn own_encoder(
    tower: Tower,
    key: &str,
    config: &Value,
    width: i64,
) -> Result<Option<Arc<dyn EncoderFamily>>, ModelConfigError> {
    let Some(own) = OWN.get() else { return Ok(None) };
    let (readers, projector) = match tower {
        Tower::Vision => (&own.image_encoders, "image_projector."),
        _ => (&own.audio_encoders, "audio_projector."),
    };
    let Some(name) = config["model_type"].as_str() else { return Ok(None) };
    let Some(read) = readers.get(name) else { return Ok(None) };
    let prefix = format!("{key}.");
    let wrong = |what| ModelConfigError::Own { key: key.to_owned(), model_type: name.to_owned(), what };
    let family = read(EncoderPart { config, prefix: &prefix, width }).map_err(wrong)?;
    let prefixes = [prefix, projector.to_owned()];
    expect_names(&family.specs(), &prefixes).map_err(wrong)?;
    Ok(Some(Arc::new(OwnEncoder { family, prefixes })))
}

/// Returns the own foundation that `config`, the section `key` of a model of parts or all of a `config.json`, asks for; `None`: it asks
/// for none. With no towers yet, `inputs` are empty.
pub(super) fn own_foundation(
    key: &str,
    config: &Value,
    inputs: &[FeatureInput],
) -> Result<Option<Arc<dyn FoundationFamily>>, ModelConfigError> {
    let read = |name: &str| OWN.get()?.foundations.get(name);
    let name = config["model_type"].as_str().unwrap_or_default();
    let Some(read) = read(name) else { return Ok(None) };
    let prefix = if key.is_empty() { String::new() } else { format!("{key}.") };
    let wrong = |what| ModelConfigError::Own { key: key.to_owned(), model_type: name.to_owned(), what };
    let family = read(FoundationPart { config, prefix: &prefix, inputs }).map_err(wrong)?;
    expect_names(&family.specs(), &[prefix]).map_err(wrong)?;
    if family.inputs() != inputs {
        let towers: Vec<&str> = inputs.iter().map(|input| input.tower.name()).collect();
        return Err(wrong(format!("its inputs must be the ones that it is given ({})", towers.join(", "))));
    }
    Ok(Some(family))
}

/// Returns a model of a foundation of one's own and these towers.
pub(super) fn own_model(model_type: &str, foundation: Arc<dyn FoundationFamily>, towers: Towers) -> ModelConfig {
    let (tree, carried) = Default::default();
    ModelConfig { model_type: model_type.to_owned(), foundation, low_noise: None, towers, tree, carried }
}

/// Sees to it that parts can be told from each other by their parameters' names.
fn expect_names(specs: &[ParamSpec], prefixes: &[String]) -> Result<(), String> {
    match specs.iter().find(|spec| !prefixes.iter().any(|prefix| spec.name.starts_with(prefix))) {
        Some(spec) => Err(format!("its parameter `{}` must begin with {}", spec.name, prefixes.join(" or "))),
        None => Ok(()),
    }
}

/// An encoder whose parameters' names tell which part they are of.
#[derive(Debug)]
struct OwnEncoder {
    family: Arc<dyn EncoderFamily>,
    prefixes: [String; 2],
}

impl EncoderFamily for OwnEncoder {
    fn specs(&self) -> Vec<ParamSpec> {
        self.family.specs()
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        self.family.build(params, policy)
    }

    fn num_outputs(&self) -> usize {
        self.family.num_outputs()
    }

    fn is_projector(&self, name: &str) -> bool {
        name.starts_with(&self.prefixes[1])
    }

    fn patch_dim(&self) -> i64 {
        self.family.patch_dim()
    }

    fn prefixes(&self) -> [&str; 2] {
        self.prefixes.each_ref().map(String::as_str)
    }

    fn divided(&self, place: &ParallelRank) -> Result<Arc<dyn EncoderFamily>, TensorParallelError> {
        Ok(Arc::new(Self { family: self.family.divided(place)?, prefixes: self.prefixes.clone() }))
    }

    fn num_features(&self, grid: Grid) -> usize {
        self.family.num_features(grid)
    }
}
