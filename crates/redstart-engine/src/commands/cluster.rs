//! CLUSTER: the answers of a cluster of one node that owns all slots, or that there is none.

use bytes::Bytes;
use rand::RngExt as _;

use crate::{
    compat::versions::{FROM_7_2, VALKEY},
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    hash_slot,
    notify::class,
    number::int_arg,
    registry::{Spec, flag::*, printable},
    reply::Reply,
};

const LOOK: u32 = STALE;
const OPERATE: u32 = ADMIN | STALE | NO_ASYNC_LOADING;
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const SLOTS: i64 = 16384;

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("asking", 1, FAST, NO_KEYS, asking),
    Spec::new("readonly", 1, LOADING | STALE | FAST, NO_KEYS, readonly),
    Spec::new("readwrite", 1, LOADING | STALE | FAST, NO_KEYS, readonly),
    Spec::container("cluster", -2, 0, SUBCOMMANDS),
];

/// A subcommand of CLUSTER.
macro_rules! sub {
    ($name:literal, $arity:literal, $flags:expr, $handler:ident) => {
        Spec::sub(
            $name,
            concat!("cluster|", $name),
            $arity,
            $flags,
            NO_KEYS,
            $handler,
        )
    };
}

static SUBCOMMANDS: &[Spec] = &[
    sub!("addslots", -3, OPERATE, busy_slots),
    sub!("addslotsrange", -4, OPERATE, busy_slots),
    sub!("bumpepoch", 2, OPERATE, bumpepoch),
    sub!("count-failure-reports", 3, ADMIN | STALE, no_reports),
    sub!("countkeysinslot", 3, LOOK, countkeysinslot),
    sub!("delslots", -3, OPERATE, refused),
    sub!("delslotsrange", -4, OPERATE, refused),
    sub!("failover", -2, OPERATE, failover),
    sub!("flushslot", -3, OPERATE | WRITE, flushslot).only(VALKEY),
    sub!("flushslots", 2, OPERATE, refused),
    sub!("forget", 3, OPERATE, forget),
    sub!("getkeysinslot", 4, LOOK, getkeysinslot),
    sub!("getslotmigrations", 2, OPERATE, links).only(VALKEY),
    sub!("help", 2, LOADING | STALE, help),
    sub!("info", 2, LOOK, info),
    sub!("keyslot", 3, LOOK, keyslot),
    sub!("links", 2, LOOK, links),
    sub!("meet", -4, OPERATE, refused),
    sub!("myid", 2, LOOK, myid),
    sub!("myshardid", 2, LOOK | LOADING, myshardid).only(FROM_7_2),
    sub!("nodes", 2, LOOK, nodes),
    sub!("replicas", 3, ADMIN | STALE, replicas),
    sub!("replicate", 3, OPERATE, replicate),
    sub!("reset", -2, ADMIN | STALE | NOSCRIPT, reset),
    sub!("saveconfig", 2, OPERATE, saveconfig),
    sub!("set-config-epoch", 3, OPERATE, set_config_epoch),
    sub!("setslot", -4, OPERATE, refused),
    sub!("shards", 2, LOOK, shards),
    sub!("slaves", 3, ADMIN | STALE, replicas),
    sub!("slot-stats", -4, LOOK | LOADING, slot_stats).only(VALKEY),
    sub!("slots", 2, LOOK, slots),
];

/// The names of a node and of its shard: 40 hexadecimal digits each.
#[derive(Default)]
pub(crate) struct Node(String, String);

impl Node {
    pub(crate) fn new() -> Node {
        let mut random = rand::rng();
        let mut name = || {
            let digit = |_| char::from_digit(random.random_range(0..16), 16).unwrap_or('0');
            (0..40).map(digit).collect()
        };
        Node(name(), name())
    }
}

/// Clients learn by this error that a server is no cluster.
fn check(cx: &Ctx<'_>) -> Result<(), Stop> {
    match cx.state.config.cluster {
        true => Ok(()),
        false => Err("ERR This instance has cluster support disabled".into()),
    }
}

/// Slots cannot move: there is no node that they could go to or come from.
fn refused(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    Err("ERR this cluster has one node, which owns all slots and keeps them".into())
}

