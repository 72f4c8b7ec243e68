//! CLIENT: what a client says of itself, and what it may do to others.

mod filter;
mod invalidation;

use std::{
    fmt::Write as _,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;

use crate::{
    blocking,
    client::{Answers, Profile},
    compat::versions,
    context::Ctx,
    engine::Pause,
    error::{CommandResult, SYNTAX, Stop},
    number::{int_arg, parse_int},
    registry::{Spec, flag::*, printable},
    reply::Reply,
};

use filter::Filter;
use invalidation::{caching, getredir, tracking, trackinginfo};

const SELF: u32 = NOSCRIPT | LOADING | STALE;
const OTHERS: u32 = ADMIN | NOSCRIPT | LOADING | STALE;
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

pub(crate) static CLIENT_COMMANDS: &[Spec] = &[
    Spec::sub("id", "client|id", 2, SELF, NO_KEYS, id),
    Spec::sub("getname", "client|getname", 2, SELF, NO_KEYS, getname),
    Spec::sub("setname", "client|setname", 3, SELF, NO_KEYS, setname),
    Spec::sub("capa", "client|capa", -3, SELF | ALLOW_BUSY, NO_KEYS, capa).only(versions::VALKEY),
    Spec::sub("setinfo", "client|setinfo", 4, SELF, NO_KEYS, setinfo).only(versions::FROM_7_2),
    Spec::sub("info", "client|info", 2, SELF, NO_KEYS, info),
    Spec::sub("list", "client|list", -2, OTHERS, NO_KEYS, list),
    Spec::sub("kill", "client|kill", -3, OTHERS, NO_KEYS, kill),
    Spec::sub("unblock", "client|unblock", -3, OTHERS, NO_KEYS, unblock),
    Spec::sub("pause", "client|pause", -3, OTHERS, NO_KEYS, pause),
    Spec::sub("unpause", "client|unpause", 2, OTHERS, NO_KEYS, unpause),
    Spec::sub("reply", "client|reply", 3, SELF, NO_KEYS, reply),
    Spec::sub("no-evict", "client|no-evict", 3, OTHERS, NO_KEYS, no_evict),
    Spec::sub("no-touch", "client|no-touch", 3, SELF, NO_KEYS, no_touch).only(versions::FROM_7_2),
    Spec::sub("tracking", "client|tracking", -3, SELF, NO_KEYS, tracking),
    Spec::sub(
        "trackinginfo",
        "client|trackinginfo",
        2,
        SELF,
        NO_KEYS,
        trackinginfo,
    ),
    Spec::sub("caching", "client|caching", 3, SELF, NO_KEYS, caching),
    Spec::sub("getredir", "client|getredir", 2, SELF, NO_KEYS, getredir),
    Spec::sub(
        "help",
        "client|help",
        2,
        LOADING | STALE,
        NO_KEYS,
        super::help::help,
    ),
];

/// The client's profile in the list of clients, made if need be.
pub(crate) fn profile(cx: &mut Ctx<'_>) -> Arc<Profile> {
    let now = cx.now_micros;
    cx.client.register(cx.state, now)
}

pub(crate) fn check_name(name: &[u8]) -> Result<(), Stop> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        Ok(())
    } else {
        Err("ERR Client names cannot contain spaces, newlines or special characters.".into())
    }
}

pub(crate) fn set_name(cx: &mut Ctx<'_>, name: &Bytes) {
    // A copy: an argument is a part of a read buffer.
    profile(cx).activity.lock().name = Bytes::copy_from_slice(name);
}

fn id(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    profile(cx);
    Ok(Reply::Int(cx.client.id as i64))
}

fn getname(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let name = match &cx.client.profile {
        Some(profile) => profile.activity.lock().name.clone(),
        None => Bytes::new(),
    };
    Ok(if name.is_empty() {
        Reply::Nil
    } else {
        Reply::Bulk(name)
    })
}

fn setname(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check_name(&args[2])?;
    set_name(cx, &args[2]);
    Ok(Reply::OK)
}

/// What a client can do; what is not known is ignored. Nothing here depends on it, but it is shown.
fn capa(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut words = args[2..].iter();
    if words.any(|word| word.eq_ignore_ascii_case(b"redirect")) {
        profile(cx).activity.lock().redirects = true;
    }
    Ok(Reply::OK)
}

