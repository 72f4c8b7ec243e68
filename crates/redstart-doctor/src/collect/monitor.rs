//! The observed stage: MONITOR on every master for a bounded time.
//!
//! A server keeps what a MONITOR client has not read. So that it never has to keep much, the observation ends when
//! the lines read are more than a second old.

use std::{
    io::BufRead as _,
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::{sync::mpsc, time::timeout};

use super::Blinds;
use crate::{
    budget::Budget,
    cost::Cost,
    error::{Error, Result},
    node::Node,
    progress::Progress,
    target::Access,
    trace::Trace,
    wire::{Wire, words},
};

/// Lines that wait to be folded in.
const QUEUE: usize = 64;
/// Lines that are handed over together.
const CHUNK: usize = 256;
/// How far behind a reader may be.
const LATE: f64 = 1.0;

/// Observes all masters.
pub(crate) async fn observe(
    nodes: &mut [Node],
    access: &Access,
    budget: &Budget,
    progress: &Progress,
    cost: &mut Cost,
    blinds: &mut Blinds,
) -> Option<Trace> {
    let (send, mut receive) = mpsc::channel::<Vec<Vec<u8>>>(QUEUE);
    let mut readers = Vec::new();
    for node in nodes.iter().filter(|node| !node.replica) {
        let Some(address) = node.at.clone() else {
            blinds.note("MONITOR", "the embedded engine has no MONITOR");
            continue;
        };
        let wire = match Wire::connect(&address, access, budget.patience).await {
            Ok(wire) => wire.monitor().await,
            Err(trouble) => Err(trouble),
        };
        match wire {
            Ok(monitor) => {
                let (send, progress, limit) = (send.clone(), progress.clone(), budget.observe);
                let address = node.address.clone();
                readers.push(tokio::spawn(async move {
                    read(monitor, limit, &progress, send, address).await
                }));
            }
            Err(trouble) => blinds.note(format!("MONITOR on {}", node.address), trouble),
        }
    }
    drop(send);
    if readers.is_empty() {
        return None;
    }
    let mut trace = Trace::default();
    let begun = Instant::now();
    while let Some(lines) = receive.recv().await {
        for line in &lines {
            trace.feed(line);
        }
        progress.step(
            "observing commands",
            begun.elapsed().as_millis() as u64,
            budget.observe.as_millis() as u64,
        );
        if trace.lines >= budget.lines {
            blinds.note("MONITOR", format!("ended after {} commands", trace.lines));
            break;
        }
    }
    drop(receive);
    for reader in readers {
        if let Ok(end) = reader.await {
            cost.bytes_read += end.bytes;
            cost.lines += end.lines;
            if let Some(why) = end.early {
                blinds.note(format!("MONITOR on {}", end.address), why);
            }
        }
    }
    channels(nodes, &mut trace).await;
    Some(trace)
}

/// How a reader ended.
struct End {
    address: String,
    bytes: u64,
    lines: u64,
    early: Option<String>,
}

async fn read(
    mut monitor: crate::wire::Monitor,
    limit: Duration,
    progress: &Progress,
    send: mpsc::Sender<Vec<Vec<u8>>>,
    address: String,
) -> End {
    let deadline = Instant::now() + limit;
    let mut end = End {
        address,
        bytes: 0,
        lines: 0,
        early: None,
    };
    let mut chunk = Vec::new();
    let mut line = Vec::new();
    // The server's clock may differ from ours; the lines' age grows only if we fall behind.
    let mut ahead: Option<f64> = None;
    while Instant::now() < deadline && !progress.is_stopped() {
        match timeout(Duration::from_millis(100), monitor.line(&mut line)).await {
            // Nothing was read or part of a line was; the rest of it is no line and is ignored.
            Err(_) => {
                if !chunk.is_empty() && send.send(std::mem::take(&mut chunk)).await.is_err() {
                    break;
                }
            }
            Ok(Ok(true)) => {
                end.lines += 1;
                if end.lines.is_multiple_of(CHUNK as u64)
                    && let Some(age) = age(&line)
                {
                    let base = ahead.get_or_insert(age);
                    *base = base.min(age);
                    if age - *base > LATE {
                        end.early = Some("ended early: the traffic is faster than it can be read, and the server would have to keep it".to_owned());
                        break;
                    }
                }
                chunk.push(std::mem::take(&mut line));
                if chunk.len() >= CHUNK && send.send(std::mem::take(&mut chunk)).await.is_err() {
                    break;
                }
            }
            Ok(Ok(false)) => {
                end.early = Some(
                    "the server closed the connection; what came until then counts".to_owned(),
                );
                break;
            }
            Ok(Err(error)) => {
                end.early = Some(format!(
                    "connection lost ({error}); what came until then counts"
                ));
                break;
            }
        }
    }
    if !chunk.is_empty() {
        let _ = send.send(chunk).await;
    }
    end.bytes = monitor.bytes;
    end
}

/// Seconds between the line's time and ours.
fn age(line: &[u8]) -> Option<f64> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    let at: f64 = std::str::from_utf8(&line[..end]).ok()?.parse().ok()?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()?
        .as_secs_f64();
    Some(now - at)
}

