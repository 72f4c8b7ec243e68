//! What a person watches a server with: SLOWLOG, LATENCY, MEMORY, MONITOR, and MODULE.

use bytes::Bytes;

use crate::{
    compat::versions::VALKEY,
    context::{Ctx, Origin},
    error::{CommandResult, SYNTAX, Stop},
    memory,
    number::{int_arg, parse_int},
    registry::{self, Spec, flag::*, printable},
    reply::Reply,
    stats::{process, slowlog::SlowLog},
};

use super::{
    client,
    help::help,
    info::{MemoryFigures, human, percent, ratio},
};

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const OPERATE: u32 = ADMIN | NOSCRIPT | LOADING | STALE;
const LOOK: u32 = ADMIN | LOADING | STALE;
const HELP: u32 = LOADING | STALE;

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::container("memory", -2, 0, MEMORY_COMMANDS),
    Spec::container("slowlog", -2, 0, SLOWLOG_COMMANDS),
    Spec::container("commandlog", -2, 0, COMMANDLOG_COMMANDS).only(VALKEY),
    Spec::container("latency", -2, 0, LATENCY_COMMANDS),
    Spec::container("module", -2, 0, MODULE_COMMANDS),
    Spec::new("monitor", 1, OPERATE, NO_KEYS, monitor),
];

static MEMORY_COMMANDS: &[Spec] = &[
    Spec::sub(
        "usage",
        "memory|usage",
        -3,
        READONLY,
        (2, 2, 1),
        memory_usage,
    ),
    Spec::sub("doctor", "memory|doctor", 2, 0, NO_KEYS, memory_doctor),
    Spec::sub("purge", "memory|purge", 2, 0, NO_KEYS, memory_purge),
    Spec::sub("stats", "memory|stats", 2, 0, NO_KEYS, memory_stats),
    Spec::sub(
        "malloc-stats",
        "memory|malloc-stats",
        2,
        0,
        NO_KEYS,
        malloc_stats,
    ),
    Spec::sub("help", "memory|help", 2, HELP, NO_KEYS, help),
];

static SLOWLOG_COMMANDS: &[Spec] = &[
    Spec::sub("get", "slowlog|get", -2, LOOK, NO_KEYS, slowlog_get),
    Spec::sub("len", "slowlog|len", 2, LOOK, NO_KEYS, slowlog_len),
    Spec::sub("reset", "slowlog|reset", 2, LOOK, NO_KEYS, slowlog_reset),
    Spec::sub("help", "slowlog|help", 2, HELP, NO_KEYS, help),
];

static COMMANDLOG_COMMANDS: &[Spec] = &[
    Spec::sub("get", "commandlog|get", 4, LOOK, NO_KEYS, commandlog_get).only(VALKEY),
    Spec::sub("len", "commandlog|len", 3, LOOK, NO_KEYS, commandlog_len).only(VALKEY),
    Spec::sub(
        "reset",
        "commandlog|reset",
        3,
        LOOK,
        NO_KEYS,
        commandlog_reset,
    )
    .only(VALKEY),
    Spec::sub("help", "commandlog|help", 2, HELP, NO_KEYS, help).only(VALKEY),
];

static LATENCY_COMMANDS: &[Spec] = &[
    Spec::sub("latest", "latency|latest", 2, OPERATE, NO_KEYS, latest),
    Spec::sub("history", "latency|history", 3, OPERATE, NO_KEYS, history),
    Spec::sub(
        "reset",
        "latency|reset",
        -2,
        OPERATE,
        NO_KEYS,
        latency_reset,
    ),
    Spec::sub("graph", "latency|graph", 3, OPERATE, NO_KEYS, graph),
    Spec::sub(
        "doctor",
        "latency|doctor",
        2,
        OPERATE,
        NO_KEYS,
        latency_doctor,
    ),
    Spec::sub(
        "histogram",
        "latency|histogram",
        -2,
        OPERATE,
        NO_KEYS,
        histogram,
    ),
    Spec::sub("help", "latency|help", 2, HELP, NO_KEYS, help),
];

static MODULE_COMMANDS: &[Spec] = &[
    Spec::sub(
        "list",
        "module|list",
        2,
        ADMIN | NOSCRIPT,
        NO_KEYS,
        module_list,
    ),
    Spec::sub("help", "module|help", 2, HELP, NO_KEYS, help),
];

fn text(text: impl Into<Bytes>) -> CommandResult {
    Ok(Reply::Verbatim {
        format: *b"txt",
        text: text.into(),
    })
}

/// There are none.
fn module_list(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::empty())
}

fn monitor(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    if cx.origin != Origin::Client {
        return Err("ERR MONITOR isn't allowed for DENY BLOCKING client".into());
    }
    let profile = client::profile(cx);
    cx.client.monitors = true;
    cx.state.monitors.insert(profile.id, profile);
    Ok(Reply::OK)
}

// ---- SLOWLOG ----

