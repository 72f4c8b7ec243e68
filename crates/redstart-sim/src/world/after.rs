//! After the faults: everything works again, and nothing is left when it ends.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redstart::sim::Process;

use super::{ALIVE_WITHIN, World};
use crate::{client::Client, dice::Dice, network::Peer, workload::Workload};

/// How long after a process has dropped its stores its last task may end: what tries again in the background does so for a while.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// How long the last checks may take.
const SETTLE_WITHIN: Duration = Duration::from_secs(180);

impl World {
    /// Without its stores, a process that lived through the faults has neither tasks nor connections any more.
    pub(super) async fn everything_ends(&self, workload: &Arc<dyn Workload>) {
        workload.let_go();
        tokio::time::sleep(ENDS_WITHIN).await;
        for (index, life) in self.lives.iter().enumerate() {
            let process = life.process.lock().clone();
            // One that was killed before dropped nothing, and its connections are gone.
            if process.is_gone() || life.incarnation.load(Ordering::Relaxed) != 1 {
                continue;
            }
            for (name, count) in process.tasks() {
                self.breach(format!(
                    "client {index} has dropped everything and still runs {count} of {name}"
                ));
            }
            let open = self.net.count(Peer::Client(index));
            if open > 0 {
                self.breach(format!(
                    "client {index} has dropped everything and has {open} connections"
                ));
            }
        }
    }

    /// All faults end, and the workload looks whether everything is well.
    pub(super) async fn calm(self: &Arc<Self>, workload: &Arc<dyn Workload>) {
        let busy = {
            let mut inner = self.inner.lock();
            inner.over = true;
            inner.busy_until
        };
        tokio::time::sleep(busy.saturating_sub(self.trace.now())).await;
        // Slots whose move waited for a node that was down: their connections are closed once more when it ends.
        for _ in 0..500 {
            if !self.map.as_ref().is_some_and(|map| map.is_moving()) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.trace
            .note("world", format_args!("all faults have ended"));
        self.net.heal();
        self.net.calm();
        for server in &self.servers {
            server.wake();
            server.inject(None);
            server.refuse(false);
            // The thread of a log that had no room has written it.
            server.log_round();
        }
        for life in &self.lives {
            life.process.lock().go_on();
        }
        self.survivors_work_again(workload).await;
        let index = self.plan.clients;
        let process = Process::new(index, self.plan.seed ^ 0xCA1A);
        let client = Client::new(self.clone(), index, process.clone(), self.plan.seed);
        let work = process.own(workload.clone().settle(client));
        if tokio::time::timeout(SETTLE_WITHIN, work).await.is_err() {
            self.breach("after all faults had ended, the last checks hung".to_owned());
        }
        for refusal in self.seen.refusals() {
            self.breach(refusal);
        }
    }

    /// Every process that lives must be able to work with the store that it has, not only a fresh one.
    async fn survivors_work_again(self: &Arc<Self>, workload: &Arc<dyn Workload>) {
        let by = self.now() + self.plan.deadline + ALIVE_WITHIN;
        let mut checks = Vec::new();
        for (index, life) in self.lives.iter().enumerate() {
            let last = life.stores.lock().last().cloned();
            let Some((process, store)) = last else {
                continue;
            };
            if process.is_gone() {
                continue;
            }
            let mut seeds = Dice::of(self.plan.seed, &[5, index as u64]);
            let client = Client::new(self.clone(), index, process.clone(), seeds.next());
            let (world, workload) = (self.clone(), workload.clone());
            let check = async move {
                loop {
                    let worked = match store.query::<String>(&redis::cmd("PING")).await {
                        Ok(_) => workload.clone().works(&client, &store).await,
                        Err(error) => Err(error.to_string()),
                    };
                    if let Err(error) = &worked {
                        world.hear_error(error, index, world.now());
                    }
                    match worked {
                        Ok(()) => return,
                        Err(error) if world.now() >= by => {
                            return world.breach(format!(
                                "client {index} still cannot work after all faults have ended: {error}"
                            ));
                        }
                        Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            };
            checks.push(process.own(check));
        }
        if tokio::time::timeout(SETTLE_WITHIN, futures_util::future::join_all(checks))
            .await
            .is_err()
        {
            self.breach("after all faults had ended, a call of a survivor hung".to_owned());
        }
        for index in 0..self.plan.clients {
            let most = self.most_connections() + workload.own_connections();
            let open = self.net.count(Peer::Client(index));
            if open > most {
                self.breach(format!(
                    "client {index} has {open} connections, and needs at most {most}"
                ));
            }
        }
    }

    /// How many connections one process may have: to each server that holds data one for requests and one for
    /// subscriptions, to each sentinel one, and for each of them one more that has been left because a reply is late, and
    /// stays until that has come.
    fn most_connections(&self) -> usize {
        2 * (2 * self.plan.servers() + (self.servers.len() - self.plan.servers()))
    }
}
