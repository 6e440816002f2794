//! The scheduler's side of joining: waits until every actor of the run has a connection and a place.

use super::protocol::{BEGINNING, other_config};
use super::reconnect::{ReconnectRegistry, draw};
use super::{Down, JoinError, Up, Welcome};
use crate::launch::{Assignment, EdgeSpec, topology};
use loongforge_core::config::Products;
use loongforge_core::message::{ActorId, PoolName};
use loongforge_core::schedule::{EdgeCredits, PoolSizes};
use loongforge_core::transport::{LinkError, LinkReceiver, LinkSender, Returned, link};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, sleep_until};

/// The interval at which missing actors are named.
const REMIND: Duration = Duration::from_secs(5);

/// The expected actors, and what they are told.
pub struct Roster {
    /// Address at which actors join, for messages.
    pub address: String,
    pub config: String,
    pub pools: PoolSizes,
    pub credits: EdgeCredits,
    pub resume: Option<PathBuf>,
    pub rendezvous: PathBuf,
    pub products: Products,
    pub queue: usize,
    pub timeout: Duration,
    pub lease: Duration,
    /// Encoder pools whose features are cached in a folder, so that they may continue without encoders.
    pub cached: BTreeSet<PoolName>,
    /// The pools among those that have no encoders now: an actor that comes to one of them reads features.
    pub reading: RefCell<BTreeSet<PoolName>>,
    /// The peers that may reconnect after a broken connection; `None` if connections cannot break by themselves.
    pub returns: Option<ReconnectRegistry>,
}

/// A connected actor.
pub struct Member {
    pub sender: LinkSender<Down>,
    pub receiver: LinkReceiver<Up>,
    /// The path at which its edges come in.
    pub edges: PathBuf,
    /// The number of the wire that its connection is, and where it comes back to, once it is welcome.
    pub wire: Option<(u128, Option<flume::Receiver<Returned>>)>,
    /// True if what it says is acknowledged once it is written down.
    pub confirms: bool,
}

/// The answer to an actor that comes too late.
pub(super) const BEGUN: &str = "the run has begun, with all its actors";

/// Holds the first message of a connection, with the place that the connection was given, if any.
type FirstMessage = Result<(Option<ActorId>, Member, Option<Up>), (Option<ActorId>, LinkError)>;

