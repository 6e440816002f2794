//! Fast maps and sets of actors, for thousands of engines that report and apply every step.

use crate::message::{ActorId, PoolName, Role};
use serde::{Deserialize, Serialize};

/// A pool, and its actors' values by their numbers.
type OfPool<T> = ((Role, PoolName), Vec<Option<T>>);

/// A map from actors, in the order of their roles, pools and numbers. The numbers are those of a run's actors: small.
#[derive(Serialize, Deserialize)]
pub(super) struct ByActor<T> {
    /// The pools in their order, since a run has few, each with its values by number.
    pools: Vec<OfPool<T>>,
    len: usize,
}

impl<T> Default for ByActor<T> {
    fn default() -> Self {
        Self { pools: Vec::new(), len: 0 }
    }
}

impl<T> ByActor<T> {
    /// Inserts a value and returns the previous one.
    pub fn insert(&mut self, actor: ActorId, value: T) -> Option<T> {
        let key = (actor.role, actor.pool);
        let place = self.pools.binary_search_by_key(&key, |(pool, _)| *pool).unwrap_or_else(|place| {
            self.pools.insert(place, (key, Vec::new()));
            place
        });
        let (list, at) = (&mut self.pools[place].1, actor.index as usize);
        if at >= list.len() {
            list.resize_with(at + 1, || None);
        }
        let before = list[at].replace(value);
        self.len += usize::from(before.is_none());
        before
    }

    fn list(&self, actor: ActorId) -> Option<&Vec<Option<T>>> {
        self.pools.iter().find(|(pool, _)| *pool == (actor.role, actor.pool)).map(|(_, list)| list)
    }

    /// Returns the value of an actor; `None` if it has none.
    pub fn get(&self, actor: ActorId) -> Option<&T> {
        self.list(actor)?.get(actor.index as usize)?.as_ref()
    }

    /// Returns whether an actor has a value.
    pub fn contains(&self, actor: ActorId) -> bool {
        self.get(actor).is_some()
    }

    /// Removes and returns an actor's value.
    pub fn remove(&mut self, actor: ActorId) -> Option<T> {
        let (_, list) = self.pools.iter_mut().find(|(pool, _)| *pool == (actor.role, actor.pool))?;
        let removed = list.get_mut(actor.index as usize)?.take();
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// Removes the values of all actors of a pool.
    pub fn clear(&mut self, pool: PoolName) {
        let lists = self.pools.iter_mut().filter(|((_, name), _)| *name == pool);
        for list in lists.map(|(_, list)| std::mem::take(list)) {
            self.len -= list.iter().flatten().count();
        }
    }

    /// Returns the number of actors with a value, in constant time.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no actor has a value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all values, pool by pool, in the order of the actors' indices.
    pub fn iter(&self) -> impl Iterator<Item = (ActorId, &T)> {
        self.pools.iter().flat_map(|&((role, pool), ref list)| {
            let of_pool = list.iter().zip(0..);
            of_pool.filter_map(move |(value, index)| Some((ActorId { role, pool, index }, value.as_ref()?)))
        })
    }
}

/// A set of actors.
impl FromIterator<ActorId> for ByActor<()> {
    fn from_iter<I: IntoIterator<Item = ActorId>>(actors: I) -> Self {
        let mut set = Self::default();
        actors.into_iter().for_each(|actor| {
            set.insert(actor, ());
        });
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(actions in prop::collection::vec((0_usize..6, 0_u32..5, 0_u32..8), 0..60)) {
            let (mut ours, mut sorted) = (ByActor::default(), BTreeMap::new());
            for (pool, index, what) in actions {
                let actor = match pool {
                    4 => ActorId::encoder_of("audio".parse().unwrap(), index),
                    5 => ActorId::encoder_of("vision".parse().unwrap(), index),
                    role => ActorId::new(Role::ALL[role], index),
                };
                match what {
                    0 => {
                        ours.clear(actor.pool);
                        sorted.retain(|other: &ActorId, _| other.pool != actor.pool);
                    }
                    1..3 => prop_assert_eq!(ours.remove(actor), sorted.remove(&actor)),
                    _ => prop_assert_eq!(ours.insert(actor, what), sorted.insert(actor, what)),
                }
                prop_assert_eq!((ours.len(), ours.is_empty()), (sorted.len(), sorted.is_empty()));
                prop_assert_eq!((ours.get(actor), ours.contains(actor)), (sorted.get(&actor), sorted.contains_key(&actor)));
                prop_assert!(ours.iter().eq(sorted.iter().map(|(&actor, what)| (actor, what))));
            }
        }
    }
}
