//! ACL: users and what they may do.

use bytes::Bytes;
use rand::RngExt as _;

use crate::{
    acl::{self, catalog::CATALOG, category, log::Entry, selector::Denied, selector::Selector},
    compat::{Compat, versions},
    context::Ctx,
    error::{CommandResult, Stop},
    number::int_arg,
    registry::{self, Spec, flag::*, printable},
    reply::Reply,
};

const ASK: u32 = NOSCRIPT | LOADING | STALE;
const OPERATE: u32 = ADMIN | ASK;
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

pub(crate) static COMMANDS: &[Spec] = &[Spec::container("acl", -2, 0, SUBCOMMANDS)];

static SUBCOMMANDS: &[Spec] = &[
    Spec::sub("cat", "acl|cat", -2, ASK, NO_KEYS, cat),
    Spec::sub("deluser", "acl|deluser", -3, OPERATE, NO_KEYS, deluser),
    Spec::sub("dryrun", "acl|dryrun", -4, OPERATE, NO_KEYS, dryrun),
    Spec::sub("genpass", "acl|genpass", -2, ASK, NO_KEYS, genpass),
    Spec::sub("getuser", "acl|getuser", 3, OPERATE, NO_KEYS, getuser),
    Spec::sub("help", "acl|help", 2, LOADING | STALE, NO_KEYS, help),
    Spec::sub("list", "acl|list", 2, OPERATE, NO_KEYS, list),
    Spec::sub("load", "acl|load", 2, OPERATE, NO_KEYS, load),
    Spec::sub("log", "acl|log", -2, OPERATE, NO_KEYS, log),
    Spec::sub("save", "acl|save", 2, OPERATE, NO_KEYS, save),
    Spec::sub("setuser", "acl|setuser", -3, OPERATE, NO_KEYS, setuser),
    Spec::sub("users", "acl|users", 2, OPERATE, NO_KEYS, users),
    Spec::sub("whoami", "acl|whoami", 2, ASK, NO_KEYS, whoami),
];

fn error(text: impl std::fmt::Display) -> Stop {
    Stop::from(format!("ERR {text}"))
}

fn setuser(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let account = cx.state.acl.set_user(&args[2], &args[3..]).map_err(error)?;
    acl::end_subscribers(cx.state, cx.client, &account);
    Ok(Reply::OK)
}

fn deluser(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args[2..].iter().any(|name| name.as_ref() == acl::DEFAULT) {
        return Err("ERR The 'default' user cannot be removed".into());
    }
    let mut count = 0;
    for name in &args[2..] {
        if let Some(account) = cx.state.acl.remove(name) {
            acl::end_clients(cx.state, cx.client, &account);
            count += 1;
        }
    }
    Ok(Reply::Int(count))
}

fn selector_facts(selector: &Selector, compat: Compat) -> Vec<(Reply, Reply)> {
    vec![
        (
            Reply::bulk("commands"),
            Reply::bulk(selector.describe_commands(compat)),
        ),
        (Reply::bulk("keys"), Reply::bulk(selector.describe_keys())),
        (
            Reply::bulk("channels"),
            Reply::bulk(selector.describe_channels()),
        ),
    ]
}

fn getuser(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(account) = cx.state.acl.find(&args[2]) else {
        return Ok(Reply::Nil);
    };
    let compat = cx.state.config.compat;
    let user = account.user();
    let (own, further) = user.selectors();
    let mut facts = vec![
        (
            Reply::bulk("flags"),
            Reply::Set(user.flags().into_iter().map(Reply::bulk).collect()),
        ),
        (
            Reply::bulk("passwords"),
            Reply::Array(user.passwords().map(Reply::bulk).collect()),
        ),
    ];
    facts.extend(selector_facts(own, compat));
    let further = further
        .iter()
        .map(|one| Reply::Map(selector_facts(one, compat)));
    facts.push((Reply::bulk("selectors"), Reply::Array(further.collect())));
    Ok(Reply::Map(facts))
}

fn list(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let lines = cx
        .state
        .acl
        .list(cx.state.config.compat)
        .into_iter()
        .map(Reply::bulk);
    Ok(Reply::Array(lines.collect()))
}

fn users(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let accounts = cx.state.acl.accounts();
    let names = accounts
        .iter()
        .map(|account| Reply::Bulk(account.name.clone()));
    Ok(Reply::Array(names.collect()))
}

fn whoami(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::Bulk(cx.client.account.name.clone()))
}

fn cat(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    match &args[2..] {
        [] => Ok(Reply::Array(category::NAMES.map(Reply::bulk).into())),
        [name] => {
            let Some(wanted) = category::find(name) else {
                return Err(error(format!("Unknown category '{}'", printable(name))));
            };
            let compat = cx.state.config.compat;
            let commands = CATALOG.commands.iter();
            let named = commands
                .filter(|command| {
                    compat.is_in(command.available) && command.categories & wanted != 0
                })
                .map(|command| Reply::bulk(command.name));
            Ok(Reply::Array(named.collect()))
        }
        _ => Err(wrong(args)),
    }
}

