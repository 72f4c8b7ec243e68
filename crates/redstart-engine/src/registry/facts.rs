//! What COMMAND tells of a command beyond what the engine acts on: since when it exists, its
//! category, its arguments and how it uses its keys.
//!
//! `facts.json` was made from the replies of a redis-server 7.0, and `facts-valkey.json` has what a
//! valkey-server 9.1 says otherwise or in addition; the summaries are our own, and a complexity is its
//! formula only. Differential tests compare the whole.

use std::{collections::HashMap, sync::LazyLock};

use bytes::Bytes;
use serde_json::{Map, Value};

use super::Spec;
use crate::{
    compat::{Compat, versions},
    number::parse_int,
    reply::Reply,
};

pub(crate) struct Facts {
    /// A map from the fields of COMMAND DOCS to their values.
    document: Value,
    /// Arguments have the text by which they are shown.
    display_texts: bool,
    pub(crate) tips: Vec<String>,
    pub(crate) keys: Vec<KeySpec>,
}

/// Where some keys of a command are, and how it uses them.
pub(crate) struct KeySpec {
    pub(crate) flags: Vec<String>,
    begin: Part,
    find: Part,
}

/// A kind of search with its numbers and words.
struct Part {
    kind: String,
    fields: Vec<(String, Value)>,
}

type Table = HashMap<String, Facts>;

/// Of Redis 7.0.
static REDIS: LazyLock<Table> = LazyLock::new(|| {
    let commands = parse(include_str!("facts.json")).into_iter();
    let facts = commands.map(|(name, document)| (name, Facts::new(document, false)));
    facts.collect()
});

/// Of Valkey 9.1: what Redis 7.0 says, with what Valkey says instead.
static VALKEY: LazyLock<Table> = LazyLock::new(|| {
    let mut commands = parse(include_str!("facts.json"));
    for (name, changes) in parse(include_str!("facts-valkey.json")) {
        let Value::Object(changes) = changes else {
            continue;
        };
        let document = commands
            .entry(name)
            .or_insert_with(|| Value::Object(Map::new()));
        for (field, value) in changes {
            document[field] = value;
        }
    }
    let facts = commands.into_iter();
    let facts = facts.map(|(name, document)| (name, Facts::new(document, true)));
    facts.collect()
});

fn parse(text: &str) -> Map<String, Value> {
    match serde_json::from_str(text) {
        Ok(Value::Object(commands)) => commands,
        _ => Map::new(),
    }
}

/// What is known of a command; nothing if neither server has one of that name.
pub(crate) fn of(spec: &Spec, compat: Compat) -> Option<&'static Facts> {
    let is_valkey = compat.is_in(versions::VALKEY);
    let redis = (!is_valkey).then(|| REDIS.get(spec.full_name)).flatten();
    redis.or_else(|| VALKEY.get(spec.full_name))
}

fn words(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    let text = |item: &Value| item.as_str().unwrap_or_default().to_owned();
    items.map(text).collect()
}

impl Facts {
    fn new(document: Value, display_texts: bool) -> Facts {
        let specs = document["keys"].as_array().into_iter().flatten();
        let part = |value: &Value| {
            let flat = value[1].as_array().cloned().unwrap_or_default();
            let pair = |pair: &[Value]| {
                let name = pair[0].as_str().unwrap_or_default().to_owned();
                (name, pair[1].clone())
            };
            Part {
                kind: value[0].as_str().unwrap_or_default().to_owned(),
                fields: flat.chunks_exact(2).map(pair).collect(),
            }
        };
        let keys = specs
            .map(|spec| KeySpec {
                flags: words(&spec["flags"]),
                begin: part(&spec["begin"]),
                find: part(&spec["find"]),
            })
            .collect();
        Facts {
            tips: words(&document["tips"]),
            keys,
            document,
            display_texts,
        }
    }

    /// What COMMAND INFO shows instead of what the engine acts on.
    pub(crate) fn arity(&self) -> Option<i64> {
        self.document["arity"].as_i64()
    }

    /// As [`Facts::arity`].
    pub(crate) fn flags(&self) -> Option<Vec<String>> {
        let flags = &self.document["flags"];
        flags.is_array().then(|| words(flags))
    }

    /// As [`Facts::arity`].
    pub(crate) fn categories(&self) -> Option<Vec<String>> {
        let categories = &self.document["categories"];
        (self.display_texts && categories.is_array()).then(|| words(categories))
    }

    /// The fields of COMMAND DOCS, without subcommands.
    pub(crate) fn document(&self) -> Vec<(Reply, Reply)> {
        const FIELDS: [&str; 7] = [
            "summary",
            "since",
            "group",
            "complexity",
            "doc_flags",
            "deprecated_since",
            "arguments",
        ];
        fields(&self.document, &FIELDS, self.display_texts)
    }
}

