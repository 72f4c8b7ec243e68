//! Subscriptions that say what they missed.
//!
//! Pub/sub delivers at most once: what is published while the line is down is gone. A program that keeps state that
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
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::timeout,
};

use super::{backend::Backend, retry::Backoff, transport::Dial};
use crate::{
    error::{Error, Result},
    key::Channel,
};

/// What to listen to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listen {
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
    /// The subscription is active for the first time: what is published from now on arrives.
    Subscribed,
    /// A message.
    Message(Message),
    /// These keys changed (for [`Listen::Changes`]).
    Changed(Vec<Vec<u8>>),
    /// All keys may have changed: the database was flushed.
    Flushed,
    /// The line was lost; messages may be missed from before now until `Resubscribed`.
    Lost,
    /// The subscription is active again.
    Resubscribed,
}

/// A published message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The channel it was published to.
    pub channel: String,
    /// The pattern it matched, for [`Listen::Pattern`].
    pub pattern: Option<String>,
    /// What was published.
    pub payload: Vec<u8>,
}

/// A stream of [`Event`]s. Dropping it ends the subscription.
///
/// It ends only when the store cannot subscribe at all; then [`Subscription::next`] gives `None`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, key::Keys, store::{Event, Listen}};
/// let store = Store::connect("memory://").await?;
/// let news = Keys::new("app", "news")?.entity("sport")?.channel("live");
///
/// let mut listener = store.subscribe([Listen::Sharded(news.clone())]).await?;
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

    pub(super) fn open(
        backend: Arc<Backend>,
        deadline: Duration,
        runtime: &Handle,
        topics: Vec<Listen>,
    ) -> Result<Self> {
        if topics.is_empty() {
            return Err(Error::config(
                "a subscription needs at least one channel, pattern or prefix",
            ));
        }
        backend.can_dial()?;
        let (to_reader, events) = unbounded_channel();
        let mut workers = JoinSet::new();
        let source = Source { backend, deadline };
        workers.spawn_on(supervise(source, topics, to_reader), runtime);
        Ok(Self {
            events,
            _workers: workers,
        })
    }
}

/// Where subscriptions come from.
#[derive(Clone)]
struct Source {
    backend: Arc<Backend>,
    deadline: Duration,
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

/// Keeps one line for each place and merges what they report: the subscription is active when all lines are.
async fn supervise(source: Source, topics: Vec<Listen>, events: UnboundedSender<Event>) {
    let mut changes = match &*source.backend {
        Backend::Cluster(cluster) => Some(cluster.watch()),
        _ => None,
    };
    let everywhere = topics
        .iter()
        .any(|topic| matches!(topic, Listen::Changes(_)));
    let mut stood_before = false;
    let masters = || match &*source.backend {
        Backend::Cluster(cluster) => cluster.masters(),
        _ => Vec::new(),
    };
    // Each turn is one set of lines; a Cluster whose nodes changed gets a new set.
    loop {
        if let Some(changes) = &mut changes {
            changes.borrow_and_update();
        }
        let listened = masters();
        let plan = plan(&source, &topics);
        let (report, mut reports) = unbounded_channel();
        let mut lines = JoinSet::new();
        let count = plan.len();
        for (at, (place, topics)) in plan.into_iter().enumerate() {
            let (source, report) = (source.clone(), report.clone());
            lines.spawn(async move { keep_line(source, place, topics, at, report).await });
        }
        let mut up = vec![false; count];
        let mut stands = false;
        loop {
            let report = match &mut changes {
                Some(changes) if everywhere => tokio::select! {
                    report = reports.recv() => report,
                    _ = changes.changed() => {
                        // A slot that moves between masters that are all listened to makes no gap.
                        let now = masters();
                        let same = now.len() == listened.len()
                            && now.iter().all(|node| listened.iter().any(|old| Arc::ptr_eq(old, node)));
                        if same {
                            continue;
                        }
                        break;
                    }
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

fn plan(source: &Source, topics: &[Listen]) -> Vec<(Place, Vec<Listen>)> {
    let Backend::Cluster(cluster) = &*source.backend else {
        return vec![(Place::Any, topics.to_vec())];
    };
    let mut plan: Vec<(Place, Vec<Listen>)> = Vec::new();
    for topic in topics {
        match topic {
            Listen::Sharded(channel) => {
                let slot = channel.slot();
                let line = plan
                    .iter_mut()
                    .find(|(place, _)| matches!(place, Place::Slot(s) if *s == slot));
                match line {
                    Some((_, topics)) => topics.push(topic.clone()),
                    None => plan.push((Place::Slot(slot), vec![topic.clone()])),
                }
            }
            Listen::Channel(_) | Listen::Pattern(_) => {
                match plan
                    .iter_mut()
                    .find(|(place, _)| matches!(place, Place::Any))
                {
                    Some((_, topics)) => topics.push(topic.clone()),
                    None => plan.push((Place::Any, vec![topic.clone()])),
                }
            }
            Listen::Changes(_) => {
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
    source: Source,
    place: Place,
    topics: Vec<Listen>,
    at: usize,
    reports: UnboundedSender<(usize, Report)>,
) {
    let report = |report| reports.send((at, report)).is_ok();
    let mut backoff = Backoff::new();
    loop {
        let ended = match &*source.backend {
            #[cfg(feature = "engine")]
            Backend::Embedded(embedded) => listen_embedded(embedded, &topics, &report).await,
            _ => listen(&source, &place, &topics, &report).await,
        };
        match ended {
            // It stood for a while, so the next try may come at once.
            Ok(()) => backoff = Backoff::new(),
            Err(error) => tracing::debug!(%error, "a subscription waits for its server"),
        }
        if !report(Report::Down) {
            return;
        }
        source.backend.troubled();
        tokio::time::sleep(backoff.next()).await;
    }
}

async fn listen(
    source: &Source,
    place: &Place,
    topics: &[Listen],
    report: &impl Fn(Report) -> bool,
) -> Result<()> {
    let dial = match place {
        Place::Any => source.backend.dial_any()?,
        Place::Slot(slot) => source.backend.dial_for(*slot)?,
        Place::Node(dial) => dial.clone(),
    };
    let patience = source.deadline;
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

async fn subscribe(connection: &mut MultiplexedConnection, topics: &[Listen]) -> Result<()> {
    for cmd in commands(topics) {
        match connection.send_packed_command(&cmd).await? {
            Value::ServerError(error) => return Err(redis::RedisError::from(error).into()),
            _ => continue,
        }
    }
    Ok(())
}

fn commands(topics: &[Listen]) -> Vec<redis::Cmd> {
    topics
        .iter()
        .map(|topic| {
            let mut cmd;
            match topic {
                Listen::Sharded(channel) => {
                    cmd = redis::cmd("SSUBSCRIBE");
                    cmd.arg(channel);
                }
                Listen::Channel(channel) => {
                    cmd = redis::cmd("SUBSCRIBE");
                    cmd.arg(channel);
                }
                Listen::Pattern(pattern) => {
                    cmd = redis::cmd("PSUBSCRIBE");
                    cmd.arg(pattern);
                }
                Listen::Changes(prefixes) => {
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
    embedded: &super::backend::embedded::Embedded,
    topics: &[Listen],
    report: &impl Fn(Report) -> bool,
) -> Result<()> {
    use super::backend::embedded::{args, top, value};
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
