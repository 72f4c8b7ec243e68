//! Blocks that processes take and hand out by themselves; shadow mode; a fleet's share.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use redstart::{
    Down, Store,
    limiting::{DecidedBy, Decision, Limiter, LimiterBuilder, Quota},
};
use redstart_testkit::{Backend, Kind, MonitorTap, Proxy, Server, eventually, matrix, scale};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(30);

/// When a request was admitted, at the earliest and at the latest, and what it cost.
type Admitted = (Instant, Instant, u64);

/// Fails if in any interval more was admitted than a token bucket admits.
fn assert_bucket(mut admitted: Vec<Admitted>, capacity: u64, per_second: u64) {
    admitted.sort();
    // One tick of the server's clock.
    let slack = per_second as f64 / 1000.0 + 1.0;
    for first in (0..admitted.len()).step_by(20) {
        let begin = admitted[first].0;
        let mut after: Vec<(Instant, u64)> = admitted[first..]
            .iter()
            .map(|(_, end, cost)| (*end, *cost))
            .collect();
        after.sort();
        let mut sum = 0;
        for (end, cost) in after {
            sum += cost;
            let most = capacity as f64 + per_second as f64 * (end - begin).as_secs_f64() + slack;
            assert!(
                sum as f64 <= most,
                "{sum} in {:?}, at most {most}",
                end - begin
            );
        }
    }
}

