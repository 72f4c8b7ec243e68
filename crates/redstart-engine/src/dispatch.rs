//! Life of a command: it is found, checked, queued or run, and its consequences are settled.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::{
    acl,
    blocking::{self, Wait},
    client::Client,
    commands::transaction,
    compat::versions,
    context::{Ctx, Origin},
    engine::State,
    error::{CROSS_SLOT, CommandResult, LOG_FAILED, OUT_OF_MEMORY, Stop},
    eviction, feed, handover, hash_slot,
    keyspace::Swept,
    memory, rdb,
    registry::{self, Spec, flag},
    replica::READ_ONLY,
    reply::{Protocol, Reply},
    tracking,
};

/// How often (in microseconds) a little of the keyspace is searched for expired keys.
const SWEEP_INTERVAL: i64 = 100_000;
/// How many entries of a database, and how many fields of hashes, one such search looks at: a few milliseconds' worth.
const SWEEP_BUDGET: usize = 10_000;

/// The outcome of a command.
pub(crate) enum Done {
    Reply(Reply),
    /// The reply is in the client's output.
    Written,
    Wait(Box<Wait>),
}

/// Runs one command of a client and all that follows from it.
pub(crate) fn run(state: &mut State, client: &mut Client, args: &[Bytes], now_micros: i64) -> Done {
    tick(state, now_micros);
    let mut cx = Ctx::new(state, client, now_micros, Origin::Client);
    let (spec, result) = process(&mut cx, args);
    finish(state, now_micros);
    if state.output.take_written() {
        debug_assert!(
            matches!(result, Ok(Reply::Nil)),
            "an answer is the last that a command does"
        );
        client.ran(spec);
        return Done::Written;
    }
    settle_client(client, spec);
    // HELLO and RESET answer in the protocol that they have just chosen.
    match &result {
        Err(Stop::Error(text)) => state.stats.error(text),
        Ok(Reply::Error(text)) => state.stats.error(text),
        _ => {}
    }
    state.stats.settle();
    match result {
        Ok(reply) => Done::Reply(shape(reply, client.protocol)),
        Err(Stop::Error(text)) => Done::Reply(Reply::Error(text.into_owned())),
        Err(Stop::Block(wait)) => Done::Wait(wait),
    }
}

/// What a command leaves behind on a client.
fn settle_client(client: &mut Client, spec: Option<&'static Spec>) {
    client.ran(spec);
    // CLIENT CACHING is for the next command, or for a whole transaction.
    if let Some(tracking) = &mut client.tracking
        && client.multi.is_none()
        && spec.is_none_or(|spec| spec.full_name != "client|caching")
    {
        tracking.caching = None;
    }
}

/// Until when (in unix milliseconds) a command has to wait because clients are paused, or because the data
/// moves.
#[inline]
pub(crate) fn paused(
    state: &mut State,
    client: &Client,
    args: &[Bytes],
    now_ms: i64,
) -> Option<i64> {
    if state.pause.as_ref().is_some_and(|p| p.until <= now_ms) {
        state.pause = None;
    }
    let held = held_back(state, client, args, now_ms);
    let Some(pause) = &state.pause else {
        let holds = state.moves.holds_until().is_some();
        state.paused.store(holds, Ordering::Relaxed);
        return held;
    };
    let affected = !pause.writes_only || may_change(client, args);
    affected.then_some(pause.until).max(held)
}

/// Until when a command has to wait because the data moves: what changes it, wherever it comes from.
pub(crate) fn held_back(
    state: &mut State,
    client: &Client,
    args: &[Bytes],
    now_ms: i64,
) -> Option<i64> {
    state.moves.end_hold(now_ms);
    let until = state.moves.holds_until()?;
    may_change(client, args).then_some(until)
}

