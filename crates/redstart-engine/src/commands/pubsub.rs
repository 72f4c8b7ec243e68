//! Publish and subscribe.
//!
//! Each channel of a subscription is confirmed. The last confirmation is the command's reply, those
//! before it arrive like messages.

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::CommandResult,
    glob,
    pubsub::{self, Kind},
    registry::{Spec, flag::*},
    reply::Reply,
};

const LISTEN: u32 = PUBSUB | NOSCRIPT | LOADING | STALE;
const TELL: u32 = PUBSUB | LOADING | STALE | FAST;
const ASK: u32 = PUBSUB | LOADING | STALE;
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("subscribe", -2, LISTEN, NO_KEYS, subscribe),
    Spec::new("unsubscribe", -1, LISTEN, NO_KEYS, unsubscribe),
    Spec::new("psubscribe", -2, LISTEN, NO_KEYS, psubscribe),
    Spec::new("punsubscribe", -1, LISTEN, NO_KEYS, punsubscribe),
    Spec::new("ssubscribe", -2, LISTEN | NOT_KEYS, (1, -1, 1), ssubscribe),
    Spec::new(
        "sunsubscribe",
        -1,
        LISTEN | NOT_KEYS,
        (1, -1, 1),
        sunsubscribe,
    ),
    Spec::new("publish", 3, TELL, NO_KEYS, publish),
    Spec::new("spublish", 3, TELL | NOT_KEYS, (1, 1, 1), spublish),
    Spec::container("pubsub", -2, 0, PUBSUB_COMMANDS),
];

static PUBSUB_COMMANDS: &[Spec] = &[
    Spec::sub(
        "help",
        "pubsub|help",
        2,
        LOADING | STALE,
        NO_KEYS,
        super::help::help,
    ),
    Spec::sub("channels", "pubsub|channels", -2, ASK, NO_KEYS, channels),
    Spec::sub("numsub", "pubsub|numsub", -2, ASK, NO_KEYS, numsub),
    Spec::sub("numpat", "pubsub|numpat", 2, ASK, NO_KEYS, numpat),
    Spec::sub(
        "shardchannels",
        "pubsub|shardchannels",
        -2,
        ASK,
        NO_KEYS,
        shardchannels,
    ),
    Spec::sub(
        "shardnumsub",
        "pubsub|shardnumsub",
        -2,
        ASK,
        NO_KEYS,
        shardnumsub,
    ),
];

fn subscribe(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    start(cx, Kind::Channel, &args[1..])
}

fn psubscribe(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    start(cx, Kind::Pattern, &args[1..])
}

fn ssubscribe(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    start(cx, Kind::Shard, &args[1..])
}

fn unsubscribe(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    end(cx, Kind::Channel, &args[1..])
}

fn punsubscribe(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    end(cx, Kind::Pattern, &args[1..])
}

fn sunsubscribe(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    end(cx, Kind::Shard, &args[1..])
}

fn start(cx: &mut Ctx<'_>, kind: Kind, names: &[Bytes]) -> CommandResult {
    // Rules may be tightened, and then the client must be found.
    super::client::profile(cx);
    let mut last = Reply::Nil;
    for (at, name) in names.iter().enumerate() {
        if at > 0 {
            cx.client.outbox().push_free(last);
        }
        pubsub::subscribe(cx.state, cx.client, kind, name);
        last = confirmation(cx, kind, kind.subscribe(), Reply::Bulk(name.clone()));
    }
    Ok(last)
}

fn end(cx: &mut Ctx<'_>, kind: Kind, names: &[Bytes]) -> CommandResult {
    let names: Vec<Bytes> = if names.is_empty() {
        let all = pubsub::names(cx.client, kind);
        all.iter().map(|name| name.to_bytes()).collect()
    } else {
        names.to_vec()
    };
    if names.is_empty() {
        return Ok(confirmation(cx, kind, kind.unsubscribe(), Reply::Nil));
    }
    let mut last = Reply::Nil;
    for (at, name) in names.into_iter().enumerate() {
        if at > 0 {
            cx.client.outbox().push_free(last);
        }
        pubsub::unsubscribe(cx.state, cx.client, kind, &name);
        last = confirmation(cx, kind, kind.unsubscribe(), Reply::Bulk(name));
    }
    Ok(last)
}

fn confirmation(cx: &Ctx<'_>, kind: Kind, word: &'static str, name: Reply) -> Reply {
    let count = match kind {
        Kind::Shard => cx
            .client
            .subscriptions
            .as_ref()
            .map_or(0, |s| s.shards.len()),
        Kind::Channel | Kind::Pattern => cx.client.subscribed(),
    };
    Reply::Push(vec![
        Reply::Bulk(Bytes::from_static(word.as_bytes())),
        name,
        count.into(),
    ])
}

fn publish(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(pubsub::publish(cx.state, &args[1], &args[2]).into())
}

fn spublish(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(pubsub::publish_sharded(cx.state, &args[1], &args[2]).into())
}

fn channels(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    list(cx, Kind::Channel, args)
}

fn shardchannels(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    list(cx, Kind::Shard, args)
}

fn list(cx: &mut Ctx<'_>, kind: Kind, args: &[Bytes]) -> CommandResult {
    let pattern = match args {
        [_, _] => None,
        [_, _, pattern] => Some(pattern),
        _ => return Err(unknown_or_wrong(args)),
    };
    let names = cx.state.pubsub.table(kind).keys();
    let names = names.filter(|name| pattern.is_none_or(|pattern| glob::matches(pattern, name)));
    Ok(Reply::Array(
        names.map(|name| Reply::Bulk(name.to_bytes())).collect(),
    ))
}

/// What Redis says to a subcommand with too many arguments that its arity lets pass.
fn unknown_or_wrong(args: &[Bytes]) -> crate::error::Stop {
    crate::error::Stop::Error(
        format!(
            "ERR unknown subcommand or wrong number of arguments for '{}'. Try {} HELP.",
            crate::registry::printable(&args[1]),
            crate::registry::printable(&args[0]).to_uppercase(),
        )
        .into(),
    )
}

fn numsub(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(counts(cx, Kind::Channel, &args[2..]))
}

fn shardnumsub(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(counts(cx, Kind::Shard, &args[2..]))
}

fn counts(cx: &Ctx<'_>, kind: Kind, names: &[Bytes]) -> Reply {
    let mut counts = Vec::with_capacity(names.len() * 2);
    for name in names {
        counts.push(Reply::Bulk(name.clone()));
        counts.push(cx.state.pubsub.listeners(kind, name).into());
    }
    Reply::Array(counts)
}

fn numpat(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(cx.state.pubsub.table(Kind::Pattern).len().into())
}
