//! The free stage: what a server keeps anyway.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use redis::Value;

use super::Blinds;
use crate::{
    node::Node,
    observation::{
        AclFacts, ClientFacts, ClockFacts, CommandStat, LatencyEvent, NodeFacts, SlowEntry,
    },
    pattern,
    text::{clean, printable},
    trace::command::{actions, is_whole},
    wire::{Answer, Trouble, words},
};

/// CLIENT LIST of more clients would take the server longer than a millisecond.
const CLIENTS: u64 = 1000;
/// What is kept of a line of INFO or CLIENT LIST.
const LINE: usize = 4096;

/// Everything about one server.
pub(crate) async fn facts(node: &mut Node, blinds: &mut Blinds) -> NodeFacts {
    let mut facts = NodeFacts {
        address: node.address.clone(),
        replica: node.replica,
        ..NodeFacts::default()
    };
    // Section by section, so that each stays short.
    for section in [
        "server",
        "clients",
        "memory",
        "persistence",
        "stats",
        "replication",
        "cpu",
        "errorstats",
        "commandstats",
        "cluster",
        "keyspace",
    ] {
        let text: Answer<String> = node.wire.get(words!["INFO", section]).await;
        match text {
            Ok(text) => info(&text, &mut facts),
            Err(trouble) => {
                blinds.note(format!("INFO {section} on {}", node.address), &trouble);
                if !trouble.is_refusal() {
                    return facts;
                }
                break;
            }
        }
    }
    facts.replica = facts
        .info
        .get("role")
        .map_or(node.replica, |role| role == "slave");
    for names in [
        "maxmemory*",
        "save",
        "appendonly",
        "bind",
        "protected-mode",
        "requirepass",
        "timeout",
        "maxclients",
        "slowlog-*",
        "client-output-buffer-limit",
    ] {
        let pairs: Answer<Vec<String>> = node.wire.get(words!["CONFIG", "GET", names]).await;
        match pairs {
            Ok(pairs) => {
                for pair in pairs.chunks_exact(2) {
                    // A password is never kept.
                    let value = match pair[0].as_str() {
                        "requirepass" if !pair[1].is_empty() => "set",
                        _ => &pair[1],
                    };
                    let value = clean(value.as_bytes(), LINE);
                    facts.config.insert(pair[0].clone(), value);
                }
            }
            Err(trouble) => {
                blinds.note(format!("CONFIG GET on {}", node.address), &trouble);
                break;
            }
        }
    }
    match node.wire.call(words!["SLOWLOG", "GET", "64"]).await {
        Ok(value) => facts.slow = slow(value),
        Err(trouble) => blinds.note(format!("SLOWLOG on {}", node.address), trouble),
    }
    facts.clock = clock(node).await;
    match node.wire.call(words!["LATENCY", "LATEST"]).await {
        Ok(value) => facts.latency = latency(value),
        // The embedded engine has no latency monitor.
        Err(Trouble::Refused(_)) if node.at.is_none() => {}
        Err(trouble) => blinds.note(format!("LATENCY on {}", node.address), trouble),
    }
    clients(node, &mut facts, blinds).await;
    acl(node, &mut facts, blinds).await;
    pubsub(node, &mut facts, blinds).await;
    facts
}

/// The second look, for rates.
pub(crate) async fn look_again(node: &mut Node, facts: &mut NodeFacts) {
    let mut later = NodeFacts::default();
    for section in [
        "clients",
        "memory",
        "stats",
        "replication",
        "errorstats",
        "commandstats",
    ] {
        let text: Answer<String> = node.wire.get(words!["INFO", section]).await;
        match text {
            Ok(text) => info(&text, &mut later),
            Err(_) => return,
        }
    }
    facts.later_errors = later.errors;
    facts.later = later.info;
    facts.later_commands = later.commands;
}

