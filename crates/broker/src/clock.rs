//! The time that queues are given: milliseconds since 1970, which never go back while the node runs.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The system's clock is asked once and then counted on from, so that whoever sets it back does not make messages young again.
static START: OnceLock<(Instant, u64)> = OnceLock::new();

/// What time it is.
pub(crate) fn now_ms() -> u64 {
    let (instant, start_ms) = START.get_or_init(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Instant::now(), u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    });
    start_ms.saturating_add(u64::try_from(instant.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// Waits until then. The clock counts whole milliseconds, so it may be waited for one more.
pub(crate) async fn sleep_until(deadline_ms: u64) {
    let now = now_ms();
    if deadline_ms > now {
        tokio::time::sleep(Duration::from_millis(deadline_ms - now)).await;
    }
}
