//! INFO: every field that Redis 7.0 has, by name and section.
//!
//! What does not exist here (forks, defragmentation) is zero, as on a server that
//! does not use it. The allocator is the system's, so its figures are those of the process.

use std::{fmt::Display, fmt::Write as _, sync::atomic::Ordering};

use bytes::Bytes;

use crate::{
    aof::Log,
    compat::versions,
    config::{Config, percentile_text, policy_name},
    context::Ctx,
    engine::State,
    error::CommandResult,
    feed::stream::Stage,
    free, memory,
    pubsub::Kind,
    replica::{Replica, Status},
    reply::Reply,
    stats::process,
};

/// In the order in which they are shown; the second field says whether INFO alone shows them.
const SECTIONS: [(&str, bool); 13] = [
    ("Server", true),
    ("Clients", true),
    ("Memory", true),
    ("Persistence", true),
    ("Stats", true),
    ("Replication", true),
    ("CPU", true),
    ("Modules", true),
    ("Commandstats", false),
    ("Errorstats", true),
    ("Latencystats", false),
    ("Cluster", true),
    ("Keyspace", true),
];

pub(crate) fn info(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let asked = |wanted: &str| {
        args[1..]
            .iter()
            .any(|word| word.eq_ignore_ascii_case(wanted.as_bytes()))
    };
    let all = asked("all") || asked("everything");
    let usual = args.len() == 1 || asked("default");
    let mut page = Page(String::new());
    for (section, shown) in SECTIONS {
        if all || (usual && shown) || asked(section) {
            if !page.0.is_empty() {
                page.0.push_str("\r\n");
            }
            let _ = write!(page.0, "# {section}\r\n");
            write_section(cx, section, &mut page);
        }
    }
    Ok(Reply::Verbatim {
        format: *b"txt",
        text: page.0.into(),
    })
}

/// The text as it grows.
struct Page(String);

impl Page {
    fn line(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.0, "{name}:{value}\r\n");
    }

    fn zeros(&mut self, names: &[&str]) {
        for name in names {
            self.line(name, 0);
        }
    }

    /// The number of bytes, and the same for people.
    fn bytes(&mut self, name: &str, bytes: u64) {
        self.line(name, bytes);
        self.line(&format!("{name}_human"), human(bytes));
    }
}

fn write_section(cx: &mut Ctx<'_>, section: &str, page: &mut Page) {
    let now = cx.now_micros;
    let state = &mut *cx.state;
    match section {
        "Server" => server(state, now, page),
        "Clients" => clients(state, page),
        "Memory" => memory_section(state, page),
        "Persistence" => persistence(state, page),
        "Stats" => stats(state, page),
        "Replication" => replication(state, now, page),
        "CPU" => cpu(page),
        "Commandstats" => {
            for (spec, usage) in state.stats.used() {
                let micros = usage.micros_times_1000 / 1000;
                let each = match usage.calls {
                    0 => 0.0,
                    calls => usage.micros_times_1000 as f64 / 1000.0 / calls as f64,
                };
                let facts = format!(
                    "calls={},usec={micros},usec_per_call={each:.2},rejected_calls={},failed_calls={}",
                    usage.calls, usage.rejected, usage.failed
                );
                page.line(&format!("cmdstat_{}", spec.full_name), facts);
            }
        }
        "Errorstats" => {
            for (kind, count) in &state.stats.kinds {
                page.line(&format!("errorstat_{kind}"), format!("count={count}"));
            }
        }
        "Latencystats" => latencies(state, page),
        "Cluster" => page.line("cluster_enabled", u8::from(state.config.cluster)),
        "Keyspace" => keyspace(state, now / 1000, page),
        _ => {}
    }
}

