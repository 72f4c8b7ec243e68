//! Seeded servers: what to write, what traffic to run, and what an examination of it must say.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, Result};
use redis::aio::MultiplexedConnection;
use redstart_doctor::{Doctor, Finding, Progress, Report, SURE};
use redstart_testkit::Server;

/// One side of a pair: a faulty world or its healthy twin.
#[derive(Clone, Copy, Default)]
pub(crate) struct Side {
    /// Commands that prepare it. `*20 SET k:# v` runs twenty times with `#` replaced; backquotes hold words together; a
    /// command after `!` may fail.
    pub(crate) seed: &'static [&'static str],
    /// `client COMMAND …`, again and again while the doctor observes; `# sleep 50` waits.
    pub(crate) traffic: &'static [&'static str],
    /// Settings, put back afterwards.
    pub(crate) config: &'static [(&'static str, &'static str)],
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
}

/// The words of a command.
fn words(line: &str, i: usize) -> Vec<String> {
    let line = line.replace('#', &i.to_string());
    let mut words = Vec::new();
    for (n, part) in line.split('`').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// A client over TCP: MONITOR names it by its port, and all clients of a unix socket alike.
async fn client(server: &Server) -> Result<MultiplexedConnection> {
    let patient = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(60)))
        .set_response_timeout(Some(Duration::from_secs(60)));
    let client = redis::Client::open(server.url())?;
    Ok(client
        .get_multiplexed_async_connection_with_config(&patient)
        .await?)
}

async fn send(
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
pub(crate) async fn examine(server: &Server, side: &Side, observe: u64) -> Result<Report> {
    server.command(&["FLUSHALL"]).await?;
    let mut old = Vec::new();
    for (name, value) in side.config {
        let before: Vec<String> = server.query(&["CONFIG", "GET", name]).await?;
        old.push((*name, before.get(1).cloned().unwrap_or_default()));
        server.command(&["CONFIG", "SET", name, value]).await?;
    }
    server.command(&["CONFIG", "RESETSTAT"]).await?;
    server.command(&["SLOWLOG", "RESET"]).await?;
    server.command(&["SCRIPT", "FLUSH"]).await?;
    seed(server, side.seed).await?;
    let mut builder = Doctor::builder(&server.url())
        .sampled()
        .gap(Duration::from_millis(100))
        .patience(Duration::from_secs(60));
    if observe > 0 {
        builder = builder.observed(Duration::from_millis(observe));
    }
    let doctor = builder.build()?;
    let progress = Progress::default();
    let report = tokio::select! {
        report = doctor.examine(&progress) => report?,
        stopped = run(server, side.traffic), if !side.traffic.is_empty() => {
            stopped?;
            anyhow::bail!("the traffic ended");
        }
    };
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