/// Whether the data moves, and one of these commands would change it if they were run in a row.
pub(crate) fn holds_back<'c>(
    state: &mut State,
    client: &Client,
    mut commands: impl Iterator<Item = &'c [Bytes]> + Clone,
    now_ms: i64,
) -> bool {
    state.moves.end_hold(now_ms);
    if state.moves.holds_until().is_none() {
        return false;
    }
    let mut specs = commands.clone().filter_map(registry::lookup);
    // What is queued now is run by an EXEC of the same row, and what follows the end of a transaction is not queued.
    let ends = |spec: &Spec| matches!(spec.name, "exec" | "discard" | "reset");
    let ends_transaction = client.multi.is_some() && specs.clone().any(ends);
    commands.any(|args| may_change(client, args)) || (ends_transaction && specs.any(may_write))
}

/// Whether a command is one of those that CLIENT PAUSE WRITE holds back, outside a transaction.
fn may_write(spec: &Spec) -> bool {
    spec.is(flag::WRITE)
        || matches!(
            spec.name,
            "publish" | "spublish" | "pfcount" | "eval" | "evalsha" | "fcall" | "script"
        )
}

/// Whether a command is one of those that CLIENT PAUSE WRITE holds back.
fn may_change(client: &Client, args: &[Bytes]) -> bool {
    match registry::lookup(args) {
        Some(spec) if spec.name == "exec" => client
            .multi
            .as_ref()
            .is_some_and(|multi| multi.queue.iter().any(|(spec, _)| may_write(spec))),
        Some(spec) => client.multi.is_none() && may_write(spec),
        None => false,
    }
}

/// The reply in the protocol's shape.
#[inline]
pub(crate) fn shape(reply: Reply, protocol: Protocol) -> Reply {
    if protocol == Protocol::Resp2 && reply.is_rich() {
        reply.into_resp2()
    } else {
        reply
    }
}

/// Does what is due by now: timeouts and a little of the active expiry.
#[inline]
pub(crate) fn tick(state: &mut State, now_micros: i64) {
    if state.blocking.is_due(now_micros) {
        state.stats.pause();
        blocking::time_out(state, now_micros);
    }
    // The system's clock may have been set back.
    if (now_micros - state.last_sweep).abs() >= SWEEP_INTERVAL {
        state.last_sweep = now_micros;
        state.stats.pause();
        feed::tick(state, now_micros);
        handover::tick(state, now_micros / 1000);
        if state.config.maxmemory > 0 {
            memory::measure_buffers(state);
            state.scripts.recount_now_and_then(now_micros);
            eviction::make_more_room(state, now_micros);
        }
        rdb::save_if_due(state, now_micros);
        let inner = state.inner.upgrade();
        let used = memory::used(state);
        memory::give_back_if_much(state, used);
        let traffic = inner.as_ref().map(|inner| &inner.traffic);
        state.stats.sample(traffic, used);
        let began = std::time::Instant::now();
        for db in 0..state.dbs.len() {
            state.dbs[db].compact_if_sparse();
            if state.active_expire {
                sweep(state, db, SWEEP_BUDGET, now_micros);
            }
            let took = began.elapsed();
            state.stats.expire_micros += took.as_micros() as u64;
            let (threshold, millis) = (state.config.latency_threshold, took.as_millis() as u64);
            if threshold > 0 && millis >= threshold {
                let seconds = now_micros / 1_000_000;
                state.latency.add("expire-cycle", seconds, millis);
            }
        }
    }
}

/// Expires all keys that are due.
pub(crate) fn sweep_all(state: &mut State, now_micros: i64) {
    for db in 0..state.dbs.len() {
        sweep(state, db, usize::MAX, now_micros);
    }
    finish(state, now_micros);
}

/// Expires keys that are due, looking at no more than `budget` entries, and removes no more than so many fields of hashes.
fn sweep(state: &mut State, db: usize, budget: usize, now_micros: i64) {
    if state.replica.is_some() {
        return;
    }
    let (Swept { keys, hashes }, looked) = state.dbs[db].sweep(now_micros / 1000, budget);
    state.stats.visited += looked as u64;
    if !keys.is_empty() || !hashes.is_empty() {
        let mut client = Client::internal(0, db, Protocol::Resp2);
        let mut cx = Ctx::new(state, &mut client, now_micros, Origin::Engine);
        for key in &keys {
            cx.expire(key);
            cx.state.effects.flush();
        }
        // Thousands of fields of one hash may be due at once: the others are found by the next search.
        let mut left = budget;
        for key in &hashes {
            let (stays, count) = cx.expire_some_fields(key, left);
            left -= count;
            if stays && let Some(slot) = cx.db().find(key) {
                cx.db().enter(slot);
            }
            cx.state.effects.flush();
        }
    }
}

