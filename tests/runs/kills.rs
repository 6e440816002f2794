//! Kills at random moments, each followed by `--resume`: the run comes to the bits of the one that nothing happened to.

use crate::fixture::{Fixture, Pictures};
use crate::processes::{losses, program, wait_until};
use crate::soak::{self, Cell};
use loongforge::core::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Kills of a run, at most.
const KILLS: usize = 4;

/// Losses of all steps, and the hashes of the files of the last checkpoint's weights.
type Bits = (Vec<String>, Vec<String>);

struct Cut {
    seed: u64,
    processes: bool,
}

/// Returns the words of a run that is saved often.
fn words(processes: bool) -> Vec<&'static str> {
    let common = ["--resume", "run.deterministic=true", "checkpoint.every_steps=3", "pools.encoder.replicas=2"];
    // Processes that decode are killed as well.
    let common = common.into_iter().chain(["security.sandbox=auto"]);
    common.chain(processes.then_some("--processes")).collect()
}

fn bits(fixture: &Fixture) -> Bits {
    let text = fs::read_to_string(fixture.path().join("run/checkpoints/step-00000020/MANIFEST.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let files = manifest["files"].as_object().unwrap().iter();
    let weights = files.filter(|(name, _)| name.ends_with(".safetensors"));
    (losses(fixture, "run"), weights.map(|(name, file)| format!("{name} {}", file["sha256"])).collect())
}

fn start(fixture: &Fixture, processes: bool) -> Child {
    let log = fs::OpenOptions::new().create(true).append(true).open(fixture.path().join("said")).unwrap();
    let mut command = program(fixture, "run", &words(processes));
    command.env("OMP_NUM_THREADS", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Returns a process, its children, and theirs.
fn family(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> =
        children.flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect();
    std::iter::once(pid).chain(children.into_iter().flat_map(family)).collect()
}

fn name(pid: u32) -> String {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into()).collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).cloned();
    after("--role")
        .unwrap_or_else(|| if words.iter().any(|word| word == "decode-worker") { "decoder" } else { "run" }.into())
}

fn steps(fixture: &Fixture) -> usize {
    // The last line may be half written.
    fs::read(fixture.path().join("run/metrics.jsonl"))
        .map_or(0, |text| text.iter().filter(|byte| **byte == b'\n').count())
}

/// Runs to the end, with kills at moments that the seed gives; says what was killed after how many steps.
fn survives(cut: &Cut, whole: &Bits, longest: Duration) -> Result<Cell, String> {
    let fixture = Fixture::new(Pictures::Some);
    let mut rng = Rng::new(&[cut.seed]);
    let mut random = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut killed = Vec::new();
    let said = || fs::read_to_string(fixture.path().join("said")).unwrap();
    for start_of in 0.. {
        let mut child = start(&fixture, cut.processes);
        while killed.len() < KILLS {
            // The first comes before a run of two thirds of the longest ends.
            let share = if killed.is_empty() { 0.6 } else { 1.0 };
            let moment = Instant::now() + longest.mul_f64(share * random());
            while Instant::now() < moment && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(2));
            }
            let all = family(child.id());
            if child.try_wait().unwrap().is_some() {
                break;
            }
            let victim = all[(random() * all.len() as f64) as usize];
            killed.push(format!("{} after {} steps", name(victim), steps(&fixture)));
            let _ = kill_process(Pid::from_raw(victim as i32).unwrap(), Signal::KILL);
            if victim == child.id() {
                break;
            }
        }
        if child.wait().unwrap().success() {
            break;
        }
        if start_of > KILLS {
            return Err(format!("it does not end: {}", said()));
        }
    }
    if killed.is_empty() {
        return Err("it ended before it was killed".to_owned());
    }
    match bits(&fixture) == *whole {
        true => Ok(Cell::Passed(format!("{} kills: {}", killed.len(), killed.join(", ")))),
        false => Err(format!("other bits after {}: {}", killed.join(", "), said())),
    }
}

/// Returns the bits of a run that is not disturbed, and the time that it takes.
fn whole(processes: bool) -> (Bits, Duration) {
    let (fixture, begun) = (Fixture::new(Pictures::Some), Instant::now());
    assert!(start(&fixture, processes).wait().unwrap().success());
    (bits(&fixture), begun.elapsed())
}

/// A suspended job or a paused container: nobody was heard of for longer than a lease, and nobody has died.
#[test]
fn a_run_that_is_stopped_as_a_whole_goes_on() {
    let fixture = Fixture::new(Pictures::Some);
    let words = [&words(true)[..], &["scheduler.lease=2s"]].concat();
    let mut child = program(&fixture, "run", &words).stdout(Stdio::null()).spawn().unwrap();
    wait_until(&mut child, || steps(&fixture) >= 2);
    let all = family(child.id());
    let tell = |signal| {
        for pid in &all {
            let _ = kill_process(Pid::from_raw(*pid as i32).unwrap(), signal);
        }
    };
    tell(Signal::STOP);
    let before = steps(&fixture);
    std::thread::sleep(Duration::from_secs(4));
    tell(Signal::CONT);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && before < 20, "{text}");
    assert!(!text.contains("has left") && !text.contains("restarting"), "{text}");
    assert_eq!(steps(&fixture), 20);
}

#[test]
#[ignore = "soak"]
fn soak_random_kills() {
    let (threads, processes) = (whole(false), whole(true));
    assert_eq!(threads.0, processes.0);
    let how = |processes: bool| if processes { "processes" } else { "threads" };
    let cell = |(seed, processes)| (format!("{}, seed {seed}", how(processes)), Cut { seed, processes });
    let cells: Vec<(String, Cut)> =
        [false, true].into_iter().flat_map(|how| (1..=8).map(move |seed| (seed, how))).map(cell).collect();
    soak::run("random_kills", &cells, |cut| {
        let (bits, longest) = if cut.processes { &processes } else { &threads };
        survives(cut, bits, *longest)
    });
}
