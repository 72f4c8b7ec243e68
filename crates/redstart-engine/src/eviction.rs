//! Which key goes when there is too little memory: Redis's eight policies, by sampling.
//!
//! As in Redis, a few keys of each database are drawn (`maxmemory-samples`) and compared with the best
//! candidates of earlier draws; the best one goes. Policies for keys with a deadline draw from the
//! table of deadlines, so they work as well where few keys have one.

use bytes::Bytes;

use crate::{
    client::Client,
    config::{Config, MemoryPolicy},
    context::{Ctx, Origin},
    engine::State,
    free,
    keyspace::{Db, Entry},
    memory,
    notify::class,
    random::Random,
    reply::Protocol,
    types::{blob::Blob, dict::Slot},
};

/// How many candidates are kept from draw to draw.
const POOL: usize = 16;
/// The frequency that a new key begins with, so that it is not the first to go.
const NEW: u32 = 5;

/// Keys that are worth evicting, best last.
#[derive(Default)]
pub(crate) struct Pool(Vec<Candidate>);

struct Candidate {
    score: u64,
    db: usize,
    key: Blob,
}

impl MemoryPolicy {
    /// The policy of this name in Redis's configuration.
    pub(crate) fn named(name: &[u8]) -> Option<MemoryPolicy> {
        MemoryPolicy::ALL
            .into_iter()
            .find(|policy| policy.name().as_bytes() == name)
    }

    const ALL: [MemoryPolicy; 8] = [
        MemoryPolicy::NoEviction,
        MemoryPolicy::AllKeysLru,
        MemoryPolicy::AllKeysLfu,
        MemoryPolicy::AllKeysRandom,
        MemoryPolicy::VolatileLru,
        MemoryPolicy::VolatileLfu,
        MemoryPolicy::VolatileRandom,
        MemoryPolicy::VolatileTtl,
    ];

    /// The name in Redis's configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            MemoryPolicy::NoEviction => "noeviction",
            MemoryPolicy::AllKeysLru => "allkeys-lru",
            MemoryPolicy::AllKeysLfu => "allkeys-lfu",
            MemoryPolicy::AllKeysRandom => "allkeys-random",
            MemoryPolicy::VolatileLru => "volatile-lru",
            MemoryPolicy::VolatileLfu => "volatile-lfu",
            MemoryPolicy::VolatileRandom => "volatile-random",
            MemoryPolicy::VolatileTtl => "volatile-ttl",
        }
    }

    /// Whether keys are judged by how often they are used.
    #[inline]
    pub(crate) fn counts_uses(self) -> bool {
        matches!(self, MemoryPolicy::AllKeysLfu | MemoryPolicy::VolatileLfu)
    }

    fn spares_lasting_keys(self) -> bool {
        matches!(
            self,
            MemoryPolicy::VolatileLru
                | MemoryPolicy::VolatileLfu
                | MemoryPolicy::VolatileRandom
                | MemoryPolicy::VolatileTtl
        )
    }

    fn is_random(self) -> bool {
        matches!(
            self,
            MemoryPolicy::AllKeysRandom | MemoryPolicy::VolatileRandom
        )
    }
}

// ---- how often a key is used: minutes of the last decay above, a logarithmic counter below ----

fn minutes(now_secs: u32) -> u32 {
    (now_secs / 60) & 0xFFFF
}

/// What a new key's mark of use is.
pub(crate) fn first_use(config: &Config, now_secs: u32) -> u32 {
    if config.policy.counts_uses() {
        minutes(now_secs) << 8 | NEW
    } else {
        now_secs
    }
}

/// The mark of a key that was used so often.
pub(crate) fn used_so_often(frequency: u32, now_secs: u32) -> u32 {
    minutes(now_secs) << 8 | frequency.min(255)
}

/// The counter as it is by now: it falls by one in `lfu-decay-time` minutes.
pub(crate) fn frequency(used: u32, config: &Config, now_secs: u32) -> u32 {
    let passed = minutes(now_secs).wrapping_sub(used >> 8) & 0xFFFF;
    let periods = passed.checked_div(config.lfu_decay_time).unwrap_or(0);
    (used & 0xFF).saturating_sub(periods)
}

/// The mark of a key whose uses are counted after one more: the higher the counter, the less likely it
/// rises.
pub(crate) fn next_use(used: u32, config: &Config, now_secs: u32, random: &mut Random) -> u32 {
    let counter = frequency(used, config, now_secs);
    let above = u64::from(counter.saturating_sub(NEW));
    let chance = above * u64::from(config.lfu_log_factor) + 1;
    let rises = counter < 255 && random.below(chance as usize) == 0;
    minutes(now_secs) << 8 | (counter + u32::from(rises))
}

/// For how many seconds a key was not used.
pub(crate) fn idle(entry: &Entry, now_secs: u32) -> u32 {
    now_secs.saturating_sub(entry.used)
}

// ---- eviction ----

