//! The circuit breaker, over instances, processes and a store that goes away.

use std::time::Duration;

use redstart::{
    Store,
    resilience::{
        Admission, Admitted, Breaker, BreakerBuilder, CallError, CallWindow, CircuitState as State,
    },
};
use redstart_testkit::{
    Backend, Child, Kind, MonitorTap, Server, child, eventually, figure, matrix, scale,
};

const LONG: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(30);

/// An instance of the breaker that hears of changes by messages alone.
fn instance(store: &Store, backend: &Backend) -> BreakerBuilder {
    Breaker::builder(store, backend.namespace(), "payments")
        .window(CallWindow::Count(20))
        .min_calls(4)
        .open_for(Duration::from_millis(150))
        .refresh(LONG)
}

async fn fail(breaker: &Breaker, times: usize) {
    for _ in 0..times {
        let result: Result<(), _> = breaker.call(async || Err("down")).await;
        assert!(result.is_err());
    }
}

async fn succeed(breaker: &Breaker, times: usize) {
    for _ in 0..times {
        breaker.call(async || Ok::<_, &str>(())).await.unwrap();
    }
}

async fn turns(breaker: &Breaker, state: State) -> bool {
    eventually(SOON, async || breaker.state() == state).await
}

async fn probe(breaker: &Breaker) -> Option<Admission> {
    match breaker.try_admit().await {
        Admitted::Yes(admission) if admission.is_probe() => Some(admission),
        _ => None,
    }
}

/// Waits until the time of open is over and a probe is let through.
async fn first_probe(breaker: &Breaker) -> Admission {
    let mut found = None;
    let came = eventually(SOON, async || {
        found = probe(breaker).await;
        found.is_some()
    });
    assert!(came.await, "no probe was let through");
    found.unwrap()
}

