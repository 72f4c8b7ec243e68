//! FUNCTION, FCALL and FCALL_RO.

use std::time::Instant;

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::{CommandResult, Stop},
    glob,
    number::parse_int,
    rdb,
    registry::{self, Spec, flag::*, keys_counted_second},
    reply::Reply,
    script::{
        self, Call,
        function::{Library, Loader, NOT_FOUND, Policy},
    },
};

const FCALL: u32 = NOSCRIPT | SKIP_MONITOR | MOVABLEKEYS | NO_MANDATORY_KEYS | STALE;

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("fcall", -3, FCALL, (0, 0, 0), fcall).movable(keys_counted_second),
    Spec::new("fcall_ro", -3, FCALL | READONLY, (0, 0, 0), fcall_ro).movable(keys_counted_second),
    Spec::container("function", -2, 0, FUNCTION),
];

static FUNCTION: &[Spec] = &[
    Spec::sub(
        "load",
        "function|load",
        -3,
        WRITE | DENYOOM | NOSCRIPT,
        (0, 0, 0),
        load,
    ),
    Spec::sub(
        "delete",
        "function|delete",
        3,
        WRITE | NOSCRIPT,
        (0, 0, 0),
        delete,
    ),
    Spec::sub("dump", "function|dump", 2, NOSCRIPT, (0, 0, 0), dump),
    Spec::sub(
        "restore",
        "function|restore",
        -3,
        WRITE | DENYOOM | NOSCRIPT,
        (0, 0, 0),
        restore,
    ),
    Spec::sub("list", "function|list", -2, NOSCRIPT, (0, 0, 0), list),
    Spec::sub(
        "flush",
        "function|flush",
        -2,
        WRITE | NOSCRIPT,
        (0, 0, 0),
        flush,
    ),
    Spec::sub(
        "kill",
        "function|kill",
        2,
        NOSCRIPT | ALLOW_BUSY,
        (0, 0, 0),
        kill,
    ),
    Spec::sub(
        "stats",
        "function|stats",
        2,
        NOSCRIPT | ALLOW_BUSY,
        (0, 0, 0),
        stats,
    ),
    Spec::sub("help", "function|help", 2, LOADING | STALE, (0, 0, 0), help),
];

fn fcall(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    call(cx, args, false)
}

fn fcall_ro(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    call(cx, args, true)
}

fn call(cx: &mut Ctx<'_>, args: &[Bytes], read_only: bool) -> CommandResult {
    // As on the server, the name is looked at before the number of keys.
    if cx.state.scripts.functions.find(&args[1]).is_none() {
        return Err(NOT_FOUND.into());
    }
    let count = parse_int(&args[2]).ok_or(Stop::from("ERR Bad number of keys provided"))?;
    if count > args.len() as i64 - 3 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    let Ok(count) = usize::try_from(count) else {
        return Err("ERR Number of keys can't be negative".into());
    };
    let (keys, rest) = args[3..].split_at(count);
    let call = Call {
        command: args,
        keys,
        args: rest,
        read_only,
    };
    script::run_function(cx, &args[1], &call)
}

fn loader(cx: &Ctx<'_>) -> Loader {
    Loader {
        limits: cx.state.scripts.limits,
        watchdog: cx.state.scripts.watchdog.clone(),
        compat: cx.state.config.compat,
        from_log: cx.state.loading,
        began: Instant::now(),
    }
}

fn load(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (code, options) = args[2..]
        .split_last()
        .ok_or(Stop::wrong_arity("function|load"))?;
    let other = options
        .iter()
        .find(|option| !option.eq_ignore_ascii_case(b"replace"));
    if let Some(option) = other {
        let option = registry::printable(option);
        return Err(format!("ERR Unknown option given: {option}").into());
    }
    let loader = loader(cx);
    let functions = &mut cx.state.scripts.functions;
    let name = functions.load(code, !options.is_empty(), &loader)?;
    cx.dirty(1);
    Ok(Reply::Bulk(name))
}

fn delete(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let scripts = &mut cx.state.scripts;
    if !scripts.functions.delete(&args[2], &scripts.watchdog) {
        return Err("ERR Library not found".into());
    }
    cx.dirty(1);
    Ok(Reply::OK)
}

fn flush(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let in_background = match &args[2..] {
        [] => false,
        [how] if how.eq_ignore_ascii_case(b"sync") => false,
        [how] if how.eq_ignore_ascii_case(b"async") => true,
        [_] => return Err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option".into()),
        _ => return Err(wrong_arguments(&args[1])),
    };
    let scripts = &mut cx.state.scripts;
    scripts.functions.flush(&scripts.watchdog, in_background);
    cx.dirty(1);
    Ok(Reply::OK)
}

fn dump(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let libraries = cx.state.scripts.functions.libraries();
    let codes = libraries.map(|library| &library.code);
    let payload = rdb::dump_functions(codes, &cx.state.config);
    Ok(Reply::Bulk(payload.into()))
}