fn known(cx: &Ctx<'_>, name: &Bytes) -> Result<(), Stop> {
    match cx.state.node.0.as_bytes() == name.as_ref() {
        true => Ok(()),
        false => Err(unknown(name)),
    }
}

fn unknown(name: &[u8]) -> Stop {
    format!("ERR Unknown node {}", printable(name)).into()
}

/// Where the asking client reaches this node.
fn address(cx: &Ctx<'_>) -> (String, i64) {
    let config = &cx.state.config;
    let said = |name: &str| {
        let text = config.remembered.get(name)?;
        Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
    };
    let local = |cx: &Ctx<'_>| {
        let addr = &cx.client.profile.as_ref()?.laddr;
        Some(addr.parse::<std::net::SocketAddr>().ok()?.ip().to_string())
    };
    let ip = said("cluster-announce-ip").or_else(|| local(cx));
    let port = said("cluster-announce-port").and_then(|port| port.parse().ok());
    (
        ip.unwrap_or_else(|| "127.0.0.1".into()),
        port.filter(|&port| port != 0)
            .unwrap_or(i64::from(config.port)),
    )
}

fn slot_arg(arg: &[u8]) -> Result<u16, Stop> {
    match int_arg(arg) {
        Ok(slot) if (0..SLOTS).contains(&slot) => Ok(slot as u16),
        Ok(_) => Err("ERR Invalid slot".into()),
        Err(stop) => Err(stop),
    }
}

fn slots(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    let (ip, port) = address(cx);
    let node = Reply::Array(vec![
        Reply::bulk(ip),
        Reply::Int(port),
        Reply::bulk(&cx.state.node.0),
        Reply::Array(Vec::new()),
    ]);
    let range = vec![Reply::Int(0), Reply::Int(SLOTS - 1), node];
    Ok(Reply::Array(vec![Reply::Array(range)]))
}

fn shards(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    let (ip, port) = address(cx);
    let pair = |key: &'static str, value: Reply| (Reply::bulk(key), value);
    let node = Reply::Map(vec![
        pair("id", Reply::bulk(&cx.state.node.0)),
        pair("port", Reply::Int(port)),
        pair("ip", Reply::bulk(&ip)),
        pair("endpoint", Reply::bulk(&ip)),
        pair("role", Reply::bulk("master")),
        pair("replication-offset", Reply::ZERO),
        pair("health", Reply::bulk("online")),
    ]);
    let range = vec![Reply::Int(0), Reply::Int(SLOTS - 1)];
    Ok(Reply::Array(vec![Reply::Map(vec![
        pair("slots", Reply::Array(range)),
        pair("nodes", Reply::Array(vec![node])),
    ])]))
}

fn text(text: String) -> Reply {
    Reply::Verbatim {
        format: *b"txt",
        text: text.into(),
    }
}

fn nodes(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    let (ip, port) = address(cx);
    let (id, bus) = (&cx.state.node.0, port + 10_000);
    Ok(text(format!(
        "{id} {ip}:{port}@{bus} myself,master - 0 0 1 connected 0-16383\n"
    )))
}

fn info(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    let facts = [
        ("cluster_state", "ok"),
        ("cluster_slots_assigned", "16384"),
        ("cluster_slots_ok", "16384"),
        ("cluster_slots_pfail", "0"),
        ("cluster_slots_fail", "0"),
        ("cluster_known_nodes", "1"),
        ("cluster_size", "1"),
        ("cluster_current_epoch", "1"),
        ("cluster_my_epoch", "1"),
        ("cluster_stats_messages_sent", "0"),
        ("cluster_stats_messages_received", "0"),
        ("total_cluster_links_buffer_limit_exceeded", "0"),
    ];
    let lines = facts.map(|(name, value)| format!("{name}:{value}\r\n"));
    Ok(text(lines.concat()))
}

fn myid(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    Ok(Reply::bulk(&cx.state.node.0))
}

fn myshardid(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    Ok(Reply::bulk(&cx.state.node.1))
}

fn keyslot(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    Ok(Reply::Int(hash_slot::of(&args[2]).into()))
}

/// The keys of a slot. Looks at all keys: slots have no lists of their own here.
fn keys<'a>(cx: &'a mut Ctx<'_>, slot: u16) -> impl Iterator<Item = Bytes> + 'a {
    let found = cx.db().iter().map(|(key, _)| key);
    let found = found.filter(move |key| hash_slot::of(key) == slot);
    found.map(|key| key.to_bytes())
}

