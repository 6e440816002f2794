//! The robots of a policy's data, its embodiments: each has sizes, scales and perhaps a number of its own.

use std::path::Path;
use std::sync::Arc;

use super::data_keys;
use super::groot_spec::numbered;
use super::kept::{self, Kept};
use super::scales::{self, Scales};
use super::spec::{Family, SampleSpec};
use crate::config::{Policy, Statistics};
use crate::data::error::DataError;
use crate::data::lerobot::Set;
use crate::data::processor::PolicyOptions;

/// A robot.
pub struct Robot {
    /// Empty: the only one, and nobody has named it.
    pub name: String,
    pub spec: SampleSpec,
    pub scales: Scales,
}

impl Robot {
    /// Returns the part of it that a checkpoint keeps.
    pub fn kept(&self) -> Kept {
        let Self { name, spec, scales } = self;
        let domain = spec.xvla.as_ref().map(|rules| rules.domain);
        Kept {
            name: name.clone(),
            number: spec.embodiment.as_ref().map(|(_, number)| *number).or(domain),
            state_dim: spec.state_dim,
            action_dim: spec.action_dim,
            action_names: spec.action_names.clone(),
            action_groups: spec.groups.clone(),
            // GR00T's processor takes bounds, whatever statistics these are.
            stats: if spec.groot.is_some() { scales.bounds() } else { scales.stats.clone() },
        }
    }

    /// Returns notes for the user about its data.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let of = if self.name.is_empty() { String::new() } else { format!("{}: ", self.name) };
        self.scales.notes.iter().map(move |note| format!("{of}{note}"))
    }
}

/// Returns all robots, in the order of their names: those of the settings, or without such those of the model in `folder`.
///
/// # Errors
/// A set is of no robot, a robot has no set or no number, a setting names nothing of any robot, or as [`scales::find`].
pub fn find(spec: &SampleSpec, folder: &Path, options: &PolicyOptions) -> Result<Vec<Robot>, DataError> {
    let sets = options.sets.iter().flat_map(|file| &file.path.0).map(|path| Set::open(Path::new(path)).map(Arc::new));
    let sets = sets.collect::<Result<Vec<_>, _>>()?;
    data_keys::expect(spec, folder, &options.settings, &sets)?;
    let robots = all(spec, folder, &options.settings, &sets)?;
    if let Some(set) = sets.first() {
        let specs: Vec<&SampleSpec> = robots.iter().map(|robot| &robot.spec).collect();
        data_keys::expect_excluded(&specs, &options.settings)
            .map_err(|reason| DataError::file(set.folder(), reason))?;
    }
    Ok(robots)
}

fn all(spec: &SampleSpec, folder: &Path, settings: &Policy, sets: &[Arc<Set>]) -> Result<Vec<Robot>, DataError> {
    let kept = kept::read(folder)?;
    if settings.embodiments.is_empty() {
        return match (sets.is_empty(), kept.is_empty()) {
            (true, false) => kept.iter().map(|own| of_kept(spec, folder, settings, own)).collect(),
            (false, false) => {
                let names: Vec<&str> = kept.iter().map(|own| own.name.as_str()).collect();
                let reason = format!(
                    "is a policy of the embodiments {}: set policy.embodiments to those of the data, of these or \
                     others",
                    names.join(", ")
                );
                Err(DataError::file(folder, reason))
            }
            (_, true) => {
                let mut spec = spec.clone();
                let mut scales = scales::find(&mut spec, folder, settings, sets, None)?;
                scales.notes.extend(data_keys::notes(&spec, settings, sets));
                Ok(vec![Robot { name: String::new(), spec, scales }])
            }
        };
    }
    let mut owners = Vec::new();
    for set in sets {
        owners.push(embodiment_of(settings, set).map_err(|reason| DataError::file(set.folder(), reason))?);
    }
    let of = |name: &String| {
        let wrong = |reason: String| DataError::file(Path::new("policy.embodiments"), reason);
        let own: Vec<Arc<Set>> =
            sets.iter().zip(&owners).filter(|(_, owner)| *owner == name).map(|(set, _)| set.clone()).collect();
        if own.is_empty() {
            return Err(wrong(format!(
                "{name} has no set in data.train: none has this robot_type, and none is listed in its `sets`"
            )));
        }
        let number = settings.embodiments[name].number.map(|number| number as i64);
        let (mut spec, settings) = with_number(spec, settings, name, number).map_err(wrong)?;
        let of_stats = if settings.statistics == Some(Statistics::Merged) { sets } else { &own };
        let mut scales = scales::find(&mut spec, folder, &settings, of_stats, None)?;
        scales.notes.extend(data_keys::notes(&spec, &settings, &own));
        Ok(Robot { name: name.clone(), spec, scales })
    };
    settings.embodiments.keys().map(of).collect()
}

