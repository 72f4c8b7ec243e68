//! REDSTART HANDOVER: what moves the data to another server while it is used. See `handover.rs`.

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    handover::{self, Place},
    number::{int_arg, range_arg},
    reply::Reply,
};

const NO_REPLICA: &str = "ERR there is no replica";

pub(super) fn handover(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    match (args[2].to_ascii_lowercase().as_slice(), &args[3..]) {
        (b"watch", []) => {
            let stream = cx.state.feed.stream.as_ref();
            stream.ok_or(Stop::from(NO_REPLICA))?.note_changes();
            Ok(Reply::OK)
        }
        (b"changed", [count]) => changed(cx, count),
        (b"pause", [millis]) => {
            let longest = i64::from(i32::MAX);
            let millis = range_arg(millis, 1, longest, "ERR the time is out of range")?;
            handover::pause(cx.state, cx.now_ms().saturating_add(millis));
            Ok(Reply::Array(vec![
                Reply::Int(handover::token(cx.state)),
                Reply::Int(cx.state.feed.offset() as i64),
            ]))
        }
        (b"commit", [token, host, port]) => commit(cx, token, host, port),
        (b"abort", []) => {
            handover::abort(cx.state).map_err(|error| failed(&error))?;
            Ok(Reply::OK)
        }
        _ => Err(SYNTAX.into()),
    }
}

fn changed(cx: &mut Ctx<'_>, count: &[u8]) -> CommandResult {
    let count = range_arg(count, 1, 1_000_000, "ERR the count is out of range")?;
    let stream = cx.state.feed.stream.as_ref();
    let taken = stream.and_then(|stream| stream.take_changes(count as usize));
    let (keys, more) = taken.ok_or(Stop::from("ERR changes are not noted"))?;
    let mut reply = vec![Reply::Int(more.into())];
    reply.extend(keys.into_iter().map(Reply::Bulk));
    Ok(Reply::Array(reply))
}

fn commit(cx: &mut Ctx<'_>, token: &[u8], host: &[u8], port: &[u8]) -> CommandResult {
    let port = range_arg(port, 1, 65_535, "ERR invalid port")?;
    let host = std::str::from_utf8(host).ok();
    let fits = |host: &&str| !host.is_empty() && !host.contains(char::is_whitespace);
    let host = host.filter(fits).ok_or(Stop::from("ERR invalid host"))?;
    let place = Place::new(host, port as u16);
    // Asked again because the answer was lost.
    if cx.state.moved.as_ref() == Some(&place) {
        return Ok(Reply::OK);
    }
    if cx.state.feed.stream.is_none() {
        return Err(NO_REPLICA.into());
    }
    if int_arg(token)? != handover::token(cx.state) {
        return Err("ERR something was written since writes were held back".into());
    }
    handover::commit(cx.state, place).map_err(|error| failed(&error))?;
    Ok(Reply::OK)
}

fn failed(error: &std::io::Error) -> Stop {
    format!("ERR the data folder cannot be written: {error}").into()
}
