//! Events of a stream, read by a group.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Result,
    messaging::{ConsumerGroup, EventStream, StartAt, StreamEntry},
};

use super::{Beside, Got, LOOK, Sent, Shift};
use crate::workload::{Bed, Claims, Op, Workload};

pub(super) struct Events {
    stream: EventStream<u64>,
    beside: Beside,
    sent: Sent,
    got: Arc<Got>,
    disorder: Arc<AtomicU64>,
    claims: Claims,
}

/// Events of one request.
const MOST: usize = 500;

/// Notes events and acknowledges them, until the store has heard it: they must not be claimed afterwards.
async fn take(
    events: &[StreamEntry<u64>],
    seen: &Got,
    group: &ConsumerGroup<u64>,
    shift: &mut Shift,
) {
    events.iter().for_each(|entry| seen.add(entry.event));
    let ids: Vec<&String> = events.iter().map(|entry| &entry.id).collect();
    while !ids.is_empty() && shift.goes_on() {
        let acknowledged = group.ack(&ids).await;
        if shift.heed(acknowledged).await.is_some() {
            return;
        }
    }
}

impl Events {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let stream = EventStream::<u64>::new(&bed.store, &bed.namespace, "events")?;
        let mut group = stream.group("readers", StartAt::Beginning).await?;
        let (beside, got) = (Beside::default(), Arc::new(Got::default()));
        let disorder = Arc::new(AtomicU64::new(0));
        let (seen, wrong) = (got.clone(), disorder.clone());
        beside
            .spawn(|mut shift| async move {
                let mut last = (0u64, 0u64);
                let mut doubt = false;
                while shift.goes_on() {
                    // Events of a read whose reply was lost were delivered. Nobody knows when the server reads such a request,
                    // so they are looked for from then on.
                    if doubt {
                        let claimed = group.claim("one", MOST, Duration::ZERO, u32::MAX).await;
                        let events = shift.heed(claimed).await.unwrap_or_default();
                        take(&events, &seen, &group, &mut shift).await;
                    }
                    let read = group.read("one", MOST, LOOK).await;
                    doubt |= read.is_err();
                    let events = shift.heed(read).await.unwrap_or_default();
                    // What is delivered for the first time is in order.
                    for entry in &events {
                        let id = entry.id.split_once('-');
                        let id = id.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                        let id = id.unwrap_or_default();
                        if id <= last {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                        last = id;
                    }
                    take(&events, &seen, &group, &mut shift).await;
                }
                shift.end()
            })
            .await;
        Ok(Self {
            stream,
            beside,
            sent: Sent::default(),
            got,
            disorder,
            claims: Claims::default(),
        })
    }
}

impl Workload for Events {
    async fn operate(&self, op: Op) -> Result<()> {
        let appended = self.stream.append(&op.number).await;
        self.sent.add(op.number, &appended);
        appended.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        self.sent.arrive(&self.got, 0).await?;
        self.beside.stop().await?;
        self.sent.compare("events", &self.got, 0, &self.claims);
        self.sent.once("events", &self.got, &self.claims);
        let disorder = self.disorder.load(Ordering::Relaxed);
        self.claims.hold(disorder == 0, || {
            format!("{disorder} events were read out of order")
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{events}");

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}
