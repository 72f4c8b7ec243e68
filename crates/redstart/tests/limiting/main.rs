//! The limiters: what they admit, what they refuse, and what they leave behind.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use redis::Value;
use redstart::{
    Store,
    limiting::{Algorithm, Limiter, LimiterBuilder, Quota},
};

mod decision;
mod fleet;
mod input;
mod lease;
mod model;
// Only debug builds can break a script.
mod mutation;
mod refund;
mod store_down;

#[path = "../served/engine.rs"]
mod served;

/// Long enough that nothing comes back during a test.
const LONG: Duration = Duration::from_secs(20 * 24 * 3600);

/// Every way in which a limit is kept: the four algorithms, and the three scripts of the token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    WholeBucket,
    ExactBucket,
    Ledger,
    FixedWindow,
    SlidingWindow,
    SlidingCounter,
}

impl Way {
    const ALL: [Self; 6] = [
        Self::WholeBucket,
        Self::ExactBucket,
        Self::Ledger,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingCounter,
    ];

    fn algorithm(self) -> Algorithm {
        match self {
            Self::WholeBucket | Self::ExactBucket | Self::Ledger => Algorithm::TokenBucket,
            Self::FixedWindow => Algorithm::FixedWindow,
            Self::SlidingWindow => Algorithm::SlidingWindow,
            Self::SlidingCounter => Algorithm::SlidingCounter,
        }
    }

    /// A limiter of `units` in (about) `period`. An odd microsecond makes the rate one that has no whole
    /// milliseconds.
    fn limiter(
        self,
        store: &Store,
        namespace: &str,
        units: u64,
        period: Duration,
    ) -> LimiterBuilder {
        let odd = Duration::from_micros(if self == Self::ExactBucket { 7 } else { 0 });
        // Each has a name of its own, so that one test can use them all.
        let builder = Limiter::builder(
            store,
            namespace,
            &format!("{self:?}"),
            self.algorithm(),
            Quota::per(units, period + odd),
        );
        match self {
            Self::Ledger => builder.refundable(),
            _ => builder,
        }
    }

    fn is_refundable(self) -> bool {
        !matches!(self, Self::WholeBucket | Self::ExactBucket)
    }
}

/// Everything stored under a namespace: keys, values, and when they expire.
async fn stored(store: &Store, namespace: &str) -> anyhow::Result<Vec<(String, Value, i64)>> {
    let mut found = Vec::new();
    for key in store.scan(&format!("{namespace}:*")).await? {
        let kind: String = store.query(redis::cmd("TYPE").arg(&key)).await?;
        let value: Value = match kind.as_str() {
            "zset" => {
                let mut cmd = redis::cmd("ZRANGE");
                cmd.arg(&key).arg(0).arg(-1).arg("WITHSCORES");
                store.query(&cmd).await?
            }
            "none" => continue,
            _ => store.query(redis::cmd("GET").arg(&key)).await?,
        };
        let expires: i64 = store.query(redis::cmd("PEXPIRETIME").arg(&key)).await?;
        found.push((key, value, expires));
    }
    Ok(found)
}
