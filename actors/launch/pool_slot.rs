//! One place of an encoder pool: who has it, and when those who had it died.

use super::child::CRASH_WINDOW;
use loongforge_core::message::ActorId;
use std::time::Instant;

/// Number of deaths in one place within `CRASH_WINDOW` after which it is given up.
const MAX_DEATHS: usize = 3;

#[derive(Default)]
pub(super) struct PoolSlot {
    /// Nobody: it is to be filled.
    pub holder: Option<ActorId>,
    /// It is let go: nobody follows.
    pub leaves: bool,
    pub deaths: Vec<Instant>,
}

impl PoolSlot {
    pub fn of(holder: ActorId) -> Self {
        Self { holder: Some(holder), ..Self::default() }
    }

    pub fn died(&mut self, at: Instant) {
        self.deaths.retain(|death| death.elapsed() < CRASH_WINDOW);
        self.deaths.push(at);
        self.holder = None;
    }

    pub fn is_given_up(&self) -> bool {
        self.deaths.len() > MAX_DEATHS
    }
}
