//! MONITOR: every command, told to clients that watch.

use bytes::Bytes;

use crate::{
    context::{Ctx, Origin},
    registry::{Spec, flag},
    reply::Reply,
    stats::slowlog::shown,
};

/// Whether a command is told at all, and whether before it runs: a script's own commands follow it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Telling {
    Never,
    Before,
    After,
}

pub(crate) fn telling(spec: &Spec) -> Telling {
    if spec.is(flag::ADMIN) {
        Telling::Never
    } else if spec.is(flag::SKIP_MONITOR) {
        match spec.name {
            "eval" | "evalsha" | "eval_ro" | "evalsha_ro" | "fcall" | "fcall_ro" => Telling::Before,
            _ => Telling::Never,
        }
    } else {
        Telling::After
    }
}

/// Tells all watching clients of a command.
pub(crate) fn feed(cx: &Ctx<'_>, spec: &Spec, args: &[Bytes]) {
    let now = cx.now_micros;
    let who = match (&cx.client.profile, cx.origin) {
        (_, Origin::Script) => "lua".to_owned(),
        (Some(profile), _) if profile.unix => {
            let path = profile.addr.strip_suffix(":0").unwrap_or(&profile.addr);
            format!("unix:{path}")
        }
        (Some(profile), _) if !profile.addr.is_empty() => profile.addr.clone(),
        _ => "embedded".to_owned(),
    };
    let mut line = format!(
        "{}.{:06} [{} {who}]",
        now / 1_000_000,
        now % 1_000_000,
        cx.client.db
    );
    for arg in shown(spec, args).iter() {
        line.push(' ');
        line.push_str(&crate::config::quote(arg));
    }
    for profile in cx.state.monitors.values() {
        profile.outbox.push_late(Reply::Status(line.clone().into()));
    }
}
