//! Waiting for somebody who may be dead, by a process that may have been stopped itself.

use std::time::Duration;
use tokio::time::timeout;

/// Parts of a limit. Time in which this process did not run counts as one of them at most.
const PARTS: u32 = 8;

/// Waits for `future` for `limit`; `None` where it is not done by then. Where this process was stopped meanwhile, as by a suspended job, a
/// paused container or a machine that is moved, whoever is waited for may have been as well: silence says nothing then, and what is
/// left of the limit begins with the end of that.
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
