//! Places of encoder pools, and who has them.

use super::*;

#[test]
fn processes_of_another_attempt_have_other_numbers() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (attempts, command) = ([Children::default(), Children::default()], std::process::Command::new("true"));
        attempts.iter().for_each(|children| children.have_started(ActorId::encoder(0), None, &command));
        let [first, second] = attempts.map(|children| children.kept.take().into_keys().next());
        assert_ne!(first, second);
    });
}

#[test]
fn a_replacement_has_the_place_of_who_died_and_a_new_encoder_the_first_free_one() {
    let children = Children::default();
    let next = std::cell::Cell::new(0);
    let next_index = |_: PoolName| next.replace(next.get() + 1);
    let holders = || {
        let places = children.places.borrow();
        let holders = places.iter().map(|(place, slot)| (place.index, slot.holder.map(|holder| holder.index)));
        holders.collect::<Vec<_>>()
    };
    assert!(children.scale(PoolName::ENCODER, 2, next_index).is_empty());
    assert_eq!(holders(), [(0, Some(0)), (1, Some(1))]);
    let place = children.give_up(ActorId::encoder(0), false).unwrap();
    assert_eq!(children.num_places(PoolName::ENCODER), (2, 0));
    children.begin(place, ActorId::encoder(next_index(PoolName::ENCODER)));
    assert_eq!(holders(), [(0, Some(2)), (1, Some(1))]);
    children.scale(PoolName::ENCODER, 3, next_index);
    assert_eq!(holders(), [(0, Some(2)), (1, Some(1)), (2, Some(3))]);
    assert_eq!(children.num_places(PoolName::FOUNDATION), (0, 3));
    // Who leaves makes room for those after it, and is nobody's loss when it has ended.
    let leaving = children.renew(PoolName::ENCODER, 2, next_index);
    assert_eq!(children.num_places(PoolName::ENCODER), (2, 0));
    assert_eq!(leaving, [3, 2, 1].map(ActorId::encoder));
    assert_eq!(holders(), [(0, Some(4)), (1, Some(5)), (2, Some(3))]);
    assert!(leaving.iter().all(|&actor| children.give_up(actor, true).is_none()));
    assert_eq!(children.encoders(), [4, 5].map(ActorId::encoder));
}

#[test]
fn a_pool_that_is_renewed_while_a_place_is_vacant_gets_no_more_actors_than_asked_for() {
    let (children, next) = (Children::default(), std::cell::Cell::new(0));
    let next_index = |_: PoolName| next.replace(next.get() + 1);
    children.scale(PoolName::ENCODER, 2, next_index);
    let place = children.give_up(ActorId::encoder(0), false).unwrap();
    assert_eq!(children.renew(PoolName::ENCODER, 1, next_index), [ActorId::encoder(1)]);
    children.begin(place, ActorId::encoder(next_index(PoolName::ENCODER)));
    assert_eq!(children.encoders(), [ActorId::encoder(2)]);
}

#[test]
fn vacant_places_beyond_what_is_asked_for_are_not_filled_again() {
    for anew in [false, true] {
        let (children, next) = (Children::default(), std::cell::Cell::new(0));
        let next_index = |_: PoolName| next.replace(next.get() + 1);
        children.scale(PoolName::ENCODER, 3, next_index);
        let vacant = [1, 2].map(|index| children.give_up(ActorId::encoder(index), false).unwrap());
        let leaving = children.change(PoolName::ENCODER, 1, anew, next_index);
        let places = children.places.borrow();
        // The one that is there goes on, or the first vacant place is filled by an actor of the other kind.
        let (expected, kept) = if anew { (vec![ActorId::encoder(0)], vec![vacant[0]]) } else { (vec![], vec![]) };
        let is_vacant = |(place, slot): (&Replica, &PoolSlot)| slot.holder.is_none().then_some(*place);
        assert_eq!((leaving, places.iter().filter_map(is_vacant).collect::<Vec<_>>()), (expected, kept));
        assert_eq!(next.get(), 3, "nobody else is started");
    }
}

#[test]
fn an_encoder_whose_process_cannot_be_started_is_replaced_like_one_that_has_died() {
    let (ended, ends) = flume::bounded(4);
    let start: Start = Box::new(|_, _| std::process::Command::new("/nobody/gone"));
    let address = Some("127.0.0.1:1".parse().unwrap());
    let children = Children { start: Some(start), address, ended: Some(ended), ..Children::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { children.scale(PoolName::ENCODER, 1, |_| 7) });
    let (actor, in_order) = ends.try_recv().unwrap();
    assert_eq!((actor, children.give_up(actor, in_order)), (ActorId::encoder(7), Some(Replica::encoder(0))));
}

#[test]
fn an_encoder_that_was_to_leave_when_another_scheduler_took_over_is_not_counted() {
    let (children, next) = (Children::default(), std::cell::Cell::new(0));
    let next_index = |_: PoolName| next.replace(next.get() + 1);
    children.scale(PoolName::ENCODER, 3, next_index);
    children.leaves(ActorId::encoder(2));
    assert_eq!(children.encoders(), [0, 1].map(ActorId::encoder));
    assert!(children.scale(PoolName::ENCODER, 3, next_index).is_empty());
    assert_eq!(children.encoders(), [0, 1, 3].map(ActorId::encoder));
    assert!(children.give_up(ActorId::encoder(2), false).is_none());
}