matrix! {
    async fn failures_open_it_for_all_and_probes_close_it_for_all(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let one = instance(&store, backend).probes(2).open().await?;
        let two = instance(&store, backend).probes(2).open().await?;
        succeed(&one, 3).await;
        fail(&one, 3).await;
        // Half of six: the report is sent in the background, and the other instance is told.
        assert!(turns(&one, State::Open).await);
        assert!(turns(&two, State::Open).await);
        let refused = two.call(async || Ok::<_, &str>(())).await;
        match refused {
            Err(CallError::Open { retry_after }) => assert!(retry_after <= Duration::from_millis(150)),
            // The machine was so slow that it is being probed already.
            other => assert!(other.is_ok(), "{other:?}"),
        }
        // A probe that fails opens it again; as many as were asked for close it.
        let bad = first_probe(&one).await;
        bad.failed().await;
        assert!(turns(&two, State::Open).await);
        let good = first_probe(&two).await;
        good.succeeded().await;
        assert_ne!(two.state(), State::Closed);
        first_probe(&one).await.succeeded().await;
        assert!(turns(&one, State::Closed).await);
        assert!(turns(&two, State::Closed).await);
        // Old trouble is forgotten.
        fail(&two, 1).await;
        two.flush().await?;
        assert_eq!(two.state(), State::Closed);
        Ok(())
    }

    async fn one_bad_instance_does_not_open_it(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for window in [CallWindow::Count(20), CallWindow::Time(LONG)] {
            let build = |name: &str| {
                Breaker::builder(&store, backend.namespace(), &format!("{window:?}"))
                    .window(window)
                    .min_calls(4)
                    .distinct_instances(2)
                    .instance(name)
                    .refresh(LONG)
                    .open_for(LONG)
                    .open()
            };
            let (bad, good) = (build("bad").await?, build("good").await?);
            fail(&bad, 30).await;
            bad.flush().await?;
            succeed(&good, 2).await;
            good.flush().await?;
            assert_eq!((bad.state(), good.state()), (State::Closed, State::Closed));
            // A second machine also sees it.
            fail(&good, 1).await;
            good.flush().await?;
            assert!(turns(&good, State::Open).await, "{window:?}");
            assert!(turns(&bad, State::Open).await, "{window:?}");
        }
        Ok(())
    }

    async fn slow_calls_open_it_and_a_slow_probe_has_failed(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let breaker = instance(&store, backend)
            .slow_calls(Duration::from_millis(20), 0.5)
            .min_calls(2)
            .open()
            .await?;
        for _ in 0..2 {
            let Admitted::Yes(admission) = breaker.try_admit().await else { panic!() };
            tokio::time::sleep(Duration::from_millis(20)).await;
            admission.succeeded().await;
        }
        assert!(turns(&breaker, State::Open).await);
        let slow = first_probe(&breaker).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        slow.succeeded().await;
        assert_eq!(breaker.state(), State::Open);
        Ok(())
    }

    async fn what_is_not_a_failure_and_what_is_too_old_do_not_count(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let span = Duration::from_millis(400);
        let breaker = instance(&store, backend).window(CallWindow::Time(span)).open_for(LONG).open().await?;
        for _ in 0..20 {
            let result: Result<(), _> = breaker.call_if(async || Err("not found"), |_| false).await;
            assert_eq!(result, Err(CallError::Failed("not found")));
        }
        breaker.flush().await?;
        assert_eq!(breaker.state(), State::Closed);
        // Abandoned calls count neither way.
        for _ in 0..20 {
            drop(breaker.try_admit().await);
        }
        let pass = async || {
            match backend.is_embedded() {
                true => store.advance(span * 11 / 10).unwrap(),
                false => tokio::time::sleep(span * 11 / 10).await,
            }
        };
        pass().await;
        fail(&breaker, 3).await;
        breaker.flush().await?;
        pass().await;
        // Three and three, but never four in the window.
        fail(&breaker, 3).await;
        breaker.flush().await?;
        assert_eq!(breaker.state(), State::Closed);
        Ok(())
    }

    async fn results_of_an_older_generation_are_dropped(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let breaker = instance(&store, backend).probes(1).open().await?;
        let mut old = Vec::new();
        for _ in 0..20 {
            let Admitted::Yes(admission) = breaker.try_admit().await else { panic!() };
            old.push(admission);
        }
        fail(&breaker, 4).await;
        assert!(turns(&breaker, State::Open).await);
        let late = first_probe(&breaker).await;
        // A result of the closed time says nothing about the probe's.
        old.pop().unwrap().failed().await;
        late.succeeded().await;
        assert!(turns(&breaker, State::Closed).await);
        for admission in old {
            admission.failed().await;
        }
        breaker.flush().await?;
        assert_eq!(breaker.state(), State::Closed);
        Ok(())
    }

    async fn at_most_k_probes_are_under_way_over_all_instances(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let lease = Duration::from_millis(600);
        let mut instances = Vec::new();
        // Long enough that no lease ends on a busy machine; one instance has a short one.
        let build = async |lease| instance(&store, backend).lease(lease).open_for(Duration::from_millis(50)).open().await;
        for _ in 0..4 {
            instances.push(build(SOON * 4).await?);
        }
        let short = build(lease).await?;
        fail(&instances[0], 4).await;
        for breaker in &instances {
            assert!(turns(breaker, State::Open).await);
        }
        drop(first_probe(&instances[0]).await);
        store.settle().await;
        // 200 clients at once.
        let clients = instances.iter().flat_map(|breaker| (0..50).map(move |_| probe(breaker)));
        let mut probes: Vec<Admission> = futures_util::future::join_all(clients).await.into_iter().flatten().collect();
        assert!(probes.len() <= 3, "{} probes at once", probes.len());
        let full = eventually(SOON, async || {
            for breaker in &instances {
                probes.extend(probe(breaker).await);
            }
            assert!(probes.len() <= 3);
            probes.len() == 3
        });
        assert!(full.await);
        // One that is dropped frees its place.
        drop(probes.pop());
        store.settle().await;
        probes.push(first_probe(&short).await);
        // One that is never heard of again does so when its lease ends, and its result then counts no more.
        let lost = probes.pop().unwrap();
        drop(probes);
        store.settle().await;
        let mut held = Vec::new();
        let freed = eventually(SOON, async || {
            held.clear();
            store.settle().await;
            for breaker in &instances[..3] {
                held.extend(probe(breaker).await);
            }
            held.len() == 3
        });
        assert!(freed.await, "the place of a lost probe stayed taken");
        lost.failed().await;
        assert_eq!(instances[1].state(), State::HalfOpen);
        for probe in held {
            probe.succeeded().await;
        }
        assert!(turns(&instances[2], State::Closed).await);
        Ok(())
    }

}

