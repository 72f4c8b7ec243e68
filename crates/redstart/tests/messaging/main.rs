//! Queues, topics and streams: what they promise, on every backend and through faults.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod clock;
mod dispatcher;
mod mutation;
mod notify;
mod priority;
mod queue;
mod queue_across;
mod queue_batch;
mod queue_combine;
mod queue_crash;
mod queue_fault;
mod queue_flow;
mod queue_group;
mod queue_model;
#[cfg(feature = "sqlite")]
mod queue_outbox;
mod queue_parked;
mod queue_policy;
mod queue_result;
mod queue_schedule;
mod queue_serve;
mod queue_unique;
mod queue_wake;
mod reliable_list;
mod ring;
mod stream;
mod topic;

#[path = "../served/engine.rs"]
mod served;
