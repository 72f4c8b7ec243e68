//! What CONFIG SET can change and the engine acts on.

/// What happens when `maxmemory` is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// Writes that need memory are refused.
    #[default]
    NoEviction,
    /// Keys that were not used for long are dropped.
    AllKeysLru,
}

pub(crate) struct Config {
    pub(crate) cluster_strict: bool,
    pub(crate) password: Option<String>,
    /// In bytes; 0 is no limit.
    pub(crate) maxmemory: u64,
    pub(crate) policy: MemoryPolicy,
    /// A union of [`crate::notify::class`] bits.
    pub(crate) notify: u32,
    pub(crate) hash_max_listpack_entries: usize,
    pub(crate) hash_max_listpack_value: usize,
    pub(crate) set_max_intset_entries: usize,
    pub(crate) zset_max_listpack_entries: usize,
    pub(crate) zset_max_listpack_value: usize,
    /// The longest string, in bytes.
    pub(crate) proto_max_bulk_len: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cluster_strict: false,
            password: None,
            maxmemory: 0,
            policy: MemoryPolicy::NoEviction,
            notify: 0,
            hash_max_listpack_entries: 512,
            hash_max_listpack_value: 64,
            set_max_intset_entries: 512,
            zset_max_listpack_entries: 128,
            zset_max_listpack_value: 64,
            proto_max_bulk_len: 512 * 1024 * 1024,
        }
    }
}
