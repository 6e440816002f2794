//! A range of a model's layers, as a stage of a pipeline has them.

use std::ops::Range;

/// Consecutive layers of a decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    pub layers: Range<usize>,
    pub is_first: bool,
    pub is_last: bool,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    #[error("{layers} layers for {stages} pipeline stages: every stage needs at least one")]
    TooMany { stages: usize, layers: usize },
    #[error(
        "the log-probabilities of a reference model do not reach a later stage: set pipeline_parallel to 1, or choose a \
         train.preference.loss without a reference (orpo, simpo)"
    )]
    Reference,
    #[error(
        "layer {layer} uses the keys that layer {from} chose, which is in another stage: choose other pipeline stages"
    )]
    ChosenElsewhere { layer: usize, from: usize },
}

impl Stage {
    /// Returns all of a decoder.
    pub fn whole(num_layers: usize) -> Stage {
        Stage { layers: 0..num_layers, is_first: true, is_last: true }
    }

    /// Returns whether the stage has all layers and both ends of the model.
    pub fn is_whole(&self) -> bool {
        self.is_first && self.is_last
    }

    /// Returns the stages of these ranges of layers, in order.
    pub fn all(layers: Vec<Range<usize>>) -> Vec<Stage> {
        let last = layers.len() - 1;
        let stage = |(number, layers)| Stage { layers, is_first: number == 0, is_last: number == last };
        layers.into_iter().enumerate().map(stage).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Stage;

    #[test]
    fn stages_of_ranges_know_their_ends() {
        let stages = Stage::all(vec![0..2, 2..3, 3..5]);
        assert_eq!(stages[0], Stage { layers: 0..2, is_first: true, is_last: false });
        assert!(!stages[1].is_first && !stages[1].is_last && stages[2].is_last);
        assert!(Stage::whole(5).is_whole());
        assert_eq!(Stage::all(std::iter::once(0..5).collect()), [Stage::whole(5)]);
    }
}
