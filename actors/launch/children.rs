//! Child processes of the scheduler's process: their output with a name before each line, their end reported once, and none left
//! when the parent dies.

use super::RunError;
use super::child::{End, PARENT, pass_on, variables, wait};
use super::join::JoinError;
use super::keeper::{Order, Started, Word, keeper, socket};
use super::pool_slot::PoolSlot;
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, PoolName, Replica, Role};
use loongforge_core::schedule::PoolSizes;
use loongforge_core::transport::link;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, spawn_local};

/// Makes the command of one actor's process, which is to join at the given address.
pub type Start = Box<dyn Fn(ActorId, &Address) -> std::process::Command>;

/// The time that children may run after their actors have ended.
const GRACE: Duration = Duration::from_secs(10);

/// The pause before a dead encoder is replaced: when a run ends, its processes end too.
const RESTART_DELAY: Duration = Duration::from_millis(100);

/// Ends of children that nobody has heard of yet.
const MAX_ENDS: usize = 4096;

/// A handle on a child.
#[derive(Clone)]
pub struct Process {
    exit: watch::Receiver<Option<String>>,
    kill: Arc<Notify>,
}

impl Process {
    /// Returns how it ended, once it has; `None` where it does not.
    pub async fn exit(mut self) -> Option<String> {
        let ended = tokio::time::timeout(GRACE, self.exit.wait_for(Option::is_some)).await.ok()?.ok()?;
        ended.clone()
    }

    /// Resolves when it has ended; never where nobody looks any more.
    pub async fn ended(mut self) {
        if self.exit.wait_for(Option::is_some).await.is_err() {
            std::future::pending().await
        }
    }

    /// Asks for the end of the process, without waiting for it.
    pub fn kill(&self) {
        self.kill.notify_one();
    }
}

/// Running child processes, killed on drop. Without a `start` there are no children.
#[derive(Default)]
pub(super) struct Children {
    start: Option<Start>,
    address: Option<Address>,
    processes: RefCell<BTreeMap<ActorId, Process>>,
    /// The actors that have come to the run.
    joined: RefCell<BTreeSet<ActorId>>,
    waits: RefCell<JoinSet<()>>,
    /// Places of the encoder pools: who has each, and when those who had it died.
    places: RefCell<BTreeMap<Replica, PoolSlot>>,
    /// The actors that have ended, and whether in order.
    ends: RefCell<Option<flume::Receiver<(ActorId, bool)>>>,
    ended: Option<flume::Sender<(ActorId, bool)>>,
    /// The channel to the process that starts them instead, if another one does.
    orders: Option<flume::Sender<Order>>,
    kept: Kept,
}

/// Processes that a keeper has started, by their numbers.
type Kept = Rc<RefCell<BTreeMap<u64, (ActorId, watch::Sender<Option<String>>)>>>;

impl Children {
    /// Starts the processes of all actors, or tells the keeper of this process to. `is_takeover`: takes over those that the keeper
    /// has started for another scheduler.
    ///
    /// # Errors
    /// Fails if one cannot be started.
    pub async fn start(
        start: Start,
        pools: &PoolSizes,
        address: &Address,
        is_takeover: bool,
    ) -> Result<Self, RunError> {
        let (ended, ends) = flume::bounded(MAX_ENDS);
        let mut children = Self {
            start: Some(start),
            address: Some(address.clone()),
            ended: Some(ended),
            ends: RefCell::new(Some(ends)),
            ..Self::default()
        };
        let failed = |source| RunError::Start { what: "processes by way of the keeper".into(), source };
        let started = match keeper() {
            Some(folder) => children.meet(&socket(&folder)).await.map_err(failed)?,
            None => Vec::new(),
        };
        if is_takeover {
            started.into_iter().for_each(|started| children.take_over(started));
            return Ok(children);
        }
        children.order(Order::Anew);
        for actor in pools.actors() {
            let place = (actor.role == Role::Encoder).then_some(Replica::new(actor.pool, actor.index));
            children.spawn(actor, place)?;
            place.map(|place| children.places.borrow_mut().insert(place, PoolSlot::of(actor)));
        }
        Ok(children)
    }

