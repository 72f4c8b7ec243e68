//! REDSTART: what only this engine has. BACKUP is here, HANDOVER in `handover.rs`.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{handover, keys::help};
use crate::{
    blocking::Wait,
    context::Ctx,
    error::CommandResult,
    registry::{Spec, flag::*},
    reply::Reply,
};

pub(crate) static COMMANDS: &[Spec] = &[Spec::container("redstart", -2, 0, REDSTART)];

static REDSTART: &[Spec] = &[
    Spec::sub(
        "backup",
        "redstart|backup",
        3,
        ADMIN | NOSCRIPT | NO_MULTI | BLOCKING,
        (0, 0, 0),
        backup,
    ),
    Spec::sub(
        "handover",
        "redstart|handover",
        -3,
        ADMIN | NOSCRIPT | NO_MULTI,
        (0, 0, 0),
        handover::handover,
    ),
    Spec::sub(
        "help",
        "redstart|help",
        2,
        LOADING | STALE,
        (0, 0, 0),
        redstart_help,
    ),
];

fn redstart_help(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(help(&[
        "REDSTART <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "BACKUP <directory>",
        "    Copy the append only files, as of this moment, into a new directory of this",
        "    machine. Reply with the number of files and of bytes when they are on the disk.",
        "HANDOVER BEGIN <name>",
        "    Begin a hand-over of that name, or say that it goes on. Others are refused until it",
        "    ends, or is silent for a minute.",
        "HANDOVER WATCH <name> [<most>]",
        "    Note the keys that change from now on; a replica must be there.",
        "HANDOVER CHANGED <name> <count>",
        "    Reply with up to <count> of these keys, behind 0. Instead of 0 it is 1 if databases",
        "    were emptied or swapped, and 2 if more keys changed than are noted.",
        "HANDOVER PAUSE <name> <milliseconds>",
        "    Hold writes back. Reply with a token and with the offset that replicas have to reach.",
        "HANDOVER COMMIT <name> <token> <host> <port>",
        "    Refuse all data commands with REDIRECT <host>:<port>, unless something was",
        "    written since the token was given out: NOTMOVED is the reply then.",
        "HANDOVER ABORT <name>",
        "    End a hand-over before the data has moved: writes go on.",
        "HANDOVER RETURN",
        "    Serve the data here again after it has moved, as it was then. What was written",
        "    elsewhere since is not here. Stores that followed come back when they cannot reach",
        "    the other server; restart them if it still runs.",
        "HANDOVER WHERE",
        "    Reply with the place that the data has moved to, and with the one from which it was",
        "    returned.",
        "HELP",
        "    Prints this help.",
    ]))
}

/// Copies the log in the background; the client waits, nobody else does.
fn backup(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // It writes wherever the server may.
    if !cx.client.is_local() {
        return Err("ERR REDSTART BACKUP is for clients on the server's machine only".into());
    }
    let dir = std::str::from_utf8(&args[2]).ok().map(PathBuf::from);
    let Some(dir) = dir.filter(|dir| dir.is_absolute()) else {
        return Err("ERR the directory must be an absolute path".into());
    };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // Waits are for keys: this one is nobody else's, and it does not exist.
    let key = Bytes::from(format!("\0redstart.backup.{number}"));
    let done: Arc<Mutex<Option<Reply>>> = Arc::default();
    let (slot, ready) = (done.clone(), (cx.client.db, key.clone()));
    let then = move |reply| *slot.lock() = Some(reply);
    cx.state.effects.backup(dir, ready, Box::new(then))?;
    cx.block(Wait {
        keys: vec![key],
        deadline: None,
        synced: None,
        hears_of_absence: true,
        on_timeout: Reply::status("Background backup started"),
        serve: Box::new(move |_, _| Some(done.lock().take()?.into())),
    })
}
