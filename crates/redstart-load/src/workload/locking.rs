//! Locks: never two holders, and fence tokens that rise.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use redstart::{
    Result, Store,
    locking::{
        FairMutex, FenceToken, FencedValues, FencedWrite, Leader, LegacyLock, Mutex, Redlock,
        RwLock, Semaphore,
    },
};

use super::{Bed, Claims, Op, WAIT, Workload};

super::patterns! { "locking":
    "mutex", "lock", 1.0,
    "never two holders of a lock, and its fence tokens rise", Held::mutex;
    "fencing", "value", 0.8,
    "no write with an older token is accepted after a newer one", Fenced::open;
    "redlock", "lock", 1.0,
    "never two holders of a lock over five stores of this process", Held::redlock;
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
        tokio::task::yield_now().await;
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
    locks: Vec<(Exclusive, Room)>,
    /// Attempts that waited in vain.
    missed: AtomicU64,
    claims: Claims,
}

impl Held {
    fn of(locks: Vec<Exclusive>) -> Self {
        Self {
            locks: locks
                .into_iter()
                .map(|lock| (lock, Room::default()))
                .collect(),
            missed: AtomicU64::new(0),
            claims: Claims::default(),
        }
    }

    async fn mutex(bed: &Bed) -> Result<Self> {
        let lock = |n| {
            Mutex::builder(&bed.store, &bed.namespace, &format!("e{n}"))
                .ttl(TTL)
                .build()
                .map(Exclusive::Mutex)
        };
        Ok(Self::of(
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
            (0..bed.entities(LOCKS)).map(lock).collect::<Result<_>>()?,
        ))
    }

    /// Five stores of this process: one server cannot be a quorum.
    async fn redlock(bed: &Bed) -> Result<Self> {
        let mut stores = Vec::new();
        for _ in 0..5 {
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
            (0..bed.entities(LOCKS))
                .map(candidate)
                .collect::<Result<_>>()?,
        ))
    }
}

#[async_trait]
impl Workload for Held {
    async fn operate(&self, op: Op) -> Result<()> {
        let (lock, room) = &self.locks[op.index(self.locks.len())];
        let guard = match lock {
            Exclusive::Mutex(lock) => lock.lock(WAIT).await?,
            Exclusive::Fair(lock) => lock.lock(WAIT).await?,
            Exclusive::Redlock(lock) => lock.lock(WAIT).await?,
            Exclusive::Legacy(lock) => lock.lock(WAIT).await?,
            Exclusive::Leader(leader) => {
                if let Some(leadership) = leader.campaign(WAIT).await? {
                    let term = leadership.term().get();
                    room.visit(&self.claims, 1, Some(term)).await;
                    let _ = leadership.resign().await?;
                }
                return Ok(());
            }
        };
        let Some(guard) = guard else {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        // A store's tokens say nothing about those of four others, nor does an old client's lock have any.
        let fence = match lock {
            Exclusive::Legacy(_) | Exclusive::Redlock(_) => None,
            _ => Some(guard.fence().get()),
        };
        room.visit(&self.claims, 1, fence).await;
        let _ = guard.release().await?;
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
        let missed = self.missed.load(Ordering::Relaxed);
        Some(format!(
            "{turns} acquisitions of {} locks, {missed} waited in vain",
            self.locks.len()
        ))
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

#[async_trait]
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
        self.tokens.len() as u64
    }
}

struct Shared {
    locks: Vec<(RwLock, AtomicI64)>,
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
            claims: Claims::default(),
        })
    }
}

/// A writer counts as so many readers.
const WRITER: i64 = 1 << 32;

#[async_trait]
impl Workload for Shared {
    async fn operate(&self, op: Op) -> Result<()> {
        let (lock, inside) = &self.locks[op.index(self.locks.len())];
        if op.write {
            if let Some(guard) = lock.write(WAIT).await? {
                let before = inside.fetch_add(WRITER, Ordering::SeqCst);
                self.claims.hold(before == 0, || {
                    "a writer was let in beside others".to_owned()
                });
                tokio::task::yield_now().await;
                inside.fetch_sub(WRITER, Ordering::SeqCst);
                let _ = guard.release().await?;
            }
        } else if let Some(guard) = lock.read(WAIT).await? {
            let before = inside.fetch_add(1, Ordering::SeqCst);
            self.claims.hold(before < WRITER, || {
                "a reader was let in beside a writer".to_owned()
            });
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            let _ = guard.release().await?;
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
            claims: Claims::default(),
        })
    }
}

#[async_trait]
impl Workload for Permits {
    async fn operate(&self, op: Op) -> Result<()> {
        let (semaphore, room) = &self.semaphores[op.index(self.semaphores.len())];
        if let Some(permit) = semaphore.acquire(WAIT).await? {
            room.visit(&self.claims, i64::from(PERMITS.get()), None)
                .await;
            let _ = permit.release().await?;
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
