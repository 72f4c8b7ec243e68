//! Topics: every listener hears every message once and in order, or hears of a gap.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{Heard, Topic, TopicListener},
    sim::Process,
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, network::Peer, trouble::What, world::World};

/// Who published it, and its number there.
type News = (u64, u64);

/// The number of the last message of each publisher.
const END: u64 = u64::MAX;
/// The publisher of the last message of a world.
const LAST: u64 = u64::MAX;

/// How long it may take until a line that died silently is noticed and made again, and something comes over it.
const NOTICED_WITHIN: Duration = Duration::from_secs(40);

pub(super) struct Listening {
    buffer: usize,
    publishers: AtomicU64,
    /// How many messages were sent, by any client, and of how many of them an answer came.
    sent: AtomicU64,
    answered: AtomicU64,
    /// Messages that were surely published, and when that was sent and answered.
    published: Mutex<BTreeMap<News, (Duration, Duration)>>,
    /// Listeners of clients that have done their work.
    survivors: Mutex<Vec<(Arc<Process>, Ear)>>,
}

/// A listener, and what it has heard.
struct Ear {
    client: usize,
    listener: TopicListener<News>,
    heard: BTreeSet<News>,
    /// By publisher: the last number.
    last: BTreeMap<u64, u64>,
    /// How many messages had been answered when it began to listen.
    sent: u64,
    /// By publisher: the last number, unless a gap came after it.
    since_gap: BTreeMap<u64, u64>,
    /// When it was last asked and had nothing more.
    emptied: Duration,
}

impl Listening {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[35]);
        Self {
            buffer: *dice.pick(&[2, 100]),
            publishers: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            published: Mutex::default(),
            survivors: Mutex::default(),
        }
    }

    fn topic(&self, store: &Store) -> Topic<News> {
        let builder = Topic::builder(store, "sim", "goals");
        match builder.buffer(self.buffer).build() {
            Ok(topic) => topic,
            Err(error) => panic!("a topic cannot be made: {error}"),
        }
    }

    async fn ear(&self, client: &Client, topic: &Topic<News>) -> Option<Ear> {
        // What has no answer yet, and what is sent while it begins, may be heard.
        let sent = self.answered.load(Ordering::Relaxed);
        let listener = topic.listen().await.ok()?;
        client.note(format_args!("listens"));
        Some(Ear {
            client: client.index,
            listener,
            heard: BTreeSet::new(),
            last: BTreeMap::new(),
            sent,
            since_gap: BTreeMap::new(),
            emptied: client.world.now(),
        })
    }

    /// Hears what there is; false if nothing came within the time.
    async fn hear(&self, world: &World, ear: &mut Ear, within: Duration) -> bool {
        let Ok(heard) = tokio::time::timeout(within, ear.listener.next()).await else {
            ear.emptied = world.now();
            return false;
        };
        let peer = Peer::Client(ear.client);
        match heard {
            Some(Heard::Message { message, .. }) => {
                world.trace.note(peer, format_args!("hears {message:?}"));
                world.met();
                self.judge(world, ear, message);
            }
            Some(Heard::Gap) => {
                world.trace.note(peer, format_args!("hears of a gap"));
                ear.since_gap.clear();
                self.judge_gap(world, ear);
            }
            other => world.breach(format!("client {} hears {other:?}", ear.client)),
        }
        true
    }

    /// A gap has a reason: more messages than are kept for a listener, or a line that was lost since it had nothing more to
    /// say. That is noticed after a while if nobody says so.
    fn judge_gap(&self, world: &World, ear: &Ear) {
        let (client, now) = (ear.client, world.now());
        let from = ear.emptied.saturating_sub(NOTICED_WITHIN);
        let sent = self.sent.load(Ordering::Relaxed) - ear.sent;
        let lost = world
            .troubles
            .any(client, from, now, |what| what != What::Clock)
            || world.may_have_lost(from, now);
        if sent <= self.buffer as u64 && !lost {
            world.breach(format!("client {client} hears of a gap for no reason"));
        }
    }

    fn judge(&self, world: &World, ear: &mut Ear, (publisher, number): News) {
        let client = ear.client;
        if !ear.heard.insert((publisher, number)) {
            world.breach(format!(
                "client {client} hears message {number} of {publisher} twice"
            ));
        }
        let published = self.published.lock();
        // One whose answer did not come may be on the way for long, and counts for nothing.
        if !published.contains_key(&(publisher, number)) {
            return;
        }
        if let Some(last) = ear.last.insert(publisher, number)
            && last >= number
        {
            world.breach(format!(
                "client {client} hears message {number} of {publisher} after {last}"
            ));
        }
        let Some(last) = ear.since_gap.insert(publisher, number) else {
            return;
        };
        for (news, at) in published.range((publisher, last + 1)..(publisher, number)) {
            // What a server took that was replaced, or while slots moved, went to those who listened there.
            let lost = |at: &(Duration, Duration)| {
                world.may_have_lost(at.0, at.1 + Duration::from_millis(1))
            };
            if !ear.heard.contains(news) && !lost(at) {
                world.breach(format!(
                    "client {client} missed a message of {publisher} between {last} and {number}, and heard of no gap"
                ));
                return;
            }
        }
    }

    async fn publish(&self, client: &mut Client, topic: &Topic<News>, news: News) {
        let world = client.world.clone();
        let from = world.now();
        self.sent.fetch_add(1, Ordering::Relaxed);
        let published = client.call("publish", 1, topic.publish(&news)).await;
        if let Some(Ok(_)) = published {
            self.answered.fetch_add(1, Ordering::Relaxed);
            client.note(format_args!("published {news:?}"));
            self.published.lock().insert(news, (from, world.now()));
        }
    }
}