/// What Redis says to a subcommand with too many arguments that its arity lets pass.
fn wrong(args: &[Bytes]) -> Stop {
    error(format!(
        "unknown subcommand or wrong number of arguments for '{}'. Try ACL HELP.",
        printable(&args[1])
    ))
}

fn genpass(_: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let bits = match &args[2..] {
        [] => 256,
        [bits] => int_arg(bits)?,
        _ => return Err(wrong(args)),
    };
    if !(1..=4096).contains(&bits) {
        return Err(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a \
             positive number up to 4096"
                .into(),
        );
    }
    let digits = (bits as usize).div_ceil(4);
    let mut random = rand::rng();
    let digit = |_| char::from_digit(random.random_range(0..16), 16).unwrap_or('0');
    let password: String = (0..digits).map(digit).collect();
    Ok(Reply::bulk(password))
}

fn dryrun(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(account) = cx.state.acl.find(&args[2]) else {
        return Err(error(format!("User '{}' not found", printable(&args[2]))));
    };
    let call = &args[3..];
    let compat = cx.state.config.compat;
    let Some(spec) = registry::lookup(call).filter(|spec| spec.exists_in(compat)) else {
        return Err(error(format!(
            "Command '{}' not found",
            printable(&call[0])
        )));
    };
    if !spec.accepts(call.len(), compat) {
        return Err(Stop::wrong_arity(spec.full_name));
    }
    let verdict = account.user().check(spec, call);
    Ok(match verdict {
        Ok(()) => Reply::OK,
        Err(denied) => {
            let mut text = match compat.is_in(versions::FROM_7_2) {
                true => [b"User ", &args[2][..], b" has no permissions to "].concat(),
                false => b"This user has no permissions to ".to_vec(),
            };
            let (verb, object, kind): (&[u8], &[u8], &[u8]) = match denied {
                Denied::Command => (b"run the '", spec.full_name.as_bytes(), b"' command"),
                Denied::Key(at) => (b"access the '", &call[at], b"' key"),
                Denied::Channel(at) => (b"access the '", &call[at], b"' channel"),
            };
            for part in [verb, object, kind] {
                text.extend_from_slice(part);
            }
            Reply::bulk(text)
        }
    })
}

fn log(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let count = match &args[2..] {
        [] => 10,
        [word] if word.eq_ignore_ascii_case(b"reset") => {
            cx.state.acl.log().clear();
            return Ok(Reply::OK);
        }
        [count] => int_arg(count)?.max(0) as usize,
        _ => return Err(wrong(args)),
    };
    let now = cx.now_micros;
    let log = cx.state.acl.log();
    let entries = log.entries().take(count).map(|entry| describe(entry, now));
    Ok(Reply::Array(entries.collect()))
}

fn describe(entry: &Entry, now: i64) -> Reply {
    let pair = |key: &'static str, value: Reply| (Reply::bulk(key), value);
    let age = ((now - entry.at).max(0) / 1000) as f64 / 1000.0;
    Reply::Map(vec![
        pair("count", Reply::Int(entry.count as i64)),
        pair("reason", Reply::bulk(entry.reason)),
        pair("context", Reply::bulk(entry.source.name())),
        pair("object", Reply::Bulk(entry.object.clone())),
        pair("username", Reply::Bulk(entry.user.clone())),
        pair("age-seconds", Reply::Double(age)),
        pair("client-info", Reply::bulk(&entry.client)),
    ])
}

fn load(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let replaced = cx.state.acl.load().map_err(|problems| {
        if cx.state.acl.file().is_none() {
            return error(problems);
        }
        error(format!(
            "{problems}WARNING: ACL errors detected, no change to the previously active ACL rules \
             was performed"
        ))
    })?;
    for account in &replaced {
        acl::end_clients(cx.state, cx.client, account);
    }
    Ok(Reply::OK)
}

fn save(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    cx.state.acl.save(cx.state.config.compat).map_err(error)?;
    Ok(Reply::OK)
}

fn help(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let lines = [
        "ACL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CAT [<category>]",
        "    List all commands that belong to <category>, or all command categories",
        "    when no category is specified.",
        "DELUSER <username> [<username> ...]",
        "    Delete a list of users.",
        "DRYRUN <username> <command> [<arg> ...]",
        "    Returns whether the user can execute the given command without executing the command.",
        "GETUSER <username>",
        "    Get the user's details.",
        "GENPASS [<bits>]",
        "    Generate a secure 256-bit user password. The optional `bits` argument can",
        "    be used to specify a different size.",
        "LIST",
        "    Show users details in config file format.",
        "LOAD",
        "    Reload users from the ACL file.",
        "LOG [<count> | RESET]",
        "    Show the ACL log entries.",
        "SAVE",
        "    Save the current config to the ACL file.",
        "SETUSER <username> <attribute> [<attribute> ...]",
        "    Create or modify a user with the specified attributes.",
        "USERS",
        "    List all the registered usernames.",
        "WHOAMI",
        "    Return the current connection username.",
        "HELP",
        "    Prints this help.",
    ];
    Ok(Reply::Array(lines.map(Reply::status).into()))
}
