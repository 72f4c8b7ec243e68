//! A list as a queue whose items survive their consumer.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::Instant};

use super::{Settled, block_seconds};
use crate::{
    duration::{LONGEST, micros},
    error::{Error, Result},
    key::{Entity, Layout},
    observe,
    script::{Call, Script},
    store::{Dedicated, Store},
    token::token,
};

pub(super) static RENEW: Script = Script::new(
    "reliable_list.renew",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("reliable_list/renew.lua")
    ),
);
pub(super) static REAP: Script = Script::new(
    "reliable_list.reap",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("reliable_list/reap.lua")
    ),
);
pub(super) static GIVE_BACK: Script = Script::new(
    "reliable_list.give_back",
    include_str!("reliable_list/give_back.lua"),
);

/// Settings of a [`ReliableList`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ReliableListBuilder {
    store: Store,
    namespace: String,
    name: String,
    lease: Duration,
    layout: Option<Layout>,
}

impl ReliableListBuilder {
    /// How long a consumer may be silent before others take its items (default 30 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Uses a list that exists already under the application's own key.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The list. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace, name or lease.
    pub fn build(self) -> Result<ReliableList> {
        if self.lease < Duration::from_millis(100) || self.lease > Duration::from_secs(86_400) {
            return Err(Error::config("a lease must be from 100 ms to a day"));
        }
        Ok(ReliableList(Arc::new(Inner {
            entity: super::entity("list", &self.namespace, &self.name, self.layout)?,
            store: self.store,
            lease: self.lease,
        })))
    }
}

/// A list as a queue whose items survive their consumer, for producers that `LPUSH`. Cheap to clone.
///
/// A consumer moves an item to a list of its own (`BLMOVE`) and removes it from there when it is done. If a consumer
/// dies, its items are put back when its lease ends, by any other consumer.
///
/// # Promises
///
/// At least once: at any moment an item is in the queue, in a consumer's list, or done. A consumer takes an item only under
/// a lease that the server confirmed. One that is silent for longer than its lease after that may find that its item went to
/// another: [`ListItem::done`] then returns [`Settled::Lost`].
///
/// # Limits
///
/// There are no retries with a wait, no attempts and no dead letters: the [`Queue`](super::Queue) has those. Equal
/// items are told apart by number only. A consumer that holds thousands of items at a time holds the server up whenever it
/// looks for one that it took without knowing, about 0.5 µs for each. One that gave up a take looks before each take and in
/// each third of its lease from then on, and the name of such a consumer stays registered for a day after it has left.
///
/// # Keys
///
/// | part | type | what |
/// |---|---|---|
/// | `<namespace>:list:{<name>}` | list | producers `LPUSH`, consumers take from the right |
/// | `…:taken:<consumer>` | list | what a consumer took |
/// | `…:consumers` | sorted set | consumers by the end of their lease |
/// | `…:silent` | sorted set | consumers whose lease has ended |
/// | `…:looks` | sorted set | how often a consumer has looked for what it took without knowing |
///
/// A [layout](ReliableListBuilder::layout) adopts a list that exists.
///
/// # Round trips
///
/// One to take, and one more for each second of waiting; one to finish. A consumer registers again on each new connection.
///
/// # While the store is down
///
/// Calls fail; nothing is lost.
///
/// # Metrics
///
/// Operations `reliable_list.push`, `reliable_list.take`, `reliable_list.done`; events `reliable_list.reaped`,
/// `reliable_list.lost`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use std::time::Duration;
/// # use redstart::{Store, messaging::{ReliableList, Settled}};
/// let store = Store::connect("memory://").await?;
/// let list = ReliableList::new(&store, "shop", "orders")?;
/// list.push("order 5001").await?;
///
/// let mut consumer = list.consumer().await?;
/// let item = consumer.take(Duration::from_secs(1)).await?.unwrap();
/// assert_eq!(item.payload(), b"order 5001");
/// assert_eq!(item.done().await?, Settled::Done);
/// consumer.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ReliableList(Arc<Inner>);

struct Inner {
    store: Store,
    entity: Entity,
    lease: Duration,
}

