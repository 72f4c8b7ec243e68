//! What a script declares on its `#!lua` line.

use crate::{error::Stop, registry, resp};

/// What a script declared on its `#!lua` line, or a function when it was registered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    /// There was such a line.
    pub(crate) declared: bool,
    pub(crate) no_writes: bool,
    pub(crate) allow_oom: bool,
    pub(crate) allow_stale: bool,
    pub(crate) no_cluster: bool,
    pub(crate) cross_slot: bool,
}

impl Flags {
    /// The names that are set, in Redis's order.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        [
            (self.no_writes, "no-writes"),
            (self.allow_oom, "allow-oom"),
            (self.allow_stale, "allow-stale"),
            (self.no_cluster, "no-cluster"),
            (self.cross_slot, "allow-cross-slot-keys"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
    }

    /// Sets a flag; whether there is one of this name.
    pub(super) fn set(&mut self, name: &[u8]) -> bool {
        let flag = match name {
            b"no-writes" => &mut self.no_writes,
            b"allow-oom" => &mut self.allow_oom,
            b"allow-stale" => &mut self.allow_stale,
            b"no-cluster" => &mut self.no_cluster,
            b"allow-cross-slot-keys" => &mut self.cross_slot,
            _ => return false,
        };
        *flag = true;
        true
    }

    /// The flags, and how long the line is.
    pub(super) fn parse(text: &[u8]) -> Result<(Flags, usize), Stop> {
        let mut flags = Flags::default();
        if !text.starts_with(b"#!") {
            return Ok((flags, 0));
        }
        let Some(end) = memchr::memchr(b'\n', text) else {
            return Err("ERR Invalid script shebang".into());
        };
        let words = resp::split_line(&text[..end]).unwrap_or_default();
        let mut words = words.iter();
        match words.next() {
            Some(word) if word == "#!lua" => {}
            Some(other) => {
                let other = registry::printable(other);
                return Err(format!("ERR Unexpected engine in script shebang: {other}").into());
            }
            None => return Err("ERR Invalid engine in script shebang".into()),
        }
        flags.declared = true;
        for word in words {
            let Some(list) = word.strip_prefix(b"flags=") else {
                let word = registry::printable(word);
                return Err(format!("ERR Unknown lua shebang option: {word}").into());
            };
            if list.is_empty() {
                continue;
            }
            for flag in list.split(|&byte| byte == b',') {
                if !flags.set(flag) {
                    let flag = registry::printable(flag);
                    return Err(format!("ERR Unexpected flag in script shebang: {flag}").into());
                }
            }
        }
        Ok((flags, end))
    }
}
