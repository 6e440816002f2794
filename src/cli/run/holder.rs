//! The holder of a run's folder: a process, told from every other one, also from a later one with the same number.

use loongforge_core::clock::since_epoch;
use loongforge_core::observe::Utc;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A process that holds a lock, as the lock's file names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub host: String,
    /// The time at which it took the lock, UTC.
    pub since: String,
    /// The boot of the machine, and the namespace that `pid` is counted in: only there it can be looked at.
    boot: String,
    pid_namespace: String,
    /// Start of the process, in clock ticks since the boot.
    started: u64,
    /// Different for every lock that was ever taken.
    pub token: String,
}

/// The state of a holder, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The holder is this run itself: a scheduler before this one has taken the lock for the process that keeps both.
    Ours,
    Alive,
    Dead,
    /// The holder runs on another machine or in another container, where its process cannot be looked at.
    Elsewhere,
}

impl Holder {
    /// Returns the holder that process `pid` of this machine is from now on.
    pub fn of(pid: u32) -> Self {
        let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let now = since_epoch();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            pid,
            host: line("/proc/sys/kernel/hostname"),
            since: Utc::of(now.as_secs()).seconds(),
            boot: line("/proc/sys/kernel/random/boot_id"),
            pid_namespace: namespace.display().to_string(),
            started: stat(pid).map_or(0, |(_, started)| started),
            token: format!("{pid}-{:x}", now.as_nanos()),
        }
    }

    /// Returns whether this holder lives, as far as `me` can know.
    pub fn life(&self, me: &Self) -> Life {
        if me.boot.is_empty() || (&self.boot, &self.pid_namespace) != (&me.boot, &me.pid_namespace) {
            return Life::Elsewhere;
        }
        match (self.pid, self.started) == (me.pid, me.started) {
            true => Life::Ours,
            false if self.is_alive() => Life::Alive,
            false => Life::Dead,
        }
    }

    /// Returns whether a process of this machine with this number and this start is there.
    fn is_alive(&self) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        if test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
            return false;
        }
        // A process that has ended and was not waited for does nothing any more. One that is hidden is alive.
        stat(self.pid).is_none_or(|(state, started)| started == self.started && state != 'Z' && state != 'X')
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on host {}, since {}", self.pid, self.host, self.since)
    }
}

/// Returns the state and start of a process.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_told_from_a_later_one_with_its_number() {
        let me = Holder::of(std::process::id());
        assert_eq!(me.life(&me), Life::Ours);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let other = Holder::of(child.id());
        assert_eq!((other.life(&me), other.life(&Holder::of(child.id()))), (Life::Alive, Life::Ours));
        let earlier = Holder { started: other.started - 1, ..other.clone() };
        assert_eq!(earlier.life(&me), Life::Dead);
        for elsewhere in
            [Holder { boot: "b".into(), ..other.clone() }, Holder { pid_namespace: "n".into(), ..other.clone() }]
        {
            assert_eq!(elsewhere.life(&me), Life::Elsewhere);
        }
        child.kill().unwrap();
        // Nobody has waited for it yet.
        while stat(child.id()).unwrap().0 != 'Z' {
            std::thread::yield_now();
        }
        assert_eq!(other.life(&me), Life::Dead);
        child.wait().unwrap();
        assert_eq!(other.life(&me), Life::Dead);
    }
}
