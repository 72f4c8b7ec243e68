//! An account with very many followers, and how long the server is held up by reading them.

use std::{collections::HashSet, sync::Arc, time::Duration};

use redstart::{
    Store,
    social::{EdgePage, Graph},
};
use redstart_testkit::{Kind, Server, scale};

/// What a call may take of the server's time, in microseconds.
const LIMIT: &str = "5000";

/// Calls until the server did not need longer than the limit for it; it may have been busy with something else.
async fn quickly<T>(
    server: &Server,
    what: &str,
    mut call: impl AsyncFnMut() -> redstart::Result<T>,
) -> anyhow::Result<T> {
    for _ in 0..8 {
        let answer = call().await?;
        if server.query::<u64>(&["SLOWLOG", "LEN"]).await? == 0 {
            return Ok(answer);
        }
        let slow = server.command(&["SLOWLOG", "GET", "1"]).await?;
        println!("{what} took longer than {LIMIT} µs: {slow:?}");
        server.command(&["SLOWLOG", "RESET"]).await?;
    }
    anyhow::bail!("{what} holds the server up for more than {LIMIT} µs, time after time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_about_a_celebrity_holds_the_server_up() -> anyhow::Result<()> {
    let size = scale(5_000, "GRAPH_CELEBRITY");
    let server = Server::builder(Kind::Redis)
        .config("slowlog-log-slower-than", LIMIT)
        .start()
        .await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(10))
        .connect()
        .await?;
    let graph = Graph::new(&store, "app", "g")?;
    let next = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let (graph, next) = (graph.clone(), next.clone());
        tasks.spawn(async move {
            loop {
                let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if n >= size {
                    return Ok::<_, redstart::Error>(());
                }
                let _ = graph.follow(&format!("fan-{n}"), "star").await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    for n in 0..500 {
        let _ = graph.follow("star", &format!("fan-{n}")).await?;
    }
    server.command(&["SLOWLOG", "RESET"]).await?;
    server.command(&["CONFIG", "RESETSTAT"]).await?;

    let counts = quickly(&server, "counts", async || graph.counts("star").await).await?;
    assert_eq!((counts.followers, counts.following), (size, 500));
    let (mut seen, mut cursor, mut pages) = (HashSet::new(), None, 0);
    loop {
        let page: EdgePage = quickly(&server, "a page of followers", async || {
            graph
                .followers("star", cursor.as_ref(), Graph::MAX_PAGE)
                .await
        })
        .await?;
        for edge in page.edges {
            assert!(seen.insert(edge.account), "the same follower twice");
        }
        pages += 1;
        // Those that a page ends with go: the next page has to find its place by time.
        if pages % 10 == 0
            && let Some(cursor) = &page.next
        {
            let (_, last) = cursor.as_str().split_once(':').expect("a time and a name");
            let last = last.to_owned();
            quickly(&server, "an unfollow", async || {
                graph.unfollow(&last, "star").await
            })
            .await?;
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len() as u64, size);
    quickly(&server, "is_following", async || {
        graph.is_following("fan-7", "star").await
    })
    .await?;
    let mutual = quickly(&server, "mutuals", async || {
        graph.mutuals("star", None, 1000).await
    })
    .await?;
    assert!(mutual.edges.len() >= 400);
    quickly(&server, "suggestions", async || {
        graph.suggestions("fan-1", 10).await
    })
    .await?;
    quickly(&server, "a block", async || {
        graph.block("star", "fan-3").await
    })
    .await?;

    let info: String = server.query(&["INFO", "commandstats"]).await?;
    let scripts = info.lines().find(|line| line.contains("evalsha"));
    let info: String = server.query(&["INFO", "latencystats"]).await?;
    let tail = info.lines().find(|line| line.contains("evalsha"));
    println!("{size} followers in {pages} pages; {scripts:?} {tail:?}");
    Ok(())
}
