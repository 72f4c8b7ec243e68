//! Doubt is never lost: if any part of a request may have been carried out, its error says so.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use redstart::{
    Store,
    key::Keys,
    script::{Batch, Script},
};
use redstart_testkit::{Answer, Backend, Cluster, Kind, Proxy, Server, Stub, eventually, matrix};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_pipeline_whose_replies_were_dropped_is_in_doubt() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(5))
        .connect()
        .await?;
    for atomic in [false, true] {
        let mut pipeline = redis::pipe();
        if atomic {
            pipeline.atomic();
        }
        pipeline
            .cmd("INCR")
            .arg("marked-key")
            .cmd("INCR")
            .arg("marked-key");
        proxy.drop_reply_to("marked-key");
        let error = store.pipeline::<(i64, i64)>(&pipeline).await.unwrap_err();
        assert!(error.is_in_doubt(), "{error:?}");
        proxy.pass().await;
        let ping = redis::cmd("PING");
        assert!(
            eventually(PATIENCE, async || store
                .query::<String>(&ping)
                .await
                .is_ok())
            .await
        );
    }
    // A pipeline that only reads has nothing to doubt.
    let mut reads = redis::pipe();
    reads
        .cmd("GET")
        .arg("marked-key")
        .cmd("GET")
        .arg("other-key");
    proxy.drop_reply_to("other-key");
    assert_eq!(
        store.pipeline::<(Option<i64>, Option<i64>)>(&reads).await?,
        (Some(4), None)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_cluster_pipeline_of_which_one_node_did_its_part_is_in_doubt() -> anyhow::Result<()>
{
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let store = Store::builder(&cluster.url())
        .deadline(Duration::from_millis(800))
        .connect()
        .await?;
    let keys = Keys::new("app", "doubt")?;
    let here = keys.entity("0")?;
    let dead = cluster.owner(here.slot()).await?;
    let mut other = None;
    for n in 1.. {
        let entity = keys.entity(&n.to_string())?;
        if cluster.owner(entity.slot()).await? != dead {
            other = Some(entity);
            break;
        }
    }
    let other = other.expect("the keys are spread");
    cluster.node(dead).kill9();
    let mut pipeline = redis::pipe();
    pipeline
        .cmd("INCR")
        .arg(here.key())
        .cmd("INCR")
        .arg(other.key());
    let error = store.pipeline::<(i64, i64)>(&pipeline).await.unwrap_err();
    assert!(error.is_in_doubt(), "{error:?}");
    // Nothing was sent to the dead node alone, and that is known.
    let error = store
        .query::<i64>(redis::cmd("INCR").arg(here.key()))
        .await
        .unwrap_err();
    assert!(!error.is_in_doubt(), "{error:?}");
    Ok(())
}

matrix! {
    async fn a_pipeline_that_wrote_before_a_command_failed_is_in_doubt(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let entity = Keys::new(backend.namespace(), "doubt")?.entity("half")?;
        let (number, text) = (entity.part("number"), entity.part("text"));
        store.query::<()>(redis::cmd("SET").arg(&text).arg("text")).await?;
        for atomic in [false, true] {
            let pipeline = |first: (&str, &redstart::key::Key)| {
                let mut pipeline = redis::pipe();
                if atomic {
                    pipeline.atomic();
                }
                pipeline.cmd(first.0).arg(first.1).cmd("INCR").arg(&text);
                pipeline
            };
            let mut own = store.dedicated(entity.key());
            let half = pipeline(("INCR", &number));
            for outcome in [store.pipeline::<(i64, i64)>(&half).await, own.pipeline(&half).await] {
                let error = outcome.unwrap_err();
                assert!(error.is_in_doubt(), "atomic {atomic}: {error:?}");
            }
            // Nothing was written.
            for nothing in [pipeline(("GET", &number)), pipeline(("INCR", &text))] {
                let error = store.pipeline::<(i64, i64)>(&nothing).await.unwrap_err();
                assert!(!error.is_in_doubt(), "atomic {atomic}: {error:?}");
            }
        }
        assert_eq!(store.query::<i64>(redis::cmd("GET").arg(&number)).await?, 4);
        Ok(())
    }

    async fn a_write_whose_reply_cannot_be_read_is_in_doubt(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let entity = Keys::new(backend.namespace(), "doubt")?.entity("unread")?;
        let key = entity.key();
        store.query::<()>(redis::cmd("SET").arg(key).arg(7)).await?;
        let (mut own, mut increment) = (store.dedicated(key), redis::cmd("INCR"));
        increment.arg(key);
        let mut outcomes = vec![
            store.query::<Pair>(&increment).await,
            own.query(&increment, Duration::ZERO).await,
            INCREMENT.on(&entity).key().run(&store).await,
        ];
        let mut batch = Batch::new();
        batch.push(INCREMENT.on(&entity).key());
        outcomes.extend(batch.run(&store).await?);
        for atomic in [false, true] {
            let mut pipeline = redis::pipe();
            if atomic {
                pipeline.atomic();
            }
            pipeline.cmd("GET").arg(key).ignore().add_command(increment.clone());
            outcomes.push(store.pipeline::<(Pair,)>(&pipeline).await.map(|(n,)| n));
            outcomes.push(own.pipeline::<(Pair,)>(&pipeline).await.map(|(n,)| n));
        }
        let mut number = 7 + outcomes.len();
        for (at, outcome) in outcomes.into_iter().enumerate() {
            let error = outcome.unwrap_err();
            assert!(error.is_codec() && error.is_in_doubt(), "{at}: {error:?}");
        }
        assert_eq!(store.query::<usize>(redis::cmd("GET").arg(key)).await?, number, "all were carried out");

        // Repeating it is harmless.
        let error = INCREMENT.on(&entity).key().idempotent().run::<Pair>(&store).await.unwrap_err();
        assert!(error.is_codec() && !error.is_in_doubt(), "{error:?}");
        let mut batch = Batch::new();
        batch.push(INCREMENT.on(&entity).key().idempotent());
        let error = batch.run::<Pair>(&store).await?.remove(0).unwrap_err();
        assert!(error.is_codec() && !error.is_in_doubt(), "{error:?}");
        number += 2;

        // Nothing was written.
        let mut read = redis::pipe();
        read.cmd("GET").arg(key);
        own.query::<()>(redis::cmd("WATCH").arg(key), Duration::ZERO).await?;
        store.query::<()>(&increment).await?;
        number += 1;
        let mut aborted = redis::pipe();
        aborted.atomic().add_command(increment.clone());
        for outcome in [
            store.query::<Pair>(redis::cmd("GET").arg(key)).await,
            own.pipeline::<(Pair,)>(&aborted).await.map(|(n,)| n),
            own.query(redis::cmd("GET").arg(key), Duration::ZERO).await,
            store.pipeline::<(Pair,)>(&read).await.map(|(n,)| n),
        ] {
            let error = outcome.unwrap_err();
            assert!(error.is_codec() && !error.is_in_doubt(), "{error:?}");
        }
        // Word by word too.
        own.query::<()>(redis::cmd("WATCH").arg(key), Duration::ZERO).await?;
        store.query::<()>(&increment).await?;
        number += 1;
        own.query::<()>(&redis::cmd("MULTI"), Duration::ZERO).await?;
        own.query::<redis::Value>(&increment, Duration::ZERO).await?;
        let error = own.query::<(Pair,)>(&redis::cmd("EXEC"), Duration::ZERO).await.unwrap_err();
        assert!(error.is_codec() && !error.is_in_doubt(), "{error:?}");
        assert_eq!(store.query::<usize>(redis::cmd("GET").arg(key)).await?, number);
        Ok(())
    }
}

/// What a number is not.
type Pair = (i64, i64);

static INCREMENT: Script = Script::new("test.increment", "return redis.call('INCR', KEYS[1])");

/// An MSET goes to several nodes, and one of them refuses its part with a plain answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_pipeline_with_a_command_that_was_split_and_half_done_is_in_doubt()
-> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let store = Store::connect(&cluster.url()).await?;
    let full = cluster.node(cluster.owner(redstart_testkit::key_slot(b"0")).await?);
    full.command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    let mut set = redis::cmd("MSET");
    for n in 0..16 {
        set.arg(n).arg("value");
    }
    let mut pipeline = redis::pipe();
    pipeline.cmd("GET").arg("0").add_command(set);
    let error = store.pipeline::<()>(&pipeline).await.unwrap_err();
    assert_eq!(error.server_code(), Some("OOM"));
    assert!(error.is_in_doubt(), "{error:?}");
    Ok(())
}