fn slowlog_get(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let count = match &args[2..] {
        [] => 10,
        [count] => match parse_int(count) {
            Some(-1) => usize::MAX,
            Some(count) if count >= 0 => count as usize,
            _ => return Err("ERR count should be greater than or equal to -1".into()),
        },
        _ => return Err("ERR wrong number of arguments for 'slowlog|get' command".into()),
    };
    Ok(newest(&cx.state.slowlog, count))
}

fn newest(log: &SlowLog, count: usize) -> Reply {
    let entries = log.entries.iter().take(count).map(|entry| {
        Reply::Array(vec![
            Reply::Int(entry.id as i64),
            Reply::Int(entry.time),
            Reply::Int(entry.size as i64),
            Reply::Array(entry.args.iter().cloned().map(Reply::Bulk).collect()),
            Reply::bulk(&entry.addr),
            Reply::Bulk(entry.name.clone()),
        ])
    });
    Reply::Array(entries.collect())
}

fn slowlog_len(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(cx.state.slowlog.entries.len().into())
}

fn slowlog_reset(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    cx.state.slowlog.entries.clear();
    Ok(Reply::OK)
}

// ---- COMMANDLOG ----

fn log_of<'a>(cx: &'a mut Ctx<'_>, kind: &[u8]) -> Result<&'a mut SlowLog, Stop> {
    match kind.to_ascii_lowercase().as_slice() {
        b"slow" => Ok(&mut cx.state.slowlog),
        b"large-request" => Ok(&mut cx.state.large_requests),
        b"large-reply" => Ok(&mut cx.state.large_replies),
        _ => {
            Err("ERR type should be one of the following: slow, large-request, large-reply".into())
        }
    }
}

fn commandlog_get(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let count = match parse_int(&args[2]) {
        Some(-1) => usize::MAX,
        Some(count) if count >= 0 => count as usize,
        _ => return Err("ERR count should be greater than or equal to -1".into()),
    };
    Ok(newest(log_of(cx, &args[3])?, count))
}

fn commandlog_len(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(log_of(cx, &args[2])?.entries.len().into())
}

fn commandlog_reset(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    log_of(cx, &args[2])?.entries.clear();
    Ok(Reply::OK)
}

// ---- LATENCY ----

fn latest(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let events = cx.state.latency.events.iter().map(|(event, series)| {
        let (time, millis) = series.samples.back().copied().unwrap_or_default();
        Reply::Array(vec![
            Reply::bulk(event),
            Reply::Int(time),
            Reply::Int(millis as i64),
            Reply::Int(series.worst as i64),
        ])
    });
    Ok(Reply::Array(events.collect()))
}

fn history(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let name = String::from_utf8_lossy(&args[2]);
    let series = cx.state.latency.events.get(name.as_ref());
    let samples = series.into_iter().flat_map(|series| &series.samples);
    let samples = samples
        .map(|(time, millis)| Reply::Array(vec![Reply::Int(*time), Reply::Int(*millis as i64)]));
    Ok(Reply::Array(samples.collect()))
}

fn latency_reset(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let events = &mut cx.state.latency.events;
    let before = events.len();
    match &args[2..] {
        [] => events.clear(),
        names => events.retain(|event, _| !names.iter().any(|name| name == event.as_bytes())),
    }
    Ok((before - events.len()).into())
}

fn graph(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let name = String::from_utf8_lossy(&args[2]);
    match cx.state.latency.events.get_key_value(name.as_ref()) {
        Some((event, series)) => text(series.graph(event, cx.now_micros / 1_000_000)),
        None => {
            let name = printable(&args[2]);
            Err(format!("ERR No samples available for event '{name}'").into())
        }
    }
}

fn latency_doctor(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let config = &cx.state.config;
    let report = cx
        .state
        .latency
        .doctor(config.latency_threshold, config.slowlog_slower_than);
    text(report)
}

fn histogram(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let wanted = |spec: &Spec| {
        args.len() == 2
            || args[2..].iter().any(|name| {
                // A container stands for its subcommands.
                let container = spec.full_name.split('|').next().unwrap_or_default();
                name.eq_ignore_ascii_case(spec.full_name.as_bytes())
                    || (name.eq_ignore_ascii_case(container.as_bytes())
                        && registry::command(name).is_some())
            })
    };
    let used = cx.state.stats.used();
    let shown = used
        .into_iter()
        .filter(|(spec, usage)| wanted(spec) && usage.latency.total > 0);
    let entry = shown.map(|(spec, usage)| {
        let pairs = usage.latency.doubling().into_iter();
        let pairs = pairs.map(|(micros, calls)| (micros as i64, calls as i64));
        let pairs = pairs.map(|(micros, calls)| (Reply::Int(micros), Reply::Int(calls)));
        let facts = vec![
            (Reply::bulk("calls"), Reply::Int(usage.latency.total as i64)),
            (Reply::bulk("histogram_usec"), Reply::Map(pairs.collect())),
        ];
        (Reply::bulk(spec.full_name), Reply::Map(facts))
    });
    Ok(Reply::Map(entry.collect()))
}

