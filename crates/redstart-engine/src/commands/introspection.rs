//! COMMAND: the table of commands, told to clients.

use bytes::Bytes;

use crate::{
    acl::category,
    compat::Compat,
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    glob,
    registry::{
        self, Spec,
        facts::{self, Facts, KeySpec},
        flag::*,
        flag_names,
    },
    reply::Reply,
};

const ASK: u32 = LOADING | STALE;
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

pub(crate) const COMMAND: Spec = Spec {
    subcommands: COMMAND_COMMANDS,
    ..Spec::new("command", -1, ASK, NO_KEYS, all)
};

static COMMAND_COMMANDS: &[Spec] = &[
    Spec::sub("count", "command|count", 2, ASK, NO_KEYS, count),
    Spec::sub("info", "command|info", -2, ASK, NO_KEYS, info),
    Spec::sub("docs", "command|docs", -2, ASK, NO_KEYS, docs),
    Spec::sub("list", "command|list", -2, ASK, NO_KEYS, list),
    Spec::sub("getkeys", "command|getkeys", -4, ASK, NO_KEYS, getkeys).newer_arity(-3),
    Spec::sub(
        "getkeysandflags",
        "command|getkeysandflags",
        -4,
        ASK,
        NO_KEYS,
        getkeysandflags,
    )
    .newer_arity(-3),
    Spec::sub("help", "command|help", 2, ASK, NO_KEYS, super::help::help),
];

fn count(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(registry::of(cx.state.config.compat).count().into())
}

fn all(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let compat = cx.state.config.compat;
    let specs = registry::of(compat).map(|spec| describe(spec, compat));
    Ok(Reply::Array(specs.collect()))
}

fn info(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args.len() == 2 {
        return all(cx, args);
    }
    let compat = cx.state.config.compat;
    let found = args[2..].iter().map(|name| named(name, compat));
    Ok(Reply::Array(
        found
            .map(|spec| spec.map_or(Reply::Nil, |spec| describe(spec, compat)))
            .collect(),
    ))
}

/// The command of that name, a subcommand as `container|subcommand`.
fn named(name: &[u8], compat: Compat) -> Option<&'static Spec> {
    let mut words = name.splitn(2, |&byte| byte == b'|');
    let spec = registry::command(words.next()?).filter(|spec| spec.exists_in(compat))?;
    match words.next() {
        None => Some(spec),
        Some(word) => spec
            .subcommands_in(compat)
            .find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(word)),
    }
}

fn status(text: &'static str) -> Reply {
    Reply::status(text)
}

fn describe(spec: &'static Spec, compat: Compat) -> Reply {
    let (first, last, step) = spec.keys;
    let step = if first == 0 { 0 } else { step };
    let subcommands = spec
        .subcommands_in(compat)
        .map(|sub| describe(sub, compat))
        .collect();
    let facts = facts::of(spec, compat);
    let arity = facts.and_then(Facts::arity);
    let flags = match facts.and_then(Facts::flags) {
        Some(flags) => flags
            .into_iter()
            .map(|name| Reply::Status(name.into()))
            .collect(),
        None => flag_names(spec.flags).map(status).collect(),
    };
    let categories = match facts.and_then(Facts::categories) {
        Some(names) => names
            .into_iter()
            .map(|name| Reply::Status(name.into()))
            .collect(),
        None => category::names(spec)
            .map(|name| Reply::Status(name.into()))
            .collect(),
    };
    Reply::Array(vec![
        Reply::bulk(spec.full_name),
        Reply::Int(arity.unwrap_or_else(|| spec.arity_in(compat).into())),
        Reply::Set(flags),
        Reply::Int(first.into()),
        Reply::Int(last.into()),
        Reply::Int(step.into()),
        Reply::Set(categories),
        Reply::Set(tips(spec, compat)),
        Reply::Set(key_specs(spec, compat)),
        Reply::Set(subcommands),
    ])
}

fn tips(spec: &Spec, compat: Compat) -> Vec<Reply> {
    let tips = facts::of(spec, compat)
        .into_iter()
        .flat_map(|facts| &facts.tips);
    tips.map(Reply::bulk).collect()
}

fn access(spec: &Spec) -> Vec<Reply> {
    let flags: &[&'static str] = if spec.is(NOT_KEYS) {
        &["not_key"]
    } else if spec.is(WRITE) {
        &["RW", "access", "update"]
    } else {
        &["RO", "access"]
    };
    flags.iter().copied().map(Reply::status).collect()
}

fn key_specs(spec: &'static Spec, compat: Compat) -> Vec<Reply> {
    if let Some(facts) = facts::of(spec, compat) {
        return facts.keys.iter().map(KeySpec::describe).collect();
    }
    let (first, last, step) = spec.keys;
    if first == 0 {
        return Vec::new();
    }
    let pair = |key: &'static str, value: Reply| (Reply::bulk(key), value);
    let begin = vec![
        pair("type", Reply::bulk("index")),
        pair(
            "spec",
            Reply::Map(vec![pair("index", Reply::Int(first.into()))]),
        ),
    ];
    // The last key counts from the first one here, and from the end if negative.
    let last = if last >= 0 { last - first } else { last };
    let find = vec![
        pair("type", Reply::bulk("range")),
        pair(
            "spec",
            Reply::Map(vec![
                pair("lastkey", Reply::Int(last.into())),
                pair("keystep", Reply::Int(step.into())),
                pair("limit", Reply::ZERO),
            ]),
        ),
    ];
    vec![Reply::Map(vec![
        pair("flags", Reply::Set(access(spec))),
        pair("begin_search", Reply::Map(begin)),
        pair("find_keys", Reply::Map(find)),
    ])]
}

