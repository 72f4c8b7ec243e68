//! What patterns are in use, by namespace: read from the keys, a part at each look and all of them in time.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redstart::{Store, store::Walk};

use crate::call::OWN_NAMESPACE;

/// Keys that one look reads at most.
const PART: usize = 20_000;
/// How long a look is good for.
const FRESH: Duration = Duration::from_secs(5);

/// Names of one pattern in one namespace that are kept. Locks and sessions have one for each entity.
const NAMES: usize = 1000;
/// Patterns in namespaces that are kept, and names of all of them together.
const PATTERNS: usize = 5000;
const ALL: usize = 50_000;
/// The same for what only looks like a pattern: keys of applications. They take no room from the others.
const LOOKALIKES: usize = 1000;
const OF_LOOKALIKES: usize = 10_000;

/// The patterns of the library, as keys name them. Those of an application are shown too, but only few of them.
const KNOWN: &[&str] = &[
    "account",
    "activity",
    "array",
    "behind",
    "bloom",
    "breaker",
    "cache",
    "cache-index",
    "cache-tag",
    "check_ins",
    "counter",
    "fair",
    "fenced",
    "graph",
    "idempotency",
    "leader",
    "leaderboard",
    "legacy",
    "limiter",
    "list",
    "mutex",
    "notify",
    "places",
    "priority",
    "queue",
    "redlock",
    "ring",
    "rw",
    "semaphore",
    "session",
    "sessions",
    "sharded",
    "stock",
    "stock_shard",
    "stream",
    "topic",
    "topics",
    "tower_session",
    "trail",
    "uniques",
    "view",
    "weighted",
    "windowed",
];

/// Namespace, pattern and name.
type Name = (String, String, String);

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// By namespace, pattern and name: how many of the keys that were read belong to it.
    pub(crate) found: BTreeMap<Name, u64>,
    pub(crate) keys: u64,
    /// Whether there may be more keys than were read so far.
    pub(crate) partial: bool,
    /// Whether there are names of the library's patterns that are not kept, because there are too many.
    pub(crate) cut: bool,
    /// Whether the newest look has failed: a part of the store may be down.
    pub(crate) unread: bool,
    /// Keys that are not of this library's form.
    pub(crate) foreign: u64,
}

impl Inventory {
    pub(crate) fn namespaces(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.found.keys().map(|(name, ..)| name.as_str()).collect();
        names.dedup();
        names
    }

    /// The names of one pattern in one namespace.
    pub(crate) fn names<'a>(
        &'a self,
        namespace: &'a str,
        pattern: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        self.found
            .keys()
            .filter(move |(ns, kind, _)| ns == namespace && kind == pattern)
            .map(|(_, _, name)| name.as_str())
    }

    pub(crate) fn count(&self, namespace: &str, patterns: &[&str]) -> usize {
        let of = |(ns, kind, _): &&Name| ns == namespace && patterns.contains(&kind.as_str());
        self.found.keys().filter(of).count()
    }
}

/// A round over all keys: what was counted in it so far.
#[derive(Debug, Default)]
struct Round {
    found: BTreeMap<Name, u64>,
    known: Kept,
    lookalikes: Kept,
    keys: u64,
    foreign: u64,
}

/// What is kept of one kind of names.
#[derive(Debug, Default)]
struct Kept {
    /// How many names each pattern has in each namespace.
    names: BTreeMap<(String, String), usize>,
    all: usize,
    /// Whether there were more.
    cut: bool,
}

impl Kept {
    /// Whether there is room for another name.
    fn add(&mut self, (namespace, pattern, _): &Name, patterns: usize, all: usize) -> bool {
        let kind = (namespace.clone(), pattern.clone());
        let is_new = !self.names.contains_key(&kind);
        if self.all >= all || is_new && self.names.len() >= patterns {
            self.cut = true;
            return false;
        }
        let names = self.names.entry(kind).or_default();
        if *names >= NAMES {
            self.cut = true;
            return false;
        }
        *names += 1;
        self.all += 1;
        true
    }
}

