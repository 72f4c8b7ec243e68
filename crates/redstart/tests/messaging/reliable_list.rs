use std::{collections::HashMap, time::Duration};

use anyhow::{Result, bail, ensure};
use redstart::{
    Store,
    key::{Keys, Layout},
    messaging::{ReliableList, Settled},
};
use redstart_testkit::{
    Backend, Child, Kind, Proxy, Server, child, eventually, figure, matrix, scale,
};

use crate::queue::LONG;

matrix! {
    async fn an_old_producers_list_is_adopted_and_emptied_in_order(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let key = format!("{}-legacy", backend.namespace());
        for n in 0..5 { store.query::<()>(redis::cmd("LPUSH").arg(&key).arg(n)).await?; }
        let adopted = key.clone();
        let list = ReliableList::builder(&store, backend.namespace(), "l").layout(Layout::new(move |_| adopted.clone())).build()?;
        let mut consumer = list.consumer().await?;
        for n in 0..5 {
            let item = consumer.take(LONG).await?.unwrap();
            assert_eq!(item.payload(), n.to_string().as_bytes());
            assert_eq!(item.done().await?, Settled::Done);
        }
        assert!(consumer.take(Duration::from_millis(1)).await?.is_none());
        // One that is dropped with its consumer comes back.
        list.push("again").await?;
        let item = consumer.take(LONG).await?.unwrap();
        drop(consumer);
        store.settle().await;
        assert_eq!(item.done().await?, Settled::Lost);
        let mut second = list.consumer().await?;
        assert_eq!(second.take(LONG).await?.unwrap().done().await?, Settled::Done);
        assert_eq!(second.close().await?, 0);
        assert!(store.scan(&format!("*{key}*")).await?.is_empty(), "something is left behind");
        for lease in [Duration::ZERO, LONG * 100_000] {
            assert!(ReliableList::builder(&store, "a", "l").lease(lease).build().unwrap_err().is_config());
        }
        Ok(())
    }


    async fn a_take_that_was_given_up_and_is_read_late_loses_nothing(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let lease = Duration::from_millis(300);
        let list = ReliableList::builder(&store, backend.namespace(), "l").lease(lease).build()?;
        let part = |part: &str| format!("{}:list:{{l}}:{part}", backend.namespace());
        let mut second = list.consumer().await?;
        for leaves in [true, false] {
            let known: Vec<String> = store.query(redis::cmd("ZRANGE").arg(part("consumers")).arg(0).arg(-1)).await?;
            let mut first = list.consumer().await?;
            let all: Vec<String> = store.query(redis::cmd("ZRANGE").arg(part("consumers")).arg(0).arg(-1)).await?;
            let name = all.into_iter().find(|name| !known.contains(name)).unwrap();
            // It gives up a take, and has looked for what that took.
            assert!(tokio::time::timeout(Duration::from_millis(50), first.take(LONG)).await.is_err());
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let mut first = Some(first);
            if leaves { first.take().unwrap().close().await?; }
            // The server reads the request only now.
            store.query::<()>(redis::cmd("LPUSH").arg(part(&format!("taken:{name}"))).arg("late")).await?;
            ensure!(eventually(LONG, async || {
                let item = second.take(Duration::from_millis(50)).await;
                let Ok(Some(item)) = item else { return false };
                item.payload() == b"late" && matches!(item.done().await, Ok(Settled::Done))
            }).await, "the item is lost; its consumer has left: {leaves}");
        }
        Ok(())
    }

    async fn however_many_consumers_died_their_items_come_back(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let lease = Duration::from_millis(300);
        let list = ReliableList::builder(&store, backend.namespace(), "l").lease(lease).build()?;
        // Left behind by consumers that died a while ago, and by some more.
        let part = |part: &str| format!("{}:list:{{l}}:{part}", backend.namespace());
        let mut consumer = None;
        let mut came = HashMap::<String, u32>::new();
        for batch in 0..3 {
            let ended = store.time().await?.as_micros() as u64 - 1_000_000;
            for n in 0..120 {
                let name = format!("dead-{batch}-{n}");
                store.query::<()>(redis::cmd("LPUSH").arg(part(&format!("taken:{name}"))).arg(&name)).await?;
                store.query::<()>(redis::cmd("ZADD").arg(part("consumers")).arg(ended).arg(&name)).await?;
            }
            if consumer.is_none() { consumer = Some(list.consumer().await?); }
            let consumer = consumer.as_mut().unwrap();
            ensure!(eventually(LONG, async || {
                while let Ok(Some(item)) = consumer.take(Duration::from_millis(1)).await {
                    *came.entry(String::from_utf8_lossy(item.payload()).into_owned()).or_default() += 1;
                    let _ = item.done().await;
                }
                came.len() == 120 * (batch + 1)
            }).await, "batch {batch}: {} of {} items came back", came.len(), 120 * (batch + 1));
        }
        assert!(came.values().all(|times| *times == 1));
        // An item that arrives late in a dead consumer's list is found too.
        store.query::<()>(redis::cmd("LPUSH").arg(part("taken:dead-0-7")).arg("late")).await?;
        let consumer = consumer.as_mut().unwrap();
        ensure!(eventually(LONG, async || {
            matches!(consumer.take(Duration::from_millis(50)).await, Ok(Some(item)) if item.payload() == b"late")
        }).await);
        Ok(())
    }
}

