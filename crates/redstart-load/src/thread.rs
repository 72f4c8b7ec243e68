//! How busy the threads of this process are: a client whose busiest thread never rests is the limit of a load test, however
//! many cores are idle.

use std::{collections::HashMap, time::Duration};

/// The time that each thread of this process has run or waited for a core. A thread that other programs keep waiting is as
/// busy as one that runs.
#[derive(Debug)]
pub(crate) struct Threads(HashMap<u64, Duration>);

impl Threads {
    /// What the threads have spent until now; `None` if the system does not tell.
    pub(crate) fn now() -> Option<Self> {
        let mut threads = HashMap::new();
        for entry in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
            let id = entry.file_name().to_str().and_then(|id| id.parse().ok());
            // A thread may end meanwhile.
            let text = std::fs::read_to_string(entry.path().join("schedstat"));
            if let (Some(id), Ok(text)) = (id, text) {
                threads.insert(id, spent(&text)?);
            }
        }
        (!threads.is_empty()).then_some(Self(threads))
    }

    /// The share of the time since `before` in which the busiest thread ran or waited for a core.
    pub(crate) fn busiest_since(&self, before: &Self, took: Duration) -> Option<f64> {
        let spent = |(id, spent): (&u64, &Duration)| {
            let before = before.0.get(id).copied().unwrap_or_default();
            spent.saturating_sub(before).as_secs_f64()
        };
        let most = self.0.iter().map(spent).reduce(f64::max)?;
        Some((most / took.as_secs_f64().max(1e-9)).min(1.0))
    }
}

/// Nanoseconds of running and of waiting, and the number of turns.
fn spent(schedstat: &str) -> Option<Duration> {
    let mut fields = schedstat.split_ascii_whitespace();
    let mut nanos = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_nanos(nanos()? + nanos()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_thread_counts_and_not_the_mean() {
        let threads = |spent: &[(u64, u64)]| {
            let of = |(id, millis): &(u64, u64)| (*id, Duration::from_millis(*millis));
            Threads(spent.iter().map(of).collect())
        };
        let before = threads(&[(1, 500), (2, 0)]);
        let after = threads(&[(1, 510), (2, 950), (3, 20)]);
        let share = after
            .busiest_since(&before, Duration::from_secs(1))
            .unwrap();
        assert!((share - 0.95).abs() < 1e-9, "{share}");
        assert_eq!(spent("1500 500 7\n"), Some(Duration::from_nanos(2000)));
        assert_eq!(spent(""), None);
    }
}
