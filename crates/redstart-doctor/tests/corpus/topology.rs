//! Worlds of more than one server: a Cluster, and a master with a replica.

use std::time::Duration;

use anyhow::{Context as _, Result};
use redis::aio::MultiplexedConnection;
use redstart_doctor::{Doctor, DoctorBuilder, Progress, Report};
use redstart_testkit::{Answer, Cluster, Kind, Server, Stub, key_slot, stub::bulk, wait_until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::world::Outcome;

/// The rules that are shown here.
pub(crate) const RULES: &[&str] = &[
    "crossslot-errors",
    "hot-key",
    "hot-slot",
    "replica-lag-under-locks",
    "redstart-clocks",
];

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes all of them, one after the other.
pub(crate) async fn outcomes(kind: Kind) -> Result<Vec<Outcome>> {
    let cluster = Cluster::start(kind, 3, 0).await?;
    let mut outcomes = vec![
        crossslot(&cluster).await?,
        hot_key(&cluster).await?,
        hot_slot(&cluster).await?,
    ];
    drop(cluster);
    outcomes.push(lag(kind).await?);
    outcomes.push(clocks(kind).await?);
    Ok(outcomes)
}

fn doctor(url: &str) -> DoctorBuilder {
    Doctor::builder(url)
        .sampled()
        .gap(Duration::from_millis(100))
        .share(50)
        .patience(PATIENCE)
}

async fn fresh(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        node.command(&["FLUSHALL"]).await?;
        node.command(&["CONFIG", "RESETSTAT"]).await?;
    }
    Ok(())
}

async fn crossslot(cluster: &Cluster) -> Result<Outcome> {
    let mut reports = Vec::new();
    for [one, other] in [["user:1", "user:2"], ["{user:1}:name", "{user:1}:mail"]] {
        fresh(cluster).await?;
        let owner = cluster.node(cluster.owner(key_slot(one.as_bytes())).await?);
        let answer = owner.command(&["MGET", one, other]).await;
        anyhow::ensure!(answer.is_err() == (one == "user:1"), "{answer:?}");
        let report = doctor(&cluster.url()).build()?;
        reports.push(report.examine(&Progress::default()).await?);
    }
    outcome("crossslot-errors", "CROSSSLOT".to_owned(), &[], reports)
}