fn setinfo(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let option = &args[2];
    let is_name = option.eq_ignore_ascii_case(b"LIB-NAME");
    if !is_name && !option.eq_ignore_ascii_case(b"LIB-VER") {
        return Err(format!("ERR Unrecognized option '{}'", printable(option)).into());
    }
    if check_name(&args[3]).is_err() {
        let option = printable(option).to_lowercase();
        return Err(
            format!("ERR {option} cannot contain spaces, newlines or special characters.").into(),
        );
    }
    let profile = profile(cx);
    let mut activity = profile.activity.lock();
    // A copy: an argument is a part of a read buffer.
    let value = Bytes::copy_from_slice(&args[3]);
    match is_name {
        true => activity.lib_name = value,
        false => activity.lib_ver = value,
    }
    Ok(Reply::OK)
}

/// What a client is and does, a letter each; `N` for nothing.
fn flags(cx: &Ctx<'_>, profile: &Profile) -> String {
    let activity = profile.activity.lock();
    let mut flags = String::new();
    let mut flag = |set: bool, letter: char| {
        if set {
            flags.push(letter);
        }
    };
    flag(activity.replica, 'S');
    flag(cx.state.monitors.contains_key(&profile.id), 'O');
    flag(
        activity.channels + activity.patterns + activity.shards > 0,
        'P',
    );
    flag(activity.multi >= 0, 'x');
    flag(cx.state.blocking.is_blocked(profile.id), 'b');
    flag(activity.tracking, 't');
    flag(cx.state.tracking.is_broken(profile.id), 'R');
    flag(activity.bcast, 'B');
    flag(activity.watch_broken, 'd');
    flag(profile.is_killed(), 'A');
    flag(profile.unix, 'U');
    flag(activity.no_evict, 'e');
    flag(activity.no_touch, 'T');
    if flags.is_empty() {
        flags.push('N');
    }
    flags
}

/// One line of CLIENT LIST, with the fields of the version.
pub(crate) fn describe(cx: &Ctx<'_>, profile: &Profile) -> String {
    let flags = flags(cx, profile);
    let activity = profile.activity.lock().clone();
    let compat = cx.state.config.compat;
    let (newer, is_valkey) = (
        compat.is_in(versions::FROM_7_4),
        compat.is_in(versions::VALKEY),
    );
    let seconds = |since: i64| (cx.now_micros - since).max(0) / 1_000_000;
    let mut line = String::new();
    let _ = write!(
        line,
        "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={flags} ",
        profile.id,
        profile.addr,
        profile.laddr,
        printable(&activity.name),
        seconds(profile.created),
        seconds(activity.used),
    );
    if is_valkey {
        let _ = write!(line, "capa={} ", if activity.redirects { "r" } else { "" });
    }
    let _ = write!(
        line,
        "db={} sub={} psub={} ssub={} multi={} ",
        activity.db, activity.channels, activity.patterns, activity.shards, activity.multi,
    );
    if newer {
        let _ = write!(line, "watch={} ", activity.watched);
    }
    // Buffer sizes belong to the listener and are not known here.
    let _ = write!(
        line,
        "qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 \
         events=r cmd={} user={} redir={} resp={}",
        activity.command,
        printable(&activity.account.name),
        activity.redirect,
        if profile.is_resp3() { 3 } else { 2 },
    );
    if newer {
        let (name, version) = (printable(&activity.lib_name), printable(&activity.lib_ver));
        let _ = write!(line, " lib-name={name} lib-ver={version}");
    }
    if is_valkey {
        let _ = write!(
            line,
            " tot-net-in={} tot-net-out={} tot-cmds={}",
            profile.received.load(Ordering::Relaxed),
            profile.sent.load(Ordering::Relaxed),
            activity.commands,
        );
    }
    line
}

fn text(text: String) -> Reply {
    Reply::Verbatim {
        format: *b"txt",
        text: text.into(),
    }
}

fn info(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let profile = profile(cx);
    cx.client.update_profile(Some("client|info"), cx.now_micros);
    Ok(text(describe(cx, &profile) + "\n"))
}

/// The kinds of client that TYPE tells apart.
#[derive(Clone, Copy, PartialEq)]
enum ClientType {
    Normal,
    PubSub,
    Replica,
    /// The server that is followed is not a client.
    Master,
}