impl ReliableList {
    /// A list with default settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Starts a list's settings, from the defaults.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> ReliableListBuilder {
        ReliableListBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            lease: Duration::from_secs(30),
            layout: None,
        }
    }

    /// Adds an item; how many wait now.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the item may or may not have been added.
    pub async fn push(&self, item: impl AsRef<[u8]>) -> Result<u64> {
        let push = redis::cmd("LPUSH")
            .arg(self.0.entity.key())
            .arg(item.as_ref())
            .to_owned();
        let work = self.0.store.query(&push);
        observe::operation("reliable_list.push", self.0.entity.namespace(), work).await
    }

    /// How many items wait.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn waiting(&self) -> Result<u64> {
        let length = redis::cmd("LLEN").arg(self.0.entity.key()).to_owned();
        self.0.store.query(&length).await
    }

    /// Registers a consumer. Its lease is renewed in the background until it is closed or dropped.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn consumer(&self) -> Result<ListConsumer> {
        let name = token();
        let registered = self.0.store.clock().now();
        // Registered before the first take, so that whatever it takes can be found.
        let silent = self.register(&name).await?;
        self.put_back(silent).await?;
        // And again on each new connection: a server that lost its data has lost the consumer too.
        let connection = self.0.store.dedicated(self.0.entity.key());
        let connection = connection.greet(self.renewal(&name).into_command());
        let taking = Arc::new(Taking {
            connection: tokio::sync::Mutex::new(connection),
            taken: format!("taken:{name}"),
            name: name.clone(),
            looked: AtomicU64::new(0),
            list: self.clone(),
            held: Mutex::default(),
            doubt: Mutex::default(),
            renewed: Mutex::new(registered),
        });
        let heartbeat = crate::task::spawn(heartbeat(taking.clone(), registered));
        Ok(ListConsumer {
            taking,
            name,
            heartbeat,
            closed: false,
        })
    }

    /// Registers a consumer or renews its lease. Returns the consumers to look at, because they are silent.
    async fn register(&self, name: &str) -> Result<Vec<String>> {
        self.renewal(name).idempotent().run(&self.0.store).await
    }

    /// Puts back what silent consumers took.
    async fn put_back(&self, silent: Vec<String>) -> Result<()> {
        for other in silent {
            let reaped = self.reap(&other, Leaves::No).await?;
            if reaped > 0 {
                observe::events("reliable_list.reaped", reaped);
            }
        }
        Ok(())
    }

    fn renewal(&self, name: &str) -> Call<'_> {
        RENEW
            .on(&self.0.entity)
            .part("consumers")
            .part("silent")
            .arg(name)
            .arg(micros(self.0.lease))
    }

    async fn reap(&self, name: &str, leaves: Leaves) -> Result<u64> {
        let taken = format!("taken:{name}");
        let mut total = 0;
        loop {
            let (reaped, more): (u64, bool) = REAP
                .on(&self.0.entity)
                .key()
                .part("consumers")
                .part(&taken)
                .part("silent")
                .part("looks")
                .arg(name)
                .arg(leaves as u8)
                .idempotent()
                .run(&self.0.store)
                .await?;
            total += reaped;
            if !more {
                return Ok(total);
            }
        }
    }
}

/// Whether a consumer unregisters.
#[derive(Clone, Copy)]
enum Leaves {
    /// It was silent.
    No = 0,
    Yes = 1,
    /// The server may still read a take that it gave up: others look for what that takes, as if it had died.
    Unsure = 2,
}

/// Renews a consumer's lease, and looks for items that it took without knowing.
async fn heartbeat(taking: Arc<Taking>, mut begun: Instant) {
    let clock = taking.list.0.store.clock();
    loop {
        clock.sleep_until(begun + taking.list.0.lease / 3).await;
        begun = clock.now();
        if let Err(error) = taking.renew().await {
            tracing::debug!(%error, "a consumer's lease could not be renewed");
            if crate::mend::is_missing("a heartbeat goes on after an error") {
                return;
            }
        }
        taking.look_again();
        // While a take is under way its item is not known yet.
        if let Ok(_connection) = taking.connection.try_lock()
            && let Err(error) = taking.give_back_unknown().await
        {
            tracing::debug!(%error, "items of a cancelled take could not be put back");
        }
    }
}

impl fmt::Debug for ReliableList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReliableList")
            .field(self.0.entity.key())
            .finish()
    }
}

/// What a consumer, its items and its background task share.
struct Taking {
    list: ReliableList,
    name: String,
    /// The part of the list of what this consumer took.
    taken: String,
    /// The number of the last look for items that nobody knows of.
    looked: AtomicU64,
    /// Locked while an item is taken, or while unknown items are put back.
    connection: tokio::sync::Mutex<Dedicated>,
    /// The items that the application has.
    held: Mutex<Vec<Arc<[u8]>>>,
    doubt: Mutex<Doubt>,
    /// When the last renewal that the server confirmed was sent: the lease lasts at least that long from then on.
    renewed: Mutex<Instant>,
}

/// Whether items may have been taken without the application getting them.
#[derive(Clone, Copy, Default)]
struct Doubt {
    /// How many more times to look for them.
    looks: u8,
    /// How often a look was asked for. A look that began before the last of these may have missed its item, so it
    /// does not count.
    asked: u64,
    /// Whether a take was given up: nobody knows when the server reads its request, or that it never will.
    gave_up: bool,
}

