//! Rules over `data.pack.mode: offline`.

use super::error::code;
use super::validate::Rules;
use super::{Format, LossWeighting, RunConfig};

impl Rules<'_> {
    /// Checks the keys that apply only to packs made before the run, and those that exclude such packs.
    pub(super) fn pack(&mut self, config: &RunConfig) {
        let (mode, is_offline) = ("data.pack.mode", config.packs_first());
        self.broken(
            config.data.pack.samples.is_some() && !is_offline,
            code::COMBINATION,
            &["data.pack.samples"],
            || {
                let message = "`data.pack.samples` requires `data.pack.mode: offline`".to_owned();
                (message, "set the mode, or drop the key: the other modes pack samples as the steps read them")
            },
        );
        let keys = [mode, "train.preference"];
        self.broken(is_offline && config.train.preference.is_some(), code::COMBINATION, &keys, || {
            let message = "`data.pack.mode: offline` is not supported with `train.preference`".to_owned();
            (message, "pairs and labeled answers are packed during the run: use `step` or `stream`")
        });
        let weighs = config.train.loss_weighting != LossWeighting::default();
        self.broken(is_offline && weighs, code::COMBINATION, &["train.loss_weighting", mode], || {
            let message = "`train.loss_weighting` is not supported with `data.pack.mode: offline`".to_owned();
            (message, "the samples of packs that are made in advance cannot be told apart: use `step` or `stream`")
        });
        for (i, file) in config.data.train.iter().enumerate() {
            let key = format!("data.train.{i}.format");
            let is_packed = is_offline && file.format == Format::Packed;
            self.broken(is_packed, code::COMBINATION, &[&key, mode], || {
                let message = format!("`{key}: packed` contradicts `{mode}: offline`, which packs samples");
                (message, "use `step`: this data is already packed")
            });
        }
    }
}
