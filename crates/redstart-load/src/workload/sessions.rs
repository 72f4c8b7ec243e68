//! Sessions and trails: no update lost.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use redstart::{
    Result,
    sessions::{Patched, Sessions, Token, Trail},
};
use serde_json::{Map, Value};

use super::{Bed, Claims, DAY, Op, Workload, counters};

super::patterns! { "sessions":
    "session", "session", 0.5,
    "no client's update of its own field is lost", Logins::open;
    "trail", "visitor", 1.0,
    "a trail has the last pages of its visitor, in order", Trails::open;
}

/// Fields of a session that clients write; a client has one of them to itself.
const FIELDS: usize = 64;

/// Sessions of which clients patch one field each.
struct Logins {
    sessions: Sessions,
    tokens: Vec<Token>,
    fields: usize,
    /// The newest acknowledged value of each field, and whether a later one may have been written.
    written: Vec<AtomicU64>,
    attempted: Vec<AtomicU64>,
    claims: Claims,
}

impl Logins {
    async fn open(bed: &Bed) -> Result<Self> {
        let sessions = Sessions::builder(&bed.store, &bed.namespace, "web")
            .idle(DAY)
            .absolute(DAY)
            .build()?;
        let mut tokens = Vec::new();
        let body = serde_json::json!({ "body": "x".repeat(bed.payload) });
        for n in 0..bed.entities(2000) {
            bed.gate.pass(bed.payload).await;
            tokens.push(sessions.create(&format!("user-{n}"), &body).await?);
        }
        let fields = bed.clients.min(FIELDS);
        Ok(Self {
            sessions,
            written: counters(tokens.len() * fields),
            attempted: counters(tokens.len() * fields),
            fields,
            tokens,
            claims: Claims::default(),
        })
    }
}

impl Workload for Logins {
    async fn operate(&self, op: Op) -> Result<()> {
        let session = op.index(self.tokens.len());
        let token = &self.tokens[session];
        // Clients beyond the fields only read.
        if !op.write || op.client >= self.fields {
            let loaded = self.sessions.load::<Map<String, Value>>(token).await?;
            self.claims
                .hold(loaded.is_some(), || "a session is gone".to_owned());
            return Ok(());
        }
        let slot = session * self.fields + op.client;
        let value = self.attempted[slot].fetch_add(1, Ordering::SeqCst) + 1;
        let patch = Map::from_iter([(format!("f{}", op.client), value.into())]);
        let patched = self.sessions.patch(token, &patch).await?;
        self.claims.hold(patched == Patched::Done, || {
            format!("a session that exists could not be patched: {patched:?}")
        });
        self.written[slot].store(value, Ordering::SeqCst);
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        for (session, token) in self.tokens.iter().enumerate() {
            let loaded = self.sessions.load::<Map<String, Value>>(token).await?;
            let data = loaded.map(|session| session.data).unwrap_or_default();
            for field in 0..self.fields {
                let slot = session * self.fields + field;
                let least = self.written[slot].load(Ordering::SeqCst);
                let most = self.attempted[slot].load(Ordering::SeqCst);
                let seen = data.get(&format!("f{field}")).and_then(Value::as_u64);
                let seen = seen.unwrap_or(0);
                self.claims.hold((least..=most).contains(&seen), || {
                    format!("session {session} has {seen} where client {field} wrote {least}")
                });
            }
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn mark(&self, target: u64) -> Option<String> {
        let token = self.tokens.get(target as usize)?;
        Some(format!(":{}", token.handle()))
    }

    fn entities(&self) -> u64 {
        self.tokens.len() as u64
    }
}

const PAGES: usize = 5;

struct Trails {
    trail: Trail,
    /// The visitors of each client: nobody else visits for them.
    visitors: Vec<Mutex<Vec<Visitor>>>,
    each: usize,
    claims: Claims,
}

#[derive(Clone, Default)]
struct Visitor {
    pages: Vec<u64>,
    unsure: bool,
}

impl Trails {
    async fn open(bed: &Bed) -> Result<Self> {
        let each = (bed.entities(10_000) / bed.clients).max(1);
        Ok(Self {
            trail: Trail::builder(&bed.store, &bed.namespace, "pages")
                .pages(PAGES)
                .gap(DAY)
                .build()?,
            visitors: (0..bed.clients)
                .map(|_| Mutex::new(vec![Visitor::default(); each]))
                .collect(),
            each,
            claims: Claims::default(),
        })
    }
}

impl Workload for Trails {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.each);
        let visitor = format!("v{}-{index}", op.client);
        let visited = self.trail.visit(&visitor, &format!("/{}", op.number)).await;
        {
            let mut visitors = self.visitors[op.client].lock();
            let model = &mut visitors[index];
            model.unsure |= visited.is_err();
            model.pages.push(op.number);
            if model.pages.len() > PAGES {
                model.pages.remove(0);
            }
        }
        let pages = visited?;
        self.claims.hold(pages <= PAGES, || {
            format!("a trail of {PAGES} pages has {pages}")
        });
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        for (client, visitors) in self.visitors.iter().enumerate() {
            let visitors = visitors.lock().clone();
            for (index, visitor) in visitors.iter().enumerate() {
                if visitor.unsure || visitor.pages.is_empty() {
                    continue;
                }
                let pages = self.trail.pages(&format!("v{client}-{index}")).await?;
                let right = visitor.pages.iter().map(|page| format!("/{page}"));
                self.claims.hold(right.eq(pages.iter().cloned()), || {
                    format!(
                        "visitor {client}-{index} visited {:?}, the trail has {pages:?}",
                        visitor.pages
                    )
                });
            }
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn target(&self, op: &Op) -> u64 {
        (op.client * self.each + op.index(self.each)) as u64
    }

    fn mark(&self, target: u64) -> Option<String> {
        let (client, index) = (target / self.each as u64, target % self.each as u64);
        Some(format!("{{v{client}-{index}}}"))
    }

    fn entities(&self) -> u64 {
        let seen = |visitors: &Mutex<Vec<Visitor>>| {
            let visitors = visitors.lock();
            visitors.iter().filter(|v| !v.pages.is_empty()).count() as u64
        };
        self.visitors.iter().map(seen).sum()
    }
}
