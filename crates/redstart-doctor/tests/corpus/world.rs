//! Seeded servers: what to write, what traffic to run, and what an examination of it must say.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, Result};
use redis::aio::MultiplexedConnection;
use redstart_doctor::{Doctor, DoctorBuilder, Finding, Progress, Report, SURE};
use redstart_testkit::{Server, wait_until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    sync::watch,
};

/// One side of a pair: a faulty world or its healthy twin.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    /// Connections that are open before anything is written, until the report is there.
    pub(crate) guests: &'static [Guest],
    /// Commands that prepare it. `*20 SET k:# v` runs twenty times with `#` replaced; backquotes hold words together; `@900` is
    /// a word of 900 letters, `@now` the time in milliseconds; a command after `!` may fail.
    pub(crate) seed: &'static [&'static str],
    /// `client COMMAND …`, again and again while the doctor observes; `# sleep 50` waits.
    pub(crate) traffic: &'static [&'static str],
    /// Commands that are sent once, between the doctor's two looks.
    pub(crate) between: &'static [&'static str],
    /// Settings, put back afterwards.
    pub(crate) config: &'static [(&'static str, &'static str)],
    /// Commands that put back what no setting does.
    pub(crate) undo: &'static [&'static str],
}

/// Connections of others.
#[derive(Clone, Copy)]
pub(crate) enum Guest {
    /// So many that ask for nothing, with this name or without one.
    Idle(usize, &'static str),
    /// One from each of so many hosts.
    Hosts(u8),
    /// So many subscribers that read what comes.
    Listens(usize, &'static str),
    /// A subscriber that reads nothing.
    Deaf(&'static str),
}

/// A rule, a world that shows it, and a twin that does not.
pub(crate) struct Case {
    pub(crate) rule: &'static str,
    pub(crate) subject: &'static str,
    pub(crate) faulty: Side,
    pub(crate) healthy: Side,
    /// Rules that are right to speak about the faulty world too.
    pub(crate) also: &'static [&'static str],
    /// How long to observe; 0 runs the first two stages only.
    pub(crate) observe: u64,
    /// What the examination is told besides.
    pub(crate) with: fn(DoctorBuilder) -> DoctorBuilder,
}

/// What the examinations of a faulty world and its twin said.
pub(crate) struct Outcome {
    pub(crate) rule: &'static str,
    pub(crate) subject: String,
    pub(crate) also: &'static [&'static str],
    pub(crate) faulty: Report,
    pub(crate) healthy: Report,
}

impl Case {
    pub(crate) async fn run(&self, server: &Server) -> Result<Outcome> {
        let context = || format!("the world of {}", self.rule);
        Ok(Outcome {
            rule: self.rule,
            subject: self.subject.to_owned(),
            also: self.also,
            faulty: examine(server, &self.faulty, self)
                .await
                .with_context(context)?,
            healthy: examine(server, &self.healthy, self)
                .await
                .with_context(context)?,
        })
    }
}

/// Opens the connections of a guest. They end with what is returned.
async fn invite(server: &Server, guest: Guest) -> Result<Guests> {
    let mut guests = Guests::default();
    let connect = async |host: u8| -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(([127, 0, 0, host], 0).into())?;
        Ok(socket.connect(server.addr().parse()?).await?)
    };
    match guest {
        Guest::Idle(count, name) => {
            for _ in 0..count {
                let mut stream = connect(1).await?;
                let line = match name {
                    "" => "PING\r\n".to_owned(),
                    name => format!("CLIENT SETNAME {name}\r\n"),
                };
                ask(&mut stream, &line).await?;
                guests.streams.push(stream);
            }
        }
        Guest::Hosts(count) => {
            for host in 1..=count {
                let mut stream = connect(host).await?;
                ask(&mut stream, "PING\r\n").await?;
                guests.streams.push(stream);
            }
        }
        Guest::Listens(count, channel) => {
            for _ in 0..count {
                let mut stream = connect(1).await?;
                ask(&mut stream, "CLIENT SETNAME listener\r\n").await?;
                ask(&mut stream, &format!("SUBSCRIBE {channel}\r\n")).await?;
                guests.readers.spawn(async move {
                    let mut room = vec![0; 64 << 10];
                    while matches!(stream.read(&mut room).await, Ok(1..)) {}
                });
            }
        }
        Guest::Deaf(channel) => {
            let mut stream = connect(1).await?;
            ask(&mut stream, &format!("SUBSCRIBE {channel}\r\n")).await?;
            guests.streams.push(stream);
        }
    }
    Ok(guests)
}

/// Connections that are held open.
#[derive(Default)]
struct Guests {
    streams: Vec<TcpStream>,
    readers: tokio::task::JoinSet<()>,
}

/// Sends a line and waits for the beginning of its answer.
async fn ask(stream: &mut TcpStream, line: &str) -> Result<()> {
    stream.write_all(line.as_bytes()).await?;
    let mut room = [0; 256];
    anyhow::ensure!(stream.read(&mut room).await? > 0, "no answer to {line:?}");
    Ok(())
}

