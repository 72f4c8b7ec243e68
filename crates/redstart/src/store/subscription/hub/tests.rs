//! The state of channels, driven by hand: what a line sends, and what it hears.

use std::task::{Context, Poll};

use futures_util::{FutureExt as _, task::noop_waker};
use redis::PushKind;

use super::*;
use crate::{
    key::{Channel, Keys},
    store::{
        Event, Listen, Store,
        subscription::{
            Subscription,
            mailbox::{Mail, Mailbox},
        },
    },
};

/// A line without a connection: its task never runs, because no test here waits.
struct Line {
    store: Store,
    hub: Arc<Hub>,
    sent: VecDeque<(Sent, Instant)>,
}

struct Listener {
    id: u64,
    mailbox: Arc<Mailbox>,
}

impl Listener {
    fn read(&self) -> Option<Event> {
        match self.mailbox.poll(&mut Context::from_waker(&noop_waker())) {
            Poll::Ready(Mail::Event(event)) => Some(event),
            _ => None,
        }
    }
}

impl Line {
    async fn new() -> Self {
        let store = Store::connect("memory://").await.unwrap();
        Self {
            hub: store.shared.hubs.hub(&Handle::current()),
            store,
            sent: VecDeque::new(),
        }
    }

    fn listen(&self, channels: &[&str]) -> Listener {
        let topics = channels.iter().map(|name| Listen::Channel((*name).into()));
        self.listen_to(topics.collect())
    }

    fn listen_to(&self, topics: Vec<Listen>) -> Listener {
        let mailbox = Arc::new(Mailbox::default());
        let wanted = Arc::new(Wanted::new(topics));
        Listener {
            id: self.hub.attach(&Handle::current(), &wanted, &mailbox),
            mailbox,
        }
    }

    fn id(&self) -> u64 {
        self.hub.state.lock().lines[0].id
    }

    /// Sends what there is to send; the commands as text.
    fn send(&mut self) -> Vec<String> {
        let batch = Batch {
            most: 256,
            by_slot: false,
        };
        let plan = self.hub.plan(self.id(), batch).unwrap();
        let mut sent = Vec::new();
        for (command, cmd) in plan.sends {
            let words = cmd.args_iter().map(|arg| match arg {
                redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
                _ => String::new(),
            });
            sent.push(words.collect::<Vec<_>>().join(" "));
            self.sent.push_back((command, Instant::now()));
        }
        sent
    }

    fn hear(&mut self, value: Value) -> Result<()> {
        self.hub
            .hear(self.id(), &mut self.sent, [value].into_iter())
    }

    fn retry_pause(&self) -> Duration {
        let at = self.hub.state.lock().lines[0]
            .retry_at
            .expect("it is asked for again");
        at.saturating_duration_since(Instant::now())
    }