impl Round {
    fn add(&mut self, key: &[u8]) {
        self.keys += 1;
        match std::str::from_utf8(key).ok().and_then(parse) {
            Some((namespace, ..)) if namespace == OWN_NAMESPACE => {}
            Some((namespace, pattern, name)) => {
                let key = (namespace.to_owned(), pattern.to_owned(), name.to_owned());
                if let Some(count) = self.found.get_mut(&key) {
                    *count += 1;
                    return;
                }
                let has_room = match KNOWN.contains(&pattern) {
                    true => self.known.add(&key, PATTERNS, ALL),
                    false => self.lookalikes.add(&key, LOOKALIKES, OF_LOOKALIKES),
                };
                if has_room {
                    self.found.insert(key, 1);
                }
            }
            None => self.foreign += 1,
        }
    }
}

/// The rounds of a walk that reads a part of the keys at each look.
#[derive(Debug, Default)]
struct Rounds {
    walk: Option<Walk>,
    /// The last whole round.
    last: Option<Round>,
    this: Round,
}

impl Rounds {
    async fn look(&mut self, store: &Store) -> redstart::Result<()> {
        let walk = self.walk.get_or_insert_with(|| store.walk("*"));
        let part = walk.next(PART).await?;
        if part.is_first {
            self.this = Round::default();
        }
        part.keys.iter().for_each(|key| self.this.add(key));
        if part.is_last {
            self.last = Some(std::mem::take(&mut self.this));
        }
        Ok(())
    }

    /// What the last whole round found, and what is new in this one. What is gone is told until the round after it has ended.
    fn inventory(&self) -> Inventory {
        let this = &self.this;
        let Some(last) = &self.last else {
            return Inventory {
                found: this.found.clone(),
                keys: this.keys,
                partial: true,
                cut: this.known.cut,
                unread: false,
                foreign: this.foreign,
            };
        };
        let mut found = last.found.clone();
        for (name, count) in &this.found {
            match found.get_mut(name) {
                Some(known) => *known = (*known).max(*count),
                None => drop(found.insert(name.clone(), *count)),
            }
        }
        Inventory {
            found,
            keys: last.keys.max(this.keys),
            partial: false,
            cut: last.known.cut || this.known.cut,
            unread: false,
            foreign: last.foreign.max(this.foreign),
        }
    }
}

/// The newest look, shared by all pages.
#[derive(Default)]
pub(crate) struct Looks {
    last: Mutex<Option<(Instant, Arc<Inventory>)>>,
    looking: tokio::sync::Mutex<Rounds>,
}

impl Looks {
    /// A look that is fresh, or the newest one that there is. Where a part of the store cannot be read, what is known of it
    /// and the rest is all the more wanted.
    pub(crate) async fn get(&self, store: &Store) -> redstart::Result<Arc<Inventory>> {
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        let mut rounds = match (self.looking.try_lock(), self.newest()) {
            (Ok(rounds), _) => rounds,
            // Another caller looks, which may take as long as a node that hangs.
            (Err(_), Some(newest)) => return Ok(newest),
            // One look serves all that wait for it.
            (Err(_), None) => self.looking.lock().await,
        };
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        let inventory = match rounds.look(store).await {
            Ok(()) => rounds.inventory(),
            Err(error) if self.newest().is_none() && !store.is_cluster() => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "some keys cannot be read");
                Inventory {
                    unread: true,
                    ..rounds.inventory()
                }
            }
        };
        let inventory = Arc::new(inventory);
        // Also one that failed: the next caller must not wait for the same node again.
        *self.last.lock() = Some((Instant::now(), inventory.clone()));
        Ok(inventory)
    }

    /// The newest look, however old; the first one is made.
    pub(crate) async fn any(&self, store: &Store) -> redstart::Result<Arc<Inventory>> {
        match self.newest() {
            Some(newest) => Ok(newest),
            None => self.get(store).await,
        }
    }

    fn newest(&self) -> Option<Arc<Inventory>> {
        let last = self.last.lock();
        last.as_ref().map(|(_, inventory)| inventory.clone())
    }

    fn fresh(&self) -> Option<Arc<Inventory>> {
        let last = self.last.lock();
        let (at, inventory) = last.as_ref()?;
        (at.elapsed() < FRESH).then(|| inventory.clone())
    }
}

