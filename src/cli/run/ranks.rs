//! Runs several ranks of a pool on one host, with one process and GPU each, for launchers that start one process per node.

use crate::cli::part::{Beside, Part};
use crate::cli::{UsageError, exit};
use loongforge_actors::launch::WantedActor;
use loongforge_core::schedule::PoolSizes;
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// How often the ranks are looked after.
const INTERVAL: Duration = Duration::from_millis(200);

/// Starts this command once for each of `count` ranks and waits for them. They are a gang: where one fails, the others
/// are killed, and its exit code is this process's.
///
/// The pod or node `n` (`JOB_COMPLETION_INDEX`, else 0) has the ranks from `n * count` on.
pub fn run(count: u32, part: &Part, pools: &PoolSizes) -> anyhow::Result<ExitCode> {
    let [WantedActor { pool, .. }] = part.actors[..] else {
        return Err(UsageError("--ranks needs --role encoder or --role foundation".into()).into());
    };
    let node = std::env::var("JOB_COMPLETION_INDEX").ok().and_then(|text| text.parse().ok()).unwrap_or(0u32);
    let (first, len) = (node.saturating_mul(count), pools.of(pool));
    if count == 0 || len % count != 0 || first >= len {
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
    loop {
        let mut are_done = true;
        for rank in &mut ranks.0 {
            match rank.try_wait()? {
                None => are_done = false,
                Some(status) if status.success() => {}
                Some(status) => return Ok(ExitCode::from(status.code().map_or(exit::LOST, |code| code as u8))),
            }
        }
        if are_done {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The words of a command line without `--ranks N`.
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
    fn a_rank_is_started_by_the_same_words_without_their_number() {
        let words = |line: &str| without_ranks(line.split(' ').map(OsString::from)).join(" ".as_ref());
        assert_eq!(words("run a.yaml --ranks 8 --role foundation"), "run a.yaml --role foundation");
        assert_eq!(words("run a.yaml --role foundation --ranks=8 x=1"), "run a.yaml --role foundation x=1");
    }
}
