//! Filters, places and the graph.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use redstart::{
    Result,
    location::{Area, Places, Position},
    membership::Bloom,
    social::{Followed, Graph},
};

use super::{Bed, Claims, Op, Workload, counters};

super::patterns! { "membership, location and graph":
    "bloom", "element of the capacity", 0.5,
    "an element that was added is always found", Filter::open;
    "places", "member", 0.7,
    "every member is found within two metres of its last position", Map::open;
    "graph", "edge", 0.8,
    "both sides of every edge agree with the last call of its owner", Friends::open;
}

/// Elements that a filter is made for.
const CAPACITY: u64 = 100_000;

struct Filter {
    bloom: Bloom,
    /// 1 for an element whose addition has returned.
    added: Vec<AtomicU64>,
    claims: Claims,
}

impl Filter {
    async fn open(bed: &Bed) -> Result<Self> {
        let elements = bed.entities(CAPACITY);
        Ok(Self {
            bloom: Bloom::builder(&bed.store, &bed.namespace, "seen")
                .capacity(CAPACITY)
                .error_rate(0.01)
                .create()
                .await?,
            added: counters(elements),
            claims: Claims::default(),
        })
    }
}

impl Workload for Filter {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.added.len());
        let element = format!("element-{index}");
        if op.write {
            self.bloom.add(&element).await?;
            self.added[index].store(1, Ordering::SeqCst);
            return Ok(());
        }
        let added = self.added[index].load(Ordering::SeqCst) == 1;
        let found = self.bloom.contains(&element).await?;
        self.claims.hold(found || !added, || {
            format!("element {index} was added and is not found")
        });
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        let added: Vec<String> = self
            .added
            .iter()
            .enumerate()
            .filter(|(_, added)| added.load(Ordering::SeqCst) == 1)
            .map(|(index, _)| format!("element-{index}"))
            .collect();
        for chunk in added.chunks(1000) {
            let found = self.bloom.contains_many(chunk).await?;
            let missing = found.iter().filter(|found| !**found).count();
            self.claims.hold(missing == 0, || {
                format!("{missing} of {} added elements are not found", chunk.len())
            });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn target(&self, _: &Op) -> u64 {
        0
    }

    /// A filter of this capacity has one partition.
    fn mark(&self, _: u64) -> Option<String> {
        Some("{seen/".to_owned())
    }

    fn entities(&self) -> u64 {
        CAPACITY
    }
}

/// Where a member may be.
#[derive(Clone, Debug, Default)]
struct Member {
    /// Its last position that was acknowledged.
    put: Option<Position>,
    /// Positions of which it is not known whether they were put, or whether the server will still read them.
    unsure: Vec<Position>,
}

impl Member {
    fn may_be_at(&self, seen: Option<Position>) -> bool {
        match seen {
            Some(seen) => {
                let mut known = self.put.iter().chain(&self.unsure);
                known.any(|position| seen.distance(*position) < 2.0)
            }
            None => self.put.is_none(),
        }
    }
}

struct Map {
    places: Places,
    /// Where each member may be; the members of a client belong to it alone.
    members: Vec<Mutex<Member>>,
    clients: usize,
    claims: Claims,
}

impl Map {
    async fn open(bed: &Bed) -> Result<Self> {
        let members = bed.entities(100_000).max(bed.clients);
        Ok(Self {
            places: Places::new(&bed.store, &bed.namespace, "people")?,
            members: (0..members).map(|_| Mutex::default()).collect(),
            clients: bed.clients,
            claims: Claims::default(),
        })
    }

    fn check(&self, index: usize, seen: Option<Position>, model: &Member) {
        self.claims.hold(model.may_be_at(seen), || {
            format!(
                "member {index} was put at {:?} and is found at {seen:?}",
                model.put
            )
        });
    }
}

