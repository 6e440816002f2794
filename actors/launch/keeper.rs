//! The process started by the user, if a run has one process per actor: it starts the others on behalf of the scheduler, which is
//! one of them, and replaces a scheduler that was killed. It knows nothing about the run.

use super::RunError;
use super::child::{CRASH_WINDOW, End, pass_on, wait};
use super::signals::{Signals, hand_on, spawn};
use super::socket_folder::SocketFolder;
use loongforge_core::message::{ActorId, Replica};
use loongforge_core::observe::print_line;
use loongforge_core::transport::{LinkReceiver, LinkSender, link};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::process::{Child, Command};
use tokio::sync::Notify;

/// Set for a scheduler that is kept: the folder of the run's sockets; and where it follows another one.
const KEEPER: &str = "LOONGFORGE_KEEPER";
const AGAIN: &str = "LOONGFORGE_AGAIN";
/// Schedulers of one run.
const MAX_LIVES: usize = 5;
/// Ends that were not attended to.
const MAX_ENDS: usize = 4096;

/// A message from the scheduler.
#[derive(Serialize, Deserialize)]
pub(super) enum Order {
    /// `place`: of an encoder pool.
    Start {
        number: u64,
        actor: ActorId,
        place: Option<Replica>,
        words: Vec<OsString>,
        environment: Vec<(OsString, Option<OsString>)>,
    },
    Kill(u64),
    /// The run begins anew: whoever lives is of an attempt before.
    Anew,
}

/// A message to the scheduler.
#[derive(Serialize, Deserialize)]
pub(super) enum Word {
    /// The first one: who was started, the last one last.
    Started(Vec<Started>),
    Ended {
        number: u64,
        end: End,
    },
}

/// A process that a scheduler has had started.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Started {
    pub number: u64,
    pub actor: ActorId,
    pub place: Option<Replica>,
    /// The way in which it has ended, and how long ago.
    pub ended: Option<(End, Duration)>,
}

/// Returns where this scheduler's keeper is, if it has one.
pub fn keeper() -> Option<PathBuf> {
    std::env::var_os(KEEPER).map(PathBuf::from)
}

/// Returns whether this scheduler was started in the place of another one.
pub fn is_takeover() -> bool {
    std::env::var_os(AGAIN).is_some()
}

/// Returns the socket of the keeper of this folder.
pub(super) fn socket(folder: &Path) -> PathBuf {
    folder.join("keeper.sock")
}

/// Keeps the scheduler that `command` starts, until it ends by itself, or by a signal that asked it to stop before it could
/// heed that.
///
/// # Errors
/// It cannot be started.
pub fn keep(command: impl Fn() -> std::process::Command) -> Result<ExitStatus, RunError> {
    let failed = |source| RunError::Start { what: "the run's processes".into(), source };
    let folder = SocketFolder::new().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(Keeper::new(folder.path()).keep(&command)).map_err(failed)
}

struct Keeper<'a> {
    folder: &'a Path,
    started: Vec<KeptProcess>,
    ended: flume::Sender<(u64, End)>,
    ends: flume::Receiver<(u64, End)>,
}

struct KeptProcess {
    number: u64,
    actor: ActorId,
    place: Option<Replica>,
    kill: Arc<Notify>,
    ended: Option<(End, Instant)>,
}

impl KeptProcess {
    /// Returns whether it ended so long ago that it says nothing of its place any more.
    fn is_old(&self) -> bool {
        self.ended.as_ref().is_some_and(|(_, at)| at.elapsed() > CRASH_WINDOW)
    }

    fn told(&self) -> Started {
        let ended = self.ended.as_ref().map(|(end, at)| (end.clone(), at.elapsed()));
        Started { number: self.number, actor: self.actor, place: self.place, ended }
    }
}

impl<'a> Keeper<'a> {
    fn new(folder: &'a Path) -> Self {
        let (ended, ends) = flume::bounded(MAX_ENDS);
        Self { folder, started: Vec::new(), ended, ends }
    }

