//! The settings: what CONFIG SET and a configuration file can change.
//!
//! [`Config`] has a field for each setting that the engine acts on. All others are remembered as
//! text and given back. `config/table.rs` lists them all under Redis's names.

mod file;
mod parameter;
mod table;
mod words;

use std::{borrow::Cow, collections::BTreeMap, path::PathBuf, sync::Arc};

use bytes::Bytes;

pub use file::{Settings, SettingsError};
pub(crate) use file::{quote, rewrite};
pub(crate) use parameter::{Found, memory};
pub(crate) use table::{find, names, policy_name};
pub(crate) use words::percentile_text;

use crate::engine::Fsync;

use crate::compat::Compat;

/// What happens when `maxmemory` is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// Writes that need memory are refused.
    #[default]
    NoEviction,
    /// Keys that were not used for long are dropped.
    AllKeysLru,
    /// Keys that are rarely used are dropped.
    AllKeysLfu,
    /// Any keys are dropped.
    AllKeysRandom,
    /// Keys with a deadline that were not used for long are dropped.
    VolatileLru,
    /// Keys with a deadline that are rarely used are dropped.
    VolatileLfu,
    /// Any keys with a deadline are dropped.
    VolatileRandom,
    /// The keys whose deadline is nearest are dropped.
    VolatileTtl,
}

/// How much may wait for a client of one class before it is disconnected; 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutputLimit {
    /// In bytes, at any time.
    pub(crate) hard: u64,
    /// In bytes, for no longer than `seconds`.
    pub(crate) soft: u64,
    pub(crate) seconds: u64,
}

const fn limit(hard: u64, soft: u64, seconds: u64) -> OutputLimit {
    OutputLimit {
        hard,
        soft,
        seconds,
    }
}

/// The places of the classes in [`Config::output_limits`].
pub(crate) const OUTPUT_CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

#[derive(Clone)]
pub(crate) struct Config {
    /// Whose commands there are; does not change.
    pub(crate) compat: Compat,
    pub(crate) cluster_strict: bool,
    pub(crate) password: Option<String>,
    pub(crate) databases: usize,
    /// In bytes; 0 is no limit.
    pub(crate) maxmemory: u64,
    pub(crate) policy: MemoryPolicy,
    /// How many keys of each database are drawn to find one to evict.
    pub(crate) maxmemory_samples: usize,
    /// How slowly the count of a key's uses rises.
    pub(crate) lfu_log_factor: u32,
    /// After how many minutes it falls by one; 0 is never.
    pub(crate) lfu_decay_time: u32,
    /// How much is evicted at once, from 0 to 100.
    pub(crate) eviction_tenacity: usize,
    /// A union of [`crate::notify::class`] bits.
    pub(crate) notify: u32,
    pub(crate) hash_max_listpack_entries: usize,
    pub(crate) hash_max_listpack_value: usize,
    pub(crate) set_max_intset_entries: usize,
    pub(crate) zset_max_listpack_entries: usize,
    pub(crate) zset_max_listpack_value: usize,
    pub(crate) stream_node_max_entries: usize,
    /// The longest HyperLogLog that is kept as runs.
    pub(crate) hll_sparse_max_bytes: usize,
    /// Whether long strings are compressed in RDB files and by DUMP.
    pub(crate) rdb_compression: bool,
    /// Whether writes are refused after `save` says that a file is due, and it cannot be written.
    pub(crate) stop_writes_unsaved: bool,
    /// The longest string, in bytes.
    pub(crate) proto_max_bulk_len: usize,
    /// How many bytes of a client's commands may wait to be executed.
    pub(crate) query_buffer_limit: usize,
    /// How many clients a listener serves.
    pub(crate) maxclients: usize,
    /// After how many idle seconds a listener closes a connection; 0 is never.
    pub(crate) timeout: u64,
    /// After how many milliseconds a script counts as slow.
    pub(crate) script_time_limit: u64,
    /// Without a password for the default user, other machines may not connect.
    pub(crate) protected_mode: bool,
    /// It is a cluster of one node.
    pub(crate) cluster: bool,
    /// Where the users are kept.
    pub(crate) acl_file: Option<PathBuf>,
    /// Users that the configuration names, with their rules.
    pub(crate) users: Vec<(Bytes, Vec<Bytes>)>,
    /// Some of them are named by a file that the configuration file includes.
    pub(crate) users_included: bool,
    /// New users may use all channels.
    pub(crate) acl_all_channels: bool,
    /// How many entries ACL LOG keeps.
    pub(crate) acllog_max_len: usize,
    /// The listener's port; 0 without one.
    pub(crate) port: u16,
    /// Commands that take at least this many microseconds are kept by SLOWLOG; negative is never.
    pub(crate) slowlog_slower_than: i64,
    pub(crate) slowlog_max_len: usize,
    /// Requests and replies of at least this many bytes are kept by COMMANDLOG; negative is never.
    pub(crate) large_request: i64,
    pub(crate) large_requests_max_len: usize,
    pub(crate) large_reply: i64,
    pub(crate) large_replies_max_len: usize,
    /// Events that take at least this many milliseconds are kept by LATENCY; 0 is never.
    pub(crate) latency_threshold: u64,
    /// Whether INFO latencystats and LATENCY HISTOGRAM count.
    pub(crate) latency_tracking: bool,
    /// Which percentiles INFO latencystats shows.
    pub(crate) percentiles: Cow<'static, [f64]>,
    /// Whether the log is written.
    pub(crate) append_only: bool,
    pub(crate) fsync: Fsync,
    /// The log is rewritten when it has grown by this many percent of its base; 0 is never.
    pub(crate) rewrite_percentage: u64,
    /// A log that is shorter than this is never reason to rewrite.
    pub(crate) rewrite_from: u64,
    /// Where the log lies.
    pub(crate) dir: Option<PathBuf>,
    /// How many keys are remembered for client-side caching; 0 is no limit.
    pub(crate) tracking_max_keys: usize,
    /// By [`OUTPUT_CLASSES`].
    pub(crate) output_limits: [OutputLimit; 3],
    /// Settings without an effect here that differ from Redis's default, by name.
    pub(crate) remembered: BTreeMap<&'static str, Bytes>,
    /// Gives free memory back to the system.
    pub(crate) give_back: Option<fn()>,
    /// Where CONFIG REWRITE writes to.
    pub(crate) file: Option<Arc<PathBuf>>,
}