fn server(state: &State, now: i64, page: &mut Page) {
    let uptime = (now - state.started).max(0) / 1_000_000;
    let hz = state.config.remembered.get("hz");
    let hz = hz.map_or("10".into(), |hz| String::from_utf8_lossy(hz).into_owned());
    let compat = state.config.compat;
    page.line("redis_version", compat.redis_version());
    if compat.is_in(versions::VALKEY) {
        page.line("server_name", compat.server());
        page.line("valkey_version", compat.version());
    }
    page.line("redis_git_sha1", "00000000");
    page.line("redis_git_dirty", 0);
    page.line("redis_build_id", "0000000000000000");
    let mode = match state.config.cluster {
        true => "cluster",
        false => "standalone",
    };
    page.line("redis_mode", mode);
    page.line("os", process::system());
    page.line("arch_bits", usize::BITS);
    page.line("monotonic_clock", "POSIX clock_gettime");
    page.line("multiplexing_api", "epoll");
    page.line("atomicvar_api", "rust");
    // Made by another compiler.
    page.line("gcc_version", "0.0.0");
    page.line("process_id", process::id());
    page.line("process_supervised", "no");
    page.line("run_id", &state.run_id);
    page.line("tcp_port", state.config.port);
    page.line("server_time_usec", now);
    page.line("uptime_in_seconds", uptime);
    page.line("uptime_in_days", uptime / 86_400);
    page.line("hz", &hz);
    page.line("configured_hz", &hz);
    page.line("lru_clock", (now / 1_000_000) & 0xFF_FFFF);
    page.line("executable", process::executable());
    let file = state.config.file.as_ref();
    let file = file.map_or(String::new(), |file| file.display().to_string());
    page.line("config_file", file);
    page.line("io_threads_active", 0);
    page.line("redstart_version", env!("CARGO_PKG_VERSION"));
}

fn clients(state: &State, page: &mut Page) {
    page.line("connected_clients", state.clients.len());
    page.line("cluster_connections", 0);
    page.line("maxclients", state.config.maxclients);
    page.line("client_recent_max_input_buffer", 0);
    page.line("client_recent_max_output_buffer", largest_outbox(state));
    page.line("blocked_clients", state.blocking.len());
    page.line("tracking_clients", state.tracking.clients());
    page.line("clients_in_timeout_table", state.blocking.timed());
}

fn largest_outbox(state: &State) -> usize {
    let waiting = state
        .clients
        .values()
        .map(|profile| profile.outbox.waiting());
    waiting.max().unwrap_or(0)
}

/// The figures that INFO and MEMORY STATS share.
pub(crate) struct MemoryFigures {
    pub(crate) used: u64,
    pub(crate) peak: u64,
    pub(crate) resident: u64,
    pub(crate) startup: u64,
    /// What is not data.
    pub(crate) overhead: u64,
    pub(crate) clients: u64,
    pub(crate) scripts: u64,
    pub(crate) functions: u64,
    pub(crate) aof_buffer: u64,
}

impl MemoryFigures {
    pub(crate) fn of(state: &mut State) -> MemoryFigures {
        memory::measure_buffers(state);
        state.scripts.recount();
        let used = memory::used(state);
        state.stats.peak = state.stats.peak.max(used);
        let (scripts, functions) = state.scripts.memory();
        MemoryFigures {
            used,
            peak: state.stats.peak,
            resident: process::resident(),
            startup: memory::BASE,
            overhead: (memory::BASE + (scripts + functions) as u64 + state.buffered).min(used),
            clients: state.buffered,
            scripts: scripts as u64,
            functions: functions as u64,
            aof_buffer: log_of(state).map_or(0, |log| log.sizes().buffered),
        }
    }

    pub(crate) fn dataset(&self) -> u64 {
        self.used - self.overhead
    }

    pub(crate) fn dataset_percent(&self) -> f64 {
        percent(self.dataset(), self.used.saturating_sub(self.startup))
    }

    pub(crate) fn fragmentation(&self) -> f64 {
        ratio(self.resident, self.used)
    }
}

pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    ratio(part, whole) * 100.0
}

fn log_of(state: &State) -> Option<std::sync::Arc<Log>> {
    state.inner.upgrade().and_then(|inner| inner.log.get())
}

