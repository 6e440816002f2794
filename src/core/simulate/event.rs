//! The events of a simulation, as small numbers for the [`Clock`](super::clock::Clock).

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimEvent {
    /// A job on a rank's own device ends.
    Done(u32),
    /// Jobs on the shared cores may end.
    Cores(u32),
    /// A parcel for a rank that did nothing is there.
    Mail(u32),
    /// Hidden states for a rank came from the stage before.
    Forward(u32),
    /// Their gradients came from the stage after.
    Back(u32),
    /// A pool's reduction ends.
    Reduced(u32),
    /// Commands come from the scheduler: the next of `Simulation::outputs`.
    Outputs,
    /// Events come to it: the next of `Simulation::inputs`.
    Inputs,
}

/// Bits of the kind.
const KIND: u32 = 3;
/// Bits of all.
pub(super) const BITS: u32 = 30;
/// Ranks, and stamps of cores, are below.
pub(super) const MOST: u32 = 1 << (BITS - KIND);

impl From<SimEvent> for u32 {
    fn from(happening: SimEvent) -> Self {
        let (kind, of) = match happening {
            SimEvent::Done(rank) => (0, rank),
            SimEvent::Cores(stamp) => (1, stamp),
            SimEvent::Mail(rank) => (2, rank),
            SimEvent::Forward(rank) => (3, rank),
            SimEvent::Back(rank) => (4, rank),
            SimEvent::Reduced(pool) => (5, pool),
            SimEvent::Outputs => (6, 0),
            SimEvent::Inputs => (7, 0),
        };
        debug_assert!(of < MOST);
        of << KIND | kind
    }
}

impl From<u32> for SimEvent {
    fn from(number: u32) -> Self {
        let of = number >> KIND;
        match number & ((1 << KIND) - 1) {
            0 => Self::Done(of),
            1 => Self::Cores(of),
            2 => Self::Mail(of),
            3 => Self::Forward(of),
            4 => Self::Back(of),
            5 => Self::Reduced(of),
            6 => Self::Outputs,
            _ => Self::Inputs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_tell_what_they_were_made_of() {
        let last = MOST - 1;
        let of = [SimEvent::Done, SimEvent::Cores, SimEvent::Mail, SimEvent::Forward, SimEvent::Back];
        let with_rank = of.into_iter().flat_map(|of| [of(0), of(last)]);
        for happening in with_rank.chain([SimEvent::Reduced(1), SimEvent::Outputs, SimEvent::Inputs]) {
            let number = u32::from(happening);
            assert!(number >> BITS == 0 && SimEvent::from(number) == happening, "{happening:?}");
        }
    }
}