fn countkeysinslot(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    let slot = slot_arg(&args[2])?;
    cx.state.effects.depend_on_all();
    let all = cx.db().iter();
    let count = all.filter(|(key, _)| hash_slot::of(key) == slot).count();
    Ok(count.into())
}

fn getkeysinslot(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    let (slot, count) = (int_arg(&args[2])?, int_arg(&args[3])?);
    match (usize::try_from(count), (0..SLOTS).contains(&slot)) {
        (Ok(count), true) => {
            cx.state.effects.depend_on_all();
            let found = keys(cx, slot as u16).take(count).map(Reply::Bulk);
            Ok(Reply::Array(found.collect()))
        }
        _ => Err("ERR Invalid slot or number of keys".into()),
    }
}

/// A slot as the newer commands check it.
fn own_slot(arg: &[u8]) -> Result<u16, Stop> {
    let slot = int_arg(arg).ok().filter(|slot| (0..SLOTS).contains(slot));
    let slot = slot.ok_or(Stop::from("ERR Invalid or out of range slot"))?;
    Ok(slot as u16)
}

/// What the server says to a subcommand with arguments that its arity lets pass.
fn wrong(args: &[Bytes]) -> Stop {
    let name = printable(&args[1]);
    format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try CLUSTER HELP.")
        .into()
}

/// The keys are removed at once, whatever is asked for.
fn flushslot(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    if args.len() > 4 {
        return Err(wrong(args));
    }
    let slot = own_slot(&args[2])?;
    let fine = match &args[3..] {
        [] => true,
        [how] => how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async"),
        _ => false,
    };
    if !fine {
        return Err(SYNTAX.into());
    }
    let found: Vec<Bytes> = keys(cx, slot).collect();
    let mut effect = vec![Bytes::from_static(b"DEL")];
    for key in found {
        if cx.delete(&key) {
            cx.notify(class::GENERIC, "del", &key);
            cx.dirty(1);
            effect.push(key);
        }
    }
    match effect.len() {
        1 => cx.propagate_nothing(),
        _ => cx.propagate(effect),
    }
    Ok(Reply::OK)
}

/// How many keys each slot has: what else Valkey counts, it counts only if it is told to.
fn slot_stats(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    let is = |at: usize, word: &str| {
        args.get(at)
            .is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    };
    cx.state.effects.depend_on_all();
    let mut counts = vec![0i64; SLOTS as usize];
    if is(2, "slotsrange") && args.len() == 5 {
        let (first, last) = (own_slot(&args[3])?, own_slot(&args[4])?);
        if first > last {
            return Err(format!(
                "ERR Start slot number {first} is greater than end slot number {last}"
            )
            .into());
        }
        count_slots(cx, &mut counts);
        return Ok(stats_of(first..=last, &counts));
    }
    if !(is(2, "orderby") && args.len() >= 4) {
        return Err(wrong(args));
    }
    if !is(3, "key-count") {
        return Err("ERR Unrecognized sort metric for ORDERBY.".into());
    }
    let (mut at, mut limit, mut ascending) = (4, None, None);
    while at < args.len() {
        if is(at, "limit") && at + 1 < args.len() && limit.is_none() {
            let count = int_arg(&args[at + 1]).ok();
            let count = count.filter(|count| (1..=SLOTS).contains(count));
            limit = Some(count.ok_or(Stop::from(
                "ERR Limit has to lie in between 1 and 16384 (maximum number of slots).",
            ))?);
            at += 2;
        } else if (is(at, "asc") || is(at, "desc")) && ascending.is_none() {
            ascending = Some(is(at, "asc"));
            at += 1;
        } else if is(at, "asc") || is(at, "desc") || is(at, "limit") && at + 1 < args.len() {
            return Err("ERR Multiple filters of the same type are disallowed.".into());
        } else {
            return Err(SYNTAX.into());
        }
    }
    count_slots(cx, &mut counts);
    let mut order: Vec<u16> = (0..SLOTS as u16).collect();
    let count = |slot: &u16| counts[usize::from(*slot)];
    match ascending {
        Some(true) => order.sort_by_key(count),
        _ => order.sort_by_key(|slot| std::cmp::Reverse(count(slot))),
    }
    order.truncate(limit.unwrap_or(SLOTS) as usize);
    Ok(stats_of(order, &counts))
}

