//! Waits for a peer that may be dead, in a process that may itself have been suspended.

use std::time::Duration;
use tokio::time::timeout;

/// Parts of a limit. Time in which this process did not run counts as one of them at most.
const PARTS: u32 = 8;

/// Waits up to `limit` for `future`; returns `None` if it is not done by then. If this process was suspended meanwhile, as by a job
/// scheduler, a paused container or a VM migration, the peer may have been suspended too: its silence then means nothing, and the
/// remaining time starts when this process resumes.
pub async fn wait_awake<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(future);
    for _ in 0..PARTS {
        if let Ok(done) = timeout(limit / PARTS, &mut future).await {
            return Some(done);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, advance, sleep};

    /// The clock jumps, as it does for a process that was stopped; what is waited for comes a little later.
    async fn comes_after_a_stop(stopped: Duration, later: Duration) -> Option<()> {
        let (tell, told) = flume::bounded(1);
        let waits = tokio::spawn(async move { wait_awake(Duration::from_secs(8), told.recv_async()).await });
        tokio::task::yield_now().await;
        advance(stopped).await;
        sleep(later).await;
        let _ = tell.send(());
        waits.await.unwrap().map(Result::unwrap)
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_process_was_stopped_is_no_silence() {
        assert_eq!(comes_after_a_stop(Duration::from_secs(100), Duration::from_secs(5)).await, Some(()));
        assert_eq!(comes_after_a_stop(Duration::ZERO, Duration::from_secs(5)).await, Some(()));
        assert_eq!(comes_after_a_stop(Duration::ZERO, Duration::from_secs(9)).await, None);
        let begin = Instant::now();
        assert_eq!(wait_awake(Duration::from_secs(8), std::future::pending::<()>()).await, None);
        assert_eq!(begin.elapsed().as_secs(), 8);
    }
}
