//! The queue's scripts. Each is `now.lua`, `record.lua` and its own file, whose header states KEYS, ARGV and the reply.

use crate::script::Script;

macro_rules! script {
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

pub(crate) static CRON_FIRE: Script = script!("queue.cron_fire", "cron_fire.lua");
pub(crate) static CRON_PUT: Script = script!("queue.cron", "cron_put.lua");
pub(crate) static CRON_REMOVE: Script = script!("queue.remove_cron", "cron_remove.lua");
pub(crate) static ENQUEUE: Script = script!("queue.enqueue", "enqueue.lua");
pub(crate) static FINISH: Script = script!("queue.finish", "finish.lua");
pub(crate) static EXPIRE_PARKED: Script = script!("queue.expire_parked", "expire_parked.lua");
pub(crate) static LEAVE: Script = script!("queue.leave", "leave.lua");
pub(crate) static PAUSE: Script = script!("queue.pause", "pause.lua");
pub(crate) static PROGRESS: Script = script!("queue.progress", "progress.lua");
pub(crate) static RECLAIM: Script = script!("queue.reclaim", "reclaim.lua");
pub(crate) static RECONCILE: Script = script!("queue.reconcile", "reconcile.lua");
pub(crate) static REGISTER: Script = script!("queue.register", "register.lua");
pub(crate) static REMOVE: Script = script!("queue.delete", "remove.lua");
pub(crate) static RENEW: Script = script!("queue.renew", "renew.lua");
pub(crate) static REPLAY: Script = script!("queue.replay", "replay.lua");
pub(crate) static RESERVE: Script = script!("queue.reserve", "reserve.lua");
pub(crate) static RESERVE_PARKED: Script = script!("queue.reserve_parked", "reserve_parked.lua");
pub(crate) static RUN_NOW: Script = script!("queue.run_now", "run_now.lua");
pub(crate) static SCHEDULE: Script = script!("queue.schedule", "schedule.lua");
