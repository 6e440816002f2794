//! Fault injection points at which a test or a drill can kill or freeze an engine's process. Without the environment variable they
//! do nothing and cost one look at a cell.
//!
//! `LOONGFORGE_FAULTS="encoder/1@before_send:3=kill encoder/0@after_commit:1=freeze"`: the process of `encoder/1` kills itself when
//! it reaches `before_send` for the third time.

use crate::message::{ActorId, SampleId};
use std::io;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The environment variable.
pub const FAULTS: &str = "LOONGFORGE_FAULTS";

/// The delay of a slow engine.
const SLOW: Duration = Duration::from_millis(700);

/// Points of a checkpoint written in the background: of an engine's files, and of the scheduler's publication. The action `full` is
/// also possible here: the disk has no space left.
pub const SAVE_POINTS: [&str; 6] =
    ["save_create", "save_write", "save_sync", "publish_write", "publish_sync", "publish_rename"];

/// Points of a run that starts over in an existing folder: the old run is moved aside, and removed or put back. They apply to
/// `scheduler/0`; the action `full` is also possible here.
pub const FOLDER_POINTS: [&str; 9] = [
    "aside_begin",
    "aside_move",
    "aside_moved",
    "aside_remove",
    "aside_removed",
    "back_clear",
    "back_cleared",
    "back_move",
    "back_done",
];

/// Points of packing before the first step: a sample was measured, a pack was written, all packs were written except for the
/// ledger. They apply to `scheduler/0`.
pub const PACK_POINTS: [&str; 3] = ["pack_measured", "pack_written", "packs_done"];

/// Points at which a number can become NaN, with the action `nan`: an encoder's input pixels, its features, the gradient before it
/// is summed.
pub const NAN_POINTS: [&str; 3] = ["nan_input", "nan_features", "nan_gradient"];

/// Points at which an encoder can lie, with the action `lie`: features with one row too few, or features under another unit's name
/// as well.
pub const LIE_POINTS: [&str; 2] = ["lie_shape", "lie_claim"];

/// Every point of an engine's thread, in the order in which a step reaches them.
pub const POINTS: [&str; 14] = [
    "before_plan",
    "after_plan",
    "recv_item",
    "before_work",
    "after_work",
    "before_send",
    "after_send",
    "before_backward",
    "before_reduce",
    "after_reduce",
    "before_commit",
    "after_commit",
    "before_save",
    "after_save",
];

/// Points of the scheduler's journal, which apply to `scheduler/0`. The last four are those of its truncation.
pub const JOURNAL_POINTS: [&str; 9] = [
    "before_write",
    "torn_write",
    "after_write",
    "before_sync",
    "after_sync",
    "before_cut",
    "torn_cut",
    "before_rename",
    "after_rename",
];

#[derive(Debug, PartialEq)]
enum Action {
    Kill,
    Freeze,
    Panic,
    Full,
    Slow,
    Nan,
    Lie,
}

#[derive(Debug, PartialEq)]
enum Turns {
    /// The numbers of visits to the point, counted from 1.
    Times(RangeInclusive<u32>),
    /// Every time that this sample is involved.
    Sample(u64),
}

#[derive(Debug)]
struct Rule {
    actor: String,
    point: String,
    turns: Turns,
    action: Action,
    count: AtomicU32,
}

/// Applies faults where the journal is written.
pub fn of_journal(name: &'static str) {
    debug_assert!(JOURNAL_POINTS.contains(&name), "{name} is listed");
    due(ActorId::SCHEDULER, name, &[]).for_each(Rule::act);
}

/// Applies faults where packs are made.
pub fn of_packs(name: &'static str) {
    debug_assert!(PACK_POINTS.contains(&name), "{name} is listed");
    due(ActorId::SCHEDULER, name, &[]).for_each(Rule::act);
}

/// Applies faults at a point of the engine thread of `me`.
pub(super) fn point(me: ActorId, name: &'static str) {
    debug_assert!(POINTS.contains(&name), "{name} is listed");
    due(me, name, &[]).for_each(Rule::act);
}