    /// An active subscription of one listener.
    fn active(&mut self, channel: &str) -> Listener {
        let listener = self.listen(&[channel]);
        assert_eq!(self.send(), [format!("SUBSCRIBE {channel}")]);
        self.hear(push(PushKind::Subscribe, channel)).unwrap();
        assert_eq!(listener.read(), Some(Event::Subscribed));
        listener
    }
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn push(kind: PushKind, channel: &str) -> Value {
    Value::Push {
        kind,
        data: vec![bulk(channel), Value::Int(1)],
    }
}

fn message(channel: &str, payload: &str) -> Value {
    Value::Push {
        kind: PushKind::Message,
        data: vec![bulk(channel), bulk(payload)],
    }
}

fn refusal(text: &str) -> Value {
    redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap()
}

fn payload(event: Option<Event>) -> String {
    match event {
        Some(Event::Message(message)) => String::from_utf8(message.payload).unwrap(),
        other => panic!("not a message: {other:?}"),
    }
}

#[tokio::test]
async fn a_message_of_a_subscription_that_is_ending_does_not_reach_the_next_listener() {
    let mut line = Line::new().await;
    let first = line.active("news");
    line.hub.detach(first.id);
    assert_eq!(line.send(), ["UNSUBSCRIBE news"]);
    let second = line.listen(&["news"]);
    line.hear(message("news", "of the old subscription"))
        .unwrap();
    assert_eq!(second.read(), None, "it is not subscribed yet");
    line.hear(push(PushKind::Unsubscribe, "news")).unwrap();
    assert_eq!(line.send(), ["SUBSCRIBE news"]);
    line.hear(push(PushKind::Subscribe, "news")).unwrap();
    line.hear(message("news", "of the new one")).unwrap();
    assert_eq!(second.read(), Some(Event::Subscribed));
    assert_eq!(payload(second.read()), "of the new one");
}

#[tokio::test]
async fn a_listener_that_comes_while_the_end_is_refused_is_subscribed() {
    let mut line = Line::new().await;
    let first = line.active("news");
    line.hub.detach(first.id);
    assert_eq!(line.send(), ["UNSUBSCRIBE news"]);
    let second = line.listen(&["news"]);
    line.hear(refusal("BUSY a script runs")).unwrap();
    // The server still has the subscription.
    assert_eq!(line.send(), [""; 0]);
    assert_eq!(second.read(), Some(Event::Subscribed));
    line.hear(message("news", "heard")).unwrap();
    assert_eq!(payload(second.read()), "heard");
}

#[tokio::test]
async fn a_refused_end_of_a_subscription_is_asked_for_again() {
    let mut line = Line::new().await;
    let first = line.active("news");
    line.hub.detach(first.id);
    assert_eq!(line.send(), ["UNSUBSCRIBE news"]);
    line.hear(refusal("NOPERM not this command")).unwrap();
    assert_eq!(line.send(), [""; 0], "not at once");
    assert!(line.retry_pause() > Duration::ZERO);
    line.hub.retry(line.id());
    assert_eq!(line.send(), ["UNSUBSCRIBE news"]);
    line.hear(push(PushKind::Unsubscribe, "news")).unwrap();
    assert_eq!(line.send(), [""; 0]);
    assert_eq!(line.hub.is_used(line.id()), Some(false));
}

fn sharded(name: &str) -> Channel {
    Keys::new("app", "news")
        .unwrap()
        .entity(name)
        .unwrap()
        .channel("live")
}

#[tokio::test]
async fn the_loss_of_a_slot_that_crosses_the_end_of_a_subscription_does_not_break_the_line() {
    let mut line = Line::new().await;
    let (gone, stays) = (sharded("gone"), sharded("stays"));
    let first = line.listen_to(vec![Listen::Sharded(gone.clone())]);
    let other = line.listen_to(vec![Listen::Sharded(stays.clone())]);
    line.send();
    // They were asked for in the order of their names.
    let mut names = [gone.as_str(), stays.as_str()];
    names.sort_unstable();
    for name in names {
        line.hear(push(PushKind::SSubscribe, name)).unwrap();
    }
    assert_eq!(other.read(), Some(Event::Subscribed));
    line.hub.detach(first.id);
    assert_eq!(line.send(), [format!("SUNSUBSCRIBE {}", gone.as_str())]);
    // The server gives the slot away before it reads the command.
    line.hear(push(PushKind::SUnsubscribe, gone.as_str()))
        .unwrap();
    line.sent.push_back((Sent::Ping, Instant::now()));
    line.hear(refusal(&format!("MOVED {} 127.0.0.1:1", gone.slot())))
        .unwrap();
    assert!(matches!(line.sent.front(), Some((Sent::Ping, _))));
    line.hear(Value::SimpleString("PONG".to_owned())).unwrap();
    assert!(line.sent.is_empty());
    assert_eq!(other.read(), None, "no gap");
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_for_all_channels_at_once_and_ever_less_often() {
    let mut line = Line::new().await;
    let listener = line.listen(&["a", "b", "c"]);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        assert_eq!(line.send(), ["SUBSCRIBE a b c"]);
        line.hear(refusal("BUSY a script runs")).unwrap();
        pauses.push(line.retry_pause());
        line.hub.retry(line.id());
    }
    assert!(pauses[0] <= MOVED_PAUSE, "{pauses:?}");
    assert!(pauses[7] > REFUSED_PAUSE / 2, "{pauses:?}");
    // One of several that is refused for good is found by asking for each alone.
    assert_eq!(line.send(), ["SUBSCRIBE a b c"]);
    line.hear(refusal("NOPERM no such channel for you"))
        .unwrap();
    line.hub.retry(line.id());
    assert_eq!(line.send(), ["SUBSCRIBE a", "SUBSCRIBE b", "SUBSCRIBE c"]);
    assert_eq!(listener.read(), None);
}

#[tokio::test]
async fn what_comes_before_a_subscription_is_established_is_handed_on() {
    let mut line = Line::new().await;
    let _other = line.active("common");
    let topics = ["common", "own"].map(|name| Listen::Channel(name.to_owned()));
    let hubs = &line.store.shared.hubs;
    let mut both = Subscription::open(hubs, &Handle::current(), topics.to_vec()).unwrap();
    assert_eq!(line.send(), ["SUBSCRIBE own"]);
    line.hear(message("common", "early")).unwrap();
    let mut early = Vec::new();
    let minute = Duration::from_secs(60);
    let waiting = both.established(minute, "late", |event| early.push(event));
    assert!(waiting.now_or_never().is_none(), "one part is not active");
    assert_eq!(payload(early.pop()), "early");
    line.hear(push(PushKind::Subscribe, "own")).unwrap();
    let waiting = both.established(minute, "late", |event| early.push(event));
    assert!(waiting.now_or_never().unwrap().is_ok());
    assert!(early.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_refused_says_why_it_was_not_established() {
    let mut line = Line::new().await;
    let topics = vec![Listen::Channel("secret".to_owned())];
    let hubs = line.store.shared.hubs.clone();
    let mut subscription = Subscription::open(&hubs, &Handle::current(), topics).unwrap();
    assert_eq!(line.send(), ["SUBSCRIBE secret"]);
    line.hear(refusal("NOPERM no permission for the channel"))
        .unwrap();
    let why = line
        .hub
        .why(subscription.wanted())
        .expect("the refusal is kept");
    assert!(why.to_string().contains("no permission"), "{why}");
    // The engine confirms it once the task of the line runs.
    let minute = Duration::from_secs(60);
    subscription
        .established(minute, "late", drop)
        .await
        .unwrap();
    assert!(line.hub.why(subscription.wanted()).is_none());
}

#[test]
fn an_empty_hub_of_a_runtime_that_ended_is_forgotten() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let store = first.block_on(Store::connect("memory://")).unwrap();
    let hubs = &store.shared.hubs;
    drop(hubs.hub(first.handle()));
    drop(first);
    let second = runtime();
    let _kept = hubs.hub(second.handle());
    assert_eq!(hubs.hubs.lock().len(), 1);
    let third = runtime();
    drop(hubs.hub(third.handle()));
    assert_eq!(
        hubs.hubs.lock().len(),
        2,
        "somebody may be about to use the second"
    );
}
