use anyhow::{Context as _, Result};
use redstart::{
    Store,
    messaging::{Heard, Topic, Topics},
};
use redstart_testkit::{Backend, Kind, Server, eventually, matrix};

use crate::queue::LONG;

async fn hear<T: serde::de::DeserializeOwned>(
    listener: &mut redstart::messaging::TopicListener<T>,
) -> Result<Heard<T>> {
    tokio::time::timeout(LONG, listener.next())
        .await?
        .context("the listener ended")
}

matrix! {
    async fn a_topic_reaches_all_who_listen_and_survives_what_is_malformed(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let topic = Topic::<Vec<u32>>::new(&store, backend.namespace(), "t")?;
        assert_eq!(topic.publish(&vec![0]).await?, 0, "nobody listens");
        let (mut one, mut two) = (topic.listen().await?, topic.listen().await?);
        let words = Topic::<String>::new(&store, backend.namespace(), "t")?;
        topic.publish(&vec![1, 2]).await?;
        words.publish(&"no numbers".into()).await?;
        topic.publish(&vec![3]).await?;
        for listener in [&mut one, &mut two] {
            assert_eq!(hear(listener).await?, Heard::Message { topic: "t".into(), message: vec![1, 2] });
            assert_eq!(hear(listener).await?, Heard::Malformed { topic: "t".into() });
            assert_eq!(hear(listener).await?, Heard::Message { topic: "t".into(), message: vec![3] });
        }
        assert!(Topic::<u8>::new(&store, backend.namespace(), "").unwrap_err().is_config());
        Ok(())
    }

    async fn a_listener_that_does_not_read_keeps_a_bounded_number_of_messages(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let topic = Topic::<u32>::builder(&store, backend.namespace(), "t").buffer(10).build()?;
        let (mut slow, mut other) = (topic.listen().await?, Topic::<u32>::new(&store, backend.namespace(), "t")?.listen().await?);
        for n in 0..100 { topic.publish(&n).await?; }
        for n in 0..100 {
            assert_eq!(hear(&mut other).await?, Heard::Message { topic: "t".into(), message: n });
        }
        // What the other listener has heard, this one has too, or dropped.
        let mut next = 0;
        loop {
            match hear(&mut slow).await? {
                Heard::Message { message, .. } => { assert_eq!(message, next); next += 1; }
                heard => { assert_eq!(heard, Heard::Gap); break; }
            }
        }
        assert_eq!(next, 10);
        assert!(Topic::<u32>::builder(&store, backend.namespace(), "t").buffer(0).build().unwrap_err().is_config());
        Ok(())
    }

    async fn patterns_choose_topics(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let topics = Topics::<u32>::new(&store, backend.namespace(), "news")?;
        let mut sport = topics.listen("sport.*").await?;
        for (at, name) in ["weather", "sport.tennis", "sports", "sport.golf"].into_iter().enumerate() {
            topics.publish(name, &(at as u32)).await?;
        }
        assert_eq!(hear(&mut sport).await?, Heard::Message { topic: "sport.tennis".into(), message: 1 });
        assert_eq!(hear(&mut sport).await?, Heard::Message { topic: "sport.golf".into(), message: 3 });
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_hears_of_a_gap() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let topic = Topic::<u32>::new(&store, "gap", "t")?;
    let mut listener = topic.listen().await?;
    server
        .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
        .await?;
    assert_eq!(hear(&mut listener).await?, Heard::Gap);
    assert!(eventually(LONG, async || topic.publish(&1).await.is_ok_and(|n| n == 1)).await);
    assert!(matches!(
        hear(&mut listener).await?,
        Heard::Message { message: 1, .. }
    ));
    Ok(())
}