matrix! {
    processes:
    async fn consumers_killed_anywhere_lose_nothing(backend: &Backend) -> Result<()> {
        let lease = Duration::from_secs(1);
        let store = Store::connect(backend.url()).await?;
        let list = ReliableList::builder(&store, backend.namespace(), "l").lease(lease).build()?;
        let seen = format!("{}:seen", backend.namespace());
        if child::role().is_some() {
            let mut consumer = list.consumer().await?;
            child::say("ready");
            loop {
                if let Some(item) = consumer.take(LONG).await? {
                    store.query::<()>(redis::cmd("HINCRBY").arg(&seen).arg(item.payload()).arg(1)).await?;
                    let _ = item.done().await?;
                }
            }
        }
        let kills = scale(5, "list kills");
        let spawn = || Child::of(backend.test()).namespace(backend.namespace()).spawn();
        let mut children = vec![spawn()?, spawn()?, spawn()?];
        for child in &mut children { assert_eq!(child.line().await?, "ready"); }
        let mut pushed = 0;
        for kill in 0..kills {
            for _ in 0..200 {
                list.push(pushed.to_string()).await?;
                pushed += 1;
            }
            let at = kill as usize % children.len();
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..20_000))).await;
            children[at].kill9();
            children[at] = spawn()?;
            assert_eq!(children[at].line().await?, "ready");
        }
        let mut last = list.consumer().await?;
        let mut count = 0;
        ensure!(eventually(LONG * 2, async || {
            if let Ok(Some(item)) = last.take(Duration::from_millis(5)).await {
                let _ = store.query::<()>(redis::cmd("HINCRBY").arg(&seen).arg(item.payload()).arg(1)).await;
                let _ = item.done().await;
            }
            count = store.query::<u64>(redis::cmd("HLEN").arg(&seen)).await.unwrap_or(0);
            count == pushed
        }).await, "{count} of {pushed} items came");
        let times: Vec<u64> = store.query(redis::cmd("HVALS").arg(&seen)).await?;
        let repeats = times.iter().sum::<u64>() - pushed;
        figure(format!("{}: {kills} kills, {pushed} items, 0 lost, {repeats} repeated", backend.test()));
        // Each held one at most.
        assert!(repeats <= kills, "{repeats} repeats of {kills} kills");
        Ok(())
    }

    async fn a_consumer_that_dies_at_any_step_loses_nothing(backend: &Backend) -> Result<()> {
        let lease = Duration::from_millis(400);
        let open = async || -> Result<(Store, ReliableList)> {
            let store = Store::connect(backend.url()).await?;
            let list = ReliableList::builder(&store, backend.namespace(), "l").lease(lease).build()?;
            Ok((store, list))
        };
        if let Some(step) = child::role() {
            let (_store, list) = open().await?;
            let mut consumer = list.consumer().await?;
            if step == "registered" { child::say("at it"); return std::future::pending().await; }
            let item = consumer.take(LONG).await?.unwrap();
            if step == "taken" { child::say("at it"); return std::future::pending().await; }
            let _ = item.done().await?;
            child::say("at it");
            return std::future::pending().await;
        }
        let (store, list) = open().await?;
        for n in 0..10 { list.push(format!("{n}")).await?; }
        for step in ["registered", "taken", "done"] {
            let mut victim = Child::of(backend.test()).role(step).namespace(backend.namespace()).spawn()?;
            assert_eq!(victim.line().await?, "at it");
            victim.kill9();
        }
        let mut consumer = list.consumer().await?;
        let mut seen: HashMap<Vec<u8>, u32> = HashMap::new();
        // The finished item is gone; the one that was only taken comes back when the lease ends.
        ensure!(eventually(LONG, async || {
            if let Ok(Some(item)) = consumer.take(Duration::from_millis(50)).await {
                *seen.entry(item.payload().to_vec()).or_default() += 1;
                let _ = item.done().await;
            }
            seen.len() == 9
        }).await, "{} of 9 items came", seen.len());
        assert!(seen.values().all(|times| *times == 1));
        consumer.close().await?;
        let taken = store.scan(&format!("{}:list:{{l}}:taken:*", backend.namespace())).await?;
        assert_eq!(taken, Vec::<String>::new());
        Ok(())
    }

    async fn a_cancelled_take_gives_its_item_back_while_the_consumer_lives(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        // So long that nothing comes back by the end of a lease.
        let list = ReliableList::builder(&store, backend.namespace(), "l").lease(LONG * 100).build()?;
        let (mut first, mut second) = (list.consumer().await?, list.consumer().await?);
        let kept = { list.push("kept").await?; first.take(LONG).await?.unwrap() };
        for round in 0..scale(60, "cancelled takes") {
            list.push(round.to_string()).await?;
            // Dropped at a different point each time; with the item, if it came.
            let _ = tokio::time::timeout(Duration::from_micros(20 * round), first.take(LONG)).await;
            let item = second.take(LONG).await?.unwrap();
            assert_eq!(item.payload(), round.to_string().as_bytes());
            assert_eq!(item.done().await?, Settled::Done);
        }
        assert_eq!(kept.done().await?, Settled::Done, "what the application has is not given back");
        first.close().await?;
        second.close().await?;
        Ok(())
    }

    async fn an_item_dropped_while_its_consumer_waits_comes_back(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let list = ReliableList::builder(&store, backend.namespace(), "l").lease(LONG * 100).build()?;
        let (mut first, mut second) = (list.consumer().await?, list.consumer().await?);
        list.push("a").await?;
        let item = first.take(LONG).await?.unwrap();
        // The task gives its consumer back too: one that is dropped puts back what it took.
        let waits = tokio::spawn(async move {
            let item = first.take(LONG * 10).await;
            (first, item)
        });
        // It waits for the server by now, or will soon.
        tokio::task::yield_now().await;
        drop(item);
        let (_consumer, again) = tokio::select! {
            item = second.take(LONG) => (None, item?.expect("it came back")),
            ended = waits => {
                let (first, item) = ended?;
                (Some(first), item?.expect("it came back to its consumer"))
            }
        };
        assert_eq!(again.payload(), b"a");
        assert_eq!(again.done().await?, Settled::Done);
        Ok(())
    }
}

