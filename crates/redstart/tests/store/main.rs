//! The store: one seam over every backend, and what it promises when servers break.

mod dedicated;
mod doubt;
mod down;
mod durable;
mod fault;
mod hurry;
mod identity;
mod measure;
mod mirror;
mod nonce;
mod policy;
mod redirection;
mod refusal;
mod replica;
mod runtime;
mod same_program;
mod sentinel;
mod shared_line;
mod subscription;
mod walk;
mod work;

#[path = "../served/engine.rs"]
mod served;
