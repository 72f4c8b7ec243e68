//! CONFIG: every setting that Redis 7.0 has, under its names.

use bytes::Bytes;

use super::help::help;
use crate::{
    aof,
    config::{self, Config, Found},
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    eviction, glob, memory,
    registry::{Spec, flag::*, printable},
    reply::Reply,
    stats::Stats,
    tracking,
};

const OPERATE: u32 = ADMIN | NOSCRIPT | LOADING | STALE;
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

pub(crate) static CONFIG_COMMANDS: &[Spec] = &[
    Spec::sub("get", "config|get", -3, OPERATE, NO_KEYS, get),
    Spec::sub("set", "config|set", -4, OPERATE, NO_KEYS, set),
    Spec::sub(
        "resetstat",
        "config|resetstat",
        2,
        OPERATE,
        NO_KEYS,
        resetstat,
    ),
    Spec::sub("rewrite", "config|rewrite", 2, OPERATE, NO_KEYS, rewrite),
    Spec::sub("help", "config|help", 2, LOADING | STALE, NO_KEYS, help),
];

fn get(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let compat = cx.state.config.compat;
    let is_here = |found: &Found| compat.is_in(found.parameter.versions);
    let mut pairs: Vec<(Bytes, Found)> = Vec::new();
    let mut add = |shown: Bytes, found: Found| {
        if !pairs.iter().any(|(_, other)| other.name == found.name) {
            pairs.push((shown, found));
        }
    };
    for pattern in &args[2..] {
        if pattern.iter().any(|byte| b"[*?".contains(byte)) {
            for found in config::names().filter(is_here) {
                let name = found.name.as_bytes();
                if glob::matches_case(pattern, name, true) {
                    add(Bytes::from_static(name), found);
                }
            }
        } else if let Some(found) = config::find(pattern).filter(is_here) {
            // A name is shown as it was asked for.
            add(pattern.clone(), found);
        }
    }
    let config = &cx.state.config;
    let value = |(shown, found): (Bytes, Found)| {
        let value = found.parameter.get(config);
        (Reply::Bulk(shown), Reply::Bulk(value))
    };
    Ok(Reply::Map(pairs.into_iter().map(value).collect()))
}

fn failed(name: &str, why: &str) -> Stop {
    Stop::from(format!(
        "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
    ))
}

fn set(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if !args.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    let mut wanted: Vec<(Found, &Bytes)> = Vec::new();
    for pair in args[2..].chunks_exact(2) {
        let compat = cx.state.config.compat;
        let is_here = |found: &Found| compat.is_in(found.parameter.versions);
        let Some(found) = config::find(&pair[0]).filter(is_here) else {
            return Err(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{}'",
                printable(&pair[0])
            )
            .into());
        };
        if found.parameter.immutable {
            return Err(failed(&printable(&pair[0]), "can't set immutable config"));
        }
        if found.parameter.protected && !may_set_protected(cx) {
            return Err(failed(&printable(&pair[0]), "can't set protected config"));
        }
        if wanted.iter().any(|(other, _)| other.name == found.name) {
            return Err(failed(&printable(&pair[0]), "duplicate parameter"));
        }
        wanted.push((found, &pair[1]));
    }
    // All of them or none.
    let mut changed = cx.state.config.clone();
    for (found, value) in &wanted {
        let words = match found.parameter.takes_words() {
            false => vec![(*value).clone()],
            true if value.is_empty() => Vec::new(),
            true => value
                .split(|byte| *byte == b' ')
                .map(Bytes::copy_from_slice)
                .collect(),
        };
        found
            .parameter
            .set(&mut changed, &words)
            .map_err(|why| failed(found.name, &why))?;
    }
    adopt(cx, changed).map_err(|(name, why)| failed(name, &why))?;
    Ok(Reply::OK)
}

/// Whether the client may change settings that could harm the machine.
fn may_set_protected(cx: &Ctx<'_>) -> bool {
    let remembered = &cx.state.config.remembered;
    match remembered
        .get("enable-protected-configs")
        .map(|word| word.as_ref())
    {
        Some(b"yes") => true,
        Some(b"local") => cx.client.is_local(),
        _ => false,
    }
}

/// Carries out what changed settings mean; on failure nothing has changed.
fn adopt(cx: &mut Ctx<'_>, changed: Config) -> Result<(), (&'static str, String)> {
    let state = &mut *cx.state;
    let before = std::mem::replace(&mut state.config, changed);
    if let Err(error) = aof::follow_config(state, &before) {
        state.config = before;
        return Err(("appendonly", error));
    }
    let counted = before.maxmemory > 0;
    state.out_of_memory = false;
    if state.config.maxmemory > 0 {
        if !counted {
            memory::measure_all(state);
        }
        state.pool.clear();
        memory::measure_buffers(state);
        state.scripts.recount();
        // What another server has is its own to remove.
        if state.replica.is_none() {
            eviction::make_room(state, cx.now_micros);
        }
    }
    tracking::trim(state, 0);
    let limit = state.config.output_limits[2].hard;
    for profile in state.clients.values() {
        profile.outbox.set_limit(limit as usize);
    }
    if state.config.password != before.password {
        let password = state.config.password.as_deref();
        state.acl.set_default_password(password);
    }
    state.acl.follow_config(&state.config);
    state.feed.follow_config(&state.config);
    Ok(())
}

fn resetstat(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    cx.state.stats = Stats::default();
    if let Some(inner) = cx.state.inner.upgrade() {
        inner.traffic.reset();
    }
    Ok(Reply::OK)
}

fn rewrite(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let config = &cx.state.config;
    let Some(path) = &config.file else {
        return Err("ERR The server is running without a config file".into());
    };
    if config.users_included {
        // They would be in two files, which the next start refuses.
        return Err(
            "ERR Rewriting config file: users are defined in an included file; \
             move them to the main file or to an ACL file"
                .into(),
        );
    }
    let users = match cx.state.acl.file() {
        Some(_) => Vec::new(),
        None => cx
            .state
            .acl
            .list_changed(config.password.as_deref(), config.compat),
    };
    match config::rewrite(config, &users, path) {
        Ok(()) => Ok(Reply::OK),
        Err(error) => Err(format!("ERR Rewriting config file: {error}").into()),
    }
}
