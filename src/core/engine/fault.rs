//! Points in an engine's life at which a test, or a user's fault drill, has its process die or freeze. Nothing happens, and
//! nothing but one look at a cell is spent, unless the environment says so.
//!
//! `LOONGFORGE_FAULTS="encoder/1@before_send:3=kill encoder/0@after_commit:1=freeze"`: the process of `encoder/1` kills
//! itself when it comes to `before_send` for the third time.

use crate::message::ActorId;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The environment's variable.
pub const FAULTS: &str = "LOONGFORGE_FAULTS";

/// Every point, in the order in which a step comes to them.
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

#[derive(Debug, PartialEq)]
enum Action {
    Kill,
    Freeze,
    Panic,
}

#[derive(Debug)]
struct Rule {
    actor: String,
    point: String,
    nth: u32,
    action: Action,
    count: AtomicU32,
}

/// Called by the engine thread of `me` at a point.
pub(super) fn point(me: ActorId, name: &'static str) {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    debug_assert!(POINTS.contains(&name), "{name} is listed");
    let rules = RULES.get_or_init(|| {
        let text = std::env::var(FAULTS).unwrap_or_default();
        let parse = |word: &str| word.parse().unwrap_or_else(|why| panic!("{FAULTS}: `{word}`: {why}"));
        text.split_whitespace().map(parse).collect()
    });
    for rule in rules {
        if rule.point == name && rule.actor == me.to_string() && rule.count.fetch_add(1, Relaxed) + 1 == rule.nth {
            rule.act();
        }
    }
}

impl Rule {
    fn act(&self) {
        use rustix::process::{Signal, getpid, kill_process};
        match self.action {
            Action::Kill => drop(kill_process(getpid(), Signal::KILL)),
            Action::Freeze => drop(kill_process(getpid(), Signal::STOP)),
            Action::Panic => panic!("injected at {}", self.point),
        }
    }
}

impl FromStr for Rule {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "write ACTOR@POINT:N=kill, freeze or panic";
        let (actor, rest) = text.split_once('@').ok_or(FORM)?;
        let (place, action) = rest.split_once('=').ok_or(FORM)?;
        let (point, nth) = place.split_once(':').unwrap_or((place, "1"));
        let action = match action {
            "kill" => Action::Kill,
            "freeze" => Action::Freeze,
            "panic" => Action::Panic,
            _ => return Err(FORM),
        };
        if !POINTS.contains(&point) {
            return Err("there is no such point");
        }
        let nth = nth.parse().map_err(|_| FORM)?;
        Ok(Self { actor: actor.to_owned(), point: point.to_owned(), nth, action, count: AtomicU32::new(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_wrong_ones_refused() {
        let rule: Rule = "encoder/1@before_send:3=kill".parse().unwrap();
        assert_eq!((rule.actor.as_str(), rule.nth, rule.action), ("encoder/1", 3, Action::Kill));
        assert_eq!("encoder/0@recv_item=freeze".parse::<Rule>().unwrap().nth, 1);
        for wrong in ["encoder/1", "encoder/1@nowhere:1=kill", "encoder/1@recv_item:x=kill", "a@recv_item=hug"] {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
        }
    }
}