/// Whether errors go on, of a server that has counted some that matter.
pub(crate) async fn look_at_errors_again(node: &mut Node, facts: &mut NodeFacts) {
    let text: Answer<String> = node.wire.get(words!["INFO", "errorstats"]).await;
    if let Ok(text) = text {
        let mut later = NodeFacts::default();
        info(&text, &mut later);
        facts.later_errors = later.errors;
    }
}

fn info(text: &str, facts: &mut NodeFacts) {
    for line in text.lines() {
        // Whatever it says may be shown.
        let line = clean(line.trim_end().as_bytes(), LINE);
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if let Some(command) = name.strip_prefix("cmdstat_") {
            let fields = fields(value);
            let number = |field: &str| {
                fields
                    .get(field)
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0)
            };
            facts.commands.insert(
                command.to_ascii_lowercase(),
                CommandStat {
                    calls: number("calls"),
                    micros: number("usec"),
                },
            );
        } else if let Some(error) = name.strip_prefix("errorstat_") {
            let count = fields(value)
                .get("count")
                .and_then(|text| text.parse().ok())
                .unwrap_or(0);
            facts.errors.insert(error.to_owned(), count);
        } else {
            facts.info.insert(name.to_owned(), value.to_owned());
        }
    }
}

/// `a=1,b=2`
fn fields(text: &str) -> HashMap<&str, &str> {
    text.split(',')
        .filter_map(|pair| pair.split_once('='))
        .collect()
}

fn slow(value: Value) -> Vec<SlowEntry> {
    let Value::Array(entries) = value else {
        return Vec::new();
    };
    entries
        .into_iter()
        .filter_map(|entry| {
            let Value::Array(parts) = entry else {
                return None;
            };
            let micros: u64 = redis::from_redis_value(parts.get(2)?.clone()).ok()?;
            let words: Vec<Vec<u8>> = redis::from_redis_value(parts.get(3)?.clone()).ok()?;
            let client: String = parts
                .get(5)
                .and_then(|name| redis::from_redis_value(name.clone()).ok())
                .unwrap_or_default();
            if client == "redstart-doctor" {
                return None;
            }
            let command = printable(words.first()?).to_ascii_uppercase();
            let key = actions(&command, &words, 0.0, false)
                .first()
                .map(|(at, _)| *at)
                .or_else(|| {
                    matches!(
                        command.as_str(),
                        "HGETALL" | "SORT" | "ZUNIONSTORE" | "SUNION" | "SINTER"
                    )
                    .then_some(1)
                })
                .and_then(|at| words.get(at))
                .map(|word| pattern::generalise(word));
            let whole = matches!(command.as_str(), "SMEMBERS" | "HGETALL" | "HKEYS" | "HVALS")
                || (matches!(command.as_str(), "LRANGE" | "ZRANGE" | "ZREVRANGE")
                    && is_whole(&words));
            Some(SlowEntry {
                micros,
                command,
                key,
                whole,
            })
        })
        .collect()
}

async fn clock(node: &mut Node) -> Option<ClockFacts> {
    node.wire.rested().await;
    let begun = Instant::now();
    let time: Answer<Vec<f64>> = node.wire.get(words!["TIME"]).await;
    let doubt = begun.elapsed().as_secs_f64() / 2.0;
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    match time.as_deref() {
        Ok([seconds, micros]) => Some(ClockFacts {
            ahead: seconds + micros / 1e6 - (ours.as_secs_f64() - doubt),
            doubt,
        }),
        _ => None,
    }
}

/// Each kind of event with its last time, its last and its longest duration.
fn latency(value: Value) -> Vec<LatencyEvent> {
    let Value::Array(events) = value else {
        return Vec::new();
    };
    events
        .into_iter()
        .filter_map(|event| {
            let Value::Array(parts) = event else {
                return None;
            };
            let event: Vec<u8> = redis::from_redis_value(parts.first()?.clone()).ok()?;
            Some(LatencyEvent {
                event: printable(&event),
                longest: redis::from_redis_value(parts.get(3)?.clone()).ok()?,
            })
        })
        .collect()
}

