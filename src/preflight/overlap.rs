//! Warns of held-out samples that are in the files that are trained on.

use loongforge_core::config::{Eval, RunConfig, TrainFile};
use std::path::PathBuf;

/// Returns a warning for each set of `eval` that has a file of `data.train`: its loss is that of samples which are trained on. Of
/// LeRobot data sets each may have episodes of its own, which are compared where they are opened.
pub(super) fn trained_on(config: &RunConfig) -> Vec<String> {
    let Some(eval) = &config.eval else { return Vec::new() };
    // Two names may lead to one file.
    let place = |path: &String| PathBuf::from(path).canonicalize().unwrap_or_else(|_| PathBuf::from(path));
    let whole = config.data.train.iter().filter(|file| file.episodes.is_none());
    let trained: Vec<PathBuf> = whole.flat_map(|file| &file.path.0).map(place).collect();
    let of_set = |(name, file): (String, TrainFile)| {
        let shared = file.path.0.iter().find(|path| file.episodes.is_none() && trained.contains(&place(path)))?;
        let key = if name == Eval::HELD_OUT { "eval.path".to_owned() } else { format!("eval.sets.{name}") };
        Some(format!(
            "warning: {key}: {shared} is also in data.train: the loss of this set is that of samples which are trained on; \
             data.val_size holds some out"
        ))
    };
    eval.files().filter_map(of_set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::load_text;

    #[test]
    fn a_held_out_file_that_is_trained_on_is_told() {
        let config = include_str!("../../configs/sft_text.yaml");
        let sets = "\neval: { path: configs/samples/../samples/chat.jsonl, sets: { other: README.md } }\n";
        let mut config = load_text(&format!("{config}{sets}")).unwrap_or_else(|report| panic!("{report}")).config;
        let lines = trained_on(&config);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("eval.path: configs/samples/../samples/chat.jsonl is also in"), "{lines:?}");
        config.eval = None;
        assert!(trained_on(&config).is_empty());
    }
}
