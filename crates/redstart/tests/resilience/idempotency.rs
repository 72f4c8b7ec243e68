//! Idempotency keys, through callers that go away, panics, lost replies and dead processes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Down, Store,
    resilience::{Idempotency, Run, WorkError},
};
use redstart_testkit::{Answer as Reply, Backend, Kind, Proxy, Server, Stub, eventually, matrix};
use tokio::sync::Notify;

const SOON: Duration = Duration::from_secs(30);

type Answer = Run<String, String>;

/// Work that counts how often it started and waits for a sign if it is told to.
#[derive(Clone, Default)]
struct Work {
    started: Arc<AtomicU64>,
    go: Arc<Notify>,
}

impl Work {
    fn started(&self) -> u64 {
        self.started.load(Ordering::SeqCst)
    }

    async fn pay(self) -> Result<String, WorkError<String>> {
        let n = self.started.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(format!("paid {n}"))
    }

    async fn wait(self) -> Result<String, WorkError<String>> {
        let n = self.started.fetch_add(1, Ordering::SeqCst) + 1;
        self.go.notified().await;
        Ok(format!("paid {n}"))
    }

    async fn fail(self, error: WorkError<String>) -> Result<String, WorkError<String>> {
        self.started.fetch_add(1, Ordering::SeqCst);
        Err(error)
    }
}

fn done(text: &str) -> Answer {
    Run::Done(text.to_owned())
}

fn replayed(text: &str) -> Answer {
    Run::Replayed(text.to_owned())
}

