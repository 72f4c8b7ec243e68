//! Requests that are sent together: none is lost, passed by another, or kept back, whoever stalls or goes away.
//!
//! The system is played by [`Line`], and the runtime by [`Bench`], so that every order of events can be made.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    task::{Context, Wake},
};

use redis::Cmd;
use tokio::sync::oneshot::{Receiver, error::TryRecvError};

use super::*;
use crate::socket::Socket;

/// A connection whose other side does what the test says.
#[derive(Clone, Default)]
struct Line(Arc<Mutex<Ends>>);

#[derive(Default)]
struct Ends {
    /// All that was sent, in how many writes, and how much more the system takes.
    sent: Vec<u8>,
    writes: usize,
    room: usize,
    writer: Option<Waker>,
    /// What arrives, and how much of `x` behind it.
    arriving: VecDeque<u8>,
    endless: usize,
    reader: Option<Waker>,
    /// Runs in each write.
    during_write: Option<Box<dyn FnMut() + Send>>,
}

impl Socket for Line {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let during = self.0.lock().during_write.take();
        if let Some(mut during) = during {
            during();
            self.0.lock().during_write = Some(during);
        }
        let mut ends = self.0.lock();
        let taken = bytes.len().min(ends.room);
        if taken == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        ends.sent.extend_from_slice(&bytes[..taken]);
        ends.room -= taken;
        ends.writes += 1;
        Ok(taken)
    }

    fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        let mut ends = self.0.lock();
        let count = room.len().min(ends.arriving.len());
        if count > 0 {
            for (to, from) in room.iter_mut().zip(ends.arriving.drain(..count)) {
                *to = from;
            }
            return Ok(count);
        }
        let count = room.len().min(ends.endless);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        room[..count].fill(b'x');
        ends.endless -= count;
        Ok(count)
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut ends = self.0.lock();
        if ends.arriving.is_empty() && ends.endless == 0 {
            ends.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut ends = self.0.lock();
        if ends.room == 0 {
            ends.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl Line {
    fn take(&self, room: usize) {
        let mut ends = self.0.lock();
        ends.room = room;
        if let Some(writer) = ends.writer.take() {
            writer.wake();
        }
    }

    fn arrive(&self, bytes: &[u8]) {
        let mut ends = self.0.lock();
        ends.arriving.extend(bytes);
        if let Some(reader) = ends.reader.take() {
            reader.wake();
        }
    }

    fn sent(&self) -> Vec<u8> {
        self.0.lock().sent.clone()
    }

    fn writes(&self) -> usize {
        self.0.lock().writes
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// A wire whose task runs when the test says.
struct Bench {
    wire: Arc<Wire>,
    task: Task,
    woken: Arc<Woken>,
    line: Line,
    ended: bool,
}

impl Bench {
    fn new() -> Self {
        let line = Line::default();
        line.take(usize::MAX);
        let (wire, task) = Wire::with_task(Stream::Simulated(Box::new(line.clone())));
        let mut bench = Self {
            wire: Arc::new(wire),
            task,
            woken: Arc::default(),
            line,
            ended: false,
        };
        bench.turn();
        bench
    }

    fn turn(&mut self) {
        if self.ended {
            return;
        }
        self.woken.0.store(false, Ordering::Release);
        let waker = Waker::from(self.woken.clone());
        let mut cx = Context::from_waker(&waker);
        self.ended = Pin::new(&mut self.task).poll(&mut cx).is_ready();
    }

    /// Runs the task for as long as somebody wakes it.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.woken.0.load(Ordering::Acquire) || self.ended {
                return;
            }
            self.turn();
        }
        panic!("the task never rests");
    }

    fn ask(&self, cmd: &Cmd, within: Duration) -> Receiver<Outcome> {
        let request = Request::one(cmd, Instant::now() + within);
        self.wire.ask(request).expect("there is room")
    }
}

fn echo(text: &str) -> Cmd {
    let mut cmd = redis::cmd("ECHO");
    cmd.arg(text);
    cmd
}

fn answer_to(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

/// So many requests under way that further ones are gathered.
fn make_busy(bench: &Bench) -> (Vec<Receiver<Outcome>>, Vec<u8>) {
    let (mut waiting, mut expected) = (Vec::new(), Vec::new());
    for at in 0..=ALONE {
        let cmd = echo(&format!("busy {at}"));
        expected.extend(cmd.get_packed_command());
        waiting.push(bench.ask(&cmd, LONG));
    }
    assert_eq!(
        bench.line.sent(),
        expected,
        "each was sent by its own caller"
    );
    (waiting, expected)
}

#[tokio::test]
async fn gathered_requests_leave_together_and_in_order_at_the_second_turn() {
    let mut bench = Bench::new();
    let (_busy, mut expected) = make_busy(&bench);
    bench.settle();
    let writes = bench.line.writes();
    let before = expected.clone();
    let _gathered: Vec<_> = (0..ENOUGH - 1)
        .map(|at| {
            let cmd = echo(&format!("gathered {at}"));
            expected.extend(cmd.get_packed_command());
            bench.ask(&cmd, LONG)
        })
        .collect();
    assert_eq!(bench.line.sent(), before, "they wait for others");
    bench.turn();
    bench.turn();
    assert_eq!(bench.line.sent(), expected, "two turns are enough");
    assert_eq!(bench.line.writes(), writes + 1);
}

#[tokio::test]
async fn enough_requests_do_not_wait_for_the_task() {
    let mut bench = Bench::new();
    let (_busy, mut expected) = make_busy(&bench);
    bench.settle();
    let _gathered: Vec<_> = (0..ENOUGH)
        .map(|at| {
            let cmd = echo(&format!("gathered {at}"));
            expected.extend(cmd.get_packed_command());
            bench.ask(&cmd, LONG)
        })
        .collect();
    assert_eq!(bench.line.sent(), expected);
}

#[tokio::test]
async fn a_request_is_sent_for_a_caller_although_those_it_was_gathered_with_have_gone() {
    let mut bench = Bench::new();
    let (busy, mut expected) = make_busy(&bench);
    bench.settle();
    let kept = echo("kept");
    for cmd in [echo("gone"), kept.clone(), echo("gone too")] {
        expected.extend(cmd.get_packed_command());
        let receiver = bench.ask(&cmd, LONG);
        if cmd.get_packed_command() == kept.get_packed_command() {
            // Never polled, as that of a caller that does something else first.
            std::mem::forget(receiver);
        }
    }
    drop(busy);
    bench.settle();
    assert_eq!(bench.line.sent(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_gathered_request_behind_a_stalled_writer_ends_at_its_deadline() {
    let mut bench = Bench::new();
    let (_busy, _) = make_busy(&bench);
    bench.settle();
    bench.line.take(0);
    let seconds = Duration::from_secs;
    let mut soon = bench.ask(&echo("soon"), seconds(2));
    let mut late = bench.ask(&echo("late"), seconds(50));
    bench.settle();
    tokio::time::advance(seconds(1)).await;
    bench.settle();
    assert!(matches!(soon.try_recv(), Err(TryRecvError::Empty)));
    tokio::time::advance(seconds(1)).await;
    bench.settle();
    assert!(matches!(soon.try_recv(), Ok(Err(Failure::TimedOut))));
    assert!(matches!(late.try_recv(), Err(TryRecvError::Empty)));
    // It is still sent, whole and once, for the one that waits.
    bench.line.take(usize::MAX);
    bench.settle();
    let sent = bench.line.sent();
    let tail = [
        echo("soon").get_packed_command(),
        echo("late").get_packed_command(),
    ]
    .concat();
    assert!(sent.ends_with(&tail));
}

#[tokio::test]
async fn the_queue_is_not_locked_while_a_long_request_is_sent() {
    let mut bench = Bench::new();
    bench.line.take(1);
    let long = echo(&"x".repeat(3 * TURN));
    let _waiting = bench.ask(&long, LONG);
    let (locked, writes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let during = (bench.wire.clone(), locked.clone(), writes.clone());
    bench.line.0.lock().during_write = Some(Box::new(move || {
        let (wire, locked, writes) = &during;
        let held = wire.shared.queue.try_lock().is_none();
        locked.fetch_add(usize::from(held), Ordering::Relaxed);
        writes.fetch_add(1, Ordering::Relaxed);
    }));
    bench.line.take(usize::MAX);
    bench.settle();
    assert_eq!(bench.line.sent(), long.get_packed_command());
    assert!(writes.load(Ordering::Relaxed) > 1);
    assert_eq!(locked.load(Ordering::Relaxed), 0);
    bench.line.0.lock().during_write = None;
}

#[tokio::test]
async fn replies_are_received_between_the_parts_of_a_long_request() {
    let mut bench = Bench::new();
    let mut short = bench.ask(&echo("short"), LONG);
    let _long = bench.ask(&echo(&"x".repeat(8 * TURN)), LONG);
    bench.line.arrive(&answer_to("short"));
    bench.turn();
    assert!(matches!(short.try_recv(), Ok(Ok(_))));
    let sent = bench.line.sent().len();
    assert!(sent <= 3 * TURN, "{sent} bytes in one turn");
    bench.settle();
    assert!(bench.line.sent().len() > 8 * TURN);
}

#[tokio::test]
async fn a_caller_sends_for_others_a_bounded_number_of_times() {
    let mut bench = Bench::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let expected = Arc::new(Mutex::new(echo("first").get_packed_command()));
    let during = (bench.wire.clone(), asked.clone(), expected.clone());
    bench.line.0.lock().during_write = Some(Box::new(move || {
        let (wire, asked, expected) = &during;
        let at = asked.fetch_add(1, Ordering::Relaxed);
        // In each write, somebody else asks.
        if at < 1_000 {
            let cmd = echo(&at.to_string());
            expected.lock().extend(cmd.get_packed_command());
            let request = Request::one(&cmd, Instant::now() + LONG);
            drop(wire.ask(request));
        }
    }));
    let _first = bench.ask(&echo("first"), LONG);
    let writes = bench.line.writes();
    assert!(writes <= ROUNDS, "one caller made {writes} writes");
    bench.settle();
    assert!(asked.load(Ordering::Relaxed) > 1_000);
    assert_eq!(bench.line.sent(), *expected.lock());
    bench.line.0.lock().during_write = None;
}

#[tokio::test]
async fn gathered_requests_are_sent_while_a_long_reply_keeps_coming() {
    let mut bench = Bench::new();
    let (_busy, mut expected) = make_busy(&bench);
    bench.settle();
    bench
        .line
        .arrive(format!("${}\r\n", 1_usize << 30).as_bytes());
    bench.line.0.lock().endless = 64 * TURN;
    let cmd = echo("gathered");
    expected.extend(cmd.get_packed_command());
    let _gathered = bench.ask(&cmd, LONG);
    bench.turn();
    bench.turn();
    assert_eq!(bench.line.sent(), expected);
    assert!(
        bench.line.0.lock().endless > 48 * TURN,
        "it was still coming"
    );
}

/// Numbers by a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// What was asked, by the place where it ends among all bytes.
struct Asked {
    text: String,
    end: usize,
    receiver: Option<Receiver<Outcome>>,
    answered: bool,
}

/// One history of requests, stalls, replies in pieces, cancellations and turns of the task.
fn history(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut bench = Bench::new();
    let mut expected = Vec::new();
    let mut all: Vec<Asked> = Vec::new();
    let (mut answered, mut checked) = (0, 0);
    let steps = 40 + random.below(200);
    for step in 0..=steps {
        let last = step == steps;
        match random.below(16) {
            _ if last => {
                bench.line.take(usize::MAX);
                bench.settle();
            }
            0..=7 => {
                let long = match random.below(60) {
                    0 if random.below(8) == 0 => 3 * TURN / 2,
                    0..=2 => 40_000,
                    _ => 1 + random.below(30),
                };
                let text = format!("{seed}:{}:{}", all.len(), "y".repeat(long));
                let cmd = echo(&text);
                let request = Request::one(&cmd, Instant::now() + LONG);
                // `None` is said before anything is queued.
                if let Some(receiver) = bench.wire.ask(request) {
                    expected.extend(cmd.get_packed_command());
                    all.push(Asked {
                        text,
                        end: expected.len(),
                        receiver: Some(receiver),
                        answered: false,
                    });
                }
            }
            8 => bench.line.take(random.below(50_000)),
            9 | 10 => bench.line.take(usize::MAX),
            11 if bench.woken.0.load(Ordering::Acquire) => bench.turn(),
            12 => bench.settle(),
            13 if !all.is_empty() => {
                let at = random.below(all.len());
                all[at].receiver = None;
            }
            _ => {
                let sent = bench.line.0.lock().sent.len();
                let ready = all
                    .iter()
                    .skip(answered)
                    .take_while(|asked| asked.end <= sent);
                let count = random.below(ready.count() + 1);
                for asked in &mut all[answered..answered + count] {
                    // The reply may be cut anywhere: the task may run between two pieces.
                    let reply = answer_to(&asked.text);
                    let cut = random.below(reply.len());
                    bench.line.arrive(&reply[..cut]);
                    if random.below(2) == 0 {
                        bench.settle();
                    }
                    bench.line.arrive(&reply[cut..]);
                    asked.answered = true;
                }
                answered += count;
            }
        }
        let new = bench.line.0.lock().sent[checked..].to_vec();
        assert!(
            expected[checked..].starts_with(&new),
            "seed {seed}: reordered or made up"
        );
        checked += new.len();
        if bench.line.0.lock().room == usize::MAX && !bench.woken.0.load(Ordering::Acquire) {
            assert_eq!(
                checked,
                expected.len(),
                "seed {seed}: kept back at step {step}"
            );
        }
    }
    let rest: Vec<u8> = all[answered..]
        .iter()
        .flat_map(|asked| answer_to(&asked.text))
        .collect();
    bench.line.arrive(&rest);
    bench.settle();
    for asked in all {
        let Some(mut receiver) = asked.receiver else {
            continue;
        };
        let reply = receiver.try_recv().expect("answered").expect("a reply");
        assert_eq!(
            reply,
            Value::BulkString(asked.text.into_bytes()),
            "seed {seed}"
        );
    }
}

#[tokio::test]
async fn whatever_happens_requests_leave_in_order_and_replies_reach_their_askers() {
    for seed in 1..=redstart_testkit::scale(200, "WIRE_HISTORIES") {
        history(seed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_one_caller_arrive_in_the_order_in_which_it_asked() {
    const TASKS: usize = 8;
    const EACH: usize = 60;
    let (wire, mut theirs) = pair().await;
    let wire = Arc::new(wire);
    let server = tokio::spawn(async move {
        let (mut input, mut seen) = (Vec::new(), Vec::new());
        let (mut reader, mut at, mut chunk) = (Reader::default(), 0, vec![0; 512]);
        while seen.len() < TASKS * EACH {
            let read = theirs.read(&mut chunk).await.unwrap();
            assert!(read > 0, "closed after {} requests", seen.len());
            input.extend_from_slice(&chunk[..read]);
            let mut out = Vec::new();
            while let Ok(value) = reader.next(&input, &mut at).unwrap() {
                let Some([_, Value::BulkString(text)]) = value.as_sequence() else {
                    panic!("an ECHO has one argument");
                };
                let text = String::from_utf8(text.clone()).unwrap();
                out.extend(answer_to(&text));
                seen.push(text);
            }
            theirs.write_all(&out).await.unwrap();
        }
        seen
    });
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let wire = wire.clone();
            tokio::spawn(async move {
                let texts: Vec<String> = (0..EACH).map(|n| format!("{task} {n}")).collect();
                let all = texts.iter().map(|text| super::ask(&wire, text));
                for (reply, text) in futures_util::future::join_all(all)
                    .await
                    .into_iter()
                    .zip(&texts)
                {
                    assert_eq!(reply.unwrap(), Value::BulkString(text.clone().into_bytes()));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut next = [0; TASKS];
    for text in server.await.unwrap() {
        let (task, n) = text.split_once(' ').unwrap();
        let task: usize = task.parse().unwrap();
        assert_eq!(
            n.parse(),
            Ok(next[task]),
            "{text} was passed by a later one"
        );
        next[task] += 1;
    }
}
