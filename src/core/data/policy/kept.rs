//! The file of a checkpoint that has the robots of a policy: lerobot's processor files have room for one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::data::error::DataError;
use crate::data::lerobot::Stats;
use crate::files;

pub const FILE: &str = "policy_embodiments.json";
/// Robots of a policy, and numbers of a statistic, at most.
const MAX_ROBOTS: usize = 1024;
const MAX_NUMBERS: usize = 1 << 20;

/// A robot as the file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub name: String,
    pub number: Option<i64>,
    pub state_dim: usize,
    pub action_dim: usize,
    pub action_names: Vec<String>,
    /// They name ranges of the action, as [`super::spec::SampleSpec::groups`] does.
    pub action_groups: Vec<(String, Range<usize>)>,
    /// Statistics under lerobot's names.
    pub stats: Stats,
}

/// Returns the robots as a file. lerobot's processor files are of the first one.
///
/// # Errors
/// The reason: they cannot be written.
pub fn write(robots: &[Kept]) -> Result<Vec<u8>, String> {
    let group = |(name, at): &(String, Range<usize>)| json!({ "name": name, "start": at.start, "end": at.end });
    let of = |own: &Kept| {
        let groups: Vec<Json> = own.action_groups.iter().map(group).collect();
        json!({
            "name": own.name, "number": own.number, "state_dim": own.state_dim, "action_dim": own.action_dim,
            "action_names": own.action_names, "action_groups": groups, "stats": rounded(&own.stats),
        })
    };
    let all: Vec<Json> = robots.iter().map(of).collect();
    serde_json::to_vec_pretty(&json!({ "embodiments": all })).map_err(|error| error.to_string())
}

/// Rounds statistics to float32, as scales take them, so that what is read again is equal.
fn rounded(stats: &Stats) -> BTreeMap<&String, BTreeMap<&String, Vec<f64>>> {
    let of = |values: &Vec<f64>| values.iter().map(|&value| f64::from(value as f32)).collect();
    stats.0.iter().map(|(key, own)| (key, own.iter().map(|(name, values)| (name, of(values))).collect())).collect()
}

/// Returns the robots of the model in `folder`; none where it has no such file.
///
/// # Errors
/// Named by the file: it is wrong.
pub fn read(folder: &Path) -> Result<Vec<Kept>, DataError> {
    let path = folder.join(FILE);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
    let json: Json = serde_json::from_slice(&bytes).map_err(|error| DataError::file(&path, error))?;
    let all = json["embodiments"].as_array().filter(|all| (1..=MAX_ROBOTS).contains(&all.len()));
    let kept: Option<Result<Vec<Kept>, String>> = all.map(|all| all.iter().map(of_json).collect());
    let kept = kept.unwrap_or_else(|| Err("has no list `embodiments`".to_owned()));
    let kept = kept.map_err(|reason| DataError::file(&path, reason))?;
    match (1..kept.len()).find(|&at| kept[..at].iter().any(|other| other.name == kept[at].name)) {
        Some(at) => Err(DataError::file(&path, format!("has the embodiment {:?} twice", kept[at].name))),
        None => Ok(kept),
    }
}

fn of_json(json: &Json) -> Result<Kept, String> {
    let name = json["name"].as_str().filter(|name| !name.is_empty()).ok_or("has an embodiment without a name")?;
    let wrong = |key: &str| format!("embodiment {name:?}: `{key}` is invalid: {:.80}", json[key].to_string());
    let width = |key: &str| {
        let width = json[key].as_u64().and_then(|it| usize::try_from(it).ok());
        width.filter(|it| (1..=MAX_NUMBERS).contains(it)).ok_or_else(|| wrong(key))
    };
    let action_dim = width("action_dim")?;
    let text = |name: &Json| name.as_str().map(str::to_owned);
    let names = json["action_names"].as_array().and_then(|names| names.iter().map(text).collect());
    Ok(Kept {
        name: name.to_owned(),
        number: match &json["number"] {
            Json::Null => None,
            number => Some(number.as_i64().ok_or_else(|| wrong("number"))?),
        },
        state_dim: width("state_dim")?,
        action_dim,
        action_names: names.ok_or_else(|| wrong("action_names"))?,
        action_groups: groups_of(&json["action_groups"], action_dim).ok_or_else(|| wrong("action_groups"))?,
        stats: Stats(serde_json::from_value(json["stats"].clone()).map_err(|_| wrong("stats"))?),
    })
}

/// Groups that fill an action of this width, one behind the other; none where the robot's data names none. `None`: they do not.
fn groups_of(json: &Json, width: usize) -> Option<Vec<(String, Range<usize>)>> {
    if json.is_null() {
        return Some(Vec::new());
    }
    let mut groups: Vec<(String, Range<usize>)> = Vec::new();
    for group in json.as_array()? {
        let place = |key: &str| group[key].as_u64().and_then(|it| usize::try_from(it).ok());
        let at = place("start")?..place("end")?;
        let begin = groups.last().map_or(0, |(_, last)| last.end);
        if at.start != begin || at.is_empty() || at.end > width {
            return None;
        }
        groups.push((group["name"].as_str()?.to_owned(), at));
    }
    let is_whole = groups.last().is_none_or(|(_, last)| last.end == width);
    is_whole.then_some(groups)
}
