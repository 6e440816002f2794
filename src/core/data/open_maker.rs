//! Chooses who makes the samples of a model.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::Value as Json;

use super::card::ModelCard;
use super::decoder::MediaDecoder;
use super::diffusion::DiffusionMaker;
use super::error::DataError;
use super::maker::SampleMaker;
use super::policy::PolicyMaker;
use super::processor::{Processor, ProcessorFolders, ProcessorOptions};
use crate::config::ModelKind;

/// Opens a maker of samples that a program brings itself. It is given the model's `config.json` and what opens the built-in
/// maker of that model, which it may change or leave.
pub type OpenMaker = dyn Fn(&Json, &dyn Fn() -> Opened) -> Opened + Send + Sync;

/// The result of opening a maker.
pub type Opened = Result<Box<dyn SampleMaker>, DataError>;

static OWN: OnceLock<BTreeMap<String, Box<OpenMaker>>> = OnceLock::new();

/// Adds makers of samples by the names that `data.maker` may have, for the rest of the process.
///
/// # Errors
/// This was called before.
pub fn register_makers(makers: BTreeMap<String, Box<OpenMaker>>) -> Result<(), String> {
    OWN.set(makers).map_err(|_| "makers of samples are already registered: register all of them at once".to_owned())
}

/// Opens the maker of samples for the model of `config`, a `config.json`. Files are decoded by `decoder`.
///
/// # Errors
/// A file of the model is missing, wrong or of another model; or the options name a maker that no one has registered.
pub fn open_maker(
    folders: ProcessorFolders<'_>,
    config: &Json,
    options: &ProcessorOptions,
    decoder: Arc<dyn MediaDecoder>,
) -> Result<Box<dyn SampleMaker>, DataError> {
    let Some(name) = &options.maker else { return open_built_in(folders, config, options, decoder) };
    let plain = ProcessorOptions { maker: None, ..options.clone() };
    let built_in = || open_built_in(folders, config, &plain, decoder.clone());
    let own = OWN.get();
    match own.and_then(|own| own.get(name)) {
        Some(open) => open(config, &built_in),
        None => {
            let known: Vec<&str> = own.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            let known =
                if known.is_empty() { "registers none".to_owned() } else { format!("has {}", known.join(", ")) };
            Err(DataError::file(
                Path::new("data.maker"),
                format!("`{name}` is not a maker of samples: this program {known}"),
            ))
        }
    }
}

fn open_built_in(
    folders: ProcessorFolders<'_>,
    config: &Json,
    options: &ProcessorOptions,
    decoder: Arc<dyn MediaDecoder>,
) -> Result<Box<dyn SampleMaker>, DataError> {
    Ok(match ModelCard::of(config).kind() {
        ModelKind::Tokens => Box::new(Processor::open_from(folders, config, options)?.with_decoder(decoder)),
        ModelKind::Policy => Box::new(PolicyMaker::open(folders, config, options, decoder)?),
        ModelKind::Diffusion { .. } => Box::new(DiffusionMaker::open(folders, config, options, decoder)?),
    })
}
