//! Keys of configs beside transformers' classes: one that is left out has the class's default, and none that the reference heeds
//! is ignored. `tests/oracle/class_defaults.py` writes the table.

use loongforge_torch::model::ModelConfig;
use serde_json::Value;

/// Keys of the positions that are made with the inputs, of which the model's own config has nothing.
const OF_INPUTS: [&str; 1] = ["position_id_per_seconds"];
/// Keys whose default is not the class's. Where a whole model's config has no `tie_word_embeddings`, the class ties unless the file has
/// a head; here the language model's own key counts. ERNIE's published towers have `mlp_ratio` in place of `intermediate_size`.
const OTHERWISE: [(&str, &str); 6] = [
    ("ernie4.5_vl", "intermediate_size"),
    ("ernie4.5_vl", "tie_word_embeddings"),
    ("internvl2.5", "tie_word_embeddings"),
    ("internvl3.5", "tie_word_embeddings"),
    ("internvl3.5_moe", "tie_word_embeddings"),
    ("kimi_k2.5", "tie_word_embeddings"),
];

fn table() -> Value {
    serde_json::from_str(include_str!("class_defaults.json")).unwrap()
}

fn read(config: &Value) -> Result<String, String> {
    ModelConfig::from_hf(config).map(|model| format!("{model:?}")).map_err(|error| error.to_string())
}

/// Returns the config without `key` in a section ("": the whole), or with this value.
fn with(config: &Value, section: &str, key: &str, value: Option<&Value>) -> Value {
    let mut config = config.clone();
    let holder = if section.is_empty() { &mut config } else { &mut config[section] };
    let holder = holder.as_object_mut().unwrap();
    match value {
        Some(value) => drop(holder.insert(key.into(), value.clone())),
        None => drop(holder.remove(key)),
    }
    config
}

/// Returns all entries of a part of the table: family, its config, section, key and value.
fn entries<'a>(
    table: &'a Value,
    part: &'a str,
) -> impl Iterator<Item = (&'a str, &'a Value, &'a str, &'a str, &'a Value)> {
    table.as_object().unwrap().iter().flat_map(move |(family, made)| {
        made[part].as_object().unwrap().iter().flat_map(move |(section, keys)| {
            let keys = keys.as_object().unwrap().iter();
            keys.map(move |(key, value)| (family.as_str(), &made["config"], section.as_str(), key.as_str(), value))
        })
    })
}

/// The same model, or an error that names a missing key.
#[test]
fn absent_keys_have_the_defaults_of_the_classes() {
    let (table, mut wrong, mut compared) = (table(), Vec::new(), 0);
    for (family, config, section, key, default) in entries(&table, "defaults") {
        // A default that does not fit the tiny config is refused there.
        let Ok(given) = read(&with(config, section, key, Some(default))) else { continue };
        compared += 1;
        if OTHERWISE.contains(&(family, key)) {
            continue;
        }
        match read(&with(config, section, key, None)) {
            Ok(absent) if absent == given => {}
            Ok(_) => wrong.push(format!("{family}: {section}.{key} is not {default} where it is absent")),
            Err(error) if error.contains(" is missing") => {}
            Err(error) => wrong.push(format!("{family}: without {section}.{key} ({default}): {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 500, "{compared}");
}

/// Another model, or an error.
#[test]
fn no_key_that_the_reference_heeds_is_ignored() {
    let (table, mut ignored, mut compared) = (table(), Vec::new(), 0);
    for (family, config, section, key, value) in entries(&table, "heeded") {
        let plain = read(config).unwrap();
        compared += 1;
        if read(&with(config, section, key, Some(value))).is_ok_and(|other| other == plain) && !OF_INPUTS.contains(&key)
        {
            ignored.push(format!("{family}: {section}.{key}={value}"));
        }
    }
    assert!(ignored.is_empty(), "{}", ignored.join("\n"));
    assert!(compared > 500, "{compared}");
}

/// transformers cuts Qwen3-Omni's cache by `sliding_window`, and masks nothing.
#[test]
fn a_window_of_the_cache_alone_is_refused() {
    let config = &table()["qwen3_omni"]["config"];
    let error = read(&with(config, "text_config", "sliding_window", Some(&3.into()))).unwrap_err();
    assert!(error.contains("text_config.sliding_window is 3"), "{error}");
    assert!(read(&with(config, "text_config", "sliding_window", Some(&Value::Null))).is_ok());
}
