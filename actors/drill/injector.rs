//! The injector decides what happens to one message.

use super::active::Active;
use super::script::{Fault, Rate};
use loongforge_core::message::ActorId;
use loongforge_core::rng::Rng;
use std::collections::BTreeSet;
use std::time::Duration;

/// The first bytes of messages before there is a session: nothing is learned from a run that does not come together.
const JOINING: &[u8] = b"LFRG";

/// One direction of one connection.
pub struct FaultInjector {
    pub from: ActorId,
    pub to: ActorId,
    seed: u64,
    num_messages: u64,
    num_bytes: u64,
    /// Cuts that were made.
    done: BTreeSet<usize>,
}

/// The faults that the injector applies to a message.
#[derive(Debug, Default, PartialEq)]
pub struct Injection {
    pub is_lost: bool,
    pub comes_twice: bool,
    pub comes_late: bool,
    pub delay: Duration,
    /// Bytes a second.
    pub rate: Option<u64>,
    /// The connection ends after so many bytes of it.
    pub cut: Option<usize>,
}

impl FaultInjector {
    /// `seed`: of the run and the connection's number.
    pub fn new(from: ActorId, to: ActorId, seed: u64) -> Self {
        let names = [from, to].map(|actor| (actor.role as u64) << 32 | u64::from(actor.index));
        let seed = names.into_iter().fold(seed, mix);
        Self { from, to, seed, num_messages: 0, num_bytes: 0, done: BTreeSet::new() }
    }

    /// Returns the faults that the next message gets; a bit of it may be flipped.
    pub fn next(&mut self, active: &Active, message: &mut [u8]) -> Injection {
        let mut injection = Injection::default();
        if message.starts_with(JOINING) {
            return injection;
        }
        self.num_messages += 1;
        for (index, verb) in active.between(self.from, self.to) {
            let drawn = mix(mix(self.seed, index as u64), self.num_messages);
            let hits = |rate: &Rate| match rate {
                Rate::Once => active.is_first(index, self.from, self.to),
                Rate::Share(share) => (drawn >> 11) as f64 / ((1_u64 << 53) as f64) < *share,
            };
            let happens = match verb {
                Fault::Delay { least, most } => {
                    let part = (mix(drawn, 1) >> 11) as f64 / (1_u64 << 53) as f64;
                    injection.delay += *least + (*most - *least).mul_f64(part);
                    true
                }
                Fault::Throttle { rate } => {
                    injection.rate = Some(injection.rate.map_or(*rate, |other| other.min(*rate)));
                    true
                }
                Fault::Flip { rate } if hits(rate) && !message.is_empty() => {
                    let bit = mix(drawn, 2) as usize % (8 * message.len());
                    message[bit / 8] ^= 1 << (bit % 8);
                    true
                }
                Fault::Duplicate { rate } if hits(rate) => {
                    injection.comes_twice = true;
                    true
                }
                Fault::Reorder { rate } if hits(rate) => {
                    injection.comes_late = true;
                    true
                }
                Fault::Lose { rate } if hits(rate) => {
                    injection.is_lost = true;
                    true
                }
                Fault::Cut { after } if *after < self.num_bytes + message.len() as u64 && self.done.insert(index) => {
                    injection.cut = Some(after.saturating_sub(self.num_bytes) as usize);
                    true
                }
                _ => false,
            };
            if happens {
                active.happened(index);
            }
        }
        self.num_bytes += message.len() as u64;
        injection
    }
}

/// Returns a random number determined by these two.
pub fn mix(a: u64, b: u64) -> u64 {
    Rng::new(&[a, b]).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_fates_and_shares_are_kept() {
        let script = "encoder/1 -> scheduler: flip 10%; encoder/1 -> scheduler: lose 50%; encoder/0 -> *: drop";
        let injector = |seed: u64| {
            let active = Active::new(&script.parse().unwrap());
            let mut injector = FaultInjector::new(ActorId::encoder(1), ActorId::SCHEDULER, seed);
            let all: Vec<(Vec<u8>, bool)> = (0..2000)
                .map(|_| {
                    let mut message = vec![0; 10];
                    let injection = injector.next(&active, &mut message);
                    (message, injection.is_lost)
                })
                .collect();
            (all, active.counts().map(|(_, count)| count).collect::<Vec<_>>())
        };
        let (all, counts) = injector(3);
        assert_eq!((&all, &counts), (&injector(3).0, &injector(3).1));
        assert_ne!(all, injector(4).0);
        let ones = |message: &Vec<u8>| message.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let flipped = all.iter().filter(|(message, _)| ones(message) == 1).count();
        assert!(all.iter().all(|(message, _)| ones(message) <= 1));
        assert_eq!((counts[0], counts[2]), (flipped as u64, 0));
        assert!((150..250).contains(&flipped) && (900..1100).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn a_cut_is_where_it_was_said() {
        let active = Active::new(&"* -> *: cut after 25 bytes".parse().unwrap());
        let mut injector = FaultInjector::new(ActorId::encoder(1), ActorId::SCHEDULER, 1);
        let cuts: Vec<_> = (0..4).map(|_| injector.next(&active, &mut [0; 10]).cut).collect();
        assert_eq!(cuts, [None, None, Some(5), None]);
    }
}
