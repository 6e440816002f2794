//! Makes the samples of a policy.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use super::observation::Observation;
use crate::config::Phase;
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::maker::SampleMaker;
use crate::data::processor::{ProcessorFolders, ProcessorOptions};
use crate::data::sample::Sample;
use crate::data::source::{Content, Source};
use crate::message::SampleId;

/// Makes samples for one policy, and actions of what it predicts.
pub struct PolicyMaker {}

impl PolicyMaker {
    /// From the `config.json` of a policy and its tokenizer. Statistics are those of the sets that `options.policy` names; where
    /// it names none, those of the processor files in the model's folder.
    ///
    /// # Errors
    /// A file is missing or wrong, the config has a key that is not implemented, the data lacks a camera, or statistics are
    /// missing.
    pub fn open(
        folders: ProcessorFolders<'_>,
        config: &Json,
        options: &ProcessorOptions,
        decoder: Arc<dyn MediaDecoder>,
    ) -> Result<Self, DataError> {
        let _ = (config, options, decoder);
        Err(DataError::file(folders.model, "robot policies are not made samples of yet"))
    }

    /// A sample that asks for actions: as [`SampleMaker::make`] makes it, with actions and weights of 0.
    ///
    /// # Errors
    /// A picture of no camera of the policy, none at all, or a state of another length.
    pub fn observe(&self, observation: &Observation) -> Result<Sample, DataError> {
        let _ = observation;
        Err(DataError::Line("not yet".to_owned()))
    }

    /// Actions as the robot takes them, `[H, action_dim]`, of what the policy predicts, `[H, max_action_dim]`, in `state`.
    ///
    /// # Errors
    /// A length does not match.
    pub fn actions(&self, normalized: &[f32], state: &[f32]) -> Result<Vec<f32>, DataError> {
        let _ = (normalized, state);
        Err(DataError::Line("not yet".to_owned()))
    }

    /// Steps of a chunk of actions (H, `chunk_size`).
    pub fn horizon(&self) -> usize {
        0
    }

    /// Numbers of an action, without padding.
    pub fn action_dim(&self) -> usize {
        0
    }

    /// Numbers of a state, without padding.
    pub fn state_dim(&self) -> usize {
        0
    }

    /// The policy's names of its cameras, in order.
    pub fn cameras(&self) -> &[String] {
        &[]
    }

    /// Names and contents of lerobot's processor files, with the statistics: they belong into every checkpoint.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }
}

impl SampleMaker for PolicyMaker {
    fn make(&self, id: SampleId, record: &Content, base: &Path) -> Result<Sample, DataError> {
        let _ = (id, record, base);
        Err(DataError::Line("not yet".to_owned()))
    }

    fn prompt(&self, id: SampleId, record: Content, base: &Path) -> Result<Sample, String> {
        self.make(id, &record, base).map_err(|error| error.to_string())
    }

    fn check(&self, source: &Source) -> Result<(), DataError> {
        Err(DataError::file(source.name(), "not yet"))
    }

    fn phase(&self) -> Phase {
        Phase::default()
    }

    fn num_tokens(&self, text: &str) -> usize {
        text.len()
    }

    fn decodes(&self) -> bool {
        true
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn as_policy(&self) -> Option<&PolicyMaker> {
        Some(self)
    }
}
