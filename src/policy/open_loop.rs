//! Compares a policy's actions with recorded ones: a test that data and normalization fit together, not of success.

use anyhow::{Context, Result, anyhow, ensure};
use loongforge_core::data::lerobot::{Set, Step, command};
use loongforge_core::data::{InProcess, Limits};
use loongforge_core::observe::{Curve, plot};
use loongforge_core::robot::{DataNames, Moment, Observation, Policy, PolicySpec};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Errors of one way to act: sums over actions, by dimension.
#[derive(Clone, Debug, Default)]
struct Errors {
    absolute: Vec<f64>,
    squared: Vec<f64>,
}

/// The sources of actions that are compared: the policy, and baselines.
const WAYS: [&str; 4] = ["the policy", "the last action again", "the mean action", "the current state"];

/// Errors of a policy and of its baselines on recorded episodes, `WAYS` in order.
pub struct OpenLoop {
    /// The feature of recorded actions, and the names of its numbers.
    action: String,
    names: Vec<String>,
    ways: Vec<(&'static str, Errors)>,
    num_actions: usize,
    /// Recorded actions that are not finite, or follow on such.
    num_left_out: usize,
    /// Recorded and predicted actions of the first episode, a row a frame.
    trace: [Vec<Vec<f32>>; 2],
}

/// Plays the first `num_episodes` episodes of a LeRobot set, of those that are chosen, and asks for a chunk at every `every`-th frame.
/// `data` says what the set's features are called.
///
/// # Errors
/// The set has no episodes or cannot be read, lacks what the policy reads or has no finite action, or the policy cannot act.
pub fn open_loop(
    policy: &mut dyn Policy,
    set: &Arc<Set>,
    num_episodes: usize,
    every: Option<usize>,
    data: &DataNames,
) -> Result<OpenLoop> {
    let folder = set.folder();
    let spec = policy.spec().clone();
    let action = data.action.as_str();
    let feature = set.info().feature(action).filter(|feature| feature.is_numbers());
    let feature = feature.with_context(|| format!("{} has no feature {action} of numbers", folder.display()))?;
    let width = feature.width();
    ensure!(
        width == spec.action_width,
        "the set's actions have {width} values, but the policy's have {}",
        spec.action_width
    );
    let names = match feature.names.len() == width {
        true => feature.names.clone(),
        false => (0..width).map(|at| at.to_string()).collect(),
    };
    let mean: Vec<f32> = match set.stats()?.get(action, "mean").filter(|mean| mean.iter().all(|it| it.is_finite())) {
        Some(mean) => mean.iter().map(|&value| value as f32).collect(),
        None => {
            let (place, help) = (folder.display(), command(folder));
            return Err(anyhow!("the statistics of {place} have no mean of {action} that is finite: {help}"));
        }
    };
    let is_position = set.info().feature(&data.state).is_some_and(|state| state.width() == width);
    let num_ways = if is_position { WAYS.len() } else { WAYS.len() - 1 };
    let empty = Errors { absolute: vec![0.0; width], squared: vec![0.0; width] };
    let ways = WAYS[..num_ways].iter().map(|&way| (way, empty.clone())).collect();
    let mut found = OpenLoop {
        action: action.to_owned(),
        names,
        ways,
        num_actions: 0,
        num_left_out: 0,
        trace: [Vec::new(), Vec::new()],
    };
    let every = every.unwrap_or(spec.num_executed).max(1);
    let blocks = set.blocks(0);
    ensure!(!blocks.is_empty(), "{} has no episodes", folder.display());
    let (mut open, mut number) = (set.open_block(0, 0)?, 0);
    for (nth, episode) in set.chosen().take(num_episodes).enumerate() {
        if !blocks[number].episodes.contains(&episode) {
            number += 1;
            open = set.open_block(number, 0)?;
        }
        let begin = open.first(episode);
        for (request, frame) in (0..set.episodes()[episode].length).step_by(every).enumerate() {
            let step = open.step(begin + frame as u64);
            let seen = observe(&step, &spec, data)?;
            let moment = Moment { episode: episode as u64, request: request as u64 };
            let actions = policy.act_as_recorded(&seen, moment);
            let actions = actions.map_err(|reason| anyhow!("episode {episode}, frame {frame}: {reason}"))?;
            actions.check().map_err(|reason| anyhow!("{reason}"))?;
            let ahead: Vec<i64> = (0..actions.num_steps() as i64).collect();
            let recorded = step.window(action, &ahead)?;
            let last = step.window(action, &[-1])?.values;
            for at in (0..recorded.is_pad.len()).filter(|&at| !recorded.is_pad[at]) {
                let truth = &recorded.values[at * width..][..width];
                let is_added = found.add(truth, [actions.step(at), &last, &mean, &seen.state]);
                if is_added && nth == 0 && at < every {
                    found.trace[0].push(truth.to_vec());
                    found.trace[1].push(actions.step(at).to_vec());
                }
            }
        }
    }
    ensure!(
        found.num_actions > 0,
        "{} has no action that is finite in the episodes that were compared",
        folder.display()
    );
    Ok(found)
}

/// Returns what a set's features are called: as it is `given`, and else as in the data that the policy was trained on, where the set has
/// such features.
///
/// # Errors
/// The reason: what is given names nothing of the set or of the policy.
pub fn names_in(set: &Set, spec: &PolicySpec, given: Given) -> Result<DataNames, String> {
    expect_cameras(spec, set, &given.cameras)?;
    let has = |key: &str| set.info().feature(key).is_some_and(|feature| feature.is_numbers());
    let named = |option: &str, given: Option<String>, trained: &str, own: String| match given {
        Some(key) if !has(&key) => {
            let known: Vec<&str> = set.info().features.iter().map(|feature| feature.key.as_str()).collect();
            Err(format!("{option} {key}: the data set has no such feature of numbers; it has {}", known.join(", ")))
        }
        Some(key) => Ok(key),
        None => Ok(if has(trained) { trained.to_owned() } else { own }),
    };
    let (trained, own) = (&spec.data, DataNames::default());
    let others = trained.cameras.iter().filter(|(key, _)| given.cameras.iter().all(|(other, _)| other != key));
    Ok(DataNames {
        state: named("--state", given.state, &trained.state, own.state)?,
        action: named("--action", given.action, &trained.action, own.action)?,
        cameras: given.cameras.iter().chain(others).cloned().collect(),
    })
}

/// Names of a set's features that a user has given.
#[derive(Default)]
pub struct Given {
    /// Cameras of the set, with the policy's names.
    pub cameras: Vec<(String, String)>,
    pub state: Option<String>,
    pub action: Option<String>,
}

/// Sees to it that pairs name cameras of the set and of the policy, each once.
///
/// # Errors
/// The reason, with the pair.
fn expect_cameras(spec: &PolicySpec, set: &Set, cameras: &[(String, String)]) -> Result<(), String> {
    let known: Vec<&str> = set.info().cameras().map(|feature| feature.key.as_str()).collect();
    for (at, (key, name)) in cameras.iter().enumerate() {
        let refused = |reason: String| Err(format!("--camera {key}={name}: {reason}"));
        if !known.contains(&key.as_str()) {
            return refused(format!("the data set has no camera {key}; its cameras are {}", known.join(", ")));
        }
        if !spec.cameras.contains(name) {
            return refused(format!("the policy has no camera {name}; its cameras are {}", spec.cameras.join(", ")));
        }
        if let Some((key, name)) = cameras[..at].iter().find(|(other, taken)| other == key || taken == name) {
            return refused(format!("another option already maps {key} to {name}"));
        }
    }
    Ok(())
}

/// Returns the policy's cameras of which the set has no pictures.
pub fn missing_cameras<'a>(spec: &'a PolicySpec, set: &Set, cameras: &[(String, String)]) -> Vec<&'a str> {
    let is_missing = |camera: &&String| key_of(set, camera, cameras).is_none();
    spec.cameras.iter().filter(is_missing).map(String::as_str).collect()
}

