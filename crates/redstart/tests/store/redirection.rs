//! A slot table that is out of date: redirections, also those of nodes that do not know their own address, and requests
//! that no node redirects.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};

use redstart::{Store, key::Keys};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// Two nodes: the first gave all slots away, the second has them.
struct Nodes {
    ports: [u16; 2],
    /// The port that the slot table names.
    owner: AtomicU16,
    /// What the first node answers to a command with a key.
    moved: String,
    /// Each has half of the slots.
    halves: AtomicBool,
    /// The first node is cut off, and the second one has its half of the slots.
    cut_off: AtomicBool,
    /// How often the first node answered so.
    redirected: AtomicUsize,
    /// A slot has moved from the first to the second node, and only the second knows it.
    news: AtomicBool,
    /// The node whose answers come late, counted from one; 0 is none.
    late: AtomicUsize,
    /// How often the table was asked for.
    tables: AtomicUsize,
}

impl Nodes {
    async fn start(moved: impl FnOnce(u16) -> String) -> anyhow::Result<Arc<Self>> {
        let (first, second) = (
            TcpListener::bind("127.0.0.1:0").await?,
            TcpListener::bind("127.0.0.1:0").await?,
        );
        let ports = [first.local_addr()?.port(), second.local_addr()?.port()];
        let nodes = Arc::new(Self {
            ports,
            owner: AtomicU16::new(ports[0]),
            moved: moved(ports[1]),
            halves: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            redirected: AtomicUsize::new(0),
            news: AtomicBool::new(false),
            late: AtomicUsize::new(0),
            tables: AtomicUsize::new(0),
        });
        for (listener, is_first) in [(first, true), (second, false)] {
            let nodes = nodes.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(nodes.clone().serve(stream, is_first));
                }
            });
        }
        Ok(nodes)
    }

    async fn store(&self) -> redstart::Result<Store> {
        Store::builder(&format!("redis+cluster://127.0.0.1:{}", self.ports[0]))
            .deadline(Duration::from_secs(20))
            .connect()
            .await
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream, is_first: bool) {
        let mut buffer = vec![0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
            // A request begins with the number of its words; the words are short, come in one piece and have no asterisk.
            let requests = text.split('*').skip(1);
            let answers: String = requests.map(|words| self.answer(words, is_first)).collect();
            let late = self.late.load(Ordering::SeqCst) == if is_first { 1 } else { 2 };
            if late || !is_first && self.cut_off.load(Ordering::SeqCst) {
                // The answer of the other node comes first.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            if stream.write_all(answers.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn answer(&self, words: &str, is_first: bool) -> String {
        let cut_off = self.cut_off.load(Ordering::SeqCst);
        let knows = self.news.load(Ordering::SeqCst) && !is_first;
        if words.contains("SLOTS") {
            self.tables.fetch_add(1, Ordering::SeqCst);
        }
        if words.contains("INFO") && self.news.load(Ordering::SeqCst) {
            let epoch = if knows { 8 } else { 7 };
            let state = format!("cluster_state:ok\r\ncluster_current_epoch:{epoch}\r\n");
            return format!("${}\r\n{state}\r\n", state.len());
        }
        if words.contains("INFO") {
            let state = match cut_off && is_first {
                true => "cluster_state:fail",
                false => "cluster_state:ok",
            };
            return format!("${}\r\n{state}\r\n", state.len());
        }
        if words.contains("SLOTS") && self.halves.load(Ordering::SeqCst) && (is_first || !cut_off) {
            let [first, second] = self.ports;
            let last = if knows { 8190 } else { 8191 };
            let next = last + 1;
            return format!(
                "*2\r\n*3\r\n:0\r\n:{last}\r\n*2\r\n$0\r\n\r\n:{first}\r\n\
                 *3\r\n:{next}\r\n:16383\r\n*2\r\n$0\r\n\r\n:{second}\r\n"
            );
        }
        if words.contains("SLOTS") {
            let owner = self.owner.load(Ordering::SeqCst);
            return format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:{owner}\r\n");
        }
        if words.contains("DBSIZE") {
            return format!(":{}\r\n", if is_first { 1 } else { 7 });
        }
        if words.contains("SCAN") && self.news.load(Ordering::SeqCst) {
            // A node with more keys than anybody walks through.
            return "*2\r\n$1\r\n7\r\n*1\r\n$3\r\nkey\r\n".to_owned();
        }
        if words.contains("SCAN") {
            let key = if is_first { "old" } else { "new" };
            return format!("*2\r\n$1\r\n0\r\n*1\r\n$3\r\n{key}\r\n");
        }
        match (words.contains("INCR"), is_first) {
            (true, true) if words.contains("still-here") => ":1\r\n".to_owned(),
            (true, true) => {
                self.owner.store(self.ports[1], Ordering::SeqCst);
                self.redirected.fetch_add(1, Ordering::SeqCst);
                format!("-{}\r\n", self.moved)
            }
            (true, false) => ":7\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        }
    }
}

#[tokio::test]
async fn a_redirection_without_a_host_leads_to_the_host_that_was_asked() -> anyhow::Result<()> {
    let nodes = Nodes::start(|port| format!("MOVED 1 :{port}")).await?;
    let store = nodes.store().await?;
    let mut increment = redis::cmd("INCR");
    increment.arg("n");
    assert_eq!(store.query::<i64>(&increment).await?, 7);
    Ok(())
}

/// Of a node that was replaced all slots are elsewhere: a client that learned one by one would be redirected 16,384 times.
#[tokio::test]
async fn a_redirection_teaches_the_other_slots_too() -> anyhow::Result<()> {
    let nodes = Nodes::start(|port| format!("MOVED 1 :{port}")).await?;
    let store = nodes.store().await?;
    let redirected = || nodes.redirected.load(Ordering::SeqCst);
    // Keys of different slots, each asked for once.
    let mut number = 0;
    let mut next = async || {
        number += 1;
        let mut increment = redis::cmd("INCR");
        increment.arg(format!("n{number}"));
        store.query::<i64>(&increment).await
    };
    assert_eq!((next().await?, redirected()), (7, 1));
    // The table is read in the background.
    let patience = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let before = redirected();
        assert_eq!(next().await?, 7);
        if redirected() == before {
            break;
        }
        assert!(
            tokio::time::Instant::now() < patience,
            "each slot is learned alone"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = redirected();
    for _ in 0..100 {
        assert_eq!(next().await?, 7);
    }
    assert_eq!(redirected(), before);
    Ok(())
}

#[tokio::test]
async fn after_a_redirection_that_cannot_be_read_the_table_is() -> anyhow::Result<()> {
    let nodes = Nodes::start(|_| "MOVED 1 nowhere:at-all".to_owned()).await?;
    let store = nodes.store().await?;
    let mut increment = redis::cmd("INCR");
    increment.arg("n");
    assert_eq!(store.query::<i64>(&increment).await?, 7);
    Ok(())
}

#[tokio::test]
async fn after_a_plain_pipeline_that_was_refused_in_part_a_dedicated_connection_follows_its_slot()
-> anyhow::Result<()> {
    let nodes = Nodes::start(|port| format!("MOVED 1 :{port}")).await?;
    let store = nodes.store().await?;
    let entity = Keys::new("app", "x")?.entity("x")?;
    let mut own = store.dedicated(entity.key());
    let mut pipeline = redis::pipe();
    pipeline.cmd("INCR").arg(entity.part("still-here"));
    pipeline.cmd("INCR").arg(entity.part("gone"));
    let error = own.pipeline::<(i64, i64)>(&pipeline).await.unwrap_err();
    assert!(error.is_in_doubt(), "{error:?}");
    assert_eq!(own.pipeline::<(i64, i64)>(&pipeline).await?, (7, 7));
    Ok(())
}

#[tokio::test]
async fn what_goes_to_every_master_goes_to_those_of_now() -> anyhow::Result<()> {
    let nodes = Nodes::start(|_| String::new()).await?;
    let store = nodes.store().await?;
    assert_eq!(store.query::<i64>(&redis::cmd("DBSIZE")).await?, 1);
    nodes.owner.store(nodes.ports[1], Ordering::SeqCst);
    assert_eq!(store.scan("n?w").await?, ["new"]);
    nodes.owner.store(nodes.ports[0], Ordering::SeqCst);
    assert_eq!(store.query::<i64>(&redis::cmd("DBSIZE")).await?, 1);
    nodes.owner.store(nodes.ports[1], Ordering::SeqCst);
    assert_eq!(store.query::<i64>(&redis::cmd("DBSIZE")).await?, 7);
    Ok(())
}

/// The next page would go to any node, which does not know the cursor.
#[tokio::test]
async fn a_scan_that_would_see_one_node_is_refused_with_the_call_to_use() -> anyhow::Result<()> {
    let nodes = Nodes::start(|_| String::new()).await?;
    let store = nodes.store().await?;
    let mut scan = redis::cmd("scan");
    scan.arg(0);
    let error = store.query::<redis::Value>(&scan).await.unwrap_err();
    assert!(
        error.is_config() && error.to_string().contains("store.scan()"),
        "{error}"
    );
    for atomic in [false, true] {
        let mut pipeline = redis::pipe();
        if atomic {
            pipeline.atomic();
        }
        pipeline.add_command(scan.clone());
        let error = store.pipeline::<redis::Value>(&pipeline).await.unwrap_err();
        assert!(error.is_config(), "{error}");
    }
    Ok(())
}

/// A master that was replaced while it is cut off from the others still names itself.
#[tokio::test]
async fn the_table_of_a_node_that_is_cut_off_is_not_taken_if_there_is_another() -> anyhow::Result<()>
{
    let nodes = Nodes::start(|_| String::new()).await?;
    nodes.halves.store(true, Ordering::SeqCst);
    let store = nodes.store().await?;
    let size = redis::cmd("DBSIZE");
    assert_eq!(store.query::<i64>(&size).await?, 8, "of both");
    nodes.owner.store(nodes.ports[1], Ordering::SeqCst);
    nodes.cut_off.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(store.query::<i64>(&size).await?, 7, "of the second");
    }
    Ok(())
}

/// While the news of a slot that moved is on its way, the nodes have different tables. The slots do not move back and forth for that:
/// each time, those who listen for changes would lose their lines, and a walk would begin again.
#[tokio::test]
async fn an_older_table_does_not_replace_a_newer_one() -> anyhow::Result<()> {
    let nodes = Nodes::start(|_| String::new()).await?;
    nodes.halves.store(true, Ordering::SeqCst);
    let store = nodes.store().await?;
    nodes.news.store(true, Ordering::SeqCst);
    let mut walk = store.walk("k?y");
    let mut begun = 0;
    for turn in 0..8 {
        // The one that knows answers first, and then the other one.
        let late = if turn % 2 == 0 { 1 } else { 2 };
        nodes.late.store(late, Ordering::SeqCst);
        let part = walk.next(10).await?;
        begun += usize::from(part.is_first);
    }
    assert_eq!(begun, 1, "the table changed although no slot moved");
    Ok(())
}

#[tokio::test]
async fn those_who_ask_every_master_at_once_share_a_reading_of_the_table() -> anyhow::Result<()> {
    const CALLERS: usize = 100;
    let nodes = Nodes::start(|_| String::new()).await?;
    nodes.halves.store(true, Ordering::SeqCst);
    let store = nodes.store().await?;
    let before = nodes.tables.load(Ordering::SeqCst);
    let size = redis::cmd("DBSIZE");
    let calls = (0..CALLERS).map(|_| store.query_each::<u64>(&size));
    for sizes in futures_util::future::join_all(calls).await {
        assert_eq!(sizes?, [1, 7]);
    }
    // One that has begun, and one for those who came meanwhile; two nodes are asked each time.
    let tables = nodes.tables.load(Ordering::SeqCst) - before;
    assert!(tables <= CALLERS / 5, "{tables} tables for {CALLERS} calls");
    Ok(())
}
