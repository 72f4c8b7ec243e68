use std::{collections::BTreeMap, time::Duration};

use rand::RngExt as _;
use redstart::{
    Store,
    ranking::{BoardCursor, BoardEntry, Order, Policy, ShardedLeaderboard},
};
use redstart_testkit::{Backend, Cluster, Kind, Server, matrix, scale};

/// `(rank, member, score)`, the best first.
fn list(members: &BTreeMap<String, f64>, order: Order) -> Vec<(u64, String, f64)> {
    let mut rows: Vec<(f64, &String)> = members
        .iter()
        .map(|(member, score)| (*score, member))
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(b.1)));
    if order == Order::HighestFirst {
        rows.reverse();
    }
    let mut list: Vec<(u64, String, f64)> = Vec::with_capacity(rows.len());
    for (place, (score, member)) in (1..).zip(rows) {
        let rank = match list.last() {
            Some((rank, _, above)) if *above == score => *rank,
            _ => place,
        };
        list.push((rank, member.clone(), score));
    }
    list
}

fn rows(entries: Vec<BoardEntry>) -> Vec<(u64, String, f64)> {
    entries
        .into_iter()
        .map(|e| (e.rank, e.member, e.score))
        .collect()
}

async fn check(
    store: &Store,
    namespace: &str,
    order: Order,
    size: u64,
    shards: u32,
) -> anyhow::Result<()> {
    let board = ShardedLeaderboard::builder(store, namespace, "b")
        .shards(shards)
        .order(order)
        .build()?;
    // Heavy ties: a thousand members to a score.
    let scores = (size / 1000).max(3);
    let model: BTreeMap<String, f64> = {
        let mut rng = rand::rng();
        (0..size)
            .map(|n| (format!("member-{n}"), rng.random_range(0..scores) as f64))
            .collect()
    };
    let all: Vec<(&str, f64)> = model
        .iter()
        .map(|(member, score)| (member.as_str(), *score))
        .collect();
    for chunk in all.chunks(20_000) {
        assert_eq!(
            board
                .submit_many(chunk.iter().copied(), Policy::Last)
                .await?,
            chunk.len() as u64
        );
    }
    assert_eq!(board.len().await?, size);
    let list = list(&model, order);
    assert_eq!(rows(board.top(50).await?), list[..50.min(list.len())]);
    let places: Vec<usize> = {
        let mut rng = rand::rng();
        let mut places: Vec<usize> = (0..scale(6, "SHARDED_PLACES"))
            .map(|_| rng.random_range(0..list.len()))
            .collect();
        places.extend([0, 1, list.len() - 1, list.len() / 2]);
        places
    };
    for place in places {
        let (rank, member, score) = &list[place];
        let entry = board.rank(member).await?.expect("on the board");
        assert_eq!((entry.rank, entry.score), (*rank, *score));
        let page = rows(board.slice(place as u64, 7).await?);
        assert_eq!(
            page,
            list[place..(place + 7).min(list.len())],
            "page at {place}"
        );
        let around = rows(board.around(member, 3).await?);
        assert_eq!(
            around,
            list[place.saturating_sub(3)..(place + 4).min(list.len())],
            "around {place}"
        );
    }
    assert!(board.slice(size + 5, 3).await?.is_empty());
    assert!(board.around("nobody", 3).await?.is_empty());
    assert!(board.rank("nobody").await?.is_none());
    Ok(())
}

