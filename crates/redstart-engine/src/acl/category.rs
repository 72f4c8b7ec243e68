//! The categories of commands that rules can name.

use super::catalog::CATALOG;
use crate::registry::{self, Spec, flag};

pub(crate) const KEYSPACE: u32 = 1;
pub(crate) const READ: u32 = 1 << 1;
pub(crate) const WRITE: u32 = 1 << 2;
pub(crate) const SET: u32 = 1 << 3;
pub(crate) const SORTEDSET: u32 = 1 << 4;
pub(crate) const LIST: u32 = 1 << 5;
pub(crate) const HASH: u32 = 1 << 6;
pub(crate) const STRING: u32 = 1 << 7;
pub(crate) const BITMAP: u32 = 1 << 8;
pub(crate) const HYPERLOGLOG: u32 = 1 << 9;
pub(crate) const GEO: u32 = 1 << 10;
pub(crate) const STREAM: u32 = 1 << 11;
pub(crate) const PUBSUB: u32 = 1 << 12;
pub(crate) const ADMIN: u32 = 1 << 13;
pub(crate) const FAST: u32 = 1 << 14;
pub(crate) const SLOW: u32 = 1 << 15;
pub(crate) const BLOCKING: u32 = 1 << 16;
pub(crate) const DANGEROUS: u32 = 1 << 17;
pub(crate) const CONNECTION: u32 = 1 << 18;
pub(crate) const TRANSACTION: u32 = 1 << 19;
pub(crate) const SCRIPTING: u32 = 1 << 20;

/// The names in the order of their bits, which is the order in which Redis lists them.
pub(crate) const NAMES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// The category of that name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<u32> {
    let at = NAMES
        .iter()
        .position(|known| known.as_bytes().eq_ignore_ascii_case(name))?;
    Some(1 << at)
}

/// The categories of a command.
pub(crate) fn of(spec: &Spec) -> u32 {
    CATALOG.commands[CATALOG.id(spec)].categories
}

/// The names of the categories of a command, with an `@`, as COMMAND INFO lists them.
pub(crate) fn names(spec: &Spec) -> impl Iterator<Item = String> + use<> {
    let categories = of(spec);
    (0..NAMES.len())
        .filter(move |bit| categories & (1 << bit) != 0)
        .map(|bit| format!("@{}", NAMES[bit]))
}

/// The categories of a command that Redis 7.0 does not have, by the rules that Redis follows.
pub(super) fn derived(spec: &Spec) -> u32 {
    let mut categories = match registry::group(spec) {
        "generic" => KEYSPACE,
        "set" => SET,
        "sorted-set" => SORTEDSET,
        "list" => LIST,
        "hash" => HASH,
        "string" => STRING,
        "bitmap" => BITMAP,
        "hyperloglog" => HYPERLOGLOG,
        "geo" => GEO,
        "stream" => STREAM,
        "connection" => CONNECTION,
        "transactions" => TRANSACTION,
        "scripting" => SCRIPTING,
        _ => 0,
    };
    let mut add = |set: bool, category: u32| {
        if set {
            categories |= category;
        }
    };
    add(spec.is(flag::READONLY), READ);
    add(spec.is(flag::WRITE), WRITE);
    add(spec.is(flag::PUBSUB), PUBSUB);
    add(spec.is(flag::ADMIN), ADMIN | DANGEROUS);
    add(spec.is(flag::FAST), FAST);
    add(!spec.is(flag::FAST), SLOW);
    add(spec.is(flag::BLOCKING), BLOCKING);
    categories
}
