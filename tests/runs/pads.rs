//! The task Pads: a policy learns it from a LeRobot set, the same whoever encodes, and is judged in a closed loop.

use crate::clients::{PadsRates, count_pads};
use crate::fastwam::a_kill_changes_no_bit;
use crate::fixture::{loss_bits, opened_policy, run};
use crate::soak::{self, Cell};
use loongforge::core::config;
use loongforge::core::data::lerobot::Set;
use loongforge::core::observe::read_evaluations;
use loongforge::core::robot::pads::{PadsSet, Part, Scene, SceneLayout, compose_pads, instruction, picture};
use loongforge::core::robot::{ACTION, Moment, Observation};
use loongforge::policy::judge::judge_pads;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// Trains the run of `configs/pads_policy.yaml` on data of its own; one thread an actor.
fn trained(dir: &Path, overrides: &[&str]) -> Vec<u64> {
    let root = dir.display().to_string();
    let text = include_str!("../../configs/pads_policy.yaml").replace("runs/pads_policy/data", &format!("{root}/data"));
    let text = text.replace("name: pads_policy", &format!("name: pads_policy\n  dir: {root}/run"));
    let ours = ["pools.encoder.threads=1", "pools.foundation.threads=1", "log.tensorboard=false"];
    let overrides: Vec<String> = ours.iter().chain(overrides).map(|&text| text.to_owned()).collect();
    let (steps, _) = run(config::load_text_with(&text, &overrides).unwrap_or_else(|report| panic!("{report}")), None);
    loss_bits(&steps)
}

fn made(seed: u64, num_episodes: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    compose_pads(&dir.path().join("data"), &PadsSet { seed, num_episodes }).unwrap();
    dir
}

const SHORT: [&str; 4] =
    ["train.steps=4", "train.warmup_steps=1", "checkpoint.every_steps=4", "train.global_batch_size=16"];

/// A held-out set of a robot that the run does not know is refused by `check`, not by the run that was to end with it.
#[test]
fn held_out_sets_of_unknown_robots_are_refused_at_once() {
    let (dir, other) = (made(1, 4), made(2, 2));
    let place = other.path().join("data/train");
    let info = place.join("meta/info.json");
    let text = std::fs::read_to_string(&info).unwrap();
    std::fs::write(&info, text.replace("\"pads\"", "\"hand\"")).unwrap();
    let root = dir.path().display().to_string();
    let config =
        include_str!("../../configs/pads_policy.yaml").replace("runs/pads_policy/data", &format!("{root}/data"));
    let path = dir.path().join("pads.yaml");
    std::fs::write(&path, config).unwrap();
    let check = |override_: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        command
            .arg("check")
            .arg(&path)
            .arg(format!("eval.path={}", place.display()))
            .arg(format!("run.dir={root}/run"));
        let done = command.arg(override_).output().unwrap();
        (
            done.status.code(),
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)),
        )
    };
    let (code, said) = check("policy.embodiments={pads: {}}");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("eval.path") && said.contains("robot_type \"hand\""), "{said}");
    let (code, said) = check(&format!("policy.embodiments={{pads: {{sets: [{}]}}}}", place.display()));
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn policies_learn_the_same_with_any_number_of_encoders_and_act() {
    let dir = made(1, 12);
    let deterministic = [&SHORT[..], &["run.deterministic=true"]].concat();
    let with = |encoders: &str| trained(dir.path(), &[&deterministic[..], &[encoders, "policy.max_delay=2"]].concat());
    let one = with("pools.encoder.replicas=1");
    assert_eq!(one.len(), 4);
    assert_eq!(one, with("pools.encoder.replicas=3"));
    // The checkpoint that the last run left acts: in the robot's units, and the same again.
    let mut policy = opened_policy(&dir.path().join("run"));
    let scene = Scene::begin(SceneLayout::draw(1, Part::HeldOut, 0));
    let camera = policy.spec().cameras[0].clone();
    let images = vec![(camera, picture(&scene))];
    let seen = Observation { images, state: scene.state(), prompt: instruction(0), begun: Vec::new() };
    let actions = policy.act(&seen, Moment::default()).unwrap();
    assert_eq!((actions.num_steps(), actions.width), (8, 2));
    assert_eq!(policy.act(&seen, Moment::default()).unwrap(), actions);
    assert_ne!(policy.act(&seen, Moment { episode: 0, request: 1 }).unwrap(), actions, "other noise");
    // It goes on with a chunk that has begun.
    let begun = vec![0.03, -0.02, 0.01, 0.04];
    let gone_on = policy.act(&Observation { begun: begun.clone(), ..seen.clone() }, Moment::default()).unwrap();
    assert_eq!(gone_on.values[..4], begun);
    assert_ne!(gone_on.values[4..], actions.values[4..]);
    // Not more actions than it was trained to be given, which its checkpoint says.
    let more = Observation { begun: vec![0.0; 6], ..seen.clone() };
    assert!(policy.act(&more, Moment::default()).unwrap_err().contains("was trained with at most 2"));
    let whole = Observation { begun: vec![0.0; 16], ..seen.clone() };
    assert!(policy.act(&whole, Moment::default()).unwrap_err().contains("fewer than 8"));
    // Untrained, it is about the mean action away from where the data is.
    assert!(actions.values.iter().all(|value| value.abs() < 1.0), "{actions:?}");
}

