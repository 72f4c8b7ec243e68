//! The observed stage: MONITOR on every master for a bounded time.
//!
//! A server keeps what a MONITOR client has not read, without a limit by default. So that it never has to keep much, the
//! observation of a server ends when a line that was read is more than a second old, when the bytes of one line come for
//! longer than that, or when the server says on a second connection that it keeps more than 32 MB. It asks for that ten
//! times a second.
//!
//! It is read in turns with rests in between, over a connection that takes little at once. Most of what MONITOR costs a server is
//! not to write a line down but to deliver it, at once and by itself, for each command that it carries out. While a client is full
//! its system keeps the lines, and then sends very many of them together. Where a server works at its limit nevertheless, the
//! observation ends, because there MONITOR takes others' time.
//!
//! No server is waited for while another one keeps something: each has a task that opens its connection and reads it, and each is
//! asked for what it keeps beside the others.

use std::{
    io::BufRead as _,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use tokio::{sync::mpsc, time::timeout};

use super::Blinds;
use crate::{
    budget::Budget,
    cost::Cost,
    error::{Error, Result},
    node::Node,
    progress::Progress,
    target::{Access, Address},
    trace::Trace,
    wire::{self, Answer, Monitor, Trouble, Wire, words},
};

/// Lines that wait to be folded in.
const QUEUE: usize = 64;
/// Lines that are handed over together, and bytes of them.
const CHUNK: usize = 256;
const CHUNK_BYTES: usize = 128 << 10;
/// How long nothing is read after a turn, and what a turn brings at most before the next one follows at once, in bytes.
const REST: Duration = Duration::from_millis(100);
const SHORTEST_REST: Duration = Duration::from_millis(5);
const MUCH: u64 = 1 << 20;
/// Nothing comes for this long: a turn is over.
const QUIET: Duration = Duration::from_millis(5);
/// Over a line with longer round trips, little at a time would be too slow.
const FAR: Duration = Duration::from_millis(5);
/// Lines that are older than a few rests come too slowly, in seconds.
const LONG: f64 = 0.3;
/// How far behind a reader may be, in seconds.
const LATE: f64 = 1.0;
/// What the server may keep for us, in bytes, and how often it is asked.
const KEPT: u64 = 32 << 20;
const ASK: Duration = Duration::from_millis(100);
/// How often a server is asked how much of its time it works, which part of it is nearly all, and in how many seconds together. A
/// share from which on the doctor may take that much.
const STRAIN: Duration = Duration::from_secs(1);
const NEARLY_ALL: f64 = 0.9;
const TOGETHER: u32 = 2;
const MAY_STRAIN: u8 = 50;
/// Channels whose listeners are asked for.
const ASKED: usize = 64;
/// Why an observation ends early.
const BEHIND: &str =
    "ended early: the traffic is faster than it can be read, and the server would have to keep it";
const STRAINED: &str = "ended early: the server works at its limit, and MONITOR takes up to half of what it can do there; with a share of 50 % and more it goes on";
const UNKNOWN: &str = "ended early: the server did not answer how much it keeps";

/// Observes all masters.
pub(crate) async fn observe(
    nodes: &mut [Node],
    access: &Access,
    budget: &Budget,
    progress: &Progress,
    cost: &mut Cost,
    blinds: &mut Blinds,
) -> Option<Observed> {
    let (send, receive) = mpsc::channel::<Vec<Vec<u8>>>(QUEUE);
    let mut readers = Vec::new();
    let mut guards = Vec::new();
    for node in nodes.iter_mut().filter(|node| !node.replica) {
        let Some(address) = node.at.clone() else {
            blinds.note("MONITOR", "the embedded engine has no MONITOR");
            continue;
        };
        let link = Arc::new(Link::default());
        let reading = read(
            address,
            access.clone(),
            budget.clone(),
            Arc::clone(&link),
            send.clone(),
            progress.clone(),
        );
        readers.push((node.address.clone(), tokio::spawn(reading)));
        guards.push(guard(node, access, budget, progress, link));
    }
    drop(send);
    let folding = fold(receive, budget, progress);
    let (mut observed, asked) = tokio::join!(folding, join_all(guards));
    for own in asked {
        cost.add(&own);
    }
    if !observed.whole {
        let lines = observed.trace.lines;
        blinds.note("MONITOR", format!("ended after {lines} commands"));
    }
    let mut opened = false;
    for (address, reader) in readers {
        let early = match reader.await {
            Ok(Ok(end)) => {
                opened = true;
                cost.add(&end.cost);
                end.early
            }
            Ok(Err(trouble)) => Some(trouble.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = early {
            observed.whole = false;
            blinds.note(format!("MONITOR on {address}"), why);
        }
    }
    if !opened {
        return None;
    }
    channels(nodes, &mut observed.trace, blinds).await;
    Some(observed)
}

/// Folds lines until there are no more, or enough.
async fn fold(
    mut receive: mpsc::Receiver<Vec<Vec<u8>>>,
    budget: &Budget,
    progress: &Progress,
) -> Observed {
    let mut trace = Trace::default();
    let begun = Instant::now();
    let mut told = begun;
    loop {
        match timeout(ASK, receive.recv()).await {
            Ok(None) => return Observed { trace, whole: true },
            Ok(Some(lines)) => {
                for line in &lines {
                    // Its `+` is gone.
                    trace.feed_cut(line, line.len() + 1 >= wire::KEPT);
                }
            }
            Err(_) => {}
        }
        if told.elapsed() >= ASK {
            told = Instant::now();
            progress.step(
                "observing commands",
                begun.elapsed().as_millis() as u64,
                budget.observe.as_millis() as u64,
            );
        }
        if trace.lines >= budget.lines {
            return Observed {
                trace,
                whole: false,
            };
        }
    }
}

/// What was observed, and whether of all masters to the end.
pub(crate) struct Observed {
    pub(crate) trace: Trace,
    pub(crate) whole: bool,
}

/// What the reader of a server and its guard tell each other.
#[derive(Default)]
struct Link {
    /// The id of the MONITOR connection, where the server tells it; 0 until it does.
    id: AtomicU64,
    /// The server keeps too much for us, or does not say any more how much it keeps.
    behind: OnceLock<&'static str>,
    /// The reader has ended.
    ended: AtomicBool,
}

/// Opens a MONITOR connection and reads it.
async fn read(
    address: Address,
    access: Access,
    budget: Budget,
    link: Arc<Link>,
    send: mpsc::Sender<Vec<Vec<u8>>>,
    progress: Progress,
) -> Answer<End> {
    let opened = tokio::select! {
        opened = open(&address, &access, budget.patience, &link) => opened,
        () = progress.stopped() => Err(Trouble::Ended),
    };
    let end = match opened {
        Ok((monitor, ahead)) => {
            let reader = Reader {
                monitor,
                ahead,
                link: Arc::clone(&link),
                send,
                end: End::default(),
            };
            Ok(reader.run(budget.observe, &progress).await)
        }
        Err(trouble) => Err(trouble),
    };
    link.ended.store(true, Ordering::Relaxed);
    end
}

/// A MONITOR connection, and how far our clock is ahead of the server's.
async fn open(
    address: &Address,
    access: &Access,
    patience: Duration,
    link: &Link,
) -> Answer<(Monitor, f64)> {
    let mut wire = Wire::connect_for_monitor(address, access, patience).await?;
    let id: Answer<u64> = wire.get(words!["CLIENT", "ID"]).await;
    wire.rested().await;
    let asked = Instant::now();
    let time: Answer<Vec<f64>> = wire.get(words!["TIME"]).await;
    let is_far = asked.elapsed() > FAR;
    // The answer is a little old when it arrives, which makes lines look younger by as much.
    let ahead = match time.as_deref() {
        Ok([seconds, micros]) => seconds_now() - (seconds + micros / 1e6),
        _ => 0.0,
    };
    let monitor = wire.monitor().await?;
    if is_far {
        monitor.widen();
    }
    link.id.store(id.unwrap_or(0), Ordering::Relaxed);
    Ok((monitor, ahead))
}

/// Asks a server what it keeps for our MONITOR and how much it works, and ends the reader where that is too much, until the reader
/// has ended. What a connection of its own cost, if it needed one.
async fn guard(
    node: &mut Node,
    access: &Access,
    budget: &Budget,
    progress: &Progress,
    link: Arc<Link>,
) -> Cost {
    let mut own = None;
    if let (true, Some(address)) = (node.wire.is_broken(), &node.at) {
        own = tokio::select! {
            wire = Wire::connect(address, access, budget.patience) => wire.ok(),
            () = progress.stopped() => None,
        };
    }
    let wire = own.as_mut().unwrap_or(&mut node.wire);
    let strain = (budget.share < MAY_STRAIN).then(Strain::default);
    watch(wire, &link, strain).await;
    own.map_or_else(Cost::default, |wire| wire.cost)
}

async fn watch(wire: &mut Wire, link: &Link, mut strain: Option<Strain>) {
    while !link.ended.load(Ordering::Relaxed) {
        tokio::time::sleep(ASK).await;
        let id = link.id.load(Ordering::Relaxed);
        if id == 0 || link.ended.load(Ordering::Relaxed) || link.behind.get().is_some() {
            continue;
        }
        if let Some(strain) = strain.as_mut().filter(|strain| strain.is_due())
            && let Ok(text) = wire.get::<String>(words!["INFO", "cpu"]).await
            && strain.note(Instant::now(), worked(&text))
        {
            let _ = link.behind.set(STRAINED);
        }
        let question = words!["CLIENT", "LIST", "ID", id.to_string()];
        match wire.get::<String>(question).await {
            Ok(line) => {
                let kept = line
                    .split(' ')
                    .find_map(|pair| pair.strip_prefix("omem=")?.parse::<u64>().ok());
                if kept.is_some_and(|kept| kept > KEPT) {
                    let _ = link.behind.set(BEHIND);
                }
            }
            // A server before version 6.2, or one that does not tell this user: the age of the lines decides.
            Err(Trouble::Refused(_)) => return,
            Err(Trouble::Ended) => {}
            Err(Trouble::TimedOut | Trouble::Lost(_)) => {
                let _ = link.behind.set(UNKNOWN);
            }
        }
    }
}

/// How much of its time a server works.
#[derive(Default)]
struct Strain {
    /// When it was asked last, and how long it had worked by then, in seconds.
    last: Option<(Instant, Option<f64>)>,
    /// How often together it was nearly all.
    high: u32,
}

impl Strain {
    fn is_due(&self) -> bool {
        self.last.is_none_or(|(at, _)| at.elapsed() >= STRAIN)
    }

    /// Whether it works at its limit, and not only for a moment.
    fn note(&mut self, at: Instant, worked: Option<f64>) -> bool {
        let before = self.last.replace((at, worked));
        let busy = before.zip(worked).and_then(|((since, before), worked)| {
            Some((worked - before?) / (at - since).as_secs_f64())
        });
        self.high = match busy.is_some_and(|busy| busy > NEARLY_ALL) {
            true => self.high + 1,
            false => 0,
        };
        self.high >= TOGETHER
    }
}

/// How long the thread that carries out commands has worked, in seconds, by INFO. Servers before version 7 do not say it.
fn worked(info: &str) -> Option<f64> {
    let of = |name: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().parse::<f64>().ok()
    };
    Some(of("used_cpu_sys_main_thread:")? + of("used_cpu_user_main_thread:")?)
}

/// How a reader ended.
#[derive(Default)]
struct End {
    cost: Cost,
    early: Option<String>,
}

/// Reads the lines of one server.
struct Reader {
    monitor: Monitor,
    /// How far our clock is ahead of the server's, in seconds.
    ahead: f64,
    link: Arc<Link>,
    send: mpsc::Sender<Vec<Vec<u8>>>,
    end: End,
}

impl Reader {
    async fn run(mut self, limit: Duration, progress: &Progress) -> End {
        let deadline = Instant::now() + limit;
        let mut turns = Turns::default();
        let (mut chunk, mut held) = (Vec::new(), 0);
        let mut line = Vec::new();
        // When the last line ended, and what had come by then.
        let mut ended = (Instant::now(), self.monitor.bytes);
        // What had come when this turn began, and when that was by the server's clock: the turn has to come so far. None before it.
        let mut turn = None;
        // The lines that came by the deadline are read after it.
        while (Instant::now() < deadline || turn.is_some())
            && Instant::now() < deadline + ASK
            && !progress.is_stopped()
            && !self.send.is_closed()
        {
            if let Some(why) = self.link.behind.get() {
                self.end.early = Some((*why).to_owned());
                break;
            }
            let (before, upto) = match turn {
                Some(turn) => turn,
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    tokio::time::sleep(turns.rest.min(left)).await;
                    ended.0 = Instant::now();
                    *turn.insert((self.monitor.bytes, seconds_now() - self.ahead))
                }
            };
            match timeout(QUIET, self.monitor.line(&mut line)).await {
                // Nothing was read or part of a line was, which is kept for the next call.
                Err(_) => {
                    let coming = self.monitor.bytes > ended.1;
                    if coming && ended.0.elapsed().as_secs_f64() > LATE {
                        self.end.early = Some(BEHIND.to_owned());
                        break;
                    }
                    match coming {
                        true => turns.widen(&self.monitor),
                        false => {
                            turns.end(self.monitor.bytes - before);
                            turn = None;
                        }
                    }
                    self.hand_over(&mut chunk, 1, deadline, progress).await;
                }
                Ok(Ok(true)) => {
                    self.end.cost.lines += 1;
                    ended = (Instant::now(), self.monitor.bytes);
                    if let Some(at) = at(&line) {
                        let age = seconds_now() - at - self.ahead;
                        if age > LATE {
                            self.end.early = Some(BEHIND.to_owned());
                            break;
                        }
                        if age > LONG {
                            turns.widen(&self.monitor);
                        }
                        if at >= upto {
                            turns.end(self.monitor.bytes - before);
                            turn = None;
                        }
                    }
                    held += line.len();
                    chunk.push(std::mem::take(&mut line));
                    let enough = if held >= CHUNK_BYTES || turn.is_none() {
                        1
                    } else {
                        CHUNK
                    };
                    self.hand_over(&mut chunk, enough, deadline, progress).await;
                    if chunk.is_empty() {
                        held = 0;
                    }
                }
                Ok(Ok(false)) => {
                    let closed = "the server closed the connection; what came until then counts";
                    self.end.early = Some(closed.to_owned());
                    break;
                }
                Ok(Err(error)) => {
                    self.end.early = Some(format!(
                        "connection lost ({error}); what came until then counts"
                    ));
                    break;
                }
            }
        }
        // What was read before the end counts; there is room as soon as what was handed over before is folded in.
        let _ = self.send.send(chunk).await;
        self.end.cost.add(&self.monitor.setup);
        self.end.cost.bytes_read += self.monitor.bytes;
        self.end
    }

    /// Hands lines over if there are enough of them. While there is no room for them nothing is read, so the wait ends early where
    /// the reading has to.
    async fn hand_over(
        &self,
        chunk: &mut Vec<Vec<u8>>,
        enough: usize,
        deadline: Instant,
        progress: &Progress,
    ) {
        if chunk.len() < enough {
            return;
        }
        while self.link.behind.get().is_none()
            && Instant::now() < deadline
            && !progress.is_stopped()
        {
            match timeout(ASK, self.send.reserve()).await {
                Ok(Ok(room)) => {
                    room.send(std::mem::take(chunk));
                    return;
                }
                Ok(Err(_)) => return,
                Err(_) => {}
            }
        }
    }
}

/// The rests between the turns in which lines are read.
///
/// A line that may be delivered at once is: a packet and a wake-up for each command of a live workload, which is most of what
/// MONITOR costs a server. While nobody reads, the connection is full, and the server's system keeps the lines until it sends very
/// many together.
struct Turns {
    rest: Duration,
    /// The line takes much at once.
    is_wide: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            rest: SHORTEST_REST,
            is_wide: false,
        }
    }
}