/// Returns the set's camera that is a camera of the policy: the one that is mapped to it, of those that the set has, or the one of its
/// name, unless that is mapped to another.
fn key_of<'a>(set: &Set, camera: &'a str, cameras: &'a [(String, String)]) -> Option<&'a str> {
    let is_there = |key: &str| set.info().cameras().any(|feature| feature.key == key);
    let mapped = cameras.iter().find(|(key, name)| name == camera && is_there(key));
    let is_another = cameras.iter().any(|(key, _)| key == camera);
    match mapped {
        Some((key, _)) => Some(key.as_str()),
        None => (!is_another && is_there(camera)).then_some(camera),
    }
}

fn observe(step: &Step, spec: &PolicySpec, data: &DataNames) -> Result<Observation> {
    let mut images = Vec::new();
    // A camera that the set lacks is masked, as it was in training.
    for camera in &spec.cameras {
        if let Some(key) = key_of(step.set(), camera, &data.cameras) {
            let frames = step.pictures(key, &[0], &InProcess, &Limits::NONE)?;
            images.push((camera.clone(), frames.into_iter().next().context("a frame")?));
        }
    }
    let state = if spec.state_width > 0 { step.numbers(&data.state)? } else { Vec::new() };
    Ok(Observation { images, state, prompt: step.task()?.to_owned(), begun: Vec::new() })
}

