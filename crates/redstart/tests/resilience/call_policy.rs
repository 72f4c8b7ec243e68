//! Calls by a policy: each part does its own, and together they keep their order.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use redstart::{
    Store,
    resilience::{Breaker, CallPolicy, CallWindow, PolicyError, RetryPlan},
};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);

fn plan(attempts: u32) -> RetryPlan {
    RetryPlan::attempts(NonZeroU32::new(attempts).unwrap()).backoff(10 * MS, 100 * MS)
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_repeated_up_to_the_number_of_attempts() {
    let policy = CallPolicy::builder().retry(plan(3)).build();
    let calls = AtomicU32::new(0);
    let failing = async || {
        calls.fetch_add(1, Ordering::Relaxed);
        Err::<(), _>("no")
    };
    assert_eq!(policy.call(failing).await, Err(PolicyError::Failed("no")));
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    let third_time = async || match calls.fetch_add(1, Ordering::Relaxed) {
        3 | 4 => Err("no"),
        n => Ok(n),
    };
    assert_eq!(policy.call(third_time).await, Ok(5));
    // What is no failure is not repeated, and is returned as it is.
    let own_fault = policy.call_if(failing, |_| false).await;
    assert_eq!(own_fault, Err(PolicyError::Failed("no")));
    assert_eq!(calls.load(Ordering::Relaxed), 7);
    // A response that is a failure is repeated, and the last one is returned.
    let busy = async || Ok::<_, ()>(calls.fetch_add(1, Ordering::Relaxed));
    assert_eq!(policy.call_if(busy, |_| true).await, Ok(9));
}

#[tokio::test(start_paused = true)]
async fn repetitions_and_hedges_stay_within_the_budget() {
    let policy = CallPolicy::builder()
        .retry(plan(5).budget(0.1))
        .hedge(5 * MS)
        .build();
    let calls = AtomicU32::new(0);
    let failing = async || {
        calls.fetch_add(1, Ordering::Relaxed);
        sleep(8 * MS).await;
        Err::<(), _>("no")
    };
    for _ in 0..1000 {
        assert!(policy.call(failing).await.is_err());
    }
    // A thousand calls, a tenth of them, and the ten of the start.
    let calls = calls.load(Ordering::Relaxed);
    assert!((1100..=1111).contains(&calls), "{calls}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_and_the_whole_end_in_time() {
    let hanging = async || std::future::pending::<Result<(), ()>>().await;
    let policy = CallPolicy::builder()
        .timeout(50 * MS)
        .retry(plan(3))
        .build();
    let begun = Instant::now();
    assert_eq!(policy.call(hanging).await, Err(PolicyError::TimedOut));
    let took = begun.elapsed();
    assert!(
        took >= 165 * MS && took <= 185 * MS,
        "three attempts and two pauses: {took:?}"
    );
    let policy = CallPolicy::builder()
        .timeout(50 * MS)
        .deadline(70 * MS)
        .retry(plan(3))
        .build();
    let begun = Instant::now();
    assert_eq!(policy.call(hanging).await, Err(PolicyError::TimedOut));
    assert!(begun.elapsed() <= 72 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_wins_when_the_first_is_slow_and_a_failure_leaves_the_other_its_chance() {
    let policy = CallPolicy::builder().hedge(10 * MS).build();
    let calls = AtomicU32::new(0);
    let slow_first = async || match calls.fetch_add(1, Ordering::Relaxed) {
        0 => {
            sleep(1000 * MS).await;
            Ok::<_, ()>("slow")
        }
        _ => Ok("fast"),
    };
    let begun = Instant::now();
    assert_eq!(policy.call(slow_first).await, Ok("fast"));
    assert!(begun.elapsed() <= 12 * MS);
    assert_eq!(calls.swap(0, Ordering::Relaxed), 2);
    let second_fails = async || match calls.fetch_add(1, Ordering::Relaxed) {
        0 => {
            sleep(40 * MS).await;
            Ok("first")
        }
        _ => Err(()),
    };
    assert_eq!(policy.call(second_fails).await, Ok("first"));
    // A fast call is made once.
    calls.store(5, Ordering::Relaxed);
    assert_eq!(policy.call(slow_first).await, Ok("fast"));
    assert_eq!(calls.load(Ordering::Relaxed), 6);
}

#[tokio::test(start_paused = true)]
async fn the_bulkhead_has_so_many_places_and_no_more() {
    let places = NonZeroUsize::new(3).unwrap();
    let policy = CallPolicy::builder().bulkhead(places, 20 * MS).build();
    let (now, most) = (&AtomicU32::new(0), &AtomicU32::new(0));
    let work = |time: Duration| async move {
        let here = now.fetch_add(1, Ordering::Relaxed) + 1;
        most.fetch_max(here, Ordering::Relaxed);
        sleep(time).await;
        now.fetch_sub(1, Ordering::Relaxed);
        Ok::<_, ()>(())
    };
    let calls = (0..10).map(|_| policy.call(|| work(15 * MS)));
    let ended = futures_util::future::join_all(calls).await;
    let full = ended
        .iter()
        .filter(|ended| **ended == Err(PolicyError::Full))
        .count();
    assert_eq!(
        (most.load(Ordering::Relaxed), full),
        (3, 4),
        "three rounds would take 30 ms"
    );
    // A call that is dropped gives its place back.
    let dropped = tokio::time::timeout(MS, policy.call(|| work(1000 * MS))).await;
    assert!(dropped.is_err());
    now.store(0, Ordering::Relaxed);
    let calls = (0..3).map(|_| policy.call(|| work(15 * MS)));
    let ended = futures_util::future::join_all(calls).await;
    assert!(ended.iter().all(Result::is_ok));
}

#[tokio::test]
async fn the_breaker_hears_of_failures_and_timeouts_and_then_refuses() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let breaker = Breaker::builder(&store, "app", "api")
        .window(CallWindow::Count(10))
        .failure_rate(0.5)
        .min_calls(4)
        .open_for(Duration::from_secs(30))
        .open()
        .await?;
    let policy = CallPolicy::builder()
        .timeout(20 * MS)
        .retry(plan(2))
        .breaker(breaker.clone())
        .build();
    let calls = AtomicU32::new(0);
    let bad = async || match calls.fetch_add(1, Ordering::Relaxed) % 2 {
        0 => Err::<(), _>("no"),
        _ => std::future::pending().await,
    };
    assert_eq!(policy.call(bad).await, Err(PolicyError::TimedOut));
    assert_eq!(policy.call(bad).await, Err(PolicyError::TimedOut));
    breaker.flush().await?;
    let made = calls.load(Ordering::Relaxed);
    assert_eq!(made, 4);
    assert!(matches!(
        policy.call(bad).await,
        Err(PolicyError::Open { .. })
    ));
    assert_eq!(calls.load(Ordering::Relaxed), made, "nothing was called");
    store.advance(Duration::from_secs(30))?;
    assert_eq!(policy.call(async || Ok::<_, ()>(1)).await, Ok(1));
    Ok(())
}
