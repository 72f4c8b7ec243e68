//! Queues, topics and streams.
//!
//! | module | what it is | for |
//! |---|---|---|
//! | [`queue`] | jobs with retries, dead letters, delays, priorities, cron | work that must be done, also when things fail |
//! | [`reliable_list`] | a list that loses nothing | producers that `LPUSH` |
//! | [`priority`] | the lowest number first | work by urgency alone |
//! | [`ring`] | items that are visited again and again | feeds to poll, hosts to check |
//! | [`notify`] | notices that merge | "this changed, rebuild it" |
//! | [`topic`] | messages to whoever listens now | live updates that may be missed |
//! | [`stream`] | events that several groups read at their own pace | what happened, for those who come later too |

pub mod notify;
pub mod priority;
pub mod queue;
pub mod reliable_list;
pub mod ring;
pub mod stream;
pub mod topic;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
