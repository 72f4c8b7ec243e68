//! CLUSTER: the answers of a cluster of one node that owns all slots, or that there is none.

use bytes::Bytes;
use rand::RngExt as _;

use crate::{
    context::Ctx,
    error::{CommandResult, Stop},
    hash_slot,
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
    sub!("flushslots", 2, OPERATE, refused),
    sub!("forget", 3, OPERATE, forget),
    sub!("getkeysinslot", 4, LOOK, getkeysinslot),
    sub!("help", 2, LOADING | STALE, help),
    sub!("info", 2, LOOK, info),
    sub!("keyslot", 3, LOOK, keyslot),
    sub!("links", 2, LOOK, links),
    sub!("meet", -4, OPERATE, refused),
    sub!("myid", 2, LOOK, myid),
    sub!("nodes", 2, LOOK, nodes),
    sub!("replicas", 3, ADMIN | STALE, replicas),
    sub!("replicate", 3, OPERATE, replicate),
    sub!("reset", -2, ADMIN | STALE | NOSCRIPT, reset),
    sub!("saveconfig", 2, OPERATE, saveconfig),
    sub!("set-config-epoch", 3, OPERATE, set_config_epoch),
    sub!("setslot", -4, OPERATE, refused),
    sub!("shards", 2, LOOK, shards),
    sub!("slaves", 3, ADMIN | STALE, replicas),
    sub!("slots", 2, LOOK, slots),
];

/// The name of a node: 40 hexadecimal digits.
#[derive(Default)]
pub(crate) struct Node(String);

impl Node {
    pub(crate) fn new() -> Node {
        let mut random = rand::rng();
        let digit = |_| char::from_digit(random.random_range(0..16), 16).unwrap_or('0');
        Node((0..40).map(digit).collect())
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

fn keyslot(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    Ok(Reply::Int(hash_slot::of(&args[2]).into()))
}

/// The keys of a slot. Looks at all keys: slots have no lists of their own here.
fn keys(cx: &mut Ctx<'_>, slot: u16, limit: usize) -> Vec<Reply> {
    let found = cx.db().iter().filter(|(key, _)| hash_slot::of(key) == slot);
    let found = found.map(|(key, _)| Reply::Bulk(key.to_bytes()));
    found.take(limit).collect()
}

fn countkeysinslot(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    let slot = slot_arg(&args[2])?;
    Ok(keys(cx, slot, usize::MAX).len().into())
}

fn getkeysinslot(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check(cx)?;
    let (slot, count) = (int_arg(&args[2])?, int_arg(&args[3])?);
    match (usize::try_from(count), (0..SLOTS).contains(&slot)) {
        (Ok(count), true) => Ok(Reply::Array(keys(cx, slot as u16, count))),
        _ => Err("ERR Invalid slot or number of keys".into()),
    }
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
        false => Err(crate::error::SYNTAX.into()),
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
        _ => return Err(crate::error::SYNTAX.into()),
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
