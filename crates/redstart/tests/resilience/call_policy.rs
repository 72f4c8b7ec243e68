//! Calls by a policy: each part does its own, and together they keep their order.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use redstart::{
    Store,
    resilience::{Breaker, CallPolicy, CallWindow, CircuitState, PolicyError, RetryPlan},
};
use redstart_testkit::{Kind, Proxy, Server, eventually};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(30);

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

/// It was carried out once, perhaps: "nothing was called" would invite to do it again.
#[tokio::test(start_paused = true)]
async fn a_failed_call_without_a_place_for_its_repetition_has_failed() {
    for wait in [Duration::ZERO, MS] {
        let policy = CallPolicy::builder()
            .bulkhead(NonZeroUsize::MIN, wait)
            .retry(plan(2))
            .timeout(300 * MS)
            .build();
        let failing = policy.call(async || Err::<(), _>("no"));
        let slow = async {
            // While the first one rests before its second attempt.
            sleep(MS).await;
            policy
                .call(async || std::future::pending::<Result<(), ()>>().await)
                .await
        };
        let (failed, slow) = tokio::join!(failing, slow);
        assert_eq!(failed, Err(PolicyError::Failed("no")), "{wait:?}");
        assert_eq!(slow, Err(PolicyError::TimedOut), "{wait:?}");
    }
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

#[tokio::test]
async fn the_breaker_hears_of_calls_that_the_deadline_cuts_off() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let breaker = Breaker::builder(&store, "app", "hung")
        .window(CallWindow::Count(10))
        .failure_rate(0.5)
        .min_calls(4)
        .probes(1)
        .open_for(Duration::from_secs(30))
        .open()
        .await?;
    let policy = CallPolicy::builder()
        .deadline(20 * MS)
        .breaker(breaker.clone())
        .build();
    let hang = async || std::future::pending::<Result<(), ()>>().await;
    let opens = async || {
        let _: Result<(), PolicyError<()>> = policy.call(hang).await;
        breaker.flush().await.is_ok() && breaker.state() == CircuitState::Open
    };
    assert!(eventually(PATIENCE, opens).await);
    // A probe that hangs opens it again.
    store.advance(Duration::from_secs(30))?;
    assert_eq!(policy.call(hang).await, Err(PolicyError::TimedOut));
    let again = async || {
        matches!(
            policy.call(hang).await,
            Err(PolicyError::Open { retry_after }) if retry_after > Duration::from_secs(1)
        )
    };
    assert!(eventually(PATIENCE, again).await);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_attempt_with_little_time_before_the_deadline_says_nothing() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let breaker = Breaker::builder(&store, "app", "short")
        .window(CallWindow::Count(10))
        .min_calls(1)
        .open()
        .await?;
    let policy = CallPolicy::builder()
        .deadline(100 * MS)
        .bulkhead(NonZeroUsize::MIN, Duration::from_secs(1))
        .breaker(breaker.clone())
        .build();
    // The second waits for its place most of the time.
    let first = policy.call(async || {
        tokio::time::sleep(80 * MS).await;
        Ok::<_, ()>(())
    });
    let second = policy.call(async || std::future::pending::<Result<(), ()>>().await);
    let (first, second) = tokio::join!(first, second);
    assert_eq!((first, second), (Ok(()), Err(PolicyError::TimedOut)));
    store.settle().await;
    breaker.flush().await?;
    assert_eq!(breaker.state(), CircuitState::Closed);
    Ok(())
}

/// A probe that failed in time is a failed probe, also if the store is too far away to be told of it in time.
#[tokio::test]
async fn a_probe_that_fails_shortly_before_the_deadline_opens_the_circuit() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::connect(proxy.url()).await?;
    let breaker = Breaker::builder(&store, "app", "far")
        .window(CallWindow::Count(10))
        .min_calls(1)
        .probes(1)
        .open_for(Duration::from_secs(2))
        .open()
        .await?;
    let _ = breaker.call(async || Err::<(), _>("down")).await;
    breaker.flush().await?;
    assert_eq!(breaker.state(), CircuitState::Open);
    proxy.delay_replies(200 * MS);
    let policy = CallPolicy::builder()
        .timeout(100 * MS)
        .deadline(400 * MS)
        .breaker(breaker.clone())
        .build();
    let hang = async || std::future::pending::<Result<(), ()>>().await;
    let half_open = async || {
        let _ = policy.call(hang).await;
        breaker.state() == CircuitState::HalfOpen
    };
    assert!(eventually(PATIENCE, half_open).await);
    let opened = async || {
        store.settle().await;
        let is_open = breaker.state() == CircuitState::Open;
        let _ = policy.call(hang).await;
        is_open
    };
    assert!(eventually(PATIENCE, opened).await);
    Ok(())
}
