//! ACL LOG: what was refused lately.

use std::collections::VecDeque;

use bytes::Bytes;

/// Where a refused command came from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    TopLevel,
    Multi,
    Script,
}

impl Source {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Source::TopLevel => "toplevel",
            Source::Multi => "multi",
            Source::Script => "lua",
        }
    }
}

/// Refusals that are alike are one entry with a count.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) count: u64,
    pub(crate) reason: &'static str,
    pub(crate) source: Source,
    /// The command, key or channel.
    pub(crate) object: Bytes,
    pub(crate) user: Bytes,
    /// Unix microseconds of the last one.
    pub(crate) at: i64,
    /// The client as CLIENT LIST shows it.
    pub(crate) client: String,
}

/// Refusals that are alike are counted together within this many microseconds.
const GROUP: i64 = 60_000_000;
/// As in Redis, only the newest entries, up to this number, are compared with a new one.
const LOOKED_AT: usize = 10;

/// The entries, the newest first.
#[derive(Default)]
pub(crate) struct Log(VecDeque<Entry>);

impl Log {
    pub(crate) fn add(&mut self, entry: Entry, limit: usize) {
        let alike = self.0.iter().take(LOOKED_AT).position(|known| {
            known.reason == entry.reason
                && known.source == entry.source
                && entry.at - known.at <= GROUP
                && known.object == entry.object
                && known.user == entry.user
        });
        let count = alike
            .and_then(|at| self.0.remove(at))
            .map_or(0, |known| known.count);
        self.0.push_front(Entry {
            count: count + 1,
            ..entry
        });
        self.0.truncate(limit);
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