impl Config {
    /// Whether the slow log or the latency monitor may want to know of a command that took so long.
    #[inline]
    pub(crate) fn is_long(&self, nanos: u64) -> bool {
        let slow = u64::try_from(self.slowlog_slower_than);
        slow.is_ok_and(|micros| nanos >= micros.saturating_mul(1000))
            || self.latency_threshold > 0
                && nanos >= self.latency_threshold.saturating_mul(1_000_000)
    }

    /// Whether keys of different slots are refused.
    pub(crate) fn checks_slots(&self) -> bool {
        self.cluster_strict || self.cluster
    }
}

impl Default for Config {
    /// Allocates nothing: a script's call makes one.
    fn default() -> Config {
        Config {
            compat: Compat::default(),
            cluster_strict: false,
            password: None,
            databases: 16,
            maxmemory: 0,
            policy: MemoryPolicy::NoEviction,
            maxmemory_samples: 5,
            lfu_log_factor: 10,
            lfu_decay_time: 1,
            eviction_tenacity: 10,
            notify: 0,
            hash_max_listpack_entries: 512,
            hash_max_listpack_value: 64,
            set_max_intset_entries: 512,
            zset_max_listpack_entries: 128,
            zset_max_listpack_value: 64,
            stream_node_max_entries: 100,
            hll_sparse_max_bytes: 3000,
            rdb_compression: true,
            stop_writes_unsaved: true,
            proto_max_bulk_len: 512 * 1024 * 1024,
            query_buffer_limit: 1024 * 1024 * 1024,
            maxclients: 10_000,
            timeout: 0,
            script_time_limit: 5000,
            protected_mode: true,
            cluster: false,
            acl_file: None,
            users: Vec::new(),
            users_included: false,
            acl_all_channels: false,
            acllog_max_len: 128,
            port: 0,
            slowlog_slower_than: 10_000,
            slowlog_max_len: 128,
            large_request: 1 << 20,
            large_requests_max_len: 128,
            large_reply: 1 << 20,
            large_replies_max_len: 128,
            latency_threshold: 0,
            latency_tracking: true,
            percentiles: Cow::Borrowed(&[50.0, 99.0, 99.9]),
            append_only: false,
            fsync: Fsync::EverySec,
            rewrite_percentage: 100,
            rewrite_from: 64 * 1024 * 1024,
            dir: None,
            tracking_max_keys: 1_000_000,
            output_limits: [
                limit(0, 0, 0),
                limit(256 << 20, 64 << 20, 60),
                limit(32 << 20, 8 << 20, 60),
            ],
            remembered: BTreeMap::new(),
            give_back: None,
            file: None,
        }
    }
}

impl Config {
    /// The folder that relative names start from.
    pub(crate) fn dir(&self) -> PathBuf {
        match &self.dir {
            Some(dir) => dir.clone(),
            None => std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
        }
    }
}