impl Turns {
    /// The server is to send more at once: lines are long, or come too late.
    fn widen(&mut self, monitor: &Monitor) {
        if !std::mem::replace(&mut self.is_wide, true) {
            monitor.widen();
        }
    }

    /// After a turn that brought so many bytes. The server never keeps many of them for the sake of a rest.
    fn end(&mut self, brought: u64) {
        self.rest = match brought > MUCH {
            true => Duration::ZERO,
            false => (self.rest * 2).clamp(SHORTEST_REST, REST),
        };
    }
}

/// The time of a line, in seconds.
fn at(line: &[u8]) -> Option<f64> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    std::str::from_utf8(&line[..end]).ok()?.parse().ok()
}

fn seconds_now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |now| now.as_secs_f64())
}

/// Channels that clients published to and nobody was seen to listen to: those without ids in their names first.
fn unheard(trace: &Trace) -> Vec<Vec<u8>> {
    let patterns = trace.channel_patterns();
    let unheard = patterns.into_iter().filter(|(name, _)| {
        let channel = &trace.channels[*name];
        channel.published > channel.by_scripts && !channel.subscribed
    });
    let (of_ids, plain): (Vec<_>, Vec<_>) = unheard.partition(|(_, pattern)| pattern.contains('*'));
    let ordered = plain.into_iter().chain(of_ids);
    ordered.map(|(name, _)| name.to_vec()).collect()
}

