//! A member of the run as a link: two tasks between its connection and the bounded queues of its shell.

use super::{Down, Member, Up};
use crate::kernel::{Commands, Link};
use loongforge_core::message::{Command, Event};
use std::sync::{Arc, OnceLock};

/// Must be called inside a runtime. `exit`: how its process ended, where that can be known; asked once the connection
/// has ended.
pub fn remote_link(member: Member, queue: usize, exit: impl Future<Output = Option<String>> + Send + 'static) -> Link {
    let Member { mut sender, mut receiver, .. } = member;
    let (commands, to_send) = flume::bounded::<Command>(queue);
    let (received, events) = flume::bounded::<Event>(queue);
    let reason = Arc::new(OnceLock::new());
    let said = reason.clone();
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
            match receiver.recv().await {
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
        let ended = exit.await.unwrap_or(ended);
        reason.get_or_init(|| ended);
    });
    let end = move || said.get().cloned().unwrap_or_else(|| "its connection ended".into());
    Link { commands: Commands::Queue(commands), events, end: Box::new(end) }
}
