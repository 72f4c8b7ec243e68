//! CONFIG: the settings that exist here, under Redis's names.

use bytes::Bytes;

use crate::{
    config::{Config, MemoryPolicy},
    context::Ctx,
    engine::{State, Stats},
    error::{CommandResult, Stop},
    glob, memory,
    notify::class,
    number::parse_int,
    registry::{Spec, flag::*, printable},
    reply::Reply,
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
];

/// Changes a setting, or says what is wrong with the value.
type Change = fn(&mut Config, &[u8]) -> Result<(), String>;

/// A setting: its name, how to read it, and how to change it if that can be done.
struct Setting {
    name: &'static str,
    get: fn(&State) -> String,
    set: Option<Change>,
}

const fn fixed(name: &'static str, get: fn(&State) -> String) -> Setting {
    Setting {
        name,
        get,
        set: None,
    }
}

macro_rules! number {
    ($name:literal, $field:ident, $min:expr, $max:expr) => {
        Setting {
            name: $name,
            get: |state| state.config.$field.to_string(),
            set: Some(|config, text| {
                config.$field = number(text, $min, $max)? as _;
                Ok(())
            }),
        }
    };
}

macro_rules! memory {
    ($name:literal, $field:ident) => {
        Setting {
            name: $name,
            get: |state| state.config.$field.to_string(),
            set: Some(|config, text| {
                config.$field = memory(text).ok_or("argument must be a memory value")? as _;
                Ok(())
            }),
        }
    };
}

static SETTINGS: &[Setting] = &[
    fixed("databases", |state| state.dbs.len().to_string()),
    fixed("port", |state| state.config.port.to_string()),
    fixed("save", |_| String::new()),
    fixed("cluster-enabled", |_| "no".into()),
    fixed("appendonly", |state| {
        if state.effects.enabled() { "yes" } else { "no" }.into()
    }),
    fixed("appenddirname", |_| "appendonlydir".into()),
    fixed("appendfilename", |_| "appendonly.aof".into()),
    memory!("maxmemory", maxmemory),
    Setting {
        name: "maxmemory-policy",
        get: |state| {
            match state.config.policy {
                MemoryPolicy::NoEviction => "noeviction",
                MemoryPolicy::AllKeysLru => "allkeys-lru",
            }
            .into()
        },
        set: Some(|config, text| {
            config.policy = match text.to_ascii_lowercase().as_slice() {
                b"noeviction" => MemoryPolicy::NoEviction,
                b"allkeys-lru" => MemoryPolicy::AllKeysLru,
                _ => {
                    return Err(
                        "argument(s) must be one of the following: allkeys-lru, noeviction".into(),
                    );
                }
            };
            Ok(())
        }),
    },
    Setting {
        name: "notify-keyspace-events",
        get: |state| events_text(state.config.notify),
        set: Some(|config, text| {
            config.notify = parse_events(text)
                .ok_or("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")?;
            Ok(())
        }),
    },
    Setting {
        name: "requirepass",
        get: |state| state.config.password.clone().unwrap_or_default(),
        set: Some(|config, text| {
            let text = String::from_utf8(text.to_vec()).map_err(|_| "not valid UTF-8")?;
            config.password = (!text.is_empty()).then_some(text);
            Ok(())
        }),
    },
    number!(
        "hash-max-listpack-entries",
        hash_max_listpack_entries,
        0,
        i64::MAX
    ),
    number!(
        "hash-max-ziplist-entries",
        hash_max_listpack_entries,
        0,
        i64::MAX
    ),
    memory!("hash-max-listpack-value", hash_max_listpack_value),
    memory!("hash-max-ziplist-value", hash_max_listpack_value),
    number!(
        "set-max-intset-entries",
        set_max_intset_entries,
        0,
        i64::MAX
    ),
    number!(
        "zset-max-listpack-entries",
        zset_max_listpack_entries,
        0,
        i64::MAX
    ),
    number!(
        "zset-max-ziplist-entries",
        zset_max_listpack_entries,
        0,
        i64::MAX
    ),
    memory!("zset-max-listpack-value", zset_max_listpack_value),
    memory!("zset-max-ziplist-value", zset_max_listpack_value),
    number!(
        "stream-node-max-entries",
        stream_node_max_entries,
        0,
        i64::MAX
    ),
    memory!("proto-max-bulk-len", proto_max_bulk_len),
    memory!("client-query-buffer-limit", query_buffer_limit),
    number!("maxclients", maxclients, 1, 4_294_967_295),
    number!("timeout", timeout, 0, 2_147_483_647),
    number!("lua-time-limit", script_time_limit, 0, i64::MAX),
    number!("busy-reply-threshold", script_time_limit, 0, i64::MAX),
];

