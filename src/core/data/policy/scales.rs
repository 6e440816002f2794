//! The scales of a policy's states and actions: from the sets that are trained on, or from the model's folder.

use std::path::Path;
use std::sync::Arc;

use super::files;
use super::groot_groups;
use super::kept::Kept;
use super::modality;
use super::normalizer::{Normalizer, needed};
use super::relative;
use super::spec::{ACTION, Family, STATE, SampleSpec};
use super::xvla::Rules;
use crate::config::{Normalization, Policy};
use crate::data::error::DataError;
use crate::data::lerobot::{Dtype, Feature, FeatureStats, Set, Stats, command};

/// The normalization of states and actions.
pub struct Scales {
    pub state: Normalizer,
    pub action: Normalizer,
    /// True for the numbers of an action that are relative to the state; empty: none.
    pub mask: Vec<bool>,
    /// Statistics under lerobot's names, which go into checkpoints.
    pub stats: Stats,
    /// Facts about the data that the user should know.
    pub notes: Vec<String>,
}

impl Scales {
    /// Statistics that have the bounds of numbers alone, whatever these are of.
    pub fn bounds(&self) -> Stats {
        let of = |scale: &Normalizer| {
            let [low, high] = scale.bounds().map(|values| values.iter().map(|&value| f64::from(value)).collect());
            FeatureStats::from([("min".to_owned(), low), ("max".to_owned(), high)])
        };
        let mut stats = Stats::default();
        stats.0.insert(STATE.to_owned(), of(&self.state));
        stats.0.insert(ACTION.to_owned(), of(&self.action));
        stats
    }
}

/// Settles what `spec` leaves to the data, and finds the scales: of these sets, or without such of `kept` or of the model's folder.
///
/// # Errors
/// Named by the set or the folder: features that do not fit the policy or each other, statistics that are missing.
pub fn find(
    spec: &mut SampleSpec,
    folder: &Path,
    settings: &Policy,
    sets: &[Arc<Set>],
    kept: Option<&Kept>,
) -> Result<Scales, DataError> {
    let saved = files::read(folder)?;
    files::check_after(folder)?;
    if let Some((relative, exclude, names)) = saved.as_ref().and_then(|saved| saved.relative.clone()) {
        (spec.relative, spec.exclude) = (relative, exclude);
        spec.action_names = if names.is_empty() { std::mem::take(&mut spec.action_names) } else { names };
    }
    if settings.embodiments.is_empty() && kept.is_none() {
        settle_embodiment(spec, folder, saved.as_ref())?;
    }
    settle_relative(spec, folder, saved.as_ref(), settings)?;
    let of_groups = saved.as_ref().and_then(|saved| saved.mask.clone()).filter(|_| sets.is_empty() && kept.is_none());
    spec.relative = settings.relative_actions.unwrap_or(spec.relative);
    spec.exclude = settings.exclude.clone().unwrap_or_else(|| std::mem::take(&mut spec.exclude));
    expect_bounds(spec, folder, settings)?;
    let (state, action) = saved.as_ref().map_or((None, None), |saved| (saved.state, saved.action));
    spec.state_normalization = settings.state_normalization.or(state).unwrap_or(spec.state_normalization);
    spec.action_normalization = settings.action_normalization.or(action).unwrap_or(spec.action_normalization);
    if let Some(rules) = spec.xvla.take() {
        spec.xvla = Some(of_xvla(rules, folder, saved.as_ref(), settings, spec.relative)?);
    }
    let stats = match (sets.is_empty(), kept) {
        (true, Some(kept)) => {
            (spec.state_dim, spec.action_dim) = (kept.state_dim, kept.action_dim);
            spec.action_names.clone_from(&kept.action_names);
            spec.groups.clone_from(&kept.action_groups);
            kept.stats.clone()
        }
        (true, None) => of_folder(spec, saved, of_groups.as_deref()),
        (false, _) => of_sets(spec, settings, sets)?,
    };
    for (what, width, most) in
        [("state", spec.state_dim, spec.max_state_dim), ("action", spec.action_dim, spec.max_action_dim)]
    {
        if width > most {
            let reason = format!("the policy's {what} has at most {most} numbers, but the data has {width}");
            return Err(DataError::file(folder, reason));
        }
    }
    let wrong = |key: &str, reason: String| {
        let (place, help) = match sets.first() {
            Some(set) => (set.folder(), command(set.folder())),
            None => (folder, "train it on a set, or put the model's policy_preprocessor.json there".to_owned()),
        };
        DataError::file(place, format!("statistics of {key}: {reason}: {help}"))
    };
    let scale =
        |key: &str, mode, width| Normalizer::new(mode, stats.0.get(key), width).map_err(|reason| wrong(key, reason));
    let bounded = |scale: Normalizer| if spec.family == Family::Groot { scale.bounded() } else { scale };
    let state = bounded(scale(STATE, spec.state_normalization, spec.state_dim)?);
    let num_scaled = if spec.scales_by_step() { spec.horizon * spec.action_dim } else { spec.action_dim };
    let action = bounded(scale(ACTION, spec.action_normalization, num_scaled)?);
    let mask = match (spec.relative, of_groups) {
        (false, _) => Vec::new(),
        (true, Some(mask)) => mask,
        (true, None) => modality::mask(spec),
    };
    let mut notes = notes(sets, settings, [&state, &action]);
    notes.extend(rates(sets));
    notes.extend(too_short(sets, spec.horizon));
    notes.extend(spec.xvla.as_ref().and_then(|rules| rules.note.clone()));
    Ok(Scales { state, action, mask, stats, notes })
}

