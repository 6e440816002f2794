//! The connections to the page, limited in number. One without a request yet makes room for the next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

/// Maximum number of connections.
const MAX_CLIENTS: usize = 64;

/// Connections that are served, oldest first.
#[derive(Default)]
pub(super) struct Clients(VecDeque<Client>);

struct Client {
    task: JoinHandle<()>,
    has_asked: Arc<AtomicBool>,
}

impl Clients {
    /// Serves another connection. If there are too many, the oldest one without a request is closed, or, if all have sent one, the
    /// oldest: idle connections keep nobody waiting.
    pub fn admit(&mut self, has_asked: Arc<AtomicBool>, serve: impl Future<Output = ()> + Send + 'static) {
        self.0.retain(|client| !client.task.is_finished());
        if self.0.len() >= MAX_CLIENTS {
            let idle = self.0.iter().position(|client| !client.has_asked.load(Ordering::Relaxed));
            if let Some(client) = self.0.remove(idle.unwrap_or(0)) {
                client.task.abort();
            }
        }
        self.0.push_back(Client { task: tokio::spawn(serve), has_asked });
    }
}
