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

#[derive(Clone)]
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
    pub(crate) stream_node_max_entries: usize,
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
    /// The listener's port; 0 without one.
    pub(crate) port: u16,
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
            stream_node_max_entries: 100,
            proto_max_bulk_len: 512 * 1024 * 1024,
            query_buffer_limit: 1024 * 1024 * 1024,
            maxclients: 10_000,
            timeout: 0,
            script_time_limit: 5000,
            port: 0,
        }
    }
}