matrix! {
    processes:
    async fn clients_of_four_processes_make_three_probes_at_once_at_most(backend: &Backend) -> anyhow::Result<()> {
        let clients = scale(50, "BREAKER_CLIENTS");
        let rounds = scale(3, "BREAKER_ROUNDS");
        // So long that a busy machine ends no probe's lease under it; only those that are killed have a short one.
        let (long, lease) = (SOON * 2, Duration::from_millis(700));
        let build = async |store: &Store, lease| instance(store, backend).lease(lease).refresh(Duration::from_millis(200)).open().await;
        let key = redstart::key::Keys::new(backend.namespace(), "test")?.entity("out")?;
        let key = key.key();
        if let Some(role) = child::role() {
            let store = Store::connect(backend.url()).await?;
            let breaker = build(&store, if role == "dies" { lease } else { long }).await?;
            if role == "dies" {
                // Takes a place and is killed with it.
                std::mem::forget(first_probe(&breaker).await);
                child::say("probing");
                child::hear();
                return Ok(());
            }
            child::say("ready");
            child::hear();
            // Only who knows that it is open has something to probe.
            assert!(eventually(SOON, async || breaker.state() != State::Closed).await);
            child::say("open");
            child::hear();
            child::say(storm(&store, &breaker, key, clients).await?);
            return Ok(());
        }
        let store = Store::connect(backend.url()).await?;
        let breaker = build(&store, long).await?;
        let mut worst = 0;
        for _ in 0..rounds {
            let mut children = Vec::new();
            for _ in 0..4 {
                children.push(Child::of(backend.test()).namespace(backend.namespace()).spawn()?);
            }
            for child in &mut children {
                assert_eq!(child.line().await?, "ready");
            }
            fail(&breaker, 4).await;
            assert!(turns(&breaker, State::Open).await);
            for child in &mut children {
                child.tell("look")?;
                assert_eq!(child.line().await?, "open");
            }
            for child in &mut children {
                child.tell("go")?;
            }
            let mut most = 0;
            for child in &mut children {
                most = most.max(child.line().await?.parse::<i64>()?);
            }
            assert!((1..=3).contains(&most), "{most} at once");
            worst = worst.max(most);
            assert!(turns(&breaker, State::Closed).await);
        }
        // A killed probe's place is free again when its lease ends.
        fail(&breaker, 4).await;
        assert!(turns(&breaker, State::Open).await);
        let mut killed = Vec::new();
        for _ in 0..3 {
            let mut child = Child::of(backend.test()).role("dies").namespace(backend.namespace()).spawn()?;
            assert_eq!(child.line().await?, "probing");
            killed.push(child);
        }
        for child in &mut killed {
            child.kill9();
        }
        // All places are taken, until the leases end.
        let began = tokio::time::Instant::now();
        drop(first_probe(&breaker).await);
        let took = began.elapsed();
        // Far more than the lease, for a busy machine; and far less than a place that stays taken.
        assert!(took < lease + Duration::from_secs(10), "{took:?}");
        figure(format!(
            "{}: {} clients, {rounds} rounds, {worst} probes at once at most, a killed probe's place free after {took:?} (lease {lease:?})",
            backend.test(), 4 * clients
        ));
        Ok(())
    }
}

/// Clients that call until the circuit is closed; the most probes that were seen at work at once.
async fn storm(
    store: &Store,
    breaker: &Breaker,
    key: &redstart::key::Key,
    clients: u64,
) -> anyhow::Result<i64> {
    let client = async || -> anyhow::Result<i64> {
        let mut most = 0;
        let began = tokio::time::Instant::now();
        while began.elapsed() < SOON {
            match breaker.try_admit().await {
                Admitted::Yes(admission) if admission.is_probe() => {
                    // Counted down before the place is given up, so the count is never above the truth.
                    let now: i64 = store.query(redis::cmd("INCR").arg(key)).await?;
                    most = most.max(now);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    store.query::<()>(redis::cmd("DECR").arg(key)).await?;
                    admission.succeeded().await;
                }
                Admitted::Yes(_) => return Ok(most),
                Admitted::No { retry_after } => {
                    tokio::time::sleep(retry_after.min(Duration::from_millis(20))).await;
                }
            }
        }
        anyhow::bail!("the circuit did not close")
    };
    let most = futures_util::future::try_join_all((0..clients).map(|_| client())).await?;
    // Who made no probe saw none; somebody did.
    Ok(most.into_iter().max().unwrap_or(0).max(1))
}

#[tokio::test]
async fn closed_calls_make_no_round_trip() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let breaker = Breaker::builder(&store, "quiet", "payments")
        .refresh(LONG)
        .open()
        .await?;
    let tap = MonitorTap::start(&server).await?;
    let began = tokio::time::Instant::now();
    succeed(&breaker, 2000).await;
    let seconds = began.elapsed().as_secs();
    let seen = tap.round_trips("quiet").await?;
    // Only the background's reports, at most one per second, and its first look.
    assert!(
        seen.len() as u64 <= seconds + 4,
        "{} round trips in {seconds} s: {seen:?}",
        seen.len()
    );
    Ok(())
}

