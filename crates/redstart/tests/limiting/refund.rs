//! Giving back: once, and never above the capacity.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use redstart::Store;
use redstart_testkit::{Backend, figure, matrix, scale};

use crate::{LONG, Way};

matrix! {
    async fn a_refund_gives_back_what_was_taken(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL.into_iter().filter(|way| way.is_refundable()) {
            let limiter = way.limiter(&store, backend.namespace(), 10, LONG).build()?;
            let four = limiter.check("u", 4).await?.allowed().unwrap();
            let six = limiter.check("u", 6).await?.allowed().unwrap();
            assert!(!limiter.check("u", 1).await?.is_allowed(), "{way:?}");
            // The bucket was refilled a little meanwhile, so the last unit may be available already.
            let credited = limiter.refund(four).await?;
            assert!((3..=4).contains(&credited), "{way:?} {credited}");
            assert_eq!(limiter.peek("u").await?.remaining, 4, "{way:?}");
            limiter.refund(six).await?;
            assert_eq!(limiter.peek("u").await?.remaining, 10, "{way:?}");
            assert!(!limiter.check("u", 10).await?.is_allowed() || !limiter.check("u", 1).await?.is_allowed(), "{way:?}");
        }
        Ok(())
    }

    async fn a_refund_needs_its_own_limiter_and_an_account(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in [Way::WholeBucket, Way::ExactBucket] {
            let limiter = way.limiter(&store, backend.namespace(), 10, LONG).build()?;
            let grant = limiter.check("u", 4).await?.allowed().unwrap();
            assert!(limiter.refund(grant).await.unwrap_err().is_config());
        }
        let one = Way::FixedWindow.limiter(&store, backend.namespace(), 10, LONG).build()?;
        let two = Way::SlidingWindow.limiter(&store, backend.namespace(), 10, LONG).build()?;
        let grant = one.check("u", 4).await?.allowed().unwrap();
        assert!(two.refund(grant).await.unwrap_err().is_config());
        Ok(())
    }

    async fn checks_and_refunds_interleaved_never_go_above_capacity(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let rounds = scale(60, "REFUND_ROUNDS");
        for way in Way::ALL.into_iter().filter(|way| way.is_refundable()) {
            const CAPACITY: i64 = 10;
            let limiter = way.limiter(&store, backend.namespace(), CAPACITY as u64, LONG).build()?;
            // What is out: counted up after it was granted and down before it is given back, so it is
            // never above what the server thinks is out.
            let out = Arc::new(AtomicI64::new(0));
            let tasks: Vec<_> = (0..8u64)
                .map(|task| {
                    let (limiter, out) = (limiter.clone(), out.clone());
                    tokio::spawn(async move {
                        let mut held = Vec::new();
                        for round in 0..rounds {
                            let cost = (task * 7 + round) % 4 + 1;
                            if let Some(grant) = limiter.check("u", cost).await?.allowed() {
                                let now = out.fetch_add(cost as i64, Ordering::SeqCst) + cost as i64;
                                assert!(now <= CAPACITY, "{way:?}: {now} out of {CAPACITY}");
                                held.push((cost, grant));
                            }
                            if round % 3 != 0 && let Some((cost, grant)) = held.pop() {
                                out.fetch_sub(cost as i64, Ordering::SeqCst);
                                limiter.refund(grant).await?;
                            }
                        }
                        for (cost, grant) in held {
                            out.fetch_sub(cost as i64, Ordering::SeqCst);
                            limiter.refund(grant).await?;
                        }
                        Ok::<_, redstart::Error>(())
                    })
                })
                .collect();
            for task in tasks {
                task.await??;
            }
            // Everything was given back, and not one unit more.
            let left = limiter.peek("u").await?.remaining;
            assert_eq!(left, CAPACITY as u64, "{way:?}");
            assert!(limiter.check("u", CAPACITY as u64).await?.is_allowed(), "{way:?}");
            assert!(!limiter.check("u", 1).await?.is_allowed(), "{way:?}");
            figure(format!("{}: {way:?}, {} checks and refunds, never above {CAPACITY}", backend.test(), 8 * rounds));
        }
        Ok(())
    }
}
