//! Locks: never two holders, and fence tokens that rise.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use redstart::{
    Result, Store,
    locking::{
        FairMutex, FenceToken, FencedValues, FencedWrite, Leader, LegacyLock, Mutex, Redlock,
        RwLock, Semaphore,
    },
};

use super::{Bed, Claims, Op, WAIT, Workload, until};

super::patterns! { "locking":
    "mutex", "lock", 1.0,
    "never two holders of a lock, and its fence tokens rise", Held::mutex;
    "fencing", "value", 0.8,
    "no write with an older token is accepted after a newer one", Fenced::open;
    "redlock", "lock", 1.0,
    "never two holders of a lock over five stores, of which one is the run's", Held::redlock;
    "fair_lock", "lock", 1.0,
    "never two holders of a lock, and its fence tokens rise", Held::fair;
    "rw_lock", "lock", 0.2,
    "a writer is alone, readers share", Shared::open;
    "semaphore", "semaphore", 1.0,
    "never more holders than permits", Permits::open;
    "leader", "election", 1.0,
    "never two leaders, and terms rise", Held::leader;
    "legacy_lock", "lock", 1.0,
    "never two holders of a lock", Held::legacy;
}

/// Locks of a run: few enough that clients meet.
const LOCKS: u64 = 16;
/// Much longer than any pause, so that no lease ends while the machine is busy.
const TTL: Duration = Duration::from_secs(60);

/// How often a holder lets other tasks run before it leaves.
const YIELDS: usize = 3;

/// Who is inside, as this process sees it.
#[derive(Default)]
struct Room {
    inside: AtomicI64,
    last_fence: AtomicU64,
    /// Acquisitions that were granted.
    turns: AtomicU64,
}

impl Room {
    /// One visit; notes that somebody else is inside, and a token that is not above the last.
    async fn visit(&self, claims: &Claims, most: i64, fence: Option<u64>) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        claims.hold(inside <= most, || {
            format!("{inside} holders at once, at most {most} are allowed")
        });
        if let Some(fence) = fence {
            let last = self.last_fence.swap(fence, Ordering::SeqCst);
            claims.hold(fence > last, || {
                format!("token {fence} was granted after token {last}")
            });
        }
        self.turns.fetch_add(1, Ordering::Relaxed);
        // Others get a chance to break in.
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The exclusive locks, which differ only in how they are acquired.
enum Exclusive {
    Mutex(Mutex),
    Fair(FairMutex),
    Redlock(Redlock),
    Legacy(LegacyLock),
    Leader(Box<Leader>),
}

struct Held {
    store: Store,
    namespace: String,
    locks: Vec<(Exclusive, Room)>,
    waits: Waits,
    claims: Claims,
}

/// Acquisitions that did not end as they should.
#[derive(Default)]
struct Waits {
    /// Those that waited without success.
    missed: AtomicU64,
    /// Those that failed: what they held may be held until its lease ends.
    failed: AtomicU64,
}

impl Waits {
    fn missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    fn note<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Whether everything that was taken must be free again, so that it can be taken once more.
    fn all_given_back(&self, claims: &Claims) -> bool {
        let missed = self.missed.load(Ordering::Relaxed);
        if missed > 0 {
            claims.unchecked(|| format!("{missed} acquisitions waited in vain for {WAIT:?}"));
        }
        self.failed.load(Ordering::Relaxed) == 0
    }
}

/// Notes that a lock is not free although everybody has given it back.
fn stuck(claims: &Claims, what: &str, number: usize, free: bool) {
    claims.hold(free, || {
        format!("{what} {number} was given back by everybody and is not free")
    });
}

impl Held {
    fn of(bed: &Bed, locks: Vec<Exclusive>) -> Self {
        Self {
            store: bed.store.clone(),
            namespace: bed.namespace.clone(),
            locks: locks
                .into_iter()
                .map(|lock| (lock, Room::default()))
                .collect(),
            waits: Waits::default(),
            claims: Claims::default(),
        }
    }

