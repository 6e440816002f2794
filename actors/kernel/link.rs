//! One engine as the scheduler sees it, wherever it runs.

use loongforge_core::message::{Command, Event};
use loongforge_core::transport::{Mail, MailSender};

pub struct Link {
    pub commands: Commands,
    /// Ends when the engine has.
    pub events: flume::Receiver<Event>,
    /// Asked once events have ended: how the engine did. Must not wait for anything but that.
    pub end: Box<dyn FnOnce() -> String + Send>,
    /// Ends its process by force, where that can be done from here.
    pub kill: Option<Box<dyn FnOnce() + Send>>,
    /// Told which of its events is taken care of for good.
    pub confirm: Option<Confirm>,
}

/// Its events so far, and what is called with the number of each that is taken care of.
pub struct Confirm {
    pub num_events: u64,
    pub done: Box<dyn Fn(u64) + Send>,
}

/// Says where commands go.
#[derive(Clone)]
pub enum Commands {
    /// An engine of this process.
    Mailbox(MailSender),
    /// The task that writes to its process. As long as the scheduler's unanswered commands.
    Queue(flume::Sender<Command>),
}

impl Commands {
    /// A gone engine takes no commands; its end is learned from its events.
    ///
    /// # Panics
    /// More commands are unanswered than agreed, which is a bug of ours.
    pub fn send(&self, command: Command) {
        match self {
            Commands::Mailbox(mailbox) => drop(mailbox.send(Mail::Command(command))),
            Commands::Queue(queue) => {
                if let Err(flume::TrySendError::Full(command)) = queue.try_send(command) {
                    panic!("command queue overrun by {command:?}");
                }
            }
        }
    }
}
