use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;
use redstart::{
    Store,
    social::{EdgeCursor, EdgePage, Followed, Graph, Repaired},
};
use redstart_testkit::{Backend, Cluster, Kind, eventually, matrix, scale};

/// The graph as two sets.
#[derive(Clone, Debug, Default)]
struct Model {
    follows: BTreeSet<(String, String)>,
    blocks: BTreeSet<(String, String)>,
}

impl Model {
    fn follow(&mut self, a: &str, b: &str) -> Followed {
        let (ab, ba) = (pair(a, b), pair(b, a));
        if self.blocks.contains(&ab) || self.blocks.contains(&ba) {
            Followed::Blocked
        } else if self.follows.insert(ab) {
            Followed::New
        } else {
            Followed::Already
        }
    }

    fn block(&mut self, a: &str, b: &str) -> bool {
        self.follows.remove(&pair(a, b));
        self.follows.remove(&pair(b, a));
        self.blocks.insert(pair(a, b))
    }

    fn following(&self, a: &str) -> BTreeSet<String> {
        self.follows
            .iter()
            .filter(|(from, _)| from == a)
            .map(|(_, to)| to.clone())
            .collect()
    }

    fn followers(&self, b: &str) -> BTreeSet<String> {
        self.follows
            .iter()
            .filter(|(_, to)| to == b)
            .map(|(from, _)| from.clone())
            .collect()
    }

    /// Brute force: everybody, with those that one follows and that follow them.
    fn suggestions(&self, me: &str) -> Vec<(String, Vec<String>)> {
        let friends = self.following(me);
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (from, to) in &self.follows {
            let left_out = to == me || friends.contains(to) || self.blocks.contains(&pair(me, to));
            if friends.contains(from) && !left_out {
                found.entry(to.clone()).or_default().push(from.clone());
            }
        }
        let mut all: Vec<_> = found.into_iter().collect();
        all.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then(a.0.cmp(&b.0)));
        all
    }
}

fn pair(a: &str, b: &str) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

/// Reads all pages of a list.
async fn whole(
    mut read: impl AsyncFnMut(Option<EdgeCursor>) -> redstart::Result<EdgePage>,
) -> anyhow::Result<Vec<String>> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let page = read(from).await?;
        all.extend(page.edges.into_iter().map(|edge| edge.account));
        match page.next {
            Some(next) => from = Some(EdgeCursor::from_text(next.as_str())),
            None => return Ok(all),
        }
    }
}

pub(crate) async fn following(graph: &Graph, account: &str) -> anyhow::Result<BTreeSet<String>> {
    Ok(
        whole(async |from| graph.following(account, from.as_ref(), 7).await)
            .await?
            .into_iter()
            .collect(),
    )
}

pub(crate) async fn followers(graph: &Graph, account: &str) -> anyhow::Result<BTreeSet<String>> {
    Ok(
        whole(async |from| graph.followers(account, from.as_ref(), 7).await)
            .await?
            .into_iter()
            .collect(),
    )
}

async fn equals(graph: &Graph, model: &Model, accounts: &[String]) -> anyhow::Result<()> {
    for account in accounts {
        assert_eq!(
            following(graph, account).await?,
            model.following(account),
            "{account}"
        );
        assert_eq!(
            followers(graph, account).await?,
            model.followers(account),
            "{account}"
        );
        let counts = graph.counts(account).await?;
        assert_eq!(counts.followers as usize, model.followers(account).len());
        assert_eq!(counts.following as usize, model.following(account).len());
        let mutuals: BTreeSet<String> =
            whole(async |from| graph.mutuals(account, from.as_ref(), 2).await)
                .await?
                .into_iter()
                .collect();
        assert_eq!(
            mutuals,
            &model.following(account) & &model.followers(account)
        );
        let suggested: Vec<_> = graph
            .suggestions(account, 5)
            .await?
            .into_iter()
            .map(|suggestion| (suggestion.account, suggestion.common))
            .collect();
        let mut expected = model.suggestions(account);
        expected.truncate(5);
        assert_eq!(suggested, expected, "{account}");
    }
    Ok(())
}

fn graphs(store: &Store, backend: &Backend) -> anyhow::Result<[Graph; 2]> {
    Ok([
        Graph::new(store, backend.namespace(), "one")?,
        Graph::builder(store, backend.namespace(), "many")
            .shards(16)
            .build()?,
    ])
}

