//! Queues, topics and streams.
//!
//! | module | what it is | for |
//! |---|---|---|
//! | [`queue`] | jobs with retries, dead letters, delays, priorities, cron | work that must be done, once things fail too |

pub mod queue;