matrix! {
    async fn a_repeat_gets_the_first_result_and_is_not_carried_out(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let work = Work::default();
        assert_eq!(keys.run("a", b"5", work.clone().pay()).await?, done("paid 1"));
        for _ in 0..3 {
            assert_eq!(keys.run("a", b"5", work.clone().pay()).await?, replayed("paid 1"));
        }
        assert_eq!(keys.run("a", b"500", work.clone().pay()).await?, Run::Mismatch);
        assert_eq!(keys.run("b", b"5", work.clone().pay()).await?, done("paid 2"));
        // Another name is another set of keys.
        let other = Idempotency::new(&store, backend.namespace(), "refund")?;
        assert_eq!(other.run("a", b"5", work.clone().pay()).await?, done("paid 3"));
        // A result of another type is an error, not a wrong value.
        let wrong = keys.run::<u64, String, _>("a", b"5", async { Ok(1) }).await;
        assert!(wrong.unwrap_err().is_codec());
        assert!(keys.run("", b"5", work.clone().pay()).await.unwrap_err().is_config());
        for key in store.scan(&format!("{}:*", backend.namespace())).await? {
            let ttl: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
            assert!(ttl > 0, "{key} never expires");
        }
        keys.forget("a").await?;
        assert_eq!(keys.run("a", b"500", work.clone().pay()).await?, done("paid 4"));
        Ok(())
    }

    async fn concurrent_repeats_are_busy_and_one_carries_the_work_out(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let work = Work::default();
        let tasks: Vec<_> = (0..20).map(|_| {
            let (keys, work) = (keys.clone(), work.clone());
            tokio::spawn(async move { keys.run("a", b"5", work.wait()).await })
        }).collect();
        assert!(eventually(SOON, async || work.started() == 1).await);
        let busy = keys.run("a", b"5", work.clone().pay()).await?;
        assert!(matches!(busy, Run::Busy { retry_after } if !retry_after.is_zero()), "{busy:?}");
        work.go.notify_one();
        let mut carried_out = 0;
        for task in tasks {
            match task.await?? {
                Run::Done(_) => carried_out += 1,
                Run::Busy { .. } | Run::Replayed(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((carried_out, work.started()), (1, 1));
        assert_eq!(keys.run("a", b"5", work.clone().pay()).await?, replayed("paid 1"));
        Ok(())
    }

    async fn a_caller_that_goes_away_neither_stops_the_work_nor_frees_the_key(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let work = Work::default();
        let caller = {
            let (keys, work) = (keys.clone(), work.clone());
            tokio::spawn(async move { keys.run("a", b"5", work.wait()).await })
        };
        assert!(eventually(SOON, async || work.started() == 1).await);
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert!(matches!(keys.run("a", b"5", work.clone().pay()).await?, Run::Busy { .. }));
        work.go.notify_one();
        store.settle().await;
        assert_eq!(keys.run("a", b"5", work.clone().pay()).await?, replayed("paid 1"));
        assert_eq!(work.started(), 1);
        Ok(())
    }

    async fn what_may_have_happened_is_unknown_and_not_free(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let work = Work::default();
        let unknown = |text: Option<&str>| Answer::Unknown(text.map(str::to_owned));
        // Nothing happened: a repeat carries it out.
        let refused = work.clone().fail(WorkError::NotDone("no card".to_owned()));
        assert_eq!(keys.run("a", b"5", refused).await?, Run::NotDone("no card".to_owned()));
        assert_eq!(keys.run("a", b"5", work.clone().pay()).await?, done("paid 2"));
        // `?` means that nobody knows.
        let lost = async { Err::<String, _>("timeout".to_owned())?; Ok(String::new()) };
        assert_eq!(keys.run("b", b"5", lost).await?, unknown(Some("timeout")));
        assert_eq!(keys.run("b", b"5", work.clone().pay()).await?, unknown(None));
        // Neither does anybody after a panic.
        let panics = async { if true { panic!("on purpose") } Ok(String::new()) };
        assert_eq!(keys.run("c", b"5", panics).await?, unknown(None));
        assert_eq!(keys.run("c", b"5", work.clone().pay()).await?, unknown(None));
        assert_eq!(keys.run("c", b"500", work.clone().pay()).await?, Run::Mismatch);
        // Somebody found out that it did not happen.
        keys.forget("c").await?;
        assert_eq!(keys.run("c", b"5", work.clone().pay()).await?, done("paid 3"));
        // Work that may happen twice is repeated on request.
        let repeats = Idempotency::builder(&store, backend.namespace(), "pay").repeat_unknown().build()?;
        assert_eq!(repeats.run("b", b"5", work.clone().pay()).await?, done("paid 4"));
        assert_eq!(keys.run("b", b"5", work.clone().pay()).await?, replayed("paid 4"));
        Ok(())
    }

    async fn a_lease_is_renewed_while_the_work_runs_and_a_dead_process_leaves_an_unknown_outcome(backend: &Backend) -> anyhow::Result<()> {
        let lease = Duration::from_millis(400);
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::builder(&store, backend.namespace(), "pay").lease(lease).build()?;
        let work = Work::default();
        let caller = {
            let (keys, work) = (keys.clone(), work.clone());
            tokio::spawn(async move { keys.run("a", b"5", work.wait()).await })
        };
        assert!(eventually(SOON, async || work.started() == 1).await);
        // Three leases later nobody else has started it.
        let until = tokio::time::Instant::now() + 3 * lease;
        while tokio::time::Instant::now() < until {
            let other = keys.run("a", b"5", work.clone().pay()).await?;
            assert!(!matches!(other, Run::Done(_)), "{other:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        work.go.notify_one();
        assert_eq!(caller.await??, done("paid 1"));
        if backend.is_embedded() {
            return Ok(());
        }
        // A runtime that ends takes its work and renewals with it, as a process that dies does.
        let (url, namespace, dead) = (backend.url().to_owned(), backend.namespace().to_owned(), work.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let store = Store::connect(&url).await.unwrap();
                let keys = Idempotency::builder(&store, &namespace, "pay").lease(lease).build().unwrap();
                let run = tokio::spawn({ let dead = dead.clone(); async move { keys.run("dead", b"5", dead.wait()).await } });
                assert!(eventually(SOON, async || dead.started() == 2).await);
                drop(run);
            });
        }).join().unwrap();
        let told = eventually(SOON, async || {
            matches!(keys.run("dead", b"5", work.clone().pay()).await, Ok(Run::Unknown(None)))
        });
        assert!(told.await);
        assert_eq!(work.started(), 2);
        Ok(())
    }

    async fn a_result_is_recorded_although_the_claim_is_gone_unless_another_run_has_the_key(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::builder(&store, backend.namespace(), "pay").build()?;
        for taken in [false, true] {
            let key = format!("taken {taken}");
            let work = Work::default();
            let caller = {
                let (keys, work, key) = (keys.clone(), work.clone(), key.clone());
                tokio::spawn(async move { keys.run(&key, b"5", work.wait()).await })
            };
            assert!(eventually(SOON, async || work.started() == 1).await);
            // Evicted, or its time was over.
            let record = redstart::key::Keys::named(backend.namespace(), "idempotency", "pay")?.entity(&key)?;
            store.query::<()>(redis::cmd("DEL").arg(record.key())).await?;
            if taken {
                assert_eq!(keys.run(&key, b"5", async { Ok::<_, WorkError<String>>("other".to_owned()) }).await?, done("other"));
            }
            work.go.notify_one();
            assert_eq!(caller.await??, done("paid 1"));
            let kept = keys.run(&key, b"5", work.clone().pay()).await?;
            assert_eq!(kept, replayed(if taken { "other" } else { "paid 1" }));
        }
        Ok(())
    }
}

/// A store behind a proxy with a short deadline, and one without.
async fn behind_a_proxy(server: &Server) -> anyhow::Result<(Proxy, Store, Store)> {
    let proxy = Proxy::start(server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_millis(200))
        .connect()
        .await?;
    Ok((proxy, store, Store::connect(&server.url()).await?))
}

#[tokio::test]
async fn a_result_that_could_not_be_written_is_written_in_the_background() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let (proxy, store, direct) = behind_a_proxy(&server).await?;
    let keys = Idempotency::new(&store, "late", "pay")?;
    let work = Work::default();
    let caller = {
        let (keys, work) = (keys.clone(), work.clone());
        tokio::spawn(async move { keys.run("a", b"5", work.wait()).await })
    };
    assert!(eventually(SOON, async || work.started() == 1).await);
    proxy.black_hole_requests();
    work.go.notify_one();
    // The work was done, and its caller hears of it although the store is down.
    assert_eq!(caller.await??, done("paid 1"));
    let direct = Idempotency::new(&direct, "late", "pay")?;
    assert!(matches!(
        direct.run("a", b"5", work.clone().pay()).await?,
        Run::Busy { .. }
    ));
    proxy.pass().await;
    let kept = eventually(
        SOON,
        async || matches!(direct.run("a", b"5", work.clone().pay()).await, Ok(answer) if answer == replayed("paid 1")),
    );
    assert!(kept.await);
    assert_eq!(work.started(), 1);
    Ok(())
}

#[tokio::test]
async fn a_run_that_fails_or_is_dropped_before_it_began_leaves_the_key_free() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    let (proxy, store, direct) = behind_a_proxy(&server).await?;
    let keys = Idempotency::new(&store, "free", "pay")?;
    let direct = Idempotency::new(&direct, "free", "pay")?;
    let work = Work::default();
    assert_eq!(
        keys.run("warm", b"5", work.clone().pay()).await?,
        done("paid 1")
    );

    // The claim arrives and its reply does not.
    proxy.drop_replies();
    let error = keys.run("fails", b"5", work.clone().pay()).await;
    let error = error.unwrap_err();
    assert!(error.is_timeout() || error.is_unavailable(), "{error}");
    assert_eq!(error.operation(), "idempotency.begin");
    proxy.pass().await;
    let free = eventually(SOON, async || {
        matches!(
            direct.run("fails", b"5", work.clone().pay()).await,
            Ok(Run::Done(_))
        )
    });
    assert!(free.await);

    // The caller leaves while the claim is on its way.
    proxy.delay_replies(Duration::from_millis(100));
    let caller = {
        let (keys, work) = (keys.clone(), work.clone());
        tokio::spawn(async move { keys.run("dropped", b"5", work.wait()).await })
    };
    let claimed = eventually(SOON, async || {
        direct_key_exists(&server, "free:idempotency.pay:{dropped}").await
    });
    assert!(claimed.await);
    caller.abort();
    let _ = caller.await;
    proxy.pass().await;
    store.settle().await;
    let answer = direct.run("dropped", b"5", work.clone().pay()).await?;
    assert!(
        matches!(answer, Run::Done(_)) || work.started() == 3,
        "{answer:?}"
    );
    Ok(())
}