/// Polls a follow until it has arrived at the star's side; its caller does not go on. `false` if no step was left then.
async fn falls_asleep<T>(
    graph: &Graph,
    fan: &str,
    star: &str,
    mut follow: std::pin::Pin<&mut impl Future<Output = T>>,
) -> anyhow::Result<bool> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let asleep = eventually(Duration::from_secs(20), async || {
        let counts = graph.counts(star).await;
        counts.is_ok_and(|counts| counts.followers == 1)
            || follow.as_mut().poll(&mut context).is_ready()
    });
    assert!(asleep.await);
    Ok(!graph.is_following(fan, star).await?)
}

matrix! {
    async fn a_random_history_equals_the_model(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let accounts: Vec<String> = (0..12).map(|n| format!("user-{n}")).collect();
        let steps: Vec<(usize, usize, u8)> = {
            let mut rng = rand::rng();
            (0..scale(400, "GRAPH_STEPS"))
                .map(|_| (rng.random_range(0..12), rng.random_range(0..12), rng.random_range(0..20)))
                .collect()
        };
        for graph in graphs(&store, backend)? {
            let mut model = Model::default();
            for (a, b, what) in &steps {
                if a == b {
                    continue;
                }
                let (a, b) = (accounts[*a].as_str(), accounts[*b].as_str());
                match what {
                    0..12 => assert_eq!(graph.follow(a, b).await?, model.follow(a, b)),
                    12..17 => assert_eq!(graph.unfollow(a, b).await?, model.follows.remove(&pair(a, b))),
                    17 => assert_eq!(graph.block(a, b).await?, model.block(a, b)),
                    _ => assert_eq!(graph.unblock(a, b).await?, model.blocks.remove(&pair(a, b))),
                }
                assert_eq!(graph.is_following(a, b).await?, model.follows.contains(&pair(a, b)));
                assert_eq!(graph.is_blocking(a, b).await?, model.blocks.contains(&pair(a, b)));
            }
            equals(&graph, &model, &accounts).await?;
            assert_eq!(graph.repair(Duration::ZERO).await?, Repaired::default());
        }
        Ok(())
    }

    async fn a_block_ends_follows_both_ways_and_prevents_new_ones(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for graph in graphs(&store, backend)? {
            for n in 0..8 {
                let (a, b) = (format!("a{n}"), format!("b{n}"));
                let _ = graph.follow(&a, &b).await?;
                let _ = graph.follow(&b, &a).await?;
                assert!(graph.block(&a, &b).await? && !graph.block(&a, &b).await?);
                assert!(!graph.is_following(&a, &b).await? && !graph.is_following(&b, &a).await?);
                assert_eq!(graph.counts(&a).await?, graph.counts("nobody").await?);
                assert_eq!(graph.follow(&a, &b).await?, Followed::Blocked);
                assert_eq!(graph.follow(&b, &a).await?, Followed::Blocked);
                assert_eq!(graph.blocked(&a, None, 10).await?.edges[0].account, b);
                assert!(graph.unblock(&a, &b).await? && !graph.unblock(&a, &b).await?);
                assert_eq!(graph.follow(&b, &a).await?, Followed::New);
                assert!(followers(&graph, &a).await?.contains(&b));
            }
        }
        Ok(())
    }

    async fn crashed_callers_leave_two_sides_that_converge(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let graph = Graph::builder(&store, backend.namespace(), "g").shards(16).build()?;
        let accounts: Vec<String> = (0..8).map(|n| format!("user-{n}")).collect();
        let (mut repaired, mut round) = (0, 0);
        let rounds = scale(6, "GRAPH_CRASH_ROUNDS");
        // Until enough callers have died in the middle for the claim to mean something; the embedded engine answers at
        // the first poll, and nobody dies there.
        while round < rounds || (repaired < 3 && round < 50 * rounds && !backend.is_embedded()) {
            round += 1;
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..6 {
                let (graph, accounts) = (graph.clone(), accounts.clone());
                tasks.spawn(async move {
                    for _ in 0..20 {
                        let (a, b, what, polls) = {
                            let mut rng = rand::rng();
                            (rng.random_range(0..8), rng.random_range(0..8), rng.random_range(0..10), rng.random_range(1..12))
                        };
                        if a == b {
                            continue;
                        }
                        let (a, b) = (accounts[a].as_str(), accounts[b].as_str());
                        let call = async {
                            match what {
                                0..6 => drop(graph.follow(a, b).await),
                                6..8 => drop(graph.unfollow(a, b).await),
                                8 => drop(graph.block(a, b).await),
                                _ => drop(graph.unblock(a, b).await),
                            }
                        };
                        crash_after(polls, call).await;
                    }
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended?;
            }
            loop {
                match graph.repair(Duration::ZERO).await?.completed {
                    0 => break,
                    n => repaired += n,
                }
            }
            for a in &accounts {
                for b in accounts.iter().filter(|b| *b != a) {
                    let (forth, back) = (following(&graph, a).await?.contains(b), followers(&graph, b).await?.contains(a));
                    assert_eq!(forth, back, "{a} and {b} do not agree");
                    if graph.is_blocking(a, b).await? {
                        assert!(!forth && !back && !graph.is_following(b, a).await?, "{a} blocks {b}");
                    }
                }
            }
        }
        assert!(repaired >= 3 || backend.is_embedded(), "nobody crashed in the middle");
        Ok(())
    }

    async fn a_follow_that_a_block_overtakes_does_not_come_back_on_one_side(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let graph = Graph::builder(&store, backend.namespace(), "g").shards(16).build()?;
        let _ = graph.follow("warm", "up").await?;
        let mut held = 0;
        for n in 0..12 {
            let (fan, star) = (format!("fan-{n}"), format!("star-{n}"));
            let mut follow = Box::pin(graph.follow(&fan, &star));
            if !falls_asleep(&graph, &fan, &star, follow.as_mut()).await? {
                continue;
            }
            held += 1;
            graph.block(&star, &fan).await?;
            graph.unblock(&star, &fan).await?;
            assert_eq!(follow.await?, Followed::Blocked);
            assert!(!graph.is_following(&fan, &star).await?);
            assert_eq!(graph.counts(&star).await?.followers, 0);
            while graph.repair(Duration::ZERO).await?.completed > 0 {}
            assert!(!graph.is_following(&fan, &star).await?);
            assert_eq!(graph.counts(&star).await?.followers, 0);
        }
        assert!(held >= 3 || backend.is_embedded(), "{held} of 12 were caught between two steps");
        Ok(())
    }

    async fn a_follow_that_another_caller_completes_and_undoes_is_not_reported_as_blocked(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let graph = Graph::builder(&store, backend.namespace(), "g").shards(16).build()?;
        let _ = graph.follow("warm", "up").await?;
        let mut held = 0;
        for n in 0..12 {
            let (fan, star) = (format!("fan-{n}"), format!("star-{n}"));
            let mut follow = Box::pin(graph.follow(&fan, &star));
            if !falls_asleep(&graph, &fan, &star, follow.as_mut()).await? {
                continue;
            }
            held += 1;
            assert!(graph.unfollow(&fan, &star).await?);
            assert_eq!(follow.await?, Followed::New);
            assert!(!graph.is_following(&fan, &star).await?);
            assert_eq!(graph.counts(&star).await?.followers, 0);
        }
        assert!(held >= 3 || backend.is_embedded(), "{held} of 12 were caught between two steps");
        Ok(())
    }

    async fn suggestions_exclude_follows_and_blocks_however_old_they_are(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(30)).connect().await?;
        let graph = Graph::new(&store, backend.namespace(), "g")?;
        // The oldest follow and the oldest block are beyond what is read of either list.
        let _ = graph.follow("me", "old").await?;
        graph.block("me", "bad").await?;
        let more = Graph::MAX_FRIENDS + 5;
        for n in 0..more {
            let _ = graph.follow("me", &format!("friend-{n}")).await?;
            graph.block("me", &format!("foe-{n}")).await?;
        }
        for account in ["old", "bad", "new"] {
            let _ = graph.follow(&format!("friend-{}", more - 1), account).await?;
        }
        let found: Vec<String> = graph.suggestions("me", 10).await?.into_iter().map(|found| found.account).collect();
        assert_eq!(found, ["new"]);
        Ok(())
    }

    async fn a_poisoned_pair_does_not_stop_the_repair_of_the_others(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let graph = Graph::builder(&store, backend.namespace(), "g").shards(16).build()?;
        let shard = |account: &str| {
            ((u128::from(xxhash_rust::xxh3::xxh3_64(account.as_bytes())) * 16) >> 64) as u64
        };
        let keys = redstart::key::Keys::new(backend.namespace(), "graph")?;
        let stars: Vec<String> = (0..).map(|n| format!("star-{n}")).filter(|star| shard(star) != shard("fan")).take(3).collect();
        let mut poison = Vec::new();
        for star in &stars {
            let key = keys.entity(&format!("g/16/{}", shard(star)))?.part(&format!("followers:{star}"));
            store.query::<()>(redis::cmd("SET").arg(&key).arg("poison")).await?;
            assert!(graph.follow("fan", star).await.is_err());
            poison.push(key);
        }
        assert!(graph.repair(Duration::ZERO).await.is_err());
        for key in &poison[1..] {
            store.query::<()>(redis::cmd("DEL").arg(key)).await?;
        }
        let done = graph.repair(Duration::ZERO).await?;
        assert_eq!((done.completed, done.failed), (2, 1));
        store.query::<()>(redis::cmd("DEL").arg(&poison[0])).await?;
        assert_eq!(graph.repair(Duration::ZERO).await?.completed, 1);
        for star in &stars {
            assert!(graph.is_following("fan", star).await?);
            assert_eq!(graph.counts(star).await?.followers, 1);
        }
        Ok(())
    }

    async fn pages_are_whole_while_others_come_and_go(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let graph = Graph::new(&store, backend.namespace(), "g")?;
        let size = scale(300, "GRAPH_FOLLOWERS");
        for n in 0..size {
            let _ = graph.follow(&format!("fan-{n}"), "star").await?;
        }
        let first = graph.followers("star", None, 100).await?;
        assert_eq!(first.edges[0].account, format!("fan-{}", size - 1));
        // The one that the page ended with goes, another comes: nothing is skipped or repeated.
        let last = first.edges.last().expect("a page").account.clone();
        graph.unfollow(&last, "star").await?;
        let _ = graph.follow("late", "star").await?;
        let mut all: Vec<String> = first.edges.iter().map(|edge| edge.account.clone()).collect();
        let mut next = first.next;
        while let Some(cursor) = next {
            let page = graph.followers("star", Some(&cursor), 100).await?;
            all.extend(page.edges.into_iter().map(|edge| edge.account));
            next = page.next;
        }
        let expected: Vec<String> = (0..size).rev().map(|n| format!("fan-{n}")).collect();
        assert_eq!(all, expected);
        Ok(())
    }

    async fn bad_input_is_refused_before_the_network(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for shards in [0, Graph::MAX_SHARDS + 1] {
            assert!(Graph::builder(&store, "x", "g").shards(shards).build().unwrap_err().is_config());
        }
        assert!(Graph::new(&store, "a b", "g").unwrap_err().is_config());
        assert!(Graph::new(&store, "x", "").unwrap_err().is_config());
        let graph = Graph::new(&store, backend.namespace(), "g")?;
        let long = "x".repeat(Graph::MAX_ACCOUNT + 1);
        for bad in ["", "a\0b", &long] {
            assert!(graph.follow("a", bad).await.unwrap_err().is_config());
            assert!(graph.follow(bad, "a").await.unwrap_err().is_config());
            assert!(graph.block("a", bad).await.unwrap_err().is_config());
            assert!(graph.followers(bad, None, 1).await.unwrap_err().is_config());
            assert!(graph.suggestions(bad, 1).await.unwrap_err().is_config());
        }
        assert!(graph.follow("a", "a").await.unwrap_err().is_config());
        for n in [0, Graph::MAX_PAGE + 1] {
            assert!(graph.followers("a", None, n).await.unwrap_err().is_config());
        }
        for text in ["", "x", "1:", "a:b", ":b"] {
            let cursor = EdgeCursor::from_text(text);
            assert!(graph.followers("a", Some(&cursor), 1).await.unwrap_err().is_config());
        }
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), 0);
        Ok(())
    }
}

