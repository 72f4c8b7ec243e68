//! What is listened to: channels by kind and name, and prefixes of keys.

use std::collections::BTreeSet;

use redis::Cmd;

use super::Listen;

/// The three kinds of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ChannelKind {
    Sharded,
    Channel,
    Pattern,
}

impl ChannelKind {
    pub(super) const ALL: [Self; 3] = [Self::Sharded, Self::Channel, Self::Pattern];

    /// The command that listens to channels of this kind.
    pub(super) fn subscribe<'a>(self, names: impl IntoIterator<Item = &'a Name>) -> Cmd {
        let word = match self {
            Self::Sharded => "SSUBSCRIBE",
            Self::Channel => "SUBSCRIBE",
            Self::Pattern => "PSUBSCRIBE",
        };
        command(word, names)
    }

    /// The command that ends it.
    pub(super) fn unsubscribe<'a>(self, names: impl IntoIterator<Item = &'a Name>) -> Cmd {
        let word = match self {
            Self::Sharded => "SUNSUBSCRIBE",
            Self::Channel => "UNSUBSCRIBE",
            Self::Pattern => "PUNSUBSCRIBE",
        };
        command(word, names)
    }
}

fn command<'a>(word: &str, names: impl IntoIterator<Item = &'a Name>) -> Cmd {
    let mut cmd = redis::cmd(word);
    for name in names {
        cmd.arg(&name[..]);
    }
    cmd
}

/// The name of a channel, or a pattern.
pub(super) type Name = Box<[u8]>;

/// What one subscription listens to, each once.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Channels, and the slot of those that have one.
    pub(super) channels: BTreeSet<(ChannelKind, Name, Option<u16>)>,
    /// Prefixes of keys whose changes are reported. An empty prefix is all keys.
    pub(super) prefixes: Option<BTreeSet<Vec<u8>>>,
}

impl Wanted {
    pub(super) fn new(topics: Vec<Listen>) -> Self {
        let mut wanted = Self {
            channels: BTreeSet::new(),
            prefixes: None,
        };
        for topic in topics {
            let channel = match topic {
                Listen::Sharded(channel) => {
                    let name = channel.as_str().as_bytes().into();
                    (ChannelKind::Sharded, name, Some(channel.slot()))
                }
                Listen::Channel(name) => (ChannelKind::Channel, name.into_bytes().into(), None),
                Listen::Pattern(pattern) => {
                    (ChannelKind::Pattern, pattern.into_bytes().into(), None)
                }
                Listen::Changes(prefixes) => {
                    let known = wanted.prefixes.get_or_insert_default();
                    if prefixes.is_empty() {
                        known.insert(Vec::new());
                    }
                    known.extend(prefixes.into_iter().map(String::into_bytes));
                    continue;
                }
            };
            wanted.channels.insert(channel);
        }
        wanted
    }

    /// Of these keys, those that have one of the prefixes.
    pub(super) fn changed<'a>(&'a self, keys: &'a [Vec<u8>]) -> impl Iterator<Item = Vec<u8>> + 'a {
        let prefixes = self.prefixes.iter().flatten();
        keys.iter()
            .filter(move |key| prefixes.clone().any(|prefix| key.starts_with(&prefix[..])))
            .cloned()
    }
}