// ---- MEMORY ----

fn memory_usage(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    match &args[3..] {
        [] => {}
        [word, count] if word.eq_ignore_ascii_case(b"SAMPLES") => {
            if int_arg(count)? < 0 {
                return Err(SYNTAX.into());
            }
        }
        _ => return Err(SYNTAX.into()),
    }
    let Some(slot) = cx.peek(&args[2]) else {
        return Ok(Reply::Nil);
    };
    let db = cx.db();
    let size = db.key(slot).heap_size() + db.entry(slot).size();
    Ok(size.into())
}

/// Tables that became sparse are made smaller and Lua's garbage is freed; the allocator gives pages
/// that are empty then back to the system.
fn memory_purge(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    cx.state.scripts.collect();
    for db in &mut cx.state.dbs {
        db.compact_if_sparse();
    }
    let used = memory::used(cx.state);
    memory::give_back(cx.state, used);
    Ok(Reply::OK)
}

fn memory_stats(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let figures = MemoryFigures::of(cx.state);
    let MemoryFigures { used, resident, .. } = figures;
    let int = |number: u64| Reply::Int(number as i64);
    let keys: usize = cx.state.dbs.iter().map(|db| db.len()).sum();
    let beyond = resident.saturating_sub(used);
    let mut pairs: Vec<(Reply, Reply)> = Vec::new();
    let mut add = |name: &str, value: Reply| pairs.push((Reply::bulk(name), value));
    add("peak.allocated", int(figures.peak));
    add("total.allocated", int(used));
    add("startup.allocated", int(figures.startup));
    add("replication.backlog", int(0));
    add("clients.slaves", int(0));
    add("clients.normal", int(figures.clients));
    add("cluster.links", int(0));
    add("aof.buffer", int(figures.aof_buffer));
    add("lua.caches", int(figures.scripts));
    add("functions.caches", int(figures.functions));
    for (number, db) in cx.state.dbs.iter().enumerate() {
        if db.len() > 0 {
            // A table keeps its keys beside their values: there is no other one for deadlines.
            let facts = vec![
                (Reply::bulk("overhead.hashtable.main"), int(0)),
                (Reply::bulk("overhead.hashtable.expires"), int(0)),
                (Reply::bulk("overhead.hashtable.slot-to-keys"), int(0)),
            ];
            add(&format!("db.{number}"), Reply::Map(facts));
        }
    }
    add("overhead.total", int(figures.overhead));
    add("keys.count", int(keys as u64));
    let each = figures.dataset().checked_div(keys as u64).unwrap_or(0);
    add("keys.bytes-per-key", int(each));
    add("dataset.bytes", int(figures.dataset()));
    add(
        "dataset.percentage",
        Reply::Double(figures.dataset_percent()),
    );
    add(
        "peak.percentage",
        Reply::Double(percent(used, figures.peak)),
    );
    add("allocator.allocated", int(used));
    add("allocator.active", int(resident));
    add("allocator.resident", int(resident));
    let fragmentation = figures.fragmentation();
    add(
        "allocator-fragmentation.ratio",
        Reply::Double(fragmentation),
    );
    add("allocator-fragmentation.bytes", int(beyond));
    add("allocator-rss.ratio", Reply::Double(1.0));
    add("allocator-rss.bytes", int(0));
    add("rss-overhead.ratio", Reply::Double(1.0));
    add("rss-overhead.bytes", int(0));
    add("fragmentation", Reply::Double(fragmentation));
    add("fragmentation.bytes", int(beyond));
    Ok(Reply::Map(pairs))
}

fn memory_doctor(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    const LITTLE: u64 = 5 << 20;
    let figures = MemoryFigures::of(cx.state);
    if figures.used < LITTLE {
        return text("There is too little data for a judgement.\n");
    }
    let mut report = String::new();
    if ratio(figures.peak, figures.used) > 1.5 {
        report.push_str(&format!(
            "- The peak was {}, now {} are in use: the process may keep memory that it no longer needs\n",
            human(figures.peak),
            human(figures.used)
        ));
    }
    if figures.fragmentation() > 1.4 {
        report.push_str(&format!(
            "- The process has {} in memory for {} of data\n",
            human(figures.resident),
            human(figures.used)
        ));
    }
    if figures.clients > LITTLE {
        report.push_str(&format!(
            "- {} of messages wait for clients that read slowly\n",
            human(figures.clients)
        ));
    }
    if figures.scripts + figures.functions > LITTLE {
        report.push_str("- Scripts take up much memory: SCRIPT FLUSH drops them\n");
    }
    if report.is_empty() {
        report.push_str("No problem was found.\n");
    }
    text(report)
}

fn malloc_stats(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let resident = process::resident();
    text(format!(
        "The allocator is the system's, which keeps no statistics.\nresident: {resident}\n"
    ))
}
