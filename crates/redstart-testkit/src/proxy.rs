//! A fault proxy on loopback, which does to connections what networks do.
//!
//! It has a thread and a runtime of its own, so that neither a paused clock nor a busy test
//! disturbs it. Rules hold for the connections that exist and for new ones, at once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};

use crate::resp::{Framer, Side};
use crate::{Server, wait_until};

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Pass,
    /// Each piece arrives this much later; the throughput is the same.
    Delay(Duration),
    /// Bytes per second.
    Throttle(u64),
    /// Kept, and delivered when the rule changes.
    Hold,
    /// Lost. The connection cannot go on after that, see [`Proxy::pass`].
    Swallow,
}

#[derive(Debug, Clone)]
struct Rules {
    requests: Flow,
    replies: Flow,
    accept: bool,
    upstream: String,
    /// Connections of an older generation are cut.
    generation: u64,
}

/// Waits for one particular request.
#[derive(Debug)]
struct Trap {
    needle: Vec<u8>,
    act: Act,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    CutBefore,
    DropReply,
}

/// What went through a [`Proxy`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Connections accepted since the start.
    pub connections: u64,
    /// Connections open now.
    pub open: u64,
    /// Bytes delivered to the server.
    pub request_bytes: u64,
    /// Bytes delivered to clients.
    pub reply_bytes: u64,
    /// Bytes lost on purpose, in both directions.
    pub swallowed_bytes: u64,
    /// Traps that were sprung, see [`Proxy::drop_reply_to`] and [`Proxy::cut_before`].
    pub sprung: u64,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    open: AtomicU64,
    request_bytes: AtomicU64,
    reply_bytes: AtomicU64,
    swallowed_bytes: AtomicU64,
    sprung: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    rules: watch::Sender<Rules>,
    listening: watch::Sender<bool>,
    traps: Mutex<VecDeque<Trap>>,
    counters: Counters,
}

