//! Subscriptions that say what they missed.
//!
//! Pub/sub delivers at most once: what is published while the line is down is gone. Whoever keeps state that
//! messages feed must hear of the gap, so a [`Subscription`] yields not only messages but also what happened
//! to itself: [`Event::Lost`] as soon as the loss is noticed, [`Event::Resubscribed`] when it listens again.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use redis::{ProtocolVersion, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::timeout,
};

use super::{Backend, Store, dial::Dial, retry};
use crate::{
    error::{Error, Result},
    key::Channel,
};

/// What to listen to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topic {
    /// A sharded channel (`SSUBSCRIBE`): on a Cluster its messages stay on the node that owns the slot.
    Sharded(Channel),
    /// A channel of the classic kind (`SUBSCRIBE`), which a Cluster floods to all its nodes.
    Channel(String),
    /// Classic channels by glob pattern (`PSUBSCRIBE`).
    Pattern(String),
    /// Changes of all keys with these prefixes (`CLIENT TRACKING … BCAST`), from every node.
    Changes(Vec<String>),
}

/// A message, or what happened to the subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The subscription stands for the first time: what is published from now on arrives.
    Subscribed,
    /// A message.
    Message(Message),
    /// These keys changed (for [`Topic::Changes`]).
    Changed(Vec<Vec<u8>>),
    /// All keys may have changed: the database was flushed.
    Flushed,
    /// The line was lost; messages may be missed from before now until `Resubscribed`.
    Lost,
    /// The subscription stands again.
    Resubscribed,
}

/// A published message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The channel it was published to.
    pub channel: String,
    /// The pattern it matched, for [`Topic::Pattern`].
    pub pattern: Option<String>,
    /// What was published.
    pub payload: Vec<u8>,
}

/// A stream of [`Event`]s. Dropping it ends the subscription.
///
/// It ends by itself only when the store cannot subscribe at all; then [`Subscription::next`] gives `None`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, key::Keys, store::{Event, Topic}};
/// let store = Store::connect("memory://").await?;
/// let news = Keys::new("app", "news")?.entity("sport")?.channel("live");
///
/// let mut listener = store.subscribe([Topic::Sharded(news.clone())]).await?;
/// assert_eq!(listener.next().await, Some(Event::Subscribed));
///
/// store.query::<()>(redis::cmd("SPUBLISH").arg(&news).arg("goal")).await?;
/// let Some(Event::Message(message)) = listener.next().await else { panic!() };
/// assert_eq!(message.payload, b"goal");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Subscription {
    events: UnboundedReceiver<Event>,
    /// Aborts what feeds the stream when the subscription is dropped.
    _workers: JoinSet<()>,
}

impl Subscription {
    /// Waits for the next event.
    ///
    /// # Cancel safety
    ///
    /// No event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    pub(super) async fn open(store: &Store, topics: Vec<Topic>) -> Result<Self> {
        if topics.is_empty() {
            return Err(Error::config("a subscription needs a topic"));
        }
        store.can_subscribe()?;
        let runtime = store
            .runtime()
            .ok_or_else(|| Error::config("a subscription is made within a tokio runtime"))?;
        let (to_reader, events) = unbounded_channel();
        let mut workers = JoinSet::new();
        workers.spawn_on(supervise(store.clone(), topics, to_reader), &runtime);
        Ok(Self {
            events,
            _workers: workers,
        })
    }
}

impl Stream for Subscription {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }
}

/// Where one line of a subscription leads.
#[derive(Clone)]
enum Place {
    /// The one server, or any node.
    Any,
    /// The owner of a slot.
    Slot(u16),
    /// One node of a Cluster, by its own dial.
    Node(Arc<Dial>),
}

enum Report {
    Up,
    Down,
    Heard(Event),
}