async fn clients(node: &mut Node, facts: &mut NodeFacts, blinds: &mut Blinds) {
    let connected = facts.number("connected_clients").unwrap_or(0);
    if connected > CLIENTS {
        blinds.note(
            format!("CLIENT LIST on {}", node.address),
            format!("not asked: a list of {connected} clients takes the server too long"),
        );
        return;
    }
    let asked = Instant::now();
    let text: Answer<String> = node.wire.get(words!["CLIENT", "LIST"]).await;
    match text {
        Ok(text) => {
            facts.clients_seen = true;
            facts.clients_listed = Some(asked);
            facts.clients = text
                .lines()
                .map(client)
                .filter(|client| client.name != "redstart-doctor")
                .collect();
        }
        Err(trouble) => blinds.note(format!("CLIENT LIST on {}", node.address), trouble),
    }
}

fn client(line: &str) -> ClientFacts {
    let line = clean(line.as_bytes(), LINE);
    let fields: BTreeMap<&str, &str> = line
        .split(' ')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let text = |name: &str| fields.get(name).copied().unwrap_or_default().to_owned();
    let number = |name: &str| {
        fields
            .get(name)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    };
    let address = text("addr");
    ClientFacts {
        host: address
            .rsplit_once(':')
            .map_or(address.clone(), |(host, _)| host.to_owned()),
        name: text("name"),
        idle: number("idle"),
        age: number("age"),
        flags: text("flags"),
        command: text("cmd"),
        subscriptions: number("sub") + number("psub") + number("ssub"),
        output: number("omem"),
    }
}

async fn acl(node: &mut Node, facts: &mut NodeFacts, blinds: &mut Blinds) {
    match node.wire.call(words!["ACL", "GETUSER", "default"]).await {
        Ok(Value::Array(parts)) => {
            let field = |name: &str| {
                parts.chunks_exact(2).find_map(|pair| {
                    let key: String = redis::from_redis_value(pair[0].clone()).ok()?;
                    (key == name).then(|| pair[1].clone())
                })
            };
            let flags: Vec<String> = field("flags")
                .and_then(|value| redis::from_redis_value(value).ok())
                .unwrap_or_default();
            let commands: String = field("commands")
                .and_then(|value| redis::from_redis_value(value).ok())
                .unwrap_or_default();
            let on = flags.iter().any(|flag| flag == "on");
            facts.acl = Some(AclFacts {
                default_open: on && flags.iter().any(|flag| flag == "nopass"),
                default_all: on && commands == "+@all",
            });
        }
        Ok(_) => {}
        // The embedded engine and old servers have no users.
        Err(Trouble::Refused(why)) if why.contains("unknown command") => {}
        Err(trouble) => blinds.note(format!("ACL on {}", node.address), trouble),
    }
}

async fn pubsub(node: &mut Node, facts: &mut NodeFacts, blinds: &mut Blinds) {
    // The names of many channels would be a long reply; INFO counts them for nothing.
    facts.channels = facts.number("pubsub_channels");
    facts.patterns = facts.number("pubsub_patterns");
    if facts.channels.is_none() {
        let count: Answer<u64> = node.wire.get(words!["PUBSUB", "NUMPAT"]).await;
        match count {
            Ok(count) => facts.patterns = Some(count),
            Err(trouble) => blinds.note(format!("PUBSUB on {}", node.address), trouble),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_itself_cannot_colour_the_terminal() {
        let mut facts = NodeFacts::default();
        let text = "maxmemory_policy:all\x1b[31mkeys\r\nredis_version:7.0\r\n";
        info(text, &mut facts);
        let policy = facts.policy().unwrap_or_default();
        assert!(
            policy.contains("keys") && !policy.contains('\x1b'),
            "{policy:?}"
        );
        assert_eq!(facts.info["redis_version"], "7.0");
        let seen = client("id=3 addr=10.0.0.1\x1b]0;x\x07:50 name=a idle=7 age=9 flags=N");
        assert!(!seen.host.chars().any(char::is_control), "{seen:?}");
        assert_eq!((seen.idle, seen.age), (7, 9));
    }
}
