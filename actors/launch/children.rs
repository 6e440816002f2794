//! Processes that the scheduler's process starts itself: their output with a name before each line, their end
//! reported once, and none of them left when the parent dies.

use super::RunError;
use super::join::JoinError;
use loongforge_core::message::ActorId;
use loongforge_core::schedule::PoolSizes;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// Makes the command of one actor's process, which is to join at the given address.
pub type Start = Box<dyn Fn(ActorId, &Path) -> std::process::Command>;

/// Set for children: the parent's process id and the actor's index.
const PARENT: &str = "LOONGFORGE_PARENT";
const INDEX: &str = "LOONGFORGE_INDEX";

/// How long children may take to end after their actors have.
const GRACE: Duration = Duration::from_secs(10);

type Exit = watch::Receiver<Option<String>>;

/// Children that are running, killed when this is dropped.
#[derive(Default)]
pub(super) struct Children {
    exits: BTreeMap<ActorId, Exit>,
    waits: tokio::task::JoinSet<()>,
}

impl Children {
    pub fn start(start: Start, pools: PoolSizes, address: &Path) -> Result<Self, RunError> {
        let mut children = Self::default();
        for actor in pools.actors() {
            let mut command = Command::from(start(actor, address));
            command.env(PARENT, std::process::id().to_string()).env(INDEX, actor.index.to_string());
            // Their own group: Ctrl-C is for the scheduler, which stops them in order.
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0)
                .kill_on_drop(true);
            let named = |source| RunError::Start { what: format!("the process of {actor}"), source };
            let mut child = command.spawn().map_err(named)?;
            tokio::spawn(pass_on(actor, child.stdout.take()));
            tokio::spawn(pass_on(actor, child.stderr.take()));
            let (ended, exit) = watch::channel(None);
            children.exits.insert(actor, exit);
            children.waits.spawn(wait(child, ended));
        }
        Ok(children)
    }

    /// The first child that ends; for ever where there are none.
    pub async fn first_end(&self) -> JoinError {
        let ends = self.exits.iter().map(|(&actor, exit)| {
            let mut exit = exit.clone();
            Box::pin(async move {
                let reason = exit.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
                JoinError::ChildEnded { actor, reason: reason.unwrap_or_default() }
            })
        });
        let mut ends: Vec<_> = ends.collect();
        std::future::poll_fn(move |context| {
            ends.iter_mut()
                .map(|end| end.as_mut().poll(context))
                .find(std::task::Poll::is_ready)
                .unwrap_or(std::task::Poll::Pending)
        })
        .await
    }

    /// How the process of `actor` ended, once it has; `None` where it is not a child.
    pub fn exit(&self, actor: ActorId) -> impl Future<Output = Option<String>> + Send + 'static {
        let exit = self.exits.get(&actor).cloned();
        async move {
            let mut exit = exit?;
            let ended = tokio::time::timeout(GRACE, exit.wait_for(Option::is_some)).await.ok()?.ok()?;
            ended.clone()
        }
    }

    /// Waits for those that end by themselves and kills the others.
    pub async fn finish(mut self) {
        let all = async { while self.waits.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(GRACE, all).await;
    }
}

async fn wait(mut child: Child, ended: watch::Sender<Option<String>>) {
    let reason = match child.wait().await {
        Ok(status) => format!("its process ended: {status}"),
        Err(error) => error.to_string(),
    };
    let _ = ended.send(Some(reason));
}

async fn pass_on(actor: ActorId, output: Option<impl AsyncRead + Unpin>) {
    let Some(output) = output else { return };
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        eprintln!("{actor} | {line}");
    }
}

/// In a child: dies with its parent, and learns the index that it was started for. Elsewhere: nothing.
pub(super) fn bind_to_parent() -> Result<Option<u32>, RunError> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let Some(parent) = number(PARENT) else { return Ok(None) };
    let failed = |source: io::Error| RunError::Start { what: "a process that dies with its parent".into(), source };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
    if getppid().map(Pid::as_raw_nonzero).map(|pid| pid.get() as u32) != Some(parent) {
        return Err(failed(io::Error::other("the parent is gone already")));
    }
    Ok(number(INDEX))
}
