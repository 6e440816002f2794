//! One engine as the scheduler sees it, wherever it runs.

use loongforge_core::message::{Command, Event};
use loongforge_core::transport::{Mail, MailSender};

pub struct Link {
    pub commands: Commands,
    /// Ends when the engine has ended.
    pub events: flume::Receiver<Event>,
    /// Called once events have ended: returns how the engine ended. It must not wait for anything else.
    pub end: Box<dyn FnOnce() -> String + Send>,
    /// Kills its process, if that is possible from here.
    pub kill: Option<Box<dyn FnOnce() + Send>>,
    /// Receives the numbers of its events that have been handled durably.
    pub confirm: Option<Confirm>,
}

/// The number of its events so far, and a callback with the number of each event that has been handled durably.
pub struct Confirm {
    pub num_events: u64,
    pub done: Box<dyn Fn(u64) + Send>,
}

/// The place that commands go to.
#[derive(Clone)]
pub enum Commands {
    /// An engine in this process.
    Mailbox(MailSender),
    /// The task that writes to its process, with room for all unanswered commands of the scheduler.
    Queue(flume::Sender<Command>),
}

impl Commands {
    /// Sends a command. An engine that is gone takes none; its end is detected from its events.
    ///
    /// # Panics
    /// More commands are unanswered than agreed, which is a bug of ours.
    pub fn send(&self, command: Command) {
        match self {
            Commands::Mailbox(mailbox) => drop(mailbox.send(Mail::Command(command))),
            Commands::Queue(queue) => {
                if let Err(flume::TrySendError::Full(command)) = queue.try_send(command) {
                    panic!("the command queue is full, with {command:?} to come");
                }
            }
        }
    }
}