    /// Takes a lock, visits its room and gives it back; whether it was granted.
    async fn turn(&self, index: usize) -> Result<bool> {
        let (lock, room) = &self.locks[index];
        let guard = match lock {
            Exclusive::Mutex(lock) => lock.lock(WAIT).await?,
            Exclusive::Fair(lock) => lock.lock(WAIT).await?,
            Exclusive::Redlock(lock) => lock.lock(WAIT).await?,
            Exclusive::Legacy(lock) => lock.lock(WAIT).await?,
            Exclusive::Leader(leader) => {
                let Some(leadership) = leader.campaign(WAIT).await? else {
                    return Ok(false);
                };
                let term = leadership.term().get();
                room.visit(&self.claims, 1, Some(term)).await;
                let _ = leadership.resign().await?;
                return Ok(true);
            }
        };
        let Some(guard) = guard else {
            return Ok(false);
        };
        // A store's tokens say nothing about those of four others, nor does an old client's lock have any.
        let fence = match lock {
            Exclusive::Legacy(_) | Exclusive::Redlock(_) => None,
            _ => Some(guard.fence().get()),
        };
        room.visit(&self.claims, 1, fence).await;
        let _ = guard.release().await?;
        Ok(true)
    }

    /// The engines of this process are a quorum before the server of the run has answered: it is told the rest in the
    /// background, and its keys must not be removed before.
    async fn slow_server(&self) -> Result<()> {
        let pattern = format!("*{}*", self.namespace);
        until(|| async {
            self.store.settle().await;
            let keys = self.store.scan(&pattern).await?;
            Ok(keys.iter().all(|key| key.ends_with(":fence")))
        })
        .await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(())
    }

    async fn mutex(bed: &Bed) -> Result<Self> {
        let lock = |n| {
            Mutex::builder(&bed.store, &bed.namespace, &format!("e{n}"))
                .ttl(TTL)
                .build()
                .map(Exclusive::Mutex)
        };
        Ok(Self::of(
            bed,
            (0..bed.entities(LOCKS)).map(lock).collect::<Result<_>>()?,
        ))
    }

    async fn fair(bed: &Bed) -> Result<Self> {
        let lock = |n| {
            FairMutex::builder(&bed.store, &bed.namespace, &format!("e{n}"))
                .ttl(TTL)
                .build()
                .map(Exclusive::Fair)
        };
        Ok(Self::of(
            bed,
            (0..bed.entities(LOCKS)).map(lock).collect::<Result<_>>()?,
        ))
    }

    async fn legacy(bed: &Bed) -> Result<Self> {
        let lock = |n| {
            LegacyLock::builder(&bed.store, &bed.namespace, &format!("e{n}"))
                .ttl(TTL)
                .build()
                .map(Exclusive::Legacy)
        };
        Ok(Self::of(
            bed,
            (0..bed.entities(LOCKS)).map(lock).collect::<Result<_>>()?,
        ))
    }

    /// One server cannot be a quorum: the other four are engines of this process. What the server spends is what each of five
    /// servers would. The latency is that of the engines, which are a quorum before the server has answered.
    async fn redlock(bed: &Bed) -> Result<Self> {
        let mut stores = vec![bed.store.clone()];
        for _ in 0..4 {
            stores.push(Store::connect("memory://").await?);
        }
        let lock = |n| {
            Redlock::builder(stores.clone(), &bed.namespace, &format!("e{n}"))
                .ttl(TTL)
                .retry_delay(Duration::from_millis(1))
                .build()
                .map(Exclusive::Redlock)
        };
        Ok(Self::of(
            bed,
            (0..bed.entities(LOCKS)).map(lock).collect::<Result<_>>()?,
        ))
    }