/// Asks who listens to the channels that were published to.
async fn channels(nodes: &mut [Node], trace: &mut Trace, blinds: &mut Blinds) {
    let names = unheard(trace);
    if names.len() > ASKED || trace.more_channels {
        let all = match trace.more_channels {
            true => format!("more than {}", trace.channels.len()),
            false => names.len().to_string(),
        };
        blinds.note(
            "listeners of channels",
            format!(
                "asked for {} of {all} channels, those without ids in their names first",
                names.len().min(ASKED)
            ),
        );
    }
    for name in names.into_iter().take(ASKED) {
        let mut total = 0;
        // A subscriber may be at any of them.
        let mut known = !nodes.is_empty();
        for node in nodes.iter_mut() {
            for command in ["NUMSUB", "SHARDNUMSUB"] {
                let answer = node.wire.call(words!["PUBSUB", command, name]).await;
                known &= answer.is_ok() || command == "SHARDNUMSUB";
                if let Ok(redis::Value::Array(pair)) = answer {
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

/// What a recorded log shows.
pub(crate) struct Log {
    pub(crate) trace: Trace,
    pub(crate) cost: Cost,
    pub(crate) blinds: Blinds,
    /// It was read to its end.
    pub(crate) whole: bool,
}

/// Reads a recorded log.
pub(crate) fn from_log(path: &Path, budget: &Budget, progress: &Progress) -> Result<Log> {
    let (mut cost, mut blinds) = (Cost::default(), Blinds::default());
    let unreadable =
        |error: std::io::Error| Error::File(format!("{} cannot be read: {error}", path.display()));
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let all = file.metadata().map_or(0, |meta| meta.len());
    let mut reader = std::io::BufReader::with_capacity(1 << 20, file);
    let mut trace = Trace::default();
    let mut line = Vec::new();
    let (mut foreign, mut whole) = (0u64, true);
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
        let cut = line.last() != Some(&b'\n');
        while matches!(line.last(), Some(b'\n' | b'\r')) {
            line.pop();
        }
        let before = trace.lines;
        trace.feed_cut(&line, cut);
        foreign += u64::from(trace.lines == before && !line.is_empty() && line != b"OK");
        if cost.lines.is_multiple_of(10_000) {
            progress.step("reading the log", cost.bytes_read, all);
        }
        if progress.is_stopped() || trace.lines >= budget.lines {
            blinds.note("the log", format!("read up to line {}", cost.lines));
            whole = false;
            break;
        }
    }
    if trace.lines == 0 && !progress.is_stopped() {
        return Err(Error::Usage(format!(
            "{} has no line of MONITOR, nor one like {{\"time\":1.5,\"client\":\"a\",\"command\":[\"GET\",\"k\"]}}",
            path.display()
        )));
    }
    if foreign > 0 {
        blinds.note(
            "the log",
            format!(
                "{foreign} lines are neither of MONITOR nor commands in JSON, and were left out"
            ),
        );
    }
    Ok(Log {
        trace,
        cost,
        blinds,
        whole,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_at_its_limit_where_it_works_nearly_all_of_its_time_for_two_seconds() {
        let begun = Instant::now();
        let told = |worked: &[Option<f64>]| {
            let mut strain = Strain::default();
            let noted = worked.iter().zip(0u64..);
            noted
                .map(|(worked, second)| strain.note(begun + Duration::from_secs(second), *worked))
                .collect::<Vec<bool>>()
        };
        let at = |worked: [f64; 4]| told(&worked.map(Some));
        assert_eq!(at([5.0, 5.97, 6.94, 7.9]), [false, false, true, true]);
        // Once, and again later.
        assert_eq!(at([5.0, 5.99, 6.5, 7.49]), [false; 4]);
        assert_eq!(at([5.0, 5.85, 6.7, 7.55]), [false; 4]);
        assert_eq!(told(&[None, None, None]), [false; 3]);
        let info = "used_cpu_sys:9.5\r\nused_cpu_sys_main_thread:1.5\r\nused_cpu_user_main_thread:2.25\r\n";
        assert_eq!(worked(info), Some(3.75));
        assert_eq!(worked("used_cpu_sys:9.5\r\n"), None);
    }

    #[test]
    fn rests_grow_while_little_comes_and_end_where_much_does() {
        let mut turns = Turns::default();
        let rests: Vec<u128> = (0..7)
            .map(|_| {
                turns.end(1000);
                turns.rest.as_millis()
            })
            .collect();
        assert_eq!(rests, [10, 20, 40, 80, 100, 100, 100]);
        turns.end(MUCH + 1);
        assert!(turns.rest.is_zero());
        turns.end(1000);
        assert_eq!(turns.rest, SHORTEST_REST);
    }

    /// Counts how often something is read from it.
    struct Counted {
        stream: tokio::io::DuplexStream,
        reads: Arc<AtomicU64>,
    }

    impl tokio::io::AsyncRead for Counted {
        fn poll_read(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
            into: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            let read = std::pin::Pin::new(&mut self.stream).poll_read(context, into);
            self.reads
                .fetch_add(u64::from(read.is_ready()), Ordering::Relaxed);
            read
        }
    }

    impl tokio::io::AsyncWrite for Counted {
        fn poll_write(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
            from: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut self.stream).poll_write(context, from)
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
    }

    impl wire::Duplex for Counted {}

    /// Each line that is read by itself was delivered by itself.
    #[tokio::test]
    async fn lines_are_read_in_turns_and_those_before_the_end_all_count() {
        use tokio::io::AsyncWriteExt as _;
        let (here, mut there) = tokio::io::duplex(1 << 20);
        let reads = Arc::new(AtomicU64::new(0));
        let (send, mut receive) = mpsc::channel::<Vec<Vec<u8>>>(QUEUE);
        let reader = Reader {
            monitor: Monitor::over(Box::new(Counted {
                stream: here,
                reads: Arc::clone(&reads),
            })),
            ahead: 0.0,
            link: Arc::default(),
            send,
            end: End::default(),
        };
        let end = seconds_now() + 0.6;
        let writer = tokio::spawn(async move {
            let (mut by_the_end, mut ticks) = (0, tokio::time::interval(Duration::from_millis(1)));
            loop {
                ticks.tick().await;
                let now = seconds_now();
                let line = format!("+{now:.6} [0 a:1] \"GET\" \"k\"\r\n");
                if there.write_all(line.as_bytes()).await.is_err() {
                    return by_the_end;
                }
                by_the_end += u64::from(now < end);
            }
        });
        let limit = Duration::from_millis(600);
        let progress = Progress::default();
        let (end, _) = tokio::join!(reader.run(limit, &progress), async {
            while receive.recv().await.is_some() {}
        });
        let (sent, lines) = (writer.await.expect("it ends"), end.cost.lines);
        assert_eq!(end.early, None);
        assert!(lines >= sent && sent > 400, "{lines} of {sent}");
        let reads = reads.load(Ordering::Relaxed);
        assert!(reads * 8 < lines, "{reads} reads for {lines} lines");
    }

    #[test]
    fn a_log_that_is_longer_than_the_budget_is_not_seen_whole() -> Result<()> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "1700000000.1 [0 10.0.0.1:5] \"GET\" \"k\"\n".repeat(20);
        std::fs::write(file.path(), text).expect("written");
        for (lines, whole) in [(10, false), (30, true)] {
            let budget = Budget {
                lines,
                ..Budget::default()
            };
            let log = from_log(file.path(), &budget, &Progress::default())?;
            assert_eq!(log.whole, whole, "{lines}");
        }
        Ok(())
    }

    #[test]
    fn channels_without_ids_are_asked_for_first_and_in_order() {
        let mut trace = Trace::default();
        let mut publish = |channel: &str| {
            let line = format!(r#"1.0 [0 a:1] "PUBLISH" "{channel}" "m""#);
            trace.feed_cut(line.as_bytes(), false);
        };
        for user in 0..1_000 {
            publish(&format!("user:{user}"));
        }
        publish("mail:send");
        publish("audit");
        publish("heard");
        trace.feed_cut(br#"1.0 [0 b:1] "SUBSCRIBE" "heard""#, false);
        let names = unheard(&trace);
        assert_eq!(names.len(), 1_002);
        let first: Vec<&[u8]> = names.iter().take(3).map(Vec::as_slice).collect();
        assert_eq!(first, [&b"audit"[..], b"mail:send", b"user:0"]);
    }
}