/// Checks that a run asks nothing of GR00T's numbers that its processor's files cannot say: these have bounds alone, and those of relative
/// actions at each step.
///
/// # Errors
/// Named by the folder: a normalization of another kind.
fn expect_bounds(spec: &SampleSpec, folder: &Path, settings: &Policy) -> Result<(), DataError> {
    let known: &[Normalization] = match (spec.family == Family::Groot, spec.relative) {
        (false, _) => return Ok(()),
        (true, true) => &[Normalization::MinMax],
        (true, false) => &[Normalization::MinMax, Normalization::Quantiles, Normalization::Quantile10],
    };
    let asked = [("state", settings.state_normalization), ("action", settings.action_normalization)];
    let is_other = |(_, mode): &(&str, Option<Normalization>)| mode.is_some_and(|mode| !known.contains(&mode));
    let Some((what, Some(mode))) = asked.into_iter().find(is_other) else { return Ok(()) };
    let name = |mode: &Normalization| super::spec::name_of(*mode).to_lowercase();
    let (own, known) = (name(&mode), known.iter().map(name).collect::<Vec<_>>().join(", "));
    let kind = if spec.relative { "relative" } else { "absolute" };
    let reason =
        format!("policy.{what}_normalization is {own}, but GR00T with {kind} actions takes only {known}: leave it out");
    Err(DataError::file(folder, reason))
}

/// Takes the number of a robot from the processor's file, which has to be of the same policy as the config.
///
/// # Errors
/// Named by the folder: the two files are of different robots, or the number is none of the policy's.
fn settle_embodiment(spec: &mut SampleSpec, folder: &Path, saved: Option<&files::Saved>) -> Result<(), DataError> {
    let of_files = saved.and_then(|saved| saved.embodiment.as_ref());
    if let (Some((tag, number)), Some((of_files, mapped))) = (&mut spec.embodiment, of_files) {
        if tag != of_files {
            let reason = format!(
                "its config.json has the embodiment_tag {tag:?}, but its policy_preprocessor.json {of_files:?}"
            );
            return Err(DataError::file(folder, reason));
        }
        *number = mapped.unwrap_or(*number);
        if *number < 0 || *number >= spec.num_embodiments as i64 {
            let reason = format!(
                "its policy_preprocessor.json has the embodiment {number}, but the policy has {}",
                spec.num_embodiments
            );
            return Err(DataError::file(folder, reason));
        }
    }
    Ok(())
}

/// Takes from the processor's file whether actions of GR00T are relative.
///
/// # Errors
/// Named by the folder: its config says that they are, and nothing says which.
fn settle_relative(
    spec: &mut SampleSpec,
    folder: &Path,
    saved: Option<&files::Saved>,
    settings: &Policy,
) -> Result<(), DataError> {
    if let Some(saved) = saved.filter(|_| spec.family == Family::Groot) {
        if spec.relative && saved.mask.is_none() && settings.relative_actions.is_none() {
            let reason = "its config.json has use_relative_actions, but its policy_preprocessor.json has no groups \
                          of relative actions (raw_stats, modality_config), without which actions are absolute: put \
                          the files of one policy together, or set policy.relative_actions in a run";
            return Err(DataError::file(folder, reason));
        }
        spec.relative = saved.mask.is_some();
    }
    Ok(())
}