/// Accepts connections until every actor has joined, then welcomes them all.
///
/// # Errors
/// Fails if an actor is missing when time is up, or no more connections can be accepted.
pub async fn gather<S>(
    mut accept: impl AsyncFnMut() -> io::Result<S>,
    roster: &Roster,
) -> Result<BTreeMap<ActorId, Member>, JoinError>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut places: BTreeMap<ActorId, Option<Member>> = roster.pools.actors().map(|actor| (actor, None)).collect();
    let mut taken: Vec<ActorId> = Vec::new();
    let mut hearing: JoinSet<FirstMessage> = JoinSet::new();
    let deadline = Instant::now() + roster.timeout;
    let mut remind = interval_at(Instant::now() + REMIND, REMIND);
    while let Some(missing) = missing(&places) {
        tokio::select! {
            stream = accept() => {
                let stream = stream.map_err(|source| JoinError::Listen { address: roster.address.clone(), source })?;
                let (sender, receiver) = link(stream);
                hearing.spawn(hear(None, Member { sender, receiver, edges: PathBuf::new(), wire: None, confirms: false }));
            }
            Some(heard) = hearing.join_next() => match heard {
                Ok(Ok((None, mut member, Some(Up::Hello { config, role: _, pool, index })))) => {
                    let wanted = |actor: &ActorId| actor.pool == pool && index.is_none_or(|index| index == actor.index);
                    let place = roster.pools.actors().filter(wanted).find(|actor| !taken.contains(actor));
                    let answer = match place {
                        _ if config != roster.config => refused(&other_config(&roster.config, &config)),
                        None => refused(&format!("this run has all its {pool} actors already")),
                        Some(actor) => Down::Assigned(actor),
                    };
                    if let Down::Refused { reason } = &answer {
                        tracing::warn!("a process of the pool {pool} is refused: {reason}");
                    }
                    // An actor that is gone already is missed below.
                    let sent = member.sender.send(&answer).await;
                    if let (Ok(()), Down::Assigned(actor)) = (sent, answer) {
                        taken.push(actor);
                        hearing.spawn(hear(Some(actor), member));
                    }
                }
                Ok(Ok((None, mut member, Some(Up::Scale { .. })))) => {
                    let _ = member.sender.send(&refused(BEGINNING)).await;
                }
                Ok(Ok((Some(actor), mut member, Some(Up::Listening { edges })))) => {
                    tracing::info!("{actor} has joined");
                    member.edges = edges;
                    places.insert(actor, Some(member));
                }
                Ok(Ok((place, ..))) => give_up(&mut taken, place, "it did not send a join request"),
                Ok(Err((place, error))) => {
                    tracing::warn!("a connection to {} is refused: {error}", roster.address);
                    taken.retain(|&actor| Some(actor) != place);
                }
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            actor = first_gone(&mut places) => {
                tracing::warn!("{actor} is gone before the run has begun: its place is free again");
                places.insert(actor, None);
                taken.retain(|&other| other != actor);
            }
            _ = remind.tick() => tracing::info!("waiting for {missing} to join at {}", roster.address),
            () = sleep_until(deadline) => {
                let seconds = roster.timeout.as_secs();
                return Err(JoinError::Missing { missing, address: roster.address.clone(), seconds });
            }
        }
    }
    let mut members: BTreeMap<ActorId, Member> =
        places.into_iter().filter_map(|(actor, member)| Some((actor, member?))).collect();
    welcome(&mut members, roster).await;
    tokio::spawn(refuse(hearing));
    Ok(members)
}

/// Answers only what was said: a connection that closes on unread words would take the answer with it.
async fn refuse(mut hearing: JoinSet<FirstMessage>) {
    while let Some(heard) = hearing.join_next().await {
        if let Ok(Ok((_, mut member, Some(said)))) = heard {
            let reason = if matches!(said, Up::Scale { .. }) { BEGINNING } else { BEGUN };
            let _ = member.sender.send(&refused(reason)).await;
        }
    }
}

async fn hear(place: Option<ActorId>, mut member: Member) -> FirstMessage {
    match member.receiver.recv().await {
        Ok(said) => Ok((place, member, said)),
        Err(error) => {
            // A build with another protocol learns its version from the answer.
            if matches!(error, LinkError::Frame(_)) {
                let _ = member.sender.send(&refused(&error.to_string())).await;
            }
            Err((place, error))
        }
    }
}

