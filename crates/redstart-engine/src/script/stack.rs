//! How much of the thread's stack a script has taken.

use std::cell::Cell;

thread_local! {
    /// Where the stack of this thread was when its last script began.
    pub(super) static STACK_BASE: Cell<usize> = const { Cell::new(0) };
}

/// How much of the stack a script may have taken when a Rust function goes deeper. Lua limits how
/// deeply C functions call one another, but not what they take: nested `string.gsub` come close to
/// the 2 MiB that a thread usually has.
const STACK: usize = 1536 << 10;

#[inline(never)]
pub(super) fn stack_pointer() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}

/// Whether the running script has taken so much of the stack that it must not go deeper.
pub(super) fn is_stack_used_up() -> bool {
    STACK_BASE.get().abs_diff(stack_pointer()) > STACK
}