/// Reads keys on the nodes that have them, until it is dropped: some thousand a second.
async fn read(clients: &mut [(MultiplexedConnection, Vec<String>)]) -> Result<()> {
    loop {
        for (client, keys) in clients.iter_mut() {
            for keys in keys.chunks(100) {
                let mut batch = redis::pipe();
                for key in keys {
                    batch.cmd("GET").arg(key).ignore();
                }
                batch.query_async::<()>(client).await?;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Observes a Cluster while these keys are read.
async fn observe(cluster: &Cluster, keys: &[String]) -> Result<Report> {
    fresh(cluster).await?;
    let mut clients = Vec::new();
    for node in cluster.nodes() {
        // Over TCP: MONITOR names all clients of a unix socket alike.
        let client = redis::Client::open(node.url())?;
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let client = client
            .get_multiplexed_async_connection_with_config(&patient)
            .await?;
        clients.push((client, Vec::new()));
    }
    for key in keys {
        let owner = cluster.owner(key_slot(key.as_bytes())).await?;
        clients[owner].1.push(key.clone());
    }
    let doctor = doctor(&cluster.url())
        .observed(Duration::from_millis(1500))
        // As many as a busy machine manages.
        .busy(50)
        .build()?;
    let progress = Progress::default();
    tokio::select! {
        report = doctor.examine(&progress) => Ok(report?),
        stopped = read(&mut clients) => {
            stopped?;
            anyhow::bail!("the traffic ended")
        }
    }
}

/// A hundred keys that are read as often as any other.
fn even() -> Vec<String> {
    (0..100).map(|i| format!("user:{i}:profile")).collect()
}

async fn hot_key(cluster: &Cluster) -> Result<Outcome> {
    let mut hot = even();
    hot.extend(std::iter::repeat_n("front:page".to_owned(), 100));
    let reports = vec![
        observe(cluster, &hot).await?,
        observe(cluster, &even()).await?,
    ];
    // The slot of the key is hot too, and so is its node.
    outcome("hot-key", "front:page".to_owned(), &["hot-slot"], reports)
}

async fn hot_slot(cluster: &Cluster) -> Result<Outcome> {
    let tagged: Vec<String> = (0..100).map(|i| format!("{{shop}}:item:{i}")).collect();
    let reports = vec![
        observe(cluster, &tagged).await?,
        observe(cluster, &even()).await?,
    ];
    let subject = format!("slot {}", key_slot(b"shop"));
    // The node of the slot is another subject of the rule.
    outcome("hot-slot", subject, &["hot-slot"], reports)
}

/// A replica that is stopped; and one that follows a master with some megabytes of writes a second.
async fn lag(kind: Kind) -> Result<Outcome> {
    let master = Server::builder(kind).start().await?;
    let replica = Server::builder(kind).replica_of(&master).start().await?;
    replica.wait_in_step().await?;
    let lock = "0f8fad5b-d9cb-469f-a165-70867728950e";
    master
        .command(&["SET", "lock:report", lock, "EX", "600"])
        .await?;
    let doctor = doctor(&master.url())
        .gap(Duration::from_secs(2))
        .lag(Duration::from_secs(3))
        .build()?;
    let page = "x".repeat(200_000);
    let writes = async {
        loop {
            master
                .command(&["SET", "page:front", &page, "EX", "60"])
                .await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        #[allow(unreachable_code)]
        anyhow::Ok(())
    };
    let progress = Progress::default();
    let healthy = tokio::select! {
        report = doctor.examine(&progress) => report?,
        stopped = writes => {
            stopped?;
            anyhow::bail!("the writes ended");
        }
    };
    replica.pause()?;
    wait_until("the replica to lag", PATIENCE, async || {
        let line = master.info("slave0").await.ok()?;
        let lag = line.split(',').find_map(|pair| pair.strip_prefix("lag="))?;
        (lag.parse::<u64>().ok()? >= 3).then_some(())
    })
    .await?;
    let faulty = doctor.examine(&progress).await;
    replica.resume()?;
    let subject = format!("replication of {}", master.addr());
    outcome(
        "replica-lag-under-locks",
        subject,
        &[],
        vec![faulty?, healthy],
    )
}

/// A line to a server that answers TIME itself, so many seconds ahead; its address.
async fn ahead(server: &Server, seconds: u64) -> Result<std::net::SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, upstream) = (listener.local_addr()?, server.addr());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let upstream = upstream.clone();
            tokio::spawn(async move {
                let (mut from, mut to) = TcpStream::connect(upstream).await?.into_split();
                let (mut requests, mut replies) = client.into_split();
                let mut asked = vec![0; 64 << 10];
                let mut answered = vec![0; 64 << 10];
                loop {
                    tokio::select! {
                        read = requests.read(&mut asked) => match read? {
                            0 => return std::io::Result::Ok(()),
                            read if asked[..read].ends_with(b"\r\nTIME\r\n") => {
                                let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
                                let now = (now.as_secs() + seconds).to_string();
                                let reply = format!("*2\r\n${}\r\n{now}\r\n$1\r\n0\r\n", now.len());
                                replies.write_all(reply.as_bytes()).await?;
                            }
                            read => to.write_all(&asked[..read]).await?,
                        },
                        read = from.read(&mut answered) => match read? {
                            0 => return Ok(()),
                            read => replies.write_all(&answered[..read]).await?,
                        },
                    }
                }
            });
        }
    });
    Ok(address)
}

/// A master and a replica that a Sentinel knows, with locks of Redstart.
async fn clocks(kind: Kind) -> Result<Outcome> {
    let master = Server::builder(kind).start().await?;
    let replica = Server::builder(kind).replica_of(&master).start().await?;
    let store = redstart::Store::connect(&format!("{}?timeout=30s", master.url())).await?;
    let mutex = redstart::locking::Mutex::new(&store, "shop", "report")?;
    let _lock = mutex.try_lock().await?.context("nobody else has it")?;
    replica.wait_in_step().await?;
    let mut reports = Vec::new();
    let mut subject = String::new();
    for seconds in [30, 0] {
        let line = ahead(&replica, seconds).await?;
        if seconds > 0 {
            subject = format!("clock of {line}");
        }
        let (host, port) = (bulk("127.0.0.1"), bulk(&master.port().to_string()));
        let master = format!("*2\r\n{host}{port}");
        let port = bulk(&line.port().to_string());
        let fields = format!("*4\r\n{}{host}{}{port}", bulk("ip"), bulk("port"));
        let sentinel = Stub::start(move |command| {
            let word = |at: usize| command.get(at).map(|word| word.to_ascii_uppercase());
            match (word(0).as_deref(), word(1).as_deref()) {
                (Some("SENTINEL"), Some("REPLICAS")) => Answer::Reply(format!("*1\r\n{fields}")),
                (Some("SENTINEL"), _) => Answer::Reply(master.clone()),
                _ => Answer::ok(),
            }
        })
        .await?;
        let url = format!("redis+sentinel://{}/main", sentinel.addr());
        let doctor = doctor(&url).build()?;
        reports.push(doctor.examine(&Progress::default()).await?);
    }
    outcome("redstart-clocks", subject, &[], reports)
}

fn outcome(
    rule: &'static str,
    subject: String,
    also: &'static [&'static str],
    reports: Vec<Report>,
) -> Result<Outcome> {
    let [faulty, healthy] = <[Report; 2]>::try_from(reports)
        .ok()
        .context("two reports")?;
    Ok(Outcome {
        rule,
        subject,
        also,
        faulty,
        healthy,
    })
}
