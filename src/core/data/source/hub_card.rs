//! The head of a data set's `README.md` on the hub: which files make up its configurations and splits.

use serde_json::Value as Json;

/// A configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Configuration {
    pub name: String,
    pub is_default: bool,
    /// The folder that patterns are relative to; empty: the repository.
    pub folder: String,
    /// Patterns of each split, in order; empty: names of files tell.
    pub splits: Vec<(String, Vec<String>)>,
}

/// Returns the configurations that a card lists; none where it has no head or lists none.
///
/// # Errors
/// Its head is no YAML, or names files in an unknown form.
pub fn configurations(card: &str) -> Result<Vec<Configuration>, String> {
    let Some((head, _)) = card.strip_prefix("---").and_then(|rest| rest.split_once("\n---")) else {
        return Ok(Vec::new());
    };
    let head: Json =
        serde_saphyr::from_str(head).map_err(|error| format!("the YAML header of README.md is invalid: {error}"))?;
    head["configs"].as_array().into_iter().flatten().map(configuration).collect()
}

fn configuration(json: &Json) -> Result<Configuration, String> {
    let name = json["config_name"].as_str().unwrap_or("default").to_owned();
    let files = &json["data_files"];
    let unknown = || format!("README.md: data_files of configuration {name} have an unsupported form: {files:.80}");
    let patterns = |files: &Json| -> Option<Vec<String>> {
        match files {
            Json::String(one) => Some(vec![one.clone()]),
            Json::Array(several) => several.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
            _ => None,
        }
    };
    let splits = match files {
        Json::Null => Vec::new(),
        Json::Array(listed) if listed.iter().any(Json::is_object) => {
            let split =
                |one: &Json| Some((one["split"].as_str().unwrap_or("train").to_owned(), patterns(&one["path"])?));
            listed.iter().map(split).collect::<Option<Vec<_>>>().ok_or_else(unknown)?
        }
        Json::Object(named) => {
            let split = |(name, files): (&String, &Json)| Some((name.clone(), patterns(files)?));
            named.iter().map(split).collect::<Option<Vec<_>>>().ok_or_else(unknown)?
        }
        other => vec![("train".to_owned(), patterns(other).ok_or_else(unknown)?)],
    };
    let folder = json["data_dir"].as_str().unwrap_or_default().trim_matches('/').to_owned();
    Ok(Configuration { name, is_default: json["default"] == true, folder, splits })
}
