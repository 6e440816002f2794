//! The seam between LeRobot sets and robot policies: frames of episodes become samples.

use std::path::Path;

use super::error::DataError;
use super::lerobot::Step;
use super::maker::SampleMaker;
use super::policy::PolicyMaker;
use super::sample::Sample;
use super::source::{Content, Source};
use crate::config::{Format, Phase};
use crate::message::SampleId;

fn step_of(record: &Content) -> Result<&Step, DataError> {
    match record {
        Content::Step(step) => Ok(step),
        _ => Err(DataError::Line("is not a frame of an episode, which robot policies learn from".to_owned())),
    }
}

impl SampleMaker for PolicyMaker {
    fn make(&self, id: SampleId, record: &Content, _base: &Path) -> Result<Sample, DataError> {
        self.learn(id, step_of(record)?)
    }

    fn prompt(&self, id: SampleId, record: Content, _base: &Path) -> Result<Sample, String> {
        step_of(&record).and_then(|step| self.ask(id, step)).map_err(|error| error.to_string())
    }

    fn format(&self, format: Format) -> Format {
        if format == Format::Auto { Format::Lerobot } else { format }
    }

    fn check(&self, source: &Source) -> Result<(), DataError> {
        let Some(set) = source.set() else {
            let reason = format!("has the format {}, but robot policies learn from LeRobot sets", source.format());
            return Err(DataError::file(source.name(), reason));
        };
        self.expect(set).map_err(|reason| DataError::file(source.name(), reason))
    }

    fn dropped_frames(&self) -> usize {
        PolicyMaker::dropped_frames(self)
    }

    fn phase(&self) -> Phase {
        Phase::default()
    }

    fn num_tokens(&self, text: &str) -> usize {
        PolicyMaker::num_tokens(self, text)
    }

    fn decodes(&self) -> bool {
        true
    }

    fn notes(&self) -> Vec<String> {
        PolicyMaker::notes(self)
    }

    fn of_data(&self) -> Vec<String> {
        PolicyMaker::of_data(self)
    }

    fn as_policy(&self) -> Option<&PolicyMaker> {
        Some(self)
    }
}
