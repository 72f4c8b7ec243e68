//! The clerk writes down how jobs ended.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::mpsc::UnboundedReceiver;

use super::{BATCH, Crew, Ended, Ending, FINISH, Term};
use crate::observe;

/// Writes down how jobs ended, as many at once as there are.
pub(super) async fn clerk(crew: Arc<Crew>, mut endings: UnboundedReceiver<Ended>) {
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            biased;
            count = endings.recv_many(&mut batch, BATCH) => if count == 0 { return },
            () = crew.drained.cancelled() => return,
        }
        while let Some(first) = batch.first() {
            let term = first.delivered.term.clone();
            let (same, other): (Vec<_>, Vec<_>) = batch
                .drain(..)
                .partition(|ended| Arc::ptr_eq(&ended.delivered.term, &term));
            batch = other;
            finish(&crew, &term, same).await;
        }
    }
}

async fn finish(crew: &Crew, term: &Term, ended: Vec<Ended>) {
    let (mut done, mut retry, mut dead, mut back) = (vec![], vec![], vec![], vec![]);
    let (mut unique, mut progress) = (vec![], vec![]);
    for Ended {
        delivered, ending, ..
    } in &ended
    {
        let delivery = &delivered.delivery;
        match ending {
            Ending::Done => done.push(delivery),
            Ending::Retry(wait) => retry.push((delivery, wait.as_micros() as u64)),
            Ending::Dead(reason) => dead.push((delivery, reason)),
            Ending::Back => back.push(delivery),
        }
        if let (Ending::Done | Ending::Dead(_), Some(key)) = (ending, &delivered.unique) {
            unique.push((key, delivered.id));
        }
        if delivered.progressed.load(Ordering::Relaxed) {
            progress.push(delivered.id);
        }
    }
    let queue = &crew.queue;
    let call = || {
        let mut call = FINISH
            .on(queue.entity())
            .part(&term.running)
            .part("ready")
            .part("ranked")
            .part("delayed")
            .part("dead")
            .part("meta")
            .part("unique")
            .part("progress")
            .part("done")
            .arg(&queue.0.channel)
            .arg(queue.0.boost)
            .arg(queue.0.retain)
            .arg(queue.0.retain_for.as_millis() as u64);
        call = call.arg(done.len());
        for delivery in &done {
            call = call.arg(&delivery[..]);
        }
        call = call.arg(retry.len());
        for (delivery, wait) in &retry {
            call = call.arg(&delivery[..]).arg(wait);
        }
        call = call.arg(dead.len());
        for (delivery, reason) in &dead {
            call = call.arg(&delivery[..]).arg(reason);
        }
        call = call.arg(back.len());
        for delivery in &back {
            call = call.arg(&delivery[..]);
        }
        call = call.arg(unique.len());
        for (key, id) in &unique {
            call = call.arg(&key[..]).arg(&id.0[..]);
        }
        call = call.arg(progress.len());
        for id in &progress {
            call = call.arg(&id.0[..]);
        }
        // A delivery that was written down before is skipped, so a lost reply does no harm.
        call.idempotent()
    };
    let mut pause = Duration::from_millis(10);
    let mut tries_left = 3;
    let accepted = loop {
        let namespace = queue.entity().namespace();
        match observe::operation("queue.finish", namespace, call().run::<u8>(queue.store())).await {
            Ok(accepted) => break accepted == 1,
            Err(error) => {
                tracing::debug!(%error, "endings of jobs could not be written down");
                // At the end of the worker there is no time to wait for a store that does not come back.
                if crew.drained.is_cancelled() {
                    tries_left -= 1;
                    if tries_left == 0 {
                        break false;
                    }
                }
            }
        }
        tokio::select! {
            () = crew.drained.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    };
    {
        let mut known = term.known.lock();
        for Ended { delivered, .. } in &ended {
            known.remove(&delivered.delivery);
        }
    }
    if accepted {
        let counts = &crew.counts;
        counts.done.fetch_add(done.len() as u64, Ordering::Relaxed);
        counts
            .failed
            .fetch_add((retry.len() + dead.len()) as u64, Ordering::Relaxed);
        counts
            .handed_back
            .fetch_add(back.len() as u64, Ordering::Relaxed);
        for (event, count) in [
            ("queue.done", done.len()),
            ("queue.retried", retry.len()),
            ("queue.dead", dead.len()),
            ("queue.handed_back", back.len()),
        ] {
            if count > 0 {
                observe::events(event, count as u64);
            }
        }
    } else {
        observe::events("queue.refused", ended.len() as u64);
        term.lost.cancel();
    }
}