    async fn leader(bed: &Bed) -> Result<Self> {
        let candidate = |n| {
            Leader::builder(&bed.store, &bed.namespace, &format!("e{n}"))
                .ttl(TTL)
                .build()
                .map(|leader| Exclusive::Leader(Box::new(leader)))
        };
        Ok(Self::of(
            bed,
            (0..bed.entities(LOCKS))
                .map(candidate)
                .collect::<Result<_>>()?,
        ))
    }
}

impl Workload for Held {
    async fn operate(&self, op: Op) -> Result<()> {
        if !self
            .waits
            .note(self.turn(op.index(self.locks.len())).await)?
        {
            self.waits.missed();
        }
        Ok(())
    }

    /// Every lock can be taken once more.
    async fn finish(&self) -> Result<()> {
        if self.waits.all_given_back(&self.claims) {
            for index in 0..self.locks.len() {
                stuck(&self.claims, "lock", index, self.turn(index).await?);
            }
        }
        if let Some((Exclusive::Redlock(_), _)) = self.locks.first() {
            self.slow_server().await?;
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.locks.len() as u64
    }

    fn figure(&self) -> Option<String> {
        let turns: u64 = self
            .locks
            .iter()
            .map(|(_, room)| room.turns.load(Ordering::Relaxed))
            .sum();
        let missed = self.waits.missed.load(Ordering::Relaxed);
        Some(format!(
            "{turns} acquisitions of {} locks, {missed} waited in vain",
            self.locks.len()
        ))
    }

    fn latency_of(&self) -> Option<&'static str> {
        match self.locks.first() {
            Some((Exclusive::Redlock(_), _)) if !self.store.is_embedded() => {
                Some("four engines of this process, which are a quorum; the server is the fifth")
            }
            _ => None,
        }
    }
}

struct Fenced {
    values: FencedValues,
    /// The next token of each value, and the highest that was accepted.
    tokens: Vec<(AtomicU64, AtomicU64)>,
    body: Vec<u8>,
    claims: Claims,
}

impl Fenced {
    async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            values: FencedValues::new(&bed.store, &bed.namespace, "values")?,
            tokens: (0..bed.entities(100_000))
                .map(|_| (AtomicU64::new(1), AtomicU64::new(0)))
                .collect(),
            body: bed.body(),
            claims: Claims::default(),
        })
    }
}

impl Workload for Fenced {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.tokens.len());
        let (next, accepted) = &self.tokens[index];
        let name = format!("e{index}");
        if !op.write {
            self.values.get(&name).await?;
            return Ok(());
        }
        let newest = next.fetch_add(1, Ordering::SeqCst);
        // Every fourth writer was paused and comes with an old token.
        let token = match op.random % 4 {
            0 => newest.saturating_sub(op.random % 8).max(1),
            _ => newest,
        };
        let floor = accepted.load(Ordering::SeqCst);
        let fence = FenceToken::new(token)?;
        match self.values.set(&name, &self.body, fence).await? {
            FencedWrite::Done => {
                self.claims.hold(token >= floor, || {
                    format!("value {index} took a write with token {token} after token {floor}")
                });
                accepted.fetch_max(token, Ordering::SeqCst);
            }
            FencedWrite::Stale { highest } => {
                let highest = highest.get();
                self.claims.hold(highest > token, || {
                    format!("token {token} was refused, and the highest is {highest}")
                });
            }
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        let written = |(_, accepted): &&(AtomicU64, AtomicU64)| accepted.load(Ordering::SeqCst) > 0;
        self.tokens.iter().filter(written).count() as u64
    }
}

struct Shared {
    locks: Vec<(RwLock, AtomicI64)>,
    waits: Waits,
    claims: Claims,
}

impl Shared {
    async fn open(bed: &Bed) -> Result<Self> {
        let lock = |n| {
            let lock = RwLock::builder(&bed.store, &bed.namespace, &format!("e{n}"))
                .ttl(TTL)
                .build()?;
            Ok((lock, AtomicI64::new(0)))
        };
        Ok(Self {
            locks: (0..bed.entities(LOCKS)).map(lock).collect::<Result<_>>()?,
            waits: Waits::default(),
            claims: Claims::default(),
        })
    }