/// Asks who listens to the channels that were published to.
async fn channels(nodes: &mut [Node], trace: &mut Trace) {
    let names: Vec<Vec<u8>> = trace
        .channels
        .iter()
        .filter(|(_, channel)| channel.published > 0)
        .map(|(name, _)| name.clone())
        .take(64)
        .collect();
    for name in names {
        let mut total = 0;
        let mut known = false;
        for node in nodes.iter_mut() {
            for command in ["NUMSUB", "SHARDNUMSUB"] {
                if let Ok(redis::Value::Array(pair)) =
                    node.wire.call(words!["PUBSUB", command, name]).await
                {
                    known = true;
                    total += pair
                        .get(1)
                        .and_then(|n| redis::from_redis_value::<u64>(n.clone()).ok())
                        .unwrap_or(0);
                }
            }
        }
        if let Some(channel) = trace.channels.get_mut(&name) {
            channel.subscribers = known.then_some(total);
        }
    }
}

/// A recorded log of MONITOR.
pub(crate) fn from_log(
    path: &Path,
    budget: &Budget,
    progress: &Progress,
    cost: &mut Cost,
    blinds: &mut Blinds,
) -> Result<Trace> {
    let unreadable =
        |error: std::io::Error| Error::File(format!("{} cannot be read: {error}", path.display()));
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let all = file.metadata().map_or(0, |meta| meta.len());
    let mut reader = std::io::BufReader::with_capacity(1 << 20, file);
    let mut trace = Trace::default();
    let mut line = Vec::new();
    let mut foreign = 0u64;
    loop {
        line.clear();
        let read = std::io::Read::take(&mut reader, 1 << 20)
            .read_until(b'\n', &mut line)
            .map_err(unreadable)?;
        if read == 0 {
            break;
        }
        cost.bytes_read += read as u64;
        cost.lines += 1;
        while matches!(line.last(), Some(b'\n' | b'\r')) {
            line.pop();
        }
        let before = trace.lines;
        trace.feed(&line);
        foreign += u64::from(trace.lines == before && !line.is_empty() && line != b"OK");
        if cost.lines.is_multiple_of(10_000) {
            progress.step("reading the log", cost.bytes_read, all);
        }
        if progress.is_stopped() || trace.lines >= budget.lines {
            blinds.note("the log", format!("read up to line {}", cost.lines));
            break;
        }
    }
    if trace.lines == 0 {
        return Err(Error::Usage(format!(
            "{} has no line of MONITOR",
            path.display()
        )));
    }
    if foreign > 0 {
        blinds.note(
            "the log",
            format!("{foreign} lines are not of MONITOR and were left out"),
        );
    }
    Ok(trace)
}