    async fn keep(mut self, command: &impl Fn() -> std::process::Command) -> io::Result<ExitStatus> {
        let listener = UnixListener::bind(socket(self.folder))?;
        let mut signals = Signals::new()?;
        let mut scheduler = self.scheduler(command(), false)?;
        let (mut lives, mut hearing, mut saying) = (1, None, None::<LinkSender<Word>>);
        // What asked the run to stop, and whether a scheduler that has followed another one is still to be told.
        let (mut told_to_stop, mut is_owed) = (None::<Signal>, false);
        loop {
            tokio::select! {
                status = scheduler.wait() => {
                    let status = status?;
                    let has_stopped = status.signal().is_none() || status.signal() == told_to_stop.map(Signal::as_raw);
                    if has_stopped || lives == MAX_LIVES {
                        return Ok(status);
                    }
                    print_line(&format!("the scheduler's process ended: {status}; a new one takes over"));
                    (lives, hearing, saying, is_owed) = (lives + 1, None, None, told_to_stop.is_some());
                    scheduler = self.scheduler(command(), true)?;
                }
                accepted = listener.accept() => {
                    let (mut sender, receiver) = link(accepted?.0);
                    let started = self.started.iter().map(KeptProcess::told).collect();
                    // One that is gone again is learned from its end.
                    let _ = sender.send(&Word::Started(started)).await;
                    (hearing, saying) = (Some(receiver), Some(sender));
                    if let Some(asked) = told_to_stop.filter(|_| is_owed) {
                        hand_on(asked, &scheduler);
                        is_owed = false;
                    }
                }
                order = hear(&mut hearing) => self.obey(order),
                Ok((number, end)) = self.ends.recv_async() => {
                    if let Some(kept) = self.started.iter_mut().find(|kept| kept.number == number) {
                        kept.ended = Some((end.clone(), Instant::now()));
                    }
                    if let Some(saying) = &mut saying {
                        let _ = saying.send(&Word::Ended { number, end }).await;
                    }
                }
                asked = signals.next() => {
                    if asked != Signal::USR1 {
                        (told_to_stop, is_owed) = (Some(asked), false);
                    }
                    hand_on(asked, &scheduler);
                }
            }
        }
    }

    fn scheduler(&self, command: std::process::Command, is_takeover: bool) -> io::Result<Child> {
        let mut command = Command::from(command);
        command.env(KEEPER, self.folder);
        if is_takeover {
            command.env(AGAIN, "1");
        }
        spawn(command)
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Kill(number) => {
                self.started.iter().filter(|kept| kept.number == number).for_each(|kept| kept.kill.notify_one());
            }
            Order::Anew => self.started.drain(..).for_each(|kept| kept.kill.notify_one()),
            Order::Start { number, actor, place, words, environment } => {
                let kill = Arc::new(Notify::new());
                self.started.retain(|kept| place.is_none() || kept.place != place || !kept.is_old());
                self.started.push(KeptProcess { number, actor, place, kill: kill.clone(), ended: None });
                if let Err(error) = self.start(number, actor, kill, &words, environment) {
                    let _ = self.ended.try_send((number, End { reason: error.to_string(), in_order: false }));
                }
            }
        }
    }

    fn start(
        &self,
        number: u64,
        actor: ActorId,
        kill: Arc<Notify>,
        words: &[OsString],
        environment: Vec<(OsString, Option<OsString>)>,
    ) -> io::Result<()> {
        let [program, arguments @ ..] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        command.args(arguments);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn(command)?;
        tokio::spawn(pass_on(actor, child.stdout.take()));
        tokio::spawn(pass_on(actor, child.stderr.take()));
        let ended = self.ended.clone();
        tokio::spawn(async move {
            let end = wait(child, &kill).await;
            let _ = ended.send_async((number, end)).await;
        });
        Ok(())
    }
}

/// Returns the next order, from a scheduler that is there.
async fn hear(hearing: &mut Option<LinkReceiver<Order>>) -> Order {
    loop {
        match hearing {
            None => std::future::pending().await,
            Some(receiver) => match receiver.recv().await {
                Ok(Some(order)) => return order,
                _ => *hearing = None,
            },
        }
    }
}
