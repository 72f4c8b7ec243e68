//! A store that is down: the first calls wait for it, all others fail at once, and it is used again when it is back.

use std::time::{Duration, Instant};

use redstart::{
    Down, Store,
    caching::{Cache, Loaded},
    key::Keys,
    limiting::{DecidedBy, Limiter, Quota},
};
use redstart_testkit::{Cluster, Kind, Proxy, Sentinel, Server, eventually, figure, scale};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

const PATIENCE: Duration = Duration::from_secs(40);

/// How long a store may take to use a new master once all nodes name it.
const RETURN: Duration = Duration::from_secs(2);

/// The longest that the machine takes meanwhile for one thing that a store has to do: a new connection to a server that is up,
/// and an answer over it.
async fn slowest_visit(
    address: &str,
    until: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Duration> {
    let mut slowest = Duration::ZERO;
    let visits = async {
        loop {
            let began = Instant::now();
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(b"PING\r\n").await?;
            stream.read_exact(&mut [0; 7]).await?;
            slowest = slowest.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        biased;
        ended = until => ended?,
        failed = visits => return failed,
    }
    Ok(slowest)
}

/// A store needs some ten visits, so a machine that is busy gets the time for so many of its slowest.
fn assert_back(promoted: Instant, works: Instant, slowest: Duration) {
    let took = works.saturating_duration_since(promoted);
    figure(format!(
        "{took:?} after the promotion was seen; the slowest visit to a server took {slowest:?}"
    ));
    assert!(
        took <= RETURN + slowest * 10,
        "{took:?} after the promotion, where a visit takes {slowest:?}"
    );
}

fn increment(key: &str) -> redis::Cmd {
    let mut cmd = redis::cmd("INCR");
    cmd.arg(key);
    cmd
}

/// How a master that is there no more looks from outside.
#[derive(Clone, Copy)]
enum Hang {
    /// Connections are made, and nothing is answered.
    Process,
    /// The packets of new connections are dropped too.
    Port,
}

impl Hang {
    /// Hangs the server. What is returned keeps its port silent.
    async fn begin(self, server: &Server) -> anyhow::Result<Vec<TcpStream>> {
        server.pause()?;
        let mut waiting = Vec::new();
        if let Self::Port = self {
            // Nobody accepts, and the kernel drops what comes once the queue of the port is full.
            let silence = Duration::from_millis(500);
            let connect = || tokio::time::timeout(silence, TcpStream::connect(server.addr()));
            while let Ok(stream) = connect().await {
                waiting.push(stream?);
                anyhow::ensure!(waiting.len() < 5000, "the port still answers");
            }
        }
        Ok(waiting)
    }
}

/// No reset and no close: the node is silent, a replica takes its place, and the client has to find that out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_hung_cluster_master_is_left_for_its_replica() -> anyhow::Result<()> {
    for _ in 0..scale(1, "HUNG_MASTERS") {
        leave_a_hung_cluster_master(Hang::Process).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_hung_cluster_master_whose_port_is_silent_is_left_for_its_replica()
-> anyhow::Result<()> {
    for _ in 0..scale(1, "HUNG_MASTERS") {
        leave_a_hung_cluster_master(Hang::Port).await?;
    }
    Ok(())
}

async fn leave_a_hung_cluster_master(hang: Hang) -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 1).await?;
    let store = Store::connect(&cluster.url()).await?;
    let entity = Keys::new("app", "hung")?.entity("x")?;
    let key = entity.key().as_str();
    store.query::<i64>(&increment(key)).await?;
    let victim = cluster.owner(entity.slot()).await?;
    let waiting = hang.begin(cluster.node(victim)).await?;
    let promoted = async {
        cluster.wait_promotion(victim).await?;
        anyhow::Ok(Instant::now())
    };
    let works = async {
        let writes = eventually(PATIENCE, async || {
            store.query::<i64>(&increment(key)).await.is_ok()
        });
        assert!(writes.await, "the store stays with the node that hangs");
        anyhow::Ok(Instant::now())
    };
    let mut times = None;
    let both = async {
        times = Some(tokio::try_join!(promoted, works)?);
        Ok(())
    };
    let other = cluster.node((victim + 1) % 3).addr();
    let slowest = slowest_visit(&other, both).await?;
    let (promoted, works) = times.expect("both have ended");
    assert_back(promoted, works, slowest);
    // The old master returns as a replica, and nothing goes wrong.
    drop(waiting);
    cluster.node(victim).resume()?;
    for _ in 0..20 {
        store.query::<i64>(&increment(key)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_hung_master_behind_sentinels_is_left_for_its_replica() -> anyhow::Result<()> {
    for _ in 0..scale(1, "HUNG_MASTERS") {
        leave_a_hung_master_behind_sentinels(Hang::Process).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_hung_master_behind_sentinels_whose_port_is_silent_is_left_for_its_replica()
-> anyhow::Result<()> {
    for _ in 0..scale(1, "HUNG_MASTERS") {
        leave_a_hung_master_behind_sentinels(Hang::Port).await?;
    }
    Ok(())
}

async fn leave_a_hung_master_behind_sentinels(hang: Hang) -> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let store = Store::connect(&group.url()).await?;
    store.query::<i64>(&increment("n")).await?;
    let old = group.master().await?;
    let _waiting = hang.begin(group.server(old)).await?;
    let mut times = None;
    let both = async {
        let promoted = async {
            group.wait_promotion(old).await?;
            anyhow::Ok(Instant::now())
        };
        let works = async {
            let writes = eventually(PATIENCE, async || {
                store.query::<i64>(&increment("n")).await.is_ok()
            });
            assert!(writes.await, "the store stays with the master that hangs");
            anyhow::Ok(Instant::now())
        };
        times = Some(tokio::try_join!(promoted, works)?);
        Ok(())
    };
    let slowest = slowest_visit(&group.sentinels()[0].addr(), both).await?;
    let (promoted, works) = times.expect("both have ended");
    assert_back(promoted, works, slowest);
    group.server(old).resume()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_only_the_first_calls_wait_for_a_server_that_is_down() -> anyhow::Result<()> {
    for hangs in [false, true] {
        let server = Server::builder(Kind::Redis).start().await?;
        let proxy = Proxy::start(&server).await?;
        let deadline = Duration::from_secs(4);
        let store = Store::builder(proxy.url())
            .deadline(deadline)
            .connect()
            .await?;
        let limiter = Limiter::fixed_window(&store, "page", "api", Quota::per_day(1000))
            .on_store_down(Down::Allow)
            .build()?;
        let cache: Cache<str, u64> = Cache::builder(&store, "page", "rows")
            .ttl(PATIENCE)
            .on_store_down(Down::Allow)
            .build()?;
        let load = |_| async { Ok::<_, redstart::Error>(Loaded::Found(7)) };
        if hangs {
            proxy.black_hole();
        } else {
            proxy.refuse().await;
            proxy.cut().await?;
        }
        let mut slow = 0;
        for call in 0..30 {
            let began = Instant::now();
            match call % 3 {
                0 => {
                    let grant = limiter.check("u", 1).await?.allowed();
                    assert_eq!(grant.expect("allowed").decided_by(), DecidedBy::Policy);
                }
                1 => drop(cache.get_or_load("k", load).await?),
                _ => {
                    let error = store.query::<i64>(&increment("n")).await.unwrap_err();
                    assert!(error.is_unavailable() || error.is_timeout(), "{error:?}");
                }
            }
            slow += u32::from(began.elapsed() > deadline / 2);
        }
        // The first one, and another if the machine was busy.
        assert!((1..=2).contains(&slow), "{slow} calls waited");
        proxy.pass().await;
        let works = eventually(PATIENCE, async || {
            store.query::<i64>(&increment("n")).await.is_ok()
        });
        assert!(works.await);
    }
    Ok(())
}

/// Lets a connection wait for its first byte longer than the deadline of a request.
async fn slow_to_greet(listener: TcpListener, server: String) {
    while let Ok((mut client, _)) = listener.accept().await {
        let server = server.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if let Ok(mut upstream) = TcpStream::connect(server).await {
                let _ = copy_bidirectional(&mut client, &mut upstream).await;
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_takes_its_own_time_and_not_that_of_a_request() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!(
        "redis://{}?timeout=100ms&connect_timeout=10s",
        listener.local_addr()?
    );
    tokio::spawn(slow_to_greet(listener, server.addr()));
    let store = Store::builder(&url).lazy().connect().await?;
    let error = store.query::<i64>(&increment("n")).await.unwrap_err();
    assert!(error.is_unavailable() || error.is_timeout(), "{error:?}");
    let works = eventually(PATIENCE, async || {
        store.query::<i64>(&increment("n")).await.is_ok()
    });
    assert!(works.await, "each request begins to connect from the start");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_take_writes_is_down_for_policies() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("maxmemory", "1mb")
        .config("maxmemory-policy", "noeviction")
        .start()
        .await?;
    let store = Store::connect(&server.url()).await?;
    let mut set = redis::cmd("SET");
    set.arg("k").arg("x".repeat(2_000_000));
    let mut last = store.query::<()>(&set).await;
    if last.is_ok() {
        last = store.query::<()>(&set).await;
    }
    let error = last.unwrap_err();
    assert_eq!(error.server_code(), Some("OOM"));
    assert!(error.is_unavailable() && !error.is_in_doubt(), "{error:?}");
    let mut pipeline = redis::pipe();
    pipeline.add_command(set.clone()).add_command(set);
    for transaction in [false, true] {
        if transaction {
            pipeline.atomic();
        }
        let error = store.pipeline::<()>(&pipeline).await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_in_doubt(), "{error:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_error_repeats_no_argument_of_a_command_that_is_unknown() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let mut unknown = redis::cmd("NOSUCHCOMMAND");
    unknown.arg("secret-token");
    let mut pipeline = redis::pipe();
    pipeline.cmd("PING").add_command(unknown.clone());
    let errors = [
        store.query::<()>(&unknown).await.unwrap_err(),
        store.pipeline::<()>(&pipeline).await.unwrap_err(),
        store
            .pipeline::<()>(pipeline.clone().atomic())
            .await
            .unwrap_err(),
    ];
    for error in errors {
        let mut text = format!("{error} {error:?}");
        text += &format!(" {:#}", anyhow::Error::from(error));
        assert!(text.contains("NOSUCHCOMMAND"), "{text}");
        assert!(!text.contains("secret-token"), "{text}");
    }
    Ok(())
}

/// Each redirection teaches the map, and only a real change of the masters disturbs clients that listen to all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_moved_slot_makes_no_gap_in_what_is_tracked() -> anyhow::Result<()> {
    use redstart::store::{Event, Listen};
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let store = Store::connect(&cluster.url()).await?;
    let keys = Keys::new("app", "tracked")?;
    let entity = keys.entity("x")?;
    let mut changes = store
        .subscribe([Listen::Changes(keys.prefix().into_iter().collect())])
        .await?;
    assert_eq!(changes.next().await, Some(Event::Subscribed));
    for round in 0..3 {
        let owner = cluster.owner(entity.slot()).await?;
        cluster.migrate_slot(entity.slot(), (owner + 1) % 3).await?;
        let mut set = redis::cmd("SET");
        set.arg(entity.key()).arg(round);
        store.query::<()>(&set).await?;
        match tokio::time::timeout(PATIENCE, changes.next()).await? {
            // Of the write, or of the migration.
            Some(Event::Changed(_)) => {}
            other => anyhow::bail!("{other:?}"),
        }
    }
    Ok(())
}

/// Callers that give up before the deadline are not there to see that there was no reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_hung_server_is_noticed_although_all_callers_give_up_early() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_millis(400))
        .connect()
        .await?;
    store.query::<i64>(&increment("n")).await?;
    let before = proxy.stats().connections;
    proxy.black_hole();
    let reconnects = eventually(PATIENCE, async || {
        let cmd = increment("n");
        let call = store.query::<i64>(&cmd);
        let _ = tokio::time::timeout(Duration::from_millis(50), call).await;
        proxy.stats().connections > before
    });
    assert!(
        reconnects.await,
        "the store stays with the connection that hangs"
    );
    Ok(())
}

/// A process may do nothing else than ask for the health.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_cluster_is_healthy_again_after_a_promotion_without_other_requests()
-> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 1).await?;
    let store = Store::connect(&cluster.url()).await?;
    store.health().await?;
    cluster.node(0).kill9();
    cluster.wait_promotion(0).await?;
    let healthy = eventually(PATIENCE, async || store.health().await.is_ok());
    assert!(
        healthy.await,
        "the store still asks the master that was replaced"
    );
    Ok(())
}

/// A router that forgot a connection drops its packets and says nothing; a new connection works. Behind a proxy the kernel
/// still acknowledges what is sent, so that only the missing reply can be noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_connection_that_was_dropped_silently_costs_one_deadline() -> anyhow::Result<()> {
    for tasks in [1, 16] {
        let server = Server::builder(Kind::Redis).start().await?;
        let forgotten = Proxy::start(&server).await?;
        let address = Proxy::to(&forgotten.addr()).await?;
        let store = Store::builder(address.url())
            .deadline(Duration::from_secs(2))
            .connect()
            .await?;
        store.query::<i64>(&increment("k")).await?;
        forgotten.black_hole();
        address.set_upstream(&format!("127.0.0.1:{}", server.port()));
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..tasks {
            let store = store.clone();
            all.spawn(async move {
                let (mut timeouts, began) = (0, Instant::now());
                while began.elapsed() < PATIENCE {
                    match store.query::<i64>(&increment("k")).await {
                        Ok(_) => return (true, timeouts),
                        Err(error) => timeouts += u32::from(error.is_timeout()),
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                (false, timeouts)
            });
        }
        for (works, timeouts) in all.join_all().await {
            assert!(
                works,
                "the connection is kept although nothing comes over it"
            );
            // One, and another if the machine is busy while the new connection is made.
            assert!(timeouts <= 2, "{timeouts} calls waited for their deadlines");
        }
        // The connection that was dropped is not used again.
        for _ in 0..20 {
            store.query::<i64>(&increment("k")).await?;
        }
    }
    Ok(())
}