/// A proxy between clients and one server. It ends when it is dropped.
///
/// ```no_run
/// # async fn f() -> anyhow::Result<()> {
/// use redstart_testkit::{Kind, Proxy, Server};
///
/// let server = Server::builder(Kind::Redis).start().await?;
/// let proxy = Proxy::start(&server).await?;
/// // The server will run the next EVALSHA, and its client will never know.
/// proxy.drop_reply_to("EVALSHA");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    url: String,
    stop: Option<oneshot::Sender<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `server`, with a TCP port of its own.
    ///
    /// # Errors
    ///
    /// If no port can be bound.
    pub async fn start(server: &Server) -> Result<Self> {
        let mut proxy = Self::to(&server.addr()).await?;
        proxy.url = server.url_at(proxy.port);
        Ok(proxy)
    }

    /// Starts a proxy in front of whatever listens on `host:port`.
    ///
    /// # Errors
    ///
    /// If no port can be bound.
    pub async fn to(upstream: &str) -> Result<Self> {
        let shared = Arc::new(Shared {
            rules: watch::Sender::new(Rules {
                requests: Flow::Pass,
                replies: Flow::Pass,
                accept: true,
                upstream: upstream.to_owned(),
                generation: 0,
            }),
            listening: watch::Sender::new(true),
            traps: Mutex::default(),
            counters: Counters::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let (bound, port) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let state = Arc::clone(&shared);
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept_loop(state, bound) => {}
                    _ = stopped => {}
                }
            });
            // Tasks of connections end with their runtime, and close their sockets.
        });
        let port = port.await.context("the proxy found no port")?;
        let url = format!("redis://127.0.0.1:{port}");
        Ok(Self {
            shared,
            port,
            url,
            stop: Some(stop),
        })
    }

    /// The server's URL with the proxy's port in it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `127.0.0.1:port`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Everything passes again, in both directions, and new connections are accepted. Armed traps are
    /// disarmed. A connection that lost bytes is cut, since the rest of its stream would make no
    /// sense.
    pub async fn pass(&self) {
        self.traps().clear();
        self.change(|rules| {
            (rules.requests, rules.replies, rules.accept) = (Flow::Pass, Flow::Pass, true);
        });
        self.wait_listening(true).await;
    }

    /// Each request and each reply arrives this much later.
    pub fn delay(&self, by: Duration) {
        self.change(|rules| (rules.requests, rules.replies) = (Flow::Delay(by), Flow::Delay(by)));
    }

    /// Each request arrives this much later.
    pub fn delay_requests(&self, by: Duration) {
        self.change(|rules| rules.requests = Flow::Delay(by));
    }

    /// Each reply arrives this much later.
    pub fn delay_replies(&self, by: Duration) {
        self.change(|rules| rules.replies = Flow::Delay(by));
    }

    /// At most this many bytes per second, in each direction and for each connection.
    pub fn throttle(&self, bytes_per_second: u64) {
        let flow = Flow::Throttle(bytes_per_second.max(1));
        self.change(|rules| (rules.requests, rules.replies) = (flow, flow));
    }

    /// Nothing arrives, but nothing is lost: it is delivered when the rule changes, as after a
    /// network outage.
    pub fn stall(&self) {
        self.change(|rules| (rules.requests, rules.replies) = (Flow::Hold, Flow::Hold));
    }

    /// Connections are accepted and stay open; whatever is sent, in either direction, is lost.
    pub fn black_hole(&self) {
        self.change(|rules| (rules.requests, rules.replies) = (Flow::Swallow, Flow::Swallow));
    }

    /// Requests are lost; what the server pushes still arrives.
    pub fn black_hole_requests(&self) {
        self.change(|rules| (rules.requests, rules.replies) = (Flow::Swallow, Flow::Pass));
    }

    /// Requests reach the server, which runs them; its replies are lost.
    pub fn drop_replies(&self) {
        self.change(|rules| (rules.requests, rules.replies) = (Flow::Pass, Flow::Swallow));
    }

    /// Closes every connection, and returns when they are closed. New ones are accepted.
    ///
    /// # Errors
    ///
    /// If they are not closed within ten seconds.
    pub async fn cut(&self) -> Result<()> {
        let before = self.stats().connections;
        self.change(|rules| rules.generation += 1);
        let counters = &self.shared.counters;
        wait_until(
            "the proxy's connections to be closed",
            Duration::from_secs(10),
            async || {
                let open = counters.open.load(Ordering::SeqCst);
                // Clients may have reconnected already.
                let new = counters.connections.load(Ordering::SeqCst) - before;
                (open <= new).then_some(())
            },
        )
        .await
    }

    /// New connections are refused, as by a host that does not listen on this port; existing ones stay.
    pub async fn refuse(&self) {
        self.change(|rules| rules.accept = false);
        self.wait_listening(false).await;
    }

    /// The next request that contains `needle` reaches the server, which runs it; when its reply
    /// arrives it is dropped and the connection is cut. Replies to earlier requests still arrive.
    ///
    /// Requests and replies are matched by counting them, so this is not for connections that
    /// subscribe.
    pub fn drop_reply_to(&self, needle: &str) {
        self.trap(needle, Act::DropReply);
    }

    /// [`drop_reply_to`](Self::drop_reply_to), for the next `times` such requests.
    pub fn drop_replies_to(&self, needle: &str, times: usize) {
        for _ in 0..times {
            self.trap(needle, Act::DropReply);
        }
    }

    /// The next request that contains `needle` does not reach the server: the connection is cut.
    pub fn cut_before(&self, needle: &str) {
        self.trap(needle, Act::CutBefore);
    }

    /// Sends new connections to another `host:port`. Existing ones stay; see [`cut`](Self::cut).
    pub fn set_upstream(&self, upstream: &str) {
        self.change(|rules| rules.upstream = upstream.to_owned());
    }

    /// What went through so far.
    pub fn stats(&self) -> Stats {
        let counters = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Stats {
            connections: read(&counters.connections),
            open: read(&counters.open),
            request_bytes: read(&counters.request_bytes),
            reply_bytes: read(&counters.reply_bytes),
            swallowed_bytes: read(&counters.swallowed_bytes),
            sprung: read(&counters.sprung),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        self.shared.rules.send_modify(change);
    }

    fn trap(&self, needle: &str, act: Act) {
        self.traps().push_back(Trap {
            needle: needle.as_bytes().to_vec(),
            act,
        });
    }

    fn traps(&self) -> std::sync::MutexGuard<'_, VecDeque<Trap>> {
        self.shared
            .traps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait_listening(&self, wanted: bool) {
        // The sender lives as long as `self`.
        let _ = self
            .shared
            .listening
            .subscribe()
            .wait_for(|now| *now == wanted)
            .await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

async fn accept_loop(shared: Arc<Shared>, bound: oneshot::Sender<u16>) {
    let mut rules = shared.rules.subscribe();
    let (mut listener, port) = loop {
        let port = crate::process::free_port();
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            break (listener, port);
        }
    };
    if bound.send(port).is_err() {
        return;
    }
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    shared.counters.connections.fetch_add(1, Ordering::SeqCst);
                    shared.counters.open.fetch_add(1, Ordering::SeqCst);
                    // What was changed before this connection came does not cut it.
                    let generation = shared.rules.borrow().generation;
                    let state = Arc::clone(&shared);
                    tokio::spawn(async move {
                        connection(&state, client, generation).await;
                        state.counters.open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            }
            changed = rules.changed() => {
                if changed.is_err() {
                    return;
                }
                if rules.borrow_and_update().accept {
                    continue;
                }
                drop(listener);
                shared.listening.send_replace(false);
                if rules.wait_for(|rules| rules.accept).await.is_err() {
                    return;
                }
                listener = loop {
                    match TcpListener::bind(("127.0.0.1", port)).await {
                        Ok(listener) => break listener,
                        Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                    }
                };
                shared.listening.send_replace(true);
            }
        }
    }
}

