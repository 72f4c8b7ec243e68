//! What a client can read of a key or of everything, in a form that does not depend on who tells it.

use std::collections::BTreeSet;

use bytes::Bytes;
use redstart_engine::{Outcome, Reply, Session};

use crate::wire::Wire;

/// Any side of a comparison.
pub(crate) trait Client {
    fn ask(&mut self, args: &[Bytes]) -> Reply;

    fn line(&mut self, line: &str) -> Reply {
        self.ask(&words(line))
    }
}

impl Client for Session {
    fn ask(&mut self, args: &[Bytes]) -> Reply {
        match self.execute(args) {
            Outcome::Reply(reply) => reply,
            Outcome::Blocked(_) => panic!("{args:?} blocks"),
        }
    }
}

impl Client for Wire {
    fn ask(&mut self, args: &[Bytes]) -> Reply {
        self.call(args)
    }
}

pub(crate) fn words(line: &str) -> Vec<Bytes> {
    line.split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

/// A command whose first argument is a key of any bytes.
pub(crate) fn command(name: &str, key: &Bytes, rest: &[&str]) -> Vec<Bytes> {
    let mut args = vec![Bytes::copy_from_slice(name.as_bytes()), key.clone()];
    args.extend(
        rest.iter()
            .map(|word| Bytes::copy_from_slice(word.as_bytes())),
    );
    args
}

pub(crate) fn bulk(reply: Reply) -> Bytes {
    match reply {
        Reply::Bulk(text) => text,
        other => panic!("{other:?}"),
    }
}

fn bulks(reply: Reply) -> Vec<Bytes> {
    match reply {
        Reply::Array(items) => items.into_iter().map(bulk).collect(),
        other => panic!("{other:?}"),
    }
}

/// The pairs of a flat reply without those that servers compute differently or that only some have.
fn without(reply: Reply, names: &[&str]) -> Reply {
    let Reply::Array(items) = reply else {
        return reply;
    };
    let mut kept = Vec::new();
    let mut rest = items.into_iter().peekable();
    while let Some(item) = rest.next() {
        let is_named =
            matches!(&item, Reply::Bulk(name) if names.iter().any(|n| n.as_bytes() == name));
        if is_named && rest.peek().is_some() {
            rest.next();
        } else {
            kept.push(without(item, names));
        }
    }
    Reply::Array(kept)
}

/// The fields of a hash that expire, and when; none where fields do not expire.
fn deadlines(client: &mut impl Client, key: &Bytes, fields: Vec<Bytes>) -> BTreeSet<(Bytes, i64)> {
    let count = fields.len().to_string();
    let mut args = command("HPEXPIRETIME", key, &["FIELDS", &count]);
    args.extend(fields.iter().cloned());
    let times = match client.ask(&args) {
        Reply::Array(times) => times,
        Reply::Error(_) => return BTreeSet::new(),
        other => panic!("{other:?}"),
    };
    let all = fields.into_iter().zip(times);
    let some = all.filter_map(|(field, time)| match time {
        Reply::Int(time) if time >= 0 => Some((field, time)),
        _ => None,
    });
    some.collect()
}

/// What a key holds.
pub(crate) fn describe(client: &mut impl Client, key: &Bytes) -> String {
    let mut ask = |name: &str, rest: &[&str]| client.ask(&command(name, key, rest));
    let kind = match ask("TYPE", &[]) {
        Reply::Status(kind) => kind.to_string(),
        other => panic!("{other:?}"),
    };
    let value = match kind.as_str() {
        "string" => format!("{:?}", ask("GET", &[])),
        "list" => format!("{:?}", ask("LRANGE", &["0", "-1"])),
        "set" => format!(
            "{:?}",
            bulks(ask("SMEMBERS", &[]))
                .into_iter()
                .collect::<BTreeSet<_>>()
        ),
        "hash" => {
            let words = bulks(ask("HGETALL", &[]));
            let pairs: BTreeSet<_> = words.chunks(2).map(<[Bytes]>::to_vec).collect();
            let fields = words.chunks(2).map(|pair| pair[0].clone()).collect();
            format!("{pairs:?} {:?}", deadlines(client, key, fields))
        }
        "zset" => {
            // Valkey writes doubles with fewer digits.
            let words = bulks(ask("ZRANGE", &["0", "-1", "WITHSCORES"]));
            let pairs = words.chunks(2).map(|pair| {
                let score = std::str::from_utf8(&pair[1]).unwrap();
                (pair[0].clone(), score.parse::<f64>().unwrap().to_bits())
            });
            format!("{:?}", pairs.collect::<Vec<_>>())
        }
        "stream" => {
            let info = vec![
                Bytes::from_static(b"XINFO"),
                Bytes::from_static(b"STREAM"),
                key.clone(),
                Bytes::from_static(b"FULL"),
                Bytes::from_static(b"COUNT"),
                Bytes::from_static(b"0"),
            ];
            let info = client.ask(&info);
            // Newer servers have another idea of the lag and of a consumer's activity.
            format!(
                "{:?}",
                without(info, &["active-time", "lag", "radix-tree-nodes"])
            )
        }
        other => other.to_owned(),
    };
    let deadline = client.ask(&command("PEXPIRETIME", key, &[]));
    format!("{key:?} {kind} {deadline:?} {value}")
}

/// All keys of the selected database.
pub(crate) fn keys(client: &mut impl Client) -> BTreeSet<Bytes> {
    let mut cursor = "0".to_owned();
    let mut keys = BTreeSet::new();
    loop {
        let Reply::Array(mut page) = client.line(&format!("SCAN {cursor} COUNT 1000")) else {
            panic!("no page");
        };
        keys.extend(bulks(page.pop().unwrap()));
        cursor = String::from_utf8(bulk(page.pop().unwrap()).to_vec()).unwrap();
        if cursor == "0" {
            return keys;
        }
    }
}

/// Everything that can be read, a line for each key.
pub(crate) fn everything(client: &mut impl Client) -> Vec<String> {
    let mut all = Vec::new();
    for db in 0..16 {
        client.line(&format!("SELECT {db}"));
        for key in keys(client) {
            all.push(format!("{db} {}", describe(client, &key)));
        }
    }
    client.line("SELECT 0");
    all
}

/// Without what a log of commands has no word for: when consumers were last seen, and how the
/// entries of a stream lie in its nodes.
pub(crate) fn unseen(lines: Vec<String>) -> Vec<String> {
    let strip = |line: String, name: &str| {
        let name = format!("Bulk(b\"{name}\"), Int(");
        let mut parts = line.split(&name);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            text + part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-')
        })
    };
    let lines = lines.into_iter();
    lines
        .map(|line| strip(strip(line, "seen-time"), "radix-tree-keys"))
        .collect()
}

/// Fails with the first line that differs.
pub(crate) fn assert_same(ours: &[String], theirs: &[String], what: &str) {
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours, theirs, "{what}");
    }
    assert_eq!(ours.len(), theirs.len(), "{what}");
}
