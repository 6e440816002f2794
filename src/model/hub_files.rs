//! Describes which files of a repository of the hub are fetched, and which of them a snapshot in the cache lacks.

use super::stored::Extent;
use loongforge_core::checkpoint::SPEAKERS;
use loongforge_core::data::{MODEL_INDEX, NAMED_TEMPLATES, is_plain_hub_name};
use loongforge_core::files;
use loongforge_torch::train::DIFFUSERS_LORA_FILE;
use loongforge_torch::train::hf::{INDEX_FILE, SINGLE_FILE};
use serde_json::Value;
use std::path::Path;

/// Returns a file that a complete snapshot would have besides.
pub(super) fn missing(folder: &Path, extent: Extent) -> Option<String> {
    let lacks = |name: &str| !folder.join(name).is_file();
    // Which of its networks are needed shows when they are read.
    if !lacks(MODEL_INDEX) {
        let file = "transformer/config.json";
        return lacks(file).then(|| file.to_owned());
    }
    if lacks("config.json") && !lacks(DIFFUSERS_LORA_FILE) {
        return None;
    }
    if lacks("config.json") && !lacks("adapter_config.json") {
        let file = "adapter_model.safetensors";
        return (extent == Extent::Whole && lacks(file)).then(|| file.to_owned());
    }
    if lacks("config.json") {
        return Some("config.json".to_owned());
    }
    if extent == Extent::WithoutWeights {
        return None;
    }
    // It is read though an index may be there as well.
    if !lacks(SINGLE_FILE) {
        return None;
    }
    let Some(shards) = shards_of(folder) else { return Some(SINGLE_FILE.to_owned()) };
    shards.into_iter().find(|file| lacks(file))
}

/// Returns the names of the shards in the index of a snapshot, each once; `None`: it has no index.
pub(super) fn shards_of(folder: &Path) -> Option<Vec<String>> {
    let text = files::read(&folder.join(INDEX_FILE), files::MAX_TEXT_BYTES).ok()?;
    let index: Value = serde_json::from_slice(&text).unwrap_or(Value::Null);
    let shards = index["weight_map"].as_object().into_iter().flatten().filter_map(|(_, file)| file.as_str());
    let mut shards: Vec<String> = shards.map(str::to_owned).collect();
    shards.sort_unstable();
    shards.dedup();
    Some(shards)
}

/// Returns whether a file of a repository's listing is fetched: one of the top folder of a kind that is read, or a named chat template.
pub(super) fn is_wanted(name: &str) -> bool {
    if let Some((NAMED_TEMPLATES, template)) = name.split_once('/') {
        return is_plain_hub_name(template) && template.ends_with(".jinja");
    }
    let endings = [".safetensors", ".json", ".txt", ".jinja", ".model", ".tiktoken"];
    is_plain_hub_name(name) && (name == SPEAKERS || endings.iter().any(|ending| name.ends_with(ending)))
}

/// Returns whether a file of a repository with these `names` is one of weights that nothing reads, as the same weights are there in
/// another form: shards beside the one file; Mistral's own file, or a variant such as `model.fp16.safetensors`, beside either. `shards`
/// are those in the index, which are read where there is an index alone: some publishers call them `model.safetensors-00001-of-…`.
pub(super) fn is_unread(name: &str, names: &[String], shards: &[String]) -> bool {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let is_tensors = name.ends_with(".safetensors");
    let is_of_shards = is_tensors && name.starts_with("model-") && name.contains("-of-") || name == INDEX_FILE;
    let is_other =
        is_tensors && name != SINGLE_FILE && ["consolidated", "model."].iter().any(|it| name.starts_with(it));
    match has(SINGLE_FILE) {
        true => is_of_shards || is_other,
        false => has(INDEX_FILE) && is_other && shards.iter().all(|shard| shard != name),
    }
}