    /// Takes a lock and gives it back; whether it was granted.
    async fn turn(&self, index: usize, write: bool) -> Result<bool> {
        let (lock, inside) = &self.locks[index];
        if write {
            let Some(guard) = lock.write(WAIT).await? else {
                return Ok(false);
            };
            let before = inside.fetch_add(WRITER, Ordering::SeqCst);
            self.claims.hold(before == 0, || {
                "a writer was let in beside others".to_owned()
            });
            tokio::task::yield_now().await;
            inside.fetch_sub(WRITER, Ordering::SeqCst);
            let _ = guard.release().await?;
            return Ok(true);
        }
        let Some(guard) = lock.read(WAIT).await? else {
            return Ok(false);
        };
        let before = inside.fetch_add(1, Ordering::SeqCst);
        self.claims.hold(before < WRITER, || {
            "a reader was let in beside a writer".to_owned()
        });
        tokio::task::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
        let _ = guard.release().await?;
        Ok(true)
    }
}

/// A writer counts as this many readers.
const WRITER: i64 = 1 << 32;

impl Workload for Shared {
    async fn operate(&self, op: Op) -> Result<()> {
        let turn = self.turn(op.index(self.locks.len()), op.write).await;
        if !self.waits.note(turn)? {
            self.waits.missed();
        }
        Ok(())
    }

    /// Every lock can be taken once more, by a writer.
    async fn finish(&self) -> Result<()> {
        if self.waits.all_given_back(&self.claims) {
            for index in 0..self.locks.len() {
                stuck(&self.claims, "lock", index, self.turn(index, true).await?);
            }
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.locks.len() as u64
    }
}

const PERMITS: NonZeroU32 = NonZeroU32::new(3).unwrap();

struct Permits {
    semaphores: Vec<(Semaphore, Room)>,
    waits: Waits,
    claims: Claims,
}

impl Permits {
    async fn open(bed: &Bed) -> Result<Self> {
        let semaphore = |n| {
            let name = format!("e{n}");
            let semaphore = Semaphore::builder(&bed.store, &bed.namespace, &name, PERMITS)
                .ttl(TTL)
                .build()?;
            Ok((semaphore, Room::default()))
        };
        Ok(Self {
            semaphores: (0..bed.entities(LOCKS))
                .map(semaphore)
                .collect::<Result<_>>()?,
            waits: Waits::default(),
            claims: Claims::default(),
        })
    }
}

impl Workload for Permits {
    async fn operate(&self, op: Op) -> Result<()> {
        let (semaphore, room) = &self.semaphores[op.index(self.semaphores.len())];
        let Some(permit) = self.waits.note(semaphore.acquire(WAIT).await)? else {
            self.waits.missed();
            return Ok(());
        };
        room.visit(&self.claims, i64::from(PERMITS.get()), None)
            .await;
        let _ = self.waits.note(permit.release().await)?;
        Ok(())
    }

    /// All permits of every semaphore can be taken once more.
    async fn finish(&self) -> Result<()> {
        if !self.waits.all_given_back(&self.claims) {
            return Ok(());
        }
        for (index, (semaphore, _)) in self.semaphores.iter().enumerate() {
            let mut permits = Vec::new();
            for _ in 0..PERMITS.get() {
                let permit = semaphore.acquire(WAIT).await?;
                stuck(
                    &self.claims,
                    "a permit of semaphore",
                    index,
                    permit.is_some(),
                );
                permits.extend(permit);
            }
            let beyond = semaphore.try_acquire().await?;
            self.claims.hold(beyond.is_none(), || {
                format!("semaphore {index} gave a permit beyond its {PERMITS}")
            });
            permits.extend(beyond);
            for permit in permits {
                let _ = permit.release().await?;
            }
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.semaphores.len() as u64
    }
}