impl Errors {
    fn add(&mut self, truth: &[f32], guess: &[f32]) {
        for (at, (truth, guess)) in truth.iter().zip(guess).enumerate() {
            let error = f64::from(guess - truth);
            self.absolute[at] += error.abs();
            self.squared[at] += error * error;
        }
    }
}

impl OpenLoop {
    /// Adds the errors of guesses at a recorded action. Returns false where that action, or the one before the chunk, is not finite, so
    /// that it is left out.
    fn add(&mut self, truth: &[f32], guesses: [&[f32]; WAYS.len()]) -> bool {
        let [_, last, ..] = guesses;
        let is_finite = truth.iter().chain(last).all(|value| value.is_finite());
        if !is_finite {
            self.num_left_out += 1;
            return false;
        }
        for ((_, errors), guess) in self.ways.iter_mut().zip(guesses) {
            errors.add(truth, guess);
        }
        self.num_actions += 1;
        true
    }

    /// Returns mean errors in a table, baselines under the policy, and what they do not tell.
    pub fn text(&self) -> String {
        let count = self.num_actions.max(1) as f64;
        let width = self.names.len();
        let head = format!("{:<24}{:>12}{:>12}", format!("{} actions", self.num_actions), "MSE", "MAE");
        let heads = self.names.iter().map(|name| format!("{:>12}", format!("MAE {name}")));
        let mut lines = vec![head + &heads.collect::<String>()];
        for (way, errors) in &self.ways {
            let mean = |sums: &[f64]| sums.iter().sum::<f64>() / count / width as f64;
            let each = errors.absolute.iter().map(|sum| format!("{:>12.5}", sum / count));
            let line =
                format!("{:<24}{:>12.6}{:>12.5}", format!("  {way}"), mean(&errors.squared), mean(&errors.absolute));
            lines.push(line + &each.collect::<String>());
        }
        if self.num_left_out > 0 {
            lines.push(format!(
                "{} recorded actions that are not finite, or follow on such, are left out.",
                self.num_left_out
            ));
        }
        lines.push(
            "An open-loop error does not measure success: the policy never sees the results of its own actions \
             (docs/policies.md)."
                .to_owned(),
        );
        lines.join("\n")
    }

    /// Returns the mean absolute error of each way to act, by its name: first the policy's.
    pub fn absolute_errors(&self) -> Vec<(String, f64)> {
        let count = (self.num_actions * self.names.len()).max(1) as f64;
        self.ways.iter().map(|(way, errors)| ((*way).to_owned(), errors.absolute.iter().sum::<f64>() / count)).collect()
    }

    /// Draws recorded and predicted actions of the first episode, a file `NAME.png` a dimension, or `NUMBER_NAME.png` where two would
    /// have the same name.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn draw(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        for ((at, name), file) in self.names.iter().enumerate().zip(file_names(&self.names)) {
            let points = |trace: &[Vec<f32>]| -> Vec<(f64, f64)> {
                trace.iter().enumerate().map(|(frame, values)| (frame as f64, values[at].into())).collect()
            };
            let [recorded, predicted] = [points(&self.trace[0]), points(&self.trace[1])];
            let curves =
                [Curve { label: "recorded", points: &recorded }, Curve { label: "predicted", points: &predicted }];
            let title = format!("{} {name}, first episode", self.action);
            plot(&folder.join(format!("{file}.png")), &title, "frame", &curves)?;
        }
        Ok(())
    }
}

