//! What is hot in a pattern, how it spreads over nodes, and what limits it. These are facts of the key layouts; figures are
//! in the table of costs.

/// How the operations of a pattern spread over the slots of a Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spreading {
    /// Each entity has a slot of its own: as even as the traffic of the entities.
    ByEntity,
    /// All operations go to one key: one node carries them.
    OneKey,
    /// By shards, whose number is a setting.
    ByShard,
    /// Independent servers, of which each has every key and carries every operation.
    Everywhere,
}

impl Spreading {
    /// How it spreads, in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::ByEntity => "a slot per entity",
            Self::OneKey => "one key, on one node",
            Self::ByShard => "by shards, a setting",
            Self::Everywhere => "all of it on each of five servers",
        }
    }
}

/// What is hot in a pattern, how it spreads, and what limits it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Character {
    /// The pattern.
    pub pattern: &'static str,
    /// Its hottest key.
    pub hottest: &'static str,
    /// How it is spread over the nodes.
    pub spreading: Spreading,
    /// What limits it first.
    pub limit: &'static str,
    /// Connections beyond the shared ones.
    pub connections: &'static str,
}

macro_rules! characters {
    ($($pattern:literal, $spreading:ident, $hottest:literal, $limit:literal, $connections:literal;)*) => {
        const CHARACTERS: &[Character] = &[$(Character {
            pattern: $pattern,
            hottest: $hottest,
            spreading: Spreading::$spreading,
            limit: $limit,
            connections: $connections,
        }),*];
    };
}

characters! {
    "cache_aside", ByEntity, "the most read row", "CPU of the node with the hottest row; a first level in the process takes it off", "none";
    "stampede_lease", ByEntity, "the row that everybody waits for", "the source: one load per row", "one subscription per process";
    "early_refresh", ByEntity, "the most read row", "CPU of the node with the hottest row", "none";
    "negative_cache", ByEntity, "the row that is most asked for in vain", "memory, if attackers ask for ever new rows", "none";
    "cache_tags", ByEntity, "the version of a tag that most rows have", "CPU of the node with that tag", "none";
    "cache_invalidation", ByEntity, "the invalidation channel", "messages: every invalidation goes to every process", "one subscription per process";
    "write_through", ByEntity, "the most written row", "the database", "none";
    "write_behind", ByShard, "the log of a shard", "the sink's rate; the log grows while it is slower", "one per worker";
    "sorted_view", OneKey, "the sorted list", "SORT of the source: it blocks its server while it runs", "none";
    "fixed_window", ByEntity, "the busiest subject", "CPU of the node of the busiest subject", "none";
    "sliding_window", ByEntity, "the busiest subject", "memory: one entry per admitted call in the window", "none";
    "sliding_counter", ByEntity, "the busiest subject", "CPU of the node of the busiest subject", "none";
    "token_bucket", ByEntity, "the busiest subject", "CPU of the node of the busiest subject", "none";
    "mutex", ByEntity, "the most wanted lock", "the holders' work, not the server", "one subscription per process that waits";
    "fencing", ByEntity, "the most written value", "CPU of its node", "none";
    "redlock", Everywhere, "the lock, on every server", "the slowest of the quorum", "none";
    "fair_lock", ByEntity, "the most wanted lock", "the holders' work; the queue of its waiters", "one subscription per process that waits";
    "rw_lock", ByEntity, "the most wanted lock", "the writers' work", "one subscription per process that waits";
    "semaphore", ByEntity, "the semaphore", "the holders' work", "one subscription per process that waits";
    "leader", OneKey, "the election", "nothing: one renewal per third of a lease", "one subscription per candidate";
    "legacy_lock", ByEntity, "the most wanted lock", "polling of its waiters", "none";
    "circuit_breaker", ByEntity, "the circuit", "nothing: calls are reported in batches", "one subscription per process";
    "stock", ByShard, "the item on sale", "CPU of the node of the item; shards divide it", "none";
    "job_queue", OneKey, "the queue", "CPU of the queue's node; several queues divide it", "one per worker";
    "dead_letter", OneKey, "the queue", "memory: letters stay until they are purged", "one per worker";
    "delayed_jobs", OneKey, "the queue", "memory: jobs wait in the store", "one per worker";
    "priority_queue", OneKey, "the queue", "CPU of the queue's node", "one per waiting consumer";
    "reliable_list", OneKey, "the list", "CPU of the list's node", "one per consumer";
    "ring", OneKey, "the ring", "CPU of the ring's node", "none";
    "notification", OneKey, "the set", "CPU of the set's node", "one per consumer";
    "topic", OneKey, "the channel", "network: every message goes to every listener", "one per process that listens";
    "event_stream", OneKey, "the stream", "memory until it is trimmed; CPU of the stream's node", "one per reading consumer";
    "session", ByEntity, "the busiest session", "memory", "none";
    "trail", ByEntity, "the busiest visitor", "memory", "none";
    "leaderboard", OneKey, "the board", "CPU and memory of the one node that has the board", "none";
    "period_leaderboard", OneKey, "the board of the period", "CPU and memory of the one node that has it", "none";
    "sharded_leaderboard", ByShard, "a shard", "ranks: each asks every shard", "none";
    "weighted_choice", OneKey, "the tree of weights", "CPU of its node", "none";
    "counter", ByEntity, "the busiest counter", "CPU of its node", "none";
    "unique_visitors", ByEntity, "the busiest page", "CPU of the page's node", "none";
    "check_ins", ByEntity, "the busiest user", "memory: one small key per user", "none";
    "activity", OneKey, "the bitmap of the day", "CPU of its node; ids must be dense numbers", "none";
    "array", OneKey, "the array", "CPU of its node", "none";
    "bloom", OneKey, "the filter", "memory and CPU of its node; large filters are partitioned", "none";
    "places", OneKey, "the set of places", "CPU of its node: searches of crowded areas", "none";
    "graph", ByEntity, "the most followed account", "memory: each edge is kept twice; large accounts are sharded", "none";
}

/// What is hot in a pattern, how it spreads, and what limits it.
pub fn character(pattern: &str) -> Option<&'static Character> {
    CHARACTERS
        .iter()
        .find(|character| character.pattern == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_has_a_character() {
        for pattern in crate::all() {
            assert!(character(pattern.name()).is_some(), "{}", pattern.name());
        }
        assert_eq!(CHARACTERS.len(), crate::all().count());
    }
}