fn client_type(cx: &Ctx<'_>, word: &[u8]) -> Result<ClientType, Stop> {
    match word.to_ascii_lowercase().as_slice() {
        b"primary" if cx.state.config.compat.is_in(versions::VALKEY) => Ok(ClientType::Master),
        b"normal" => Ok(ClientType::Normal),
        b"pubsub" => Ok(ClientType::PubSub),
        b"replica" | b"slave" => Ok(ClientType::Replica),
        b"master" => Ok(ClientType::Master),
        _ => Err(format!("ERR Unknown client type '{}'", printable(word)).into()),
    }
}

fn type_of(profile: &Profile) -> ClientType {
    let activity = profile.activity.lock();
    if activity.replica {
        ClientType::Replica
    } else if activity.channels + activity.patterns + activity.shards > 0 {
        ClientType::PubSub
    } else {
        ClientType::Normal
    }
}

fn list(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    profile(cx);
    cx.client.update_profile(Some("client|list"), cx.now_micros);
    let profiles: Vec<Arc<Profile>> = match &args[2..] {
        [] => cx.state.clients.values().cloned().collect(),
        [_, _, ..] if cx.state.config.compat.is_in(versions::VALKEY) => {
            let filter = Filter::parse(cx, &args[2..], false)?;
            meant(cx, &filter)
        }
        [option, word] if option.eq_ignore_ascii_case(b"TYPE") => {
            let wanted = client_type(cx, word)?;
            let all = cx.state.clients.values();
            all.filter(|profile| type_of(profile) == wanted)
                .cloned()
                .collect()
        }
        [option, ids @ ..] if option.eq_ignore_ascii_case(b"ID") && !ids.is_empty() => {
            let mut profiles = Vec::new();
            for id in ids {
                let id = parse_int(id).ok_or(Stop::from("ERR Invalid client ID"))?;
                profiles.extend(cx.state.clients.get(&(id as u64)).cloned());
            }
            profiles
        }
        _ => return Err(SYNTAX.into()),
    };
    let mut lines = String::new();
    for profile in profiles {
        lines.push_str(&describe(cx, &profile));
        lines.push('\n');
    }
    Ok(text(lines))
}

/// The clients that a filter means.
fn meant(cx: &Ctx<'_>, filter: &Filter) -> Vec<Arc<Profile>> {
    let all = cx.state.clients.values();
    let meant = all.filter(|profile| filter.matches(cx, profile));
    meant.cloned().collect()
}

fn end_all(cx: &mut Ctx<'_>, victims: &[Arc<Profile>]) -> Reply {
    for profile in victims {
        end(cx, profile);
    }
    victims.len().into()
}

/// A client of this process has no address, and none that could be asked for.
fn is_at(own: &str, addr: &[u8]) -> bool {
    !addr.is_empty() && own.as_bytes() == addr
}

fn kill(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    profile(cx);
    if let [_, _, addr] = args {
        let found = cx
            .state
            .clients
            .values()
            .find(|profile| is_at(&profile.addr, addr));
        let Some(found) = found.cloned() else {
            return Err("ERR No such client".into());
        };
        end(cx, &found);
        return Ok(Reply::OK);
    }
    if cx.state.config.compat.is_in(versions::VALKEY) {
        let filter = Filter::parse(cx, &args[2..], true)?;
        let mut victims = meant(cx, &filter);
        // The connection of one that was killed before may not have ended yet.
        victims.retain(|profile| !profile.is_killed());
        return Ok(end_all(cx, &victims));
    }
    let (mut id, mut kind, mut addr, mut laddr, mut skip_me) = (None, None, None, None, true);
    let mut user = None;
    let mut options = args[2..].chunks_exact(2);
    for option in &mut options {
        let (word, value) = (option[0].to_ascii_lowercase(), &option[1]);
        match word.as_slice() {
            b"id" => match parse_int(value) {
                Some(value) if value > 0 => id = Some(value as u64),
                _ => return Err("ERR client-id should be greater than 0".into()),
            },
            b"type" => kind = Some(client_type(cx, value)?),
            b"addr" => addr = Some(value.clone()),
            b"laddr" => laddr = Some(value.clone()),
            b"user" => match cx.state.acl.find(value) {
                Some(account) => user = Some(account),
                None => return Err(format!("ERR No such user '{}'", printable(value)).into()),
            },
            b"skipme" if value.eq_ignore_ascii_case(b"yes") => skip_me = true,
            b"skipme" if value.eq_ignore_ascii_case(b"no") => skip_me = false,
            _ => return Err(SYNTAX.into()),
        }
    }
    if !options.remainder().is_empty() {
        return Err(SYNTAX.into());
    }
    let me = cx.client.id;
    let victims: Vec<Arc<Profile>> = cx
        .state
        .clients
        .values()
        .filter(|profile| {
            id.is_none_or(|id| profile.id == id)
                && kind.is_none_or(|kind| type_of(profile) == kind)
                && addr.as_ref().is_none_or(|addr| is_at(&profile.addr, addr))
                && laddr
                    .as_ref()
                    .is_none_or(|laddr| is_at(&profile.laddr, laddr))
                && user
                    .as_ref()
                    .is_none_or(|user| Arc::ptr_eq(user, &profile.activity.lock().account))
                && !(skip_me && profile.id == me)
        })
        .cloned()
        .collect();
    Ok(end_all(cx, &victims))
}

