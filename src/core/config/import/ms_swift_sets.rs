//! Data sets as ms-swift names them.

use serde_json::{Value, json};

use super::hub;
use super::sheet::{REPEATED, take_random};

/// Returns a data set: `HF::name:subset#number`, of which all but the name may be absent.
pub(super) fn set(name: &str, notes: &mut Vec<&'static str>) -> Value {
    let (name, count) = name.split_once('#').map_or((name, None), |(name, count)| (name, Some(count)));
    let mut set = json!({ "path": path(name, notes) });
    match count.map(str::parse::<u64>) {
        Some(Ok(count @ 1..)) => {
            take_random(&mut set, count);
            notes.push(REPEATED);
        }
        Some(_) => notes.push("what is behind the `#` of a data set is no number of samples: set max_samples"),
        None => {}
    }
    set
}

/// Returns the path of a held-out data set, of which all samples are there.
pub(super) fn held_out(name: &str, notes: &mut Vec<&'static str>) -> Value {
    let mut set = set(name, notes);
    if set["max_samples"].is_u64() {
        notes.push(
            "the number behind val_dataset has no counterpart: eval.max_samples limits evaluations during the run",
        );
    }
    set["path"].take()
}

/// Returns the path of a data set without a number.
fn path(name: &str, notes: &mut Vec<&'static str>) -> String {
    let (site, name) = name.split_once("::").map_or((None, name), |(site, name)| (Some(site), name));
    let (base, subset) = name.split_once(':').map_or((name, None), |(base, subset)| (base, Some(subset)));
    if !hub::is_of_hub(base) {
        return name.to_owned();
    }
    if site != Some("HF") {
        notes.push(
            "ms-swift finds data sets and models on ModelScope unless use_hf is set; here they are those of these \
             names on the Hugging Face hub, where some are missing",
        );
    }
    if subset.is_some_and(|subset| subset.contains('/')) {
        notes.push("of several subsets of a data set only the first is named in data.train");
    }
    let subset = subset.and_then(|subset| subset.split('/').next()).filter(|subset| *subset != "default");
    hub::path(base, &[subset])
}