/// Returns whether a file in a folder of a repository of Diffusers is fetched: one copy of the weights, and no variant.
pub(super) fn is_wanted_part(name: &str) -> bool {
    let Some((folder, file)) = name.split_once('/') else { return false };
    let is_variant = file.ends_with(".safetensors") && file.split('.').count() > 2;
    is_plain_hub_name(folder) && is_wanted(file) && !is_variant
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_harmless_files_are_wanted() {
        for name in [
            "config.json",
            "model-00001-of-00002.safetensors",
            "tokenizer.model",
            "chat_template.jinja",
            "additional_chat_templates/tool_use.jinja",
            "qwen.tiktoken",
            "spk_dict.pt",
        ] {
            assert!(is_wanted(name), "{name}");
        }
        for name in [
            "pytorch_model.bin",
            "modeling_x.py",
            "../x.json",
            "a/b.json",
            "additional_chat_templates/../x.jinja",
            "/etc/x.txt",
            ".x.json",
            "x.json\n",
            "",
        ] {
            assert!(!is_wanted(name), "{name}");
        }
    }

    #[test]
    fn weights_that_are_there_in_another_form_are_not_fetched() {
        let [shard, mistrals] = ["model-00001-of-00002.safetensors", "consolidated.safetensors"];
        let variant = "model.fp16.safetensors";
        let all = [SINGLE_FILE, INDEX_FILE, shard, mistrals, variant, "adapter_model.safetensors", "config.json"];
        let unread = |without: &[&str]| {
            let names = all.iter().filter(|name| !without.contains(name)).map(|name| (*name).to_owned());
            let names: Vec<String> = names.collect();
            names.iter().filter(|name| is_unread(name, &names, &[])).cloned().collect::<Vec<_>>()
        };
        assert_eq!(unread(&[]), [INDEX_FILE, shard, mistrals, variant]);
        assert_eq!(unread(&[SINGLE_FILE]), [mistrals, variant]);
        assert!(unread(&[SINGLE_FILE, INDEX_FILE]).is_empty());
    }

    /// Qwen3.5's are called as the first one here.
    #[test]
    fn shards_of_an_index_are_fetched_whatever_they_are_called() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(shards_of(folder.path()), None);
        let shards = ["model.safetensors-00001-of-00002.safetensors", "model.visual.safetensors"];
        let index = serde_json::json!({"weight_map": {"a": shards[1], "b": shards[0], "c": shards[0]}});
        fs::write(folder.path().join(INDEX_FILE), index.to_string()).unwrap();
        fs::write(folder.path().join("config.json"), "{}").unwrap();
        assert_eq!(missing(folder.path(), Extent::Whole).as_deref(), Some(shards[0]));
        let listed = shards_of(folder.path()).unwrap();
        assert_eq!(listed, shards);
        let names = [INDEX_FILE, shards[0], shards[1], "model.fp16.safetensors"].map(str::to_owned);
        let is_unread = |name: &&String| is_unread(name, &names, &listed);
        assert_eq!(names.iter().filter(is_unread).collect::<Vec<_>>(), ["model.fp16.safetensors"]);
    }

    #[test]
    fn folders_of_diffusers_are_wanted_without_variants() {
        for name in [
            "vae/config.json",
            "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
            "tokenizer/spiece.model",
        ] {
            assert!(is_wanted_part(name), "{name}");
        }
        for name in
            ["vae/model.fp16.safetensors", "vae/../x.json", "a/b/c.json", "vae/model.bin", ".git/x.json", "x.json"]
        {
            assert!(!is_wanted_part(name), "{name}");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(MODEL_INDEX), "{}").unwrap();
        assert_eq!(missing(folder.path(), Extent::Whole).as_deref(), Some("transformer/config.json"));
    }

    #[test]
    fn a_snapshot_of_adapters_has_no_config() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(missing(folder.path(), Extent::Whole).as_deref(), Some("config.json"));
        fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
        assert_eq!(missing(folder.path(), Extent::Whole).as_deref(), Some("adapter_model.safetensors"));
        fs::write(folder.path().join("adapter_model.safetensors"), "").unwrap();
        assert_eq!(missing(folder.path(), Extent::Whole), None);
    }
}
