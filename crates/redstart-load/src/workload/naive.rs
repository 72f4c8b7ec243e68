//! What people write by hand, under the same load: each wrong outcome is counted as a claim that does not hold.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Result, Store,
    key::{Entity, Keys},
    redis::{self, Cmd},
};
use serde_json::{Map, Value};

use super::{Bed, Claims, Op, Workload, counters, limiting::LIMIT, source::Source};

super::patterns! { "naive":
    "token_bucket", "subject", 1.0, "GET the count, compare, INCR", Counted::open;
    "mutex", "lock", 1.0, "SET NX with a TTL and no owner, later plain DEL", Unowned::open;
    "stampede_lease", "row", 0.02, "GET, on a miss load and SET; DEL to invalidate", Unleased::open;
    "session", "session", 0.5, "GET the session as JSON, change a field, SET it whole", Whole::open;
    "leaderboard", "member", 0.7, "one string per member: GET, compare, SET; read all to rank", Strings::open;
    "unique_visitors", "page and day", 1.0, "SADD every visitor to a set", Sets::open;
}

/// What the wrong outcomes of a naive form are.
pub(super) fn counted(pattern: &str) -> &'static str {
    match pattern {
        "token_bucket" => "calls admitted above the limit",
        "mutex" => "times that two clients were inside",
        "stampede_lease" => "loads of the source beyond one per cold row and invalidation",
        "session" => "fields whose last update was lost",
        "leaderboard" => "members whose best score was lost",
        _ => "wrong answers",
    }
}

async fn query<T: redis::FromRedisValue>(
    store: &Store,
    name: &str,
    entity: &Entity,
    arguments: impl FnOnce(&mut Cmd),
) -> Result<T> {
    let mut cmd = redis::cmd(name);
    cmd.arg(entity.key());
    arguments(&mut cmd);
    store.query(&cmd).await
}

fn entities(bed: &Bed, pattern: &'static str, n: usize) -> Result<Vec<Entity>> {
    let keys = Keys::new(&bed.namespace, pattern)?;
    (0..n).map(|n| keys.entity(&format!("e{n}"))).collect()
}

struct Counted {
    store: Store,
    subjects: Vec<Entity>,
    admitted: Vec<AtomicU64>,
    claims: Claims,
}

impl Counted {
    async fn open(bed: &Bed) -> Result<Self> {
        let subjects = entities(bed, "naive", bed.entities(1_000_000))?;
        Ok(Self {
            store: bed.store.clone(),
            admitted: counters(subjects.len()),
            subjects,
            claims: Claims::default(),
        })
    }
}

impl Workload for Counted {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.subjects.len());
        let subject = &self.subjects[index];
        let used: Option<u64> = query(&self.store, "GET", subject, |_| {}).await?;
        if used.unwrap_or(0) < LIMIT {
            query::<()>(&self.store, "INCR", subject, |_| {}).await?;
            self.admitted[index].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        for admitted in &self.admitted {
            for _ in LIMIT..admitted.load(Ordering::Relaxed) {
                self.claims
                    .hold(false, || "a call was admitted above the limit".to_owned());
            }
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.subjects.len() as u64
    }
}

/// A lock that outlives its holder's patience, and is deleted by any client that believes it holds it.
struct Unowned {
    store: Store,
    locks: Vec<(Entity, AtomicI64)>,
    claims: Claims,
}

/// One holder in fifty takes longer than its lock lasts.
const TTL: Duration = Duration::from_millis(20);

impl Unowned {
    async fn open(bed: &Bed) -> Result<Self> {
        let locks = entities(bed, "naive", bed.entities(16))?;
        Ok(Self {
            store: bed.store.clone(),
            locks: locks
                .into_iter()
                .map(|lock| (lock, AtomicI64::new(0)))
                .collect(),
            claims: Claims::default(),
        })
    }
}