/// Polls a future a given number of times and then drops it, like a process that dies.
async fn crash_after(polls: u32, call: impl Future<Output = ()>) {
    let mut call = std::pin::pin!(call);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return std::task::Poll::Ready(());
        }
        left -= 1;
        call.as_mut().poll(cx)
    })
    .await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn suggestions_equal_a_brute_force_ranking(edges in prop::collection::vec((0u8..15, 0u8..15), 0..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let store = Store::connect("memory://").await.expect("a store");
            let graph = Graph::builder(&store, "app", "g").shards(4).build().expect("a graph");
            let mut model = Model::default();
            for (a, b) in edges.iter().filter(|(a, b)| a != b) {
                let (a, b) = (format!("u{a}"), format!("u{b}"));
                assert_eq!(graph.follow(&a, &b).await.expect("a follow"), model.follow(&a, &b));
            }
            for n in 0..15 {
                let me = format!("u{n}");
                let found: Vec<_> = graph.suggestions(&me, 1000).await.expect("suggestions")
                    .into_iter().map(|found| (found.account, found.common)).collect();
                assert_eq!(found, model.suggestions(&me));
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_node_that_dies_between_the_two_sides_is_repaired_when_it_is_back()
-> anyhow::Result<()> {
    let cluster = Cluster::builder(Kind::Redis)
        .masters(3)
        .replicas(0)
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start()
        .await?;
    let store = Store::connect(&cluster.url()).await?;
    let graph = Graph::builder(&store, "app", "g").shards(48).build()?;
    graph.counts("warm").await?;
    cluster.node(0).kill9();
    // Some of these find only the follower's side alive.
    for n in 0..40 {
        let (a, b) = (format!("a{n}"), format!("b{n}"));
        let _ = tokio::time::timeout(Duration::from_millis(200), graph.follow(&a, &b)).await;
    }
    cluster.node(0).restart().await?;
    cluster.wait_whole().await?;
    let mut repaired = 0;
    redstart_testkit::wait_until(
        "every intent to be completed",
        Duration::from_secs(30),
        async || match graph.repair(Duration::ZERO).await {
            Ok(done) if done == Repaired::default() && repaired > 0 => Some(()),
            Ok(done) => {
                repaired += done.completed;
                None
            }
            Err(_) => None,
        },
    )
    .await?;
    for n in 0..40 {
        let (a, b) = (format!("a{n}"), format!("b{n}"));
        assert_eq!(
            graph.counts(&a).await?.following,
            graph.counts(&b).await?.followers,
            "{a} and {b} do not agree"
        );
    }
    Ok(())
}

/// Passes requests on, keeps replies back until no request has come for a while, and counts how often it let them go: the
/// round trips that a client waited for, however many commands each had.
async fn count_round_trips(
    listener: tokio::net::TcpListener,
    server: String,
    trips: std::sync::Arc<std::sync::atomic::AtomicUsize>,
) -> std::io::Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    const QUIET: Duration = Duration::from_millis(250);
    loop {
        let (mut client, _) = listener.accept().await?;
        let mut server = tokio::net::TcpStream::connect(&server).await?;
        let trips = trips.clone();
        tokio::spawn(async move {
            let (mut requests, mut replies) = (vec![0; 65_536], vec![0; 65_536]);
            let (mut asked, mut kept) = (false, Vec::new());
            let mut until = tokio::time::Instant::now();
            loop {
                tokio::select! {
                    read = client.read(&mut requests) => match read {
                        Ok(n) if n > 0 => {
                            asked = true;
                            until = tokio::time::Instant::now() + QUIET;
                            server.write_all(&requests[..n]).await?;
                        }
                        _ => return std::io::Result::Ok(()),
                    },
                    read = server.read(&mut replies) => match read {
                        Ok(n) if n > 0 => kept.extend_from_slice(&replies[..n]),
                        _ => return Ok(()),
                    },
                    () = tokio::time::sleep_until(until), if !kept.is_empty() => {
                        let trip = usize::from(std::mem::take(&mut asked));
                        trips.fetch_add(trip, std::sync::atomic::Ordering::SeqCst);
                        client.write_all(&std::mem::take(&mut kept)).await?;
                    }
                }
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suggestions_take_two_round_trips_or_three_however_many_friends_there_are()
-> anyhow::Result<()> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let server = redstart_testkit::Server::builder(Kind::Redis)
        .start()
        .await?;
    let direct = Store::builder(&server.url())
        .deadline(Duration::from_secs(30))
        .connect()
        .await?;
    let graph = Graph::new(&direct, "app", "g")?;
    for n in 0..Graph::MAX_FRIENDS {
        let _ = graph.follow("popular", &format!("friend-{n}")).await?;
        if n < 250 {
            let _ = graph.follow("me", &format!("friend-{n}")).await?;
        }
    }
    let _ = graph.follow("friend-7", "new").await?;
    let trips = std::sync::Arc::new(AtomicUsize::new(0));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("redis://{}", listener.local_addr()?);
    let counting = tokio::spawn(count_round_trips(listener, server.addr(), trips.clone()));
    let store = Store::builder(&url)
        .deadline(Duration::from_secs(60))
        .pool(1)
        .connect()
        .await?;
    let graph = Graph::new(&store, "app", "g")?;
    // The script is known to the server after this.
    graph.suggestions("me", 1).await?;
    for (account, expected) in [("me", 2), ("popular", 3)] {
        trips.store(0, Ordering::SeqCst);
        let found = graph.suggestions(account, 1).await?;
        assert_eq!(found[0].account, "new");
        let taken = trips.load(Ordering::SeqCst);
        // A request that a busy machine sends in two parts counts twice; pages of 100 friends would take 4 and 11.
        assert!(
            (expected - 1..=expected + 1).contains(&taken),
            "{account}: {taken}"
        );
    }
    counting.abort();
    Ok(())
}