matrix! {
    async fn a_look_that_arrives_late_takes_nothing_away(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let list = ReliableList::builder(&store, backend.namespace(), "l").lease(LONG * 100).build()?;
        let mut consumer = list.consumer().await?;
        list.push("a").await?;
        drop(consumer.take(LONG).await?);
        // Before it takes again, it looks for what it dropped.
        let item = consumer.take(LONG).await?.expect("it came back");
        let entity = Keys::new(backend.namespace(), "list")?.entity("l")?;
        let names: Vec<String> = store.query(redis::cmd("ZRANGE").arg(entity.part("consumers")).arg(0).arg(-1)).await?;
        let [name] = &names[..] else { bail!("there is one consumer: {names:?}") };
        let all = redstart::script::all();
        let look = all.iter().find(|script| script.name() == "reliable_list.give_back").expect("a script");
        // Another copy of its first look, from before it had the item.
        let taken = format!("taken:{name}");
        let call = look.on(&entity).key().part(&taken).part("looks").part("consumers").arg(name).arg(1);
        let back: u64 = call.run(&store).await?;
        assert_eq!((back, list.waiting().await?), (0, 0));
        assert_eq!(item.done().await?, Settled::Done);
        consumer.close().await?;
        assert_eq!(store.query::<u64>(redis::cmd("EXISTS").arg(entity.part("looks"))).await?, 0);
        Ok(())
    }
}

