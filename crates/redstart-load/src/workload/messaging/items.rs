//! Items that are taken by priority or in order.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use redstart::{
    Result,
    messaging::{PriorityQueue, ReliableList},
};

use super::{Beside, CONSUMERS, Got, LOOK, Sent};
use crate::workload::{Bed, Claims, Op, Workload};

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

#[async_trait]
impl Workload for Priorities {
    async fn operate(&self, op: Op) -> Result<()> {
        if op.write {
            let pushed = self.queue.push(&op.number, (op.random % 10) as i32).await;
            self.sent.add(op.number, &pushed);
            return pushed.map(|_| ());
        }
        if let Some(number) = self.queue.pop(Duration::ZERO).await? {
            self.got.add(number);
        }
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        while let Some(number) = self.queue.pop(Duration::ZERO).await? {
            self.got.add(number);
        }
        self.sent.arrived("items", &self.got, &self.claims).await
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

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
                    while !stop.load(Ordering::SeqCst) {
                        if let Some(item) = consumer.take(LOOK).await? {
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

#[async_trait]
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

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}
