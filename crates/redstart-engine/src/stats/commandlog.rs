//! COMMANDLOG's large requests and replies, of clients of a listener: as many bytes as on the wire.

use bytes::Bytes;

use crate::{
    client::Client,
    context::Origin,
    engine::State,
    registry::{self, flag},
    stats::slowlog,
};

/// Keeps a command whose request or reply is large.
#[inline]
pub(crate) fn look(
    state: &mut State,
    client: &Client,
    args: &[Bytes],
    now_micros: i64,
    answered: usize,
) {
    let is_large =
        |bytes: usize, from: i64| u64::try_from(from).is_ok_and(|from| bytes as u64 >= from);
    // As it is in an array of bulk strings: lengths and ends of lines count.
    let sent = args.iter().fold(head(args.len()), |sent, arg| {
        sent + head(arg.len()) + arg.len() + 2
    });
    let config = &state.config;
    let large = (
        is_large(sent, config.large_request),
        is_large(answered, config.large_reply),
    );
    if large != (false, false) {
        keep(state, client, args, now_micros, (sent, answered), large);
    }
}

/// The length of `$<number>\r\n`.
fn head(number: usize) -> usize {
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    digits + 3
}

#[cold]
fn keep(
    state: &mut State,
    client: &Client,
    args: &[Bytes],
    now_micros: i64,
    (sent, answered): (usize, usize),
    (is_request, is_reply): (bool, bool),
) {
    let shown = match registry::lookup(args) {
        Some(spec) if !spec.is(flag::SKIP_SLOWLOG) => slowlog::shown(spec, args),
        _ => return,
    };
    let who = (client, Origin::Client);
    if is_request {
        let most = state.config.large_requests_max_len;
        let log = &mut state.large_requests;
        log.add(most, who, &shown, now_micros, sent as u64);
    }
    if is_reply {
        let most = state.config.large_replies_max_len;
        let log = &mut state.large_replies;
        log.add(most, who, &shown, now_micros, answered as u64);
    }
}