/// Drops keys until the data fits, if the policy allows it. False if it cannot: no key may go.
///
/// The work of one call is limited as `maxmemory-eviction-tenacity` says. What is left is done by the
/// next calls, and commands are not refused meanwhile.
pub(crate) fn make_room(state: &mut State, now_micros: i64) -> bool {
    let most = most_at_once(&state.config);
    let mut evicted = 0;
    state.evicting = false;
    while memory::used(state) > state.config.maxmemory {
        if evicted == most {
            state.evicting = true;
            return true;
        }
        evicted += 1;
        let policy = state.config.policy;
        let victim = match policy {
            MemoryPolicy::NoEviction => None,
            _ if policy.is_random() => any(state, policy),
            _ => best(state, policy, (now_micros / 1_000_000) as u32),
        };
        let Some((db, key)) = victim else {
            return false;
        };
        evict(state, db, &key, now_micros);
    }
    true
}

/// Goes on with what [`make_room`] left, while no command does.
pub(crate) fn make_more_room(state: &mut State, now_micros: i64) {
    /// This many keys take a few milliseconds.
    const ROUNDS: usize = 8;
    for _ in 0..ROUNDS {
        if state.evicting && state.config.maxmemory > 0 && state.replica.is_none() {
            make_room(state, now_micros);
        }
    }
}

/// How many keys one command evicts. Redis counts microseconds: about as many.
fn most_at_once(config: &Config) -> usize {
    match config.eviction_tenacity {
        few @ 0..=10 => 50 * few.max(1),
        many @ 11..100 => (500.0 * 1.15_f64.powi(many as i32 - 10)) as usize,
        100.. => usize::MAX,
    }
}

/// A key of one database after the other.
fn any(state: &mut State, policy: MemoryPolicy) -> Option<(usize, Blob)> {
    let count = state.dbs.len();
    let start = state.random.below(count.max(1));
    (0..count).find_map(|at| {
        let number = (start + at) % count;
        let db = &state.dbs[number];
        let slot = draw(db, policy, &mut state.random)?;
        Some((number, db.key(slot).clone()))
    })
}

fn draw(db: &Db, policy: MemoryPolicy, random: &mut Random) -> Option<Slot> {
    if policy.spares_lasting_keys() {
        db.random_volatile(random)
    } else {
        db.random(random)
    }
}

/// The best candidate of the pool, after more were drawn.
fn best(state: &mut State, policy: MemoryPolicy, now_secs: u32) -> Option<(usize, Blob)> {
    // A candidate may be gone, or without a deadline by now.
    for _ in 0..2 {
        fill(state, policy, now_secs);
        while let Some(candidate) = state.pool.0.pop() {
            let db = &state.dbs[candidate.db];
            let fits = db
                .find(&candidate.key)
                .is_some_and(|slot| !policy.spares_lasting_keys() || db.entry(slot).is_volatile());
            if fits {
                return Some((candidate.db, candidate.key));
            }
        }
    }
    None
}

fn fill(state: &mut State, policy: MemoryPolicy, now_secs: u32) {
    for number in 0..state.dbs.len() {
        let db = &state.dbs[number];
        for _ in 0..state.config.maxmemory_samples {
            let Some(slot) = draw(db, policy, &mut state.random) else {
                break;
            };
            let entry = db.entry(slot);
            let score = if policy == MemoryPolicy::VolatileTtl {
                u64::MAX - entry.deadline as u64
            } else if policy.counts_uses() {
                u64::from(255 - frequency(entry.used, &state.config, now_secs))
            } else {
                u64::from(idle(entry, now_secs))
            };
            state.pool.offer(score, number, db.key(slot));
        }
    }
}

impl Pool {
    /// Keeps a candidate if it is better than the worst of a full pool.
    fn offer(&mut self, score: u64, db: usize, key: &Blob) {
        if self.0.len() == POOL && self.0.first().is_some_and(|worst| worst.score >= score) {
            return;
        }
        let known = |one: &Candidate| one.db == db && one.key == *key;
        if let Some(at) = self.0.iter().position(known) {
            self.0.remove(at);
        }
        let at = self.0.partition_point(|one| one.score < score);
        let key = key.clone();
        self.0.insert(at, Candidate { score, db, key });
        if self.0.len() > POOL {
            self.0.remove(0);
        }
    }

    /// Forgets all candidates: another policy judges differently.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

fn evict(state: &mut State, db: usize, key: &Blob, now_micros: i64) {
    let mut client = Client::internal(0, db, Protocol::Resp2);
    let mut cx = Ctx::new(state, &mut client, now_micros, Origin::Engine);
    let Some(entry) = cx.db().remove(key) else {
        return;
    };
    free::later(entry.value.elements(), entry.value);
    cx.state.stats.evicted += 1;
    cx.signal_ready(key);
    cx.notify(class::EVICTED, "evicted", key);
    cx.modified(key);
    let args = vec![Bytes::from_static(b"DEL"), key.to_bytes()];
    cx.state.effects.record_aside(db, args);
    cx.state.effects.flush();
}