/// Keeps one line for each place and merges what they report: it stands when all stand.
async fn supervise(store: Store, topics: Vec<Topic>, events: UnboundedSender<Event>) {
    let mut changes = match store.backend() {
        Backend::Cluster(cluster) => Some(cluster.watch()),
        _ => None,
    };
    let everywhere = topics
        .iter()
        .any(|topic| matches!(topic, Topic::Changes(_)));
    let mut stood_before = false;
    // Each turn is one set of lines; a Cluster whose nodes changed gets a new set.
    loop {
        if let Some(changes) = &mut changes {
            changes.borrow_and_update();
        }
        let plan = plan(&store, &topics);
        let (report, mut reports) = unbounded_channel();
        let mut lines = JoinSet::new();
        let count = plan.len();
        for (at, (place, topics)) in plan.into_iter().enumerate() {
            let (store, report) = (store.clone(), report.clone());
            lines.spawn(async move { keep_line(store, place, topics, at, report).await });
        }
        let mut up = vec![false; count];
        let mut stands = false;
        loop {
            let report = match &mut changes {
                Some(changes) if everywhere => tokio::select! {
                    report = reports.recv() => report,
                    _ = changes.changed() => break,
                },
                _ => reports.recv().await,
            };
            let Some((at, report)) = report else { return };
            let event = match report {
                Report::Heard(event) => event,
                Report::Up => {
                    up[at] = true;
                    if stands || !up.iter().all(|up| *up) {
                        continue;
                    }
                    stands = true;
                    if std::mem::replace(&mut stood_before, true) {
                        Event::Resubscribed
                    } else {
                        Event::Subscribed
                    }
                }
                Report::Down => {
                    up[at] = false;
                    if !std::mem::replace(&mut stands, false) {
                        continue;
                    }
                    metrics::counter!("redstart_store_gaps_total").increment(1);
                    Event::Lost
                }
            };
            if events.send(event).is_err() {
                return;
            }
        }
        if stands && events.send(Event::Lost).is_err() {
            return;
        }
        lines.shutdown().await;
    }
}

fn plan(store: &Store, topics: &[Topic]) -> Vec<(Place, Vec<Topic>)> {
    let Backend::Cluster(cluster) = store.backend() else {
        return vec![(Place::Any, topics.to_vec())];
    };
    let mut plan: Vec<(Place, Vec<Topic>)> = Vec::new();
    for topic in topics {
        match topic {
            Topic::Sharded(channel) => {
                let slot = channel.slot();
                let line = plan
                    .iter_mut()
                    .find(|(place, _)| matches!(place, Place::Slot(s) if *s == slot));
                match line {
                    Some((_, topics)) => topics.push(topic.clone()),
                    None => plan.push((Place::Slot(slot), vec![topic.clone()])),
                }
            }
            Topic::Channel(_) | Topic::Pattern(_) => {
                match plan
                    .iter_mut()
                    .find(|(place, _)| matches!(place, Place::Any))
                {
                    Some((_, topics)) => topics.push(topic.clone()),
                    None => plan.push((Place::Any, vec![topic.clone()])),
                }
            }
            Topic::Changes(_) => {
                for node in cluster.masters() {
                    plan.push((Place::Node(node.dial().clone()), vec![topic.clone()]));
                }
            }
        }
    }
    plan
}

