//! WAITAOF: waits until what was written is on the disk, and on those of replicas.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    blocking::{self, Wait},
    compat::versions,
    context::Ctx,
    error::{CommandResult, Stop},
    feed::{ACKNOWLEDGED, stream::BEGINNING},
    number::{int_arg, range_arg},
    registry::{Spec, flag::*},
    reply::Reply,
};

pub(crate) static COMMANDS: &[Spec] =
    &[Spec::new("waitaof", 4, BLOCKING, (0, 0, 0), waitaof).only(versions::FROM_7_2)];

const ON_REPLICA: &str = "ERR WAITAOF cannot be used with replica instances. Please also note that writes to \
     replicas are just local and are not propagated.";
const WITHOUT_LOG: &str =
    "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";
const NEGATIVE: &str = "ERR value is out of range, must be positive";

/// Replicas count that say what is on their disks: Redis from 7.2 on, Valkey and this engine do, if they keep a log.
fn waitaof(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    const RANGE: &str = "ERR value is out of range, must be between 0 and 1";
    let local = range_arg(&args[1], 0, 1, RANGE)?;
    let replicas = int_arg(&args[2])?;
    if replicas < 0 {
        return Err(NEGATIVE.into());
    }
    let deadline = blocking::timeout_ms_arg(cx, &args[3])?;
    if cx.state.replica.is_some() {
        return Err(ON_REPLICA.into());
    }
    if local > 0 && cx.state.effects.health().is_none() {
        return Err(Stop::from(WITHOUT_LOG));
    }
    // What other clients wrote before is waited for, too.
    let position = cx.state.effects.last_position();
    // Before there is a stream, what was written is part of the copy with which it begins.
    let target = cx.state.feed.offset().max(BEGINNING);
    let fed = cx.state.feed.stream.as_ref().map(Arc::downgrade);
    let reached = move |cx: &Ctx<'_>| {
        let durable = i64::from(cx.state.effects.is_durable(position));
        // A replica may come while this waits, and the stream may be another one then.
        let stream = cx.state.feed.stream.as_ref();
        let synced = stream.map_or(0, |stream| stream.synced(target)) as i64;
        let reply = Reply::Array(vec![Reply::Int(durable), Reply::Int(synced)]);
        (durable >= local && synced >= replicas, reply)
    };
    let (enough, reply) = reached(cx);
    if enough {
        return Ok(reply);
    }
    if cx.may_block()
        && let Some(stream) = cx.state.feed.stream.as_ref().filter(|_| replicas > 0)
    {
        stream.ask();
    }
    let keys = match replicas {
        0 => Vec::new(),
        _ => vec![Bytes::from_static(ACKNOWLEDGED)],
    };
    cx.block(Wait {
        keys,
        deadline,
        synced: Some(position),
        hears_of_absence: true,
        on_timeout: reply,
        serve: Box::new(move |cx, _| {
            if local > 0 && cx.state.effects.health().is_none() {
                return Some(Reply::Error(WITHOUT_LOG.into()).into());
            }
            let (enough, reply) = reached(cx);
            // The place that it waits for is one of a stream that has ended.
            let stream = cx.state.feed.stream.as_ref().map(Arc::as_ptr);
            let ended = fed.as_ref().is_some_and(|fed| stream != Some(fed.as_ptr()));
            if enough || (replicas > 0 && ended) {
                return Some(reply.into());
            }
            // What it is told if its time is up.
            blocking::answer_at_end(cx.state, cx.client.id, reply);
            None
        }),
    })
}