/// The process stands still until its claim has ended, and somebody else carries the work out.
#[tokio::test]
async fn work_whose_claim_has_ended_before_it_began_is_not_carried_out_twice() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    let (proxy, _, direct) = behind_a_proxy(&server).await?;
    let store = Store::builder(proxy.url()).deadline(SOON).connect().await?;
    let keys = |store: &Store| {
        let builder = Idempotency::builder(store, "stands", "pay").repeat_unknown();
        builder.lease(Duration::from_millis(200)).build()
    };
    let (late, other) = (keys(&store)?, keys(&direct)?);
    let work = Work::default();
    assert_eq!(
        late.run("warm", b"5", work.clone().pay()).await?,
        done("paid 1")
    );
    proxy.delay_replies(Duration::from_secs(2));
    let caller = {
        let work = work.clone();
        tokio::spawn(async move { late.run("a", b"5", work.pay()).await })
    };
    let claimed = eventually(SOON, async || {
        direct_key_exists(&server, "stands:idempotency.pay:{a}").await
    });
    assert!(claimed.await);
    let ended = eventually(SOON, async || {
        matches!(
            other.run("a", b"5", work.clone().pay()).await,
            Ok(Run::Done(_) | Run::Replayed(_))
        )
    });
    assert!(ended.await);
    proxy.pass().await;
    let answer = caller.await??;
    assert!(
        answer == replayed("paid 2") || answer == done("paid 2"),
        "{answer:?}"
    );
    assert_eq!(work.started(), 2);
    Ok(())
}