/// Waits until one that has joined is gone; nobody says anything before the welcome. The call is cancellation-safe.
async fn first_gone(places: &mut BTreeMap<ActorId, Option<Member>>) -> ActorId {
    let joined = places.iter_mut().filter_map(|(&actor, member)| Some((actor, member.as_mut()?)));
    let mut joined: Vec<_> = joined.map(|(actor, member)| (actor, Box::pin(member.receiver.recv()))).collect();
    poll_fn(|context| {
        let gone = joined.iter_mut().find_map(|(actor, said)| said.as_mut().poll(context).is_ready().then_some(*actor));
        gone.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Makes the answer to an actor that may not join.
pub(super) fn refused(reason: &str) -> Down {
    Down::Refused { reason: reason.to_owned() }
}

fn give_up(taken: &mut Vec<ActorId>, place: Option<ActorId>, why: &str) {
    tracing::warn!("a connection is dropped: {why}");
    taken.retain(|&actor| Some(actor) != place);
}

fn missing(places: &BTreeMap<ActorId, Option<Member>>) -> Option<String> {
    let missing: Vec<_> =
        places.iter().filter(|(_, member)| member.is_none()).map(|(actor, _)| actor.to_string()).collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

impl Roster {
    /// Returns the message that tells actor `me` to begin. `paths`: where the actors of the run listen for edges.
    pub fn welcome(
        &self,
        me: ActorId,
        wire: u128,
        topology: &[EdgeSpec],
        paths: &BTreeMap<ActorId, PathBuf>,
    ) -> Welcome {
        let outgoing = |edge: &&EdgeSpec| edge.from == me;
        Welcome {
            assignment: Assignment {
                me,
                pools: self.pools.clone(),
                resume: self.resume.clone(),
                rendezvous: self.rendezvous.clone(),
                products: self.products,
                reads: self.reading.borrow().contains(&me.pool),
            },
            edges: topology.iter().filter(outgoing).map(|edge| (*edge, paths[&edge.to].clone())).collect(),
            producers: topology.iter().filter(|edge| edge.to == me).map(|edge| edge.from).collect(),
            queue: self.queue,
            lease: self.lease,
            wire,
            returns: self.returns.is_some(),
        }
    }

    /// Draws a wire for an actor.
    pub(super) fn draw(&self, me: ActorId) -> (u128, Option<flume::Receiver<Returned>>) {
        match &self.returns {
            Some(returns) => {
                let (number, returned) = returns.expect(me);
                (number, Some(returned))
            }
            None => (draw(), None),
        }
    }
}

async fn welcome(members: &mut BTreeMap<ActorId, Member>, roster: &Roster) {
    let topology = topology(&roster.pools, roster.credits);
    let paths: BTreeMap<ActorId, PathBuf> =
        members.iter().map(|(&actor, member)| (actor, member.edges.clone())).collect();
    for (&me, member) in members {
        let (number, returned) = roster.draw(me);
        let welcome = roster.welcome(me, number, &topology, &paths);
        member.wire = Some((number, returned));
        // A member that is gone by now is learned from its connection.
        let _ = member.sender.send(&Down::Welcome(welcome)).await;
    }
}

#[cfg(test)]
impl Roster {
    /// Returns a roster of one actor of each role, of whom nobody has come yet.
    pub fn of_three() -> Self {
        Self {
            address: "here".into(),
            config: "abc".into(),
            pools: PoolSizes::of_roles(1, 1, 1),
            credits: EdgeCredits { pixels: 1, tokens: 1, features: 1 },
            resume: None,
            rendezvous: PathBuf::new(),
            products: Products::default(),
            queue: 1,
            timeout: Duration::from_secs(60),
            lease: Duration::from_secs(60),
            cached: BTreeSet::new(),
            reading: RefCell::default(),
            returns: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixStream;
    use tokio::time::sleep;

    #[test]
    fn who_is_gone_before_the_run_begins_may_come_again() {
        let roster = Roster::of_three();
        let (connect, connected) = flume::bounded::<UnixStream>(10);
        let accept = async || -> io::Result<UnixStream> { Ok(connected.recv_async().await.expect("it is open")) };
        let joining = async |me: ActorId| {
            let (here, there) = UnixStream::pair().unwrap();
            connect.send(there).unwrap();
            let (mut sender, mut receiver) = link::<Up, Down>(here);
            let hello = Up::Hello { config: "abc".into(), role: me.role, pool: me.pool, index: Some(me.index) };
            sender.send(&hello).await.unwrap();
            assert_eq!(receiver.recv().await.unwrap(), Some(Down::Assigned(me)));
            sender.send(&Up::Listening { edges: PathBuf::new() }).await.unwrap();
            (sender, receiver)
        };
        let actors = async {
            drop(joining(ActorId::data(0)).await);
            sleep(Duration::from_millis(200)).await;
            let mut joined = Vec::new();
            for me in [ActorId::data(0), ActorId::encoder(0), ActorId::foundation(0)] {
                joined.push(joining(me).await);
            }
            joined
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (members, _joined) = runtime.block_on(async { tokio::join!(gather(accept, &roster), actors) });
        assert_eq!(members.unwrap().len(), 3);
    }
}
