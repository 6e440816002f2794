//! A remote member of the run as a link: two tasks between its wire and the bounded queues of its shell.

use super::line::{hear, say, spec};
use super::{Down, Member, Up};
use crate::kernel::{Commands, Confirm, Link};
use crate::launch::children::Process;
use loongforge_core::message::{Command, Event, encode};
use loongforge_core::transport::{Raw, Recovery, Returned, WireReceiver, WireSpec, raw, wait_awake, wire_again};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::timeout;

/// The time that an encoder whose side closed the connection may take to return: its work can be reassigned.
const SHORT: Duration = Duration::from_secs(1);
/// The time that a member of a former scheduler's process may take to return, in leases: it must first notice that its scheduler has
/// changed.
const COME_BACK: u32 = 2;
/// The time that the last messages of a process that has ended may take.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The times after which an actor is given up.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Silence.
    pub silence: Duration,
    /// The end of its connection by its side.
    pub ended: Duration,
    /// A connection is broken after half of it.
    pub lease: Duration,
}

impl Terms {
    /// Returns the terms of an actor; one that the run cannot continue without gets more time.
    pub fn new(lease: Duration, can_be_replaced: bool) -> Self {
        match can_be_replaced {
            true => Self { silence: lease, ended: lease.min(SHORT), lease },
            false => Self { silence: 12 * lease, ended: lease, lease },
        }
    }
}

/// Known state of a member's wire.
#[derive(Default)]
pub struct Before {
    pub number: u128,
    pub returned: Option<flume::Receiver<Returned>>,
    /// Life of this process as the run's scheduler.
    pub life: u64,
    /// Messages that the member has said, and was told; the last of those, of which it may not have heard.
    pub said: u64,
    pub told: u64,
    pub backlog: Vec<Command>,
    /// True if what it says is acknowledged once it is written down.
    pub confirms: bool,
}

/// Must be called inside a runtime. `process`: where it is a child of this one. `open` is held as long as something may
/// be on its way.
pub fn remote_link(
    member: Member,
    queue: usize,
    terms: Terms,
    process: Option<Process>,
    open: flume::Sender<()>,
) -> Link {
    let Member { sender, receiver, wire, confirms, .. } = member;
    let (number, returned) = wire.unwrap_or_default();
    let before = Before { number, returned, life: 1, confirms, ..Before::default() };
    link_again(Some(raw(sender, receiver)), before, queue, terms, process, open)
}

/// Returns a link to a member that another process had before, or on its first connection.
pub fn link_again(
    first: Option<Raw>,
    before: Before,
    queue: usize,
    terms: Terms,
    process: Option<Process>,
    open: flume::Sender<()>,
) -> Link {
    let Before { number, returned, life, said, told, backlog, confirms } = before;
    let sent = told - backlog.len() as u64;
    let mut spec = WireSpec {
        sent,
        received: said,
        life,
        confirms,
        patience_first: COME_BACK * terms.lease,
        ..spec(number, true, terms.lease, terms.silence, terms.ended)
    };
    let recovery = returned.map_or(Recovery::None, Recovery::Accept);
    if matches!(recovery, Recovery::None) {
        // There is no other connection to be had: silence is the end.
        spec.quiet = 2 * terms.silence;
    }
    let backlog = backlog.into_iter().filter_map(|command| encode(&Down::Command(command)).ok());
    let (sender, receiver, carrier) = wire_again(first, recovery, spec, backlog.map(Into::into).collect());
    let confirm = confirms.then(|| Confirm { num_events: said, done: Box::new(receiver.confirm()) });
    tokio::spawn(async move {
        carrier.await;
        drop(open);
    });
    let (commands, to_send) = flume::bounded::<Command>(queue);
    let (received, events) = flume::bounded::<Event>(queue);
    let reason = Arc::new(OnceLock::new());
    let how = reason.clone();
    let killer = process.clone();
    tokio::spawn(async move {
        while let Ok(command) = to_send.recv_async().await {
            // The reader learns of a broken wire too, and says so.
            if !say(&sender, &Down::Command(command)).await {
                break;
            }
        }
    });
    tokio::spawn(async move {
        let ended = listen(receiver, &received, terms.silence, process.clone()).await;
        let exit = match process {
            Some(process) => process.exit().await,
            None => None,
        };
        reason.get_or_init(|| exit.unwrap_or(ended));
        // Events end here: whoever asks then how it ended is told.
        drop(received);
    });
    let end = move || how.get().cloned().unwrap_or_else(|| "its connection ended".into());
    let kill = killer.map(|process| Box::new(move || process.kill()) as Box<dyn FnOnce() + Send>);
    Link { commands: Commands::Queue(commands), events, end: Box::new(end), kill, confirm }
}

/// Passes events on until the actor's end; returns how that was learned.
async fn listen(
    mut wire: WireReceiver,
    events: &flume::Sender<Event>,
    silence: Duration,
    process: Option<Process>,
) -> String {
    let watched = process.clone();
    let has_ended = async move {
        match watched {
            Some(process) => process.ended().await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(has_ended);
    let mut patience = silence;
    loop {
        let said = tokio::select! {
            said = wait_awake(patience, hear::<Up>(&mut wire)) => said,
            () = &mut has_ended, if patience == silence => {
                patience = LAST_WORDS.min(silence);
                continue;
            }
        };
        match said {
            None if patience != silence => return "its process ended".to_owned(),
            None => {
                process.inspect(Process::kill);
                return format!("no heartbeat for {silence:?}");
            }
            Some(Ok(Some(Up::Alive))) if events.is_disconnected() => return "it was removed from the run".to_owned(),
            Some(Ok(Some(Up::Alive))) => {}
            Some(Ok(Some(Up::Event(event)))) => {
                if events.send_async(event).await.is_err() {
                    return "the scheduler has ended".to_owned();
                }
            }
            Some(Ok(Some(other))) => return format!("protocol violation: it sent {other:?} out of turn"),
            Some(Ok(None)) => return "its process ended".to_owned(),
            Some(Err(error)) => {
                // Its connection ends before it does: how it ends by itself is what is to be known.
                if let Some(process) = process
                    && timeout(LAST_WORDS, process.clone().ended()).await.is_err()
                {
                    process.kill();
                }
                return error.to_string();
            }
        }
    }
}
