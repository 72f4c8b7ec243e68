//! The policy layer: one layer around a client.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use redstart::resilience::{Breaker, CallPolicy, CallWindow, PolicyError, RetryPlan};
use redstart_testkit::eventually;
use redstart_tower::PolicyLayer;
use tower::{Layer, ServiceExt, service_fn};

fn policy() -> CallPolicy {
    let pause = Duration::from_millis(1);
    let plan = RetryPlan::attempts(NonZeroU32::new(3).expect("not zero")).backoff(pause, pause);
    CallPolicy::builder().retry(plan).build()
}

#[tokio::test]
async fn errors_are_repeated_and_the_request_is_the_same_each_time() {
    let calls = Arc::new(AtomicU32::new(0));
    let seen = calls.clone();
    let service = service_fn(move |request: String| {
        let n = seen.fetch_add(1, Ordering::Relaxed);
        async move {
            if n < 2 {
                Err("no")
            } else {
                Ok(format!("{request} {n}"))
            }
        }
    });
    let client = PolicyLayer::new(policy()).layer(service);
    assert_eq!(
        client.clone().oneshot("ann".to_owned()).await,
        Ok("ann 2".to_owned())
    );
    calls.store(100, Ordering::Relaxed);
    assert_eq!(
        client.oneshot("bob".to_owned()).await,
        Ok("bob 100".to_owned())
    );
}

#[tokio::test]
async fn a_response_may_be_a_failure_and_the_last_one_is_returned() {
    let calls = Arc::new(AtomicU32::new(0));
    let seen = calls.clone();
    let service = service_fn(move |(): ()| {
        let n = seen.fetch_add(1, Ordering::Relaxed);
        async move {
            Ok::<_, &str>(
                http::Response::builder()
                    .status(503)
                    .body(n)
                    .expect("valid"),
            )
        }
    });
    let unavailable = |result: &Result<http::Response<u32>, &str>| {
        result
            .as_ref()
            .is_ok_and(|response| response.status() == 503)
    };
    let client = PolicyLayer::with_failures(policy(), unavailable).layer(service);
    let response = client.oneshot(()).await.expect("it is a response");
    assert_eq!((response.status().as_u16(), *response.body()), (503, 2));
}

#[tokio::test]
async fn a_service_that_is_never_ready_times_out() {
    #[derive(Clone)]
    struct Busy;
    impl tower::Service<()> for Busy {
        type Response = ();
        type Error = &'static str;
        type Future = std::future::Ready<Result<(), &'static str>>;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Pending
        }
        fn call(&mut self, (): ()) -> Self::Future {
            std::future::ready(Ok(()))
        }
    }
    let policy = CallPolicy::builder()
        .timeout(Duration::from_millis(20))
        .build();
    let client = PolicyLayer::new(policy).layer(Busy);
    assert_eq!(client.oneshot(()).await, Err(PolicyError::TimedOut));
}

#[tokio::test]
async fn one_layer_has_breaker_bulkhead_retry_and_hedge() -> Result<(), redstart::Error> {
    let store = redstart::Store::connect("memory://").await?;
    let breaker = Breaker::builder(&store, "shop", "payments")
        .window(CallWindow::Count(10))
        .min_calls(4)
        .open()
        .await?;
    let plan = RetryPlan::attempts(NonZeroU32::new(2).expect("not zero"))
        .backoff(Duration::from_millis(1), Duration::from_millis(1));
    let policy = CallPolicy::builder()
        .retry(plan.budget(1.0))
        .bulkhead(NonZeroUsize::new(1).expect("not zero"), Duration::ZERO)
        .hedge(Duration::from_millis(5))
        .breaker(breaker)
        .build();
    let calls = Arc::new(AtomicU32::new(0));
    let seen = calls.clone();
    // The first of two calls of "slow" hangs, "no" fails at once.
    let service = service_fn(move |request: &'static str| {
        let n = seen.fetch_add(1, Ordering::Relaxed);
        async move {
            match request {
                "slow" if n == 0 => std::future::pending().await,
                "no" => Err("no"),
                _ => Ok(n),
            }
        }
    });
    let client = PolicyLayer::new(policy).layer(service);

    // The hedge answers for the call that hangs; nobody else has a place meanwhile.
    let (first, second) = tokio::join!(client.clone().oneshot("slow"), async {
        tokio::task::yield_now().await;
        client.clone().oneshot("yes").await
    });
    assert_eq!(first, Ok(1));
    assert_eq!(second, Err(PolicyError::Full));

    // Failures are repeated until the circuit opens, and then nothing is called. They are reported in the background.
    let opened = eventually(Duration::from_secs(60), async || {
        let failed = client.clone().oneshot("no").await;
        matches!(failed, Err(PolicyError::Open { retry_after }) if !retry_after.is_zero())
    });
    assert!(opened.await, "the circuit stays closed");
    let before = calls.load(Ordering::Relaxed);
    let refused = client.oneshot("yes").await;
    assert!(
        matches!(refused, Err(PolicyError::Open { .. })),
        "{refused:?}"
    );
    assert_eq!(calls.load(Ordering::Relaxed), before, "it was called");
    Ok(())
}
