//! From the engine to a real server under load: nothing that was acknowledged is lost, and everybody follows.

mod certain;
mod clients;
mod first_level;
mod lost;
mod restarted;

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc, Mutex as Shared,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    key::Keys,
    limiting::{Decision, Limiter, Quota},
    locking::Mutex,
    messaging::{Job, JobContext, Queue},
    sessions::{Sessions, Token},
    store::{Event, Handover, HandoverReport, HandoverStep, Listen},
};
use redstart_engine::{
    Engine, Fsync,
    server::{Server as Listener, ServerConfig},
};
use redstart_testkit::{Kind, Server, eventually, scale};
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, task::JoinHandle};

use clients::Counting;

const PATIENCE: Duration = Duration::from_secs(60);

/// The engine behind its listener, until it is dropped.
struct Running {
    url: String,
    stop: Option<oneshot::Sender<()>>,
}

impl Running {
    async fn start(engine: Engine) -> anyhow::Result<Self> {
        let config = ServerConfig::new().listen("127.0.0.1:0".parse()?);
        let listener = Listener::bind(engine, config).await?;
        let address = listener.local_addr().expect("a TCP address");
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(listener.run(async {
            let _ = stopped.await;
        }));
        Ok(Self {
            url: format!("redis://{address}"),
            stop: Some(stop),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

async fn connect(url: &str) -> redstart::Result<Store> {
    Store::builder(url).deadline(PATIENCE).connect().await
}

fn plan(from: &str, to: &Server) -> Handover {
    let builder = Handover::builder(from, &to.url());
    builder
        .longest_pause(PAUSE)
        .build()
        .expect("two URLs of servers")
}

/// Longer than any of these tests should need.
const PAUSE: Duration = Duration::from_secs(30);

async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    assert!(eventually(PATIENCE, condition).await, "{what}");
}

async fn get(store: &Store, key: &str) -> redstart::Result<Option<String>> {
    store.query(redis::cmd("GET").arg(key)).await
}

#[derive(Serialize, Deserialize)]
struct Numbered {
    number: u64,
}

impl Job for Numbered {
    const NAME: &'static str = "numbered";
}

/// What the load did, by the word of the stores.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    increments: [AtomicU64; 4],
    enqueued: AtomicU64,
    ran: Shared<BTreeSet<u64>>,
    fences: Shared<Vec<u64>>,
    admitted: AtomicU64,
    /// What each of these holds.
    sessions: Shared<Vec<(Token, u64)>>,
    doubts: AtomicU64,
}

impl Load {
    /// Whether the load goes on after this outcome; a write in doubt is not counted as acknowledged.
    fn note<T>(&self, result: redstart::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if error.is_in_doubt() => {
                self.doubts.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

const LIMIT: u64 = 500;

fn limiter(store: &Store) -> redstart::Result<Limiter> {
    // No window ends while this runs, except once a year.
    let quota = Quota::per(LIMIT, Duration::from_secs(365 * 86_400));
    Limiter::fixed_window(store, "move", "api", quota)
        .on_store_down(redstart::Down::Refuse)
        .build()
}

/// Sessions that are made and changed once.
async fn keep_sessions(sessions: Sessions, load: Arc<Load>) {
    for number in 0.. {
        if !load.goes_on() {
            return;
        }
        let created = sessions.create("ann", &Numbered { number }).await;
        let Some(token) = load.note(created) else {
            continue;
        };
        let changed = Numbered { number: number + 1 };
        // In doubt, it may be either.
        if load.note(sessions.patch(&token, &changed).await).is_some() {
            let mut all = load.sessions.lock().expect("no test panicked");
            all.push((token, changed.number));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Counters, a queue, a lock, a limiter and sessions, each from a store of its own.
async fn begin(url: &str, load: &Arc<Load>) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let mut tasks = Vec::new();
    for at in 0..load.increments.len() {
        let (store, load) = (connect(url).await?, load.clone());
        tasks.push(tokio::spawn(async move {
            while load.goes_on() {
                let mut incr = redis::cmd("INCR");
                incr.arg(format!("n{at}"));
                if load.note(store.query::<i64>(&incr).await).is_some() {
                    load.increments[at].fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    let (queue, of) = (
        Queue::new(&connect(url).await?, "move", "jobs")?,
        load.clone(),
    );
    tasks.push(tokio::spawn(async move {
        let mut number = 0;
        while of.goes_on() {
            if of.note(queue.enqueue(&Numbered { number }).await).is_some() {
                of.enqueued.fetch_max(number + 1, Ordering::Relaxed);
                // A number is used up once the job is known to be there.
                number += 1;
            }
        }
    }));
    let (mutex, of) = (
        Mutex::new(&connect(url).await?, "move", "lock")?,
        load.clone(),
    );
    tasks.push(tokio::spawn(async move {
        while of.goes_on() {
            let Some(Some(guard)) = of.note(mutex.lock(PATIENCE).await) else {
                continue;
            };
            of.fences
                .lock()
                .expect("no test panicked")
                .push(guard.fence().get());
            let _ = of.note(guard.release().await);
        }
    }));
    let sessions = Sessions::new(&connect(url).await?, "move", "web")?;
    tasks.push(tokio::spawn(keep_sessions(sessions, load.clone())));
    let limiter = limiter(&connect(url).await?)?;
    let of = load.clone();
    tasks.push(tokio::spawn(async move {
        while of.goes_on() {
            if let Some(Decision::Allowed(_)) = of.note(limiter.check("user", 1).await) {
                of.admitted.fetch_add(1, Ordering::Relaxed);
            }
            tokio::task::yield_now().await;
        }
    }));
    Ok(tasks)
}

async fn moves_under_load(kind: Kind) -> anyhow::Result<()> {
    let keys = scale(2000, "moved keys");
    let dir = tempfile::tempdir()?;
    let engine = Engine::builder()
        .append_only(dir.path(), Fsync::No)
        .build()?;
    let running = Running::start(engine).await?;
    let server = Server::builder(kind).start().await?;
    let store = connect(&running.url).await?;
    for n in 0..keys {
        let mut pipeline = redis::pipe();
        pipeline.cmd("SET").arg(format!("still{n}")).arg(n).ignore();
        pipeline
            .cmd("HSET")
            .arg(format!("hash{n}"))
            .arg("f")
            .arg(n)
            .ignore();
        pipeline
            .cmd("ZADD")
            .arg(format!("set{n}"))
            .arg(0.1)
            .arg("m")
            .ignore();
        pipeline
            .cmd("XADD")
            .arg(format!("stream{n}"))
            .arg("*")
            .arg("f")
            .arg(n)
            .ignore();
        store.pipeline::<()>(&pipeline).await?;
    }
    let library = "#!lua name=mine\nredis.register_function('one', function() return 1 end)";
    store
        .query::<()>(redis::cmd("FUNCTION").arg("LOAD").arg(library))
        .await?;

    let load = Arc::new(Load::default());
    let worker = {
        let queue = Queue::new(&connect(&running.url).await?, "move", "jobs")?;
        let load = load.clone();
        let run = move |job: Numbered, _: JobContext| {
            let load = load.clone();
            async move {
                load.ran
                    .lock()
                    .expect("no test panicked")
                    .insert(job.number);
            }
        };
        queue.worker(run).concurrency(4).start().await?
    };
    let tasks = begin(&running.url, &load).await?;
    let listening = connect(&running.url).await?;
    let mut subscription = listening
        .subscribe([Listen::Channel("news".into())])
        .await?;
    assert_eq!(subscription.next().await, Some(Event::Subscribed));
    let waiting = connect(&running.url).await?;
    let waits = tokio::spawn(async move {
        let list = Keys::new("move", "list")?.entity("a")?;
        let mut take = redis::cmd("XREAD");
        take.arg("BLOCK")
            .arg(0)
            .arg("STREAMS")
            .arg(list.key())
            .arg("0");
        let mut own = waiting.dedicated(list.key());
        // As long as the hand-over of many keys may take.
        own.query::<redis::Value>(&take, PATIENCE * 30).await
    });

    let address = running.url.trim_start_matches("redis://");
    let mut others = Counting::all(address)?;
    until("the load runs", async || {
        load.increments[0].load(Ordering::Relaxed) > 50
            && others.iter().all(|one| one.counts.acknowledged() > 3)
    })
    .await;
    let report: HandoverReport = plan(&running.url, &server).run(|_| (), pending()).await?;
    let before: Vec<u64> = load
        .increments
        .iter()
        .map(|n| n.load(Ordering::Relaxed))
        .collect();
    // All of them go on, at the server.
    until("the load goes on", async || {
        let now = load.increments.iter().map(|n| n.load(Ordering::Relaxed));
        now.zip(&before).all(|(now, before)| now > before + 50)
    })
    .await;
    let others_before: Vec<u64> = others.iter().map(|one| one.counts.acknowledged()).collect();
    until("other clients go on", async || {
        others
            .iter()
            .zip(&others_before)
            .all(|(one, before)| one.counts.moves() == 1 && one.counts.acknowledged() > before + 3)
    })
    .await;
    for one in &mut others {
        assert!(one.end(), "{} failed", one.name);
    }
    let there = connect(&server.url()).await?;
    there
        .query::<()>(redis::cmd("PUBLISH").arg("news").arg("moved"))
        .await?;
    let list = Keys::new("move", "list")?.entity("a")?;
    there
        .query::<String>(
            redis::cmd("XADD")
                .arg(list.key())
                .arg("*")
                .arg("f")
                .arg("v"),
        )
        .await?;
    load.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await?;
    }
    let all = load.enqueued.load(Ordering::Relaxed);
    until("all jobs ran", async || {
        load.ran
            .lock()
            .expect("no test panicked")
            .range(..all)
            .count() as u64
            == all
    })
    .await;
    worker.shutdown(PATIENCE).await?;

    // The server has what was acknowledged, and no more than was tried.
    let doubts = load.doubts.load(Ordering::Relaxed);
    for (at, acknowledged) in load.increments.iter().enumerate() {
        let acknowledged = acknowledged.load(Ordering::Relaxed);
        let stored: u64 = there.query(redis::cmd("GET").arg(format!("n{at}"))).await?;
        let range = acknowledged..=acknowledged + doubts;
        assert!(
            range.contains(&stored),
            "{stored} of {acknowledged}, {doubts} in doubt"
        );
    }
    // Whatever another client was told is there, and nothing else is.
    for one in &others {
        let stored: u64 = there.query(redis::cmd("GET").arg(one.name)).await?;
        let told = one.counts.acknowledged();
        // It may have been ended between the answer and its own word.
        assert!(
            (told..=told + 1).contains(&stored),
            "{}: {stored} of {told}",
            one.name
        );
    }
    let kept = Sessions::new(&there, "move", "web")?;
    let sessions = std::mem::take(&mut *load.sessions.lock().expect("no test panicked"));
    for (token, number) in &sessions {
        let session = kept.load::<Numbered>(token).await?;
        let session = session.expect("a session is kept");
        assert_eq!(session.data.number, *number);
    }
    let fences = load.fences.lock().expect("no test panicked").clone();
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]));
    let admitted = load.admitted.load(Ordering::Relaxed);
    let used = LIMIT - limiter(&there)?.peek("user").await?.remaining;
    let range = admitted..=admitted + doubts;
    assert!(
        range.contains(&used),
        "{used} of {admitted}, {doubts} in doubt"
    );
    let entries = waits.await??;
    assert_ne!(entries, redis::Value::Nil);
    // Published anew until it arrives: a subscription may be on its way.
    let heard = async {
        loop {
            match subscription.next().await {
                Some(Event::Message(message)) => return message.channel,
                Some(_) => {}
                None => return String::new(),
            }
        }
    };
    let repeats = async {
        loop {
            let mut publish = redis::cmd("PUBLISH");
            publish.arg("news").arg("again");
            let _ = there.query::<()>(&publish).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        channel = heard => assert_eq!(channel, "news"),
        () = repeats => {}
        () = tokio::time::sleep(PATIENCE) => panic!("the subscription did not follow"),
    }
    // The store of before follows.
    assert_eq!(get(&store, "still7").await?.as_deref(), Some("7"));
    let one: i64 = store.query(redis::cmd("FCALL").arg("one").arg(0)).await?;
    assert_eq!(one, 1);
    let refusal = format!("-REDIRECT {}\r\n", report.place);
    assert_eq!(raw(&running.url, "GET still7").await?, refusal);
    redstart_testkit::figure(format!(
        "{kind:?}: {} keys moved under load, writes held back for {:?}, {} keys compared meanwhile; {} \
         increments, {all} jobs, {} locks, {} sessions acknowledged, 0 lost, {doubts} in doubt; {}",
        report.keys,
        report.pause,
        report.keys_in_pause,
        load.increments
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .sum::<u64>(),
        fences.len(),
        sessions.len(),
        others
            .iter()
            .map(|one| format!("{} {}", one.name, one.counts.acknowledged()))
            .collect::<Vec<_>>()
            .join(", "),
    ));
    Ok(())
}

/// The first line that a server answers.
async fn raw(url: &str, line: &str) -> anyhow::Result<String> {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    let address = url.strip_prefix("redis://").unwrap_or(url);
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(format!("{line}\r\n").as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_moves_to_redis_under_load() -> anyhow::Result<()> {
    moves_under_load(Kind::Redis).await
}

/// How long writes are held back with many keys, while some of them change all the time.
async fn many_keys_move(kind: Kind) -> anyhow::Result<()> {
    const PIPELINE: u64 = 1000;
    let keys = scale(20_000, "keys of a hand over");
    let running = Running::start(Engine::new()).await?;
    let server = Server::builder(kind).start().await?;
    let store = connect(&running.url).await?;
    for begin in (0..keys).step_by(PIPELINE as usize) {
        let mut pipeline = redis::pipe();
        for n in begin..keys.min(begin + PIPELINE) {
            pipeline.cmd("SET").arg(format!("key:{n}")).arg(n).ignore();
        }
        store.pipeline::<()>(&pipeline).await?;
    }
    // Writers of random keys, a batch at a time and with a little rest.
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for seed in 0..4_u64 {
        let (store, stop) = (connect(&running.url).await?, stop.clone());
        writers.push(tokio::spawn(async move {
            let (mut at, mut written) = (seed, 0_u64);
            while !stop.load(Ordering::Relaxed) {
                let mut pipeline = redis::pipe();
                for _ in 0..8 {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let key = format!("key:{}", (at >> 33) % keys);
                    pipeline.cmd("INCR").arg(key).ignore();
                }
                store.pipeline::<()>(&pipeline).await?;
                written += 8;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok::<u64, redstart::Error>(written)
        }));
    }
    let began = tokio::time::Instant::now();
    let report = plan(&running.url, &server).run(|_| (), pending()).await?;
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let mut written = 0;
    for writer in writers {
        written += writer.await??;
    }
    assert_eq!(report.keys, keys);
    // Every increment is there.
    let there = connect(&server.url()).await?;
    let mut sum = 0;
    for begin in (0..keys).step_by(PIPELINE as usize) {
        let mut read = redis::cmd("MGET");
        (begin..keys.min(begin + PIPELINE)).for_each(|n| {
            read.arg(format!("key:{n}"));
        });
        sum += there.query::<Vec<u64>>(&read).await?.iter().sum::<u64>();
    }
    assert_eq!(sum, keys * (keys - 1) / 2 + written);
    redstart_testkit::figure(format!(
        "{kind:?}: {keys} keys moved in {took:?} while {written} writes came in, 0 lost; writes were held back for {:?}, \
         {} keys compared meanwhile",
        report.pause, report.keys_in_pause,
    ));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_keys_move_to_redis_and_the_pause_is_a_figure() -> anyhow::Result<()> {
    many_keys_move(Kind::Redis).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_keys_move_to_valkey_and_the_pause_is_a_figure() -> anyhow::Result<()> {
    many_keys_move(Kind::Valkey).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_moves_to_valkey_under_load() -> anyhow::Result<()> {
    moves_under_load(Kind::Valkey).await
}

/// Ends at a step, as Ctrl-C would.
async fn cancelled_at(step: HandoverStep, from: &str, to: &Server) -> redstart::Error {
    let reached = Arc::new(tokio::sync::Notify::new());
    let tell = reached.clone();
    let told = move |now: &HandoverStep| {
        if std::mem::discriminant(now) == std::mem::discriminant(&step) {
            tell.notify_one();
        }
    };
    let plan = plan(from, to);
    let run = plan.run(told, reached.notified());
    run.await.expect_err("it was cancelled")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_hand_over_is_undone_at_every_step() -> anyhow::Result<()> {
    let running = Running::start(Engine::new()).await?;
    let store = connect(&running.url).await?;
    for n in 0..500 {
        store
            .query::<()>(redis::cmd("SET").arg(format!("key{n}")).arg(n))
            .await?;
    }
    for step in [
        HandoverStep::CatchingUp(0),
        HandoverStep::Comparing(0, 0),
        HandoverStep::Paused,
    ] {
        let server = Server::builder(Kind::Redis).start().await?;
        let error = cancelled_at(step.clone(), &running.url, &server).await;
        assert!(error.to_string().contains("cancelled"), "{step:?}: {error}");
        // Writes go on here, well before the longest pause, and the server is nobody's replica.
        let began = tokio::time::Instant::now();
        store.query::<()>(redis::cmd("INCR").arg("n")).await?;
        assert!(began.elapsed() < PAUSE, "{step:?}");
        let there = connect(&server.url()).await?;
        let role: Vec<redis::Value> = there.query(&redis::cmd("ROLE")).await?;
        assert_eq!(
            role[0],
            redis::Value::BulkString(b"master".to_vec()),
            "{step:?}"
        );
        assert_eq!(get(&store, "key7").await?.as_deref(), Some("7"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_data_is_not_overwritten_unless_that_is_allowed() -> anyhow::Result<()> {
    let running = Running::start(Engine::new()).await?;
    let server = Server::builder(Kind::Valkey).start().await?;
    let there = connect(&server.url()).await?;
    there
        .query::<()>(redis::cmd("SET").arg("old").arg("1"))
        .await?;
    let refused = plan(&running.url, &server).run(|_| (), pending()).await;
    let refused = refused.expect_err("the server has data");
    assert!(refused.is_config(), "{refused}");
    assert_eq!(get(&there, "old").await?.as_deref(), Some("1"));
    // A real server is no engine.
    let reverse = Handover::builder(&server.url(), &running.url).build()?;
    let refused = reverse.run(|_| (), pending()).await.expect_err("no engine");
    assert!(refused.is_config(), "{refused}");
    let store = connect(&running.url).await?;
    store
        .query::<()>(redis::cmd("SET").arg("new").arg("1"))
        .await?;
    let builder = Handover::builder(&running.url, &server.url()).overwrite(true);
    let report = builder.build()?.run(|_| (), pending()).await?;
    assert_eq!(report.keys, 1);
    assert_eq!(get(&there, "old").await?, None);
    assert_eq!(get(&store, "new").await?.as_deref(), Some("1"));
    Ok(())
}

/// What the replica does not get, the comparison finds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_difference_stops_the_hand_over() -> anyhow::Result<()> {
    let running = Running::start(
        Engine::builder()
            .compat(redstart_engine::Compat::Redis80)
            .build()?,
    )
    .await?;
    let store = connect(&running.url).await?;
    store
        .query::<()>(redis::cmd("SET").arg("a").arg("1"))
        .await?;
    store
        .query::<()>(redis::cmd("BF.ADD").arg("filter").arg("x"))
        .await?;
    let server = Server::builder(Kind::Redis).start().await?;
    let failed = plan(&running.url, &server).run(|_| (), pending()).await;
    let failed = failed.expect_err("they differ");
    assert!(failed.to_string().contains("1 keys differ"), "{failed}");
    store
        .query::<()>(redis::cmd("SET").arg("a").arg("2"))
        .await?;
    Ok(())
}

/// What the replica has otherwise than the engine is found, also where HGETALL and XINFO GROUPS do not show it.
async fn differs(make: &[&str], spoil: &'static str) -> anyhow::Result<()> {
    let engine = Engine::builder().compat(redstart_engine::Compat::Valkey9);
    let running = Running::start(engine.build()?).await?;
    for line in make {
        raw(&running.url, line).await?;
    }
    let server = Server::builder(Kind::Valkey)
        .config("replica-read-only", "no")
        .start()
        .await?;
    let (told, mut began) = tokio::sync::mpsc::unbounded_channel();
    let (url, mut to_tell) = (server.url(), Some(told));
    let (go, gone) = std::sync::mpsc::channel();
    let spoiling = tokio::spawn(async move {
        began.recv().await;
        let spoiled = raw(&url, spoil).await;
        let _ = go.send(());
        spoiled
    });
    let moved = plan(&running.url, &server)
        .run(
            |step| {
                // The copy has arrived, and nothing is compared yet.
                if matches!(step, HandoverStep::CatchingUp(_))
                    && let Some(told) = to_tell.take()
                {
                    let _ = told.send(());
                    let _ = gone.recv_timeout(PATIENCE);
                }
            },
            pending(),
        )
        .await;
    spoiling.await??;
    let failed = moved.expect_err(spoil);
    assert!(
        failed.to_string().contains("1 keys differ"),
        "{spoil}: {failed}"
    );
    // It is undone.
    raw(&running.url, "SET a 1").await?;
    Ok(())
}

const FIELDS: [&str; 2] = ["HSET key f v g w", "HEXPIRE key 1000 FIELDS 1 f"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_deadline_of_a_field_stops_the_hand_over() -> anyhow::Result<()> {
    differs(&FIELDS, "HEXPIRE key 2000 FIELDS 1 f").await?;
    differs(&FIELDS, "HPERSIST key FIELDS 1 f").await?;
    differs(&FIELDS, "HEXPIRE key 1000 FIELDS 1 g").await
}

const PENDING: [&str; 3] = [
    "XADD key 1-1 f v",
    "XGROUP CREATE key g 0",
    "XREADGROUP GROUP g c STREAMS key >",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_owner_or_count_of_a_pending_entry_stops_the_hand_over() -> anyhow::Result<()> {
    differs(&PENDING, "XCLAIM key g d 0 1-1 JUSTID").await?;
    differs(&PENDING, "XCLAIM key g c 0 1-1 RETRYCOUNT 7 JUSTID").await?;
    differs(&PENDING, "XCLAIM key g c 0 1-1 IDLE 100000 JUSTID").await
}

/// A server that has no deadlines of fields would keep them for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_of_fields_are_not_lost_on_a_server_without_them() -> anyhow::Result<()> {
    let engine = Engine::builder().compat(redstart_engine::Compat::Valkey9);
    let running = Running::start(engine.build()?).await?;
    let server = Server::builder(Kind::Redis).start().await?;
    let mut made = false;
    let (url, handle) = (running.url.clone(), tokio::runtime::Handle::current());
    let moved = plan(&running.url, &server)
        .run(
            |step| {
                // What a copy cannot hold is refused at once; here it comes in the stream.
                if matches!(step, HandoverStep::CatchingUp(_))
                    && !std::mem::replace(&mut made, true)
                {
                    let (url, handle) = (url.clone(), handle.clone());
                    let make = std::thread::spawn(move || {
                        FIELDS.map(|line| handle.block_on(raw(&url, line)))
                    });
                    for done in make.join().expect("two commands") {
                        done.expect("an answer");
                    }
                }
            },
            pending(),
        )
        .await;
    let failed = moved.expect_err("the server has no such deadline");
    assert!(failed.to_string().contains("1 keys differ"), "{failed}");
    Ok(())
}

/// Runs a command in the middle of the hook of a hand-over.
fn aside(url: &str, line: &'static str) {
    let (url, handle) = (url.to_owned(), tokio::runtime::Handle::current());
    let done = std::thread::spawn(move || handle.block_on(raw(&url, line)));
    done.join().expect("a command").expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_behind_takes_consumer_groups_over() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let engine = Engine::new();
        engine.advance(Duration::from_secs(5));
        let running = Running::start(engine).await?;
        for line in ["XADD jobs 1-1 a 1", "XGROUP CREATE jobs workers 0"] {
            raw(&running.url, line).await?;
        }
        let server = Server::builder(kind).start().await?;
        let mut read = false;
        let report = plan(&running.url, &server)
            .run(
                |step| {
                    // Delivered after the copy: the server gets the time of that in the stream.
                    if matches!(step, HandoverStep::CatchingUp(_))
                        && !std::mem::replace(&mut read, true)
                    {
                        aside(&running.url, "XREADGROUP GROUP workers w STREAMS jobs >");
                    }
                },
                pending(),
            )
            .await?;
        assert!(report.clock_ahead_micros < -4_000_000, "{report:?}");
        let store = connect(&server.url()).await?;
        let mut ask = redis::cmd("XPENDING");
        ask.arg("jobs").arg("workers").arg("-").arg("+").arg(10);
        let waits: Vec<(String, String, i64, i64)> = store.query(&ask).await?;
        let [(id, worker, _, times)] = &waits[..] else {
            panic!("{waits:?}")
        };
        assert_eq!((&**id, &**worker, *times), ("1-1", "w", 1));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_has_moved_stays_moved_after_a_restart() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let open = || Engine::builder().append_only(dir.path(), Fsync::No).build();
    let place = {
        let running = Running::start(open()?).await?;
        let store = connect(&running.url).await?;
        store
            .query::<()>(redis::cmd("SET").arg("a").arg("1"))
            .await?;
        let server = Server::builder(Kind::Redis).start().await?;
        plan(&running.url, &server)
            .run(|_| (), pending())
            .await?
            .place
    };
    until("the folder is free", async || open().is_ok()).await;
    let running = Running::start(open()?).await?;
    assert_eq!(
        raw(&running.url, "GET a").await?,
        format!("-REDIRECT {place}\r\n")
    );
    // Who goes back says so.
    assert_eq!(
        raw(&running.url, "REDSTART HANDOVER RETURN").await?,
        "+OK\r\n"
    );
    assert_eq!(raw(&running.url, "GET a").await?, "$1\r\n");
    Ok(())
}

/// The copy of a mirror follows, as the requests do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_follows_a_hand_over() -> anyhow::Result<()> {
    let running = Running::start(Engine::new()).await?;
    let mirror = connect(&format!("mirror+{}", running.url)).await?;
    let set = |value: &str| {
        let mut set = redis::cmd("SET");
        set.arg("a").arg(value);
        set
    };
    mirror.query::<()>(&set("before")).await?;
    let reads = async |value: &str| {
        let read: redstart::Result<Option<String>> =
            mirror.query_stale(redis::cmd("GET").arg("a")).await;
        let answers = mirror.mirror().is_some_and(|of| of.answers && of.connected);
        answers && read.is_ok_and(|read| read.as_deref() == Some(value))
    };
    until("the engine is mirrored", async || reads("before").await).await;
    let server = Server::builder(Kind::Redis).start().await?;
    plan(&running.url, &server).run(|_| (), pending()).await?;
    // Nobody tells the mirror but the engine: its store is not used meanwhile.
    let replicas = async || server.info("connected_slaves").await.ok();
    until("the server is mirrored", async || {
        replicas().await.as_deref() == Some("1")
    })
    .await;
    let there = connect(&server.url()).await?;
    there.query::<()>(&set("after")).await?;
    until("its changes come over", async || reads("after").await).await;
    Ok(())
}
