//! Serves connections to a running job: encoders join, users scale encoder pools, everyone else is refused.

use super::gather::{BEGUN, refused};
use super::protocol::other_config;
use super::{Down, Member, Roster, Up};
use crate::journal::Record;
use crate::launch::{EdgeSpec, WantedActor, topology};
use loongforge_core::message::{ActorId, Command, PoolName, Role};
use loongforge_core::transport::{LinkError, link, raw, refuse};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_local;
use tokio::time::timeout;

/// The time that a peer may take to send its request.
const PATIENCE: Duration = Duration::from_secs(30);

/// State needed to admit encoders.
pub struct JoinServer {
    roster: Roster,
    /// The paths at which the actors of the run listen for edges.
    paths: BTreeMap<ActorId, PathBuf>,
    /// The index that none of its encoders has had, for each encoder pool that may change.
    next: BTreeMap<PoolName, Cell<u32>>,
}

/// A request to the join server.
pub enum JoinRequest {
    /// An encoder has come: who it is, its connection, and what others are to be told first.
    Join { actor: ActorId, member: Member, edges: Vec<(ActorId, Command)> },
    Scale {
        pool: PoolName,
        encoders: u32,
        /// Also more than this machine has cores for.
        is_forced: bool,
        answer: Box<dyn FnOnce(Down)>,
    },
}

impl JoinServer {
    /// `paths`: where everyone who has had a place listens for edges; `elastic`: the pools that may change; `free`: no
    /// encoder that was started in a pool has this index, nor any higher one.
    pub fn new(
        roster: Roster,
        paths: BTreeMap<ActorId, PathBuf>,
        elastic: &[PoolName],
        free: impl Fn(PoolName) -> u32,
    ) -> Rc<Self> {
        let next = |&pool: &PoolName| {
            let encoders = paths.keys().filter(|actor| actor.pool == pool);
            let beyond = encoders.map(|actor| actor.index + 1).max().unwrap_or(0);
            (pool, Cell::new(beyond.max(roster.pools.of(pool)).max(free(pool))))
        };
        let next = elastic.iter().map(next).collect();
        Rc::new(Self { roster, paths, next })
    }

    /// Returns an index for an encoder that is about to join.
    ///
    /// # Panics
    /// The pool is not one that changes.
    pub fn next_index(&self, pool: PoolName) -> u32 {
        let next = &self.next[&pool];
        next.replace(next.get() + 1)
    }

    /// Returns whether a pool continues without encoders.
    pub fn reads(&self, pool: PoolName) -> bool {
        self.roster.reading.borrow().contains(&pool)
    }

    /// Returns the record of all pools that continue without encoders, for the journal.
    pub fn reading(&self) -> Record {
        Record::Reading(self.roster.reading.borrow().clone())
    }

    /// Says whether who comes to a pool from now on reads features, or makes them.
    pub fn set_reads(&self, pool: PoolName, reads: bool) {
        let mut reading = self.roster.reading.borrow_mut();
        if reads {
            reading.insert(pool)
        } else {
            reading.remove(&pool)
        };
    }

    /// Handles every connection, forever. `request` is called with what the peer wants.
    pub async fn open<S>(
        self: Rc<Self>,
        mut accept: impl AsyncFnMut() -> io::Result<S>,
        request: impl Fn(JoinRequest) + Clone + 'static,
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        while let Ok(stream) = accept().await {
            let (server, request) = (self.clone(), request.clone());
            let (sender, receiver) = link(stream);
            let member = Member { sender, receiver, edges: PathBuf::new(), wire: None, confirms: false };
            spawn_local(async move {
                if let Ok(Some(wanted)) = timeout(PATIENCE, server.hear(member)).await {
                    request(wanted)
                }
            });
        }
        std::future::pending().await
    }

