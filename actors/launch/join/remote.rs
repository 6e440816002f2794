//! A member of the run as a link: two tasks between its connection and the bounded queues of its shell.

use super::{Down, Member, Up};
use crate::kernel::{Commands, Link};
use crate::launch::children::Process;
use loongforge_core::message::{Command, Event};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::timeout;

/// Must be called inside a runtime. `process`: where it is a child of this one. The actor is given up when it is silent
/// for `lease`.
pub fn remote_link(member: Member, queue: usize, lease: Duration, mut process: Option<Process>) -> Link {
    let Member { mut sender, mut receiver, .. } = member;
    let (commands, to_send) = flume::bounded::<Command>(queue);
    let (received, events) = flume::bounded::<Event>(queue);
    let reason = Arc::new(OnceLock::new());
    let said = reason.clone();
    let killer = process.clone();
    tokio::spawn(async move {
        while let Ok(command) = to_send.recv_async().await {
            // The reader learns of a broken connection too, and says so.
            if sender.send(&Down::Command(command)).await.is_err() {
                break;
            }
        }
    });
    tokio::spawn(async move {
        let ended = loop {
            let Ok(said) = timeout(lease, receiver.recv()).await else {
                process.take().inspect(Process::kill);
                break format!("it gave no sign of life for {lease:?}");
            };
            match said {
                Ok(Some(Up::Alive)) if received.is_disconnected() => break "it was given up".to_owned(),
                Ok(Some(Up::Alive)) => {}
                Ok(Some(Up::Event(event))) => {
                    if received.send_async(event).await.is_err() {
                        break "the scheduler has ended".to_owned();
                    }
                }
                Ok(Some(other)) => break format!("it said {other:?}, which was not its turn"),
                Ok(None) => break "its process ended".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        let exit = match process {
            Some(process) => process.exit().await,
            None => None,
        };
        reason.get_or_init(|| exit.unwrap_or(ended));
    });
    let end = move || said.get().cloned().unwrap_or_else(|| "its connection ended".into());
    let kill = killer.map(|process| Box::new(move || process.kill()) as Box<dyn FnOnce() + Send>);
    Link { commands: Commands::Queue(commands), events, end: Box::new(end), kill }
}
