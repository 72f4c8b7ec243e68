//! The anti-patterns of the field: what people write by hand, how it breaks, and what to use instead.

/// One way to get it wrong.
pub(crate) struct AntiPattern {
    /// What people write.
    pub(crate) written: &'static str,
    /// The sequence of events that breaks it.
    pub(crate) breaks: &'static str,
    /// The pattern of the guide that closes the race.
    pub(crate) pattern: &'static str,
}

pub(crate) const ANTI_PATTERNS: &[AntiPattern] = &[
    AntiPattern {
        written: "GET n, compare, INCR n",
        breaks: "two clients read 9 of 10, both pass",
        pattern: "token_bucket",
    },
    AntiPattern {
        written: "INCR n, then EXPIRE n",
        breaks: "a crash between the two leaves a counter without TTL; the user is blocked for ever",
        pattern: "fixed_window",
    },
    AntiPattern {
        written: "ZADD every request, then count",
        breaks: "refused requests are counted too; a client that keeps trying is never admitted again",
        pattern: "sliding_window",
    },
    AntiPattern {
        written: "SETNX lock, later DEL lock",
        breaks: "a slow holder deletes the next holder's lock; two clients hold it at once",
        pattern: "mutex",
    },
    AntiPattern {
        written: "SETNX lock, then EXPIRE lock",
        breaks: "a crash between the two leaves a lock that nobody can take",
        pattern: "mutex",
    },
    AntiPattern {
        written: "INCR fence after the lock was taken",
        breaks: "a holder that was paused gets the higher token and overwrites newer work",
        pattern: "fencing",
    },
    AntiPattern {
        written: "GET, miss, SELECT, SET",
        breaks: "a fill that started before an invalidation stores the old row for a whole TTL",
        pattern: "cache_aside",
    },
    AntiPattern {
        written: "a cache entry that simply expires",
        breaks: "a thousand callers miss at once and load the same row",
        pattern: "stampede_lease",
    },
    AntiPattern {
        written: "UPDATE the row, then DEL the key",
        breaks: "a crash between the two leaves the old value in the cache",
        pattern: "write_through",
    },
    AntiPattern {
        written: "KEYS product:* and DEL",
        breaks: "the server is blocked while it scans; keys written meanwhile survive",
        pattern: "cache_tags",
    },
    AntiPattern {
        written: "LPUSH and BRPOP as a queue",
        breaks: "if the worker is killed, its job is lost",
        pattern: "job_queue",
    },
    AntiPattern {
        written: "XADD MAXLEN",
        breaks: "trims entries that a group has not read",
        pattern: "event_stream",
    },
    AntiPattern {
        written: "XACK without checking the owner",
        breaks: "a worker that lost its lease acknowledges the job of another; if that one dies, the job is lost",
        pattern: "job_queue",
    },
    AntiPattern {
        written: "PUBLISH for work that must happen",
        breaks: "a subscriber that was reconnecting never receives it",
        pattern: "notification",
    },
    AntiPattern {
        written: "HSET on a session",
        breaks: "a request that overlaps a logout creates the session again, without a TTL",
        pattern: "session",
    },
    AntiPattern {
        written: "a session as one JSON string",
        breaks: "two requests rewrite it whole; one change is lost",
        pattern: "session",
    },
    AntiPattern {
        written: "DECR stock",
        breaks: "a repeated request buys twice; a cancelled one never returns its unit",
        pattern: "stock",
    },
    AntiPattern {
        written: "SETNX on a request id",
        breaks: "a crash leaves the id taken; a short TTL lets the payment run twice",
        pattern: "idempotency",
    },
    AntiPattern {
        written: "GETSET counter 0",
        breaks: "a crash before the sum is stored loses it",
        pattern: "counter",
    },
    AntiPattern {
        written: "one string per player, sorted by the client",
        breaks: "every rank reads all players",
        pattern: "leaderboard",
    },
    AntiPattern {
        written: "a set of ids to count visitors",
        breaks: "memory grows with every visitor; a HyperLogLog needs 12 KB",
        pattern: "unique_visitors",
    },
    AntiPattern {
        written: "SADD following, SADD followers",
        breaks: "a crash between the two leaves half of a relation",
        pattern: "graph",
    },
    AntiPattern {
        written: "the client's clock in a key's expiry",
        breaks: "a client 10 s behind writes keys that are already expired, or limits nobody",
        pattern: "token_bucket",
    },
];