#[tokio::test]
async fn without_the_store_an_instance_breaks_alone_until_the_store_returns() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(200))
        .connect()
        .await?;
    let build = |name: &str| {
        Breaker::builder(&store, "alone", name)
            .window(CallWindow::Count(10))
            .min_calls(4)
            .open_for(Duration::from_millis(300))
            .probes(1)
            .open()
    };
    let breaker = build("payments").await?;
    succeed(&breaker, 2).await;
    server.kill9();
    // Nobody answers reports; calls go on, and failures open the local circuit.
    assert!(
        eventually(SOON, async || {
            let _: Result<(), _> = breaker.call(async || Err("down")).await;
            breaker.state() == State::Open
        })
        .await
    );
    // It is probed and closed without the store.
    assert!(
        eventually(SOON, async || {
            breaker.call(async || Ok::<_, &str>(())).await.is_ok()
                && breaker.state() == State::Closed
        })
        .await
    );
    // Made while the store is down, it starts closed.
    let born = build("mail").await?;
    succeed(&born, 3).await;

    server.restart().await?;
    // The shared circuit is in force again: what one instance sees, another does.
    let other = build("payments").await?;
    assert!(
        eventually(SOON, async || {
            let _: Result<(), _> = breaker.call(async || Err("down")).await;
            other.state() == State::Open
        })
        .await
    );
    Ok(())
}

#[tokio::test]
async fn while_the_store_refuses_writes_an_instance_breaks_alone_and_stays_open()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    for (name, setting, refusing, usual) in [
        ("replicas", "min-replicas-to-write", "3", "0"),
        ("memory", "maxmemory", "1", "0"),
    ] {
        let set = async |value: &str| {
            let mut cmd = redis::cmd("CONFIG");
            cmd.arg("SET").arg(setting).arg(value);
            store.query::<()>(&cmd).await
        };
        let breaker = Breaker::builder(&store, "refused", name)
            .window(CallWindow::Count(10))
            .min_calls(4)
            .open_for(Duration::from_secs(300))
            .refresh(Duration::from_millis(100))
            .open()
            .await?;
        succeed(&breaker, 2).await;
        breaker.flush().await?;
        set(refusing).await?;
        assert!(
            eventually(SOON, async || {
                let _: Result<(), _> = breaker.call(async || Err("down")).await;
                breaker.state() == State::Open
            })
            .await
        );
        // It asks a dozen times meanwhile, and is answered.
        let mut changes = breaker.changes();
        let changed = tokio::time::timeout(Duration::from_millis(2500), changes.next());
        assert!(changed.await.is_err(), "{name}: {:?}", breaker.state());
        assert_eq!(breaker.state(), State::Open);
        // With writes the shared circuit is back, which nobody opened.
        set(usual).await?;
        assert!(eventually(SOON, async || breaker.state() == State::Closed).await);
    }
    Ok(())
}

/// Calls that were admitted while the store was there count when it is not.
#[tokio::test]
async fn what_an_instance_saw_before_it_was_alone_counts() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let open = async |name: &str| {
        Breaker::builder(&store, "before", name)
            .window(CallWindow::Count(10))
            .min_calls(4)
            .open_for(Duration::from_secs(300))
            .open()
            .await
    };
    let (late, early) = (open("late").await?, open("early").await?);
    let mut admitted = Vec::new();
    for _ in 0..4 {
        let Admitted::Yes(admission) = late.try_admit().await else {
            panic!("it is closed")
        };
        admitted.push(admission);
    }
    let mut refuse = redis::cmd("CONFIG");
    refuse.arg("SET").arg("min-replicas-to-write").arg(3);
    store.query::<()>(&refuse).await?;
    // Alone from here on.
    let _: Result<(), _> = late.call(async || Err("down")).await;
    assert!(late.flush().await.is_err());
    assert_eq!(late.state(), State::Closed);
    for admission in admitted {
        admission.failed().await;
    }
    assert_eq!(late.state(), State::Open);
    // Enough was seen before the first report was refused.
    for _ in 0..4 {
        let _: Result<(), _> = early.call(async || Err("down")).await;
    }
    let _: Result<(), _> = early.flush().await;
    assert!(eventually(SOON, async || early.state() == State::Open).await);
    Ok(())
}

