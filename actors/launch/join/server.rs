//! Answers whoever connects to a running job: encoders join, users change the number of encoders, everyone
//! else is turned away.

use super::gather::{BEGUN, OTHER_CONFIG, refused};
use super::{Down, Member, Roster, Up};
use crate::launch::{EdgeSpec, topology};
use loongforge_core::message::{ActorId, Command, Role};
use loongforge_core::schedule::PoolSizes;
use loongforge_core::transport::{link, raw, refuse};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_local;
use tokio::time::timeout;

/// Sets how long somebody who connects may take to say what he wants.
const PATIENCE: Duration = Duration::from_secs(30);

/// Holds what is needed to let encoders in.
pub struct JoinServer {
    roster: Roster,
    /// Tells where the actors of the run listen for edges.
    paths: BTreeMap<ActorId, PathBuf>,
    /// The index that no encoder has had.
    next: Cell<u32>,
    is_elastic: bool,
}

/// Says what somebody at the desk wants.
pub enum JoinRequest {
    /// An encoder has come: who it is, its connection, and what others are to be told first.
    Join {
        actor: ActorId,
        member: Member,
        edges: Vec<(ActorId, Command)>,
    },
    Scale {
        encoders: u32,
        answer: Box<dyn FnOnce(Down)>,
    },
}

impl JoinServer {
    /// `paths`: where everyone who has had a place listens for edges; `free`: no encoder that was started has this index, nor
    /// any higher one.
    pub fn new(roster: Roster, paths: BTreeMap<ActorId, PathBuf>, is_elastic: bool, free: u32) -> Rc<Self> {
        let encoders = paths.keys().filter(|actor| actor.role == Role::Encoder);
        let beyond = encoders.map(|actor| actor.index + 1).max().unwrap_or(0);
        let next = Cell::new(beyond.max(roster.pools.encoder).max(free));
        Rc::new(Self { roster, paths, next, is_elastic })
    }

    /// An index for an encoder that is about to come.
    pub fn next_index(&self) -> u32 {
        self.next.replace(self.next.get() + 1)
    }

    /// Hears everyone who connects, for ever. `request` is called with what they want.
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
        match member.receiver.recv().await.ok()?? {
            Up::Hello { config, .. } if config != self.roster.config => self.refuse(member, OTHER_CONFIG).await,
            Up::Hello { role: Role::Encoder, index, .. } if self.is_elastic => self.admit(member, index).await,
            Up::Hello { .. } => self.refuse(member, BEGUN).await,
            Up::Scale { .. } if !self.is_elastic => {
                self.refuse(member, "its number of encoders cannot change while it runs").await
            }
            Up::Scale { encoders } => {
                let answer = Box::new(move |down| {
                    spawn_local(async move { member.sender.send(&down).await });
                });
                Some(JoinRequest::Scale { encoders, answer })
            }
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

    async fn refuse(&self, mut member: Member, reason: &str) -> Option<JoinRequest> {
        let _ = member.sender.send(&refused(reason)).await;
        None
    }

    /// `index`: what its parent has taken from [`JoinServer::next_index`] for it.
    async fn admit(&self, mut member: Member, index: Option<u32>) -> Option<JoinRequest> {
        let began_with = 0..self.roster.pools.encoder;
        let index = index.filter(|index| !began_with.contains(index) && *index < self.next.get());
        let me = ActorId::encoder(index.unwrap_or_else(|| self.next_index()));
        member.sender.send(&Down::Assigned(me)).await.ok()?;
        let Up::Listening { edges } = member.receiver.recv().await.ok()?? else { return None };
        let pools = PoolSizes { encoder: me.index + 1, ..self.roster.pools };
        let all = topology(pools, self.roster.credits);
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