/// Names of files, without characters that such may not have: those of the dimensions, with their numbers where two are alike.
fn file_names(names: &[String]) -> Vec<String> {
    let plain = |name: &String| name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let files: Vec<String> = names.iter().map(plain).collect();
    // Some file systems do not tell capitals from small letters.
    let distinct: BTreeSet<String> = files.iter().map(|file| file.to_ascii_lowercase()).collect();
    match distinct.len() == files.len() {
        true => files,
        false => files.iter().enumerate().map(|(at, file)| format!("{at}_{file}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use image::RgbImage;
    use loongforge_core::data::lerobot::{Feature, SetWriter, Value};
    use loongforge_core::robot::{ACTION, Actions, STATE, pads};

    use super::*;

    /// Returns a set of one frame with these cameras.
    fn set(folder: &Path, cameras: &[&str]) -> Set {
        set_of(folder, cameras, ACTION)
    }

    /// A set of one frame with these cameras, whose actions are called `action`.
    fn set_of(folder: &Path, cameras: &[&str], action: &str) -> Set {
        let mut features: Vec<Feature> = cameras.iter().map(|key| Feature::images(key, 2, 2)).collect();
        features.push(Feature::vector(action, &["x"]));
        let mut writer = SetWriter::create(folder, 10, "arm", features).unwrap();
        let picture = RgbImage::new(2, 2);
        let mut values: Vec<(&str, Value<'_>)> = cameras.iter().map(|&key| (key, Value::Picture(&picture))).collect();
        values.push((action, Value::Numbers(&[0.5])));
        writer.add_frame(&values).unwrap();
        writer.end_episode("go").unwrap();
        writer.finish().unwrap();
        Set::open(folder).unwrap()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(key, name)| (key.to_owned(), name.to_owned())).collect()
    }

    /// Works as in training, where several sets have cameras of other names.
    #[test]
    fn cameras_are_those_that_the_set_has() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (mapped, own) = (set(folders[0].path(), &["top", "wrist"]), set(folders[1].path(), &["base"]));
        let cameras = pairs(&[("side", "base"), ("top", "base"), ("wrist", "left")]);
        for (set, camera, expected) in [
            (&mapped, "base", Some("top")),
            (&own, "base", Some("base")),
            (&mapped, "left", Some("wrist")),
            (&mapped, "wrist", None),
            (&own, "left", None),
        ] {
            assert_eq!(key_of(set, camera, &cameras), expected, "{camera}");
        }
        let spec = PolicySpec { cameras: vec!["base".to_owned(), "left".to_owned()], ..pads::spec("test") };
        assert!(missing_cameras(&spec, &mapped, &cameras).is_empty());
        assert_eq!(missing_cameras(&spec, &own, &cameras), ["left"]);
    }

    /// A policy whose robot takes other numbers than the data has.
    struct Toggled(PolicySpec);

    impl Policy for Toggled {
        fn spec(&self) -> &PolicySpec {
            &self.0
        }

        fn execute(&mut self, _: usize) {}

        fn act(&mut self, _: &Observation, _: Moment) -> Result<Actions, String> {
            Ok(Actions { width: 1, values: vec![-1.0] })
        }

        fn act_as_recorded(&mut self, _: &Observation, _: Moment) -> Result<Actions, String> {
            Ok(Actions { width: 1, values: vec![0.5] })
        }
    }

    #[test]
    fn actions_are_compared_as_the_data_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let set = Arc::new(set(folder.path(), &["top"]));
        let sizes =
            PolicySpec { state_width: 0, action_width: 1, chunk_size: 1, num_executed: 1, ..pads::spec("test") };
        let found = open_loop(&mut Toggled(sizes), &set, 1, None, &DataNames::default()).unwrap();
        assert_eq!(found.absolute_errors()[0], ("the policy".to_owned(), 0.0));
    }

    /// Those that are given go before those of the policy's own data, and these before lerobot's.
    #[test]
    fn features_have_the_names_of_the_data() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (named, plain) = (set_of(folders[0].path(), &["top"], "control"), set(folders[1].path(), &["top"]));
        let data =
            DataNames { cameras: pairs(&[("top", "base")]), state: "joints".to_owned(), action: "control".to_owned() };
        let sizes =
            PolicySpec { state_width: 0, action_width: 1, chunk_size: 1, num_executed: 1, ..pads::spec("test") };
        let spec = PolicySpec { cameras: vec!["base".to_owned(), "left".to_owned()], data: data.clone(), ..sizes };
        let names = |set: &Set, given: Given| names_in(set, &spec, given);
        let found = names(&named, Given::default()).unwrap();
        assert_eq!(found, DataNames { state: STATE.to_owned(), ..data.clone() }, "the set has no joints");
        assert_eq!(names(&plain, Given::default()).unwrap().action, ACTION);
        let cameras = pairs(&[("top", "left")]);
        let given = names(&named, Given { cameras: cameras.clone(), ..Given::default() }).unwrap();
        assert_eq!(given.cameras, cameras);
        let given = names(&named, Given { action: Some("force".to_owned()), ..Given::default() });
        let error = given.unwrap_err();
        assert!(
            error.starts_with("--action force: the data set has no such feature") && error.contains("control"),
            "{error}"
        );
        assert!(names(&named, Given { state: Some("top".to_owned()), ..Given::default() }).is_err(), "pictures");
        let compared = open_loop(&mut Toggled(spec.clone()), &Arc::new(named), 1, None, &found).unwrap();
        assert_eq!(compared.absolute_errors()[0], ("the policy".to_owned(), 0.0));
    }

    #[test]
    fn recorded_actions_that_are_not_finite_are_left_out() {
        let mut found = OpenLoop {
            action: ACTION.to_owned(),
            names: vec!["x".to_owned()],
            ways: WAYS.map(|way| (way, Errors { absolute: vec![0.0], squared: vec![0.0] })).to_vec(),
            num_actions: 0,
            num_left_out: 0,
            trace: [Vec::new(), Vec::new()],
        };
        assert!(found.add(&[0.5], [&[1.0], &[0.0], &[0.5], &[0.5]]));
        assert!(!found.text().contains("left out"));
        assert!(!found.add(&[f32::NAN], [&[1.0], &[0.0], &[0.5], &[0.5]]));
        assert!(!found.add(&[0.5], [&[1.0], &[f32::INFINITY], &[0.5], &[0.5]]));
        assert_eq!(found.absolute_errors()[0], ("the policy".to_owned(), 0.5));
        assert!(found.text().contains("2 recorded actions that are not finite"), "{}", found.text());
    }

    #[test]
    fn pairs_that_name_no_camera_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let set = set(folder.path(), &["top", "wrist"]);
        let spec = PolicySpec { cameras: vec!["base".to_owned(), "left".to_owned()], ..pads::spec("test") };
        assert_eq!(expect_cameras(&spec, &set, &pairs(&[("top", "base"), ("wrist", "left")])), Ok(()));
        let cases: [(&[(&str, &str)], &str); 4] = [
            (&[("side", "base")], "--camera side=base: the data set has no camera side; its cameras are top, wrist"),
            (&[("top", "bse")], "--camera top=bse: the policy has no camera bse; its cameras are base, left"),
            (&[("top", "base"), ("wrist", "base")], "--camera wrist=base: another option already maps top to base"),
            (&[("top", "base"), ("top", "left")], "--camera top=left: another option already maps top to base"),
        ];
        for (given, part) in cases {
            let error = expect_cameras(&spec, &set, &pairs(given)).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn files_of_plots_have_names_of_their_own() {
        let names = |names: &[&str]| file_names(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["joint 1.pos", "gripper"]), ["joint_1_pos", "gripper"]);
        assert_eq!(names(&["x-", "x+", "Y"]), ["0_x_", "1_x_", "2_Y"]);
        assert_eq!(names(&["x", "X"]), ["0_x", "1_X"]);
    }
}
