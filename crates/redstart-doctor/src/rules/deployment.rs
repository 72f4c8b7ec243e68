//! Deployments that are in order, as programs and libraries make them: no rule is sure of anything about them.

use crate::{
    observation::{
        ConsumerFacts, GroupFacts, KeyFact, Kind, Later, Observations, Shape, StreamFacts,
    },
    rules::world::World,
    trace::Trace,
};

/// What MONITOR shows, of nothing else is known.
fn log(lines: &[&[u8]]) -> World {
    let mut trace = Trace::default();
    for (i, line) in lines.iter().enumerate() {
        let head = format!("{:.2} [0 ", 1_700_000_000.0 + i as f64 / 100.0);
        trace.feed(&[head.as_bytes(), line].concat());
    }
    let mut facts = Observations {
        trace: Some(trace),
        ..Observations::default()
    };
    facts.fold();
    World(facts)
}

fn numbers(ttl: Option<u64>) -> impl Fn(u64) -> KeyFact {
    move |i| KeyFact {
        shape: Shape::Integer,
        size: 3,
        fingerprint: i + 1,
        ttl,
        ..KeyFact::default()
    }
}

#[test]
fn a_number_that_two_processes_cache_at_once() {
    // Cache::remember('users:count', 60, …) of Laravel.
    let fill = [
        "a GET users:count",
        "b GET users:count",
        "b SETEX users:count 60 5120",
        "a SETEX users:count 60 5120",
    ];
    World::new().traffic(&fill).must_be_quiet();
    // A user signed up between the two queries.
    let fill = [&fill[..3], &["a SETEX users:count 60 5121"]].concat();
    World::new().traffic(&fill).must_be_quiet();
}

#[test]
fn times_that_several_requests_write() {
    let times = |first: &str, then: &str| {
        let (first, then) = (
            format!("b SET user:7:last_seen {first}"),
            format!("a SET user:7:last_seen {then}"),
        );
        vec!["a GET user:7:last_seen".to_owned(), first, then]
    };
    for (first, then) in [
        ("1700000001", "1700000002"),
        ("1700000001000", "1700000002000"),
        ("1700000001.25", "1700000002.5"),
        ("2023-11-14T22:13:21Z", "2023-11-14T22:13:22Z"),
    ] {
        let lines: Vec<String> = std::iter::repeat_n(times(first, then), 6)
            .flatten()
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        World::new().traffic(&lines).must_be_quiet();
    }
    // One process of Node.js: all requests share its connection.
    World::new()
        .rounds(
            6,
            &[
                "a GET user:7:last_seen",
                "a GET user:7:last_seen",
                "a SET user:7:last_seen 170000000#",
                "a SET user:7:last_seen 170000000#",
            ],
        )
        .must_be_quiet();
}

#[test]
fn a_state_that_is_put_whole_and_shown() {
    World::new()
        .rounds(
            6,
            &[
                "a GET device:7:state",
                "b SET device:7:state {\"on\":#}",
                "a SET device:7:state {\"on\":1#}",
            ],
        )
        .must_be_quiet();
    // A dashboard and two writers on one connection: once in a while they meet.
    World::new()
        .traffic(&[
            "a GET plan:7",
            "a GET plan:7",
            "a SET plan:7 5",
            "a SET plan:7 6",
            "a SET plan:7 7",
            "a SET plan:7 8",
        ])
        .must_be_quiet();
}

#[test]
fn a_heart_beat_of_two_processes() {
    for rounds in [3, 40] {
        World::new()
            .rounds(
                rounds,
                &[
                    "a GET svc:mail:status",
                    "b GET svc:mail:status",
                    "b SET svc:mail:status up EX 30",
                    "a SET svc:mail:status up EX 30",
                    "a GET svc:web:status",
                    "b GET svc:web:status",
                    "b SET svc:web:status up EX 30",
                    "a SET svc:web:status up EX 30",
                ],
            )
            .must_be_quiet();
    }
}

#[test]
fn a_unique_index() {
    World::new()
        .rounds(
            9,
            &[
                "a SETNX username:ann 42",
                "a SETNX username:ann 77",
                "a DEL username:ann",
            ],
        )
        .must_be_quiet();
    World::new()
        .rounds(
            9,
            &[
                "a SETNX username:ann 42",
                "b SETNX username:ann 77",
                "a DEL username:ann",
            ],
        )
        .must_be_quiet();
}