fn count_slots(cx: &mut Ctx<'_>, counts: &mut [i64]) {
    for (key, _) in cx.db().iter() {
        counts[usize::from(hash_slot::of(key))] += 1;
    }
}

fn stats_of(slots: impl IntoIterator<Item = u16>, counts: &[i64]) -> Reply {
    let figures = |slot: u16| {
        let count = Reply::Int(counts[usize::from(slot)]);
        let figures = Reply::Map(vec![(Reply::bulk("key-count"), count)]);
        Reply::Array(vec![Reply::Int(slot.into()), figures])
    };
    Reply::Array(slots.into_iter().map(figures).collect())
}

fn links(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    Ok(Reply::empty())
}

fn no_reports(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    known(cx, &args[2])?;
    Ok(Reply::ZERO)
}

fn replicas(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    known(cx, &args[2])?;
    Ok(Reply::empty())
}

fn replicate(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    known(cx, &args[2])?;
    Err("ERR Can't replicate myself".into())
}

fn forget(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    known(cx, &args[2])?;
    Err("ERR I tried hard but I can't forget myself...".into())
}

fn failover(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    let fine = match &args[2..] {
        [] => true,
        [how] => how.eq_ignore_ascii_case(b"force") || how.eq_ignore_ascii_case(b"takeover"),
        _ => false,
    };
    match fine {
        true => Err("ERR You should send CLUSTER FAILOVER to a replica".into()),
        false => Err(SYNTAX.into()),
    }
}

fn busy_slots(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    let mut first = None;
    for arg in &args[2..] {
        let slot = int_arg(arg).ok().filter(|slot| (0..SLOTS).contains(slot));
        let slot = slot.ok_or(Stop::from("ERR Invalid or out of range slot"))?;
        first.get_or_insert(slot);
    }
    let slot = first.unwrap_or_default();
    Err(format!("ERR Slot {slot} is already busy").into())
}

fn bumpepoch(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    Ok(Reply::status("STILL 1"))
}

fn set_config_epoch(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    let epoch = int_arg(&args[2])?;
    if epoch < 0 {
        return Err(format!("ERR Invalid config epoch specified: {epoch}").into());
    }
    Err("ERR Node config epoch is already non-zero".into())
}

fn saveconfig(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    Ok(Reply::OK)
}

/// The node keeps its slots; a hard reset gives it another name.
fn reset(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    let hard = match &args[2..] {
        [] => false,
        [how] if how.eq_ignore_ascii_case(b"hard") => true,
        [how] if how.eq_ignore_ascii_case(b"soft") => false,
        _ => return Err(SYNTAX.into()),
    };
    if cx.db().len() > 0 {
        return Err("ERR CLUSTER RESET can't be called with master nodes containing keys".into());
    }
    if hard {
        cx.state.node = Node::new();
    }
    Ok(Reply::OK)
}

/// Nothing is read from replicas: there are none.
fn readonly(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    Ok(Reply::OK)
}

fn asking(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    Ok(Reply::OK)
}

fn help(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    check(cx)?;
    let lines = [
        "CLUSTER <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "COUNTKEYSINSLOT <slot>",
        "    Return the number of keys in <slot>.",
        "GETKEYSINSLOT <slot> <count>",
        "    Return key names stored by current node in a slot.",
        "INFO",
        "    Return information about the cluster.",
        "KEYSLOT <key>",
        "    Return the hash slot for <key>.",
        "LINKS",
        "    Return information about all network links between this node and its peers.",
        "MYID",
        "    Return the node id.",
        "NODES",
        "    Return cluster configuration seen by node. Output format:",
        "    <id> <ip:port> <flags> <master> <pings> <pongs> <epoch> <link> <slot> ...",
        "REPLICAS <node-id>",
        "    Return <node-id> replicas.",
        "RESET [HARD|SOFT]",
        "    Reset current node (default: soft).",
        "SHARDS",
        "    Return information about slot range mappings and the nodes associated with them.",
        "SLOTS",
        "    Return information about slots range mappings. Each range is made of:",
        "    start, end, master and replicas IP addresses, ports and ids",
        "HELP",
        "    Prints this help.",
    ];
    Ok(Reply::Array(lines.map(Reply::status).into()))
}
