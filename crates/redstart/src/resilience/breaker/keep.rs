//! The background task of one instance.

use std::{sync::Weak, time::Duration};

use tokio::time::Instant;

use super::Inner;
use crate::store::{Event, Subscription};

/// Outcomes wait at most this long for their report, if nothing failed.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Reports of failures keep at least this distance, so that a storm of failures goes out in few of them.
const REPORT_SPACING: Duration = Duration::from_millis(50);

/// Keeps the view of one instance: listens to changes, looks when the view is old, and reports outcomes.
pub(super) async fn keep_view(
    inner: Weak<Inner>,
    mut news: Option<Subscription>,
    refresh: Duration,
) {
    let mut look = tokio::time::interval(refresh);
    let mut report = tokio::time::interval(REPORT_EVERY);
    for interval in [&mut look, &mut report] {
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    }
    let mut last_report: Option<Instant> = None;
    let mut due: Option<Instant> = None;
    loop {
        let Some(inner) = inner.upgrade() else { return };
        tokio::select! {
            biased;
            () = inner.wake.notified(), if due.is_none() => {
                let now = Instant::now();
                due = Some(last_report.map_or(now, |last| (last + REPORT_SPACING).max(now)));
            }
            () = sleep_until(due), if due.is_some() => {
                due = None;
                last_report = Some(Instant::now());
                drop(inner.report().await);
            }
            _ = report.tick() => {
                // While alone the store is asked, so that its return is noticed soon.
                if inner.view.lock().alone {
                    inner.look().await;
                } else {
                    drop(inner.report().await);
                }
            }
            _ = look.tick() => inner.look().await,
            event = next(&mut news) => match event {
                Some(Event::Message(message)) => {
                    let text = String::from_utf8_lossy(&message.payload);
                    let said: Vec<String> = text.split(' ').map(str::to_owned).collect();
                    let newer = said.get(1).and_then(|word| word.parse::<u64>().ok());
                    if newer.is_some_and(|generation| generation > inner.view.lock().generation) {
                        inner.learn(&said, inner.clock.now());
                    }
                }
                // What was missed meanwhile is looked up.
                Some(Event::Subscribed | Event::Resubscribed) => inner.look().await,
                Some(_) => {}
                None => news = None,
            },
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn next(news: &mut Option<Subscription>) -> Option<Event> {
    match news {
        Some(news) => news.next().await,
        None => std::future::pending().await,
    }
}
