//! The queue's scripts. Each is `now.lua`, `record.lua`, mostly `wake.lua` and `place.lua`, and its own file, whose header
//! states KEYS, ARGV and the reply. The two that run all the time begin with what is usual: a server that has done that much
//! does not even make the functions of the rest.

use std::time::Duration;

use super::Queue;
use crate::{
    error::Result,
    script::{Call, Script},
};

macro_rules! script {
    ($name:literal, $($file:literal),+) => {
        Script::new(
            $name,
            concat!(
                include_str!("../../script/now.lua"),
                include_str!("record.lua"),
                include_str!("wake.lua"),
                include_str!("place.lua"),
                $(include_str!($file)),+
            ),
        )
    };
}

/// A script that moves no jobs.
macro_rules! small_script {
    ($name:literal, $file:literal) => {
        Script::new(
            $name,
            concat!(
                include_str!("../../script/now.lua"),
                include_str!("record.lua"),
                include_str!($file),
            ),
        )
    };
}

pub(crate) static CANCEL: Script = script!("queue.cancel", "cancel.lua");
pub(crate) static CRON_FIRE: Script = script!("queue.cron_fire", "cron_fire.lua");
pub(crate) static CRON_PAUSE: Script = small_script!("queue.pause_cron", "cron_pause.lua");
pub(crate) static CRON_PUT: Script = small_script!("queue.cron", "cron_put.lua");
pub(crate) static CRON_REMOVE: Script = small_script!("queue.remove_cron", "cron_remove.lua");
pub(crate) static ENQUEUE: Script = script!("queue.enqueue", "enqueue.lua");
pub(crate) static ENQUEUE_PLAIN: Script = Script::new(
    "queue.enqueue_plain",
    concat!(
        include_str!("../../script/now.lua"),
        include_str!("wake.lua"),
        include_str!("enqueue_plain.lua"),
    ),
);
pub(crate) static EXPIRE_PARKED: Script = script!("queue.expire_parked", "expire_parked.lua");
pub(crate) static FINISH: Script = Script::new(
    "queue.finish",
    concat!(
        include_str!("../../script/now.lua"),
        include_str!("tally.lua"),
        include_str!("finish_plain.lua"),
        include_str!("record.lua"),
        include_str!("wake.lua"),
        include_str!("place.lua"),
        include_str!("finish.lua"),
    ),
);
pub(crate) static FLOW: Script = script!("queue.flow", "flow_jobs.lua", "flow.lua");
pub(crate) static FLOW_CLOSE: Script = script!("queue.flow_close", "flow_close.lua");
pub(crate) static FLOW_COMPLETE: Script =
    script!("queue.flow_complete", "flow_jobs.lua", "flow_complete.lua");
pub(crate) static FLOW_HEAR: Script = script!("queue.flow_hear", "flow_hear.lua");
pub(crate) static FLOW_PUBLISH: Script =
    script!("queue.flow_publish", "flow_jobs.lua", "flow_publish.lua");
pub(crate) static FLOW_STAGE: Script = small_script!("queue.flow_stage", "flow_stage.lua");
pub(crate) static FLOW_TOLD: Script = script!("queue.flow_told", "flow_told.lua");
pub(crate) static LEAVE: Script = script!("queue.leave", "leave.lua");
pub(crate) static LOOKUP: Script = script!("queue.job", "lookup.lua");
pub(crate) static PAUSE: Script = small_script!("queue.pause", "pause.lua");
pub(crate) static PROGRESS: Script = script!("queue.progress", "progress.lua");
pub(crate) static PURGE: Script = script!("queue.purge", "purge.lua");
pub(crate) static RECLAIM: Script = script!("queue.reclaim", "reclaim.lua");
pub(crate) static RECONCILE: Script = script!("queue.reconcile", "reconcile.lua");
pub(crate) static REGISTER: Script = small_script!("queue.register", "register.lua");
pub(crate) static RENEW: Script = small_script!("queue.renew", "renew.lua");
pub(crate) static REPLAY: Script = script!("queue.replay", "replay.lua");
pub(crate) static RESERVE: Script = Script::new(
    "queue.reserve",
    concat!(
        include_str!("../../script/now.lua"),
        include_str!("reserve_plain.lua"),
        include_str!("record.lua"),
        include_str!("wake.lua"),
        include_str!("place.lua"),
        include_str!("reserve.lua"),
    ),
);
pub(crate) static RUN_NOW: Script = script!("queue.run_now", "run_now.lua");
pub(crate) static SCHEDULE: Script = script!("queue.schedule", "schedule.lua");
pub(crate) static TIME: Script = Script::new(
    "queue.time",
    concat!(
        include_str!("../../script/now.lua"),
        include_str!("time.lua")
    ),
);

/// The parts that `place.lua` names, in its order.
pub(super) const PLACES: [&str; 16] = [
    "jobs", "ready", "ranked", "delayed", "idle", "meta", "unique", "dead", "done", "ended",
    "details", "groups", "grouped", "resting", "parents", "events",
];

/// The places that `enqueue_plain.lua` names: their numbers in [`PLACES`].
const PLAIN_PLACES: [usize; 4] = [0, 1, 4, 15];

impl Queue {
    /// The time of the server that has the queue: in a cluster each node has a clock of its own.
    pub(super) async fn time(&self) -> Result<Duration> {
        if !self.store().is_cluster() || crate::mend::is_missing("the time of the queue's server") {
            return self.store().time().await;
        }
        let call = TIME.on(self.entity()).part("jobs").idempotent();
        call.run(self.store()).await.map(Duration::from_micros)
    }

    /// A call that adds jobs without any option.
    pub(super) fn plain_call(&self) -> Call<'_> {
        let inner = &*self.0;
        let mut call = ENQUEUE_PLAIN.on(&inner.entity);
        for place in PLAIN_PLACES {
            call = call.keys(&inner.places[place..=place]);
        }
        call.arg(&inner.channel).arg(inner.keep_events)
    }

    /// A call with the keys and arguments of `place.lua`, and the script's own parts after them.
    pub(super) fn call(&self, script: &'static Script, parts: &[&str]) -> Call<'_> {
        let inner = &*self.0;
        let mut call = script.on(&inner.entity).keys(&inner.places);
        for part in parts {
            call = call.part(part);
        }
        call.arg(&inner.channel)
            .arg(inner.boost)
            .arg(inner.keep_events)
            .arg(inner.keep_millis())
            .arg(inner.keep_done)
    }
}