#[tokio::test]
async fn bad_input_is_refused_before_the_network() -> anyhow::Result<()> {
    let store = Store::builder("redis://127.0.0.1:1")
        .lazy()
        .connect()
        .await?;
    let new = || Breaker::builder(&store, "a", "b");
    let bad = [
        Breaker::builder(&store, "", "b"),
        Breaker::builder(&store, "a", ""),
        new().window(CallWindow::Count(0)),
        new().window(CallWindow::Count(5)).min_calls(6),
        new().window(CallWindow::Count(1_000_000)),
        new().window(CallWindow::Time(Duration::ZERO)),
        new().failure_rate(0.0),
        new().failure_rate(1.1),
        new().failure_rate(f64::NAN),
        new().slow_calls(Duration::ZERO, 0.5),
        new().slow_calls(SOON, -1.0),
        new().min_calls(0),
        new().open_for(Duration::ZERO),
        new().probes(0),
        new().lease(Duration::ZERO),
        new().distinct_instances(0),
        new().instance(""),
        new().refresh(Duration::ZERO),
    ];
    for builder in bad {
        let text = format!("{builder:?}");
        assert!(builder.open().await.unwrap_err().is_config(), "{text}");
    }
    Ok(())
}

matrix! {
    async fn an_operator_opens_and_resets_it_for_all_and_changes_are_told(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let one = instance(&store, backend).probes(1).open().await?;
        let two = instance(&store, backend).probes(1).open().await?;
        let mut changes = two.changes();
        one.force_open(LONG).await?;
        assert_eq!(one.state(), State::Open);
        assert_eq!(changes.next().await, Some(State::Open));
        let refused = two.call(async || Ok::<_, &str>(())).await;
        assert!(matches!(refused, Err(CallError::Open { retry_after }) if retry_after > SOON));
        two.reset().await?;
        assert_eq!(changes.next().await, Some(State::Closed));
        assert!(turns(&one, State::Closed).await);
        succeed(&one, 3).await;
        // However long, it does not panic, and the circuit can be reset.
        one.force_open(Duration::MAX).await?;
        assert_eq!(changes.next().await, Some(State::Open));
        one.reset().await?;
        assert_eq!(changes.next().await, Some(State::Closed));
        drop((one, two));
        assert_eq!(changes.next().await, None);
        Ok(())
    }

    async fn a_window_counts_the_last_calls_exactly(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        // Half of the last ten: reports of several sizes from two instances push old calls out, also half a report.
        let build = |name: &str| instance(&store, backend).window(CallWindow::Count(10)).min_calls(10).open_for(LONG).instance(name).open();
        let (one, two) = (build("one").await?, build("two").await?);
        let mut window = std::collections::VecDeque::new();
        for step in 0..40usize {
            let breaker = if step % 3 == 0 { &one } else { &two };
            let (good, bad) = ((step * 7) % 4 + 1, usize::from(step % 5 == 0) * (step % 3));
            succeed(breaker, good).await;
            fail(breaker, bad).await;
            breaker.flush().await?;
            window.extend((0..good).map(|_| false).chain((0..bad).map(|_| true)));
            while window.len() > 10 { window.pop_front(); }
            let failed = window.iter().filter(|failed| **failed).count();
            assert!(failed < 5, "the test never reaches the threshold here");
            assert_eq!(breaker.state(), State::Closed, "step {step}: {window:?}");
        }
        let failed = window.iter().filter(|failed| **failed).count();
        // One failure short of the threshold, and then one more. Old failures leave only as good calls leave before.
        succeed(&one, 10).await;
        one.flush().await?;
        fail(&two, 4).await;
        two.flush().await?;
        assert_eq!(two.state(), State::Closed, "{failed}");
        fail(&two, 1).await;
        two.flush().await?;
        assert_eq!(two.state(), State::Open);
        Ok(())
    }
}

#[tokio::test]
async fn a_window_whose_calls_were_evicted_starts_over() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let breaker = Breaker::builder(&store, "shop", "payments")
        .window(CallWindow::Count(10))
        .min_calls(10)
        .open_for(LONG)
        .open()
        .await?;
    succeed(&breaker, 10).await;
    breaker.flush().await?;
    let keys: Vec<String> = store.query(redis::cmd("KEYS").arg("*")).await?;
    let mut evicted = 0;
    for key in keys {
        let kind: String = store.query(redis::cmd("TYPE").arg(&key)).await?;
        if kind == "list" {
            evicted += store.query::<u64>(redis::cmd("DEL").arg(&key)).await?;
        }
    }
    assert_eq!(evicted, 1, "the list of the last calls");
    fail(&breaker, 10).await;
    breaker.flush().await?;
    assert_eq!(breaker.state(), State::Open, "all of the last ten failed");
    Ok(())
}