/// Returns a robot whose scales are in the model's folder.
fn of_kept(spec: &SampleSpec, folder: &Path, settings: &Policy, own: &Kept) -> Result<Robot, DataError> {
    let wrong = |reason: String| DataError::file(&folder.join(kept::FILE), reason);
    let (mut spec, settings) = with_number(spec, settings, &own.name, own.number).map_err(wrong)?;
    let scales = scales::find(&mut spec, folder, &settings, &[], Some(own))?;
    Ok(Robot { name: own.name.clone(), spec, scales })
}

/// Returns the description of a robot's samples, and the settings of it alone.
fn with_number(
    spec: &SampleSpec,
    settings: &Policy,
    name: &str,
    number: Option<i64>,
) -> Result<(SampleSpec, Policy), String> {
    let (spec, mut settings) = (spec.clone(), settings.clone());
    let spec = match (spec.family, number) {
        _ if let Some(groot) = spec.groot => {
            let published =
                || groot.published_number(name).ok_or_else(|| format!("{name} needs a number: GR00T has none for it"));
            numbered(spec, groot, name, number.map_or_else(published, Ok)?)?
        }
        (Family::Xvla, None) => return Err(format!("{name} needs a number: that of its domain")),
        (Family::Xvla, Some(number)) => {
            settings.domain = Some(usize::try_from(number).map_err(|_| format!("{name} has the number {number}"))?);
            spec
        }
        (_, None) => spec,
        (_, Some(number)) => {
            return Err(format!(
                "{name} has the number {number}, but this policy has the same parameters for all robots"
            ));
        }
    };
    Ok((spec, settings))
}

/// Returns the robot that a set was recorded with.
///
/// # Errors
/// The reason: it is none of the settings.
pub fn embodiment_of<'a>(settings: &'a Policy, set: &Set) -> Result<&'a str, String> {
    let all = || settings.embodiments.iter();
    let listed = all().find(|(_, own)| own.sets.iter().any(|path| path == set.name()));
    let robot_type = &set.info().robot_type;
    match listed.or_else(|| all().find(|(name, _)| *name == robot_type)) {
        Some((name, _)) => Ok(name),
        None => {
            let known: Vec<&str> = all().map(|(name, _)| name.as_str()).collect();
            Err(format!(
                "has the robot_type {robot_type:?}, but policy.embodiments has {}: add it there, or name the set in \
                 the `sets` of one",
                known.join(", ")
            ))
        }
    }
}

/// Returns the place of the robot of this name; `None`: of the only one.
///
/// # Errors
/// The reason: there is no such, or one of several must be named.
pub fn chosen(robots: &[Robot], name: Option<&str>) -> Result<usize, String> {
    let known = robots.iter().map(|robot| robot.name.as_str()).collect::<Vec<_>>().join(", ");
    match name {
        None if robots.len() == 1 => Ok(0),
        None => Err(format!("the policy has several embodiments: say which acts with --embodiment, one of {known}")),
        Some(name) => robots.iter().position(|robot| robot.name == name).ok_or_else(|| match known.as_str() {
            "" => format!("unknown embodiment {name:?}: the policy has one robot, without a name"),
            known => format!("unknown embodiment {name:?}: the policy's are {known}"),
        }),
    }
}