impl Workload for Unowned {
    async fn operate(&self, op: Op) -> Result<()> {
        let (lock, inside) = &self.locks[op.index(self.locks.len())];
        let deadline = tokio::time::Instant::now() + super::WAIT;
        loop {
            let taken: Option<String> = query(&self.store, "SET", lock, |cmd| {
                cmd.arg(1).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
            })
            .await?;
            if taken.is_some() {
                break;
            }
            if tokio::time::Instant::now() > deadline {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = inside.fetch_add(1, Ordering::SeqCst);
        self.claims
            .hold(before == 0, || "two clients were inside".to_owned());
        match op.random % 50 {
            0 => tokio::time::sleep(TTL * 2).await,
            _ => tokio::task::yield_now().await,
        }
        inside.fetch_sub(1, Ordering::SeqCst);
        query::<()>(&self.store, "DEL", lock, |_| {}).await
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.locks.len() as u64
    }
}

struct Unleased {
    store: Store,
    rows: Vec<Entity>,
    source: Arc<Source>,
    invalidations: AtomicU64,
    body: Vec<u8>,
    claims: Claims,
}

impl Unleased {
    async fn open(bed: &Bed) -> Result<Self> {
        let rows = entities(bed, "naive", bed.entities(1_000_000))?;
        Ok(Self {
            store: bed.store.clone(),
            source: Source::slow(rows.len(), bed.body()),
            rows,
            invalidations: AtomicU64::new(0),
            body: bed.body(),
            claims: Claims::default(),
        })
    }
}

impl Workload for Unleased {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.rows.len());
        let row = &self.rows[index];
        if op.write {
            self.invalidations.fetch_add(1, Ordering::Relaxed);
            return query(&self.store, "DEL", row, |_| {}).await;
        }
        let value: Option<Vec<u8>> = query(&self.store, "GET", row, |_| {}).await?;
        if value.is_none() {
            self.source.load(index).await?;
            query::<()>(&self.store, "SET", row, |cmd| {
                cmd.arg(&self.body).arg("EX").arg(86_400);
            })
            .await?;
        }
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        let explained = self.rows.len() as u64 + self.invalidations.load(Ordering::Relaxed);
        for _ in explained..self.source.loads() {
            self.claims
                .hold(false, || "a row was loaded more than once".to_owned());
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.rows.len() as u64
    }

    fn figure(&self) -> Option<String> {
        Some(format!("{} loads of the source", self.source.loads()))
    }
}

struct Whole {
    store: Store,
    sessions: Vec<Entity>,
    fields: usize,
    written: Vec<AtomicU64>,
    claims: Claims,
}

impl Whole {
    async fn open(bed: &Bed) -> Result<Self> {
        let sessions = entities(bed, "naive", bed.entities(2000))?;
        let body = serde_json::json!({ "body": "x".repeat(bed.payload) }).to_string();
        for session in &sessions {
            bed.gate.pass(bed.payload).await;
            query::<()>(&bed.store, "SET", session, |cmd| {
                cmd.arg(&body);
            })
            .await?;
        }
        let fields = bed.clients.min(64);
        Ok(Self {
            store: bed.store.clone(),
            written: counters(sessions.len() * fields),
            sessions,
            fields,
            claims: Claims::default(),
        })
    }

    async fn load(&self, session: &Entity) -> Result<Map<String, Value>> {
        let text: Option<String> = query(&self.store, "GET", session, |_| {}).await?;
        let data = text.and_then(|text| serde_json::from_str(&text).ok());
        Ok(data.unwrap_or_default())
    }
}

impl Workload for Whole {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.sessions.len());
        let session = &self.sessions[index];
        let mut data = self.load(session).await?;
        if !op.write || op.client >= self.fields {
            return Ok(());
        }
        let slot = index * self.fields + op.client;
        let value = self.written[slot].fetch_add(1, Ordering::SeqCst) + 1;
        data.insert(format!("f{}", op.client), value.into());
        let text = Value::Object(data).to_string();
        query(&self.store, "SET", session, |cmd| {
            cmd.arg(text);
        })
        .await
    }

    async fn finish(&self) -> Result<()> {
        for (index, session) in self.sessions.iter().enumerate() {
            let data = self.load(session).await?;
            for field in 0..self.fields {
                let written = self.written[index * self.fields + field].load(Ordering::SeqCst);
                let seen = data.get(&format!("f{field}")).and_then(Value::as_u64);
                self.claims.hold(seen.unwrap_or(0) >= written, || {
                    "the last update of a field was lost".to_owned()
                });
            }
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.sessions.len() as u64
    }
}

struct Strings {
    store: Store,
    members: Vec<Entity>,
    best: Vec<AtomicU64>,
    claims: Claims,
}

impl Strings {
    async fn open(bed: &Bed) -> Result<Self> {
        let members = entities(bed, "naive", bed.entities(100_000))?;
        Ok(Self {
            store: bed.store.clone(),
            best: counters(members.len()),
            members,
            claims: Claims::default(),
        })
    }
}

impl Workload for Strings {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.members.len());
        let member = &self.members[index];
        if op.write {
            let points = op.random % 100_000 + 1;
            let score: Option<u64> = query(&self.store, "GET", member, |_| {}).await?;
            if score.unwrap_or(0) < points {
                query::<()>(&self.store, "SET", member, |cmd| {
                    cmd.arg(points);
                })
                .await?;
            }
            self.best[index].fetch_max(points, Ordering::Relaxed);
            return Ok(());
        }
        // The rank: every score is read and compared here.
        let mut cmd = redis::cmd("MGET");
        for member in &self.members {
            cmd.arg(member.key());
        }
        let scores: Vec<Option<u64>> = self.store.query(&cmd).await?;
        let own = scores.get(index).copied().flatten().unwrap_or(0);
        let _rank = scores
            .iter()
            .flatten()
            .filter(|score| **score > own)
            .count()
            + 1;
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        for (member, best) in self.members.iter().zip(&self.best) {
            let score: Option<u64> = query(&self.store, "GET", member, |_| {}).await?;
            self.claims
                .hold(score.unwrap_or(0) >= best.load(Ordering::Relaxed), || {
                    "a member's best score was lost".to_owned()
                });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.members.len() as u64
    }
}

struct Sets {
    store: Store,
    pages: Vec<Entity>,
    claims: Claims,
}

impl Sets {
    async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            store: bed.store.clone(),
            pages: entities(bed, "naive", bed.entities(100))?,
            claims: Claims::default(),
        })
    }
}

impl Workload for Sets {
    async fn operate(&self, op: Op) -> Result<()> {
        let page = &self.pages[op.index(self.pages.len())];
        query(&self.store, "SADD", page, |cmd| {
            cmd.arg((op.random % (1 << 20)).to_string());
        })
        .await
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.pages.len() as u64
    }
}