    async fn hear(&self, mut member: Member) -> Option<JoinRequest> {
        let said = match member.receiver.recv().await {
            Ok(said) => said?,
            Err(error @ LinkError::Frame(_)) => {
                tracing::warn!("a connection to {} is refused: {error}", self.roster.address);
                return self.refuse(member, &error.to_string()).await;
            }
            // Whoever is gone again wants nothing.
            Err(LinkError::Io(_)) => return None,
        };
        match said {
            Up::Hello { config, pool, .. } if config != self.roster.config => {
                self.turn_away(member, pool, &other_config(&self.roster.config, &config)).await
            }
            Up::Hello { role: Role::Encoder, pool, index, .. } if self.next.contains_key(&pool) => {
                self.admit(member, pool, index).await
            }
            Up::Hello { pool, .. } => self.turn_away(member, pool, BEGUN).await,
            Up::Scale { pool, encoders, is_forced } => match self.scalable(pool, encoders) {
                Ok(pool) => {
                    let answer = Box::new(move |down| {
                        spawn_local(async move { member.sender.send(&down).await });
                    });
                    Some(JoinRequest::Scale { pool, encoders, is_forced, answer })
                }
                Err(reason) => self.refuse(member, &reason).await,
            },
            Up::Return { from, wire, attempt, received } => {
                let raw = raw(member.sender, member.receiver);
                match &self.roster.returns {
                    Some(returns) => returns.come_back(from, wire, attempt, received, raw).await,
                    None => refuse(raw).await,
                }
                None
            }
            _ => self.refuse(member, "it did not send a join request").await,
        }
    }

    /// Returns the pool that is to have this many encoders, the run's only one if none is named, or why it cannot.
    fn scalable(&self, named: Option<PoolName>, encoders: u32) -> Result<PoolName, String> {
        let pools = &self.roster.pools;
        let only = || WantedActor::new(Role::Encoder, None, pools).map(|wanted| wanted.pool);
        let pool = named.map_or_else(only, Ok).map_err(|error| format!("{error} (`--pool`)"))?;
        if !pools.encoders.iter().any(|known| known.name == pool) {
            let names = pools.encoders.iter().map(|pool| pool.name.to_string()).collect::<Vec<_>>();
            return Err(format!("it has no encoder pool `{pool}`, but {}", known(&names)));
        }
        if !self.next.contains_key(&pool) {
            return Err(format!("the number of actors of its pool `{pool}` cannot change while it runs"));
        }
        if encoders == 0 && !self.roster.cached.contains(&pool) {
            return Err(format!(
                "a pool without encoders reads features from a folder, and its pool `{pool}` has none \
                 (`pools.{pool}.cache_dir`)"
            ));
        }
        Ok(pool)
    }

    /// Refuses a process that wants to join the run, with a log line at the scheduler.
    async fn turn_away(&self, member: Member, pool: PoolName, reason: &str) -> Option<JoinRequest> {
        tracing::warn!("a process of the pool {pool} is refused: {reason}");
        self.refuse(member, reason).await
    }

    async fn refuse(&self, mut member: Member, reason: &str) -> Option<JoinRequest> {
        let _ = member.sender.send(&refused(reason)).await;
        None
    }

    /// `index`: what its parent has taken from [`JoinServer::next_index`] for it.
    async fn admit(&self, mut member: Member, pool: PoolName, index: Option<u32>) -> Option<JoinRequest> {
        let began_with = 0..self.roster.pools.of(pool);
        let index = index.filter(|index| !began_with.contains(index) && *index < self.next[&pool].get());
        let me = ActorId::encoder_of(pool, index.unwrap_or_else(|| self.next_index(pool)));
        member.sender.send(&Down::Assigned(me)).await.ok()?;
        let Up::Listening { edges } = member.receiver.recv().await.ok()?? else { return None };
        let mut pools = self.roster.pools.clone();
        pools.encoders.iter_mut().filter(|other| other.name == pool).for_each(|pool| pool.actors = me.index + 1);
        let all = topology(&pools, self.roster.credits);
        let mine: Vec<EdgeSpec> = all.into_iter().filter(|edge| edge.from == me || edge.to == me).collect();
        let incoming = mine.iter().filter(|edge| edge.to == me);
        let connect = |edge: &EdgeSpec| Command::Connect { to: me, credit: edge.credit, path: edges.clone() };
        let told = incoming.map(|edge| (edge.from, connect(edge))).collect();
        let (number, returned) = self.roster.draw(me);
        let welcome = self.roster.welcome(me, number, &mine, &self.paths);
        member.wire = Some((number, returned));
        member.sender.send(&Down::Welcome(welcome)).await.ok()?;
        tracing::info!("{me} joins");
        Some(JoinRequest::Join { actor: me, member, edges: told })
    }
}