impl Workload for Map {
    async fn operate(&self, op: Op) -> Result<()> {
        let own = self.members.len() / self.clients;
        let index = op.index(own) * self.clients + op.client;
        let member = format!("e{index}");
        // A city: searches find several members and do not return the world.
        let longitude = 13.0 + (op.random % 10_000) as f64 / 10_000.0;
        let latitude = 52.0 + (op.random / 10_000 % 10_000) as f64 / 10_000.0;
        let position = Position::new(longitude, latitude)?;
        if op.write {
            let put = self.places.put(&member, position).await;
            let mut model = self.members[index].lock();
            match &put {
                Ok(_) => model.put = Some(position),
                Err(_) => model.unsure.push(position),
            }
            return put.map(|_| ());
        }
        if op.random.is_multiple_of(2) {
            let area = Area::Radius(1000.0);
            let found = self.places.nearby(position, area).limit(20).find().await?;
            let far = found
                .iter()
                .filter(|nearby| nearby.distance > 1002.0)
                .count();
            self.claims.hold(far == 0, || {
                format!("{far} members beyond the radius were found")
            });
            return Ok(());
        }
        let model = self.members[index].lock().clone();
        let seen = self.places.position(&member).await?;
        self.check(index, seen, &model);
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        let step = (self.members.len() / 1000).max(1);
        for index in (0..self.members.len()).step_by(step) {
            let model = self.members[index].lock().clone();
            let seen = self.places.position(&format!("e{index}")).await?;
            self.check(index, seen, &model);
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    super::one_target!("{people}");

    fn entities(&self) -> u64 {
        let known = |member: &&Mutex<Member>| member.lock().put.is_some();
        self.members.iter().filter(known).count() as u64
    }
}

/// Accounts that follow each other; the edges that begin at an account belong to one client.
struct Friends {
    graph: Graph,
    accounts: usize,
    clients: usize,
    /// Whether an edge exists: 0 unknown, 1 no, 2 yes.
    edges: Vec<AtomicU64>,
    claims: Claims,
}

/// Accounts that each account may follow.
const NEIGHBOURS: usize = 8;

impl Friends {
    async fn open(bed: &Bed) -> Result<Self> {
        let accounts = bed.entities(20_000).max(bed.clients).max(2 * NEIGHBOURS);
        let edges = counters(accounts * NEIGHBOURS);
        for edge in &edges {
            edge.store(1, Ordering::Relaxed);
        }
        Ok(Self {
            graph: Graph::new(&bed.store, &bed.namespace, "people")?,
            accounts,
            clients: bed.clients,
            edges,
            claims: Claims::default(),
        })
    }

    /// The account that asks.
    fn account(&self, op: &Op) -> usize {
        op.index(self.accounts / self.clients) * self.clients + op.client
    }

    fn neighbour(&self, from: usize, neighbour: usize) -> String {
        format!("e{}", (from + 1 + neighbour) % self.accounts)
    }
}

impl Workload for Friends {
    async fn operate(&self, op: Op) -> Result<()> {
        let from = self.account(&op);
        let neighbour = (op.random % NEIGHBOURS as u64) as usize;
        let (name, to) = (format!("e{from}"), self.neighbour(from, neighbour));
        let edge = &self.edges[from * NEIGHBOURS + neighbour];
        if !op.write {
            let model = edge.load(Ordering::SeqCst);
            let seen = self.graph.is_following(&name, &to).await?;
            self.claims.hold(model == 0 || seen == (model == 2), || {
                format!("{name} follows {to}: {seen}, which is not what it last asked for")
            });
            return Ok(());
        }
        // Three follows to one unfollow.
        if (op.random / 8).is_multiple_of(4) {
            let gone = self.graph.unfollow(&name, &to).await;
            edge.store(u64::from(gone.is_ok()), Ordering::SeqCst);
            return gone.map(|_| ());
        }
        let followed = self.graph.follow(&name, &to).await;
        let known = matches!(followed, Ok(Followed::New | Followed::Already));
        edge.store(if known { 2 } else { 0 }, Ordering::SeqCst);
        followed.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        let step = (self.accounts / 300).max(1);
        for account in (0..self.accounts).step_by(step) {
            let model = |from: usize, neighbour: usize| {
                self.edges[from * NEIGHBOURS + neighbour].load(Ordering::SeqCst)
            };
            let before =
                |neighbour: usize| (account + self.accounts - 1 - neighbour) % self.accounts;
            let out = (0..NEIGHBOURS).map(|n| model(account, n));
            let into = (0..NEIGHBOURS).map(|n| model(before(n), n));
            if out.clone().chain(into.clone()).any(|edge| edge == 0) {
                continue;
            }
            let yes = |edges: &mut dyn Iterator<Item = u64>| {
                edges.filter(|edge| *edge == 2).count() as u64
            };
            let expected = (yes(&mut into.clone()), yes(&mut out.clone()));
            let counts = self.graph.counts(&format!("e{account}")).await?;
            let seen = (counts.followers, counts.following);
            self.claims.hold(seen == expected, || {
                format!(
                    "account {account} has followers and following {seen:?}, expected {expected:?}"
                )
            });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn target(&self, op: &Op) -> u64 {
        self.account(op) as u64
    }

    fn mark(&self, target: u64) -> Option<String> {
        Some(format!(":following:e{target}"))
    }

    fn entities(&self) -> u64 {
        let yes = |edge: &&AtomicU64| edge.load(Ordering::SeqCst) == 2;
        self.edges.iter().filter(yes).count() as u64
    }
}
