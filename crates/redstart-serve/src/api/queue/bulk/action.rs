//! What is done to many jobs, and how far it is.

use redstart::messaging::{JobId, JobState, Queue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    /// Enqueue dead letters again, with all their attempts.
    Retry,
    /// Make delayed jobs ready now.
    Promote,
    /// Cancel jobs that wait or run. Of a change of jobs that wait, those that run by then are left as they are.
    Cancel,
    /// Delete jobs that wait, or dead letters.
    Delete,
}

impl Action {
    pub(crate) const ALL: [Self; 4] = [Self::Retry, Self::Promote, Self::Cancel, Self::Delete];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Promote => "promote",
            Self::Cancel => "cancel",
            Self::Delete => "delete",
        }
    }

    /// What the audit log calls it.
    pub(super) fn change(self) -> &'static str {
        match self {
            Self::Retry => "queue.bulk-retry",
            Self::Promote => "queue.bulk-promote",
            Self::Cancel => "queue.bulk-cancel",
            Self::Delete => "queue.bulk-delete",
        }
    }

    pub(crate) fn fits(self, state: JobState) -> bool {
        use JobState::{Dead, Delayed, Parked, Ready, Running, Waiting};
        match self {
            Self::Retry => state == Dead,
            Self::Promote => state == Delayed,
            Self::Cancel => matches!(state, Ready | Delayed | Running | Parked | Waiting),
            Self::Delete => matches!(state, Ready | Delayed | Parked | Waiting | Dead),
        }
    }

    /// Changes a few jobs; how many.
    pub(super) async fn apply(
        self,
        queue: &Queue,
        state: JobState,
        ids: &[JobId],
    ) -> redstart::Result<u64> {
        let inspect = queue.inspect();
        match (self, state) {
            (Self::Retry, _) => inspect.dead_letters().replay_many(ids).await,
            (Self::Promote, _) => inspect.run_now_many(ids).await,
            (Self::Cancel, JobState::Running) => inspect.cancel_many(ids).await,
            // Of jobs that wait, some may run by now. Nobody has agreed to stop those.
            (Self::Cancel, _) => inspect.cancel_waiting_many(ids).await,
            (Self::Delete, JobState::Dead) => inspect.dead_letters().purge_many(ids).await,
            (Self::Delete, _) => inspect.delete_many(ids).await,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Stage {
    /// The jobs that match are counted. Nothing is changed.
    Counting,
    /// They are counted. Confirm it to change them.
    Counted,
    /// Too many match to keep in mind which. Nothing is changed. Narrow the filter, or change them in parts.
    TooMany,
    /// Other changes that are counted and not confirmed take the room for the jobs of this one. Nothing is changed. Confirm
    /// or stop those, or count again in some minutes.
    NoRoom,
    /// Nobody confirmed it for some minutes, so that it is no longer known which jobs were counted. Nothing is changed. Count
    /// again.
    Expired,
    /// They are changed.
    Running,
    /// All were changed that still matched.
    Done,
    /// Somebody stopped it, or the service ended. What is changed stays changed.
    Stopped,
    /// The store failed. What is changed stays changed.
    Failed,
}

impl Stage {
    pub(crate) fn is_under_way(self) -> bool {
        matches!(self, Self::Counting | Self::Running)
    }

    pub(super) fn is_over(self) -> bool {
        !self.is_under_way() && self != Self::Counted
    }
}