/// Applies faults before a disk operation.
///
/// # Errors
/// Fails if the environment asks for a full disk.
pub fn io(me: ActorId, name: &'static str) -> io::Result<()> {
    debug_assert!(SAVE_POINTS.contains(&name) || FOLDER_POINTS.contains(&name), "{name} is listed");
    due(me, name, &[]).try_for_each(|rule| {
        rule.act();
        match rule.action {
            Action::Full => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    })
}

/// Returns whether numbers computed from these samples are to be corrupted at this point.
pub fn poison(me: ActorId, name: &'static str, samples: &[SampleId]) -> bool {
    debug_assert!(NAN_POINTS.contains(&name), "{name} is listed");
    let due: Vec<&Rule> = due(me, name, samples).collect();
    due.iter().for_each(|rule| rule.act());
    due.iter().any(|rule| rule.action == Action::Nan)
}

/// Returns whether an encoder is to lie when it sends at this point.
pub fn lies(me: ActorId, name: &'static str) -> bool {
    debug_assert!(LIE_POINTS.contains(&name), "{name} is listed");
    due(me, name, &[]).any(|rule| rule.action == Action::Lie)
}

/// Returns the rules that apply now.
fn due(me: ActorId, name: &'static str, samples: &[SampleId]) -> impl Iterator<Item = &'static Rule> {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let text = std::env::var(FAULTS).unwrap_or_default();
        let parse = |word: &str| word.parse().unwrap_or_else(|why| panic!("{FAULTS}: `{word}`: {why}"));
        text.split_whitespace().map(parse).collect()
    });
    rules.iter().filter(move |rule| {
        let is_me = rule.actor == me.to_string() || rule.actor.strip_suffix("/*") == Some(&me.role.to_string());
        is_me
            && rule.point == name
            && match &rule.turns {
                Turns::Times(times) => times.contains(&(rule.count.fetch_add(1, Relaxed) + 1)),
                Turns::Sample(wanted) => samples.iter().any(|sample| sample.0 == *wanted),
            }
    })
}

impl Rule {
    fn act(&self) {
        use rustix::process::{Signal, getpid, kill_process};
        if matches!(self.action, Action::Kill | Action::Freeze | Action::Full) {
            eprintln!("injected at {}", self.point);
        }
        match self.action {
            Action::Kill => drop(kill_process(getpid(), Signal::KILL)),
            Action::Freeze => drop(kill_process(getpid(), Signal::STOP)),
            Action::Panic => panic!("injected at {}", self.point),
            Action::Full | Action::Nan | Action::Lie => {}
            Action::Slow => std::thread::sleep(SLOW),
        }
    }
}

impl FromStr for Rule {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str =
            "write ACTOR@POINT:N=kill, freeze, panic, slow, full, nan or lie; N may be a range (2-4) or a sample (s17)";
        let (actor, rest) = text.split_once('@').ok_or(FORM)?;
        let (place, action) = rest.split_once('=').ok_or(FORM)?;
        let (point, nth) = place.split_once(':').unwrap_or((place, "1"));
        let action = match action {
            "kill" => Action::Kill,
            "freeze" => Action::Freeze,
            "panic" => Action::Panic,
            "slow" => Action::Slow,
            "nan" if NAN_POINTS.contains(&point) => Action::Nan,
            "lie" if LIE_POINTS.contains(&point) => Action::Lie,
            "full" if SAVE_POINTS.contains(&point) || FOLDER_POINTS.contains(&point) => Action::Full,
            _ => return Err(FORM),
        };
        let points =
            [&POINTS[..], &SAVE_POINTS, &FOLDER_POINTS, &PACK_POINTS, &NAN_POINTS, &LIE_POINTS, &JOURNAL_POINTS];
        if !points.concat().contains(&point) {
            return Err("unknown point");
        }
        let (first, last) = nth.split_once('-').unwrap_or((nth, nth));
        let turns = match nth.strip_prefix('s') {
            Some(sample) => Turns::Sample(sample.parse().map_err(|_| FORM)?),
            None => Turns::Times(first.parse().map_err(|_| FORM)?..=last.parse().map_err(|_| FORM)?),
        };
        Ok(Self { actor: actor.to_owned(), point: point.to_owned(), turns, action, count: AtomicU32::new(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_wrong_ones_refused() {
        let rule: Rule = "encoder/1@before_send:3=kill".parse().unwrap();
        assert_eq!((rule.actor.as_str(), rule.turns, rule.action), ("encoder/1", Turns::Times(3..=3), Action::Kill));
        assert_eq!("encoder/0@recv_item=freeze".parse::<Rule>().unwrap().turns, Turns::Times(1..=1));
        assert_eq!("scheduler/0@publish_sync:2-4=full".parse::<Rule>().unwrap().turns, Turns::Times(2..=4));
        assert_eq!("encoder/*@nan_input:s17=nan".parse::<Rule>().unwrap().turns, Turns::Sample(17));
        for wrong in [
            "encoder/0@recv_item=full",
            "encoder/0@recv_item=nan",
            "encoder/0@nan_input:s=nan",
            "encoder/1",
            "encoder/1@nowhere:1=kill",
            "encoder/1@recv_item:x=kill",
            "a@recv_item=hug",
        ] {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
        }
    }
}