async fn connection(shared: &Arc<Shared>, client: TcpStream, generation: u64) {
    let mut rules = shared.rules.subscribe();
    let upstream = rules.borrow().upstream.clone();
    let Ok(server) = TcpStream::connect(&upstream).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Number of the request whose reply is to be dropped; 0 for none.
    let doomed = AtomicU64::new(0);
    let requests = pump(shared, Side::Requests, from_client, to_server, &doomed);
    let replies = pump(shared, Side::Replies, from_server, to_client, &doomed);
    tokio::select! {
        () = requests => {}
        () = replies => {}
        _ = rules.wait_for(|rules| rules.generation > generation) => {}
    }
    // Dropping both halves of both sockets closes them.
}

enum Piece {
    Bytes(Instant, Vec<u8>),
    /// The connection ends when everything before this has been delivered.
    End,
}

/// Carries one direction until the connection ends.
async fn pump(
    shared: &Shared,
    side: Side,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    doomed: &AtomicU64,
) {
    let (pieces, queue) = mpsc::channel(1024);
    let read = read_pieces(shared, side, reader, pieces, doomed);
    let write = write_pieces(shared, side, writer, queue);
    // The writer ends the direction: after the last piece, or when its socket is broken.
    tokio::select! {
        () = write => {}
        () = async { read.await; std::future::pending().await } => {}
    }
}