async fn direct_key_exists(server: &Server, key: &str) -> bool {
    matches!(server.command(&["EXISTS", key]).await, Ok(reply) if format!("{reply:?}").contains('1'))
}

#[tokio::test]
async fn a_claim_that_arrives_after_it_was_called_off_is_refused() -> anyhow::Result<()> {
    use redstart::{key::Keys, script};
    let store = Store::connect("memory://").await?;
    let entity = Keys::named("late", "idempotency", "pay")?.entity("a")?;
    let find = |name: &str| {
        script::all()
            .into_iter()
            .find(|s| s.name() == name)
            .unwrap()
    };
    let release = find("idempotency.release").on(&entity).key();
    assert_eq!(
        release.arg("token").arg(60_000).run::<u32>(&store).await?,
        0
    );
    let begin = find("idempotency.begin").on(&entity).key();
    let begin = begin
        .arg("f")
        .arg("token")
        .arg(1_000_000)
        .arg(60_000)
        .arg(0);
    assert_eq!(begin.run::<Vec<String>>(&store).await?, ["void"]);
    // Everybody else finds the key free.
    let keys = Idempotency::new(&store, "late", "pay")?;
    let work = Work::default();
    assert_eq!(keys.run("a", b"5", work.pay()).await?, done("paid 1"));
    Ok(())
}

/// The scripts of one run, by its token.
struct RawRun<'a> {
    store: &'a Store,
    entity: redstart::key::Entity,
    token: &'static str,
}

impl RawRun<'_> {
    fn script(name: &str) -> &'static redstart::script::Script {
        let mut all = redstart::script::all().into_iter();
        all.find(|script| script.name() == name).unwrap()
    }

    async fn begin(&self) -> redstart::Result<Vec<String>> {
        let call = Self::script("idempotency.begin").on(&self.entity).key();
        let call = call.arg("f").arg(self.token).arg(1_000_000).arg(60_000);
        call.arg(0).run(self.store).await
    }

    async fn finish(&self) -> redstart::Result<u32> {
        let call = Self::script("idempotency.finish").on(&self.entity).key();
        let call = call.arg(self.token).arg("f").arg(self.token).arg(60_000);
        call.run(self.store).await
    }

    async fn release(&self) -> redstart::Result<u32> {
        let call = Self::script("idempotency.release").on(&self.entity).key();
        call.arg(self.token).arg(60_000).run(self.store).await
    }
}

