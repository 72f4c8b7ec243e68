//! What a run says about itself: its limit, its cost and its round trips.

use std::{sync::Arc, time::Duration};

use redstart::Store;
use redstart_load::{Length, Live, Pace, Settings, find, namespace, run_on};
use redstart_testkit::{Cluster, Kind, Sentinel, Server};

fn settings(operations: u64) -> Settings {
    Settings {
        pace: Pace::Closed { clients: 8 },
        length: Length::Operations(operations),
        keys: 8,
        idle: Duration::ZERO,
        ..Settings::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capped_closed_loop_names_the_cap() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let settings = Settings {
        max_rate: Some(200.0),
        ..settings(100)
    };
    let live = Arc::new(Live::new());
    let get = find("get").expect("a pattern");
    let report = run_on(&store, &namespace(), get, &settings, &live).await?;
    assert!(report.ops_per_second < 250.0, "{}", report.ops_per_second);
    // On a machine too busy even for that, something else is the limit.
    if report.ops_per_second >= 190.0 {
        assert_eq!(report.limited_by, "cap");
    }
    Ok(())
}

/// Turns are given out to all clients at once, and most of them are for the time after the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capped_closed_loop_ends_in_time() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let settings = Settings {
        pace: Pace::Closed { clients: 64 },
        length: Length::Time(Duration::from_secs(1)),
        max_rate: Some(20.0),
        ..settings(1)
    };
    let live = Arc::new(Live::new());
    let get = find("get").expect("a pattern");
    let report = run_on(&store, &namespace(), get, &settings, &live).await?;
    // Far from the 3.2 seconds that 64 turns take.
    assert!((1.0..2.0).contains(&report.seconds), "{}", report.seconds);
    assert!(report.operations >= 17, "{}", report.operations);
    // The last one of the twenty may be too late on a busy machine.
    if report.operations == 20 && report.ops_per_second >= 19.0 {
        assert_eq!(report.limited_by, "cap");
    }
    Ok(())
}