matrix! {
    async fn a_block_gives_nothing_to_a_request_that_another_limit_refuses(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let hour = Duration::from_secs(3600);
        let users = Limiter::fixed_window(&store, backend.namespace(), "user", Quota::per(1000, hour)).lease_blocks(50).build()?;
        let tenants = Limiter::fixed_window(&store, backend.namespace(), "tenant", Quota::per(1, hour)).build()?;
        assert!(tenants.check("acme", 1).await?.is_allowed());
        // The user is hot: this process has a block.
        for _ in 0..100 {
            assert!(users.check("ann", 1).await?.is_allowed());
        }
        let before = users.peek("ann").await?.remaining;
        // More than a block has.
        for _ in 0..120 {
            assert!(!Limiter::check_together(&[(&users, "ann", 1), (&tenants, "acme", 1)]).await?.is_allowed());
        }
        assert_eq!(users.peek("ann").await?.remaining, before);
        Ok(())
    }

    async fn blocks_of_all_processes_together_stay_within_the_bucket(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let (capacity, rate) = (400, 2000);
        let builder = || Limiter::token_bucket(&store, backend.namespace(), "api", Quota::per_second(rate).burst(capacity))
            .lease_blocks(100);
        let admitted: Arc<Mutex<Vec<Admitted>>> = Arc::default();
        let until = Instant::now() + Duration::from_millis(scale(500, "LEASE_MS"));
        let mut tasks = JoinSet::new();
        for seed in 0..6 {
            let (builder, admitted) = (builder(), admitted.clone());
            tasks.spawn(async move {
                let mut random = StdRng::seed_from_u64(seed);
                let mut process = builder.clone().build()?;
                while Instant::now() < until {
                    let (before, cost) = (Instant::now(), random.random_range(1..=3));
                    if let Decision::Allowed(_) = process.check("hot", cost).await? {
                        admitted.lock().push((before, Instant::now(), cost));
                    }
                    match random.random_range(0..200) {
                        // It dies with what it has, and another one starts.
                        0 => process = builder.clone().build()?,
                        // It is idle for longer than it may keep a block, and for shorter.
                        1..=4 => tokio::time::sleep(Duration::from_millis(random.random_range(1..150))).await,
                        _ => tokio::task::yield_now().await,
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        let admitted = Arc::into_inner(admitted).expect("all are done").into_inner();
        assert!(admitted.len() > 100, "{}", admitted.len());
        assert_bucket(admitted, capacity, rate);
        Ok(())
    }

    async fn a_hot_subject_needs_few_round_trips_and_a_cold_one_is_checked_each_time(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Limiter::token_bucket(&store, backend.namespace(), "api", Quota::per_second(1_000_000))
            .lease_blocks(1000)
            .build()?;
        let (mut local, mut asked) = (0, 0);
        for _ in 0..2000 {
            let grant = limiter.check("hot", 1).await?.allowed().expect("there is room");
            match grant.decided_by() {
                DecidedBy::Lease => local += 1,
                _ => asked += 1,
            }
        }
        assert!(local > 10 * asked, "{local} without a round trip, {asked} with one");
        for n in 0..20 {
            let grant = limiter.check(&format!("cold-{n}"), 1).await?.allowed().expect("there is room");
            assert_eq!(grant.decided_by(), DecidedBy::Store);
        }
        // A reset takes the block away too.
        limiter.reset("hot").await?;
        let grant = limiter.check("hot", 1).await?.allowed().expect("there is room");
        assert_eq!(grant.decided_by(), DecidedBy::Store);
        Ok(())
    }

    async fn blocks_are_of_the_limiters_own_quota(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let own = Quota::per_second(1_000_000);
        let limiter = Limiter::token_bucket(&store, backend.namespace(), "api", own).lease_blocks(1000).build()?;
        let (tier, same) = (limiter.with_quota(Quota::per_second(2_000_000))?, limiter.with_quota(own)?);
        let mut leased = 0;
        for _ in 0..200 {
            let grant = tier.check("hot", 1).await?.allowed().expect("there is room");
            assert_eq!(grant.decided_by(), DecidedBy::Store);
            let grant = same.check("hot", 1).await?.allowed().expect("there is room");
            leased += usize::from(grant.decided_by() == DecidedBy::Lease);
        }
        assert!(leased > 0, "the limiter's own quota is leased however it is named");
        Ok(())
    }

    async fn what_a_block_does_not_fit_into_is_still_admitted_one_by_one(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Limiter::fixed_window(&store, backend.namespace(), "day", Quota::per_day(101)).lease_blocks(50).build()?;
        let mut admitted = 0;
        while limiter.check("s", 1).await?.is_allowed() {
            admitted += 1;
        }
        // Units that were not spent in time are given up.
        assert!((50..=101).contains(&admitted), "{admitted}");
        assert_eq!(limiter.peek("s").await?.remaining, 0, "what a block did not fit into was taken too");
        Ok(())
    }

    async fn shadow_mode_admits_all_and_takes_only_what_the_quota_allows(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Limiter::fixed_window(&store, backend.namespace(), "mail", Quota::per_day(3)).shadow().build()?;
        let mut by = Vec::new();
        for _ in 0..5 {
            by.push(limiter.check("ann", 1).await?.allowed().expect("shadow mode admits").decided_by());
        }
        assert_eq!(by[..3], [DecidedBy::Store; 3]);
        assert_eq!(by[3..], [DecidedBy::Shadow; 2]);
        let never = limiter.check("bob", 4).await?.allowed().expect("shadow mode admits");
        assert_eq!(never.decided_by(), DecidedBy::Shadow);
        assert_eq!(limiter.refund(never).await?, 0);
        assert_eq!(limiter.peek("bob").await?.remaining, 3, "nothing was taken");
        assert_eq!(limiter.peek("ann").await?.remaining, 0);
        let many = limiter.check_many(&[("ann", 1), ("bob", 1), ("eve", 9)]).await;
        assert!(many.into_iter().all(|decision| decision.is_ok_and(|decision| decision.is_allowed())));
        assert!(limiter.acquire("ann", 1, PATIENCE).await?.is_allowed());
        Ok(())
    }
}

/// The window of the server's clock.
async fn window(store: &Store, length: Duration) -> anyhow::Result<u128> {
    Ok(store.time().await?.as_millis() / length.as_millis())
}

#[tokio::test]
async fn blocks_of_a_window_are_not_spent_in_the_next_one() -> anyhow::Result<()> {
    let length = Duration::from_secs(1);
    let mut most = 0;
    for seed in 0..scale(40, "LEASE_WORLDS") {
        let mut random = StdRng::seed_from_u64(seed);
        let store = Store::connect("memory://").await?;
        let builder: LimiterBuilder =
            Limiter::fixed_window(&store, "app", "api", Quota::per(100, length)).lease_blocks(40);
        let mut fleet = Vec::new();
        for _ in 0..3 {
            fleet.push(builder.clone().build()?);
        }
        let mut counts = std::collections::HashMap::<u128, u64>::new();
        for _ in 0..1500 {
            let process = random.random_range(0..fleet.len());
            let before = window(&store, length).await?;
            let cost = random.random_range(1..=2);
            let allowed = fleet[process].check("hot", cost).await?.is_allowed();
            // What began in one window and ended in another is left out.
            if allowed && window(&store, length).await? == before {
                *counts.entry(before).or_default() += cost;
            }
            match random.random_range(0..60) {
                0 => store.advance(Duration::from_millis(random.random_range(1..400)))?,
                1 => fleet[process] = builder.clone().build()?,
                _ => {}
            }
        }
        assert!(
            counts.values().all(|count| *count <= 100),
            "seed {seed}: {counts:?}"
        );
        most = counts.into_values().fold(most, u64::max);
    }
    // In a world whose processes often begin anew, much of each block is never used.
    assert!(most > 80, "at most {most} of 100 were used in a window");
    Ok(())
}

#[tokio::test]
async fn blocks_of_a_bucket_kept_over_time_never_add_up_to_more() -> anyhow::Result<()> {
    let (capacity, rate) = (200u64, 1000u64);
    for seed in 0..scale(12, "LEASE_WORLDS") {
        let mut random = StdRng::seed_from_u64(seed);
        let store = Store::connect("memory://").await?;
        let quota = Quota::per_second(rate).burst(capacity);
        let builder = Limiter::token_bucket(&store, "app", "api", quota).lease_blocks(80);
        let mut fleet = Vec::new();
        for _ in 0..4 {
            fleet.push(builder.clone().build()?);
        }
        // Time as the engine has it: nanoseconds since the first look.
        let begun = store.time().await?;
        let base = Instant::now();
        let now = async || anyhow::Ok(base + (store.time().await?.saturating_sub(begun)));
        let mut admitted = Vec::new();
        for _ in 0..500 {
            // A burst by one process leaves it with a large block; then others come.
            let process = random.random_range(0..fleet.len());
            for _ in 0..random.random_range(1..30) {
                let before = now().await?;
                if fleet[process].check("hot", 1).await?.is_allowed() {
                    admitted.push((before, now().await?, 1));
                }
            }
            match random.random_range(0..6) {
                0 | 1 => store.advance(Duration::from_millis(random.random_range(1..130)))?,
                2 => fleet[process] = builder.clone().build()?,
                _ => {}
            }
        }
        assert_bucket(admitted, capacity, rate);
    }
    Ok(())
}

#[tokio::test]
async fn fault_while_the_store_is_down_a_process_admits_its_share() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=200ms", server.url())).await?;
    let fleet = NonZeroU32::new(4).expect("not zero");
    let limiter = Limiter::token_bucket(&store, "app", "api", Quota::per_hour(400))
        .on_store_down(Down::Local(fleet))
        .build()?;
    assert_eq!(
        limiter
            .check("ann", 1)
            .await?
            .allowed()
            .expect("there is room")
            .decided_by(),
        DecidedBy::Store
    );
    server.kill9();
    let mut admitted = 0;
    for _ in 0..150 {
        match limiter.check("ann", 1).await? {
            Decision::Allowed(grant) => {
                assert_eq!(grant.decided_by(), DecidedBy::Policy);
                admitted += 1;
            }
            Decision::Limited {
                retry_after,
                snapshot,
            } => {
                assert_eq!(snapshot.decided_by, DecidedBy::Policy);
                assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(36));
            }
            Decision::Never { .. } => panic!("it fits"),
        }
    }
    assert!(
        (100..=105).contains(&admitted),
        "a quarter of 400, not {admitted}"
    );
    assert!(
        limiter.check("bob", 1).await?.is_allowed(),
        "each subject has its own"
    );
    server.restart().await?;
    let back = eventually(
        PATIENCE,
        async || matches!(limiter.check("eve", 1).await, Ok(Decision::Allowed(grant)) if grant.decided_by() == DecidedBy::Store),
    );
    assert!(back.await);
    Ok(())
}

#[tokio::test]
async fn fault_while_the_store_is_down_a_hot_subject_costs_the_share_no_more_than_was_asked()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=200ms", server.url())).await?;
    let fleet = NonZeroU32::new(4).expect("not zero");
    let limiter = Limiter::token_bucket(&store, "app", "api", Quota::per_hour(4000))
        .lease_blocks(500)
        .on_store_down(Down::Local(fleet))
        .build()?;
    // It is hot: this process takes blocks.
    for _ in 0..200 {
        assert!(limiter.check("ann", 1).await?.is_allowed());
    }
    server.kill9();
    let (mut admitted, mut refused) = (0, 0);
    while refused < 200 {
        match limiter.check("ann", 1).await? {
            Decision::Allowed(grant) if grant.decided_by() == DecidedBy::Policy => admitted += 1,
            Decision::Allowed(grant) => assert_eq!(grant.decided_by(), DecidedBy::Lease),
            Decision::Limited { .. } => refused += 1,
            Decision::Never { .. } => panic!("it fits"),
        }
    }
    assert!(
        (990..=1100).contains(&admitted),
        "a quarter of 4000, not {admitted}"
    );
    Ok(())
}

/// A limiter whose subject `s` is hot and has taken all.
async fn exhausted(store: &Store) -> anyhow::Result<Limiter> {
    exhausted_with(store, Down::Fail).await
}

async fn exhausted_with(store: &Store, down: Down) -> anyhow::Result<Limiter> {
    let quota = Quota::per(301, Duration::from_secs(300 * 24 * 3600));
    let limiter = Limiter::fixed_window(store, "app", "year", quota)
        .lease_blocks(100)
        .on_store_down(down)
        .build()?;
    while limiter.check("s", 1).await?.is_allowed() {}
    Ok(limiter)
}

#[tokio::test]
async fn those_who_wait_for_a_block_share_its_refusal() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    let limiter = exhausted(&store).await?;
    let tap = MonitorTap::start(&server).await?;
    proxy.delay_replies(Duration::from_millis(100));
    for round in 1..=2 {
        let checks = (0..100).map(|n| limiter.check("s", 1 + n % 3));
        for decision in join_all(checks).await {
            let decision = decision?;
            let Decision::Limited {
                retry_after,
                snapshot,
            } = decision
            else {
                panic!("{decision:?}")
            };
            assert!(!retry_after.is_zero() && retry_after == snapshot.retry_after);
            assert!(matches!(
                snapshot.decided_by,
                DecidedBy::Store | DecidedBy::DenyCache
            ));
        }
        // One for a block and one for a request.
        let trips = tap.round_trips("app").await?.len();
        assert!(trips <= 2 * round, "{trips} round trips for 100 callers");
    }
    // Room is seen by the next caller.
    limiter.reset("s").await?;
    assert!(limiter.check("s", 1).await?.is_allowed());
    Ok(())
}

#[tokio::test]
async fn nobody_waits_for_a_block_longer_than_the_deadline_nor_is_admitted_for_it()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let (deadline, trip) = (Duration::from_secs(2), Duration::from_millis(500));
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    // The store is slow and answers: that is not down.
    let limiter = exhausted_with(&store.within(deadline), Down::Allow).await?;
    let tap = MonitorTap::start(&server).await?;
    proxy.delay_replies(trip);
    // None of them may take the refusal of the one in front, who asked for more.
    let checks = (1..=100).rev().map(|cost| limiter.check("s", cost));
    let mut late = 0;
    for decision in join_all(checks).await {
        let Decision::Limited {
            retry_after,
            snapshot,
        } = decision?
        else {
            panic!("admitted although nothing was left");
        };
        assert!(!retry_after.is_zero());
        late += u64::from(snapshot.decided_by == DecidedBy::DenyCache);
    }
    assert!(late > 50, "{late}");
    // A trip takes that long at least, so no more of them begin before the deadline.
    let trips = tap.round_trips("app").await?.len();
    assert!(trips <= 8, "{trips} round trips within one deadline");
    Ok(())
}