/// A server that starts without its data does not know its consumers. What they take from then on can be found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_the_server_forgot_is_registered_before_it_takes() -> Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let store = Store::connect(&server.url()).await?;
        let list = ReliableList::builder(&store, "forgotten", "l")
            .lease(LONG * 100)
            .build()?;
        let mut consumer = list.consumer().await?;
        list.push("a").await?;
        let item = consumer.take(LONG).await?.expect("it was pushed");
        server.restart().await?;
        let pushed = eventually(LONG, async || list.push("b").await.is_ok());
        ensure!(pushed.await);
        let again = eventually(LONG, async || {
            let taken = consumer.take(LONG).await;
            taken.is_ok_and(|item| item.is_some_and(|item| item.payload() == b"b"))
        });
        ensure!(again.await);
        let consumers = Keys::new("forgotten", "list")?
            .entity("l")?
            .part("consumers");
        let known: u64 = store.query(redis::cmd("ZCARD").arg(consumers)).await?;
        assert_eq!(known, 1, "{kind:?}");
        drop(item);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_dropped_while_another_is_put_back_comes_back_too() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let direct = Store::connect(&server.url()).await?;
    let slow = Store::builder(proxy.url()).deadline(LONG).connect().await?;
    let lease = LONG * 100;
    let list = ReliableList::builder(&slow, "dropped", "l")
        .lease(lease)
        .build()?;
    let other = ReliableList::builder(&direct, "dropped", "l")
        .lease(lease)
        .build()?;
    let mut first = list.consumer().await?;
    for item in ["a", "b"] {
        other.push(item).await?;
    }
    let (Some(a), Some(b)) = (first.take(LONG).await?, first.take(LONG).await?) else {
        anyhow::bail!("two items were pushed");
    };
    // The look for `b` still counts `a` as held, and `a` is dropped before its reply arrives.
    proxy.delay_replies(Duration::from_secs(1));
    drop(b);
    ensure!(eventually(LONG, async || other.waiting().await.is_ok_and(|n| n == 1)).await);
    drop(a);
    ensure!(
        eventually(LONG, async || other.waiting().await.is_ok_and(|n| n == 2)).await,
        "the second item did not come back"
    );
    Ok(())
}

/// Its background task did not come to renew the lease.
#[tokio::test]
async fn a_consumer_whose_lease_may_have_ended_renews_it_before_it_takes() -> Result<()> {
    let store = Store::connect("memory://?cluster_strict=1").await?;
    let lease = Duration::from_secs(30);
    let list = ReliableList::builder(&store, "shop", "orders")
        .lease(lease)
        .build()?;
    let mut first = list.consumer().await?;
    list.push("1").await?;
    store.advance(2 * lease)?;
    let item = first.take(LONG).await?.unwrap();
    // It looks for what silent consumers took.
    let mut second = list.consumer().await?;
    assert!(second.take(Duration::from_millis(1)).await?.is_none());
    assert_eq!(item.done().await?, Settled::Done);
    Ok(())
}
