//! The models of the towers that an encoder has.

use crate::model::{EncoderModel, Towers};
use crate::params::ParamStore;
use crate::tape::Policy;
use loongforge_core::engine::EngineError;
use loongforge_core::message::Tower;
use std::collections::BTreeMap;

/// The models of an encoder's towers, on parameters of one store.
#[derive(Default)]
pub struct TowerModels(BTreeMap<Tower, Box<dyn EncoderModel>>);

impl TowerModels {
    /// Builds all towers on `params`, which has the parameters of each; `policy` says what a tower recomputes.
    pub fn new(towers: &Towers, params: &ParamStore, policy: impl Fn(Tower) -> Policy) -> Self {
        Self(towers.iter().map(|it| (it.tower, it.family.build(params, policy(it.tower)))).collect())
    }

    /// Returns one tower alone.
    pub fn only(tower: Tower, model: Box<dyn EncoderModel>) -> Self {
        Self(BTreeMap::from([(tower, model)]))
    }

    /// Returns the model of a tower.
    ///
    /// # Errors
    /// The encoder does not have the tower.
    pub(in crate::engine) fn of(&self, tower: Tower) -> Result<&dyn EncoderModel, EngineError> {
        let missing =
            || EngineError::from(format!("the encoder was given a unit for the {tower} tower, which it does not have"));
        self.0.get(&tower).map(|model| &**model).ok_or_else(missing)
    }
}