#[test]
fn a_killed_policy_goes_on_to_the_same_bits() {
    let dir = made(1, 12);
    let text = include_str!("../../configs/pads_policy.yaml");
    let text = text.replace("runs/pads_policy/data", &dir.path().join("data").display().to_string());
    a_kill_changes_no_bit(dir.path(), &text, &[&SHORT[..], &["run.deterministic=true"]].concat());
}

/// The run reports the loss of held-out episodes while it goes on, and then the error of actions beside those that need no policy.
#[test]
fn a_run_tells_how_far_its_actions_are_from_recorded_ones() {
    let dir = made(2, 6);
    let root = dir.path().display().to_string();
    let config =
        include_str!("../../configs/pads_policy.yaml").replace("runs/pads_policy/data", &format!("{root}/data"));
    let path = dir.path().join("pads.yaml");
    std::fs::write(&path, config).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    program.arg("run").arg(&path).args(SHORT).arg(format!("run.dir={root}/run"));
    program.arg(format!("eval={{path: {root}/data/train, every_steps: 2, actions: 100000}}"));
    let output = program.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("eval after 4 steps, held_out: loss") && text.contains(" values of actions"), "{text}");
    assert!(text.contains("mean absolute error of actions: the policy 0."), "{text}");
    assert!(text.contains("loongforge serve-policy"), "{text}");
    // Who asks it for words is told what it has instead.
    let mut asked = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    let asked = asked.args(["generate", &format!("{root}/run"), "--prompt", "go"]).output().unwrap();
    let said = String::from_utf8(asked.stderr).unwrap();
    assert!(!asked.status.success() && said.contains("loongforge act"), "{said}");
    let records = read_evaluations(&dir.path().join("run/eval.jsonl")).unwrap();
    let [during @ .., errors] = &records[..] else { panic!("{records:?}") };
    assert_eq!(during.iter().map(|record| record.step).collect::<Vec<_>>(), [2, 4]);
    // Of every frame: what a baseline's error is can be told without the run.
    let set = Arc::new(Set::open(&dir.path().join("data/train")).unwrap());
    let (mut sum, mut count) = (0.0, 0);
    for (episode, length) in set.episodes().iter().map(|episode| episode.length).enumerate() {
        for step in (0..length).map(|frame| set.step(episode, frame).unwrap()) {
            let [window, last] =
                [(0..8).collect(), vec![-1]].map(|steps: Vec<i64>| step.window(ACTION, &steps).unwrap());
            for (at, truth) in window.values.iter().enumerate().filter(|(at, _)| !window.is_pad[at / 2]) {
                sum += f64::from(truth - last.values[at % 2]).abs();
                count += 1;
            }
        }
    }
    for record in during {
        assert!(record.of_actions && record.perplexity.is_none() && record.loss.unwrap() > 0.0, "{record:?}");
        let [(policy, error), (last, of_last), (state, _)] = &record.action_errors[..] else { panic!("{record:?}") };
        assert_eq!([policy, last, state], ["the policy", "the last action again", "the current state"]);
        assert!((of_last / (sum / f64::from(count)) - 1.0).abs() < 1e-6, "{of_last} {}", sum / f64::from(count));
        // In the robot's units a pad is at most 0.08 away from one step to the next; untrained noise is not far off.
        assert!((0.001..0.5).contains(error), "{error}");
    }
    assert_ne!(during[0].action_errors[0], during[1].action_errors[0], "the policy that is trained acts");
    let of: Vec<&str> = errors.action_errors.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(of, ["the policy", "the last action again", "the mean action", "the current state"]);
}

