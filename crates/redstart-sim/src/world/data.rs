//! What the servers hold, asked behind the backs of the clients.

use std::collections::BTreeSet;

use bytes::Bytes;
use redstart_engine::{Outcome as Executed, Reply};

use super::World;
use crate::server::Role;

impl World {
    /// How many milliseconds a key still has on the servers, also on those that are down now. `None` if it is gone from all
    /// of them; -1 if that is not known or never.
    pub fn remaining(&self, key: &str) -> Option<i64> {
        let words = ["PTTL", key].map(|word| Bytes::copy_from_slice(word.as_bytes()));
        let servers = self.servers[..self.plan.servers()].iter();
        let masters = servers.filter(|server| server.role() == Role::Master);
        let left = masters.map(|server| match server.engine().session().execute(&words) {
            Executed::Reply(Reply::Int(left)) => left,
            _ => -1,
        });
        left.filter(|left| *left != -2).max()
    }

    /// Whether a server serves and has no such key.
    pub fn is_free(&self, server: usize, key: &str) -> bool {
        let server = &self.servers[server];
        let words = ["EXISTS", key].map(|word| Bytes::copy_from_slice(word.as_bytes()));
        let found = || server.engine().session().execute(&words);
        server.is_up() && matches!(found(), Executed::Reply(Reply::Int(0)))
    }

    /// What a command finds on each server that owns data and serves.
    fn ask(&self, words: &[&[u8]]) -> Vec<Reply> {
        let words: Vec<_> = words
            .iter()
            .map(|word| Bytes::copy_from_slice(word))
            .collect();
        let servers = self.servers[..self.plan.servers()].iter();
        let masters = servers.filter(|server| server.role() == Role::Master && server.is_up());
        let asked = masters.filter_map(|server| match server.engine().session().execute(&words) {
            Executed::Reply(reply) => Some(reply),
            Executed::Blocked(_) => None,
        });
        asked.collect()
    }

    /// All keys, over all servers that own them, with their remaining time in milliseconds (-1: none).
    pub fn keys(&self) -> Vec<(String, i64)> {
        let mut found = Vec::new();
        for key in self.ask(&[b"KEYS", b"*"]).iter().flat_map(items) {
            for left in self.ask(&[b"PTTL", key]) {
                if let Reply::Int(left @ (-1 | 0..)) = left {
                    found.push((String::from_utf8_lossy(key).into_owned(), left));
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// All hashes whose keys begin so, with their fields.
    pub fn hashes(&self, prefix: &str) -> Vec<(String, Vec<Bytes>)> {
        let mut found = Vec::new();
        let pattern = format!("{prefix}*");
        for key in self
            .ask(&[b"KEYS", pattern.as_bytes()])
            .iter()
            .flat_map(items)
        {
            let fields = self.ask(&[b"HKEYS", key]);
            let fields = fields.iter().flat_map(items).cloned().collect();
            found.push((String::from_utf8_lossy(key).into_owned(), fields));
        }
        found
    }

    /// All lists whose keys begin so, with their items; `None` if a server does not answer now.
    pub fn lists(&self, prefix: &str) -> Option<Vec<(String, Vec<Bytes>)>> {
        let mut found = Vec::new();
        let pattern = format!("{prefix}*");
        let keys = self.ask(&[b"KEYS", pattern.as_bytes()]);
        if keys.iter().any(|reply| matches!(reply, Reply::Error(_))) {
            return None;
        }
        for key in keys.iter().flat_map(items) {
            let listed = self.ask(&[b"LRANGE", key, b"0", b"-1"]);
            let listed = listed.iter().flat_map(items).cloned().collect();
            found.push((String::from_utf8_lossy(key).into_owned(), listed));
        }
        Some(found)
    }

    /// The members of a sorted set.
    pub fn members(&self, key: &str) -> BTreeSet<String> {
        let found = self.ask(&[b"ZRANGE", key.as_bytes(), b"0", b"-1"]);
        let members = found.iter().flat_map(items);
        members
            .map(|member| String::from_utf8_lossy(member).into_owned())
            .collect()
    }
}

/// The strings in a list.
fn items(reply: &Reply) -> impl Iterator<Item = &Bytes> {
    let items = match reply {
        Reply::Array(items) => &items[..],
        _ => &[],
    };
    items.iter().filter_map(|item| match item {
        Reply::Bulk(text) => Some(text),
        _ => None,
    })
}