#[test]
fn a_cache_that_is_filled_with_nx_and_invalidated_on_one_connection() {
    World::new()
        .rounds(
            9,
            &[
                "a GET product:#",
                "a SET product:# {\"id\":#} NX EX 60",
                "a GET product:#",
                "a DEL product:#",
            ],
        )
        .must_be_quiet();
    // Two processes fill it at once.
    World::new()
        .rounds(
            9,
            &[
                "a GET product:#",
                "b GET product:#",
                "a SET product:# {\"id\":#} NX EX 60",
                "b SET product:# {\"id\":#} NX EX 60",
                "a DEL product:#",
            ],
        )
        .must_be_quiet();
}

#[test]
fn flags_and_limits_of_tenants() {
    World::new()
        .keys("user:*:locked", Kind::String, |i| KeyFact {
            shape: if i % 2 == 0 {
                Shape::Integer
            } else {
                Shape::Marker
            },
            size: 1,
            fingerprint: i % 2,
            ..KeyFact::default()
        })
        .keys("tenant:*:quota", Kind::String, numbers(None))
        .keys("card:*:limit", Kind::String, numbers(None))
        .must_be_quiet();
    // A user who is locked out for a quarter of an hour.
    World::new()
        .keys("user:*:locked", Kind::String, |_| KeyFact {
            shape: Shape::Marker,
            size: 1,
            fingerprint: 1,
            ttl: Some(900_000),
            ..KeyFact::default()
        })
        .rounds(3, &["a GET tenant:#:quota", "a SET user:#:locked 1 EX 900"])
        .must_be_quiet();
}

#[test]
fn numbers_that_stay() {
    World::new()
        .keys("sessions:count:*", Kind::String, numbers(None))
        .keys("customer:*:points", Kind::String, numbers(None))
        .must_be_quiet();
}

#[test]
fn a_shortener_with_some_links_that_end() {
    World::new()
        .keys("url:*", Kind::String, |i| KeyFact {
            shape: Shape::Text,
            size: 60,
            ttl: (i % 3 != 0).then_some(86_400_000),
            ..KeyFact::default()
        })
        .must_be_quiet();
}

#[test]
fn a_large_set_that_is_asked_for_its_members() {
    let star = || {
        World::new().key(
            "followers:star",
            KeyFact {
                kind: Kind::Set,
                size: 110_000,
                memory: Some(6_600_000),
                ..KeyFact::default()
            },
        )
    };
    star().must_be_quiet();
    for line in [
        "a SISMEMBER followers:star u#",
        "a SMISMEMBER followers:star u# v#",
        "a SINTER followers:star followers:moon",
        "a SINTERSTORE both followers:star followers:moon",
        "a SINTERCARD 2 followers:star followers:moon",
        "a SSCAN followers:star 0",
        "a SRANDMEMBER followers:star 5",
    ] {
        star()
            .rounds(4, &["a SADD followers:star u#", line])
            .must_be_quiet();
    }
    star()
        .rounds(4, &["a SADD followers:star u#", "a SCARD followers:star"])
        .must_show("set-for-counting");
}

fn unheard(mut world: World) -> World {
    let trace = world.0.trace.as_mut().expect("traffic");
    for channel in trace.channels.values_mut() {
        channel.subscribers = Some(0);
    }
    world
}

#[test]
fn messages_to_users_who_are_away() {
    unheard(World::new().rounds(9, &["a PUBLISH notifications:# hello"])).must_be_quiet();
    unheard(World::new().rounds(
        9,
        &[
            "a PUBLISH notifications:7 hello",
            "a PUBLISH room:42:events joined",
        ],
    ))
    .must_be_quiet();
    // A channel for each of many names.
    let names = ('a'..='p').map(|c| format!("a PUBLISH room:{c}{c}x hi"));
    let lines: Vec<String> = names
        .flat_map(|line| std::iter::repeat_n(line, 3))
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    unheard(World::new().traffic(&lines)).must_be_quiet();
}