/// Ends a unit: hands its effects on and serves the clients that it made ready.
#[inline]
pub(crate) fn finish(state: &mut State, now_micros: i64) {
    state.effects.flush();
    if state.tracking.is_pending() {
        state.stats.pause();
        tracking::broadcast(state);
    }
    if !state.ready.is_empty() {
        state.stats.pause();
        blocking::serve_ready(state, now_micros);
    }
}

/// Finds and checks a command, then queues or runs it. Which command it was, if there is such a one.
fn process(cx: &mut Ctx<'_>, args: &[Bytes]) -> (Option<&'static Spec>, CommandResult) {
    let spec = match check(cx, args) {
        Ok(spec) => spec,
        Err(stop) => {
            if let Some(multi) = &mut cx.client.multi {
                multi.broken = true;
            }
            let compat = cx.state.config.compat;
            let spec = registry::lookup(args).filter(|spec| spec.exists_in(compat));
            if let Some(spec) = spec {
                cx.state.stats.refused(spec);
                if spec.name == "exec" {
                    return (Some(spec), Err(discarded(cx, stop)));
                }
            }
            return (spec, Err(stop));
        }
    };
    // Commands on data do not look at clients; to all others this one is shown as it is now.
    if !spec.is(flag::WRITE | flag::READONLY) {
        cx.client.show(cx.now_micros);
    }
    if let Some(multi) = &mut cx.client.multi
        && !spec.is(flag::UNQUEUED)
    {
        // What will not be executed is not kept.
        if multi.broken {
            return (Some(spec), Ok(Reply::status("QUEUED")));
        }
        // Copies: an argument is a part of a read buffer, which it would keep from being freed.
        let args: Vec<Bytes> = args.iter().map(|arg| Bytes::copy_from_slice(arg)).collect();
        multi.bytes += args
            .iter()
            .map(|arg| size_of::<Bytes>() + arg.len())
            .sum::<usize>();
        multi.queue.push((spec, args));
        return (Some(spec), Ok(Reply::status("QUEUED")));
    }
    (Some(spec), cx.call(spec, args))
}

/// An EXEC that is refused ends the transaction.
fn discarded(cx: &mut Ctx<'_>, why: Stop) -> Stop {
    cx.client.multi = None;
    transaction::unwatch_all(cx.state, cx.client);
    match why {
        // Where to ask instead is said as it is.
        Stop::Error(text) if !text.starts_with("EXECABORT") && !text.starts_with("REDIRECT") => {
            let why = text.strip_prefix("ERR ").unwrap_or(&text);
            format!("EXECABORT Transaction discarded because of: {why}").into()
        }
        other => other,
    }
}

/// What can be said against a command before it runs.
fn check(cx: &mut Ctx<'_>, args: &[Bytes]) -> Result<&'static Spec, Stop> {
    let spec = registry::resolve(args, cx.state.config.compat)?;
    if !cx.client.authenticated && !spec.is(flag::NO_AUTH) && cx.state.acl.is_guarded() {
        return Err(acl::NOAUTH.into());
    }
    if cx.client.multi.is_some()
        && (spec.is(flag::NO_MULTI)
            || matches!(spec.full_name, "client|reply" | "multi" | "watch")
                && cx.state.config.compat.is_in(versions::VALKEY))
    {
        return Err("ERR Command not allowed inside a transaction".into());
    }
    if !cx.client.account.is_unlimited() {
        acl::check(cx, spec, args)?;
    }
    if cx.client.is_subscribed()
        && cx.client.protocol == Protocol::Resp2
        && !(spec.is(flag::PUBSUB) && spec.is(flag::NOSCRIPT))
        && !matches!(spec.name, "ping" | "quit" | "reset")
    {
        return Err(format!(
            "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
             are allowed in this context",
            spec.full_name
        )
        .into());
    }
    if cx.state.moves.to.is_some() {
        handover::check(cx, spec)?;
    }
    if let Some(why) = refusal_to_write(cx.state) {
        check_writes(cx, spec, why)?;
        // Who only asks whether this is well hears that it is not.
        if spec.name == "ping" {
            return Err(why.into());
        }
    }
    if cx.state.replica.is_some() {
        check_replica(cx, spec)?;
    } else if cx.state.config.maxmemory > 0 {
        check_memory(cx, spec)?;
    }
    if cx.state.feed.needed > 0 && feed::lacks_replicas(cx.state, cx.now_micros) {
        check_writes(cx, spec, feed::TOO_FEW_REPLICAS)?;
    }
    if cx.state.config.checks_slots() {
        check_slots(spec, args, &mut None)?;
    }
    Ok(spec)
}

/// Why nothing may be written at present, by a command or by a script: it would not be kept.
#[inline]
pub(crate) fn refusal_to_write(state: &State) -> Option<&'static str> {
    if state.effects.is_failing() {
        return Some(LOG_FAILED);
    }
    rdb::refuses_writes(state).then_some(rdb::NOT_SAVED)
}

