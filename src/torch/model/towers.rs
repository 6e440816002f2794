//! The towers of a model: encoders that one pool may hold together, each with the tokens that its features replace.

use std::sync::Arc;

use loongforge_core::message::{Grid, Tower, TowerPart, TowerSet};
use tch::Tensor;

use super::encoder::EncoderFamily;
use super::parallel_errors::TensorParallelError;
use crate::params::{ParallelRank, ParamSpec};
use crate::tape::Slot;

/// One tower of a model.
#[derive(Clone, Debug)]
pub struct ModelTower {
    pub tower: Tower,
    pub family: Arc<dyn EncoderFamily>,
    /// The tokens that its features replace.
    pub placeholders: Vec<i64>,
}

impl ModelTower {
    /// Returns the part that a parameter of the tower is of, by its name in the checkpoint.
    pub fn part_of(&self, name: &str) -> TowerPart {
        if self.family.is_projector(name) { TowerPart::Projector } else { TowerPart::Encoder }
    }
}

/// The towers of a model, at most one of a kind, in the order of [`Tower::ALL`]; none of a language model.
#[derive(Clone, Debug, Default)]
pub struct Towers(Vec<ModelTower>);

/// Says what a foundation takes from a tower: tensors `[N, width]` whose rows replace the placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureInput {
    pub tower: Tower,
    /// One, and one for each DeepStack level.
    pub num_tensors: usize,
    pub width: i64,
    pub placeholders: Vec<i64>,
}

/// Pairs the slots of features on a tape with what towers have made of them, both by input and level. Values are `[N, D]`.
pub fn with_values(slots: &[Vec<Slot>], values: &[Vec<Tensor>]) -> Vec<(Slot, Tensor)> {
    let pairs = slots.iter().zip(values).flat_map(|(slots, values)| slots.iter().zip(values));
    pairs.map(|(slot, value)| (*slot, value.shallow_clone())).collect()
}

impl FeatureInput {
    /// Returns the tokens that its features replace.
    pub fn rows(&self, input_ids: &[i64]) -> Vec<i64> {
        (0..).zip(input_ids).filter(|(_, id)| self.placeholders.contains(id)).map(|(row, _)| row).collect()
    }
}

impl Towers {
    /// Panics for two towers of a kind.
    pub fn new(mut towers: Vec<ModelTower>) -> Towers {
        towers.sort_by_key(|it| it.tower);
        assert!(towers.windows(2).all(|two| two[0].tower != two[1].tower), "one tower of a kind");
        Towers(towers)
    }

    /// Returns whether the model has no tower.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the towers in the order of their kinds.
    pub fn iter(&self) -> impl Iterator<Item = &ModelTower> {
        self.0.iter()
    }

    /// Returns the kinds of its towers.
    pub fn set(&self) -> TowerSet {
        self.0.iter().map(|it| it.tower).collect()
    }

    /// Returns the towers of these kinds alone.
    pub fn only(&self, set: TowerSet) -> Towers {
        Towers(self.0.iter().filter(|it| set.contains(it.tower)).cloned().collect())
    }

    /// Returns the tower of this kind, if the model has one.
    pub fn get(&self, tower: Tower) -> Option<&Arc<dyn EncoderFamily>> {
        self.0.iter().find(|it| it.tower == tower).map(|it| &it.family)
    }

    /// Puts another family in the place of a tower's, or a new tower without placeholders.
    pub fn replace(&mut self, tower: Tower, family: Arc<dyn EncoderFamily>) {
        match self.0.iter_mut().find(|it| it.tower == tower) {
            Some(it) => it.family = family,
            None => {
                let added = ModelTower { tower, family, placeholders: Vec::new() };
                *self = Towers::new([std::mem::take(&mut self.0), vec![added]].concat());
            }
        }
    }

    /// Returns all parameters of all towers.
    pub fn specs(&self) -> Vec<ParamSpec> {
        self.0.iter().flat_map(|it| it.family.specs()).collect()
    }

    /// Returns the tower that a parameter is of, by its name in the checkpoint, and the part of the tower. `None`: no tower has it.
    pub fn part_of(&self, name: &str) -> Option<(Tower, TowerPart)> {
        let has = |it: &&ModelTower| it.family.owns(name);
        // Families of callers may not tell their names from others': the only tower has what is left.
        let only = || self.0.first().filter(|_| self.0.len() == 1);
        let found = self.0.iter().find(has).or_else(only)?;
        Some((found.tower, found.part_of(name)))
    }

    /// Returns the number of rows of features that an item of this size becomes; 0 where there is no such tower.
    pub fn num_features(&self, tower: Tower, grid: Grid) -> usize {
        self.get(tower).map_or(0, |family| family.num_features(grid))
    }

    /// Returns the part of each tower that the rank at `parallel` computes.
    ///
    /// # Errors
    /// One cannot be split so.
    pub fn divided(&self, parallel: &ParallelRank) -> Result<Towers, TensorParallelError> {
        let divided = |it: &ModelTower| Ok(ModelTower { family: it.family.divided(parallel)?, ..it.clone() });
        Ok(Towers(self.0.iter().map(divided).collect::<Result<_, _>>()?))
    }

    /// Returns the features that a foundation of this width takes from the towers.
    pub fn inputs(&self, width: i64) -> Vec<FeatureInput> {
        let input = |it: &ModelTower| FeatureInput {
            tower: it.tower,
            num_tensors: it.family.num_outputs(),
            width,
            placeholders: it.placeholders.clone(),
        };
        self.0.iter().map(input).collect()
    }
}
