//! WAITAOF: waits until what was written is on the disk.

use bytes::Bytes;

use crate::{
    blocking::{self, Wait},
    compat::versions,
    context::Ctx,
    error::{CommandResult, Stop},
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

/// Replicas are never waited for: none of them tells what is on its disk.
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
    let answer = move |cx: &Ctx<'_>| {
        let durable = i64::from(cx.state.effects.is_durable(position));
        (
            durable,
            Reply::Array(vec![Reply::Int(durable), Reply::ZERO]),
        )
    };
    let (durable, reply) = answer(cx);
    if durable >= local && replicas == 0 {
        return Ok(reply);
    }
    let on_timeout = reply;
    cx.block(Wait {
        keys: Vec::new(),
        deadline,
        hears_of_absence: false,
        on_timeout,
        serve: Box::new(move |cx, _| {
            if local > 0 && cx.state.effects.health().is_none() {
                return Some(Reply::Error(WITHOUT_LOG.into()).into());
            }
            let (durable, reply) = answer(cx);
            (durable >= local && replicas == 0).then(|| reply.into())
        }),
    })
}
