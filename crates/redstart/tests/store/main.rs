//! The store: one seam over every backend, and what it promises when servers break.

mod fault;
mod refusal;
mod same_program;
mod subscription;
