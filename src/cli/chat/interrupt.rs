//! Ctrl-C in a chat: it stops the answer, and not the program.

use anyhow::{Context, Result};
use loongforge_torch::native::exit_at_once;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const LISTENING: u8 = 0;
const ANSWERING: u8 = 1;
const STOPPING: u8 = 2;

/// Hears of Ctrl-C in a thread of its own, until the program ends.
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// `prompt` is repeated where nothing is being answered; without one, from a pipe, Ctrl-C then ends the program.
    ///
    /// # Errors
    /// The system has no thread left, or does not tell of signals.
    pub fn listen(prompt: Option<&'static str>) -> Result<Self> {
        let state = Arc::new(AtomicU8::new(LISTENING));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("signals")?;
        let heard = state.clone();
        let listen = move || {
            runtime.block_on(async {
                while tokio::signal::ctrl_c().await.is_ok() {
                    let stops = heard.compare_exchange(ANSWERING, STOPPING, Ordering::Relaxed, Ordering::Relaxed);
                    match (stops, prompt) {
                        (Ok(_), _) | (Err(STOPPING), _) => {}
                        (Err(_), Some(prompt)) => {
                            eprintln!("\n/exit or Ctrl-D ends the chat");
                            print!("{prompt}");
                            let _ = std::io::stdout().flush();
                        }
                        // As a program that handles no signal.
                        (Err(_), None) => exit_at_once(130),
                    }
                }
            });
        };
        std::thread::Builder::new().name("signals".into()).spawn(listen).context("signals")?;
        Ok(Self(state))
    }

    /// Runs `answer`, which asks now and then whether it is to stop; returns whether it was.
    ///
    /// # Errors
    /// Fails as `answer` does.
    pub fn during(&self, answer: impl FnOnce(&dyn Fn() -> bool) -> Result<()>) -> Result<bool> {
        self.0.store(ANSWERING, Ordering::Relaxed);
        let answered = answer(&|| self.0.load(Ordering::Relaxed) == STOPPING);
        let stopped = self.0.swap(LISTENING, Ordering::Relaxed) == STOPPING;
        answered.map(|()| stopped)
    }
}
