//! Large queues.