/// The first question is for a block. That it was refused is an answer, whatever becomes of the second one.
#[tokio::test]
async fn who_was_refused_a_block_is_not_admitted_because_the_second_question_timed_out()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let (deadline, trip) = (Duration::from_secs(4), Duration::from_millis(2400));
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    let fleet = NonZeroU32::new(1).expect("not zero");
    for down in [Down::Allow, Down::Local(fleet), Down::Fail] {
        let limiter = exhausted_with(&store.within(deadline), down).await?;
        // It stays hot.
        for _ in 0..10 {
            assert!(!limiter.check("s", 1).await?.is_allowed());
        }
        let tap = MonitorTap::start(&server).await?;
        proxy.delay_replies(trip);
        let decision = limiter.check("s", 1).await?;
        let trips = tap.round_trips("app").await?.len();
        proxy.delay_replies(Duration::ZERO);
        let Decision::Limited { retry_after, .. } = decision else {
            panic!("{down:?}: admitted although the store has just refused");
        };
        assert!(!retry_after.is_zero());
        assert_eq!(trips, 2, "one for a block and one for the request");
        limiter.reset("s").await?;
    }
    Ok(())
}

#[tokio::test]
async fn acquiring_waits_no_longer_than_it_may_for_a_line_of_the_same_process() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    // The line is long, and the store is not down.
    let limiter = exhausted_with(&store, Down::Allow).await?;
    proxy.delay_replies(Duration::from_millis(300));
    let done = AtomicUsize::new(0);
    // None of them may take the refusal of the one in front, who asked for more.
    let checks = (1..=20).rev().map(|cost| {
        let (limiter, done) = (&limiter, &done);
        async move {
            let decision = limiter.check("s", cost).await;
            done.fetch_add(1, Ordering::SeqCst);
            decision
        }
    });
    let line = join_all(checks);
    let last = limiter.acquire("s", 1, Duration::from_millis(10));
    let decision = tokio::select! {
        biased;
        _ = line => panic!("it waited for all of the line"),
        decision = last => decision?,
    };
    assert!(matches!(decision, Decision::Limited { .. }), "{decision:?}");
    let done = done.load(Ordering::SeqCst);
    assert!(done < 10, "it waited for {done} in front");
    Ok(())
}