/// A server that refuses the second half of a pipeline for now, and hangs up when that half is sent again.
async fn half_hearted(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut buffer = vec![0; 4096];
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                let answer: &[u8] = match (text.contains("first"), text.contains("second")) {
                    (true, true) => b":1\r\n-LOADING later\r\n",
                    (false, true) => return,
                    _ => b"+OK\r\n+OK\r\n",
                };
                if stream.write_all(answer).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[tokio::test]
async fn a_part_that_is_sent_again_and_lost_makes_the_pipeline_in_doubt() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("redis://{}", listener.local_addr()?);
    tokio::spawn(half_hearted(listener));
    let store = Store::builder(&url)
        .deadline(Duration::from_secs(5))
        .lazy()
        .connect()
        .await?;
    let mut pipeline = redis::pipe();
    pipeline.cmd("INCR").arg("first").cmd("INCR").arg("second");
    let error = store.pipeline::<(i64, i64)>(&pipeline).await.unwrap_err();
    assert!(error.is_in_doubt(), "{error:?}");
    Ok(())
}

/// A connection that the server closed while it was idle is known to be closed: the next write was not sent, is sent
/// over a new connection, and there is nothing to doubt. The close may be on its way while a write leaves, so not
/// every round has to go well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_write_after_an_idle_close_is_sent_over_a_new_connection() -> anyhow::Result<()> {
    let (plain, tls) = (
        Server::builder(Kind::Redis),
        Server::builder(Kind::Redis).tls(),
    );
    for server in [plain.start().await?, tls.start().await?] {
        let url = match server.authority() {
            Some(authority) => format!("{}?ca={}", server.url(), authority.ca_file().display()),
            None => server.url(),
        };
        let store = Store::builder(&url)
            .deadline(Duration::from_secs(10))
            .connect()
            .await?;
        let other = Store::connect(&url).await?;
        let (rounds, mut well) = (10, 0);
        for _ in 0..rounds {
            let id: i64 = store.query(redis::cmd("CLIENT").arg("ID")).await?;
            other
                .query::<i64>(redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id))
                .await?;
            tokio::time::sleep(Duration::from_millis(30)).await;
            match store.query::<i64>(redis::cmd("INCR").arg("n")).await {
                Ok(_) => well += 1,
                Err(error) => assert!(error.is_in_doubt(), "{error:?}"),
            }
        }
        assert!(well >= rounds / 2, "{url}: {well} of {rounds}");
    }
    Ok(())
}