/// The fields that there are, in this order.
fn fields(value: &Value, names: &[&str], texts: bool) -> Vec<(Reply, Reply)> {
    let present = names.iter().filter(|name| !value[*name].is_null());
    let pair = |name: &&str| (Reply::bulk(*name), reply(name, &value[*name], texts));
    present.map(pair).collect()
}

/// An argument; what has none in it is shown by its name, unless another text is given.
fn argument(item: &Value, names: &[&str], texts: bool) -> Reply {
    let mut pairs = fields(item, names, texts);
    if texts && item["arguments"].is_null() {
        let text = match &item["display_text"] {
            Value::Null => &item["name"],
            text => text,
        };
        pairs.push((
            Reply::bulk("display_text"),
            reply("display_text", text, texts),
        ));
    }
    Reply::Map(pairs)
}

fn reply(name: &str, value: &Value, texts: bool) -> Reply {
    match value {
        Value::Array(items) if name == "arguments" => {
            const FIELDS: [&str; 9] = [
                "name",
                "type",
                "key_spec_index",
                "token",
                "since",
                "deprecated_since",
                "flags",
                "value",
                "arguments",
            ];
            let arguments = items.iter().map(|item| argument(item, &FIELDS, texts));
            Reply::Array(arguments.collect())
        }
        Value::Array(items) => {
            let status =
                |item: &Value| Reply::Status(item.as_str().unwrap_or_default().to_owned().into());
            Reply::Set(items.iter().map(status).collect())
        }
        Value::Number(number) => Reply::Int(number.as_i64().unwrap_or_default()),
        other => Reply::bulk(other.as_str().unwrap_or_default()),
    }
}

impl Part {
    fn number(&self, name: &str) -> i64 {
        let field = self.fields.iter().find(|(field, _)| field == name);
        field.and_then(|(_, value)| value.as_i64()).unwrap_or(0)
    }

    fn describe(&self) -> Reply {
        let field =
            |(name, value): &(String, Value)| (Reply::bulk(name), reply(name, value, false));
        let spec = self.fields.iter().map(field).collect();
        Reply::Map(vec![
            (Reply::bulk("type"), Reply::bulk(&self.kind)),
            (Reply::bulk("spec"), Reply::Map(spec)),
        ])
    }
}

impl KeySpec {
    pub(crate) fn describe(&self) -> Reply {
        Reply::Map(vec![
            (Reply::bulk("flags"), self.flags()),
            (Reply::bulk("begin_search"), self.begin.describe()),
            (Reply::bulk("find_keys"), self.find.describe()),
        ])
    }

    pub(crate) fn flags(&self) -> Reply {
        let status = |flag: &String| Reply::Status(flag.clone().into());
        Reply::Set(self.flags.iter().map(status).collect())
    }

    /// The places of the keys among the arguments; `None` if they cannot be told.
    pub(crate) fn places(&self, args: &[Bytes]) -> Option<Vec<usize>> {
        let count = args.len() as i64;
        let first = match self.begin.kind.as_str() {
            "index" => self.begin.number("index"),
            "keyword" => match self.keyword(args) {
                Some(at) => at as i64 + 1,
                None => return Some(Vec::new()),
            },
            _ => return None,
        };
        let (first, last, step) = match self.find.kind.as_str() {
            "range" => {
                let (last, limit) = (self.find.number("lastkey"), self.find.number("limit"));
                let last = match last {
                    0.. => first + last,
                    _ if limit <= 1 => count + last,
                    _ => first + (count - first) / limit + last,
                };
                (first, last, self.find.number("keystep"))
            }
            "keynum" => {
                let at = first + self.find.number("keynumidx");
                let number = args.get(usize::try_from(at).ok()?)?;
                let number = parse_int(number)?;
                let step = self.find.number("keystep");
                let first = first + self.find.number("firstkey");
                (first, first + (number - 1) * step, step)
            }
            _ => return None,
        };
        let places = (first..=last).step_by(step.max(1) as usize);
        Some(
            places
                .filter(|at| (1..count).contains(at))
                .map(|at| at as usize)
                .collect(),
        )
    }

    fn keyword(&self, args: &[Bytes]) -> Option<usize> {
        let field = self.begin.fields.iter().find(|(name, _)| name == "keyword");
        let word = field
            .and_then(|(_, value)| value.as_str())
            .unwrap_or_default();
        let fits = |at: &usize| args[*at].eq_ignore_ascii_case(word.as_bytes());
        match self.begin.number("startfrom") {
            from @ 0.. => (from as usize..args.len()).find(fits),
            from => (1..=args.len().saturating_sub(from.unsigned_abs() as usize))
                .rev()
                .find(fits),
        }
    }
}
