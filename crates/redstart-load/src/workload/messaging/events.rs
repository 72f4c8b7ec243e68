//! Events of a stream, read by a group.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redstart::{
    Result,
    messaging::{EventStream, StartAt},
};

use super::{Beside, Got, LOOK, Sent};
use crate::workload::{Bed, Claims, Op, Workload};

pub(super) struct Events {
    stream: EventStream<u64>,
    beside: Beside,
    sent: Sent,
    got: Arc<Got>,
    disorder: Arc<AtomicU64>,
    claims: Claims,
}

impl Events {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let stream = EventStream::<u64>::new(&bed.store, &bed.namespace, "events")?;
        let mut group = stream.group("readers", StartAt::Beginning).await?;
        let (beside, got) = (Beside::default(), Arc::new(Got::default()));
        let disorder = Arc::new(AtomicU64::new(0));
        let (seen, wrong) = (got.clone(), disorder.clone());
        beside
            .spawn(|stop| async move {
                let mut last = (0u64, 0u64);
                while !stop.load(Ordering::SeqCst) {
                    let events = group.read("one", 500, LOOK).await?;
                    for entry in &events {
                        let id = entry.id.split_once('-');
                        let id = id.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                        let id = id.unwrap_or_default();
                        if id <= last {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                        last = id;
                        seen.add(entry.event);
                    }
                    let ids: Vec<&String> = events.iter().map(|entry| &entry.id).collect();
                    if !ids.is_empty() {
                        group.ack(&ids).await?;
                    }
                }
                Ok(())
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
        self.sent.arrived("events", &self.got, &self.claims).await?;
        self.beside.stop().await?;
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