    /// Takes over a process that another scheduler has had started; of each place the last one comes last.
    fn take_over(&self, started: Started) {
        let Started { number, actor, place, ended } = started;
        let mut places = self.places.borrow_mut();
        let Some((End { reason, in_order }, ago)) = ended else {
            self.expect(number, actor);
            if let Some(place) = place {
                places.entry(place).or_default().holder = Some(actor);
            }
            return;
        };
        let (_, exit) = watch::channel(Some(reason));
        self.processes.borrow_mut().insert(actor, Process { exit, kill: Arc::default() });
        let Some(place) = place else { return };
        let now = Instant::now();
        match in_order {
            true => drop(places.remove(&place)),
            false => places.entry(place).or_default().died(now.checked_sub(ago).unwrap_or(now)),
        }
    }

    /// Meets the keeper; whom it has started.
    async fn meet(&mut self, socket: &Path) -> io::Result<Vec<Started>> {
        let (mut sender, mut receiver) = link::<Order, Word>(UnixStream::connect(socket).await?);
        let Ok(Some(Word::Started(started))) = receiver.recv().await else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let (orders, to_send) = flume::bounded(MAX_ENDS);
        self.orders = Some(orders);
        spawn_local(async move {
            while let Ok(order) = to_send.recv_async().await {
                // Without a keeper there is soon no scheduler.
                let _ = sender.send(&order).await;
            }
        });
        let (kept, ends) = (self.kept.clone(), self.ended.clone());
        spawn_local(async move {
            while let Ok(Some(Word::Ended { number, end })) = receiver.recv().await {
                let Some((actor, ended)) = kept.borrow_mut().remove(&number) else { continue };
                let _ = ended.send(Some(end.reason));
                if let Some(ends) = &ends {
                    let _ = ends.send((actor, end.in_order));
                }
            }
        });
        Ok(started)
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.try_send(order);
        }
    }

    /// Expects one that the keeper has started, or is about to.
    fn expect(&self, number: u64, actor: ActorId) {
        let ((ended, exit), kill) = (watch::channel(None), Arc::new(Notify::new()));
        self.kept.borrow_mut().insert(number, (actor, ended));
        self.processes.borrow_mut().insert(actor, Process { exit, kill: kill.clone() });
        let orders = self.orders.clone();
        spawn_local(async move {
            kill.notified().await;
            orders.iter().for_each(|orders| drop(orders.try_send(Order::Kill(number))));
        });
    }

    /// Has the keeper start a process.
    fn have_started(&self, actor: ActorId, place: Option<Replica>, command: &std::process::Command) {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        // Another scheduler's numbers are others, and so are those of an attempt before: a process of it may still end.
        let number = u64::from(std::process::id()) << 32 | STARTED.fetch_add(1, Relaxed);
        let words = std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_owned).collect();
        let environment = command.get_envs().map(|(name, value)| (name.to_owned(), value.map(OsStr::to_owned)));
        let own = variables(actor, place).map(|(name, value)| (name.into(), Some(value.into())));
        let environment = environment.chain(own).collect();
        self.expect(number, actor);
        self.order(Order::Start { number, actor, place, words, environment });
    }

    /// Returns whether there can be any.
    pub fn can_start(&self) -> bool {
        self.start.is_some()
    }

    /// `place`: that it is to have in its encoder pool.
    fn spawn(&self, actor: ActorId, place: Option<Replica>) -> Result<(), RunError> {
        let (Some(start), Some(address)) = (&self.start, &self.address) else { return Ok(()) };
        let command = start(actor, address);
        if self.orders.is_some() {
            self.have_started(actor, place, &command);
            return Ok(());
        }
        let mut command = Command::from(command);
        command.env(PARENT, std::process::id().to_string()).envs(variables(actor, place));
        // Their own group: Ctrl-C is for the scheduler, which stops them in order.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let named = |source| RunError::Start { what: format!("the process of {actor}"), source };
        let mut child = command.spawn().map_err(named)?;
        tokio::spawn(pass_on(actor, child.stdout.take()));
        tokio::spawn(pass_on(actor, child.stderr.take()));
        let ((ended, exit), kill) = (watch::channel(None), Arc::new(Notify::new()));
        let process = Process { exit, kill: kill.clone() };
        self.processes.borrow_mut().insert(actor, process);
        let ends = self.ended.clone();
        self.waits.borrow_mut().spawn(async move {
            let End { reason, in_order } = wait(child, &kill).await;
            let _ = ended.send(Some(reason));
            if let Some(ends) = ends {
                let _ = ends.send((actor, in_order));
            }
        });
        Ok(())
    }

    /// Waits for the first child that ends; forever if there are none.
    pub async fn first_end(&self) -> JoinError {
        let ends = self
            .processes
            .borrow()
            .iter()
            .map(|(&actor, process)| {
                let mut exit = process.exit.clone();
                Box::pin(async move {
                    let reason = exit.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
                    JoinError::ChildEnded { actor, reason: reason.unwrap_or_default() }
                })
            })
            .collect::<Vec<_>>();
        let mut ends = ends;
        std::future::poll_fn(move |context| {
            ends.iter_mut()
                .map(|end| end.as_mut().poll(context))
                .find(std::task::Poll::is_ready)
                .unwrap_or(std::task::Poll::Pending)
        })
        .await
    }

    /// Records that `actor` has joined the run: its process, if it is a child.
    pub fn joined(&self, actor: ActorId) -> Option<Process> {
        self.joined.borrow_mut().insert(actor);
        self.processes.borrow().get(&actor).cloned()
    }

    /// Replaces each encoder that dies, forever, unless they die too often.
    pub async fn replace(&self, next_index: impl Fn(PoolName) -> u32) {
        let ends = self.ends.borrow_mut().take();
        let Some(ends) = ends else { return std::future::pending().await };
        for number in self.vacant() {
            self.begin(number, ActorId::encoder_of(number.pool, next_index(number.pool)));
        }
        while let Ok((actor, in_order)) = ends.recv_async().await {
            let Some(number) = self.give_up(actor, in_order) else { continue };
            tokio::time::sleep(RESTART_DELAY).await;
            // Meanwhile fewer may be wanted.
            if self.places.borrow().get(&number).is_some_and(|place| place.holder.is_none()) {
                self.begin(number, ActorId::encoder_of(number.pool, next_index(number.pool)));
            }
        }
    }

    /// Places that a scheduler before this one would have filled.
    fn vacant(&self) -> Vec<Replica> {
        let mut places = self.places.borrow_mut();
        places.retain(|_, place| place.holder.is_some() || !place.is_given_up());
        places.iter().filter(|(_, place)| place.holder.is_none()).map(|(&number, _)| number).collect()
    }

    /// Returns the place that `actor` had, if it is to be filled again.
    fn give_up(&self, actor: ActorId, in_order: bool) -> Option<Replica> {
        let mut places = self.places.borrow_mut();
        let (&number, place) = places.iter_mut().find(|(_, place)| place.holder == Some(actor))?;
        if in_order || place.leaves {
            places.remove(&number);
            return None;
        }
        place.died(Instant::now());
        if place.is_given_up() {
            let deaths = place.deaths.len();
            tracing::error!("{actor} died {deaths} times within 10 minutes and is not restarted again");
            places.remove(&number);
            return None;
        }
        Some(number)
    }

    fn begin(&self, place: Replica, actor: ActorId) {
        self.places.borrow_mut().entry(place).or_default().holder = Some(actor);
        if let Err(error) = self.spawn(actor, Some(place)) {
            tracing::error!("{error}");
            // It is replaced like one that has died.
            if let Some(ended) = &self.ended {
                let _ = ended.try_send((actor, false));
            }
        }
    }

    /// Records that an encoder is to leave: nobody follows it in its place.
    pub fn leaves(&self, actor: ActorId) {
        let mut places = self.places.borrow_mut();
        places.values_mut().filter(|place| place.holder == Some(actor)).for_each(|place| place.leaves = true);
    }

    /// Ensures that this many actors of a pool are present or starting; surplus ones are returned, to be removed.
    pub fn scale(&self, pool: PoolName, encoders: u32, next_index: impl Fn(PoolName) -> u32) -> Vec<ActorId> {
        self.change(pool, encoders, false, next_index)
    }

    /// Works like [`Children::scale`], but replaces all present actors by new ones.
    pub fn renew(&self, pool: PoolName, actors: u32, next_index: impl Fn(PoolName) -> u32) -> Vec<ActorId> {
        self.change(pool, actors, true, next_index)
    }

    fn change(&self, pool: PoolName, actors: u32, anew: bool, next_index: impl Fn(PoolName) -> u32) -> Vec<ActorId> {
        let stays = |(place, slot): &(&Replica, &PoolSlot)| place.pool == pool && !slot.leaves;
        let here = self.places.borrow().iter().filter(stays).count() as u32;
        let of_pool: Vec<ActorId> = self.encoders().into_iter().filter(|actor| actor.pool == pool).collect();
        // A vacant place is filled soon, by an actor that is new in any case, unless there are enough without it.
        let vacant = here - of_pool.len() as u32;
        let num_filled = vacant.min(if anew { actors } else { actors.saturating_sub(of_pool.len() as u32) });
        self.drop_vacant(pool, (vacant - num_filled) as usize);
        let num_over = if anew { of_pool.len() } else { of_pool.len().saturating_sub(actors as usize) };
        let num_staying = (of_pool.len() - num_over) as u32 + num_filled;
        let leaving: Vec<ActorId> = of_pool.into_iter().rev().take(num_over).collect();
        for place in self.places.borrow_mut().values_mut() {
            place.leaves |= place.holder.is_some_and(|holder| leaving.contains(&holder));
        }
        for _ in num_staying..actors {
            let place = self.free_place(pool);
            self.begin(place, ActorId::encoder_of(pool, next_index(pool)));
        }
        leaving
    }

    /// Gives up so many of the places of a pool that are to be filled again, the last ones.
    fn drop_vacant(&self, pool: PoolName, count: usize) {
        let mut places = self.places.borrow_mut();
        let is_vacant =
            |(place, slot): &(&Replica, &PoolSlot)| place.pool == pool && slot.holder.is_none() && !slot.leaves;
        let vacant = places.iter().filter(is_vacant).map(|(&place, _)| place);
        let dropped: Vec<Replica> = vacant.rev().take(count).collect();
        places.retain(|place, _| !dropped.contains(place));
    }

    /// Returns the first place of a pool that nobody has, or that its actor is leaving: actors take their GPUs by their places.
    fn free_place(&self, pool: PoolName) -> Replica {
        let mut places = self.places.borrow_mut();
        let mut place = Replica::new(pool, 0);
        while places.get(&place).is_some_and(|slot| !slot.leaves) {
            place.index += 1;
        }
        places.remove(&place);
        place
    }

    /// Encoders that have a place and are not let go, in order.
    pub fn encoders(&self) -> Vec<ActorId> {
        let places = self.places.borrow();
        let mut encoders: Vec<ActorId> =
            places.values().filter(|place| !place.leaves).filter_map(|place| place.holder).collect();
        encoders.sort();
        encoders
    }

    /// Returns how many encoders a pool has, and how many others have, with those that are about to be replaced and without those that
    /// are let go.
    pub fn num_places(&self, pool: PoolName) -> (usize, usize) {
        let places = self.places.borrow();
        let stays = places.iter().filter(|(_, slot)| !slot.leaves);
        let (of_pool, of_others): (Vec<_>, Vec<_>) = stays.partition(|(place, _)| place.pool == pool);
        (of_pool.len(), of_others.len())
    }

    /// Returns an index that no encoder of a pool has or has had.
    pub fn free_index(&self, pool: PoolName) -> u32 {
        let processes = self.processes.borrow();
        let encoders = processes.keys().filter(|actor| actor.pool == pool);
        encoders.map(|actor| actor.index + 1).max().unwrap_or(0)
    }

    /// Kills an encoder that the run has nothing to do with any more, when it has had time to end by itself.
    pub fn forget(&self, actor: ActorId, after: Duration) {
        let Some(process) = self.joined(actor) else { return };
        spawn_local(async move {
            tokio::time::sleep(after).await;
            process.kill();
        });
    }

    /// Waits for children that end by themselves and kills the others.
    pub async fn finish(&self) {
        let is_late = |actor: &ActorId| !self.joined.borrow().contains(actor);
        self.processes.borrow().iter().filter(|(actor, _)| is_late(actor)).for_each(|(_, late)| late.kill());
        let mut waits = std::mem::take(&mut *self.waits.borrow_mut());
        let all = async {
            while waits.join_next().await.is_some() {}
            let kept: Vec<_> = self.kept.borrow().values().map(|(_, ended)| ended.subscribe()).collect();
            for mut exit in kept {
                let _ = exit.wait_for(Option::is_some).await;
            }
        };
        let _ = tokio::time::timeout(GRACE, all).await;
    }
}

#[cfg(test)]
#[path = "children_tests.rs"]
mod tests;
