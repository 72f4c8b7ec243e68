//! Polling to a deadline, the only way in which tests wait for real servers.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long a poll rests: short enough that waiting costs a test little, long enough that ten
/// waiting tests do not keep a core busy.
const REST: Duration = Duration::from_millis(10);

/// The longest poll of a process that is expected to fail, in milliseconds; see
/// [`must_notice`](crate::child::must_notice).
pub(crate) const PATIENCE: &str = "REDSTART_TEST_PATIENCE";

/// The moment at which a poll of `within` ends.
fn deadline(within: Duration) -> Instant {
    let patience = std::env::var(PATIENCE).ok().and_then(|ms| ms.parse().ok());
    let patience = patience.map_or(Duration::MAX, Duration::from_millis);
    Instant::now() + within.min(patience)
}

/// Polls `condition` until it holds; `false` when it did not within `within`.
///
/// The condition is always tried at least once, and once more after the deadline, so that a test
/// process that got no CPU for a while does not fail for that reason.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
///
/// let mut n = 0;
/// assert!(redstart_testkit::eventually(Duration::from_secs(5), async || { n += 1; n > 3 }).await);
/// # });
/// ```
pub async fn eventually(within: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let deadline = deadline(within);
    loop {
        let last = Instant::now() >= deadline;
        if condition().await {
            return true;
        }
        if last {
            return false;
        }
        tokio::time::sleep(REST).await;
    }
}

/// Polls `attempt` until it returns a value.
///
/// # Errors
///
/// If no value came within `within`; the message says `what` was waited for.
pub async fn wait_until<T>(
    what: &str,
    within: Duration,
    mut attempt: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let mut found = None;
    let came = eventually(within, async || {
        found = attempt().await;
        found.is_some()
    })
    .await;
    match found {
        Some(value) if came => Ok(value),
        _ => bail!("timed out after {within:?} waiting for {what}"),
    }
}

/// As [`wait_until`], in a test without a runtime.
///
/// # Errors
///
/// If there is no value within `within`; the message says `what` was waited for.
pub fn block_until<T>(
    what: &str,
    within: Duration,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T> {
    let deadline = deadline(within);
    loop {
        let last = Instant::now() >= deadline;
        if let Some(value) = attempt() {
            return Ok(value);
        }
        if last {
            bail!("timed out after {within:?} waiting for {what}");
        }
        std::thread::sleep(REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_condition_that_never_holds_ends_at_the_deadline() {
        assert!(!eventually(Duration::from_millis(30), async || false).await);
        let error = wait_until::<()>("godot", Duration::from_millis(30), async || None).await;
        assert!(error.unwrap_err().to_string().contains("godot"));
        let error = block_until::<()>("godot", Duration::from_millis(30), || None);
        assert!(error.unwrap_err().to_string().contains("godot"));
    }
}