impl Taking {
    /// Renews the lease, and puts back what silent consumers took.
    async fn renew(&self) -> Result<()> {
        let sent = self.list.0.store.clock().now();
        let silent = self.list.register(&self.name).await?;
        {
            let mut renewed = self.renewed.lock();
            *renewed = sent.max(*renewed);
        }
        self.list.put_back(silent).await
    }

    /// Renews the lease if it may end within `wait`. An item that is taken without a lease goes to others at once, who look for what
    /// silent consumers took.
    async fn hold_lease_for(&self, wait: Duration) -> Result<()> {
        let Inner { store, lease, .. } = &*self.list.0;
        let until = *self.renewed.lock() + *lease;
        if store.clock().now() + wait < until
            || crate::mend::is_missing("a take without a lease renews it first")
        {
            return Ok(());
        }
        self.renew().await
    }

    /// Puts back what was taken by a call that was cancelled or failed, and items that were dropped. Only while no take
    /// is under way.
    async fn give_back_unknown(&self) -> Result<()> {
        // Read before the items that the application has: an item that is dropped after this asks again.
        let doubt = *self.doubt.lock();
        if doubt.looks == 0 {
            return Ok(());
        }
        let Inner { store, entity, .. } = &*self.list.0;
        let held = self.held.lock().clone();
        // A look that the server reads late does not know of what was taken since.
        let number = self.looked.fetch_add(1, Ordering::Relaxed) + 1;
        let mut call = GIVE_BACK
            .on(entity)
            .key()
            .part(&self.taken)
            .part("looks")
            .part("consumers")
            .arg(&self.name)
            .arg(number);
        for item in &held {
            call = call.arg(&item[..]);
        }
        let _: u64 = call.idempotent().run(store).await?;
        let mut now = self.doubt.lock();
        if now.asked == doubt.asked {
            now.looks = doubt.looks - 1;
        }
        Ok(())
    }

    /// Waits for an item for a part of the time.
    async fn take(self: &Arc<Self>, wait: Duration) -> Result<Option<ListItem>> {
        let entity = &self.list.0.entity;
        let mut take = redis::cmd("BLMOVE");
        take.arg(entity.key())
            .arg(entity.part(&self.taken))
            .arg("RIGHT")
            .arg("LEFT")
            .arg(block_seconds(wait));
        let mut connection = self.connection.lock().await;
        self.give_back_unknown().await?;
        self.hold_lease_for(wait).await?;
        let mut pending = Pending(Some(self));
        let payload: Option<Vec<u8>> = connection.query(&take, wait).await?;
        let item = payload.map(|payload| {
            let payload: Arc<[u8]> = payload.into();
            self.held.lock().push(payload.clone());
            ListItem {
                taking: self.clone(),
                payload,
                done: false,
            }
        });
        pending.0 = None;
        Ok(item)
    }

    /// Asks for a look at once, in the background, and for one after each of these pauses. A look that fails is made up
    /// for by the heartbeat.
    fn doubt(self: &Arc<Self>, again_after: &'static [Duration]) {
        {
            let mut doubt = self.doubt.lock();
            doubt.looks = doubt.looks.max(1 + again_after.len() as u8);
            doubt.asked += 1;
            doubt.gave_up |= !again_after.is_empty();
        }
        let (taking, store) = (self.clone(), &self.list.0.store);
        store.defer(async move { taking.look().await });
        let Some(runtime) = store.runtime().filter(|_| !again_after.is_empty()) else {
            return;
        };
        let taking = Arc::downgrade(self);
        crate::task::spawn_on(&runtime, async move {
            for pause in again_after {
                tokio::time::sleep(*pause).await;
                match taking.upgrade() {
                    Some(taking) => taking.look().await,
                    None => return,
                }
            }
        });
    }

    /// Asks for another look if a take was given up. The next take or the heartbeat makes it.
    fn look_again(&self) {
        let mut doubt = self.doubt.lock();
        if doubt.gave_up {
            doubt.looks = doubt.looks.max(1);
        }
    }

    /// How its consumer unregisters.
    fn leaves(&self) -> Leaves {
        match self.doubt.lock().gave_up && !crate::mend::is_missing("a take that was given up") {
            true => Leaves::Unsure,
            false => Leaves::Yes,
        }
    }

    /// Puts unknown items back as soon as no take is under way.
    async fn look(&self) {
        let _connection = self.connection.lock().await;
        if let Err(error) = self.give_back_unknown().await {
            tracing::debug!(%error, "items of a cancelled take could not be put back");
        }
    }
}