/// The mark of a third run keeps the key for longer than the result of the second one.
#[tokio::test]
async fn a_record_that_is_over_takes_no_result_away() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let entity = redstart::key::Keys::named("over", "idempotency", "pay")?.entity("a")?;
    let run = |token| RawRun {
        store: &store,
        entity: entity.clone(),
        token,
    };
    for is_over in [false, true] {
        assert_eq!(run("second").begin().await?, ["started"]);
        assert_eq!(run("second").finish().await?, 1);
        store.advance(Duration::from_secs(30))?;
        assert_eq!(run("third").release().await?, 0);
        if is_over {
            store.advance(Duration::from_secs(45))?;
        }
        // The first run has lost the key, or carries its work out without one because the store was down.
        assert_eq!(run("first").finish().await?, u32::from(is_over));
        let of = if is_over { "first" } else { "second" };
        assert_eq!(run("fourth").begin().await?, ["replay", of]);
        // A late claim of the third run finds its mark, or a result that lasts longer than the mark would.
        let late = if is_over {
            vec!["replay", of]
        } else {
            vec!["void"]
        };
        assert_eq!(run("third").begin().await?, late);
        store.advance(Duration::from_secs(120))?;
        let exists: u32 = store.query(redis::cmd("EXISTS").arg(entity.key())).await?;
        assert_eq!(exists, 0, "nothing stays");
    }
    Ok(())
}

/// A poller whose work ends well before it begins, for hours.
#[tokio::test]
async fn old_marks_of_a_key_make_room_for_new_ones_and_go() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let entity = redstart::key::Keys::named("poll", "idempotency", "pay")?.entity("a")?;
    let release = RawRun::script("idempotency.release");
    let begin = RawRun::script("idempotency.begin");
    for round in 0..1_100u32 {
        let call = release.on(&entity).key().arg(round).arg(60_000);
        assert_eq!(call.run::<u32>(&store).await?, 0);
        store.advance(Duration::from_secs(30))?;
        let late = begin.on(&entity).key().arg("f").arg(round).arg(1_000_000);
        let said: Vec<String> = late.arg(60_000).arg(0).run(&store).await?;
        assert_eq!(said, ["void"], "round {round}");
    }
    // A run whose marks end sooner does not shorten those of others.
    let call = release.on(&entity).key().arg("long").arg(3_600_000);
    call.run::<u32>(&store).await?;
    let call = release.on(&entity).key().arg("short").arg(60_000);
    call.run::<u32>(&store).await?;
    let left: i64 = store.query(redis::cmd("PTTL").arg(entity.key())).await?;
    assert!(left > 3_000_000, "{left}");
    store.advance(Duration::from_secs(3_601))?;
    let exists: u32 = store.query(redis::cmd("EXISTS").arg(entity.key())).await?;
    assert_eq!(exists, 0);
    Ok(())
}

#[tokio::test]
async fn claims_of_several_runs_that_were_called_off_are_refused() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let entity = redstart::key::Keys::named("many", "idempotency", "pay")?.entity("a")?;
    let run = |token| RawRun {
        store: &store,
        entity: entity.clone(),
        token,
    };
    let (one, two, three) = (run("one"), run("two"), run("three"));
    assert_eq!(one.release().await?, 0);
    assert_eq!(two.release().await?, 0);
    assert_eq!(one.begin().await?, ["void"]);
    assert_eq!(two.begin().await?, ["void"]);
    // Not even when another run had the key meanwhile and freed it, nor if it had it while they were called off.
    assert_eq!(three.begin().await?, ["started"]);
    let four = run("four");
    assert_eq!(four.release().await?, 0);
    assert_eq!(three.release().await?, 1);
    // A run may claim twice, and the second claim arrive after its call-off.
    for called_off in [one, two, three, four] {
        assert_eq!(called_off.begin().await?, ["void"], "{}", called_off.token);
    }
    let keys = Idempotency::new(&store, "many", "pay")?;
    let work = Work::default();
    assert_eq!(
        keys.run("a", b"5", work.clone().pay()).await?,
        done("paid 1")
    );
    assert_eq!(keys.run("a", b"5", work.pay()).await?, replayed("paid 1"));
    Ok(())
}

