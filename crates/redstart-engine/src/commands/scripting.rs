//! EVAL and its relatives, SCRIPT.

use bytes::Bytes;

use crate::{
    compat::versions,
    context::Ctx,
    error::{CommandResult, NOT_INTEGER, Stop},
    number::parse_int,
    registry::{Spec, flag::*, keys_counted_second},
    reply::Reply,
    script::{self, Call},
};

const EVAL: u32 = NOSCRIPT | SKIP_MONITOR | MOVABLEKEYS | NO_MANDATORY_KEYS | STALE;

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("eval", -3, EVAL, (0, 0, 0), eval).movable(keys_counted_second),
    Spec::new("evalsha", -3, EVAL, (0, 0, 0), evalsha).movable(keys_counted_second),
    Spec::new("eval_ro", -3, EVAL | READONLY, (0, 0, 0), eval_ro).movable(keys_counted_second),
    Spec::new("evalsha_ro", -3, EVAL | READONLY, (0, 0, 0), evalsha_ro)
        .movable(keys_counted_second),
    Spec::container("script", -2, 0, SCRIPT),
];

static SCRIPT: &[Spec] = &[
    Spec::sub("load", "script|load", 3, NOSCRIPT | STALE, (0, 0, 0), load),
    Spec::sub("exists", "script|exists", -3, NOSCRIPT, (0, 0, 0), exists),
    Spec::sub("flush", "script|flush", -2, NOSCRIPT, (0, 0, 0), flush),
    Spec::sub(
        "kill",
        "script|kill",
        2,
        NOSCRIPT | ALLOW_BUSY,
        (0, 0, 0),
        kill,
    ),
    Spec::sub("debug", "script|debug", 3, NOSCRIPT, (0, 0, 0), debug),
    Spec::sub("show", "script|show", 3, NOSCRIPT | STALE, (0, 0, 0), show).only(versions::VALKEY),
    Spec::sub("help", "script|help", 2, LOADING | STALE, (0, 0, 0), help),
];

fn eval(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let call = split(args, false)?;
    let digest = cx.state.scripts.load(&args[1], false)?;
    script::run(cx, &digest, &call)
}

fn eval_ro(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let call = split(args, true)?;
    let digest = cx.state.scripts.load(&args[1], false)?;
    script::run(cx, &digest, &call)
}

fn evalsha(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    run_known(cx, args, false)
}

fn evalsha_ro(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    run_known(cx, args, true)
}

fn run_known(cx: &mut Ctx<'_>, args: &[Bytes], read_only: bool) -> CommandResult {
    // As on the server, the digest's length is looked at before the number of keys.
    let missing = || Stop::from("NOSCRIPT No matching script. Please use EVAL.");
    if args[1].len() != 40 {
        return Err(missing());
    }
    let call = split(args, read_only)?;
    let digest = script::parse_digest(&args[1]).ok_or_else(missing)?;
    script::run(cx, &digest, &call)
}

/// Keys and arguments of an EVAL.
fn split(args: &[Bytes], read_only: bool) -> Result<Call<'_>, Stop> {
    let count = parse_int(&args[2]).ok_or(Stop::from(NOT_INTEGER))?;
    if count > args.len() as i64 - 3 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    let Ok(count) = usize::try_from(count) else {
        return Err("ERR Number of keys can't be negative".into());
    };
    let (keys, rest) = args[3..].split_at(count);
    Ok(Call {
        command: args,
        keys,
        args: rest,
        read_only,
    })
}

fn load(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let digest = cx.state.scripts.load(&args[2], true)?;
    Ok(Reply::Bulk(script::hex(&digest).into()))
}

fn exists(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let known = args[2..].iter().map(|sha| {
        let known =
            script::parse_digest(sha).is_some_and(|digest| cx.state.scripts.contains(&digest));
        Reply::from(known)
    });
    Ok(Reply::Array(known.collect()))
}

fn flush(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let in_background = match &args[2..] {
        [] => false,
        [how] if how.eq_ignore_ascii_case(b"sync") => false,
        [how] if how.eq_ignore_ascii_case(b"async") => true,
        _ => return Err("ERR SCRIPT FLUSH only support SYNC|ASYNC option".into()),
    };
    cx.state.scripts.flush(in_background);
    Ok(Reply::OK)
}

fn kill(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    // With the lock in hand nothing can be running; see `Session` for the other case.
    Err(script::NOT_BUSY.into())
}

fn show(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let digest = script::parse_digest(&args[2]);
    let text = digest.and_then(|digest| cx.state.scripts.text(&digest));
    text.map(Reply::Bulk)
        .ok_or(Stop::from("NOSCRIPT No matching script."))
}

fn debug(_: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let how = &args[2];
    if how.eq_ignore_ascii_case(b"no") {
        Ok(Reply::OK)
    } else if how.eq_ignore_ascii_case(b"yes") || how.eq_ignore_ascii_case(b"sync") {
        Err("ERR the script debugger is not available".into())
    } else {
        Err("ERR Use SCRIPT DEBUG YES/SYNC/NO".into())
    }
}

fn help(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let lines = [
        "SCRIPT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "DEBUG (YES|SYNC|NO)",
        "    Set the debug mode for subsequent scripts executed.",
        "EXISTS <sha1> [<sha1> ...]",
        "    Return information about the existence of the scripts in the script cache.",
        "FLUSH [ASYNC|SYNC]",
        "    Flush the Lua scripts cache. Very dangerous on replicas.",
        "    When called without the optional mode argument, the behavior is determined by the",
        "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
        "    * ASYNC: Asynchronously flush the scripts cache.",
        "    * SYNC: Synchronously flush the scripts cache.",
        "KILL",
        "    Kill the currently executing Lua script.",
        "LOAD <script>",
        "    Load a script into the scripts cache without executing it.",
        "HELP",
        "    Prints this help.",
    ];
    Ok(Reply::Array(lines.map(Reply::status).into()))
}