/// Holds one line up: subscribes, forwards, notices the end, and begins again.
async fn keep_line(
    store: Store,
    place: Place,
    topics: Vec<Topic>,
    at: usize,
    reports: UnboundedSender<(usize, Report)>,
) {
    let report = |report| reports.send((at, report)).is_ok();
    let mut backoff = retry::Backoff::new();
    loop {
        let ended = match store.backend() {
            #[cfg(feature = "engine")]
            Backend::Embedded(embedded) => listen_embedded(embedded, &topics, &report).await,
            _ => listen(&store, &place, &topics, &report).await,
        };
        match ended {
            // It stood for a while, so the next try may come at once.
            Ok(()) => backoff = retry::Backoff::new(),
            Err(error) => tracing::debug!(%error, "a subscription waits for its server"),
        }
        if !report(Report::Down) {
            return;
        }
        if let Backend::Cluster(cluster) = store.backend() {
            let _ = cluster.refresh().await;
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

async fn listen(
    store: &Store,
    place: &Place,
    topics: &[Topic],
    report: &impl Fn(Report) -> bool,
) -> Result<()> {
    let dial = match place {
        Place::Any => store.dial_any()?,
        Place::Slot(slot) => store.dial_for(*slot)?,
        Place::Node(dial) => dial.clone(),
    };
    let patience = store.deadline();
    let (sender, mut pushes) = unbounded_channel();
    let switches = dial.switches();
    let mut connection = dial.connect(ProtocolVersion::RESP3, Some(sender)).await?;
    timeout(patience, subscribe(&mut connection, topics))
        .await
        .map_err(|_| Error::timeout("the server did not answer a subscription in time"))??;
    if !report(Report::Up) {
        return Ok(());
    }
    // A line that only listens does not notice a peer that is gone, so it asks now and then.
    let every = patience.clamp(Duration::from_millis(100), Duration::from_secs(5));
    let ping = redis::cmd("PING");
    let mut switched = std::pin::pin!(dial.switched(switches));
    loop {
        let push = tokio::select! {
            push = timeout(every, pushes.recv()) => push,
            () = &mut switched => return Ok(()),
        };
        let push = match push {
            Ok(Some(push)) => push,
            Ok(None) => return Ok(()),
            Err(_) => match timeout(patience, connection.send_packed_command(&ping)).await {
                Ok(Ok(_)) => continue,
                _ => return Ok(()),
            },
        };
        let event = match push.kind {
            PushKind::Disconnection => return Ok(()),
            // The slot moved away and the server put us out.
            PushKind::SUnsubscribe | PushKind::Unsubscribe | PushKind::PUnsubscribe => {
                return Ok(());
            }
            _ => heard(push),
        };
        if let Some(event) = event
            && !report(Report::Heard(event))
        {
            return Ok(());
        }
    }
}

async fn subscribe(connection: &mut MultiplexedConnection, topics: &[Topic]) -> Result<()> {
    for cmd in commands(topics) {
        match connection.send_packed_command(&cmd).await? {
            Value::ServerError(error) => return Err(redis::RedisError::from(error).into()),
            _ => continue,
        }
    }
    Ok(())
}

fn commands(topics: &[Topic]) -> Vec<redis::Cmd> {
    topics
        .iter()
        .map(|topic| {
            let mut cmd;
            match topic {
                Topic::Sharded(channel) => {
                    cmd = redis::cmd("SSUBSCRIBE");
                    cmd.arg(channel);
                }
                Topic::Channel(channel) => {
                    cmd = redis::cmd("SUBSCRIBE");
                    cmd.arg(channel);
                }
                Topic::Pattern(pattern) => {
                    cmd = redis::cmd("PSUBSCRIBE");
                    cmd.arg(pattern);
                }
                Topic::Changes(prefixes) => {
                    cmd = redis::cmd("CLIENT");
                    cmd.arg("TRACKING").arg("ON").arg("BCAST");
                    for prefix in prefixes {
                        cmd.arg("PREFIX").arg(prefix);
                    }
                }
            }
            cmd
        })
        .collect()
}

fn heard(push: PushInfo) -> Option<Event> {
    let mut data = push.data.into_iter();
    let mut text = || redis::from_redis_value::<String>(data.next()?).ok();
    match push.kind {
        PushKind::Message | PushKind::SMessage => {
            let channel = text()?;
            let payload = redis::from_redis_value(data.next()?).ok()?;
            Some(Event::Message(Message {
                channel,
                pattern: None,
                payload,
            }))
        }
        PushKind::PMessage => {
            let pattern = text()?;
            let channel = text()?;
            let payload = redis::from_redis_value(data.next()?).ok()?;
            Some(Event::Message(Message {
                channel,
                pattern: Some(pattern),
                payload,
            }))
        }
        PushKind::Invalidate => match data.next()? {
            Value::Nil => Some(Event::Flushed),
            keys => redis::from_redis_value(keys).ok().map(Event::Changed),
        },
        _ => None,
    }
}

#[cfg(feature = "engine")]
async fn listen_embedded(
    embedded: &super::embedded::Embedded,
    topics: &[Topic],
    report: &impl Fn(Report) -> bool,
) -> Result<()> {
    use super::embedded::{args, top, value};
    let mut session = embedded.session()?;
    let hello = ["HELLO", "3"].map(|word| bytes::Bytes::from_static(word.as_bytes()));
    top(session.call(hello.to_vec()).await)?;
    let mut pushes = session.pushes();
    for cmd in commands(topics) {
        top(session.call(args(&cmd)).await)?;
    }
    if !report(Report::Up) {
        return Ok(());
    }
    while let Some(push) = pushes.recv().await {
        let redstart_engine::Reply::Push(mut items) = push else {
            continue;
        };
        if items.is_empty() {
            continue;
        }
        let kind: String = redis::from_redis_value(value(items.remove(0)))?;
        let kind = match kind.as_str() {
            "message" => PushKind::Message,
            "smessage" => PushKind::SMessage,
            "pmessage" => PushKind::PMessage,
            "invalidate" => PushKind::Invalidate,
            _ => continue,
        };
        let push = PushInfo {
            kind,
            data: items.into_iter().map(value).collect(),
        };
        if let Some(event) = heard(push)
            && !report(Report::Heard(event))
        {
            return Ok(());
        }
    }
    Ok(())
}
