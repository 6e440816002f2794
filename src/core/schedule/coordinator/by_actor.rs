//! Something for each of many actors, found at once: thousands of engines report and apply every step.

use crate::message::{ActorId, Role};
use serde::{Deserialize, Serialize};

/// A map from actors; in their order, which is that of their roles and numbers. Numbers are those of a run's actors: small.
#[derive(Serialize, Deserialize)]
pub(super) struct ByActor<T> {
    /// By role and number.
    lists: [Vec<Option<T>>; Role::ALL.len()],
    len: usize,
}

impl<T> Default for ByActor<T> {
    fn default() -> Self {
        Self { lists: Default::default(), len: 0 }
    }
}

impl<T> ByActor<T> {
    /// Returns what was there before.
    pub fn insert(&mut self, actor: ActorId, value: T) -> Option<T> {
        let (list, at) = (&mut self.lists[actor.role as usize], actor.index as usize);
        if at >= list.len() {
            list.resize_with(at + 1, || None);
        }
        let before = list[at].replace(value);
        self.len += usize::from(before.is_none());
        before
    }

    pub fn get(&self, actor: ActorId) -> Option<&T> {
        self.lists[actor.role as usize].get(actor.index as usize)?.as_ref()
    }

    pub fn contains(&self, actor: ActorId) -> bool {
        self.get(actor).is_some()
    }

    pub fn remove(&mut self, actor: ActorId) -> Option<T> {
        let removed = self.lists[actor.role as usize].get_mut(actor.index as usize)?.take();
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// Removes those of all actors of a role.
    pub fn clear(&mut self, role: Role) {
        let list = std::mem::take(&mut self.lists[role as usize]);
        self.len -= list.iter().flatten().count();
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (ActorId, &T)> {
        Role::ALL.into_iter().zip(&self.lists).flat_map(|(role, list)| {
            let of_role = list.iter().zip(0..);
            of_role.filter_map(move |(value, index)| Some((ActorId::new(role, index), value.as_ref()?)))
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
        fn agrees_with_a_sorted_map(actions in prop::collection::vec((0_usize..4, 0_u32..5, 0_u32..8), 0..60)) {
            let (mut ours, mut sorted) = (ByActor::default(), BTreeMap::new());
            for (role, index, what) in actions {
                let actor = ActorId::new(Role::ALL[role], index);
                match what {
                    0 => {
                        ours.clear(actor.role);
                        sorted.retain(|other: &ActorId, _| other.role != actor.role);
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