/// `shop:cache.product:{42}:lease` is the cache `product` of `shop`; `shop:queue:{mail}:ready` is the queue `mail`.
fn parse(key: &str) -> Option<(&str, &str, &str)> {
    let (head, rest) = key.split_once(":{")?;
    let (entity, _) = rest.split_once('}')?;
    let (namespace, pattern) = head.rsplit_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if namespace.is_empty() || pattern.is_empty() || !pattern.chars().all(plain) {
        return None;
    }
    Some(match pattern.split_once('.') {
        Some((pattern, name)) => (namespace, pattern, name),
        None => (namespace, pattern, entity),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_behind_the_first_part_of_the_keys_are_found_too_and_those_that_are_gone_are_dropped()
     {
        let store = Store::connect("memory://").await.unwrap();
        let mut fill = redstart::redis::cmd("EVAL");
        fill.arg("for i = 1, 50000 do redis.call('SET', 'other:' .. i, 1) end");
        store.query::<()>(fill.arg(0)).await.unwrap();
        let mut queue = redstart::redis::cmd("SET");
        store
            .query::<()>(queue.arg("shop:queue:{mail}:ready").arg(1))
            .await
            .unwrap();
        let mut rounds = Rounds::default();
        let name = || ("shop".to_owned(), "queue".to_owned(), "mail".to_owned());
        while rounds.last.is_none() {
            assert!(rounds.inventory().partial);
            rounds.look(&store).await.unwrap();
        }
        let whole = rounds.inventory();
        assert_eq!((whole.found.get(&name()), whole.partial), (Some(&1), false));
        assert!(whole.keys >= 50_001, "{}", whole.keys);
        // It stays while the next round is under way.
        rounds.look(&store).await.unwrap();
        assert_eq!(rounds.inventory().found.get(&name()), Some(&1));
        let mut gone = redstart::redis::cmd("DEL");
        store
            .query::<()>(gone.arg("shop:queue:{mail}:ready"))
            .await
            .unwrap();
        for _ in 0..20 {
            rounds.look(&store).await.unwrap();
        }
        assert_eq!(rounds.inventory().found.get(&name()), None);
    }

    #[test]
    fn names_take_a_bounded_room() {
        let mut round = Round::default();
        for n in 0..5000 {
            round.add(format!("shop:mutex:{{order:{n}}}").as_bytes());
            round.add(format!("app:user{n}:{{{n}}}:cart").as_bytes());
        }
        assert_eq!(round.keys, 10_000);
        assert!(
            round.found.len() <= NAMES + LOOKALIKES,
            "{}",
            round.found.len()
        );
        assert!(round.known.cut, "names of mutexes are missing");
    }

    #[test]
    fn keys_of_others_hide_no_names_of_patterns() {
        let mut round = Round::default();
        for n in 0..5000 {
            round.add(format!("app:user{n}:{{{n}}}:cart").as_bytes());
        }
        let name = || ("shop".to_owned(), "queue".to_owned(), "mail".to_owned());
        round.add(b"shop:queue:{mail}:ready");
        assert_eq!(round.found.get(&name()), Some(&1));
        // Nor do names without end of what looks like a few patterns.
        let mut round = Round::default();
        for n in 0..2 * ALL {
            round.add(format!("app:kind{}:{{{n}}}:cart", n % 100).as_bytes());
        }
        round.add(b"shop:queue:{mail}:ready");
        assert_eq!(round.found.get(&name()), Some(&1));
        assert!(!round.known.cut && round.lookalikes.cut);
    }

    #[test]
    fn keys_tell_their_pattern_and_name() {
        assert_eq!(
            parse("shop:cache.product:{42}:lease"),
            Some(("shop", "cache", "product"))
        );
        assert_eq!(
            parse("a:b:queue:{mail}:ready"),
            Some(("a:b", "queue", "mail"))
        );
        for foreign in ["x", "bull:mail:1", "{a}", "sess:{a", ":queue:{a}"] {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }
}