/// Returns `none`, or the names.
fn known(names: &[String]) -> String {
    if names.is_empty() { "none at all".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::gather;
    use super::*;
    use loongforge_core::schedule::PoolSize;
    use loongforge_core::transport::{PROTOCOL_VERSION, frame};
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    /// Returns the reason for which an encoder with another protocol is refused.
    async fn refusal_of_another_version(connect: &flume::Sender<UnixStream>) -> String {
        let (mut here, there) = UnixStream::pair().unwrap();
        connect.send(there).unwrap();
        let hello = Up::Hello { config: "abc".into(), role: Role::Encoder, pool: PoolName::ENCODER, index: None };
        let mut bytes = frame(&hello).unwrap();
        bytes[4..6].copy_from_slice(&(PROTOCOL_VERSION + 1).to_le_bytes());
        here.write_all(&bytes).await.unwrap();
        let (_sender, mut receiver) = link::<Up, Down>(here);
        match receiver.recv().await.unwrap() {
            Some(Down::Refused { reason }) => reason,
            other => panic!("it is answered {other:?}"),
        }
    }

    #[test]
    fn the_only_encoder_pool_needs_no_name_and_of_several_one_is_named() {
        let scalable = |names: &[&str], named: Option<&str>| {
            let mut roster = Roster::of_three();
            let names: Vec<PoolName> = names.iter().map(|name| name.parse().unwrap()).collect();
            roster.pools.encoders = names.iter().map(|&name| PoolSize { name, actors: 1 }).collect();
            let server = JoinServer::new(roster, BTreeMap::new(), &names, |_| 0);
            server.scalable(named.map(|name| name.parse().unwrap()), 2).map(|pool| pool.to_string())
        };
        assert_eq!(scalable(&["audio"], None).as_deref(), Ok("audio"));
        assert_eq!(scalable(&["audio", "encoder"], None).as_deref(), Ok("encoder"));
        assert_eq!(scalable(&["audio", "text"], Some("text")).as_deref(), Ok("text"));
        let several = scalable(&["audio", "text"], None).unwrap_err();
        assert_eq!(several, "the run has several encoder pools: say which one of `audio`, `text` (`--pool`)");
        let none = scalable(&[], None).unwrap_err();
        assert_eq!(none, "it has no encoder pool `encoder`, but none at all");
    }

    #[test]
    fn a_process_of_another_version_is_told_so_before_and_after_the_run_has_begun() {
        let roster = Roster::of_three();
        let (connect, connected) = flume::bounded::<UnixStream>(10);
        let accept = async || -> io::Result<UnixStream> { Ok(connected.recv_async().await.expect("it is open")) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let reasons = tokio::task::LocalSet::new().block_on(&runtime, async {
            let before = tokio::select! {
                _ = gather(&accept, &roster) => unreachable!("nobody joins"),
                reason = refusal_of_another_version(&connect) => reason,
            };
            let server = JoinServer::new(roster, BTreeMap::new(), &[PoolName::ENCODER], |_| 0);
            let after = tokio::select! {
                () = server.open(&accept, |_| unreachable!("nobody joins")) => unreachable!("it never ends"),
                reason = refusal_of_another_version(&connect) => reason,
            };
            [before, after]
        });
        let theirs = format!("protocol version {}", PROTOCOL_VERSION + 1);
        assert!(reasons.iter().all(|reason| reason.contains(&theirs)), "{reasons:?}");
    }
}