/// Waits until every connection of this name has asked for nothing for a second.
async fn wait_idle(server: &Server, name: &str) -> Result<()> {
    let needle = format!(" name={name} ");
    wait_until("the guests to be idle", PATIENCE, async || {
        let clients: String = server.query(&["CLIENT", "LIST"]).await.ok()?;
        clients
            .lines()
            // The one that asks is never idle, and has no name.
            .filter(|line| line.contains(&needle) && !line.contains(" cmd=client|list "))
            .all(|line| !line.contains(" idle=0 "))
            .then_some(())
    })
    .await
}

const PATIENCE: Duration = Duration::from_secs(60);

/// The words of a command.
pub(crate) fn words(line: &str, i: usize) -> Vec<String> {
    let line = line.replace('#', &i.to_string());
    let mut words = Vec::new();
    for (n, part) in line.split('`').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    for word in &mut words {
        if word == "@now" {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            *word = now.unwrap_or_default().as_millis().to_string();
        }
        if let Some(size) = word.strip_prefix('@').and_then(|size| size.parse().ok()) {
            *word = "x".repeat(size);
        }
    }
    words
}

/// A client over TCP: MONITOR names it by its port, and all clients of a unix socket alike.
pub(crate) async fn client(server: &Server) -> Result<MultiplexedConnection> {
    let patient = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(60)))
        .set_response_timeout(Some(Duration::from_secs(60)));
    let client = redis::Client::open(server.url())?;
    Ok(client
        .get_multiplexed_async_connection_with_config(&patient)
        .await?)
}

pub(crate) async fn send(
    client: &mut MultiplexedConnection,
    words: &[String],
) -> redis::RedisResult<redis::Value> {
    let mut cmd = redis::cmd(&words[0]);
    cmd.arg(&words[1..]);
    cmd.query_async(client).await
}

async fn seed(server: &Server, lines: &[&str]) -> Result<()> {
    let mut client = server.client().await?;
    for line in lines {
        let (line, may_fail) = match line.strip_prefix('!') {
            Some(line) => (line, true),
            None => (*line, false),
        };
        let (times, line) = match line.strip_prefix('*').and_then(|rest| rest.split_once(' ')) {
            Some((times, line)) => (times.parse()?, line),
            None => (1, line),
        };
        for i in 0..times {
            let result = send(&mut client, &words(line, i)).await;
            if !may_fail {
                result.with_context(|| line.to_owned())?;
            }
        }
    }
    Ok(())
}

/// Runs the traffic until it is aborted.
async fn run(server: &Server, lines: &[&str]) -> Result<()> {
    let mut clients: HashMap<&str, MultiplexedConnection> = HashMap::new();
    for round in 0.. {
        for line in lines {
            if let Some(ms) = line.strip_prefix("# sleep ") {
                tokio::time::sleep(Duration::from_millis(ms.parse()?)).await;
                continue;
            }
            let (name, command) = line.split_once(' ').context("a client and a command")?;
            if !clients.contains_key(name) {
                clients.insert(name, client(server).await?);
            }
            let own = clients.get_mut(name).context("the client")?;
            // A command may be refused; that is part of the world.
            let _ = send(own, &words(command, round)).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Makes a side, examines it, and cleans up.
async fn examine(server: &Server, side: &Side, case: &Case) -> Result<Report> {
    server.command(&["FLUSHALL"]).await?;
    let mut old = Vec::new();
    for (name, value) in side.config {
        let before: Vec<String> = server.query(&["CONFIG", "GET", name]).await?;
        old.push((*name, before.get(1).cloned().unwrap_or_default()));
        server.command(&["CONFIG", "SET", name, value]).await?;
    }
    server.command(&["CONFIG", "RESETSTAT"]).await?;
    server.command(&["SLOWLOG", "RESET"]).await?;
    server.command(&["LATENCY", "RESET"]).await?;
    server.command(&["SCRIPT", "FLUSH"]).await?;
    let mut guests = Vec::new();
    for guest in side.guests {
        guests.push(invite(server, *guest).await?);
    }
    for guest in side.guests {
        if let Guest::Idle(_, name) = guest {
            wait_idle(server, name).await?;
        }
    }
    seed(server, side.seed).await?;
    let mut builder = Doctor::builder(&server.url())
        .sampled()
        .gap(Duration::from_millis(100))
        .share(50)
        .patience(PATIENCE);
    if case.observe > 0 {
        builder = builder.observed(Duration::from_millis(case.observe));
    }
    let doctor = (case.with)(builder).build()?;
    let (first, mut looked) = watch::channel(false);
    let progress = Progress::new(move |step| {
        if step.what == "waiting for the second look" {
            first.send_replace(true);
        }
    });
    let between = async {
        if !side.between.is_empty() && looked.wait_for(|looked| *looked).await.is_ok() {
            seed(server, side.between).await?;
        }
        std::future::pending::<Result<()>>().await
    };
    let report = tokio::select! {
        report = doctor.examine(&progress) => report?,
        stopped = run(server, side.traffic), if !side.traffic.is_empty() => {
            stopped?;
            anyhow::bail!("the traffic ended");
        }
        failed = between => {
            failed?;
            anyhow::bail!("the commands between the looks ended");
        }
    };
    drop(guests);
    seed(server, side.undo).await?;
    for (name, value) in old {
        server.command(&["CONFIG", "SET", name, &value]).await?;
    }
    Ok(report)
}

/// The findings that count.
pub(crate) fn sure(report: &Report) -> Vec<&Finding> {
    report
        .findings
        .iter()
        .filter(|finding| finding.confidence >= SURE)
        .collect()
}