/// A server that begins to serve in the middle of a pipeline, and what it was sent.
async fn awaking(listener: TcpListener, heard: Arc<Mutex<Vec<String>>>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let heard = heard.clone();
        tokio::spawn(async move {
            let mut buffer = vec![0; 4096];
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                let mut answers = String::new();
                for words in text.split('*').skip(1) {
                    let loading = text.matches('*').count() > 1;
                    let word = words.split("\r\n").nth(2).unwrap_or_default().to_owned();
                    answers += match (word.as_str(), loading) {
                        ("SET", true) => "-LOADING later\r\n",
                        ("GET", true) => "$3\r\nold\r\n",
                        ("GET", false) => "$3\r\nnew\r\n",
                        ("INCR", _) => ":5\r\n",
                        _ => "+OK\r\n",
                    };
                    heard.lock().expect("not poisoned").push(word);
                }
                if stream.write_all(answers.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[tokio::test]
async fn a_part_that_is_sent_again_keeps_the_order_of_commands_with_the_same_key()
-> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("redis://{}", listener.local_addr()?);
    let heard = Arc::new(Mutex::new(Vec::new()));
    tokio::spawn(awaking(listener, heard.clone()));
    let store = Store::builder(&url)
        .deadline(Duration::from_secs(20))
        .lazy()
        .connect()
        .await?;
    let sets = |heard: &Mutex<Vec<String>>| {
        let heard = heard.lock().expect("not poisoned");
        heard.iter().filter(|word| *word == "SET").count()
    };

    let mut pipeline = redis::pipe();
    pipeline.cmd("SET").arg("k").arg("new");
    pipeline.cmd("GET").arg("k").cmd("GET").arg("other");
    let read: (String, String, String) = store.pipeline(&pipeline).await?;
    assert_eq!(
        read,
        ("OK".into(), "new".into(), "old".into()),
        "read behind the write"
    );
    assert_eq!(sets(&heard), 2);

    // The second write was carried out, so the first one would come too late.
    let mut pipeline = redis::pipe();
    pipeline.cmd("SET").arg("n").arg(1).cmd("INCR").arg("n");
    let error = store
        .pipeline::<(String, i64)>(&pipeline)
        .await
        .unwrap_err();
    assert!(error.is_in_doubt(), "{error:?}");
    assert_eq!(sets(&heard), 3, "it was not sent again");

    // Another key is no reason to wait.
    let mut pipeline = redis::pipe();
    pipeline.cmd("SET").arg("m").arg(1).cmd("INCR").arg("n");
    let done: (String, i64) = store.pipeline(&pipeline).await?;
    assert_eq!(done, ("OK".into(), 5));
    Ok(())
}

/// A command with several keys is late for each of them.
#[tokio::test]
async fn a_part_that_is_sent_again_keeps_the_order_of_all_keys_of_a_command() -> anyhow::Result<()>
{
    // What was refused once is carried out.
    let refused = Mutex::new(std::collections::HashSet::new());
    let stub = Stub::start(move |command| {
        let first = matches!(
            command[0].as_str(),
            "RENAME" | "LMOVE" | "SUNIONSTORE" | "ZUNIONSTORE" | "COPY" | "APPEND"
        );
        match first
            && refused
                .lock()
                .expect("not poisoned")
                .insert(command.join(" "))
        {
            true => Answer::Reply("-LOADING later\r\n".to_owned()),
            false => Answer::ok(),
        }
    })
    .await?;
    let store = Store::builder(&stub.url())
        .deadline(Duration::from_secs(20))
        .lazy()
        .connect()
        .await?;
    for (first, second, again) in [
        ("RENAME a b", "SET b 1", false),
        ("RENAME c d", "SET c 1", false),
        ("RENAME e f", "SET g 1", true),
        ("LMOVE a b LEFT LEFT", "RPUSH b 1", false),
        ("LMOVE c d LEFT LEFT", "RPUSH left 1", true),
        ("SUNIONSTORE to a b", "SADD b 1", false),
        ("ZUNIONSTORE to 2 a b WEIGHTS 1 2", "ZADD b 1 x", false),
        ("ZUNIONSTORE to 1 a WEIGHTS 1", "ZADD WEIGHTS 1 x", true),
        ("COPY a b", "FLUSHDB", false),
        ("APPEND a 1", "MSETNX b 1 a 2", false),
        ("APPEND b 1", "PUBLISH b 1", true),
    ] {
        let mut pipeline = redis::pipe();
        for text in [first, second] {
            let mut words = text.split(' ');
            pipeline.cmd(words.next().unwrap_or_default());
            for word in words {
                pipeline.arg(word);
            }
        }
        let outcome = store.pipeline::<(String, String)>(&pipeline).await;
        let sent = stub.heard().iter().filter(|c| c.join(" ") == first).count();
        assert_eq!(sent, 1 + usize::from(again), "{first}, {second}");
        match again {
            true => drop(outcome?),
            false => assert!(
                outcome.is_err_and(|error| error.is_in_doubt()),
                "{first}, {second}"
            ),
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_cluster_pipeline_keeps_the_order_of_commands_with_the_same_key() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let store = Store::builder(&cluster.url())
        .deadline(Duration::from_secs(10))
        .connect()
        .await?;
    let mut pipeline = redis::pipe();
    pipeline.cmd("SET").arg("a").arg(1).ignore();
    pipeline
        .cmd("MSET")
        .arg(&["a", "2", "b", "2", "c", "2"])
        .ignore();
    pipeline.cmd("GET").arg("a").cmd("INCR").arg("b");
    pipeline.cmd("MGET").arg(&["a", "b", "c"]);
    pipeline
        .cmd("DEL")
        .arg(&["a", "b", "c"])
        .cmd("EXISTS")
        .arg("a");
    for _ in 0..5 {
        let read: (i64, i64, Vec<i64>, u64, u64) = store.pipeline(&pipeline).await?;
        assert_eq!(read, (2, 3, vec![2, 3, 2], 3, 0));
    }
    Ok(())
}
