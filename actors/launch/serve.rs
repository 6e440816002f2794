//! The process of an engine: joins a run and serves it.

use super::asked::asked_twice;
use super::edges::{Carriers, Edges, Open, dial};
use super::inlet::{Door, Inlet, rendezvous_at};
use super::join::{Down, Joined, Line, Up, Welcome, hear, join, line, say, say_loose, say_out};
use super::net::connect;
use super::socket_folder::hold;
use super::{Assignment, EdgeSpec, EngineFactory, Meeting, RunError, WantedActor};
use crate::kernel::{Commands, Link, StopSignals, leave_to_the_scheduler, spawn};
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, Command, Event, Role};
use loongforge_core::schedule::Failure;
use loongforge_core::transport::{Edge, Mail, Mailbox, Recovery, WireError, WireReceiver, WireSender, raw};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::time::Duration;

/// The time that the last messages to the scheduler may take.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// The time that an actor that cannot reach its peers waits for the message that the run ends; at most half a lease.
const FAREWELL: Duration = Duration::from_secs(2);
/// Edges that an actor's mailbox has room for beside those with which the run begins: of encoders that join. A queue takes memory for
/// what is in it alone.
const MAX_JOINING: usize = 1024;

/// Joins a run as the actor `wanted` and serves it until it ends. The parent that started this process may have set its index. A signal
/// that asks the process to stop removes an encoder from the run, if others are left in its pool, and otherwise stops the run with a
/// checkpoint.
///
/// # Errors
/// Fails if the run could not be joined, or the engine failed or lost the scheduler.
pub fn serve_role(
    wanted: impl Into<WantedActor>,
    meeting: Meeting,
    make_engine: impl FnOnce(Assignment) -> EngineFactory,
) -> Result<(), RunError> {
    let wanted = wanted.into();
    let index = super::child::bind_to_parent()?.or(wanted.index);
    let wanted = WantedActor { index, ..wanted };
    let folder = super::in_process::rendezvous()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| RunError::Start { what: "the runtime".into(), source })?;
    runtime.block_on(async {
        leave_to_the_scheduler();
        let address = meeting.address.to_string();
        let connect = async || connect(&meeting.address, &meeting.security, Some(Role::Scheduler)).await;
        let inlet = Inlet::new(&meeting, folder.path()).await?;
        let listen = |me| inlet.open(me);
        let joined = join(connect, &address, (meeting.config.clone(), wanted), meeting.timeout, listen).await?;
        serve(joined, &meeting, make_engine).await
    })
}

async fn serve(
    joined: Joined<Door>,
    meeting: &Meeting,
    make_engine: impl FnOnce(Assignment) -> EngineFactory,
) -> Result<(), RunError> {
    let Joined { welcome, listener, sender, receiver } = joined;
    let (me, lease) = (welcome.assignment.me, welcome.lease);
    let recovery = match &meeting.address {
        Address::Unix(_) if !welcome.returns => Recovery::None,
        address => {
            let hello = |_| Up::Alive;
            Recovery::Connect(dial(address.clone(), meeting.security.clone(), Role::Scheduler, me, hello))
        }
    };
    // Without another connection to be had, silence of the scheduler is no reason to leave.
    let (sender, receiver, carrier) = line(raw(sender, receiver), recovery, &Line { number: welcome.wire, lease });
    tokio::spawn(carrier);
    let mut hearing = Hearing { receiver, early: VecDeque::new(), room: welcome.queue };
    // From here on the run is to end in order: what comes before its engine is there is told then.
    let signals = StopSignals::new().ok();
    let mailbox = mailbox(&welcome);
    let shared = Edges { me, security: meeting.security.clone(), mail: mailbox.sender(), lease };
    let begin = begin(welcome, listener, mailbox, &shared, meeting, make_engine);
    let begun = async {
        tokio::select! {
            begun = begin => Some(begun),
            true = hearing.is_over() => None,
        }
    };
    let begun = while_alive(&sender, lease, begun).await;
    let is_over = match &begun {
        None => true,
        Some(Ok(_)) => false,
        // The word of it may be on its way.
        Some(Err(_)) => {
            let told = tokio::time::timeout(FAREWELL.min(lease / 2), hearing.is_over());
            while_alive(&sender, lease, told).await.unwrap_or(false)
        }
    };
    let Begun { link, tell, carriers, _door, _folder } = match begun {
        Some(Ok(begun)) => begun,
        Some(Err(error)) if !is_over => {
            let cause = match &error {
                RunError::Failed(failure) => failure.cause.clone(),
                other => other.to_string(),
            };
            leave(sender, Some(Event::Failed { error: cause, lost: None })).await;
            return Err(error);
        }
        // Who joins while the run ends may find its peers gone, which is no failure.
        _ => {
            tracing::info!("{me}: the run ended before it could take part");
            leave(sender, Some(Event::Stopped)).await;
            return Ok(());
        }
    };
    let hearing = tokio::spawn(listen(hearing, link.commands, shared));
    let last = tokio::select! {
        last = tell_on(&link.events, &tell, &sender, lease) => last,
        // Without a farewell: the others go on as if it had died.
        () = asked_twice(me, signals, &sender) => return Ok(()),
    };
    let end = (link.end)();
    carriers.finish().await;
    let (result, last_words) = ended(me, last, end);
    leave(sender, last_words).await;
    hearing.abort();
    result
}