async fn read_pieces(
    shared: &Shared,
    side: Side,
    mut reader: OwnedReadHalf,
    pieces: mpsc::Sender<Piece>,
    doomed: &AtomicU64,
) {
    let mut framer = Framer::new(side);
    let mut buffer = vec![0; 64 * 1024];
    let mut count = 0;
    'read: loop {
        let n = match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(n) => n,
        };
        let now = Instant::now();
        framer.push(&buffer[..n]);
        let mut batch = Vec::new();
        let mut cut = false;
        while let Some(frame) = framer.next() {
            // A push message answers no request.
            if !framer.is_raw() && frame.first() != Some(&b'>') {
                count += 1;
            }
            match side {
                Side::Requests => match spring(shared, &frame) {
                    Some(Act::CutBefore) => cut = true,
                    // An earlier one on this connection will cut it before this one's reply.
                    Some(Act::DropReply) => {
                        let _ =
                            doomed.compare_exchange(0, count, Ordering::SeqCst, Ordering::SeqCst);
                    }
                    None => {}
                },
                Side::Replies => {
                    let wanted = doomed.load(Ordering::SeqCst);
                    if wanted != 0 && count >= wanted {
                        let lost = frame.len() as u64;
                        shared
                            .counters
                            .swallowed_bytes
                            .fetch_add(lost, Ordering::SeqCst);
                        cut = true;
                    }
                }
            }
            if cut {
                break;
            }
            batch.extend_from_slice(&frame);
        }
        if !batch.is_empty() && pieces.send(Piece::Bytes(now, batch)).await.is_err() {
            return;
        }
        if cut {
            break 'read;
        }
    }
    let _ = pieces.send(Piece::End).await;
}

/// Takes the first armed trap that this request springs.
fn spring(shared: &Shared, frame: &[u8]) -> Option<Act> {
    let mut traps = shared.traps.lock().unwrap_or_else(PoisonError::into_inner);
    let contains = |needle: &[u8]| {
        !needle.is_empty() && frame.windows(needle.len()).any(|window| window == needle)
    };
    let index = traps.iter().position(|trap| contains(&trap.needle))?;
    shared.counters.sprung.fetch_add(1, Ordering::SeqCst);
    traps.remove(index).map(|trap| trap.act)
}

async fn write_pieces(
    shared: &Shared,
    side: Side,
    mut writer: OwnedWriteHalf,
    mut queue: mpsc::Receiver<Piece>,
) {
    let mut rules = shared.rules.subscribe();
    let delivered = match side {
        Side::Requests => &shared.counters.request_bytes,
        Side::Replies => &shared.counters.reply_bytes,
    };
    let flow_of = |rules: &Rules| match side {
        Side::Requests => rules.requests,
        Side::Replies => rules.replies,
    };
    let mut lost_some = false;
    loop {
        let piece = tokio::select! {
            piece = queue.recv() => piece,
            // What follows on lost bytes would make no sense to the other side.
            _ = rules.wait_for(|rules| flow_of(rules) != Flow::Swallow), if lost_some => return,
        };
        let (came, bytes) = match piece {
            Some(Piece::Bytes(came, bytes)) => (came, bytes),
            Some(Piece::End) | None => {
                // A black hole and a stalled network hide the end of a connection, too.
                let visible = |rules: &Rules| !matches!(flow_of(rules), Flow::Swallow | Flow::Hold);
                let _ = rules.wait_for(visible).await;
                return;
            }
        };
        let deliver = loop {
            let flow = flow_of(&rules.borrow_and_update());
            match flow {
                Flow::Pass => break true,
                Flow::Delay(by) => tokio::select! {
                    () = tokio::time::sleep_until((came + by).into()) => break true,
                    _ = rules.changed() => {}
                },
                Flow::Hold => {
                    if rules.changed().await.is_err() {
                        return;
                    }
                }
                Flow::Swallow => {
                    lost_some = true;
                    let lost = bytes.len() as u64;
                    shared
                        .counters
                        .swallowed_bytes
                        .fetch_add(lost, Ordering::SeqCst);
                    break false;
                }
                Flow::Throttle(rate) => {
                    // In slices of a twentieth of a second.
                    let slice = usize::try_from(rate / 20).unwrap_or(usize::MAX).max(1);
                    for part in bytes.chunks(slice) {
                        let share = Duration::from_secs_f64(part.len() as f64 / rate as f64);
                        tokio::time::sleep(share).await;
                        delivered.fetch_add(part.len() as u64, Ordering::SeqCst);
                        if writer.write_all(part).await.is_err() {
                            return;
                        }
                    }
                    break false;
                }
            }
        };
        if deliver {
            // Counted first, so that a receiver always finds it counted.
            delivered.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
    }
}
