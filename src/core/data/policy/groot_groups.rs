//! Groups of numbers in GR00T's processor files, where actions are relative to the state: each group is relative or absolute, and the
//! bounds of a relative one differ from step to step (`_build_n1_7_relative_action_processor_assets` of lerobot 0.6.1).

use std::ops::Range;

use serde_json::{Map, Value as Json, json};

use super::spec::{ACTION, STATE, SampleSpec};
use crate::data::lerobot::{FeatureStats, Stats};

/// Steps of a chunk, and numbers of a step, at most.
const MAX_STEPS: usize = 4096;
const MAX_WIDTH: usize = 1 << 16;
/// Groups, and numbers of a bound of whole chunks, at most.
const MAX_GROUPS: usize = 1024;
const MAX_NUMBERS: usize = 1 << 20;

/// Numbers of an action that follow one another.
#[derive(Debug, PartialEq)]
struct Group {
    key: String,
    at: Range<usize>,
    is_relative: bool,
}

/// Returns the groups that the data names; else each number that stays absolute is a group, and so are those between two of them.
fn groups(spec: &SampleSpec, mask: &[bool]) -> Vec<Group> {
    if !spec.groups.is_empty() {
        let group = |(key, at): &(String, Range<usize>)| Group {
            key: key.clone(),
            at: at.clone(),
            is_relative: mask.get(at.start) == Some(&true),
        };
        return spec.groups.iter().map(group).collect();
    }
    let (names, mut groups): (&[String], Vec<Group>) = (&spec.action_names, Vec::new());
    for (at, &is_relative) in mask.iter().enumerate() {
        if let Some(last) = groups.last_mut().filter(|last| is_relative && last.is_relative) {
            last.at.end = at + 1;
            continue;
        }
        let name = names.get(at).map_or("", String::as_str);
        let base = name.strip_suffix(".pos").unwrap_or(name).rsplit('.').next().unwrap_or_default().replace(' ', "_");
        let key = match (is_relative, base.as_str()) {
            (true, _) => "single_arm",
            (false, "") => "action",
            (false, base) => base,
        };
        let is_taken = groups.iter().any(|group| group.key == key);
        let key = if is_taken { format!("{key}_{}", groups.len()) } else { key.to_owned() };
        groups.push(Group { key, at: at..at + 1, is_relative });
    }
    groups
}

/// Bounds of states, `[state]`, and of actions, `[horizon, action]`: those of `relative`, for each step, where an action is so, and else
/// the quantiles 0.01 and 0.99 of `all`, or without such the least and greatest values.
///
/// # Errors
/// The reason: a statistic is missing or of another width.
pub fn bounds(all: &Stats, relative: [Vec<f32>; 2], mask: &[bool]) -> Result<Stats, String> {
    let has = |key: &str| ["q01", "q99"].iter().all(|name| all.get(key, name).is_some());
    let names = if has(STATE) && has(ACTION) { ["q01", "q99"] } else { ["min", "max"] };
    let mut stats = Stats::default();
    for (key, of_steps) in [(STATE, None), (ACTION, Some(relative))] {
        let mut found = FeatureStats::new();
        for (at, (name, own)) in ["min", "max"].into_iter().zip(names).enumerate() {
            let flat = all.get(key, own).ok_or_else(|| format!("statistics of {key} have no {own}"))?;
            let values = match &of_steps {
                None => flat.to_vec(),
                Some(_) if flat.len() != mask.len() => {
                    return Err(format!(
                        "statistics of {key}: its {own} has {} numbers, not {}",
                        flat.len(),
                        mask.len()
                    ));
                }
                Some(of_steps) => {
                    let value = |(place, &value): (usize, &f32)| {
                        let number = place % mask.len();
                        if mask[number] { f64::from(value) } else { flat[number] }
                    };
                    of_steps[at].iter().enumerate().map(value).collect()
                }
            };
            found.insert(name.to_owned(), values);
        }
        stats.0.insert(key.to_owned(), found);
    }
    Ok(stats)
}

/// Returns `raw_stats` and `modality_config` of lerobot's steps; null where actions are not relative. `stats` are as [`bounds`] makes
/// them.
pub fn write(spec: &SampleSpec, stats: &Stats, mask: &[bool]) -> [Json; 2] {
    if !spec.relative {
        return [Json::Null, Json::Null];
    }
    let groups = groups(spec, mask);
    // In float32, as they scale.
    let flat = |key: &str, name: &str| stats.get(key, name).unwrap_or_default();
    let row = |values: &[f64], at: &Range<usize>| -> Vec<f64> {
        values.get(at.clone()).unwrap_or_default().iter().map(|&value| f64::from(value as f32)).collect()
    };
    let [mut of_state, mut of_action, mut of_relative] = [Map::new(), Map::new(), Map::new()];
    for Group { key, at, is_relative } in &groups {
        let first = |holder: &str, name: &str| json!(row(flat(holder, name), at));
        let by_step = |name: &str| -> Vec<Vec<f64>> {
            flat(ACTION, name).chunks(spec.action_dim).map(|step| row(step, at)).collect()
        };
        of_state.insert(key.clone(), json!({ "min": first(STATE, "min"), "max": first(STATE, "max") }));
        of_action.insert(key.clone(), json!({ "min": first(ACTION, "min"), "max": first(ACTION, "max") }));
        if *is_relative {
            of_relative.insert(key.clone(), json!({ "min": by_step("min"), "max": by_step("max") }));
        }
    }
    let keys: Vec<&str> = groups.iter().map(|group| group.key.as_str()).collect();
    let config = |group: &Group| {
        let rep = if group.is_relative { "RELATIVE" } else { "ABSOLUTE" };
        json!({ "rep": rep, "type": "NON_EEF", "format": "DEFAULT", "state_key": null })
    };
    let modality = json!({
        "state": { "modality_keys": keys },
        "action": {
            "modality_keys": keys, "action_configs": groups.iter().map(config).collect::<Vec<_>>(),
            "delta_indices": (0..spec.horizon).collect::<Vec<_>>(),
        },
    });
    [json!({ "state": of_state, "action": of_action, "relative_action": of_relative }), modality]
}