/// How long the server is asked to wait for an item at a time.
const SHORTEST_PART: Duration = Duration::from_millis(100);
const LONGEST_PART: Duration = Duration::from_secs(1);

/// The server may read a cancelled request after the first look. Then one of these finds what it took.
const LATER_LOOKS: &[Duration] = &[Duration::from_millis(100), Duration::from_secs(1)];

/// A take under way. Dropped before its end, the item that it may have taken is put back.
struct Pending<'a>(Option<&'a Arc<Taking>>);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(taking) = self.0 {
            taking.doubt(LATER_LOOKS);
        }
    }
}

/// Takes items; made by [`ReliableList::consumer`]. Dropped, it puts back what it took and did not finish.
pub struct ListConsumer {
    taking: Arc<Taking>,
    name: String,
    heartbeat: JoinHandle<()>,
    closed: bool,
}

impl ListConsumer {
    /// Waits for an item, `None` after `wait`.
    ///
    /// # Errors
    ///
    /// Those of the store. An item that was taken although the reply was lost is put back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, an item that it took is put back: at once, or, if the server reads the request
    /// later, after 100 ms, a second or a third of the lease. Should the consumer be gone by then, others put the item back as
    /// if it had died.
    pub async fn take(&mut self, wait: Duration) -> Result<Option<ListItem>> {
        let taking = &self.taking;
        let Inner {
            store,
            entity,
            lease,
        } = &*taking.list.0;
        // The server is asked again and again: between two questions, items that were dropped are put back.
        let part = (*lease / 3).clamp(SHORTEST_PART, LONGEST_PART);
        let clock = store.clock();
        let until = clock.now().checked_add(wait.min(LONGEST));
        let work = async {
            loop {
                let left = match until {
                    Some(until) => until.saturating_duration_since(clock.now()),
                    None => LONGEST,
                };
                let item = taking.take(left.min(part)).await?;
                if item.is_some() || left <= part {
                    return Ok(item);
                }
            }
        };
        observe::operation("reliable_list.take", entity.namespace(), work).await
    }

    /// Unregisters, and puts back what was taken and not finished; how many.
    ///
    /// # Errors
    ///
    /// Those of the store: then the items come back when the lease ends.
    pub async fn close(mut self) -> Result<u64> {
        self.heartbeat.abort();
        let leaves = self.taking.leaves();
        let back = self.taking.list.reap(&self.name, leaves).await?;
        self.closed = true;
        Ok(back)
    }
}

impl Drop for ListConsumer {
    fn drop(&mut self) {
        if !crate::mend::is_missing("a heartbeat ends with its consumer") {
            self.heartbeat.abort();
        }
        if self.closed {
            return;
        }
        let (list, name) = (self.taking.list.clone(), self.name.clone());
        let leaves = self.taking.leaves();
        self.taking.list.0.store.defer(async move {
            if let Err(error) = list.reap(&name, leaves).await {
                tracing::debug!(%error, "a dropped consumer could not put its items back");
            }
        });
    }
}

impl fmt::Debug for ListConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListConsumer")
            .field("list", &self.taking.list)
            .finish_non_exhaustive()
    }
}

/// An item that was taken and is not finished yet. Dropped, it is put back: at once, or within a second if its consumer waits
/// for another one.
#[must_use = "an item is put back unless it is reported done"]
pub struct ListItem {
    taking: Arc<Taking>,
    payload: Arc<[u8]>,
    done: bool,
}

impl ListItem {
    /// What the producer pushed.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Removes the item for good; [`Settled::Lost`] if the lease had ended.
    ///
    /// # Errors
    ///
    /// Those of the store: then the item may come again.
    pub async fn done(mut self) -> Result<Settled> {
        let Inner { store, entity, .. } = &*self.taking.list.0;
        let remove = redis::cmd("LREM")
            .arg(entity.part(&self.taking.taken))
            .arg(1)
            .arg(&self.payload[..])
            .to_owned();
        let work = store.query::<u64>(&remove);
        let removed = observe::operation("reliable_list.done", entity.namespace(), work).await?;
        self.done = true;
        if removed == 0 {
            observe::event("reliable_list.lost");
            return Ok(Settled::Lost);
        }
        Ok(Settled::Done)
    }
}

impl Drop for ListItem {
    fn drop(&mut self) {
        self.taking
            .held
            .lock()
            .retain(|held| !Arc::ptr_eq(held, &self.payload));
        if !self.done {
            self.taking.doubt(&[]);
        }
    }
}

impl fmt::Debug for ListItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListItem")
            .field("list", &self.taking.list)
            .finish_non_exhaustive()
    }
}
