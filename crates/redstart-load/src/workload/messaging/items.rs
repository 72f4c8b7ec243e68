//! Items that are taken by priority or in order.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Error, Result,
    messaging::{PriorityQueue, ReliableList},
};

use super::{Beside, CONSUMERS, Got, LOOK, Sent};
use crate::workload::{Bed, Claims, Op, Workload};

/// Numbers of priorities; the last digit of an item is its own, and the rest is its number.
const PRIORITIES: u64 = 10;
/// Every so many items a consumer drops one, which comes back.
const DROPS: u64 = 64;

pub(super) struct Priorities {
    queue: PriorityQueue<u64>,
    sent: Sent,
    got: Got,
    /// Pops whose reply was lost, and with it perhaps an item.
    lost: AtomicU64,
    claims: Claims,
}

impl Priorities {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            queue: PriorityQueue::new(&bed.store, &bed.namespace, "items")?,
            sent: Sent::default(),
            got: Got::default(),
            lost: AtomicU64::new(0),
            claims: Claims::default(),
        })
    }

    async fn pop(&self) -> Result<Option<u64>> {
        let popped = self.queue.pop(Duration::ZERO).await;
        if popped.as_ref().is_err_and(Error::is_in_doubt) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        let item = popped?;
        if let Some(item) = item {
            self.got.add(item / PRIORITIES);
        }
        Ok(item)
    }
}

impl Workload for Priorities {
    async fn operate(&self, op: Op) -> Result<()> {
        if op.write {
            let priority = op.random % PRIORITIES;
            let item = op.number * PRIORITIES + priority;
            let pushed = self.queue.push(&item, priority as i32).await;
            self.sent.add(op.number, &pushed);
            return pushed.map(|_| ());
        }
        self.pop().await.map(|_| ())
    }

    /// Nobody pushes any more: what is left comes by its priorities.
    async fn finish(&self) -> Result<()> {
        // There may be nothing left: a few more, in the wrong order.
        for priority in [9, 4, 0] {
            let number = self.sent.next();
            let item = number * PRIORITIES + priority;
            let pushed = self.queue.push(&item, priority as i32).await;
            self.sent.add(number, &pushed);
            pushed?;
        }
        let mut last = 0;
        let mut popped = 0;
        while let Some(item) = self.pop().await? {
            popped += 1;
            let priority = item % PRIORITIES;
            self.claims.hold(priority >= last, || {
                format!("an item of priority {priority} was popped after one of priority {last}")
            });
            last = priority;
            if popped > self.sent.tally.most() {
                break;
            }
        }
        let lost = self.lost.load(Ordering::Relaxed);
        self.sent.compare("items", &self.got, lost, &self.claims);
        self.sent.once("items", &self.got, &self.claims);
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{items}");

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}

pub(super) struct List {
    list: ReliableList,
    beside: Beside,
    sent: Sent,
    got: Arc<Got>,
    claims: Claims,
}

impl List {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let list = ReliableList::builder(&bed.store, &bed.namespace, "items")
            .lease(Duration::from_secs(60))
            .build()?;
        let (beside, got) = (Beside::default(), Arc::new(Got::default()));
        for _ in 0..CONSUMERS {
            let (mut consumer, got) = (list.consumer().await?, got.clone());
            beside
                .spawn(|mut shift| async move {
                    let mut taken = 0u64;
                    while shift.goes_on() {
                        let item = consumer.take(LOOK).await;
                        let Some(item) = shift.heed(item).await.flatten() else {
                            continue;
                        };
                        taken += 1;
                        if taken.is_multiple_of(DROPS) {
                            continue;
                        }
                        let text = String::from_utf8_lossy(item.payload()).into_owned();
                        let number = text.parse().unwrap_or(u64::MAX);
                        let done = item.done().await;
                        match shift.heed(done).await {
                            Some(_) => got.add(number),
                            None => got.doubt(number),
                        }
                    }
                    consumer.close().await?;
                    shift.end()
                })
                .await;
        }
        Ok(Self {
            list,
            beside,
            sent: Sent::default(),
            got,
            claims: Claims::default(),
        })
    }
}

impl Workload for List {
    async fn operate(&self, op: Op) -> Result<()> {
        let pushed = self.list.push(op.number.to_string()).await;
        self.sent.add(op.number, &pushed);
        pushed.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        self.sent.arrive(&self.got, 0).await?;
        self.beside.stop().await?;
        self.sent.compare("items", &self.got, 0, &self.claims);
        self.sent.once("items", &self.got, &self.claims);
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{items}");

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}