/// The whole run, on one thread an actor, and 50 layouts: minutes, so CI runs it by name.
#[test]
#[ignore = "takes minutes; `cargo xtask ci` runs it"]
fn a_policy_learns_pads() {
    let dir = made(1, 3000);
    trained(dir.path(), &[]);
    for (rates, by) in [Some(judge(dir.path(), 50)), count(dir.path(), 50)].into_iter().flatten() {
        println!("{}, counted by {by}", text(&rates));
        assert!(rates.plain >= 0.8, "{by}");
        // It reads the instruction, and looks.
        assert!(rates.told >= 0.8 && rates.own <= 0.1, "{by}");
        assert!(rates.blanked <= 0.2, "{by}");
    }
}

/// Returns what our own judge counts of the run's policy, and its name.
fn judge(dir: &Path, num_layouts: usize) -> (PadsRates, &'static str) {
    let mut policy = opened_policy(&dir.join("run"));
    let judged = judge_pads(policy.as_mut(), 1, num_layouts, |_| ()).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{}", judged.text());
    let rate = |successes: usize| successes as f64 / num_layouts as f64;
    let rates = PadsRates {
        plain: rate(judged.plain.told),
        told: rate(judged.other_color.told),
        own: rate(judged.other_color.own),
        blanked: rate(judged.blanked.told),
        random: rate(judged.random.told),
        expert: rate(judged.expert.told),
    };
    (rates, "judge-policy")
}

/// Returns what a client counts of the run's policy, and its name; `None`: there is no client here.
fn count(dir: &Path, num_layouts: usize) -> Option<(PadsRates, &'static str)> {
    Some((count_pads(&dir.join("run"), num_layouts)?, "openpi-client"))
}

fn text(rates: &PadsRates) -> String {
    let PadsRates { plain, told, own, blanked, random, expert } = rates;
    format!(
        "success {plain}, told another color {told} on that pad and {own} on the own, blanked {blanked}, random {random}, expert {expert}"
    )
}

/// The soak runs three seeds, 400 layouts each; `--slice 1` takes one of them. Our own judge counts only where there is no client.
#[test]
#[ignore = "soak"]
fn soak_pads() {
    let cells: Vec<(String, u64)> = (1..=3).map(|seed| (format!("seed {seed}"), seed)).collect();
    soak::run("pads", &cells, |&seed| {
        let dir = made(seed, 3000);
        trained(dir.path(), &[&format!("run.seed={seed}")]);
        let (rates, by) = count(dir.path(), 400).unwrap_or_else(|| judge(dir.path(), 400));
        let PadsRates { plain, told, own, blanked, random, expert } = rates;
        let holds = plain >= 0.9 && told >= 0.9 && own <= 0.05 && blanked <= 0.15 && random <= 0.03 && expert >= 0.99;
        let figures = format!("{}, counted by {by}", text(&rates));
        if holds { Ok(Cell::Passed(figures)) } else { Err(figures) }
    });
}