/// The operations that count the round trips are under the cap too, and a run that waits for its turn can be stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capped_run_ends_as_soon_as_it_is_stopped() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    for (pace, keys) in [
        (Pace::Closed { clients: 400 }, 1),
        (
            Pace::Open {
                rate: 4.0,
                in_flight: 400,
            },
            1,
        ),
        // It is stopped while it is prepared.
        (Pace::Closed { clients: 400 }, 500),
    ] {
        let settings = Settings {
            pace,
            length: Length::Operations(1000),
            max_rate: Some(4.0),
            keys,
            ..settings(1)
        };
        let live = Arc::new(Live::new());
        let get = find("get").expect("a pattern");
        let namespace = namespace();
        let begun = tokio::time::Instant::now();
        let run = run_on(&store, &namespace, get, &settings, &live);
        let stop = async {
            let patience = Duration::from_secs(60);
            // Twenty of the calibration, and one of the load.
            while keys == 1 && live.progress().operations == 0 && begun.elapsed() < patience {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let (prepared, begun) = (begun.elapsed(), tokio::time::Instant::now());
            live.stop("enough");
            (prepared, begun)
        };
        let (report, (prepared, stopped)) = tokio::join!(run, stop);
        let (report, took) = (report?, stopped.elapsed());
        assert_eq!(report.stopped.as_deref(), Some("enough"));
        // The turns of all clients take a hundred seconds, and all operations four minutes.
        assert!(took < Duration::from_secs(30), "{pace:?}: {took:?}");
        // One write, twenty operations and the first one of the load at four a second, and a burst of a fiftieth of one.
        let least = Duration::from_secs_f64(21.0 / 4.0 - 0.02);
        assert!(keys > 1 || prepared >= least, "{pace:?}: {prepared:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_of_a_run_is_one_of_the_five_of_redlock() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let live = Arc::new(Live::new());
    let redlock = find("redlock").expect("a pattern");
    let report = run_on(&store, &namespace(), redlock, &settings(200), &live).await?;
    assert!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    // It is asked for the lock, may be told a higher token, and is given the lock back.
    let trips = report.round_trips_per_op.expect("a server");
    assert!((1.9..4.0).contains(&trips), "{trips}");
    assert!(report.server_us_per_op.is_some_and(|cost| cost > 0.0));
    let calls = |command: &str| {
        let cost = report.commands.iter().find(|cost| cost.command == command);
        cost.map_or(0.0, |cost| cost.calls_per_op)
    };
    assert!(calls("evalsha") >= 1.9, "{:?}", report.commands);
    // The others are in this process, and have decided before the server has answered.
    let of = report.latency_of.as_deref().unwrap_or_default();
    assert!(of.contains("engines of this process"), "{of:?}");
    let mutex = find("mutex").expect("a pattern");
    let live = Arc::new(Live::new());
    let report = run_on(&store, &namespace(), mutex, &settings(50), &live).await?;
    assert_eq!(report.latency_of, None);
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_round_trips_of_a_cache_are_those_of_hits() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let settings = Settings {
        writes: Some(0.0),
        ..settings(50)
    };
    let live = Arc::new(Live::new());
    let cache = find("cache_aside").expect("a pattern");
    let report = run_on(&store, &namespace(), cache, &settings, &live).await?;
    let trips = report.round_trips_per_op.expect("a server");
    assert!((0.9..1.6).contains(&trips), "{trips}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_stops_at_the_cap_on_memory_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let settings = Settings {
        length: Length::Time(Duration::from_secs(120)),
        keys: 1_000_000,
        payload: 10_000,
        max_memory: 4 << 20,
        ..settings(1)
    };
    let live = Arc::new(Live::new());
    let cache = find("cache_aside").expect("a pattern");
    let report = run_on(&store, &namespace(), cache, &settings, &live).await?;
    let why = report.stopped.as_deref().unwrap_or_default();
    assert!(why.contains("memory"), "{why:?}");
    assert!(report.seconds < 60.0, "{}", report.seconds);
    assert!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

/// The cap on memory is one on growth: a server that does not tell its memory for a moment has not grown from nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_tell_its_memory_is_watched_from_when_it_does() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    server
        .command(&["SET", "somebody-elses", &"x".repeat(8 << 20)])
        .await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let settings = Settings {
        length: Length::Time(Duration::from_secs(2)),
        max_memory: 4 << 20,
        ..settings(1)
    };
    let get = find("get").expect("a pattern");
    for tells in [true, false] {
        server
            .command(&["ACL", "SETUSER", "default", "-info"])
            .await?;
        let (live, namespace) = (Arc::new(Live::new()), namespace());
        let run = run_on(&store, &namespace, get, &settings, &live);
        let allow = async {
            while tells && live.progress().operations < 100 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            match tells {
                true => server
                    .command(&["ACL", "SETUSER", "default", "+info"])
                    .await
                    .map(|_| ()),
                false => Ok(()),
            }
        };
        let (report, allowed) = tokio::join!(run, allow);
        allowed?;
        let report = report?;
        assert_eq!((report.stopped, report.memory_unwatched), (None, !tells));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_behind_sentinels_goes_to_the_master() -> anyhow::Result<()> {
    let sentinel = Sentinel::start(Kind::Redis).await?;
    let store = Store::connect(&sentinel.url()).await?;
    let master = sentinel.server(sentinel.master().await?);
    let live = Arc::new(Live::new());
    let counter = find("counter").expect("a pattern");
    let report = run_on(&store, &namespace(), counter, &settings(200), &live).await?;
    assert!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    assert!(report.server_us_per_op.is_some_and(|cost| cost > 0.0));
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    // It is the master that was under load, and that is empty afterwards.
    let calls = master.info("cmdstat_evalsha").await?;
    assert!(calls.contains("calls="), "{calls:?}");
    assert_eq!(master.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

/// What a run says of a server that fails for a part of it, and some operations with it.
async fn while_it_fails(
    pattern: &str,
    timeout: &str,
    fail: impl AsyncFnOnce(&Server) -> anyhow::Result<()>,
) -> anyhow::Result<redstart_load::Report> {
    let report = under_a_fault(pattern, timeout, fail).await?;
    assert!(!report.errors.is_empty() && report.failed_p50_us.is_some());
    Ok(report)
}

/// What a run says of a server to which something happens.
async fn under_a_fault(
    pattern: &str,
    timeout: &str,
    fail: impl AsyncFnOnce(&Server) -> anyhow::Result<()>,
) -> anyhow::Result<redstart_load::Report> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout={timeout}", server.url())).await?;
    let settings = Settings {
        length: Length::Time(Duration::from_secs(2)),
        ..settings(1)
    };
    let live = Arc::new(Live::new());
    let (pattern, namespace) = (find(pattern).expect("a pattern"), namespace());
    let run = run_on(&store, &namespace, pattern, &settings, &live);
    let fault = async {
        while live.progress().operations < 100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fail(&server).await
    };
    let (report, failed) = tokio::join!(run, fault);
    failed?;
    let (report, progress) = (report?, live.progress());
    assert_eq!(report.errors.values().sum::<u64>(), progress.errors);
    // What succeeded is counted apart.
    let succeeded = (progress.operations - progress.errors) as f64;
    assert!((report.ops_per_second * report.seconds - succeeded).abs() < 1.0);
    Ok(report)
}

/// Patterns whose model follows each message, or whose consumers take without a token. What was lost with a reply may or may not
/// have happened: neither may be held against a pattern, and consumers go on.
const LOSES_REPLIES: [&str; 6] = [
    "places",
    "event_stream",
    "reliable_list",
    "notification",
    "priority_queue",
    "job_queue",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hung_breaks_no_promise() -> anyhow::Result<()> {
    for pattern in LOSES_REPLIES {
        // Long enough for a busy machine: what is checked afterwards must not fail.
        let report = while_it_fails(pattern, "1s", async |server: &Server| {
            server.pause()?;
            tokio::time::sleep(Duration::from_millis(1500)).await;
            server.resume()
        })
        .await?;
        assert_eq!(report.broken, None, "{pattern}: {:?}", report.errors);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_break_no_promise() -> anyhow::Result<()> {
    for pattern in LOSES_REPLIES {
        let report = under_a_fault(pattern, "30s", async |server: &Server| {
            for _ in 0..10 {
                server
                    .command(&["CLIENT", "KILL", "TYPE", "normal"])
                    .await?;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        })
        .await?;
        assert_eq!(report.broken, None, "{pattern}: {:?}", report.errors);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_a_hung_server_are_counted_as_timeouts() -> anyhow::Result<()> {
    let report = while_it_fails("get", "100ms", async |server: &Server| {
        server.pause()?;
        tokio::time::sleep(Duration::from_millis(600)).await;
        server.resume()
    })
    .await?;
    let timeouts = report.errors.get("timeout").copied().unwrap_or(0);
    assert!(timeouts > 0, "{:?}", report.errors);
    // The latency of those that failed is their timeout and not part of the others'.
    assert!(
        report.failed_p99_us.is_some_and(|p99| p99 > 50_000.0),
        "{:?}",
        report.failed_p99_us
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_a_full_server_are_counted_as_unavailable() -> anyhow::Result<()> {
    let report = while_it_fails("counter", "30s", async |server: &Server| {
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
        tokio::time::sleep(Duration::from_millis(600)).await;
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).await?;
        Ok(())
    })
    .await?;
    assert_eq!(
        report.errors.keys().collect::<Vec<_>>(),
        ["unavailable"],
        "{:?}",
        report.errors
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_arrives_on_the_server_in_its_size() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let mut reports = Vec::new();
    for payload in [100, 20_000] {
        let settings = Settings {
            payload,
            ..settings(200)
        };
        let live = Arc::new(Live::new());
        let get = find("get").expect("a pattern");
        reports.push(run_on(&store, &namespace(), get, &settings, &live).await?);
    }
    let size = |report: &redstart_load::Report| report.bytes_per_entity.unwrap_or(0.0);
    let moved = |report: &redstart_load::Report| report.network_bytes_per_op.unwrap_or(0.0);
    let (small, large) = (&reports[0], &reports[1]);
    assert!((100.0..1000.0).contains(&size(small)), "{}", size(small));
    assert!(
        (20_000.0..30_000.0).contains(&size(large)),
        "{}",
        size(large)
    );
    assert!(
        moved(small) < 10_000.0 && moved(large) > 20_000.0,
        "{} {}",
        moved(small),
        moved(large)
    );
    Ok(())
}

/// What one entity takes times how many there are may be far beyond the cap on memory before the load begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cap_on_memory_holds_while_a_run_is_prepared() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let most = 4 << 20;
    for pattern in ["get", "session"] {
        let settings = Settings {
            keys: 1000,
            payload: 100_000,
            max_memory: most,
            ..settings(100)
        };
        server.command(&["CONFIG", "RESETSTAT"]).await?;
        let live = Arc::new(Live::new());
        let workload = find(pattern).expect("a pattern");
        let report = run_on(&store, &namespace(), workload, &settings, &live).await?;
        let why = report.stopped.as_deref().unwrap_or_default();
        assert!(why.contains("memory"), "{pattern}: {why:?}");
        assert!(!report.held && report.broken.is_none(), "{pattern}");
        assert_eq!(report.operations, 0, "{pattern}");
        // Everything that was sent, names of keys and removal included.
        let sent = server.info("total_net_input_bytes").await?;
        let sent: u64 = sent.trim().parse()?;
        assert!(sent < 2 * most, "{pattern}: {sent}");
        assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0, "{pattern}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cap_on_the_rate_holds_while_a_run_is_prepared() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let settings = Settings {
        keys: 60,
        max_rate: Some(200.0),
        ..settings(1)
    };
    let live = Arc::new(Live::new());
    let get = find("get").expect("a pattern");
    let begun = std::time::Instant::now();
    run_on(&store, &namespace(), get, &settings, &live).await?;
    // Sixty writes of the preparation alone; a burst of a fiftieth of a second is allowed.
    let least = Duration::from_secs_f64((60.0 - 1.0) / 200.0 - 0.02);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    Ok(())
}

/// What was due while a server did not answer is not sent all at once when it comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cap_on_the_rate_holds_after_a_stall() -> anyhow::Result<()> {
    let (cap, clients) = (500.0, 8);
    for open in [false, true] {
        let server = Server::builder(Kind::Redis).start().await?;
        let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
        let pace = match open {
            true => Pace::Open {
                rate: cap,
                in_flight: clients,
            },
            false => Pace::Closed { clients },
        };
        let settings = Settings {
            pace,
            length: Length::Time(Duration::from_secs(2)),
            max_rate: Some(cap),
            ..settings(1)
        };
        let live = Arc::new(Live::new());
        let get = find("get").expect("a pattern");
        let namespace = namespace();
        let run = run_on(&store, &namespace, get, &settings, &live);
        let stall = async {
            while live.progress().operations < 50 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            server.pause()?;
            let begun = std::time::Instant::now();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let stalled = begun.elapsed();
            server.resume()?;
            anyhow::Ok(stalled)
        };
        let (report, stalled) = tokio::join!(run, stall);
        let (report, stalled) = (report?, stalled?.as_secs_f64());
        assert!(report.held, "{:?} {:?}", report.broken, report.unchecked);
        // Twice the burst of a fiftieth of a second, at the beginning and after the stall, and what was under way.
        let most = cap * (report.seconds - stalled + 0.04) + clients as f64 + 1.0;
        assert!(
            report.operations as f64 <= most,
            "{} operations in {} s with a stall of {stalled} s, open: {open}",
            report.operations,
            report.seconds
        );
    }
    Ok(())
}

/// A pattern that keeps a model of each entity has fewer of them than were asked for, and the report has the real number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_has_the_number_of_entities_that_operations_chose_from() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    for (pattern, keys) in [
        ("mutex", 16),
        ("ring", 100),
        ("session", 2000),
        ("get", 5000),
        ("token_bucket", 5000),
        // All operations are on one queue.
        ("job_queue", 1),
    ] {
        let settings = Settings {
            keys: 5000,
            ..settings(50)
        };
        let live = Arc::new(Live::new());
        let workload = find(pattern).expect("a pattern");
        let report = run_on(&store, &namespace(), workload, &settings, &live).await?;
        assert!(report.held, "{pattern}: {:?}", report.broken);
        assert_eq!(report.keys, keys, "{pattern}");
        let json = serde_json::to_value(&report)?;
        match keys {
            5000 => assert!(json.get("keys_wanted").is_none(), "{pattern}"),
            _ => assert_eq!(json["keys_wanted"], 5000, "{pattern}"),
        }
    }
    Ok(())
}

/// A message that was never sent is missing, and its publisher knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_could_not_be_published_do_not_break_the_promise_of_a_topic()
-> anyhow::Result<()> {
    let report = while_it_fails("topic", "30s", async |server: &Server| {
        let denied = ["ACL", "SETUSER", "default", "-publish", "-spublish"];
        server.command(&denied).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let allowed = ["ACL", "SETUSER", "default", "+publish", "+spublish"];
        server.command(&allowed).await?;
        Ok(())
    })
    .await?;
    assert_eq!(report.broken, None);
    Ok(())
}

/// Patterns of every layout: what is named is what the operations went to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hottest_key_is_the_one_that_has_the_load() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    // A pattern, a part of the key, and the share that it should have: with the share of one client at the least where each
    // client has entities of its own.
    let hot = 0.8..1.0;
    let all = 1.0..1.1;
    for (pattern, part, share) in [
        ("cache_aside", "{0}", hot.clone()),
        ("token_bucket", "{e0}", hot.clone()),
        ("counter", "{e0}", hot.clone()),
        ("session", "session.web:{", hot),
        ("trail", "-0}", 0.09..1.0),
        ("graph", ":following:e", 0.09..1.0),
        ("leaderboard", "{all-time}", all.clone()),
        ("job_queue", "{tasks}", all.clone()),
        ("activity", "{app}", all.clone()),
        ("ring", "{items}", all.clone()),
        ("topic", "{goals}", all),
    ] {
        let settings = Settings {
            keys: 80,
            spread: redstart_load::Spread::Hot(0.9),
            ..settings(400)
        };
        let live = Arc::new(Live::new());
        let workload = find(pattern).expect("a pattern");
        let report = run_on(&store, &namespace(), workload, &settings, &live).await?;
        assert!(report.held, "{pattern}: {:?}", report.broken);
        let hottest = report.hottest.expect("a hottest key");
        let key = hottest.key.clone().unwrap_or_default();
        assert!(key.contains(part), "{pattern}: {hottest:?}");
        let slot = redstart::key::slot(key.as_bytes());
        assert_eq!(hottest.slot, Some(slot), "{pattern}: {hottest:?}");
        assert!(share.contains(&hottest.share), "{pattern}: {hottest:?}");
    }
    Ok(())
}

/// Clients that never wait for anything but this machine's cores are the limit, however many cores are idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_moment_to_spare_is_the_limit() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let settings = Settings {
        length: Length::Time(Duration::from_millis(500)),
        ..settings(1)
    };
    let live = Arc::new(Live::new());
    let get = find("get").expect("a pattern");
    let namespace = namespace();
    let run = run_on(&store, &namespace, get, &settings, &live);
    // Something in this process that is always busy.
    let busy = std::sync::atomic::AtomicBool::new(true);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while busy.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let report =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(run));
        busy.store(false, std::sync::atomic::Ordering::Relaxed);
        report
    })?;
    let busy = (report.client_busy, report.server_busy);
    assert!(busy.0.is_some_and(|busy| busy > 0.8), "{busy:?}");
    assert_eq!(report.limited_by, "client", "{busy:?}");
    Ok(())
}

/// Of a Cluster it is the busiest node that counts, and not the mean of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_busiest_node_of_a_cluster_is_the_one_with_the_hot_key() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let store = Store::connect(&cluster.url()).await?;
    let settings = Settings {
        // One key, and so one node; large, so that it costs much more than what the nodes tell each other.
        keys: 1,
        payload: 50_000,
        ..settings(5000)
    };
    let live = Arc::new(Live::new());
    let get = find("get").expect("a pattern");
    let report = run_on(&store, &namespace(), get, &settings, &live).await?;
    assert!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    let busiest = report.server_busy.expect("servers tell");
    let all = report.server_us_per_op.expect("servers tell") * report.operations as f64;
    let all = all / report.seconds / 1e6;
    // The mean of three nodes is a third.
    assert!(busiest > 0.45 * all, "{busiest} of {all}");
    Ok(())
}