/// Refuses what would write to the data of a followed server.
fn check_replica(cx: &mut Ctx<'_>, spec: &Spec) -> Result<(), Stop> {
    let writes = |(spec, _): &(&Spec, _)| spec.is(flag::WRITE);
    let queued = spec.name == "exec"
        && matches!(&cx.client.multi, Some(multi) if multi.queue.iter().any(writes));
    if queued {
        cx.client.multi = None;
        transaction::unwatch_all(cx.state, cx.client);
        return Err(format!("EXECABORT Transaction discarded because of: {READ_ONLY}").into());
    }
    if spec.is(flag::WRITE) {
        return Err(READ_ONLY.into());
    }
    Ok(())
}

/// Refuses what would write: the log cannot be written, or too few replicas would have it.
fn check_writes(cx: &mut Ctx<'_>, spec: &Spec, why: &'static str) -> Result<(), Stop> {
    if spec.is(flag::WRITE) {
        return Err(why.into());
    }
    let writes = |(spec, _): &(&Spec, _)| spec.is(flag::WRITE);
    if spec.name == "exec"
        && let Some(multi) = &cx.client.multi
        && multi.queue.iter().any(writes)
    {
        cx.client.multi = None;
        transaction::unwatch_all(cx.state, cx.client);
        return Err(format!("EXECABORT Transaction discarded because of: {why}").into());
    }
    Ok(())
}

/// Refuses what would need more memory than there may be. Queueing takes memory, too.
fn check_memory(cx: &mut Ctx<'_>, spec: &Spec) -> Result<(), Stop> {
    cx.state.stats.pause();
    cx.state.out_of_memory = !eviction::make_room(cx.state, cx.now_micros);
    if !cx.state.out_of_memory {
        return Ok(());
    }
    if let Some(multi) = &cx.client.multi {
        let denied = |(spec, _): &(&Spec, _)| spec.is(flag::DENYOOM);
        if spec.name == "exec" && multi.queue.iter().any(denied) {
            cx.client.multi = None;
            transaction::unwatch_all(cx.state, cx.client);
            return Err(
                format!("EXECABORT Transaction discarded because of: {OUT_OF_MEMORY}").into(),
            );
        }
        if !spec.is(flag::UNQUEUED) {
            return Err(OUT_OF_MEMORY.into());
        }
    }
    if spec.is(flag::DENYOOM) {
        return Err(OUT_OF_MEMORY.into());
    }
    Ok(())
}

/// Refuses keys of different slots; `common` carries the slot from command to command.
pub(crate) fn check_slots(
    spec: &Spec,
    args: &[Bytes],
    common: &mut Option<u16>,
) -> Result<(), Stop> {
    let mut crossed = false;
    spec.each_key(args, |at| {
        let slot = hash_slot::of(&args[at]);
        crossed |= *common.get_or_insert(slot) != slot;
    });
    if crossed {
        Err(CROSS_SLOT.into())
    } else {
        Ok(())
    }
}