#[tokio::test]
async fn a_report_costs_what_is_new_and_failures_are_reported_together() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    for window in [CallWindow::Count(1000), CallWindow::Time(LONG)] {
        let name = match window {
            CallWindow::Count(_) => "count",
            CallWindow::Time(_) => "time",
        };
        // A window full of reports of 400 instances, one call each, with trouble below the threshold.
        for n in 0..400 {
            let filler = Breaker::builder(&store, "cost", name)
                .window(window)
                .instance(&format!("i{n}"))
                .open_for(LONG)
                .open()
                .await?;
            match n % 4 {
                0 => fail(&filler, 1).await,
                _ => succeed(&filler, 2).await,
            }
            filler.flush().await?;
        }
        let breaker = Breaker::builder(&store, "cost", name)
            .window(window)
            .refresh(LONG)
            .open_for(LONG)
            .open()
            .await?;
        // The first look and the first report of the background are over.
        succeed(&breaker, 1).await;
        breaker.flush().await?;
        let tap = MonitorTap::start(&server).await?;
        succeed(&breaker, 1).await;
        breaker.flush().await?;
        let commands = tap.commands().await?;
        let inside = commands.iter().filter(|seen| seen.is_from_script()).count();
        assert!(inside <= 20, "{name}: {inside} commands for one outcome");
        let whole = |name: &str| name == "LRANGE" || name == "HVALS" || name == "ZRANGE";
        assert!(!commands.iter().any(|seen| whole(&seen.name())), "{name}");
        // 200 failures, one after the other, go out in few reports.
        tap.clear().await?;
        let began = tokio::time::Instant::now();
        succeed(&breaker, 1000).await;
        for _ in 0..200 {
            fail(&breaker, 1).await;
            tokio::task::yield_now().await;
        }
        breaker.flush().await?;
        let reports = tap.round_trips("cost").await?.len();
        let at_most = 10 + began.elapsed().as_millis() / 50;
        assert!(
            reports as u128 <= at_most,
            "{name}: {reports} reports, at most {at_most}"
        );
    }
    Ok(())
}

/// An open breaker with one place for probes, behind a proxy and beside it. Its lease is so long that only the end of a probe
/// frees the place.
async fn one_place(
    server: &Server,
    proxy: &redstart_testkit::Proxy,
) -> anyhow::Result<(Breaker, Breaker)> {
    let build = async |url: &str| {
        let store = Store::connect(url).await?;
        Breaker::builder(&store, "place", "payments")
            .window(CallWindow::Count(20))
            .min_calls(4)
            .open_for(Duration::from_millis(50))
            .probes(1)
            .lease(LONG)
            .open()
            .await
    };
    let (behind, beside) = (build(proxy.url()).await?, build(&server.url()).await?);
    fail(&beside, 4).await;
    beside.flush().await?;
    assert!(turns(&behind, State::Open).await);
    Ok((behind, beside))
}

#[tokio::test]
async fn a_cancelled_probe_gives_its_place_back() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = redstart_testkit::Proxy::start(&server).await?;
    let (cancels, other) = one_place(&server, &proxy).await?;
    let direct = Store::connect(&server.url()).await?;
    proxy.delay_replies(Duration::from_millis(300));
    let taken = eventually(SOON, async || {
        // Dropped while the answer is on its way.
        let wait = Duration::from_millis(100);
        drop(tokio::time::timeout(wait, cancels.try_admit()).await);
        direct
            .scan("place:*:probes")
            .await
            .is_ok_and(|keys| !keys.is_empty())
    });
    assert!(taken.await, "no place was taken");
    drop(first_probe(&other).await);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_is_dropped_while_its_result_is_on_its_way_gives_its_place_back()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = redstart_testkit::Proxy::start(&server).await?;
    let (drops, other) = one_place(&server, &proxy).await?;
    let admission = first_probe(&drops).await;
    // The result has to wait for a new connection, which takes its time.
    proxy.delay_replies(Duration::from_millis(300));
    proxy.cut().await?;
    let wait = Duration::from_millis(50);
    drop(tokio::time::timeout(wait, admission.succeeded()).await);
    drop(first_probe(&other).await);
    Ok(())
}