/// A mark outlives what it is beside: a result that is about to end, one that has ended, and the claim of another run.
#[tokio::test]
async fn a_run_that_is_called_off_beside_another_one_is_refused_for_a_minute() -> anyhow::Result<()>
{
    #[derive(Debug, PartialEq)]
    enum Beside {
        Result,
        PastResult,
        Claim,
    }
    let second = Duration::from_secs(1);
    for beside in [Beside::Result, Beside::PastResult, Beside::Claim] {
        let store = Store::connect("memory://").await?;
        let keys = Idempotency::builder(&store, "beside", "pay")
            .ttl(second * 10)
            .lease(second)
            .build()?;
        let entity = redstart::key::Keys::named("beside", "idempotency", "pay")?.entity("a")?;
        let run = |token| RawRun {
            store: &store,
            entity: entity.clone(),
            token,
        };
        let work = Work::default();
        if beside == Beside::Claim {
            // It is kept for a minute.
            assert_eq!(run("other").begin().await?, ["started"]);
            store.advance(second * 30)?;
        } else {
            if beside == Beside::PastResult {
                // A mark keeps the key for longer than the result.
                run("first").release().await?;
            }
            let first = keys.run("a", b"5", work.clone().pay()).await?;
            assert_eq!(first, done("paid 1"), "{beside:?}");
            let past = beside == Beside::PastResult;
            store.advance(second * if past { 11 } else { 9 })?;
        }
        assert_eq!(run("late").release().await?, 0, "{beside:?}");
        assert_eq!(run("late").begin().await?, ["void"], "{beside:?}");
        store.advance(second * 40)?;
        assert_eq!(run("late").begin().await?, ["void"], "{beside:?}");
        // What it is beside has ended as it would have.
        let count = work.started();
        let again = keys.run("a", b"5", work.clone().pay()).await?;
        assert_eq!(again, done(&format!("paid {}", count + 1)), "{beside:?}");
        store.advance(second * 100)?;
        let exists: u32 = store.query(redis::cmd("EXISTS").arg(entity.key())).await?;
        assert_eq!(exists, 0, "{beside:?}: nothing stays");
    }
    Ok(())
}