/// A limiter with much room whose subject `s` is hot. Requests of 150 do not fit into a block.
async fn roomy(store: &Store) -> anyhow::Result<Limiter> {
    let quota = Quota::per(1_000_000, Duration::from_secs(300 * 24 * 3600));
    let limiter = Limiter::fixed_window(store, "app", "year", quota)
        .lease_blocks(100)
        .on_store_down(Down::Allow)
        .build()?;
    for _ in 0..10 {
        assert!(limiter.check("s", 1).await?.is_allowed());
    }
    Ok(limiter)
}

fn assert_store_admitted(decision: &Decision) {
    let Decision::Allowed(grant) = decision else {
        panic!("refused although there is room: {decision:?}")
    };
    assert_eq!(grant.decided_by(), DecidedBy::Store);
}

#[tokio::test]
async fn a_caller_that_is_not_polled_does_not_keep_others_from_the_store() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(4))
        .connect()
        .await?;
    for inherits in [false, true] {
        let limiter = roomy(&store).await?;
        let mut first = Box::pin(limiter.check("s", 150));
        let mut second = Box::pin(limiter.check("s", 150));
        // It has the turn and waits for its answer.
        assert!(futures_util::poll!(&mut first).is_pending());
        if inherits {
            // It waits in line, and gets the turn when the first one is done.
            assert!(futures_util::poll!(&mut second).is_pending());
            assert_store_admitted(&first.as_mut().await?);
        }
        assert_store_admitted(&limiter.check("s", 150).await?);
        // Only those who had come wait: otherwise each of these waits for half of its deadline.
        let later = async {
            for _ in 0..30 {
                assert_store_admitted(&limiter.check("s", 150).await?);
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, later).await??;
        drop((first, second));
        limiter.reset("s").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_line_whose_every_answer_was_yes_refuses_nobody() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    let limiter = roomy(&store.within(Duration::from_secs(4))).await?;
    proxy.delay_replies(Duration::from_millis(500));
    let checks = (0..30).map(|_| limiter.check("s", 150));
    for decision in join_all(checks).await {
        assert_store_admitted(&decision?);
    }
    Ok(())
}
