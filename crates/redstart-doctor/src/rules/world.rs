//! Facts made by hand, for the tests of the rules.

use crate::{
    finding::SURE,
    library::{Library, Owns},
    observation::{CommandStat, Group, KeyFact, Kind, NodeFacts, Observations, StreamFacts},
    rule::examine,
    trace::tests::{cut_trace, trace},
};

/// A server, its keys and its traffic.
pub(crate) struct World(pub(crate) Observations);

impl World {
    /// A server that is in order and has run for a month.
    pub(crate) fn new() -> Self {
        let mut node = NodeFacts {
            address: "db:6379".to_owned(),
            ..NodeFacts::default()
        };
        for (name, value) in [
            ("uptime_in_seconds", "2592000"),
            ("maxmemory", "1073741824"),
            ("maxmemory_policy", "noeviction"),
            ("role", "master"),
            ("connected_clients", "3"),
            ("used_memory", "1000000"),
            ("total_system_memory", "8000000000"),
        ] {
            node.info.insert(name.to_owned(), value.to_owned());
        }
        for (name, value) in [
            ("appendonly", "yes"),
            ("save", "3600 1"),
            ("bind", "127.0.0.1"),
            ("protected-mode", "yes"),
        ] {
            node.config.insert(name.to_owned(), value.to_owned());
        }
        Self(Observations {
            nodes: vec![node],
            seen: 1000,
            keys: 1000,
            gap: 2.0,
            ..Observations::default()
        })
    }

    /// Changes what the server says of itself.
    pub(crate) fn node(mut self, change: impl FnOnce(&mut NodeFacts)) -> Self {
        change(&mut self.0.nodes[0]);
        self
    }

    pub(crate) fn info(self, name: &str, value: &str) -> Self {
        self.node(|node| {
            node.info.insert(name.to_owned(), value.to_owned());
        })
    }

    pub(crate) fn config(self, name: &str, value: &str) -> Self {
        self.node(|node| {
            node.config.insert(name.to_owned(), value.to_owned());
        })
    }

    pub(crate) fn command(self, name: &str, calls: u64, micros: u64) -> Self {
        self.node(|node| {
            node.commands
                .insert(name.to_owned(), CommandStat { calls, micros });
        })
    }

    /// Twenty keys of one pattern.
    pub(crate) fn keys(mut self, pattern: &str, kind: Kind, make: impl Fn(u64) -> KeyFact) -> Self {
        let facts: Vec<KeyFact> = (0..20)
            .map(|i| KeyFact {
                kind,
                name: pattern.replace('*', &i.to_string()).into_bytes(),
                ..make(i)
            })
            .collect();
        self.0.groups.push(Group {
            pattern: pattern.to_owned(),
            kind,
            seen: 500,
            facts,
            ..Group::default()
        });
        self
    }

    /// One key.
    pub(crate) fn key(mut self, name: &str, fact: KeyFact) -> Self {
        let fact = KeyFact {
            name: name.as_bytes().to_vec(),
            ..fact
        };
        self.0.groups.push(Group {
            pattern: name.to_owned(),
            kind: fact.kind,
            seen: 1,
            facts: vec![fact],
            ..Group::default()
        });
        self
    }

    pub(crate) fn stream(mut self, stream: StreamFacts) -> Self {
        self.0.streams.push(stream);
        self
    }

    /// Traffic, as `client COMMAND words`.
    pub(crate) fn traffic(mut self, lines: &[&str]) -> Self {
        self.0.trace = Some(trace(lines));
        self.0.fold();
        self
    }

    /// Traffic of whose lines only the first bytes were read.
    pub(crate) fn cut_traffic(mut self, keep: usize, lines: &[&str]) -> Self {
        self.0.trace = Some(cut_trace(keep, lines));
        self.0.fold();
        self
    }

    /// The same traffic several times, with `#` replaced by the number of the round.
    pub(crate) fn rounds(self, rounds: usize, lines: &[&str]) -> Self {
        let lines: Vec<String> = (0..rounds)
            .flat_map(|i| {
                lines
                    .iter()
                    .map(move |line| line.replace('#', &i.to_string()))
            })
            .collect();
        self.traffic(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(crate) fn library(mut self, name: &str, prefix: &str) -> Self {
        self.0.libraries.found.push(Library {
            name: name.to_owned(),
            owns: vec![Owns::Prefix(prefix.as_bytes().to_vec())],
        });
        for group in &mut self.0.groups {
            if group.pattern.starts_with(prefix) {
                group.library = Some(name.to_owned());
            }
        }
        self
    }

    /// The rule finds it and is sure.
    pub(crate) fn must_show(self, rule: &str) {
        let found = examine(&self.0);
        assert!(
            found
                .iter()
                .any(|finding| finding.rule == rule && finding.confidence >= SURE),
            "{rule} found nothing: {found:#?}"
        );
    }

    /// No rule is sure of anything.
    pub(crate) fn must_be_quiet(self) {
        let found: Vec<_> = examine(&self.0)
            .into_iter()
            .filter(|finding| finding.confidence >= SURE)
            .collect();
        assert!(found.is_empty(), "{found:#?}");
    }
}

/// The digest of one of Redstart's scripts.
pub(crate) fn digest(name: &str) -> String {
    let script = redstart::script::all()
        .into_iter()
        .find(|script| script.name() == name);
    script.expect(name).digest().to_owned()
}