/// Returns how the process of `me` ends whose engine has said this last, and what the scheduler is still to be told. `end`: how the
/// engine's thread ended.
fn ended(me: ActorId, last: Option<Event>, end: String) -> (Result<(), RunError>, Option<Event>) {
    let failed = |failure: Failure| Err(RunError::Failed(failure));
    match last {
        Some(Event::Stopped) => (Ok(()), None),
        // Another's end is no fault of this one.
        Some(Event::Failed { error, lost: Some(_) }) => (failed(Failure::loss(me, error)), None),
        Some(Event::Failed { error, lost: None }) => (failed(Failure::new(me, error)), None),
        _ => (failed(Failure::new(me, end.clone())), Some(Event::Failed { error: end, lost: None })),
    }
}

/// Creates the mailbox of an actor.
fn mailbox(welcome: &Welcome) -> Mailbox {
    Mailbox::new(welcome.producers.len() + MAX_JOINING, welcome.queue)
}

/// Gives the engine what the scheduler says, until it says nothing more; then the engine learns that it is gone.
async fn listen(mut hearing: Hearing, commands: Commands, shared: Edges) {
    let me = shared.me;
    let reason = loop {
        match hearing.next().await {
            Ok(Some(Down::Command(Command::Connect { to, credit, path }))) => {
                match shared.connect_later(&path, EdgeSpec::new(me, to, credit)) {
                    Ok((edge, carrier)) => {
                        drop(shared.mail.send(Mail::Edge { to, edge }));
                        carrier.map(tokio::spawn);
                    }
                    // One that is gone again is no loss: the scheduler knows. Nothing is to be sent to one that is there.
                    Err(error) => {
                        tracing::warn!("no edge to {to}: {error}");
                        drop(shared.mail.send(Mail::Gone { peer: to, reason: error }));
                    }
                }
            }
            Ok(Some(Down::Command(command))) => commands.send(command),
            Ok(Some(other)) => break format!("protocol violation: it sent {other:?} out of turn"),
            Ok(None) => break "its process ended".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    // An engine that is gone knows already.
    drop(shared.mail.send(Mail::Gone { peer: ActorId::SCHEDULER, reason }));
}

/// Does a task before there is an engine, and tells the scheduler meanwhile that this process lives: peers are tried for a lease.
async fn while_alive<T>(sender: &WireSender, lease: Duration, task: impl Future<Output = T>) -> T {
    let mut sign = tokio::time::interval(lease / 4);
    tokio::pin!(task);
    loop {
        tokio::select! {
            done = &mut task => return done,
            _ = sign.tick() => say_loose(sender, &Up::Alive),
        }
    }
}

/// Tells the scheduler what the engine says, and that it lives, until the engine has ended. Returns its last word.
async fn tell_on(
    events: &flume::Receiver<Event>,
    tell: &flume::Sender<()>,
    sender: &WireSender,
    lease: Duration,
) -> Option<Event> {
    let mut last = None;
    let mut sign = tokio::time::interval(lease / 4);
    loop {
        let event = tokio::select! {
            event = events.recv_async() => event,
            _ = sign.tick() => {
                say_loose(sender, &Up::Alive);
                continue;
            }
        };
        let Ok(event) = event else { return last };
        // A scheduler that is gone is learned from the other half.
        match event {
            Event::Trace(_) => say_loose(sender, &Up::Event(event)),
            Event::At { unit: Some(_) } => {
                say_out(sender, &Up::Event(event)).await;
                // The engine waits for it, or has ended.
                let _ = tell.try_send(());
            }
            event => {
                say(sender, &Up::Event(event.clone())).await;
                last = Some(event);
            }
        }
    }
}

/// The messages of the scheduler, which are received also before there is an engine.
struct Hearing {
    receiver: WireReceiver,
    /// Messages from before there was an engine, for the engine.
    early: VecDeque<Result<Down, WireError>>,
    /// Maximum number of these messages.
    room: usize,
}

impl Hearing {
    /// Returns true when the scheduler says that the run ends, or ends itself in order; false if it cannot be heard any more, or there is
    /// no room for what it says. The call is cancellation-safe.
    async fn is_over(&mut self) -> bool {
        while self.early.len() < self.room && !matches!(self.early.back(), Some(Err(_))) {
            match hear(&mut self.receiver).await {
                Ok(Some(Down::Command(Command::Stop)) | None) => return true,
                Ok(Some(said)) => self.early.push_back(Ok(said)),
                Err(error) => self.early.push_back(Err(error)),
            }
        }
        false
    }

    /// Returns the next message; `None` after a normal end.
    async fn next(&mut self) -> Result<Option<Down>, WireError> {
        match self.early.pop_front() {
            Some(said) => said.map(Some),
            None => hear(&mut self.receiver).await,
        }
    }
}

/// An engine at work, and what it is connected by.
struct Begun {
    link: Link,
    /// The engine is told that its words have left the process.
    tell: flume::Sender<()>,
    carriers: Carriers,
    _door: Open,
    /// The folder in which the members of a pool meet, also after the process that made it has died.
    _folder: Option<File>,
}

/// Makes the edges of a member, then its engine.
///
/// # Errors
/// An edge cannot be made, or the system gives no thread.
async fn begin(
    welcome: Welcome,
    listener: Door,
    mailbox: Mailbox,
    shared: &Edges,
    meeting: &Meeting,
    make_engine: impl FnOnce(Assignment) -> EngineFactory,
) -> Result<Begun, RunError> {
    let me = shared.me;
    let failed = |cause: String| RunError::Failed(Failure::new(me, cause));
    let mut edges: BTreeMap<ActorId, Box<dyn Edge>> = BTreeMap::new();
    let mut carriers = Carriers::new(shared.clone());
    for (edge, path) in &welcome.edges {
        let (made, carrier) = shared.connect(path, *edge).await.map_err(failed)?;
        edges.insert(edge.to, made);
        carriers.carry(carrier);
    }
    // Everyone connects before accepting, and connecting waits for nobody.
    carriers.accept(&listener, &welcome.producers, Duration::from_secs(60)).await.map_err(failed)?;
    let _door =
        carriers.keep_open(listener).map_err(|source| RunError::Start { what: format!("the door of {me}"), source })?;

    let mut assignment = welcome.assignment;
    if let Some(rendezvous) = rendezvous_at(&assignment.rendezvous, &meeting.address) {
        let rendezvous = rendezvous.map_err(|source| RunError::Start { what: "edges between hosts".into(), source })?;
        assignment.rendezvous = rendezvous;
    }
    let _folder = hold(&assignment.rendezvous);
    let build = make_engine(assignment);
    let (tell, told) = flume::bounded(1);
    let link = spawn(me, build, mailbox, edges, welcome.queue, Some(told))
        .map_err(|source| RunError::Start { what: format!("the thread of {me}"), source })?;
    Ok(Begun { link, tell, carriers, _door, _folder })
}

/// Says farewell. A scheduler that is gone needs no last words.
async fn leave(sender: WireSender, last_words: Option<Event>) {
    if let Some(event) = last_words {
        say(&sender, &Up::Event(event)).await;
    }
    let _ = tokio::time::timeout(LAST_WORDS, sender.close()).await;
}

#[cfg(test)]
mod tests {
    use super::super::join::{Member, Terms, remote_link};
    use super::super::net::Security;
    use super::*;
    use loongforge_core::config::Products;
    use loongforge_core::message::{PoolName, StepId};
    use loongforge_core::schedule::PoolSizes;
    use loongforge_core::transport::link;
    use std::path::{Path, PathBuf};
    use tokio::net::UnixListener;

    const LEASE: Duration = Duration::from_millis(800);
    /// A socket that is not there.
    const GONE: &str = "/nobody/gone";
    /// A data actor that is to connect, and does not, in place of a foundation.
    const SILENT: &str = "";
    const PATIENT: Duration = Duration::from_secs(20);

    /// Returns the welcome of an actor that joins a run whose foundation, which was at `peer`, is gone.
    fn word(me: ActorId, folder: &Path, peer: &str) -> Welcome {
        let assignment = Assignment {
            me,
            pools: PoolSizes::of_roles(1, 1, 1),
            resume: None,
            rendezvous: folder.into(),
            products: Products::Libtorch,
            reads: false,
        };
        let (edges, producers) = match peer {
            SILENT => (Vec::new(), vec![ActorId::data(0)]),
            peer => (vec![(EdgeSpec::new(me, ActorId::foundation(0), 1 << 20), PathBuf::from(peer))], Vec::new()),
        };
        Welcome { assignment, edges, producers, queue: 4, lease: LEASE, wire: 7, returns: false }
    }

    /// Welcomes one encoder to a run whose foundation, which was at `peer`, is gone, and tells it the commands. It is given up after
    /// so much silence. Returns its last words.
    async fn welcome(
        listener: UnixListener,
        folder: &Path,
        (peer, silence): (&str, Duration),
        commands: &[Command],
    ) -> Event {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut sender, mut receiver) = link::<Down, Up>(stream);
        assert!(matches!(receiver.recv().await.unwrap(), Some(Up::Hello { .. })));
        let me = ActorId::encoder(1);
        sender.send(&Down::Assigned(me)).await.unwrap();
        assert!(matches!(receiver.recv().await.unwrap(), Some(Up::Listening { .. })));
        sender.send(&Down::Welcome(word(me, folder, peer))).await.unwrap();
        let member = Member { sender, receiver, edges: PathBuf::new(), wire: Some((7, None)), confirms: false };
        let (open, _closed) = flume::bounded(0);
        let terms = Terms { silence, ..Terms::new(PATIENT, true) };
        let link = remote_link(member, 4, terms, None, open);
        commands.iter().for_each(|command| link.commands.send(command.clone()));
        link.events.recv_async().await.unwrap()
    }

    /// Returns the last event of an encoder that joins such a run, and how its process ends.
    fn join_late(peer: (&'static str, Duration), commands: &[Command]) -> (Event, Result<(), RunError>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join");
        let meeting = Meeting {
            address: Address::Unix(path.clone()),
            security: Security::plain("a"),
            config: "abc".into(),
            timeout: Duration::from_secs(20),
            shared_memory: true,
            store: None,
            journal: None,
        };
        let (folder, commands) = (dir.path().to_owned(), commands.to_vec());
        let scheduler = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { welcome(UnixListener::bind(&path).unwrap(), &folder, peer, &commands).await })
        });
        let wanted = WantedActor { role: Role::Encoder, pool: PoolName::ENCODER, index: None };
        let ended = serve_role(wanted, meeting, |_| unreachable!("it has no peers"));
        (scheduler.join().unwrap(), ended)
    }

    #[test]
    fn an_encoder_that_joins_as_the_run_ends_leaves_without_an_error() {
        let (said, ended) = join_late((GONE, PATIENT), &[Command::Abort { step: StepId(0) }, Command::Stop]);
        assert!(matches!(said, Event::Stopped), "{said:?}");
        ended.unwrap();
    }

    #[test]
    fn an_encoder_that_waits_for_its_peers_leaves_when_the_run_ends() {
        let (said, ended) = join_late((SILENT, PATIENT), &[Command::Stop]);
        assert!(matches!(said, Event::Stopped), "{said:?}");
        ended.unwrap();
    }

    #[test]
    fn an_encoder_without_peers_in_a_run_that_goes_on_says_who_is_missing() {
        let (said, ended) = join_late((GONE, PATIENT), &[]);
        let Event::Failed { error, .. } = said else { panic!("{said:?}") };
        assert!(error.contains("its actor has ended or was never started"), "{error}");
        assert!(ended.unwrap_err().to_string().contains("gone"));
    }

    #[test]
    fn an_encoder_that_tries_its_peers_for_a_lease_tells_that_it_lives() {
        // Nobody listens at this port.
        let (said, ended) = join_late(("127.0.0.1:1", LEASE), &[]);
        let Event::Failed { error, .. } = said else { panic!("{said:?}") };
        assert!(error.contains("127.0.0.1:1") && ended.is_err(), "{error}");
    }

    #[test]
    fn an_actor_that_has_lost_another_has_no_fault_of_its_own() {
        let me = ActorId::encoder(0);
        let is_loss = |lost: Option<ActorId>| {
            let (result, _) = ended(me, Some(Event::Failed { error: "a".into(), lost }), String::new());
            matches!(result, Err(RunError::Failed(failure)) if failure.is_loss())
        };
        assert!(is_loss(Some(ActorId::data(0))) && is_loss(Some(me)) && !is_loss(None));
    }

    #[test]
    fn there_is_room_for_what_encoders_send_that_join_later() {
        let mailbox = mailbox(&word(ActorId::foundation(0), Path::new("run"), GONE));
        let sender = mailbox.sender();
        for index in 0..10_000 {
            let peer = ActorId::encoder(index);
            assert!(sender.send(Mail::Gone { peer, reason: String::new() }).is_ok());
        }
    }
}
