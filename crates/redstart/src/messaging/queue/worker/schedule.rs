//! Looks after what is due in the queue whether or not a worker is free: cron ticks, jobs of workers that died, parked
//! jobs that no worker could run, done records that were kept long enough.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::Shared;
use crate::{
    error::{Error, Result},
    messaging::queue::{JobId, away::Away, script::SCHEDULE},
};

/// What is due now, and when to look again.
struct Due {
    wait: Option<Duration>,
    silent: Vec<String>,
    parked: Vec<String>,
    now: i64,
    /// Ids of children, and what their parents in other queues are to be told.
    messages: Vec<(Vec<u8>, Vec<u8>)>,
    /// Large flows whose jobs nobody hands out any more.
    flows: Vec<Vec<u8>>,
    ticks: Vec<(Vec<u8>, i64, Vec<u8>)>,
}

/// Runs until the worker stops.
pub(super) async fn schedule(shared: Arc<Shared>) {
    let clock = shared.queue.store().clock();
    let mut next = clock.now();
    let mut pause = Duration::from_millis(10);
    let mut away = Away::default();
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = shared.signals.schedule.notified() => {}
            () = clock.sleep_until(next) => {}
        }
        #[cfg(feature = "sim")]
        while crate::mend::is_missing("ticks do not wait for a free slot")
            && !shared.room.has_some()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let wait = match shared.look_after(&mut away).await {
            Ok(wait) => {
                pause = Duration::from_millis(10);
                wait.unwrap_or(shared.lease)
            }
            Err(error) => {
                tracing::debug!(%error, "what is due in a queue could not be looked after");
                pause = (pause * 2).min(Duration::from_secs(1));
                pause
            }
        };
        // If a message is lost unnoticed, the delay is at most one lease.
        next = clock.now() + wait.min(shared.lease);
    }
}

impl Shared {
    /// Does what is due; how long until there is more.
    async fn look_after(&self, away: &mut Away) -> Result<Option<Duration>> {
        let Due {
            wait,
            silent,
            parked,
            now,
            messages,
            flows,
            ticks,
        } = self.due().await?;
        for worker in silent {
            self.reclaim(&worker).await?;
        }
        for kind in parked {
            self.queue.expire_parked(&kind).await?;
        }
        // Ticks do not wait for other queues.
        let telling = away.tell(&self.queue, &messages);
        let ((), ticked) = tokio::join!(telling, self.queue.tick(now, ticks));
        ticked?;
        // The rest of them at the next looks, which come at once: what is due does not wait for a large flow.
        let mut handed_out = Ok(0);
        for flow in flows.iter().filter_map(|id| JobId::read(id)) {
            // One that cannot be handed out holds up no other.
            let left = self.queue.hand_out(flow, Duration::ZERO).await;
            handed_out = handed_out.and(left);
        }
        handed_out?;
        Ok(wait)
    }

    async fn due(&self) -> Result<Due> {
        let queue = &self.queue;
        let (name, running) = {
            let current = self.current.lock();
            // One whose lease has ended is not renewed, but found.
            current
                .as_ref()
                .filter(|registration| !registration.has_ended())
                .map(|registration| (registration.name.clone(), registration.running.clone()))
                .unwrap_or_default()
        };
        // An empty part would be no key; without a registration there is nothing to renew.
        let running = if running.is_empty() {
            "running:"
        } else {
            &running
        };
        let (keep, keep_for) = queue.0.keep_dead;
        let reply: Vec<Value> = queue
            .call(
                &SCHEDULE,
                &[
                    running, "workers", "cron", "crontab", "parked", "uniques", "history",
                    "tallies", "flows",
                ],
            )
            .arg(name)
            .arg(self.lease_micros())
            .arg(keep_for)
            .arg(keep)
            .arg(queue.0.history)
            .idempotent()
            .run(queue.store())
            .await?;
        let mut reply = reply.into_iter();
        let mut next = || reply.next();
        let (
            Some(Value::Int(wait)),
            Some(silent),
            Some(parked),
            Some(now),
            Some(messages),
            Some(flows),
        ) = (next(), next(), next(), next(), next(), next())
        else {
            return Err(Error::codec("unexpected shape of the reply"));
        };
        let mut ticks = Vec::new();
        while let (Some(id), Some(tick), Some(stored)) = (reply.next(), reply.next(), reply.next())
        {
            ticks.push((
                redis::from_redis_value(id)?,
                redis::from_redis_value(tick)?,
                redis::from_redis_value(stored)?,
            ));
        }
        Ok(Due {
            wait: u64::try_from(wait).ok().map(Duration::from_micros),
            silent: redis::from_redis_value(silent)?,
            parked: redis::from_redis_value(parked)?,
            now: redis::from_redis_value(now)?,
            messages: redis::from_redis_value(messages)?,
            flows: redis::from_redis_value(flows)?,
            ticks,
        })
    }
}
