//! Chooses who makes the samples of a model.

use std::sync::Arc;

use serde_json::Value as Json;

use super::card::ModelCard;
use super::decoder::MediaDecoder;
use super::diffusion::DiffusionMaker;
use super::error::DataError;
use super::maker::SampleMaker;
use super::policy::PolicyMaker;
use super::processor::{Processor, ProcessorFolders, ProcessorOptions};
use crate::config::ModelKind;

/// The maker of samples for the model of `config`, a `config.json`. Files are decoded by `decoder`.
///
/// # Errors
/// A file of the model is missing, wrong or of another model.
pub fn open_maker(
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
