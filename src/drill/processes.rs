//! The processes of a run that this program has started: its children, by what they are.

use loongforge_actors::drill::Pattern;
use loongforge_core::message::{ActorId, PoolName, Role};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// The environment's variable with an actor's index; the parent sets it.
const INDEX: &[u8] = b"LOONGFORGE_INDEX=";

pub struct Members {
    run: u32,
}

impl Members {
    /// Makes the processes of the run that is process `run`.
    pub fn new(run: u32) -> Self {
        Self { run }
    }

    /// Kills who is meant; returns how many.
    pub fn kill(&mut self, pattern: Pattern) -> u64 {
        self.find(pattern).into_iter().filter(|&process| signal(process, Signal::KILL)).count() as u64
    }

    /// Stops who is meant, without a word; returns the processes.
    pub fn freeze(&mut self, pattern: Pattern) -> Vec<u32> {
        self.find(pattern).into_iter().filter(|&process| signal(process, Signal::STOP)).collect()
    }

    /// Continues a process that was frozen; does nothing if it is no longer a child of the run.
    pub fn thaw(&mut self, process: u32) {
        // It may have been given up and killed by now; its number is not another's yet, as its parent's is not.
        if self.children().contains(&process) {
            signal(process, Signal::CONT);
        }
    }

    fn find(&self, pattern: Pattern) -> Vec<u32> {
        if pattern.pool == Some(PoolName::SCHEDULER) {
            return vec![self.run];
        }
        let matches = |process: &u32| actor(*process).is_some_and(|actor| pattern.matches(actor));
        self.children().into_iter().filter(matches).collect()
    }

    fn children(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.run)).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let lists: Vec<String> = lists.collect();
        lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|word| word.parse().ok()).collect()
    }
}

/// Returns the actor that a process was started as.
fn actor(process: u32) -> Option<ActorId> {
    let words = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let mut words = words.split(|&byte| byte == 0);
    words.find(|word| *word == b"--role")?;
    let role: Role = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let named = words.next().filter(|word| *word == b"--pool").and_then(|_| words.next());
    let pool = named.map_or(Some(ActorId::new(role, 0).pool), |word| std::str::from_utf8(word).ok()?.parse().ok())?;
    let environment = fs::read(format!("/proc/{process}/environ")).ok()?;
    let index = environment.split(|&byte| byte == 0).find_map(|variable| variable.strip_prefix(INDEX))?;
    Some(ActorId { role, pool, index: std::str::from_utf8(index).ok()?.parse().ok()? })
}

fn signal(process: u32, signal: Signal) -> bool {
    Pid::from_raw(process as i32).is_some_and(|process| kill_process(process, signal).is_ok())
}