/// Returns the statistics of the model's folder, which say how many numbers a state and an action have. `of_groups`: which numbers of an
/// action are relative, where the folder says it.
fn of_folder(spec: &mut SampleSpec, saved: Option<files::Saved>, of_groups: Option<&[bool]>) -> Stats {
    let mut stats = saved.unwrap_or_default().stats;
    if let (Some(mask), Some(own)) = (of_groups, stats.0.get_mut(ACTION)) {
        own.values_mut().for_each(|values| values.truncate(spec.horizon * mask.len()));
    }
    let width = |key: &str, mode| match mode {
        Normalization::Identity => None,
        _ => stats.0.get(key).and_then(|stats| stats.get("mean").or(stats.get("min"))).map(Vec::len),
    };
    spec.state_dim = width(STATE, spec.state_normalization).unwrap_or(spec.state_dim);
    spec.action_dim = match of_groups {
        // A folder may have more steps than its policy.
        Some(mask) => mask.len(),
        None => width(ACTION, spec.action_normalization).unwrap_or(spec.action_dim),
    };
    stats
}

/// Returns the rules with the domain that X-VLA's processor files and the settings give.
///
/// # Errors
/// Named by the folder: a step of the processor is missing or not implemented, or a setting is not the policy's.
fn of_xvla(
    rules: Rules,
    folder: &Path,
    saved: Option<&files::Saved>,
    settings: &Policy,
    relative: bool,
) -> Result<Rules, DataError> {
    let wrong = |reason: String| DataError::file(folder, reason);
    if relative {
        return Err(wrong("X-VLA does not support actions relative to the state (policy.relative_actions)".to_owned()));
    }
    if let Some(saved) = saved {
        let needed = ["xvla_image_to_float", "xvla_imagenet_normalize"];
        if let Some(name) = needed.iter().find(|name| !saved.steps.iter().any(|step| step == *name)) {
            return Err(wrong(format!("its policy_preprocessor.json has no step {name:?}, which is required")));
        }
    }
    let domain = settings.domain.map(|domain| domain as i64).or(saved.and_then(|saved| saved.domain));
    rules.with_domain(domain.unwrap_or(0)).map_err(wrong)
}

/// Returns the statistics of all sets together, and the sizes and names that they have.
fn of_sets(spec: &mut SampleSpec, settings: &Policy, sets: &[Arc<Set>]) -> Result<Stats, DataError> {
    for (at, set) in sets.iter().enumerate() {
        let wrong = |reason: String| DataError::file(set.folder(), reason);
        for (what, key, width) in
            [("state", &settings.state, &mut spec.state_dim), ("action", &settings.action, &mut spec.action_dim)]
        {
            let feature = set.info().feature(key).filter(|feature| feature.is_numbers());
            let feature = feature.ok_or_else(|| {
                let known: Vec<&str> = set.info().features.iter().map(|it| it.key.as_str()).collect();
                let known = known.join(", ");
                wrong(format!("has no feature {key} of numbers; its features are {known}: name one in policy.{what}"))
            })?;
            if at > 0 && feature.width() != *width {
                let (own, first) = (feature.width(), sets[0].folder().display());
                return Err(wrong(format!("{key} has {own} numbers, but that of {first} has {width}")));
            }
            *width = feature.width();
        }
        let cameras: Vec<&str> = set.info().cameras().map(|it| it.key.as_str()).collect();
        let is_known = |key: &&str| spec.cameras.iter().any(|name| name == name_of(settings, key));
        if !spec.cameras.is_empty() && !cameras.iter().any(is_known) {
            return Err(wrong(format!(
                "none of its cameras ({}) is one of the policy's ({}): map them with policy.cameras",
                cameras.join(", "),
                spec.cameras.join(", ")
            )));
        }
    }
    if let Some(action) = sets[0].info().feature(&settings.action)
        && action.names.len() == spec.action_dim
    {
        spec.action_names.clone_from(&action.names);
    }
    if spec.family == Family::Groot {
        spec.groups = modality::groups(spec, settings, sets)?;
    }
    if spec.relative && spec.state_dim < spec.action_dim {
        let reason = format!(
            "actions have {} numbers but states only {}: actions cannot be relative to the state",
            spec.action_dim, spec.state_dim
        );
        return Err(DataError::file(sets[0].folder(), reason));
    }
    let mask = modality::mask(spec);
    let needs =
        [(spec.state_normalization, &settings.state, STATE), (spec.action_normalization, &settings.action, ACTION)];
    let mut parts = Vec::new();
    for set in sets {
        let mut part = Stats::default();
        for (mode, own, name) in needs {
            if mode == Normalization::Identity {
                continue;
            }
            let stats: FeatureStats = match name == ACTION && spec.relative {
                true if !spec.scales_by_step() => relative::stats(set, (&settings.state, own), spec.horizon, &mask)?,
                _ => set.stats()?.0.remove(own).ok_or_else(|| {
                    DataError::file(set.folder(), format!("has no statistics of {own}: {}", command(set.folder())))
                })?,
            };
            expect_stats(set, own, &stats, mode, sets.len() > 1)?;
            part.0.insert(name.to_owned(), stats);
        }
        parts.push(part);
    }
    let all = match parts.len() {
        1 => parts.swap_remove(0),
        _ => Stats::joined(&parts).map_err(|reason| DataError::file(sets[0].folder(), reason))?,
    };
    if !spec.scales_by_step() {
        return Ok(all);
    }
    let relative = relative::bounds_by_step(sets, (&settings.state, &settings.action), spec.horizon, &mask)?;
    groot_groups::bounds(&all, relative, &mask).map_err(|reason| {
        let folder = sets[0].folder();
        DataError::file(folder, format!("{reason}: {}", command(folder)))
    })
}