fn restore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let policy = match &args[3..] {
        [] => Policy::Append,
        [word] => match &word.to_ascii_lowercase()[..] {
            b"append" => Policy::Append,
            b"replace" => Policy::Replace,
            b"flush" => Policy::Flush,
            _ => {
                return Err(
                    "ERR Wrong restore policy given, value should be either FLUSH, APPEND \
                            or REPLACE."
                        .into(),
                );
            }
        },
        _ => return Err(wrong_arguments(&args[1])),
    };
    // The time runs from here on.
    let loader = loader(cx);
    let most = match loader.from_log || cx.state.replica.is_some() {
        true => usize::MAX,
        false => cx.state.config.proto_max_bulk_len,
    };
    let codes = rdb::restore_functions(&args[2], most)?;
    let functions = &mut cx.state.scripts.functions;
    functions.restore(&codes, policy, &loader)?;
    cx.dirty(1);
    Ok(Reply::OK)
}

/// What the server says of a subcommand that checks the number of its arguments itself.
fn wrong_arguments(subcommand: &[u8]) -> Stop {
    let subcommand = registry::printable(subcommand);
    format!(
        "ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try FUNCTION HELP."
    )
    .into()
}

fn list(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (mut pattern, mut with_code) = (None, false);
    let mut words = args[2..].iter();
    while let Some(word) = words.next() {
        if !with_code && word.eq_ignore_ascii_case(b"withcode") {
            with_code = true;
        } else if pattern.is_none() && word.eq_ignore_ascii_case(b"libraryname") {
            let name = words.next();
            pattern = Some(name.ok_or("ERR library name argument was not given")?);
        } else {
            let word = registry::printable(word);
            return Err(format!("ERR Unknown argument {word}").into());
        }
    }
    let wanted = |library: &&Library| {
        pattern.is_none_or(|pattern| glob::matches_case(pattern, &library.name, true))
    };
    let libraries = cx.state.scripts.functions.libraries().filter(wanted);
    Ok(Reply::Array(
        libraries
            .map(|library| describe(library, with_code))
            .collect(),
    ))
}

fn describe(library: &Library, with_code: bool) -> Reply {
    let functions = library.functions.iter().map(|function| {
        let flags = function.flags.names().map(Reply::status).collect();
        Reply::Map(vec![
            (Reply::bulk("name"), Reply::Bulk(function.name.clone())),
            (
                Reply::bulk("description"),
                function.description.clone().into(),
            ),
            (Reply::bulk("flags"), Reply::Set(flags)),
        ])
    });
    let mut fields = vec![
        (
            Reply::bulk("library_name"),
            Reply::Bulk(library.name.clone()),
        ),
        (Reply::bulk("engine"), Reply::bulk("LUA")),
        (Reply::bulk("functions"), Reply::Array(functions.collect())),
    ];
    if with_code {
        let code = Reply::Bulk(library.code.clone());
        fields.push((Reply::bulk("library_code"), code));
    }
    Reply::Map(fields)
}

fn kill(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    // With the lock in hand nothing can be running; see `Session` for the other case.
    Err(script::NOT_BUSY.into())
}

fn stats(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    cx.state.scripts.watchdog.stats()
}

fn help(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let lines = [
        "FUNCTION <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "LOAD [REPLACE] <FUNCTION CODE>",
        "    Create a new library with the given library name and code.",
        "DELETE <LIBRARY NAME>",
        "    Delete the given library.",
        "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
        "    Return general information on all the libraries:",
        "    * Library name",
        "    * The engine used to run the Library",
        "    * Library description",
        "    * Functions list",
        "    * Library code (if WITHCODE is given)",
        "    It also possible to get only function that matches a pattern using LIBRARYNAME argument.",
        "STATS",
        "    Return information about the current function running:",
        "    * Function name",
        "    * Command used to run the function",
        "    * Duration in MS that the function is running",
        "    If no function is running, return nil",
        "    In addition, returns a list of available engines.",
        "KILL",
        "    Kill the current running function.",
        "FLUSH [ASYNC|SYNC]",
        "    Delete all the libraries.",
        "    When called without the optional mode argument, the behavior is determined by the",
        "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
        "    * ASYNC: Asynchronously flush the libraries.",
        "    * SYNC: Synchronously flush the libraries.",
        "DUMP",
        "    Return a serialized payload representing the current libraries, can be restored using \
         FUNCTION RESTORE command",
        "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
        "    Restore the libraries represented by the given payload, it is possible to give a restore \
         policy to",
        "    control how to handle existing libraries (default APPEND):",
        "    * FLUSH: delete all existing libraries.",
        "    * APPEND: appends the restored libraries to the existing libraries. On collision, abort.",
        "    * REPLACE: appends the restored libraries to the existing libraries, On collision, \
         replace the old",
        "      libraries with the new libraries (notice that even on this option there is a chance of \
         failure",
        "      in case of functions name collision with another library).",
        "HELP",
        "    Prints this help.",
    ];
    Ok(Reply::Array(lines.map(Reply::status).into()))
}