fn end(cx: &mut Ctx<'_>, profile: &Profile) {
    if profile.id == cx.client.id {
        // It has its reply first.
        cx.client.closing = true;
        return;
    }
    profile.kill();
    let gone = Reply::Error("ERR the client was killed".into());
    blocking::unblock(cx.state, profile.id, Some(gone));
}

fn unblock(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let error = match args.get(3) {
        None => false,
        Some(word) if word.eq_ignore_ascii_case(b"TIMEOUT") => false,
        Some(word) if word.eq_ignore_ascii_case(b"ERROR") => true,
        Some(_) => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into()),
    };
    if args.len() > 4 {
        return Err(SYNTAX.into());
    }
    let id = int_arg(&args[2])?;
    let reply = error.then(|| Reply::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".into()));
    Ok(blocking::unblock(cx.state, id as u64, reply).into())
}

fn pause(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let writes_only = match args.get(3) {
        None => false,
        Some(mode) if mode.eq_ignore_ascii_case(b"WRITE") => true,
        Some(mode) if mode.eq_ignore_ascii_case(b"ALL") => false,
        Some(_) => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
    };
    if args.len() > 4 {
        return Err(SYNTAX.into());
    }
    let Some(millis) = parse_int(&args[2]) else {
        return Err("ERR timeout is not an integer or out of range".into());
    };
    if millis < 0 {
        return Err("ERR timeout is negative".into());
    }
    let until = cx.now_ms().saturating_add(millis);
    let before = cx.state.pause.take();
    // A pause is never shortened by another, and never made weaker.
    let (longest, weaker) = before.map_or((until, true), |pause| {
        (pause.until.max(until), pause.writes_only)
    });
    cx.state.pause = Some(Pause {
        until: longest,
        writes_only: writes_only && weaker,
    });
    cx.state.paused.store(true, Ordering::Relaxed);
    Ok(Reply::OK)
}

fn unpause(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    cx.state.pause = None;
    // A hand-over holds writes back on its own account.
    let holds = cx.state.moves.holds_until().is_some();
    cx.state.paused.store(holds, Ordering::Relaxed);
    cx.state.pause_ended.notify_waiters();
    Ok(Reply::OK)
}

fn reply(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    cx.client.answers = match args[2].to_ascii_lowercase().as_slice() {
        b"on" => Answers::On,
        b"off" => Answers::Off,
        // Of no effect while all replies are off.
        b"skip" if cx.client.answers == Answers::Off => Answers::Off,
        b"skip" => Answers::SkipNext,
        _ => return Err(SYNTAX.into()),
    };
    Ok(Reply::OK)
}

fn on_off(word: &[u8]) -> Result<bool, Stop> {
    if word.eq_ignore_ascii_case(b"on") {
        Ok(true)
    } else if word.eq_ignore_ascii_case(b"off") {
        Ok(false)
    } else {
        Err(SYNTAX.into())
    }
}

/// Clients are never evicted here, so this only shows in CLIENT LIST.
fn no_evict(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let on = on_off(&args[2])?;
    profile(cx).activity.lock().no_evict = on;
    Ok(Reply::OK)
}

/// Newer than Redis 7.0; reads of such a client do not count as use of a key.
fn no_touch(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let on = on_off(&args[2])?;
    cx.client.no_touch = on;
    profile(cx).activity.lock().no_touch = on;
    Ok(Reply::OK)
}
