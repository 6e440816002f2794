//! Data that is there in a form which is not read: what it is, and the command that makes one of it which is.

use std::path::Path;

use crate::config::hub_data_set;

/// Why a file cannot be read, by its name; `None` for those that are read, or that nothing is known of.
pub fn file(path: &Path) -> Option<String> {
    let text = path.to_string_lossy();
    if path.extension().is_some_and(|extension| extension == "arrow") && path.is_file() {
        return Some(format!(
            "is an Arrow file, which is not read: write it once as Parquet: python -c \"import datasets; \
             datasets.Dataset.from_file('{text}').to_parquet('{}')\"",
            path.with_extension("parquet").display()
        ));
    }
    hub_data_set(path).map(|help| format!("is not there; {help}"))
}

/// Why a folder cannot be read: `datasets.save_to_disk` made it.
pub fn folder(path: &Path) -> Option<String> {
    let has = |name: &str| path.join(name).is_file();
    if has("dataset_dict.json") {
        return Some("is a folder of datasets.save_to_disk with several splits: name one of its folders".to_owned());
    }
    (has("dataset_info.json") && has("state.json")).then(|| {
        format!(
            "is a folder of datasets.save_to_disk (Arrow files), which is not read: write it once as Parquet: python -c \
             \"import datasets; datasets.load_from_disk('{0}').to_parquet('{0}.parquet')\"",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_named_with_a_way_to_make_it_so() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("a.arrow"), "ARROW1").unwrap();
        assert!(file(&at("a.arrow")).unwrap().contains("a.parquet')"));
        assert!(
            file(Path::new("tatsu-lab/alpaca")).unwrap().contains("hf download --repo-type dataset tatsu-lab/alpaca ")
        );
        assert!(file(Path::new("hf://datasets/a/b/train.jsonl")).unwrap().contains("--repo-type dataset a/b "));
        assert!(file(&at("gone.jsonl")).is_none() && file(Path::new("data/train.jsonl")).is_none());
        assert!(folder(dir.path()).is_none());
        std::fs::write(at("dataset_info.json"), "{}").unwrap();
        std::fs::write(at("state.json"), "{}").unwrap();
        assert!(folder(dir.path()).unwrap().contains("load_from_disk"));
        std::fs::write(at("dataset_dict.json"), "{}").unwrap();
        assert!(folder(dir.path()).unwrap().contains("several splits"));
    }
}
