//! Runs several ranks of a pool on one host, with one process and GPU each, for launchers that start one process per node.

use crate::cli::part::{Beside, Part};
use crate::cli::{UsageError, exit};
use loongforge_actors::StopSignals;
use loongforge_actors::launch::WantedActor;
use loongforge_core::schedule::PoolSizes;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// The time between two looks at the ranks.
const INTERVAL: Duration = Duration::from_millis(200);

/// Starts this command once for each of `count` ranks and waits for them. They end together: where one fails, the others are killed, and
/// its exit code is this process's. A signal that asks this process to stop is passed on to each rank.
///
/// The pod or node `n` has the ranks from `n * count` on; see [`node_of`].
pub fn run(count: u32, part: &Part, pools: &PoolSizes) -> anyhow::Result<ExitCode> {
    let [WantedActor { pool, .. }] = part.actors[..] else {
        return Err(UsageError("--ranks needs --role encoder or --role foundation".into()).into());
    };
    let len = pools.of(pool);
    let node = node_of(|name| std::env::var(name).ok(), len.checked_div(count).unwrap_or(0));
    let first = node.saturating_mul(count);
    if count == 0 || !len.is_multiple_of(count) || first >= len {
        let what = format!("--ranks {count} on node {node}: the run has {len} {pool} actors");
        return Err(UsageError(what).into());
    }
    let (program, words) = (std::env::current_exe()?, without_ranks(std::env::args_os().skip(1)));
    let mut ranks = Beside::default();
    for local in 0..count {
        let mut command = Command::new(&program);
        command.args(&words).env("LOCAL_RANK", local.to_string());
        // The rank's place in the pool is said by the variable below.
        command.env_remove("JOB_COMPLETION_INDEX").env_remove("RANK").env_remove("WORLD_SIZE");
        ranks.start(command, Some(first + local))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(ExitCode::from(runtime.block_on(wait(&mut ranks))?))
}

/// Waits for the ranks to end, and returns the exit code.
async fn wait(ranks: &mut Beside) -> std::io::Result<u8> {
    let (mut signals, mut is_asked) = (StopSignals::new()?, false);
    loop {
        let mut are_done = true;
        for rank in &mut ranks.0 {
            match rank.try_wait()? {
                None => are_done = false,
                Some(status) if status.success() => {}
                // The run lets each go in its own time.
                Some(status) if is_asked && exit::of_status(status) == exit::PREEMPTED => {}
                Some(status) => return Ok(status.code().map_or(exit::LOST, |code| code as u8)),
            }
        }
        if are_done {
            return Ok(if is_asked { exit::PREEMPTED } else { 0 });
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = signals.next() => {
                is_asked = true;
                for rank in &mut ranks.0 {
                    if rank.try_wait()?.is_none() {
                        let _ = kill_process(Pid::from_child(rank), Signal::TERM);
                    }
                }
            }
        }
    }
}

/// Variables by which launchers number the processes that they start, and say how many there are.
const RANKS: [(&str, &str); 5] = [
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
];

/// Returns which of the pool's `nodes` this one is: the index of an indexed job, or the rank of a launcher that has started a process on
/// each of them; else 0.
fn node_of(variable: impl Fn(&str) -> Option<String>, nodes: u32) -> u32 {
    let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
    let of_launcher = |(rank, world): (&str, &str)| number(rank).filter(|_| number(world) == Some(nodes));
    number("JOB_COMPLETION_INDEX").or_else(|| RANKS.into_iter().find_map(of_launcher)).unwrap_or(0)
}

/// Returns the words of a command line without `--ranks N`.
fn without_ranks(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut words, mut kept) = (words, Vec::new());
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--ranks") => drop(words.next()),
            Some(word) if word.starts_with("--ranks=") => {}
            _ => kept.push(word),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_known_by_its_index_or_by_the_rank_of_a_launcher_with_a_process_on_each() {
        let of = |text: &str, nodes: u32| {
            let pairs: Vec<(&str, &str)> = text.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
            node_of(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()), nodes)
        };
        assert_eq!(of("JOB_COMPLETION_INDEX=1 RANK=0 WORLD_SIZE=2", 2), 1);
        assert_eq!(of("RANK=1 WORLD_SIZE=2", 2), 1);
        assert_eq!(of("SKYPILOT_NODE_RANK=2 SKYPILOT_NUM_NODES=3", 3), 2);
        assert_eq!(of("SLURM_PROCID=1 SLURM_NTASKS=2", 2), 1);
        // Its processes are not those of the pool's nodes.
        assert_eq!([of("RANK=1 WORLD_SIZE=3", 2), of("RANK=1", 2), of("", 1)], [0; 3]);
    }

    #[test]
    fn ranks_are_told_to_stop_and_waited_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            let _caught = StopSignals::new().unwrap();
            let mut ranks = Beside::default();
            // The second one does not catch the signal.
            for script in ["trap 'exit 3' TERM; while :; do kill -TERM $PPID; sleep 0.05; done", "exec sleep 60"] {
                let mut command = Command::new("sh");
                command.args(["-c", script]);
                ranks.start(command, None).unwrap();
            }
            wait(&mut ranks).await.unwrap()
        });
        assert_eq!(ended, exit::PREEMPTED);
    }

    #[test]
    fn a_rank_is_started_by_the_same_words_without_their_number() {
        let words = |line: &str| without_ranks(line.split(' ').map(OsString::from)).join(" ".as_ref());
        assert_eq!(words("run a.yaml --ranks 8 --role foundation"), "run a.yaml --role foundation");
        assert_eq!(words("run a.yaml --role foundation --ranks=8 x=1"), "run a.yaml --role foundation x=1");
    }
}
