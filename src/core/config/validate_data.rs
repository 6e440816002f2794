//! Rules over the data sets of `data.train`.

use super::error::code;
use super::validate::Rules;
use super::{RunConfig, Select};

impl Rules<'_> {
    /// Checks the keys of each data set that apply only together.
    pub(super) fn data_sets(&mut self, config: &RunConfig) {
        for (i, file) in config.data.train.iter().enumerate() {
            let [select, most] = ["select", "max_samples"].map(|key| format!("data.train.{i}.{key}"));
            let is_idle = file.select != Select::First && file.max_samples.is_none();
            self.broken(is_idle, code::COMBINATION, &[&select, &most], || {
                let message = format!("`{select}` requires `{most}`, the number of samples that it selects");
                (message, "set that number, or drop the key: all samples of the set are used")
            });
        }
    }
}
