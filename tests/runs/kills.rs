//! Kills at random moments, each followed by `--resume`: the run comes to the bits of the one that nothing happened to.

use crate::diffusion::{Captioned, WAN};
use crate::fixture::{Fixture, Pictures};
use crate::processes::{losses_in, program_in, wait_until};
use crate::soak::{self, Cell};
use loongforge::core::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Kills of a run, at most.
const KILLS: usize = 4;

/// Losses of all steps, and the hashes of the files of the last checkpoint's weights.
type Bits = (Vec<String>, Vec<String>);

/// Says what a run trains.
#[derive(Clone, Copy)]
enum Model {
    /// A language model with a vision tower.
    Seeing,
    /// A diffusion transformer with averages of its weights; its text tower, which is trained as well, and its autoencoder have pools of
    /// their own.
    Wan,
}

struct Cut {
    seed: u64,
    model: Model,
    processes: bool,
}

/// A run of 20 steps in a folder of its own.
enum Run {
    Seeing(Fixture),
    Wan(Captioned),
}

impl Run {
    fn new(model: Model) -> Self {
        match model {
            Model::Seeing => Self::Seeing(Fixture::new(Pictures::Some)),
            Model::Wan => Self::Wan(Captioned::new(WAN, true)),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Seeing(fixture) => fixture.path(),
            Self::Wan(captioned) => captioned.path(),
        }
    }

    /// Returns the words of a run that is saved often.
    fn words(&self, processes: bool) -> Vec<&'static str> {
        // Processes that decode are killed as well.
        let common = ["--resume", "run.deterministic=true", "checkpoint.every_steps=3", "security.sandbox=auto"];
        let own: &[&str] = match self {
            Self::Seeing(_) => &["pools.encoder.replicas=2"],
            Self::Wan(_) => {
                &["train.steps=20", "pools.text={threads: 1, replicas: 2}", "pools.vae={threads: 1, replicas: 2}"]
            }
        };
        common.iter().chain(own).copied().chain(processes.then_some("--processes")).collect()
    }

    fn bits(&self) -> Bits {
        let run = self.path().join("run");
        let text = fs::read_to_string(run.join("checkpoints/step-00000020/MANIFEST.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
        let files = manifest["files"].as_object().unwrap().iter();
        let weights = files.filter(|(name, _)| name.ends_with(".safetensors"));
        (losses_in(&run), weights.map(|(name, file)| format!("{name} {}", file["sha256"])).collect())
    }

    fn start(&self, processes: bool) -> Child {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path().join("said")).unwrap();
        let mut command = program_in(self.path(), "run", &self.words(processes));
        command.env("OMP_NUM_THREADS", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn steps(&self) -> usize {
        // The last line may be half written.
        fs::read(self.path().join("run/metrics.jsonl"))
            .map_or(0, |text| text.iter().filter(|byte| **byte == b'\n').count())
    }

    fn said(&self) -> String {
        fs::read_to_string(self.path().join("said")).unwrap()
    }
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

/// Runs to the end, with kills at moments that the seed gives; says what was killed after how many steps.
fn survives(cut: &Cut, whole: &Bits, longest: Duration) -> Result<Cell, String> {
    let run = Run::new(cut.model);
    let mut rng = Rng::new(&[cut.seed]);
    let mut random = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut killed = Vec::new();
    for start_of in 0.. {
        let mut child = run.start(cut.processes);
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
            killed.push(format!("{} after {} steps", name(victim), run.steps()));
            let _ = kill_process(Pid::from_raw(victim as i32).unwrap(), Signal::KILL);
            if victim == child.id() {
                break;
            }
        }
        if child.wait().unwrap().success() {
            break;
        }
        if start_of > KILLS {
            return Err(format!("it does not end: {}", run.said()));
        }
    }
    if killed.is_empty() {
        return Err("it ended before it was killed".to_owned());
    }
    match run.bits() == *whole {
        true => Ok(Cell::Passed(format!("{} kills: {}", killed.len(), killed.join(", ")))),
        false => Err(format!("other bits after {}: {}", killed.join(", "), run.said())),
    }
}

/// Returns the bits of a run that is not disturbed, and the time that it takes.
fn whole(model: Model, processes: bool) -> (Bits, Duration) {
    let (run, begun) = (Run::new(model), Instant::now());
    assert!(run.start(processes).wait().unwrap().success(), "{}", run.said());
    (run.bits(), begun.elapsed())
}

#[test]
fn a_diffusion_run_that_is_killed_ends_with_the_bits_of_one_that_was_not() {
    let (expected, _) = whole(Model::Wan, false);
    // Averages are in the files of the optimizer's state.
    assert!(expected.1.iter().any(|file| file.starts_with("optimizer-foundation")), "{:?}", expected.1);
    let run = Run::new(Model::Wan);
    // Before the first checkpoint, and between two.
    for steps in [2, 8] {
        let mut child = run.start(false);
        wait_until(&mut child, || run.steps() >= steps);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(run.start(false).wait().unwrap().success(), "{}", run.said());
    assert_eq!(run.bits(), expected);
}

/// A suspended job or a paused container: nobody was heard of for longer than a lease, and nobody has died.
#[test]
fn a_run_that_is_stopped_as_a_whole_goes_on() {
    let run = Run::new(Model::Seeing);
    let words = [&run.words(true)[..], &["scheduler.lease=2s"]].concat();
    let mut child = program_in(run.path(), "run", &words).stdout(Stdio::null()).spawn().unwrap();
    wait_until(&mut child, || run.steps() >= 2);
    let all = family(child.id());
    let tell = |signal| {
        for pid in &all {
            let _ = kill_process(Pid::from_raw(*pid as i32).unwrap(), signal);
        }
    };
    tell(Signal::STOP);
    let before = run.steps();
    std::thread::sleep(Duration::from_secs(4));
    tell(Signal::CONT);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && before < 20, "{text}");
    assert!(!text.contains("has left") && !text.contains("restarting"), "{text}");
    assert_eq!(run.steps(), 20);
}

#[test]
#[ignore = "soak"]
fn soak_random_kills() {
    let wholes = [Model::Seeing, Model::Wan].map(|model| {
        let [threads, processes] = [false, true].map(|processes| whole(model, processes));
        assert_eq!(threads.0, processes.0);
        [threads, processes]
    });
    let cell = |(seed, model, processes): (u64, Model, bool)| {
        let of = if matches!(model, Model::Wan) { "diffusion, " } else { "" };
        let how = if processes { "processes" } else { "threads" };
        (format!("{of}{how}, seed {seed}"), Cut { seed, model, processes })
    };
    let seeing = [false, true].into_iter().flat_map(|how| (1..=8).map(move |seed| (seed, Model::Seeing, how)));
    let wan = [false, true].into_iter().flat_map(|how| (1..=4).map(move |seed| (seed, Model::Wan, how)));
    let cells: Vec<(String, Cut)> = seeing.chain(wan).map(cell).collect();
    soak::run("random_kills", &cells, |cut| {
        let (bits, longest) = &wholes[cut.model as usize][usize::from(cut.processes)];
        survives(cut, bits, *longest)
    });
}