fn docs(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let compat = cx.state.config.compat;
    let specs: Vec<&'static Spec> = if args.len() == 2 {
        registry::of(compat).collect()
    } else {
        let names = args[2..].iter();
        names.filter_map(|name| named(name, compat)).collect()
    };
    Ok(Reply::Map(
        specs
            .into_iter()
            .map(|spec| document(spec, compat))
            .collect(),
    ))
}

fn document(spec: &'static Spec, compat: Compat) -> (Reply, Reply) {
    let mut facts = match facts::of(spec, compat) {
        Some(facts) => facts.document(),
        None => vec![(Reply::bulk("group"), Reply::bulk(registry::group(spec)))],
    };
    if !spec.subcommands.is_empty() {
        let subcommands = spec.subcommands_in(compat);
        let subcommands = subcommands.map(|sub| document(sub, compat)).collect();
        facts.push((Reply::bulk("subcommands"), Reply::Map(subcommands)));
    }
    (Reply::bulk(spec.full_name), Reply::Map(facts))
}

fn list(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let compat = cx.state.config.compat;
    let with_subcommands =
        |spec: &'static Spec| std::iter::once(spec).chain(spec.subcommands_in(compat));
    let all = registry::of(compat).flat_map(with_subcommands);
    let names: Vec<Reply> = match &args[2..] {
        [] => all.map(|spec| Reply::bulk(spec.full_name)).collect(),
        [word, kind, value] if word.eq_ignore_ascii_case(b"FILTERBY") => {
            let kind = kind.to_ascii_lowercase();
            let wanted = |spec: &&'static Spec| match kind.as_slice() {
                b"pattern" => glob::matches_case(value, spec.full_name.as_bytes(), true),
                b"aclcat" => match facts::of(spec, compat).and_then(Facts::categories) {
                    Some(names) => {
                        let is_it =
                            |name: &String| name.as_bytes()[1..].eq_ignore_ascii_case(value);
                        names.iter().any(is_it)
                    }
                    None => {
                        category::find(value).is_some_and(|wanted| category::of(spec) & wanted != 0)
                    }
                },
                _ => false,
            };
            if !matches!(kind.as_slice(), b"pattern" | b"aclcat" | b"module") {
                return Err(SYNTAX.into());
            }
            all.filter(wanted)
                .map(|spec| Reply::bulk(spec.full_name))
                .collect()
        }
        _ => return Err(SYNTAX.into()),
    };
    Ok(Reply::Array(names))
}

/// The command in the arguments and the places of its keys.
fn keys(args: &[Bytes], compat: Compat) -> Result<(&'static Spec, Vec<usize>), Stop> {
    let Some(spec) = registry::lookup(args).filter(|spec| spec.exists_in(compat)) else {
        return Err("ERR Invalid command specified".into());
    };
    if spec.is(NOT_KEYS) || spec.keys.0 == 0 && spec.movable.is_none() {
        return Err("ERR The command has no key arguments".into());
    }
    if !spec.accepts(args.len(), compat) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let mut places = Vec::new();
    spec.each_key(args, |at| places.push(at));
    if places.is_empty() && !spec.is(NO_MANDATORY_KEYS) {
        return Err("ERR Invalid arguments specified for command".into());
    }
    Ok((spec, places))
}

fn getkeys(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let args = &args[2..];
    let (_, places) = keys(args, cx.state.config.compat)?;
    let keys = places.into_iter().map(|at| Reply::Bulk(args[at].clone()));
    Ok(Reply::Array(keys.collect()))
}

fn getkeysandflags(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let args = &args[2..];
    let compat = cx.state.config.compat;
    let (spec, places) = keys(args, compat)?;
    let used = match facts::of(spec, compat) {
        Some(facts) => by_facts(spec, facts, args, &places),
        None => places
            .into_iter()
            .map(|at| (at, Reply::Set(access(spec))))
            .collect(),
    };
    let keys = used
        .into_iter()
        .map(|(at, flags)| Reply::Array(vec![Reply::Bulk(args[at].clone()), flags]));
    Ok(Reply::Array(keys.collect()))
}

/// The places of the keys with their use. Where that depends on the arguments, they are looked at.
fn by_facts(
    spec: &'static Spec,
    facts: &'static Facts,
    args: &[Bytes],
    places: &[usize],
) -> Vec<(usize, Reply)> {
    const READS: &[&str] = &["RO", "access"];
    const WRITES: &[&str] = &["OW", "update"];
    const CHANGES: &[&str] = &["RW", "access", "update"];
    let has = |words: &[&str]| {
        let fits = |arg: &Bytes| {
            words
                .iter()
                .any(|word| arg.eq_ignore_ascii_case(word.as_bytes()))
        };
        args[2..].iter().any(fits)
    };
    let first = match spec.name {
        "set" if has(&["GET"]) => CHANGES,
        "set" => WRITES,
        "bitfield" if has(&["SET", "INCRBY"]) => CHANGES,
        "bitfield" | "sort" | "sort_ro" | "georadius" | "georadiusbymember" => READS,
        _ => {
            let found = facts.keys.iter().flat_map(|keys| {
                let places = keys.places(args).unwrap_or_default().into_iter();
                places.map(|at| (at, keys.flags()))
            });
            return found.collect();
        }
    };
    let flags =
        |names: &[&'static str]| Reply::Set(names.iter().map(|n| Reply::status(n)).collect());
    let place = |(number, at): (usize, &usize)| match number {
        0 => (*at, flags(first)),
        _ => (*at, flags(WRITES)),
    };
    places.iter().enumerate().map(place).collect()
}