fn memory_section(state: &mut State, page: &mut Page) {
    let figures = MemoryFigures::of(state);
    let MemoryFigures { used, resident, .. } = figures;
    page.bytes("used_memory", used);
    page.bytes("used_memory_rss", resident);
    page.bytes("used_memory_peak", figures.peak);
    let peak = percent(used, figures.peak);
    page.line("used_memory_peak_perc", format!("{peak:.2}%"));
    page.line("used_memory_overhead", figures.overhead);
    page.line("used_memory_startup", figures.startup);
    page.line("used_memory_dataset", figures.dataset());
    let dataset = figures.dataset_percent();
    page.line("used_memory_dataset_perc", format!("{dataset:.2}%"));
    page.line("allocator_allocated", used);
    page.line("allocator_active", resident);
    page.line("allocator_resident", resident);
    page.bytes("total_system_memory", process::machine_memory());
    page.line("used_memory_lua", figures.scripts);
    page.line("used_memory_vm_eval", figures.scripts);
    page.line("used_memory_lua_human", human(figures.scripts));
    page.line("used_memory_scripts_eval", 0);
    page.line("number_of_cached_scripts", state.scripts.cached());
    let libraries = state.scripts.functions.libraries();
    let (mut number, mut functions) = (0, 0);
    for library in libraries {
        number += 1;
        functions += library.functions.len();
    }
    page.line("number_of_functions", functions);
    page.line("number_of_libraries", number);
    page.line("used_memory_vm_functions", figures.functions);
    page.bytes("used_memory_vm_total", figures.scripts + figures.functions);
    page.line("used_memory_functions", 0);
    page.bytes("used_memory_scripts", 0);
    page.bytes("maxmemory", state.config.maxmemory);
    page.line("maxmemory_policy", policy_name(state.config.policy));
    let fragmentation = figures.fragmentation();
    let beyond = resident.saturating_sub(used);
    page.line("allocator_frag_ratio", format!("{fragmentation:.2}"));
    page.line("allocator_frag_bytes", beyond);
    page.line("allocator_rss_ratio", "1.00");
    page.line("allocator_rss_bytes", 0);
    page.line("rss_overhead_ratio", "1.00");
    page.line("rss_overhead_bytes", 0);
    page.line("mem_fragmentation_ratio", format!("{fragmentation:.2}"));
    page.line("mem_fragmentation_bytes", beyond);
    page.line("mem_not_counted_for_evict", figures.aof_buffer);
    let stream = state.feed.stream.as_ref().map(|stream| stream.sizes());
    let held = stream.as_ref().map_or(0, |sizes| sizes.len);
    let backlog = stream.map_or(0, |sizes| sizes.size.min(held));
    page.line("mem_replication_backlog", backlog);
    page.line("mem_total_replication_buffers", held);
    page.line("mem_clients_slaves", 0);
    page.line("mem_clients_normal", figures.clients);
    page.line("mem_cluster_links", 0);
    page.line("mem_aof_buffer", figures.aof_buffer);
    page.line("mem_allocator", "libc");
    page.line("active_defrag_running", 0);
    page.line("lazyfree_pending_objects", free::pending());
    page.line(
        "lazyfreed_objects",
        free::sent().saturating_sub(free::pending()),
    );
}

fn persistence(state: &State, page: &mut Page) {
    let status = |fine: bool| if fine { "ok" } else { "err" };
    page.line("loading", u8::from(state.loading));
    page.line("async_loading", 0);
    page.zeros(&[
        "current_cow_peak",
        "current_cow_size",
        "current_cow_size_age",
    ]);
    page.line("current_fork_perc", "0.00");
    page.zeros(&["current_save_keys_processed", "current_save_keys_total"]);
    // First: a file that is finished while the page is written counts as under way, with the figures from before or after it.
    let saving = state.saves.is_running();
    let unsaved = state.saves.unsaved(state.dirty);
    page.line("rdb_changes_since_last_save", unsaved);
    page.line("rdb_bgsave_in_progress", u8::from(saving));
    page.line("rdb_last_save_time", state.saves.last());
    page.line("rdb_last_bgsave_status", status(state.saves.is_well()));
    page.line("rdb_last_bgsave_time_sec", -1);
    page.line("rdb_current_bgsave_time_sec", -1);
    page.zeros(&[
        "rdb_saves",
        "rdb_last_cow_size",
        "rdb_last_load_keys_expired",
        "rdb_last_load_keys_loaded",
    ]);
    let log = log_of(state);
    let health = log.as_ref().and_then(|_| state.effects.health());
    let rewriting = health.as_ref().is_some_and(|health| health.rewriting);
    let rewritten = health.as_ref().is_none_or(|health| health.rewritten);
    let writable = health.as_ref().is_none_or(|health| health.writable);
    let sizes = log.as_ref().map(|log| log.sizes());
    page.line("aof_enabled", u8::from(log.is_some()));
    page.line("aof_rewrite_in_progress", u8::from(rewriting));
    page.line("aof_rewrite_scheduled", 0);
    page.line("aof_last_rewrite_time_sec", -1);
    page.line("aof_current_rewrite_time_sec", -1);
    page.line("aof_last_bgrewrite_status", status(rewritten));
    page.line("aof_rewrites", sizes.as_ref().map_or(0, |s| s.rewrites));
    page.line("aof_rewrites_consecutive_failures", u8::from(!rewritten));
    page.line("aof_last_write_status", status(writable));
    page.line("aof_last_cow_size", 0);
    page.zeros(&["module_fork_in_progress", "module_fork_last_cow_size"]);
    if let Some(sizes) = sizes {
        page.line("aof_current_size", sizes.base + sizes.increment);
        page.line("aof_base_size", sizes.base);
        page.line("aof_pending_rewrite", 0);
        page.line("aof_buffer_length", sizes.buffered);
        page.zeros(&["aof_pending_bio_fsync", "aof_delayed_fsync"]);
    }
}

