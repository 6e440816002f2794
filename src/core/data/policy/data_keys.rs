//! Settings of a run that name something of its data or of its policy: what is not there is refused.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::spec::PolicySpec;
use crate::config::Policy;
use crate::data::error::DataError;
use crate::data::lerobot::Set;

/// Sees to it that `policy.cameras` and `policy.domain` name what the sets and the policy in `folder` have.
///
/// # Errors
/// A camera is none of any set, or gets a name that is none of the policy's; the policy has no domains.
pub fn expect(spec: &PolicySpec, folder: &Path, settings: &Policy, sets: &[Arc<Set>]) -> Result<(), DataError> {
    let wrong = |reason: String| DataError::file(folder, reason);
    if settings.domain.is_some() && spec.xvla.is_none() {
        return Err(wrong("policy.domain is for X-VLA, and this policy has no domains: leave it out".to_owned()));
    }
    if sets.is_empty() {
        return Ok(());
    }
    for (key, name) in &settings.cameras {
        if !sets.iter().any(|set| set.info().cameras().any(|feature| feature.key == *key)) {
            let known = sets.iter().flat_map(|set| set.info().cameras()).map(|it| it.key.as_str());
            let reason = format!("policy.cameras names {key}, which is no camera of the data");
            return Err(wrong(reason + &cameras_of(known)));
        }
        if !spec.cameras.contains(name) {
            let known = spec.cameras.iter().map(String::as_str);
            let reason = format!("policy.cameras calls {key} {name}, which is no camera of the policy");
            return Err(wrong(reason + &cameras_of(known)));
        }
    }
    Ok(())
}

/// The end of a sentence: which cameras the data or the policy has.
fn cameras_of<'a>(known: impl Iterator<Item = &'a str>) -> String {
    let known: BTreeSet<&str> = known.collect();
    match known.is_empty() {
        true => "; it has none".to_owned(),
        false => format!("; its cameras are {}", known.into_iter().collect::<Vec<_>>().join(", ")),
    }
}

/// Sees to it that each word of `policy.exclude` is in a name of a number of an action of one of these robots, or of a group of such, so
/// that it excludes something.
///
/// # Errors
/// The reason: a word is in none, or actions are not relative.
pub fn expect_excluded(robots: &[&PolicySpec], settings: &Policy) -> Result<(), String> {
    let Some(words) = settings.exclude.as_ref().filter(|words| !words.is_empty()) else { return Ok(()) };
    if !robots.iter().any(|spec| spec.relative) {
        return Err(
            "policy.exclude says which numbers stay absolute, and actions are not relative (policy.relative_actions)"
                .to_owned(),
        );
    }
    let of = |spec: &&'_ PolicySpec| {
        let groups = spec.groups.iter().map(|(name, _)| name.clone());
        spec.action_names.iter().cloned().chain(groups).collect::<Vec<String>>()
    };
    let names: BTreeSet<String> = robots.iter().flat_map(of).collect();
    let is_in = |word: &String| names.iter().any(|name| name.to_lowercase().contains(&word.to_lowercase()));
    match words.iter().find(|word| !is_in(word)) {
        None => Ok(()),
        Some(word) if names.is_empty() => {
            Err(format!("policy.exclude has {word:?}, and the numbers of {} have no names", settings.action))
        }
        Some(word) => Err(format!(
            "policy.exclude has {word:?}, which is in no name of the numbers of {}: {}",
            settings.action,
            names.into_iter().collect::<Vec<_>>().join(", ")
        )),
    }
}
