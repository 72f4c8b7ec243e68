//! Items that are taken by priority or in order.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redstart::{
    Result,
    messaging::{PriorityQueue, ReliableList},
};

use super::{Beside, CONSUMERS, Got, LOOK, Sent};
use crate::workload::{Bed, Claims, Op, Workload};

/// Numbers of priorities; the last digit of an item is its own.
const PRIORITIES: u64 = 10;
/// Beyond the numbers of operations.
const LAST: u64 = 1 << 48;
/// Every so many items a consumer drops one, which comes back.
const DROPS: u64 = 64;

pub(super) struct Priorities {
    queue: PriorityQueue<u64>,
    sent: Sent,
    got: Got,
    claims: Claims,
}

impl Priorities {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            queue: PriorityQueue::new(&bed.store, &bed.namespace, "items")?,
            sent: Sent::default(),
            got: Got::default(),
            claims: Claims::default(),
        })
    }
}

impl Workload for Priorities {
    async fn operate(&self, op: Op) -> Result<()> {
        if op.write {
            let priority = op.random % PRIORITIES;
            let item = op.number * PRIORITIES + priority;
            let pushed = self.queue.push(&item, priority as i32).await;
            self.sent.add(item, &pushed);
            return pushed.map(|_| ());
        }
        if let Some(item) = self.queue.pop(Duration::ZERO).await? {
            self.got.add(item);
        }
        Ok(())
    }

    /// Nobody pushes any more: what is left comes by its priorities.
    async fn finish(&self) -> Result<()> {
        // There may be nothing left: a few more, in the wrong order.
        for priority in [9, 4, 0] {
            let item = LAST * PRIORITIES + priority;
            let pushed = self.queue.push(&item, priority as i32).await;
            self.sent.add(item, &pushed);
            pushed?;
        }
        let mut last = 0;
        while let Some(item) = self.queue.pop(Duration::ZERO).await? {
            self.got.add(item);
            let priority = item % PRIORITIES;
            self.claims.hold(priority >= last, || {
                format!("an item of priority {priority} was popped after one of priority {last}")
            });
            last = priority;
            if self.got.count() > self.sent.tally.most() {
                break;
            }
        }
        self.sent.arrived("items", &self.got, &self.claims).await
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
                .spawn(|stop| async move {
                    let mut taken = 0u64;
                    while !stop.load(Ordering::SeqCst) {
                        if let Some(item) = consumer.take(LOOK).await? {
                            taken += 1;
                            if taken.is_multiple_of(DROPS) {
                                continue;
                            }
                            let text = String::from_utf8_lossy(item.payload()).into_owned();
                            let _ = item.done().await?;
                            got.add(text.parse().unwrap_or(u64::MAX));
                        }
                    }
                    consumer.close().await.map(|_| ())
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
        self.sent.arrived("items", &self.got, &self.claims).await?;
        self.beside.stop().await
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{items}");

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}