/// A run with a short TTL, and `forget`, leave the marks of runs that were called off.
/// An operator may have taken its TTL away to look at it.
#[tokio::test]
async fn a_record_without_a_ttl_is_not_over() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let entity = redstart::key::Keys::named("kept", "idempotency", "pay")?.entity("a")?;
    let run = |token| RawRun {
        store: &store,
        entity: entity.clone(),
        token,
    };
    let keys = Idempotency::new(&store, "kept", "pay")?;
    for has_result in [false, true] {
        if has_result {
            let _ = keys.run("a", b"5", Work::default().pay()).await?;
        } else {
            assert_eq!(run("first").begin().await?, ["started"]);
        }
        let persisted: u32 = store.query(redis::cmd("PERSIST").arg(entity.key())).await?;
        assert_eq!(persisted, 1);
        assert_eq!(run("late").release().await?, 0);
        let ttl: i64 = store.query(redis::cmd("PTTL").arg(entity.key())).await?;
        assert_eq!(ttl, -1, "it is as it was found");
        match has_result {
            true => {
                let again = keys.run("a", b"5", Work::default().pay()).await?;
                assert_eq!(again, replayed("paid 1"));
            }
            false => {
                let second = run("second").begin().await?;
                assert_eq!(second[0], "busy");
                assert_eq!(run("first").release().await?, 1);
                assert_eq!(run("late").begin().await?, ["void"]);
                keys.forget("a").await?;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn marks_of_runs_that_were_called_off_last_a_minute() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let second = Duration::from_secs(1);
    let keys = Idempotency::builder(&store, "short", "pay")
        .ttl(second * 5)
        .lease(second)
        .build()?;
    let late = |token| RawRun {
        store: &store,
        entity: redstart::key::Keys::named("short", "idempotency", "pay")
            .and_then(|keys| keys.entity("a"))
            .expect("valid names"),
        token,
    };
    let work = Work::default();
    late("gone").release().await?;
    assert_eq!(
        keys.run("a", b"5", work.clone().pay()).await?,
        done("paid 1")
    );
    assert_eq!(
        keys.run("a", b"5", work.clone().pay()).await?,
        replayed("paid 1")
    );
    store.advance(second * 6)?;
    assert_eq!(late("gone").begin().await?, ["void"]);
    // The result is kept no longer than it should be.
    assert_eq!(
        keys.run("a", b"5", work.clone().pay()).await?,
        done("paid 2")
    );
    // Whoever had a key that is forgotten does not get it again by a copy of its request.
    keys.forget("a").await?;
    assert_eq!(late("dead").begin().await?, ["started"]);
    // While its lease goes on it may be at work.
    assert!(!keys.forget("a").await?);
    assert!(matches!(
        keys.run("a", b"5", work.clone().pay()).await?,
        Run::Mismatch | Run::Busy { .. }
    ));
    store.advance(second * 2)?;
    assert!(keys.forget("a").await?);
    for token in ["gone", "dead"] {
        assert_eq!(late(token).begin().await?, ["void"], "{token}");
    }
    store.advance(second * 61)?;
    let entity = late("gone").entity;
    let exists: u32 = store.query(redis::cmd("EXISTS").arg(entity.key())).await?;
    assert_eq!(exists, 0, "nothing stays");
    assert_eq!(keys.run("a", b"5", work.pay()).await?, done("paid 3"));
    Ok(())
}

#[tokio::test]
async fn while_the_store_is_down_the_policy_decides() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(200))
        .connect()
        .await?;
    let keys = |down| {
        Idempotency::builder(&store, "down", "pay")
            .on_store_down(down)
            .build()
    };
    let work = Work::default();
    server.kill9();
    let fails = keys(Down::Fail)?.run("a", b"5", work.clone().pay()).await;
    let error = fails.unwrap_err();
    assert!(error.is_timeout() || error.is_unavailable(), "{error}");
    let refused = keys(Down::Refuse)?
        .run("a", b"5", work.clone().pay())
        .await?;
    assert!(matches!(refused, Run::Busy { .. }));
    assert_eq!(work.started(), 0);
    let allowed = keys(Down::Allow)?
        .run("a", b"5", work.clone().pay())
        .await?;
    assert_eq!(allowed, done("paid 1"));
    Ok(())
}

/// A part of the work, such as a request's body, that counts when it is dropped.
struct Body(Arc<AtomicU64>);

