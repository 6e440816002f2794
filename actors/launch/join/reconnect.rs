//! The peers that may reconnect, and the wires that they reconnect to.

use crate::random;
use loongforge_core::message::ActorId;
use loongforge_core::transport::{Raw, Returned, refuse};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections that may wait to be attended to.
const QUEUE: usize = 4;

/// Wires that end at this process, by who is at their other end. Shared by its clones.
#[derive(Clone, Default)]
pub struct ReconnectRegistry(Arc<Mutex<BTreeMap<ActorId, Registration>>>);

struct Registration {
    number: u128,
    returned: flume::Sender<Returned>,
    /// The last attempt that was heard of: earlier ones are words that somebody says again.
    attempt: u64,
}

/// Draws a wire's number, unpredictable and not 0.
pub(super) fn draw() -> u128 {
    random::bits().max(1)
}

impl ReconnectRegistry {
    /// Registers a new wire of `from`: returns its number, and where it reconnects.
    pub fn expect(&self, from: ActorId) -> (u128, flume::Receiver<Returned>) {
        let number = draw();
        (number, self.expect_again(from, number))
    }

    /// Registers a wire with a known number: returns where it reconnects.
    pub fn expect_again(&self, from: ActorId, number: u128) -> flume::Receiver<Returned> {
        let (sender, returned) = flume::bounded(QUEUE);
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, place| !place.returned.is_disconnected());
        places.insert(from, Registration { number, returned: sender, attempt: 0 });
        returned
    }

    /// Returns whether there is a wire of `from`.
    pub fn knows(&self, from: ActorId) -> bool {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(&from).is_some_and(|place| !place.returned.is_disconnected())
    }

    /// Gives the connection of `from` to its wire, or turns it away. `number`: the wire's, or 0 where `from` was never
    /// greeted.
    pub async fn come_back(&self, from: ActorId, number: u128, attempt: u64, received: u64, raw: Raw) {
        let returned = self.accept(from, number, attempt);
        match returned {
            Some(returned) => drop(returned.send_async(Returned { raw, received }).await),
            None => {
                tracing::warn!("{from} reconnects to an unknown connection");
                refuse(raw).await;
            }
        }
    }

    fn accept(&self, from: ActorId, number: u128, attempt: u64) -> Option<flume::Sender<Returned>> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.get_mut(&from)?;
        let is_it = (number == place.number || number == 0) && attempt > place.attempt;
        is_it.then(|| {
            place.attempt = attempt;
            place.returned.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_were_said_before_are_not_heard_again() {
        let returns = ReconnectRegistry::default();
        let me = ActorId::encoder(1);
        let (number, _returned) = returns.expect(me);
        assert!(returns.accept(me, number, 1).is_some());
        assert!(returns.accept(me, number, 1).is_none(), "the same words");
        assert!(returns.accept(me, number.wrapping_add(1), 2).is_none(), "another wire");
        assert!(returns.accept(ActorId::encoder(2), number, 2).is_none(), "somebody else's");
        assert!(returns.accept(me, 0, 2).is_some(), "who was never greeted");
        assert!(returns.accept(me, number, 2).is_none());
    }
}