fn stats(state: &State, page: &mut Page) {
    let stats = &state.stats;
    let inner = state.inner.upgrade();
    let [ops, input, output] = stats.rates();
    let traffic = |count: fn(&crate::stats::Traffic) -> &std::sync::atomic::AtomicU64| {
        inner
            .as_ref()
            .map_or(0, |inner| count(&inner.traffic).load(Ordering::Relaxed))
    };
    page.line("total_connections_received", stats.connections);
    page.line("total_commands_processed", stats.commands);
    page.line("instantaneous_ops_per_sec", ops.round());
    page.line("total_net_input_bytes", traffic(|t| &t.input));
    page.line("total_net_output_bytes", traffic(|t| &t.output));
    page.zeros(&["total_net_repl_input_bytes", "total_net_repl_output_bytes"]);
    page.line("instantaneous_input_kbps", format!("{:.2}", input / 1024.0));
    page.line(
        "instantaneous_output_kbps",
        format!("{:.2}", output / 1024.0),
    );
    page.line("instantaneous_input_repl_kbps", "0.00");
    page.line("instantaneous_output_repl_kbps", "0.00");
    page.line("rejected_connections", stats.rejected);
    page.line("sync_full", state.feed.full);
    page.line("sync_partial_ok", state.feed.partial);
    page.line("sync_partial_err", state.feed.refused);
    page.line("expired_keys", stats.expired);
    page.line("expired_stale_perc", "0.00");
    page.line("expired_time_cap_reached_count", 0);
    page.line("expire_cycle_cpu_milliseconds", stats.expire_micros / 1000);
    page.line("evicted_keys", stats.evicted);
    page.zeros(&[
        "evicted_clients",
        "total_eviction_exceeded_time",
        "current_eviction_exceeded_time",
    ]);
    page.line("keyspace_hits", stats.hits);
    page.line("keyspace_misses", stats.misses);
    page.line("pubsub_channels", state.pubsub.table(Kind::Channel).len());
    page.line("pubsub_patterns", state.pubsub.table(Kind::Pattern).len());
    page.line(
        "pubsubshard_channels",
        state.pubsub.table(Kind::Shard).len(),
    );
    page.zeros(&[
        "latest_fork_usec",
        "total_forks",
        "migrate_cached_sockets",
        "slave_expires_tracked_keys",
        "active_defrag_hits",
        "active_defrag_misses",
        "active_defrag_key_hits",
        "active_defrag_key_misses",
        "total_active_defrag_time",
        "current_active_defrag_time",
    ]);
    page.line("tracking_total_keys", state.tracking.keys());
    page.line("tracking_total_items", state.tracking.items());
    page.line("tracking_total_prefixes", state.tracking.prefixes());
    page.line("unexpected_error_replies", 0);
    page.line("total_error_replies", stats.errors);
    page.line("dump_payload_sanitizations", 0);
    page.line("total_reads_processed", traffic(|t| &t.reads));
    page.line("total_writes_processed", traffic(|t| &t.writes));
    page.zeros(&[
        "io_threaded_reads_processed",
        "io_threaded_writes_processed",
        "reply_buffer_shrinks",
        "reply_buffer_expands",
    ]);
}

fn replication(state: &State, now_micros: i64, page: &mut Page) {
    let position = state.replica.as_ref().and_then(|of| of.position.as_ref());
    let offset = position.map_or(0, |position| position.offset);
    match &state.replica {
        None => page.line("role", "master"),
        Some(replica) => following(replica, &state.config, now_micros, page),
    }
    replicas(state, now_micros, page);
    page.line("master_failover_state", "no-failover");
    let id = position.map_or(&state.feed.id, |position| &position.id);
    let offset = state
        .feed
        .stream
        .as_ref()
        .map_or(offset, |stream| stream.end());
    page.line("master_replid", id);
    page.line("master_replid2", "0".repeat(40));
    page.line("master_repl_offset", offset);
    page.line("second_repl_offset", -1);
    let sizes = state.feed.stream.as_ref().map(|stream| stream.sizes());
    page.line("repl_backlog_active", u8::from(sizes.is_some()));
    let size = crate::feed::number(&state.config, "repl-backlog-size", 1 << 20);
    page.line("repl_backlog_size", sizes.as_ref().map_or(size, |s| s.size));
    let first = sizes.as_ref().map_or(0, |s| s.first);
    page.line("repl_backlog_first_byte_offset", first);
    page.line("repl_backlog_histlen", sizes.map_or(0, |s| s.len));
}