impl Drop for Body {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs work that must not be carried out, and counts how many bodies are gone once all callers have an answer.
async fn refused_runs(keys: &Idempotency, count: u64) -> u64 {
    let dropped = Arc::new(AtomicU64::new(0));
    let runs = (0..count).map(|n| {
        let body = Body(dropped.clone());
        async move {
            let work = async move {
                let _body = body;
                Err(WorkError::NotDone("it was carried out".to_owned()))
            };
            let answer: redstart::Result<Answer> = keys.run(&n.to_string(), b"5", work).await;
            assert!(!matches!(answer, Ok(Run::NotDone(_))), "{answer:?}");
        }
    });
    futures_util::future::join_all(runs).await;
    dropped.load(Ordering::SeqCst)
}

#[tokio::test]
async fn while_the_store_is_down_work_that_does_not_start_is_dropped_and_nothing_is_left_to_do()
-> anyhow::Result<()> {
    const RUNS: u64 = 50;
    let server = Server::builder(Kind::Redis).start().await?;
    let (proxy, store, _direct) = behind_a_proxy(&server).await?;
    let keys = |down| {
        Idempotency::builder(&store, "drop", "pay")
            .on_store_down(down)
            .build()
    };
    // Claims that were sent may have been made: they are called off later, without the work.
    proxy.drop_replies();
    assert_eq!(refused_runs(&keys(Down::Fail)?, RUNS).await, RUNS);
    proxy.pass().await;
    assert!(tokio::time::timeout(SOON, store.settle()).await.is_ok());

    proxy.refuse().await;
    proxy.cut().await?;
    let ping = redis::cmd("PING");
    let down = eventually(SOON, async || {
        let answer = store.query::<String>(&ping).await;
        answer.is_err()
    });
    assert!(down.await);
    for down in [Down::Fail, Down::Refuse] {
        assert_eq!(refused_runs(&keys(down)?, RUNS).await, RUNS);
    }
    // Nothing was sent, so there is nothing to call off.
    let settled = tokio::time::timeout(SOON, store.settle()).await;
    assert!(
        settled.is_ok(),
        "claims that were never sent are called off"
    );
    Ok(())
}

/// Whether the stub got a call that frees a key.
fn is_called_off(stub: &Stub) -> bool {
    let all = redstart::script::all().into_iter();
    let mut named = all.filter(|script| script.name() == "idempotency.release");
    let release = named.next().expect("a script of this name");
    let heard = stub.heard();
    heard
        .iter()
        .any(|command| command.get(1).is_some_and(|word| word == release.digest()))
}

/// The work has not started, so its key must not stay claimed by an attempt that was carried out before the last one was not.
async fn is_freed_later(stub: &Stub, lease: Duration) -> anyhow::Result<()> {
    let store = Store::builder(&stub.url())
        .deadline(Duration::from_secs(2))
        .lazy()
        .connect()
        .await?;
    let keys = Idempotency::builder(&store, "again", "pay")
        .lease(lease)
        .build()?;
    let work = Work::default();
    let failed = keys.run("a", b"5", work.clone().pay()).await;
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(work.started(), 0);
    assert!(!is_called_off(stub), "the server was down");
    stub.open();
    let freed = eventually(SOON, async || is_called_off(stub));
    assert!(freed.await, "the key stays claimed: {:?}", stub.heard());
    Ok(())
}

#[tokio::test]
async fn a_claim_that_came_too_late_is_called_off_although_the_next_one_was_not_sent()
-> anyhow::Result<()> {
    let lease = Duration::from_millis(200);
    let first = std::sync::atomic::AtomicBool::new(true);
    let stub = Stub::start(move |command| match command[0].as_str() {
        "EVALSHA" if first.swap(false, Ordering::SeqCst) => {
            // The process stands still meanwhile, or the server does.
            std::thread::sleep(lease * 2);
            Reply::Last("*1\r\n$7\r\nstarted\r\n".to_owned())
        }
        "EVALSHA" => Reply::Reply(":1\r\n".to_owned()),
        _ => Reply::ok(),
    })
    .await?;
    is_freed_later(&stub, lease).await
}

/// The first server carries the claim out and is lost, and the next one does not know the script and is lost too.
#[tokio::test]
async fn a_claim_whose_reply_was_lost_is_called_off_although_its_source_was_not_sent()
-> anyhow::Result<()> {
    let claims = AtomicU64::new(0);
    let stub = Stub::start(move |command| match command[0].as_str() {
        "EVALSHA" => match claims.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::HangUp,
            1 => Reply::Last("-NOSCRIPT No matching script.\r\n".to_owned()),
            _ => Reply::Reply(":1\r\n".to_owned()),
        },
        _ => Reply::ok(),
    })
    .await?;
    is_freed_later(&stub, Duration::from_secs(30)).await
}

#[tokio::test]
async fn bad_settings_are_refused() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let builder = |namespace, name| Idempotency::builder(&store, namespace, name);
    for bad in [
        builder("", "pay"),
        builder("shop", ""),
        builder("shop", "a:b"),
        builder("shop", "pay").ttl(Duration::ZERO),
        builder("shop", "pay").lease(Duration::ZERO),
        builder("shop", "pay").ttl(Duration::MAX),
    ] {
        assert!(bad.build().unwrap_err().is_config());
    }
    Ok(())
}
