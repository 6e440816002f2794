//! Parcels on their way to a rank.

use super::edges::Parcel;

/// Parcels by the time of their arrival. They are read from the beginning of one small piece of memory, which is used again.
#[derive(Default)]
pub(super) struct Inbox {
    parcels: Vec<Parcel>,
    /// The number of parcels, the first ones, that were read.
    num_read: usize,
}

impl Inbox {
    /// Puts a parcel behind those that are there no later.
    pub fn post(&mut self, parcel: Parcel) {
        let later = self.unread().iter().rev().take_while(|other| other.time > parcel.time).count();
        self.parcels.insert(self.parcels.len() - later, parcel);
    }

    /// Returns the time at which the next one is there.
    pub fn next_time(&self) -> Option<f64> {
        self.unread().first().map(|parcel| parcel.time)
    }

    /// Returns the next that is there by now.
    pub fn read(&mut self, now: f64) -> Option<Parcel> {
        let parcel = self.unread().first().filter(|parcel| parcel.time <= now).copied();
        match parcel {
            Some(_) => self.num_read += 1,
            None => drop(self.parcels.drain(..std::mem::take(&mut self.num_read))),
        }
        parcel
    }

    /// Returns the parcels that are here and not looked at, in the order of their times.
    pub fn unread(&self) -> &[Parcel] {
        &self.parcels[self.num_read..]
    }
}

#[cfg(test)]
mod tests {
    use super::super::edges::CargoKind;
    use super::*;

    #[test]
    fn parcels_are_read_in_the_order_of_their_times_and_then_of_their_posting() {
        let parcel = |index, time| Parcel { kind: CargoKind::Tokens, step: 0, index, from: 1, to: 2, bytes: 0, time };
        let mut inbox = Inbox::default();
        [parcel(0, 2.0), parcel(1, 1.0), parcel(2, 2.0), parcel(3, 3.0)].into_iter().for_each(|it| inbox.post(it));
        let read = |inbox: &mut Inbox, now| inbox.read(now).map(|parcel| parcel.index);
        assert_eq!([1.5, 1.5].map(|now| read(&mut inbox, now)), [Some(1), None]);
        assert_eq!(read(&mut inbox, 2.0), Some(0));
        // While it is being read.
        inbox.post(parcel(4, 2.0));
        assert_eq!([2.0; 3].map(|now| read(&mut inbox, now)), [Some(2), Some(4), None]);
        assert_eq!((inbox.next_time(), inbox.unread().len()), (Some(3.0), 1));
    }
}
