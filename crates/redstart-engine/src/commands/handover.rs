//! REDSTART HANDOVER: what moves the data to another server while it is used. See `handover.rs`.

use bytes::Bytes;

use crate::{
    blocking,
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    feed::stream::NOTED,
    handover::{self, Place},
    number::{int_arg, range_arg},
    reply::Reply,
};

const NO_REPLICA: &str = "ERR there is no replica";
const COUNT: &str = "ERR the count is out of range";

pub(super) fn handover(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    match (args[2].to_ascii_lowercase().as_slice(), &args[3..]) {
        (b"begin", [name]) => {
            let now = cx.now_ms();
            handover::begin(cx.state, name, now)?;
            Ok(Reply::OK)
        }
        (b"watch", [name, most @ ..]) if most.len() <= 1 => {
            hear(cx, name)?;
            let most = match most.first() {
                Some(most) => range_arg(most, 1, NOTED as i64, COUNT)? as usize,
                None => NOTED,
            };
            let stream = cx.state.feed.stream.as_ref();
            stream.ok_or(Stop::from(NO_REPLICA))?.note_changes(most);
            Ok(Reply::OK)
        }
        (b"changed", [name, count]) => changed(cx, name, count),
        (b"pause", [name, millis]) => {
            hear(cx, name)?;
            let longest = i64::from(i32::MAX);
            let millis = range_arg(millis, 1, longest, "ERR the time is out of range")?;
            handover::hold(cx.state, cx.now_ms().saturating_add(millis));
            Ok(Reply::Array(vec![
                Reply::Int(handover::token(cx.state)),
                Reply::Int(cx.state.feed.offset() as i64),
            ]))
        }
        (b"commit", [name, token, host, port]) => commit(cx, name, token, host, port),
        (b"abort", [name]) => {
            handover::abort(cx.state, name)?;
            Ok(Reply::OK)
        }
        (b"return", []) => {
            let returned = handover::give_back(cx.state);
            returned.map_err(|error| format!("ERR {CANNOT_WRITE}: {error}"))?;
            Ok(Reply::OK)
        }
        (b"where", []) => {
            let moves = &cx.state.moves;
            let place = |place: &Option<Place>| match place {
                Some(place) => Reply::bulk(place.to_string()),
                None => Reply::Nil,
            };
            Ok(Reply::Array(vec![
                place(&moves.to),
                place(&moves.back_from),
            ]))
        }
        _ => Err(SYNTAX.into()),
    }
}

/// The hand-over of this name goes on.
fn hear(cx: &mut Ctx<'_>, name: &[u8]) -> Result<(), Stop> {
    let now = cx.now_ms();
    handover::hear(cx.state, name, now)
}

fn changed(cx: &mut Ctx<'_>, name: &[u8], count: &[u8]) -> CommandResult {
    hear(cx, name)?;
    let count = range_arg(count, 1, 1_000_000, COUNT)?;
    let stream = cx.state.feed.stream.as_ref();
    let taken = stream.and_then(|stream| stream.take_changes(count as usize));
    let (keys, lack) = taken.ok_or(Stop::from("ERR changes are not noted"))?;
    let mut reply = vec![Reply::Int(lack.number())];
    reply.extend(keys.into_iter().map(Reply::Bulk));
    Ok(Reply::Array(reply))
}

const CANNOT_WRITE: &str = "the data folder cannot be written";

/// A refusal begins with NOTMOVED: that the data has not moved is certain then. It may be asked again after TRYAGAIN.
fn commit(cx: &mut Ctx<'_>, name: &[u8], token: &[u8], host: &[u8], port: &[u8]) -> CommandResult {
    let port = range_arg(port, 1, 65_535, "NOTMOVED invalid port")?;
    let host = std::str::from_utf8(host).ok();
    let fits = |host: &&str| !host.is_empty() && !host.contains(char::is_whitespace);
    let host = host
        .filter(fits)
        .ok_or(Stop::from("NOTMOVED invalid host"))?;
    let place = Place::new(host, port as u16);
    match &cx.state.moves.to {
        // Asked again because the answer was lost.
        Some(there) if *there == place => return Ok(Reply::OK),
        Some(there) => return Err(there.refusal().into()),
        None => {}
    }
    if hear(cx, name).is_err() {
        return Err("NOTMOVED this hand-over is not under way".into());
    }
    if cx.state.feed.stream.is_none() {
        return Err("NOTMOVED there is no replica".into());
    }
    if int_arg(token)? != handover::token(cx.state) {
        return Err("NOTMOVED something was written since writes were held back".into());
    }
    // It could not be put back where the data is then. What is taken is handed over as soon as the log has it.
    if blocking::owes(cx.state) {
        return Err("TRYAGAIN a client that waited has not got what was taken for it".into());
    }
    let moved = handover::commit(cx.state, place);
    moved.map_err(|error| format!("NOTMOVED {CANNOT_WRITE}: {error}"))?;
    Ok(Reply::OK)
}
