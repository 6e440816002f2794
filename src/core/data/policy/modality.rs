//! Groups of an action's numbers as `meta/modality.json` of GR00T's sets has them: which numbers are relative goes by their names, and
//! so do those in the processor files.

use std::ops::Range;
use std::sync::Arc;

use super::relative;
use super::spec::SampleSpec;
use crate::config::Policy;
use crate::data::error::DataError;
use crate::data::lerobot::{Group, MODALITY, Set};

/// Returns which numbers of an action are relative to the state: those that neither their own name nor that of their group excludes.
pub fn mask(spec: &SampleSpec) -> Vec<bool> {
    let width = spec.action_dim;
    let mut of_groups = vec![String::new(); width];
    for (name, at) in &spec.groups {
        of_groups[at.clone()].fill(name.clone());
    }
    let own = relative::mask(width, &spec.action_names, &spec.exclude);
    let by_group = relative::mask(width, &of_groups, &spec.exclude);
    own.into_iter().zip(by_group).map(|(own, by_group)| own && by_group).collect()
}

/// Returns the groups of all sets' actions; none where no set names any.
///
/// # Errors
/// Named by the set: its groups are not those of the first one, leave a number of an action out or are of another feature, or cannot be
/// relative to the state as they are to be.
pub fn groups(
    spec: &SampleSpec,
    settings: &Policy,
    sets: &[Arc<Set>],
) -> Result<Vec<(String, Range<usize>)>, DataError> {
    let mut first: Option<Vec<(String, Range<usize>)>> = None;
    for set in sets {
        let wrong = |reason: String| DataError::file(&set.folder().join(MODALITY), reason);
        let found = of_set(spec, settings, set).map_err(wrong)?;
        if let Some(other) = first.as_ref().filter(|first| **first != found) {
            let names = |groups: &[(String, Range<usize>)]| match groups {
                [] => "none".to_owned(),
                all => all
                    .iter()
                    .map(|(name, at)| format!("{name} {}-{}", at.start, at.end))
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            return Err(wrong(format!(
                "groups of actions are {}, but those of {} are {}",
                names(&found),
                sets[0].folder().display(),
                names(other)
            )));
        }
        first = Some(found);
    }
    Ok(first.unwrap_or_default())
}

fn of_set(spec: &SampleSpec, settings: &Policy, set: &Set) -> Result<Vec<(String, Range<usize>)>, String> {
    let Some(modality) = set.modality() else { return Ok(Vec::new()) };
    if modality.actions.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(group) = modality.actions.iter().find(|group| group.key != settings.action) {
        let (name, key, own) = (&group.name, &group.key, &settings.action);
        return Err(format!("action.{name} is part of {key}, but actions are read only from {own} (policy.action)"));
    }
    let mut end = 0;
    for group in &modality.actions {
        if group.at.start != end {
            return Err(format!("the numbers {end} to {} of {} are in no group of actions", group.at.start, group.key));
        }
        end = group.at.end;
    }
    if end != spec.action_dim {
        return Err(format!(
            "the numbers {end} to {} of {} are in no group of actions",
            spec.action_dim, settings.action
        ));
    }
    let groups: Vec<_> = modality.actions.iter().map(|group| (group.name.clone(), group.at.clone())).collect();
    if spec.relative {
        let mask = mask(&SampleSpec { groups: groups.clone(), ..spec.clone() });
        for group in &modality.actions {
            expect_relative(group, &mask[group.at.clone()], &modality.states, settings)?;
        }
    }
    Ok(groups)
}

/// Checks that a group is relative as a whole, to the state's group of its name.
fn expect_relative(group: &Group, mask: &[bool], states: &[Group], settings: &Policy) -> Result<(), String> {
    let name = &group.name;
    if mask.iter().any(|is_relative| *is_relative != mask[0]) {
        return Err(format!(
            "action.{name} has numbers that are relative to the state and others that are not: name the group in policy.exclude"
        ));
    }
    if !mask[0] {
        return Ok(());
    }
    if !group.is_absolute {
        return Err(format!("action.{name} is already relative, and would be made relative to the state again"));
    }
    let own = states.iter().find(|state| state.name == *name);
    match own.filter(|state| state.at == group.at && state.key == settings.state) {
        Some(_) => Ok(()),
        None => Err(format!(
            "action.{name} has the numbers {} to {}, but state.{name} of {} has not: relative actions need the same \
             place in both",
            group.at.start, group.at.end, settings.state
        )),
    }
}