#[test]
fn a_worker_of_celery_without_a_job() {
    log(&[
        br#"10.0.0.5:1] "BRPOP" "emails" "emails\x06\x163" "emails\x06\x166" "emails\x06\x169" "1""#,
        br#"10.0.0.5:1] "BRPOP" "emails" "emails\x06\x163" "emails\x06\x166" "emails\x06\x169" "1""#,
    ])
    .must_be_quiet();
    log(&[
        br#"10.0.0.5:2] "SET" "unacked_mutex" "0c5d8fd1-4f9b-4f9e-8b0a-6d2fd7c1f0aa" "EX" "300" "NX""#,
        br#"10.0.0.5:2] "EVALSHA" "abc" "1" "unacked_mutex" "0c5d8fd1-4f9b-4f9e-8b0a-6d2fd7c1f0aa""#,
        br#"10.0.0.5:1] "BRPOP" "celery" "celery\x06\x163" "1""#,
    ])
    .must_be_quiet();
}

#[test]
fn a_worker_of_sidekiq_with_a_namespace() {
    let lines: Vec<&[u8]> = vec![
        br#"10.0.0.6:1] "BRPOP" "app:queue:default" "app:queue:low" "2""#,
        br#"10.0.0.6:2] "SADD" "app:processes" "web-1:17:abcdef012345""#,
        br#"10.0.0.6:1] "BRPOP" "app:queue:default" "app:queue:low" "2""#,
    ];
    log(&lines).must_be_quiet();
    let busy: [&[u8]; 3] = [
        br#"10.0.0.7:1] "SADD" "app:queues" "default""#,
        br#"10.0.0.7:1] "LPUSH" "app:queue:default" "{}""#,
        br#"10.0.0.6:2] "INCRBY" "app:stat:processed" "1""#,
    ];
    log(&[&lines[..], &busy[..]].concat()).must_be_quiet();
}

#[test]
fn sessions_of_express() {
    let get: &[u8] = br#"10.0.0.8:1] "GET" "sess:Zk3xQ9a8b7c6d5e4f3a2b1c0""#;
    let set: &[u8] = br#"10.0.0.8:1] "SET" "sess:Zk3xQ9a8b7c6d5e4f3a2b1c0" "{\"cookie\":{\"originalMaxAge\":86400000,\"path\":\"/\"},\"views\":1}" "EX" "86400""#;
    log(&[get, set, get, set, get, set, get, set]).must_be_quiet();
}

