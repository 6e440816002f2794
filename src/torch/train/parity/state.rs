//! A part of a fixture's model as it is trained.

use super::fixture::Fixture;
use crate::model::FixtureError;
use crate::native::NativeError;
use crate::parallel::FrozenWeights;
use crate::params::{GradBuffer, ParamSpec, ParamStore};
use crate::train::{AdamW, AdapterError, AdapterFolder, WeightsError, adapted, load_adapter, load_weights};
use std::path::{Path, PathBuf};
use std::rc::Rc;

#[derive(Debug, thiserror::Error)]
pub enum ParityError {
    #[error(transparent)]
    Fixture(#[from] FixtureError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error(transparent)]
    Native(#[from] NativeError),
    #[error("fixtures of robot policies and of Florence-2 are compared on the CPU alone: leave out --device")]
    OnTheCpu,
    #[error("fixtures of robot policies and of Florence-2 have no {0}: it is for language and vision-language models")]
    OfTokens(&'static str),
    #[error("{path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
}

/// A part of the model with its parameters and their gradients.
pub(super) struct ModelState<M> {
    pub model: M,
    pub params: Rc<ParamStore>,
    pub grads: GradBuffer,
    pub adamw: AdamW,
}

impl<M> ModelState<M> {
    /// Loads a part of the fixture's model, and its adapter where the folder has one.
    ///
    /// # Errors
    /// The weights cannot be read, or do not fit.
    pub fn new(
        specs: Vec<ParamSpec>,
        fixture: &Fixture,
        folder: &Path,
        model: impl FnOnce(&ParamStore) -> M,
    ) -> Result<Self, ParityError> {
        let adapter = fixture.has_adapter.then(|| AdapterFolder::open(folder)).transpose()?;
        let tree = &fixture.config.tree;
        let mut specs = match &adapter {
            Some(adapter) => adapted(specs, adapter, tree)?,
            None => specs,
        };
        let maps = specs.iter_mut().filter(|spec| spec.is_frozen_map());
        maps.for_each(|spec| spec.held.rounding = fixture.rounding);
        let params = ParamStore::new(specs, fixture.kind, fixture.device);
        FrozenWeights::attach(&params, None);
        load_weights(&params, folder)?;
        if let Some(adapter) = &adapter {
            load_adapter(&params, adapter, tree, |_| true)?;
        }
        let (grads, adamw) = (params.new_grad(), AdamW::new(&params, fixture.adamw)?);
        Ok(ModelState { model: model(&params), params: Rc::new(params), grads, adamw })
    }
}