/// Checks that a set has the statistics of a feature that a normalization needs, and those by which sets are joined.
///
/// # Errors
/// Named by the set: it lacks one.
fn expect_stats(
    set: &Set,
    key: &str,
    stats: &FeatureStats,
    mode: Normalization,
    is_joined: bool,
) -> Result<(), DataError> {
    let joined = if is_joined { &["mean", "std", "min", "max", "count"][..] } else { &[] };
    let mut all = needed(mode).into_iter().flatten().chain(joined.iter().copied());
    match all.find(|name| !stats.contains_key(*name)) {
        None => Ok(()),
        Some(name) => {
            let reason = format!("statistics of {key}: has no {name}: {}", command(set.folder()));
            Err(DataError::file(set.folder(), reason))
        }
    }
}

/// Returns the policy's name of a camera of the data.
pub fn name_of<'a>(settings: &'a Policy, key: &'a str) -> &'a str {
    settings.cameras.get(key).map_or(key, String::as_str)
}

/// Returns whether `policy.cameras` gives the name of this camera, which it does not list, to another one of the set: a name that is
/// written goes before one that is kept.
pub fn is_replaced(settings: &Policy, set: &Set, key: &str) -> bool {
    let takes = |(from, to): (&String, &String)| to == key && set.info().cameras().any(|it| it.key == *from);
    !settings.cameras.contains_key(key) && settings.cameras.iter().any(takes)
}

/// Sets of one robot with other rates: the steps of a chunk take other times.
fn rates(sets: &[Arc<Set>]) -> Option<String> {
    let first = sets.first()?;
    let other = sets.iter().find(|set| set.info().fps != first.info().fps)?;
    let of = |set: &Set| format!("{} frames per second in {}", set.info().fps, set.folder().display());
    Some(format!("{}, but {}: a step, and so a chunk of actions, takes a different time in each", of(first), of(other)))
}

/// Returns a sentence about a set without an episode as long as a chunk.
fn too_short(sets: &[Arc<Set>], horizon: usize) -> Option<String> {
    let longest = |set: &Set| set.episodes().iter().map(|episode| episode.length).max().unwrap_or_default();
    let set = sets.iter().find(|set| longest(set) < horizon)?;
    Some(format!(
        "{}: a chunk has {horizon} actions, but the longest episode has {} frames: no chunk lies within an episode",
        set.folder().display(),
        longest(set)
    ))
}

fn notes(sets: &[Arc<Set>], settings: &Policy, scales: [&Normalizer; 2]) -> Vec<String> {
    let mut notes = Vec::new();
    for (scale, key) in scales.into_iter().zip([&settings.state, &settings.action]) {
        let names = sets.first().and_then(|set| set.info().feature(key)).map(|feature| feature.names.as_slice());
        let width = sets.first().and_then(|set| set.info().feature(key)).map_or(0, Feature::width);
        for at in scale.constants_of(width) {
            let name = names.and_then(|names| names.get(at)).map_or(format!("number {at}"), |name| format!("{name:?}"));
            notes.push(format!("{key}: {name} is constant in the data, so its scale cannot be learned"));
        }
    }
    for set in sets {
        let groups = set.modality().into_iter().flat_map(|it| it.states.iter().chain(&it.actions));
        for (group, rotation) in groups.filter_map(|group| Some((group, group.rotation.as_ref()?))) {
            let (place, name, key) = (set.folder().display(), &group.name, &group.key);
            notes.push(format!(
                "{place}: {name} of {key} is a rotation ({rotation}), whose numbers are learned as they are"
            ));
        }
        for feature in set.info().features.iter().filter(|feature| matches!(feature.dtype, Dtype::Other(_))) {
            let (place, key, kind) = (set.folder().display(), &feature.key, feature.dtype.name());
            notes.push(format!("{place}: {key} has the type {kind}, which is not read"));
        }
    }
    notes
}