#[test]
fn replies_that_come_by_a_list() {
    let reply: [&[u8]; 3] = [
        br#"10.0.0.9:1] "RPUSH" "reply:550e8400-e29b-41d4-a716-446655440000" "{}""#,
        br#"10.0.0.9:1] "EXPIRE" "reply:550e8400-e29b-41d4-a716-446655440000" "60""#,
        br#"10.0.0.9:2] "BLPOP" "reply:550e8400-e29b-41d4-a716-446655440000" "5""#,
    ];
    log(&reply).must_be_quiet();
    log(&reply[2..]).must_be_quiet();
    // The list of a lock of python-redis-lock, by which waiters are woken.
    log(&[br#"10.0.0.9:3] "BLPOP" "lock-signal:report" "5""#]).must_be_quiet();
}

#[test]
fn a_counter_whose_every_increment_sets_its_ttl() {
    // Rack::Attack with the cache of Rails.
    World::new()
        .rounds(
            4,
            &[
                "a INCRBY rack::attack:7:ip 1",
                "a EXPIRE rack::attack:7:ip 61 NX",
            ],
        )
        .must_be_quiet();
    World::new()
        .rounds(
            4,
            &[
                "a INCR hits:7",
                "a EXPIRE hits:7 60",
                "b INCR hits:8",
                "b EXPIRE hits:8 60",
            ],
        )
        .must_be_quiet();
}

fn group(idle: u64, oldest_idle: u64, pending: u64) -> StreamFacts {
    StreamFacts {
        name: "orders".into(),
        length: 90,
        groups: vec![GroupFacts {
            name: "g".into(),
            pending: 1,
            read: Some(90),
            lag: Some(0),
            oldest_idle,
            consumers: vec![ConsumerFacts { pending, idle }],
            ..GroupFacts::default()
        }],
        ..StreamFacts::default()
    }
}

#[test]
fn a_worker_with_a_job_of_half_an_hour() {
    World::new()
        .stream(group(1_800_000, 1_800_000, 1))
        .must_be_quiet();
    // It takes others meanwhile.
    World::new()
        .stream(group(1_000, 1_800_000, 1))
        .must_be_quiet();
    World::new()
        .stream(group(1_000, 7_200_000, 1))
        .must_show("stream-dead-consumer");
    // Work waits.
    let mut behind = group(1_800_000, 1_800_000, 1);
    behind.groups[0].lag = Some(50);
    World::new()
        .stream(behind)
        .must_show("stream-dead-consumer");
}

#[test]
fn a_server_that_refused_something_once() {
    for error in ["CROSSSLOT", "OOM"] {
        World::new()
            .command("get", 5_000_000, 9_000_000)
            .node(|node| {
                node.errors.insert(error.to_owned(), 1);
            })
            .must_be_quiet();
        World::new()
            .command("get", 5_000, 9_000)
            .node(|node| {
                node.errors.insert(error.to_owned(), 50);
            })
            .must_show(match error {
                "OOM" => "out-of-memory-errors",
                _ => "crossslot-errors",
            });
    }
    World::new()
        .info("rejected_connections", "1")
        .info("total_connections_received", "90000")
        .must_be_quiet();
    World::new()
        .info("rejected_connections", "1500")
        .info("total_connections_received", "90000")
        .must_show("connection-leak");
}

#[test]
fn records_that_become_more() {
    let growing = |kind, size, by| KeyFact {
        kind,
        size,
        later: Some(Later {
            exists: true,
            size: size + by,
            ..Later::default()
        }),
        ..KeyFact::default()
    };
    for (kind, line) in [
        (Kind::Hash, "a HSET users u# 1"),
        (Kind::SortedSet, "a ZADD users # u#"),
    ] {
        for by in [1, 90] {
            World::new()
                .key("users", growing(kind, 20_000, by))
                .rounds(9, &[line])
                .must_be_quiet();
        }
        World::new()
            .key("users", growing(kind, 300_000, 90))
            .must_be_quiet();
    }
    World::new()
        .key("members", growing(Kind::Set, 20_000, 1))
        .rounds(9, &["a SADD members u#"])
        .must_be_quiet();
}

#[test]
fn caches_that_are_evicted_beside_data_that_stays() {
    for policy in ["volatile-lru", "volatile-ttl"] {
        let world = || {
            World::new()
                .info("maxmemory_policy", policy)
                .keys("cache:*", Kind::String, |_| KeyFact {
                    shape: Shape::Json,
                    size: 90,
                    ttl: Some(60_000),
                    ..KeyFact::default()
                })
                .key(
                    "jobs",
                    KeyFact {
                        kind: Kind::List,
                        size: 9,
                        ..KeyFact::default()
                    },
                )
        };
        world().must_be_quiet();
        world()
            .keys("lock:order:*", Kind::String, |i| KeyFact {
                shape: Shape::Token,
                size: 36,
                fingerprint: i + 1,
                ttl: Some(600_000),
                ..KeyFact::default()
            })
            .must_show("eviction-with-durable-data");
        world()
            .keys("sess:*", Kind::Hash, |_| KeyFact {
                size: 9,
                ttl: Some(3_600_000),
                ..KeyFact::default()
            })
            .must_show("eviction-with-durable-data");
    }
}

#[test]
fn a_state_with_a_ttl_that_one_writes_and_another_reads() {
    let calm = |lines: &[&'static str]| -> Vec<&'static str> {
        let pause = ["x PING"; 60];
        lines
            .iter()
            .flat_map(|line| pause.into_iter().chain([*line]))
            .collect()
    };
    let state = [
        "r GET device:7",
        "w SET device:7 {a#} EX 60",
        "w SET device:7 {b#} EX 60",
    ];
    World::new().rounds(6, &calm(&state)).must_be_quiet();
    // A reader that had missed fills it, and a writer overwrites it.
    let cache = [
        "r GET product:42",
        "r SET product:42 {a#} EX 60",
        "w SET product:42 {b#} EX 60",
        "w SET product:42 {c#} EX 60",
        "r GET product:42",
        "x DEL other",
    ];
    World::new()
        .rounds(6, &calm(&cache))
        .must_show("cache-updated-in-place");
}
