//! Queues, topics and streams: what they promise, on every backend and through faults.

mod queue;
mod queue_crash;