fn find(name: &[u8]) -> Option<&'static Setting> {
    SETTINGS
        .iter()
        .find(|setting| setting.name.as_bytes().eq_ignore_ascii_case(name))
}

fn get(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut pairs = Vec::new();
    for setting in SETTINGS {
        let name = setting.name.as_bytes();
        if args[2..].iter().any(|p| glob::matches_case(p, name, true)) {
            pairs.push((Reply::bulk(name), Reply::bulk((setting.get)(cx.state))));
        }
    }
    Ok(Reply::Map(pairs))
}

fn set(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if !args.len().is_multiple_of(2) {
        return Err(Stop::wrong_arity("config|set"));
    }
    let failed = |name: &str, why: &str| {
        Stop::from(format!(
            "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
        ))
    };
    let mut seen: Vec<&str> = Vec::new();
    let mut changed = cx.state.config.clone();
    for pair in args[2..].chunks_exact(2) {
        let Some(setting) = find(&pair[0]) else {
            return Err(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{}'",
                printable(&pair[0])
            )
            .into());
        };
        if seen.contains(&setting.name) {
            return Err(failed(setting.name, "duplicate parameter"));
        }
        seen.push(setting.name);
        let Some(set) = setting.set else {
            return Err(failed(setting.name, "can't set immutable config"));
        };
        set(&mut changed, &pair[1]).map_err(|why| failed(setting.name, &why))?;
    }
    // All of them or none.
    let counted = cx.state.config.maxmemory > 0;
    cx.state.config = changed;
    cx.state.out_of_memory = false;
    if cx.state.config.maxmemory > 0 {
        if !counted {
            memory::measure_all(cx.state);
        }
        memory::make_room(cx.state, cx.now_micros);
    }
    *cx.state.password.lock() = cx.state.config.password.clone();
    Ok(Reply::OK)
}

fn resetstat(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    cx.state.stats = Stats::default();
    Ok(Reply::OK)
}

fn rewrite(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Err("ERR The server is running without a config file".into())
}

fn number(text: &[u8], min: i64, max: i64) -> Result<i64, String> {
    let value = parse_int(text).ok_or("argument couldn't be parsed into an integer")?;
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(format!(
            "argument must be between {min} and {max} inclusive"
        ))
    }
}

/// A number of bytes with an optional unit: `k` is a thousand, `kb` is 1024, and so on.
pub(super) fn memory(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let factor = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(factor)
}

/// The classes that `A` means.
const ALL_EVENTS: u32 = class::GENERIC
    | class::STRING
    | class::LIST
    | class::SET
    | class::HASH
    | class::SORTED_SET
    | class::EXPIRED
    | class::EVICTED
    | class::STREAM
    | class::MODULE;

const EVENT_LETTERS: [(u8, u32); 12] = [
    (b'g', class::GENERIC),
    (b'$', class::STRING),
    (b'l', class::LIST),
    (b's', class::SET),
    (b'h', class::HASH),
    (b'z', class::SORTED_SET),
    (b'x', class::EXPIRED),
    (b'e', class::EVICTED),
    (b't', class::STREAM),
    (b'd', class::MODULE),
    (b'n', class::NEW),
    (b'K', class::KEYSPACE),
];

fn parse_events(text: &[u8]) -> Option<u32> {
    let mut classes = 0;
    for letter in text {
        classes |= match letter {
            b'A' => ALL_EVENTS,
            b'E' => class::KEYEVENT,
            b'm' => class::KEY_MISS,
            letter => EVENT_LETTERS.iter().find(|(l, _)| l == letter)?.1,
        };
    }
    Some(classes)
}

/// As Redis prints it, with `A` where all of its classes are on.
fn events_text(classes: u32) -> String {
    let mut text = String::new();
    let all = classes & ALL_EVENTS == ALL_EVENTS;
    if all {
        text.push('A');
    } else {
        for (letter, bit) in EVENT_LETTERS {
            if bit != class::KEYSPACE && classes & bit != 0 {
                text.push(letter as char);
            }
        }
    }
    for (letter, bit) in [
        ('K', class::KEYSPACE),
        ('E', class::KEYEVENT),
        ('m', class::KEY_MISS),
    ] {
        if classes & bit != 0 {
            text.push(letter);
        }
    }
    text
}
