//! What a world took is given back: the library, the engine and their tasks leave nothing behind once their owners are gone,
//! whatever was cut, killed or dropped meanwhile.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use redstart_sim::{Pattern, Plan, run};
use redstart_testkit::{figure, scale};

/// The system's allocator, which counts the bytes that each thread has in use. A world has one thread, and the test runner
/// others.
struct Counting;

thread_local! {
    static IN_USE: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends has none any more.
    let _ = IN_USE.try_with(|in_use| in_use.set(in_use.get() + bytes));
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often something is done, after it was done as often to fill what is kept for the next time.
const TIMES: i64 = 4;

/// How many bytes more are in use when something is done again and again.
fn growth(what: impl Fn()) -> i64 {
    let in_use = || {
        for _ in 0..TIMES {
            what();
        }
        IN_USE.get()
    };
    let before = in_use();
    // Tables that are kept grow in steps, and shrink again: what is lost every time shows every time.
    let (first, second) = (in_use() - before, in_use() - before);
    match first >= TIMES && second >= 2 * TIMES {
        true => first,
        false => 0,
    }
}

#[test]
fn a_world_that_is_run_again_and_again_takes_no_more_memory() {
    assert_eq!(growth(|| drop(Box::new(1))), 0);
    let one_byte = || std::mem::forget(std::hint::black_box(Box::new(1_u8)));
    assert_eq!(growth(one_byte), TIMES, "what is lost does not show");
    let seeds = scale(2, "worlds whose memory is counted");
    let (mut worlds, mut grown) = (0, Vec::new());
    for &pattern in Pattern::ALL {
        for seed in 0..seeds {
            let plan = Plan::new(seed, pattern);
            let more = growth(|| drop(run(&plan, false, None)));
            worlds += 1;
            if more > 0 {
                grown.push(format!("{more} bytes in {TIMES} runs of {plan}"));
            }
        }
    }
    assert!(grown.is_empty(), "{}", grown.join("\n"));
    figure(format_args!(
        "{worlds} worlds, run again and again: no byte more in use"
    ));
}
