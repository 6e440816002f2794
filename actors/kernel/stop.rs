//! Requests to stop a run normally, or to save: their sources and signals.

use super::{Hangups, StopSignal, StopSignals};
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// SIGUSR1: sent by Slurm and others before a job's end.
const SAVE: SignalKind = SignalKind::user_defined1();

/// The time for which another SIGTERM is the same request: `timeout` sends it to its child and then to the child's group, and a batch
/// system to all processes of a job, of which a script hands it on.
const ECHO: Duration = Duration::from_secs(1);

/// Phase of this process with respect to signals.
static PHASE: AtomicU8 = AtomicU8::new(0);

/// The phase of a run, which decides who handles the signals of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The run has not started yet.
    Before,
    /// The run handles them.
    Heeded,
    /// The run has ended.
    After,
}

impl Phase {
    /// Returns the phase of this process: whether signals to stop are handled now, not yet, or no longer.
    pub fn now() -> Self {
        match PHASE.load(SeqCst) {
            0 => Self::Before,
            1 => Self::Heeded,
            _ => Self::After,
        }
    }
}

/// Marks this process as handling signals to stop, until dropped.
pub struct Heeding(());

impl Heeding {
    /// Starts handling signals to stop.
    pub fn begin() -> Self {
        PHASE.store(1, SeqCst);
        Self(())
    }
}

impl Drop for Heeding {
    fn drop(&mut self) {
        PHASE.store(2, SeqCst);
    }
}

/// Ignores SIGUSR1 in the process of an engine: launchers send it to all processes, and only the scheduler handles it.
pub(crate) fn leave_to_the_scheduler() {
    // Where it cannot be caught it ends the process, as signals do.
    let _ = signal(SAVE);
}

/// Says who may ask a run to finish its step, save and end as preempted. A second request ends it at once; a second SIGTERM within a
/// second is none.
pub enum StopOn {
    Nothing,
    /// SIGINT, SIGTERM and SIGHUP, and SIGUSR1, which only requests a checkpoint. They then no longer end the process by themselves.
    Signals,
    Channel(flume::Receiver<()>),
}

/// The request that a signal makes.
pub(crate) enum Request {
    Stop,
    Save,
}

/// The signals that have asked a run to stop so far. SIGHUP is never a second request: a terminal that is closed sends it twice, and a
/// system that shuts down sends SIGTERM as well.
#[derive(Default)]
pub(crate) struct Stops {
    is_hung_up: bool,
    /// The time at which SIGINT or SIGTERM came first.
    asked: Option<Instant>,
}

impl Stops {
    /// Returns the request of a signal that comes now.
    pub(crate) fn on(&mut self, signal: StopSignal, now: Instant) -> Option<Request> {
        let is_new = match signal {
            StopSignal::Hangup => !std::mem::replace(&mut self.is_hung_up, true) && self.asked.is_none(),
            StopSignal::Interrupt | StopSignal::Terminate => {
                let since = self.asked.map(|asked| now.saturating_duration_since(asked));
                let is_echo = signal == StopSignal::Terminate && since.is_some_and(|since| since < ECHO);
                let repeats_hangup = self.is_hung_up && self.asked.is_none();
                self.asked.get_or_insert(now);
                !is_echo && !repeats_hangup
            }
        };
        is_new.then_some(Request::Stop)
    }
}

impl StopOn {
    /// Waits until the run is asked to stop; forever if nobody can ask.
    pub(crate) async fn stopped(&self) {
        match self {
            StopOn::Channel(requests) if requests.recv_async().await.is_ok() => return,
            StopOn::Signals => {
                if let Ok(mut signals) = StopSignals::new() {
                    let heeding = Heeding::begin();
                    signals.next().await;
                    // What was asked for is done: nobody else need do it.
                    std::mem::forget(heeding);
                    return;
                }
            }
            StopOn::Nothing | StopOn::Channel(_) => {}
        }
        std::future::pending().await
    }

    /// Calls `ask` at every request, forever.
    pub(super) async fn watch(self, mut ask: impl FnMut(Request)) {
        match self {
            StopOn::Nothing => {}
            StopOn::Channel(requests) => {
                while requests.recv_async().await.is_ok() {
                    ask(Request::Stop);
                }
            }
            StopOn::Signals => {
                let [interrupt, terminate, save] = [SignalKind::interrupt(), SignalKind::terminate(), SAVE].map(signal);
                let (Ok(mut interrupt), Ok(mut terminate), Ok(mut save), Ok(mut hangups)) =
                    (interrupt, terminate, save, Hangups::new())
                else {
                    tracing::warn!("signals to stop cannot be caught: they end the run without a checkpoint");
                    return;
                };
                let _heeding = Heeding::begin();
                let mut stops = Stops::default();
                loop {
                    let request = tokio::select! {
                        biased;
                        Some(()) = interrupt.recv() => stops.on(StopSignal::Interrupt, Instant::now()),
                        Some(()) = terminate.recv() => stops.on(StopSignal::Terminate, Instant::now()),
                        Some(()) = save.recv() => Some(Request::Save),
                        () = hangups.next() => stops.on(StopSignal::Hangup, Instant::now()),
                    };
                    request.into_iter().for_each(&mut ask);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns which of these signals request something; `h`: SIGHUP, `i`: SIGINT, `t`: SIGTERM, each so long after the one before.
    fn requests(signals: &str, pause: Duration) -> Vec<bool> {
        let (mut stops, mut now) = (Stops::default(), Instant::now());
        let requested = signals.chars().map(|signal| {
            let signal = match signal {
                'h' => StopSignal::Hangup,
                'i' => StopSignal::Interrupt,
                _ => StopSignal::Terminate,
            };
            now += pause;
            stops.on(signal, now).is_some()
        });
        requested.collect()
    }

    #[test]
    fn a_closed_terminal_is_one_request_however_often_it_is_told() {
        let later = |signals| requests(signals, ECHO);
        assert_eq!(later("hhh"), [true, false, false]);
        assert_eq!(later("htt"), [true, false, true]);
        assert_eq!(later("thht"), [true, false, false, true]);
        assert_eq!(later("tt"), [true, true]);
    }

    #[test]
    fn a_signal_that_a_process_and_its_group_get_is_one_request() {
        let at_once = |signals| requests(signals, Duration::from_millis(1));
        assert_eq!(at_once("ttt"), [true, false, false]);
        assert_eq!(at_once("it"), [true, false]);
        assert_eq!(at_once("htt"), [true, false, false]);
        // Who presses Ctrl-C twice means it.
        assert_eq!(at_once("ii"), [true, true]);
        assert_eq!(at_once("ti"), [true, true]);
    }
}