matrix! {
    async fn ranks_pages_and_neighbours_equal_one_board_with_all_members(backend: &Backend) -> anyhow::Result<()> {
        // A busy machine takes its time for thousands of scores in one call.
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(30)).connect().await?;
        let size = scale(3000, "SHARDED_MEMBERS");
        for order in [Order::HighestFirst, Order::LowestFirst] {
            check(&store, backend.namespace(), order, size, 100).await?;
        }
        Ok(())
    }

    async fn a_shard_that_cannot_answer_is_an_error_not_a_smaller_sum(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let board = ShardedLeaderboard::builder(&store, backend.namespace(), "b").shards(8).build()?;
        let members: Vec<String> = (0..100).map(|n| format!("m{n}")).collect();
        board.submit_many(members.iter().map(|m| (m.as_str(), 1.0)), Policy::Last).await?;
        // One shard is something else now.
        let broken = store.scan(&format!("{}:sharded:*/8/3}}", backend.namespace())).await?;
        assert_eq!(broken.len(), 1, "{broken:?}");
        store.query::<()>(redis::cmd("SET").arg(&broken[0]).arg("x")).await?;
        let mut answered = 0;
        for member in &members {
            if board.score(member).await.is_ok() {
                answered += 1;
                assert!(board.rank(member).await.is_err());
                assert!(board.around(member, 1).await.is_err());
            }
        }
        assert!((50..100).contains(&answered), "{answered}");
        assert!(board.top(3).await.is_err() && board.len().await.is_err() && board.slice(50, 3).await.is_err());
        Ok(())
    }

    async fn a_cursor_stays_right_while_members_come_and_go(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(30)).connect().await?;
        for order in [Order::HighestFirst, Order::LowestFirst] {
            let board = ShardedLeaderboard::builder(&store, backend.namespace(), "c").shards(8).order(order).build()?;
            let members: Vec<String> = (0..200).map(|n| format!("m{n:03}")).collect();
            let scores = members.iter().zip(0..).map(|(member, n)| (member.as_str(), f64::from(n % 5)));
            board.submit_many(scores, Policy::Last).await?;
            let whole: Vec<String> = board.top(300).await?.into_iter().map(|entry| entry.member).collect();
            let (mut seen, mut from) = (Vec::new(), None);
            loop {
                let page = board.page(from.as_ref(), 23).await?;
                seen.extend(page.entries.iter().map(|entry| entry.member.clone()));
                let Some(next) = page.next else { break };
                board.remove(&page.entries.last().expect("a page").member).await?;
                let end = if order == Order::HighestFirst { 999.0 } else { -999.0 };
                board.submit(&format!("first-{}", seen.len()), end, Policy::Last).await?;
                from = Some(BoardCursor::from_text(next.as_str()));
            }
            assert_eq!(seen, whole);
        }
        Ok(())
    }

    async fn policies_hold_in_every_shard(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let board = ShardedLeaderboard::builder(&store, backend.namespace(), "b").shards(4).order(Order::LowestFirst).build()?;
        assert_eq!(board.submit("a", 5.0, Policy::Best).await?.score, 5.0);
        let better = board.submit("a", 3.0, Policy::Best).await?;
        assert_eq!((better.score, better.previous), (3.0, Some(5.0)));
        assert_eq!(board.submit("a", 9.0, Policy::Best).await?.score, 3.0);
        assert_eq!(board.submit("a", 9.0, Policy::Last).await?.score, 9.0);
        assert_eq!(board.submit("a", -1.5, Policy::Sum).await?.score, 7.5);
        assert!(board.remove("a").await? && !board.remove("a").await?);
        assert!(board.is_empty().await?);
        Ok(())
    }

    async fn bad_input_is_refused_before_the_network(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for shards in [0, ShardedLeaderboard::MAX_SHARDS + 1] {
            assert!(ShardedLeaderboard::builder(&store, "x", "b").shards(shards).build().unwrap_err().is_config());
        }
        let board = ShardedLeaderboard::new(&store, backend.namespace(), "b")?;
        assert!(board.submit("a", f64::NAN, Policy::Last).await.unwrap_err().is_config());
        assert!(board.submit("", 1.0, Policy::Last).await.unwrap_err().is_config());
        let many = board.submit_many([("a", 1.0), ("b", f64::INFINITY)], Policy::Last).await;
        assert!(many.unwrap_err().is_config());
        assert!(board.is_empty().await?);
        assert!(board.top(ShardedLeaderboard::MAX_PAGE + 1).await.unwrap_err().is_config());
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_shard_that_does_not_answer_is_an_error_not_a_smaller_sum() -> anyhow::Result<()> {
    // The nodes that live go on answering.
    let cluster = Cluster::builder(Kind::Redis)
        .masters(3)
        .replicas(0)
        .config("cluster-require-full-coverage", "no")
        .start()
        .await?;
    let store = Store::builder(&cluster.url())
        .deadline(Duration::from_millis(500))
        .connect()
        .await?;
    let board = ShardedLeaderboard::builder(&store, "app", "b")
        .shards(30)
        .build()?;
    let members: Vec<String> = (0..300).map(|n| format!("m{n}")).collect();
    board
        .submit_many(members.iter().map(|m| (m.as_str(), 1.0)), Policy::Last)
        .await?;
    cluster.node(0).kill9();
    // A member whose own shard is on a node that lives: its score is there, and still it has no rank.
    let mut witnesses = 0;
    for member in &members {
        if let Ok(Some(score)) = board.score(member).await {
            assert_eq!(score, 1.0);
            assert!(board.rank(member).await.is_err());
            assert!(board.around(member, 2).await.is_err());
            witnesses += 1;
            if witnesses == 2 {
                break;
            }
        }
    }
    assert_eq!(witnesses, 2, "no shard answers");
    assert!(board.len().await.is_err());
    assert!(board.slice(100, 3).await.is_err());
    assert!(board.top(3).await.is_err());
    Ok(())
}

/// 256 shards: a whole slice of every shard for each of the 21 entries would be 658,000 rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_are_read_only_as_far_as_they_matter() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(30))
        .connect()
        .await?;
    let board = ShardedLeaderboard::builder(&store, "app", "b")
        .shards(256)
        .build()?;
    let members: Vec<String> = (0..30_000).map(|n| format!("member-{n:05}")).collect();
    for chunk in members.chunks(10_000) {
        let scores = chunk.iter().map(|member| (member.as_str(), 1.0));
        board.submit_many(scores, Policy::Last).await?;
    }
    let sent = async || -> anyhow::Result<u64> {
        Ok(server.info("total_net_output_bytes").await?.parse()?)
    };
    let before = sent().await?;
    let around = board.around("member-15000", 10).await?;
    let names: Vec<&str> = around.iter().map(|entry| entry.member.as_str()).collect();
    let expected: Vec<&String> = members[14_990..=15_010].iter().rev().collect();
    assert_eq!(names, expected);
    // A row takes about 30 bytes, and every shard answers a few small questions besides.
    let bytes = sent().await? - before;
    assert!(bytes < 150_000, "{bytes} bytes for 21 entries");
    Ok(())
}
