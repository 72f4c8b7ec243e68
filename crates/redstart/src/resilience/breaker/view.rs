//! The task that keeps the view of one instance.

use std::{sync::Weak, time::Duration};

use tokio::time::Instant;

use super::{Inner, REPORT_EVERY};
use crate::store::{Event, Subscription};

/// Keeps the view of one instance: hears of changes, looks by age, and reports what was seen.
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
    loop {
        let Some(inner) = inner.upgrade() else { return };
        tokio::select! {
            () = inner.wake.notified() => drop(inner.report().await),
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
                        inner.learn(&said, Instant::now());
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

async fn next(news: &mut Option<Subscription>) -> Option<Event> {
    match news {
        Some(news) => news.next().await,
        None => std::future::pending().await,
    }
}
