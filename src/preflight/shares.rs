//! Notes on data sets of unequal size whose samples are read unequally often.

use loongforge_core::config::{Mix, RunConfig};
use loongforge_core::data::tools::Survey;

/// A data set may be so many times as large as another one before it matters.
const ALIKE: f64 = 1.05;

/// Returns a sentence where data sets have equal shares, as they have unless the config says otherwise, though their sizes differ: an
/// epoch has samples of the small ones several times, and leaves out some of the large ones. Other trainers read each once.
pub(super) fn uneven(config: &RunConfig, found: &[Survey]) -> Option<String> {
    let sets = &config.data.train;
    let are_equal = sets.iter().all(|set| set.weight.total_cmp(&sets[0].weight).is_eq());
    if config.data.mix != Mix::Sets || !are_equal || found.len() != sets.len() {
        return None;
    }
    let (small, large) = (found.iter().min_by_key(|set| set.len)?, found.iter().max_by_key(|set| set.len)?);
    let times = large.len as f64 / small.len.max(1) as f64;
    (times > ALIKE).then(|| {
        format!(
            "data.train: a sample of {} is read {times:.1} times as often as one of {}, since data sets have equal shares whatever \
             their size; data.mix=samples reads every sample once per epoch",
            small.name.display(),
            large.name.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::{TrainFile, load_text};

    #[test]
    fn shares_that_repeat_samples_are_told_unless_they_were_set() {
        let yaml = include_str!("../../configs/sft_text.yaml");
        let mut config = load_text(yaml).unwrap_or_else(|report| panic!("{report}")).config;
        let set = |name: &str, len: u64| Survey { name: name.into(), len, ..Survey::default() };
        assert_eq!(uneven(&config, &[set("a", 400)]), None);
        config.data.train = vec![TrainFile::new("a"), TrainFile::new("b")];
        let text = uneven(&config, &[set("a", 400), set("b", 200)]).unwrap();
        assert!(text.contains("a sample of b is read 2.0 times as often as one of a,"), "{text}");
        assert_eq!(uneven(&config, &[set("a", 400), set("b", 390)]), None);
        config.data.train[0].weight = 2.0;
        assert_eq!(uneven(&config, &[set("a", 400), set("b", 200)]), None, "the user has chosen the shares");
        config.data.train[0].weight = 1.0;
        config.data.mix = Mix::Samples;
        assert_eq!(uneven(&config, &[set("a", 400), set("b", 200)]), None);
    }
}