/// The contents of groups: which numbers of an action are relative, and bounds of actions, `[steps, width]` each.
type Read = (Vec<bool>, [Vec<f64>; 2]);

/// Reads the groups of a step's config; `None`: it has none.
///
/// # Errors
/// The reason: something of them is missing, wrong or not implemented.
pub fn read(config: &Json) -> Result<Option<Read>, String> {
    let (raw, modality) = (&config["raw_stats"], &config["modality_config"]);
    if raw.is_null() && modality.is_null() {
        return Ok(None);
    }
    let wrong = |what: &str, found: &Json| format!("{what} is invalid: {:.80}", found.to_string());
    let action = &modality["action"];
    let keys = action["modality_keys"].as_array().ok_or_else(|| wrong("modality_config", modality))?;
    if keys.len() > MAX_GROUPS {
        return Err(format!(
            "modality_config has {} groups of actions; at most {MAX_GROUPS} are supported",
            keys.len()
        ));
    }
    let names = if config["use_percentiles"] == true { ["q01", "q99"] } else { ["min", "max"] };
    let mut mask = Vec::new();
    // By group: rows of its bounds, one where they are the same at each step.
    let mut of_groups: Vec<[Vec<Vec<f64>>; 2]> = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let key = key.as_str().ok_or_else(|| wrong("modality_config.action.modality_keys", action))?;
        let own = &action["action_configs"][number];
        let word = |name: &str| own[name].as_str().unwrap_or_default().to_lowercase();
        let is_relative = word("rep") == "relative";
        let state_key = own["state_key"].as_str().unwrap_or(key);
        if is_relative && (word("type") != "non_eef" || state_key != key) {
            return Err(format!(
                "the group {key:?} of actions is {:.120}: it must be of the type NON_EEF and relative to the state of its name",
                own.to_string()
            ));
        }
        let begins = |modality: &Json, holder: &str| {
            let before = modality["modality_keys"].as_array()?.iter().take_while(|it| *it != key);
            before.map(|it| rows(&raw[holder][it.as_str()?]["min"]).map(|rows| rows[0].len())).sum::<Option<usize>>()
        };
        if is_relative && begins(&modality["state"], "state") != Some(mask.len()) {
            return Err(format!(
                "the group {key:?} of actions has another place in the state, which is not implemented"
            ));
        }
        let (holder, names) = if is_relative { ("relative_action", ["min", "max"]) } else { ("action", names) };
        let bound = |name: &str| {
            let found = &raw[holder][key][name];
            rows(found).ok_or_else(|| wrong(&format!("raw_stats.{holder}.{key}.{name}"), found))
        };
        let bounds = [bound(names[0])?, bound(names[1])?];
        if bounds[0].len() != bounds[1].len() || bounds[0][0].len() != bounds[1][0].len() {
            return Err(format!("raw_stats.{holder}.{key} has bounds of different sizes"));
        }
        mask.extend(std::iter::repeat_n(is_relative, bounds[0][0].len()));
        of_groups.push(bounds);
    }
    if !mask.contains(&true) {
        return Err(
            "modality_config has no group of relative actions: absolute groups alone are not supported".to_owned()
        );
    }
    let num_steps = of_groups.iter().map(|it| it[0].len()).filter(|&len| len > 1).min().unwrap_or(1);
    if num_steps * mask.len() > MAX_NUMBERS {
        let width = mask.len();
        return Err(format!(
            "raw_stats has {num_steps} steps of {width} numbers; at most {MAX_NUMBERS} in all are supported"
        ));
    }
    let bound = |at: usize| -> Vec<f64> {
        let row = |step: usize| of_groups.iter().flat_map(move |it| it[at].get(step).unwrap_or(&it[at][0]).clone());
        (0..num_steps).flat_map(row).collect()
    };
    Ok(Some((mask, [bound(0), bound(1)])))
}

/// Rows of equally many numbers, or a single row.
fn rows(json: &Json) -> Option<Vec<Vec<f64>>> {
    let numbers = |row: &Json| row.as_array()?.iter().map(Json::as_f64).collect::<Option<Vec<f64>>>();
    let list = json.as_array()?;
    let rows: Vec<Vec<f64>> = match list.first()?.is_array() {
        true => list.iter().map(numbers).collect::<Option<_>>()?,
        false => vec![numbers(json)?],
    };
    let width = rows[0].len();
    let fits = (1..=MAX_WIDTH).contains(&width) && rows.len() <= MAX_STEPS && rows.iter().all(|row| row.len() == width);
    fits.then_some(rows)
}