/// The servers that follow this one.
fn replicas(state: &State, now_micros: i64, page: &mut Page) {
    let replicas = state.feed.replicas();
    page.line("connected_slaves", replicas.len());
    if state.feed.needed > 0 {
        page.line("min_slaves_good_slaves", state.feed.good(now_micros));
    }
    for (number, one) in replicas.iter().enumerate() {
        let (stage, lag) = match one.stage {
            Stage::Copying => ("send_bulk", 0),
            Stage::Online => ("online", (now_micros - one.heard).max(0) / 1_000_000),
        };
        let facts = format!(
            "ip={},port={},state={stage},offset={},lag={lag}",
            one.host, one.port, one.acked
        );
        page.line(&format!("slave{number}"), facts);
    }
}

/// The server that is followed.
fn following(replica: &Replica, config: &Config, now_micros: i64, page: &mut Page) {
    let seconds = |since: i64| (now_micros - since).max(0) / 1_000_000;
    let up = replica.status == Status::Connected;
    let offset = replica.position.as_ref().map_or(0, |at| at.offset);
    page.line("role", "slave");
    page.line("master_host", &replica.master.host);
    page.line("master_port", replica.master.port);
    page.line("master_link_status", if up { "up" } else { "down" });
    if let Some(error) = replica.error() {
        page.line("master_link_error", error.replace(['\r', '\n'], " "));
    }
    let heard = if up { seconds(replica.heard) } else { -1 };
    page.line("master_last_io_seconds_ago", heard);
    let copying = replica.status == Status::Sync;
    page.line("master_sync_in_progress", u8::from(copying));
    page.line("slave_read_repl_offset", offset);
    page.line("slave_repl_offset", offset);
    if !up {
        let down = seconds(replica.down_since);
        page.line("master_link_down_since_seconds", down);
    }
    let setting = |name: &str| config.remembered.get(name);
    let priority = setting("replica-priority").map(|text| String::from_utf8_lossy(text));
    page.line("slave_priority", priority.unwrap_or("100".into()));
    page.line("slave_read_only", 1);
    let announced = setting("replica-announced").is_none_or(|word| word.as_ref() != b"no");
    page.line("replica_announced", u8::from(announced));
}

fn cpu(page: &mut Page) {
    let cpu = process::cpu();
    let mut pair = |suffix: &str, (system, user): (f64, f64)| {
        page.line(&format!("used_cpu_sys{suffix}"), format!("{system:.6}"));
        page.line(&format!("used_cpu_user{suffix}"), format!("{user:.6}"));
    };
    pair("", cpu.process);
    pair("_children", cpu.children);
    pair("_main_thread", cpu.main_thread);
}

fn latencies(state: &State, page: &mut Page) {
    for (spec, usage) in state.stats.used() {
        if usage.latency.total == 0 {
            continue;
        }
        let parts: Vec<String> = state
            .config
            .percentiles
            .iter()
            .map(|percent| {
                let micros = usage.latency.percentile(*percent) as f64 / 1000.0;
                format!("p{}={micros:.3}", percentile_text(*percent))
            })
            .collect();
        let name = format!("latency_percentiles_usec_{}", spec.full_name);
        page.line(&name, parts.join(","));
    }
}

fn keyspace(state: &mut State, now_ms: i64, page: &mut Page) {
    /// How many keys the mean of the deadlines is judged by.
    const FEW: usize = 64;
    for (number, db) in state.dbs.iter().enumerate() {
        if db.len() == 0 {
            continue;
        }
        let (mut sum, mut count) = (0, 0);
        if db.volatile() > 0 {
            for _ in 0..FEW {
                let Some(slot) = db.random(&mut state.random) else {
                    break;
                };
                let deadline = db.entry(slot).deadline;
                if deadline != crate::keyspace::NEVER {
                    sum += (deadline - now_ms).max(0);
                    count += 1;
                }
            }
        }
        let mean = if count > 0 { sum / count } else { 0 };
        let facts = format!("keys={},expires={},avg_ttl={mean}", db.len(), db.volatile());
        page.line(&format!("db{number}"), facts);
    }
}

/// Bytes as INFO writes them for people.
pub(crate) fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "K", "M", "G"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{bytes}B")
            } else {
                format!("{value:.2}{unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.2}T")
}