impl Workload for Listening {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let topic = self.topic(&store);
            let world = client.world.clone();
            let publisher = self.publishers.fetch_add(1, Ordering::Relaxed);
            let mut ear = None;
            let mut number = 0;
            while client.next_operation() {
                client.rest(0, 300).await;
                if ear.is_none() {
                    ear = self.ear(&client, &topic).await;
                }
                for _ in 0..client.dice.between(0, 4) {
                    number += 1;
                    let news = (publisher, number);
                    self.publish(&mut client, &topic, news).await;
                }
                if let Some(ear) = &mut ear {
                    let within = client.dice.millis(1, 200);
                    while self.hear(&world, ear, within).await {}
                }
            }
            if let Some(ear) = ear {
                let process = client.process().clone();
                self.survivors.lock().push((process, ear));
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let (topic, world) = (self.topic(store), client.world.clone());
        let news = (1000 + client.index as u64, world.now().as_micros() as u64);
        Box::pin(async move {
            self.sent.fetch_add(1, Ordering::Relaxed);
            let published = topic.publish(&news).await;
            published.map_err(|error| error.to_string()).map(drop)
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let topic = self.topic(&store);
            // Lines that died silently are noticed and made again by then.
            tokio::time::sleep(Duration::from_secs(30)).await;
            let mut ears = std::mem::take(&mut *self.survivors.lock());
            ears.retain(|(process, _)| !process.is_gone());
            for (process, ear) in &mut ears {
                let drained =
                    async { while self.hear(&world, ear, Duration::from_millis(1)).await {} };
                process.own(drained).await;
            }
            // One more in the name of each publisher: what was missed at the end shows then.
            let publishers = self.publishers.load(Ordering::Relaxed);
            for publisher in 0..publishers {
                self.publish(&mut client, &topic, (publisher, END)).await;
                for (process, ear) in &mut ears {
                    let within = Duration::from_millis(200);
                    let heard = async { while self.hear(&world, ear, within).await {} };
                    process.own(heard).await;
                }
            }
            self.publish(&mut client, &topic, (LAST, 1)).await;
            let sure = self.published.lock().contains_key(&(LAST, 1));
            for (process, ear) in &mut ears {
                let heard = async { while self.hear(&world, ear, Duration::from_secs(5)).await {} };
                process.own(heard).await;
                if sure && !ear.last.contains_key(&LAST) {
                    world.breach(format!(
                        "client {} does not hear what is published after the faults",
                        ear.client
                    ));
                }
            }
        })
    }
}
