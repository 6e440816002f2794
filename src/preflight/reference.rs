//! Notes on the reference model that preferences are compared with.

use loongforge_core::config::RunConfig;
use loongforge_core::text::shell_word;

/// Returns a sentence where training continues from adapters that the reference model does not have: the first step's losses
/// are not those of equal models then.
pub(super) fn without_adapters(config: &RunConfig) -> Option<String> {
    let model = &config.model;
    let compares = config.train.preference.as_ref().is_some_and(|preference| preference.loss.needs_reference());
    if !compares || model.reference.load.is_some() {
        return None;
    }
    let base = model.reference_source()?.as_str();
    let parts = model.parts();
    let (key, adapter) = parts.iter().find_map(|(key, part)| Some((key, part.lora.as_ref()?.adapter.as_ref()?)))?;
    Some(format!(
        "the reference model is {base} without the adapters of {key}.lora.adapter; to compare with the model that they make, merge \
         them (`loongforge checkpoint export-hf {} OUT`), and set model.reference.load to OUT",
        shell_word(adapter.as_path())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::{Lora, Preference, PreferenceLoss, Source, load_text};

    const YAML: &str = include_str!("../../configs/sft_text.yaml");

    #[test]
    fn adapters_that_the_reference_lacks_are_told() {
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        let source = |text: &str| Some(Source::new(text));
        config.model.load = source("base");
        config.model.foundation.lora = Some(Lora { adapter: source("runs/my sft"), ..Lora::default() });
        assert_eq!(without_adapters(&config), None, "nothing is compared");
        config.train.preference = Some(Preference::default());
        let text = without_adapters(&config).unwrap();
        assert!(text.contains("is base without the adapters of model.foundation.lora.adapter;"), "{text}");
        assert!(text.contains("export-hf 'runs/my sft' OUT"), "{text}");
        config.model.reference.load = source("merged");
        assert_eq!(without_adapters(&config), None);
        config.model.reference.load = None;
        config.train.preference = Some(Preference { loss: PreferenceLoss::Orpo, ..Preference::default() });
        assert_eq!(without_adapters(&config), None);
        config.train.preference = Some(Preference::default());
        config.model.foundation.lora = Some(Lora::default());
        assert_eq!(without_adapters(&config), None, "adapters that begin anew change nothing");
    }
}
