//! Settings of a run that name something of its data or of its policy: what is not there is refused.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::scales::{is_replaced, name_of};
use super::spec::SampleSpec;
use crate::config::Policy;
use crate::data::error::DataError;
use crate::data::lerobot::Set;

/// A part of the names that lerobot gives to cameras that no robot has.
const EMPTY_CAMERA: &str = "empty_camera";

/// Checks that `policy.cameras`, `policy.augment.fixed_cameras` and `policy.domain` name what the sets and the policy in `folder` have.
///
/// # Errors
/// A camera is none of any set, or gets a name that is none of the policy's; a part of a name is in none; the policy has no domains.
pub fn expect(spec: &SampleSpec, folder: &Path, settings: &Policy, sets: &[Arc<Set>]) -> Result<(), DataError> {
    let wrong = |reason: String| DataError::file(folder, reason);
    if settings.domain.is_some() && spec.xvla.is_none() {
        return Err(wrong("policy.domain is only for X-VLA, but this policy has no domains: leave it out".to_owned()));
    }
    if sets.is_empty() {
        return Ok(());
    }
    for part in settings.augment.iter().flat_map(|augment| &augment.fixed_cameras) {
        // An empty part would be one of every name.
        if part.is_empty() || !spec.cameras.iter().any(|name| name.contains(part.as_str())) {
            let reason = format!(
                "policy.augment.fixed_cameras has {part:?}, which is not in the name of any camera of the policy"
            );
            return Err(wrong(reason + &cameras_of(spec.cameras.iter().map(String::as_str))));
        }
    }
    for (key, name) in &settings.cameras {
        if !sets.iter().any(|set| set.info().cameras().any(|feature| feature.key == *key)) {
            let known = sets.iter().flat_map(|set| set.info().cameras()).map(|it| it.key.as_str());
            let reason = format!("policy.cameras names {key}, which is not a camera of the data");
            return Err(wrong(reason + &cameras_of(known)));
        }
        if !spec.cameras.contains(name) {
            let known = spec.cameras.iter().map(String::as_str);
            let reason = format!("policy.cameras maps {key} to {name}, which is not a camera of the policy");
            return Err(wrong(reason + &cameras_of(known)));
        }
    }
    for set in sets {
        let is_own = |(key, _): &(&String, &String)| set.info().cameras().any(|feature| feature.key == **key);
        let own: Vec<(&String, &String)> = settings.cameras.iter().filter(is_own).collect();
        for (at, (key, name)) in own.iter().enumerate() {
            if let Some((other, _)) = own[..at].iter().find(|(_, before)| before == name) {
                return Err(wrong(format!("policy.cameras maps both {other} and {key} to {name}")));
            }
        }
    }
    Ok(())
}

/// Checks that a set has every camera of a policy that sees them side by side (FastWAM), where none may be missing.
///
/// # Errors
/// The reason.
pub fn expect_all_cameras(spec: &SampleSpec, settings: &Policy, set: &Set) -> Result<(), String> {
    let own = || set.info().cameras().filter(move |it| !is_replaced(settings, set, &it.key));
    let is_missing = |name: &&String| !own().any(|it| name_of(settings, &it.key) == name.as_str());
    match spec.cameras.iter().filter(|_| spec.frames.is_some()).find(is_missing) {
        None => Ok(()),
        Some(name) => {
            let reason = format!("has no camera {name}, which FastWAM needs: name one in policy.cameras");
            Err(reason + &cameras_of(set.info().cameras().map(|it| it.key.as_str())))
        }
    }
}

/// Returns facts about cameras and robots that the user may not expect, set by set.
pub fn notes(spec: &SampleSpec, settings: &Policy, sets: &[Arc<Set>]) -> Vec<String> {
    let mut notes = Vec::new();
    let trains = !sets.is_empty();
    if trains && settings.augment.is_none() && !spec.told_changes.is_empty() {
        notes.push(format!(
            "the model's config.json lists random augmentations of training pictures ({}), which are not applied: set policy.augment to \
             augment pictures",
            spec.told_changes.join(", ")
        ));
    }
    for set in sets {
        let (place, names) = (set.folder().display(), spec.cameras.join(", "));
        let seen: Vec<&str> = set.info().cameras().map(|camera| name_of(settings, &camera.key)).collect();
        for camera in
            set.info().cameras().filter(|it| !spec.cameras.iter().any(|name| name == name_of(settings, &it.key)))
        {
            notes.push(format!(
                "{place}: the camera {} is not one of the policy's ({names}) and is not read: map it with \
                 policy.cameras",
                camera.key
            ));
        }
        for camera in set.info().cameras().filter(|it| is_replaced(settings, set, &it.key)) {
            let key = &camera.key;
            notes.push(format!("{place}: the camera {key} is not read: policy.cameras gives its name to another one"));
        }
        // lerobot adds empty ones to a policy that has too many.
        let is_missing = |name: &&String| !seen.contains(&name.as_str()) && !name.contains(EMPTY_CAMERA);
        for name in spec.cameras.iter().filter(is_missing) {
            notes.push(format!("{place}: has no camera {name}, so the policy sees nothing there"));
        }
    }
    let robot = |set: &Set| set.info().robot_type.clone();
    let typed = || sets.iter().filter(|set| !robot(set).is_empty());
    if settings.embodiments.is_empty()
        && let Some(first) = typed().next()
        && let Some(other) = typed().find(|set| robot(set) != robot(first))
    {
        let of = |set: &Set| format!("{} has the robot {:?}", set.folder().display(), robot(set));
        notes.push(format!(
            "{}, but {}: both are learned and normalized as one robot (policy.embodiments tells robots apart)",
            of(first),
            of(other)
        ));
    }
    notes
}

/// Returns the end of a sentence: which cameras the data or the policy has.
fn cameras_of<'a>(known: impl Iterator<Item = &'a str>) -> String {
    let known: BTreeSet<&str> = known.collect();
    match known.is_empty() {
        true => "; it has none".to_owned(),
        false => format!("; its cameras are {}", known.into_iter().collect::<Vec<_>>().join(", ")),
    }
}

/// Checks that each word of `policy.exclude` is in a name of a number of an action of one of these robots, or of a group of such, so
/// that it excludes something.
///
/// # Errors
/// The reason: a word is in none, or actions are not relative.
pub fn expect_excluded(robots: &[&SampleSpec], settings: &Policy) -> Result<(), String> {
    let Some(words) = settings.exclude.as_ref().filter(|words| !words.is_empty()) else { return Ok(()) };
    if !robots.iter().any(|spec| spec.relative) {
        return Err(
            "policy.exclude says which numbers stay absolute, but actions are not relative (policy.relative_actions)"
                .to_owned(),
        );
    }
    let of = |spec: &&'_ SampleSpec| {
        let groups = spec.groups.iter().map(|(name, _)| name.clone());
        spec.action_names.iter().cloned().chain(groups).collect::<Vec<String>>()
    };
    let names: BTreeSet<String> = robots.iter().flat_map(of).collect();
    let is_in = |word: &String| names.iter().any(|name| name.to_lowercase().contains(&word.to_lowercase()));
    match words.iter().find(|word| !is_in(word)) {
        None => Ok(()),
        Some(word) if names.is_empty() => {
            Err(format!("policy.exclude has {word:?}, but the numbers of {} have no names", settings.action))
        }
        Some(word) => Err(format!(
            "policy.exclude has {word:?}, which is not in any name of the numbers of {}: {}",
            settings.action,
            names.into_iter().collect::<Vec<_>>().join(", ")
        )),
    }
}
