//! One set of rules: which commands, on which keys and channels. A user has one of its own, and may
//! have more; a command is allowed if one of them allows all of it.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    RuleError,
    catalog::CATALOG,
    category::{self, NAMES},
};
use crate::{
    compat::Compat,
    glob,
    registry::{
        Spec,
        access::{self, kind as key},
        flag,
    },
};

const READ: u8 = 1;
const WRITE: u8 = 2;

/// Keys of this pattern may be read, written, or both.
#[derive(Clone)]
struct KeyPattern {
    pattern: Bytes,
    allowed: u8,
}

#[derive(Clone)]
pub(crate) struct Selector {
    /// A bit per id of the catalog.
    commands: Box<[u64]>,
    /// `+@all` was the start: commands that are added in future are allowed.
    future: bool,
    /// `+@all`, and nothing was taken away since.
    all_commands: bool,
    /// Commands that are allowed with these first arguments only.
    first_arguments: BTreeMap<usize, Vec<Bytes>>,
    all_keys: bool,
    keys: Vec<KeyPattern>,
    all_channels: bool,
    channels: Vec<Bytes>,
}

/// Why a command is refused; a place is that of the argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Denied {
    Command,
    Key(usize),
    Channel(usize),
}

/// What the channel arguments of a command are.
#[derive(Clone, Copy, PartialEq)]
enum Channels {
    None,
    Names,
    Patterns,
}

fn channels_of(spec: &Spec) -> Channels {
    match spec.full_name {
        "publish" | "spublish" | "subscribe" | "ssubscribe" => Channels::Names,
        "psubscribe" => Channels::Patterns,
        _ => Channels::None,
    }
}

pub(crate) fn has_blanks(text: &[u8]) -> bool {
    text.iter()
        .any(|byte| byte.is_ascii_whitespace() || matches!(byte, 0 | 0x0B))
}

impl Selector {
    /// Allows nothing, or all channels if that is how selectors begin.
    pub(crate) fn new(all_channels: bool) -> Selector {
        Selector {
            commands: vec![0; CATALOG.commands.len().div_ceil(64)].into(),
            future: false,
            all_commands: false,
            first_arguments: BTreeMap::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels,
            channels: Vec::new(),
        }
    }

    /// Allows everything.
    pub(crate) fn unlimited() -> Selector {
        let mut selector = Selector::new(true);
        selector.set_all(true);
        selector.all_keys = true;
        selector
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.all_commands && self.all_keys && self.all_channels
    }

    // ---- changing it ----

    /// Applies one rule.
    pub(crate) fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("allkeys") || is("~*") {
            self.all_keys = true;
            self.keys.clear();
        } else if is("resetkeys") {
            self.all_keys = false;
            self.keys.clear();
        } else if is("allchannels") || is("&*") {
            self.all_channels = true;
            self.channels.clear();
        } else if is("resetchannels") {
            self.all_channels = false;
            self.channels.clear();
        } else if is("allcommands") || is("+@all") {
            self.set_all(true);
        } else if is("nocommands") || is("-@all") {
            self.set_all(false);
        } else {
            match rule {
                [b'~' | b'%', ..] => self.add_keys(rule)?,
                [b'&', channel @ ..] => self.add_channel(channel)?,
                [sign @ (b'+' | b'-'), b'@', name @ ..] => {
                    let category = category::find(name).ok_or(RuleError::UnknownCommand)?;
                    self.set_category(category, *sign == b'+');
                }
                [b'+', name @ ..] => self.allow(name)?,
                [b'-', name @ ..] => {
                    let id = CATALOG.find(name).ok_or(RuleError::UnknownCommand)?;
                    self.set_command(id, false);
                }
                _ => return Err(RuleError::Syntax),
            }
        }
        Ok(())
    }

    fn set_all(&mut self, allow: bool) {
        self.commands.fill(if allow { u64::MAX } else { 0 });
        self.future = allow;
        self.all_commands = allow;
        self.first_arguments.clear();
    }

    fn add_keys(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::AfterAllKeys);
        }
        let mut allowed = 0;
        let mut at = 1;
        if rule[0] == b'~' {
            allowed = READ | WRITE;
        } else {
            while at < rule.len() {
                let letter = rule[at];
                at += 1;
                match letter.to_ascii_uppercase() {
                    b'R' if allowed & READ == 0 => allowed |= READ,
                    b'W' if allowed & WRITE == 0 => allowed |= WRITE,
                    b'~' if allowed != 0 => break,
                    _ => return Err(RuleError::Syntax),
                }
            }
        }
        let pattern = &rule[at..];
        if has_blanks(pattern) {
            return Err(RuleError::Syntax);
        }
        match self.keys.iter_mut().find(|known| known.pattern == pattern) {
            Some(known) => known.allowed |= allowed,
            None => self.keys.push(KeyPattern {
                pattern: Bytes::copy_from_slice(pattern),
                allowed,
            }),
        }
        Ok(())
    }

    fn add_channel(&mut self, channel: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(RuleError::AfterAllChannels);
        }
        if has_blanks(channel) {
            return Err(RuleError::Syntax);
        }
        if !self.channels.iter().any(|known| known == channel) {
            self.channels.push(Bytes::copy_from_slice(channel));
        }
        Ok(())
    }

    /// `+command`, `+container|subcommand` or `+command|first-argument`.
    fn allow(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let Some(bar) = memchr::memrchr(b'|', name) else {
            let id = CATALOG.find(name).ok_or(RuleError::UnknownCommand)?;
            self.set_command(id, true);
            return Ok(());
        };
        let (container, word) = (&name[..bar], &name[bar + 1..]);
        let id = CATALOG.find(container).ok_or(RuleError::UnknownCommand)?;
        if CATALOG.commands[id].nested {
            return Err(RuleError::NestedArgument);
        }
        // A blank would begin another rule where the rules are read from a file.
        if word.is_empty() || has_blanks(word) {
            return Err(RuleError::Syntax);
        }
        if !CATALOG.commands[id].subcommands.is_empty() {
            let id = CATALOG.find(name).ok_or(RuleError::UnknownCommand)?;
            self.set_command(id, true);
            return Ok(());
        }
        let words = self.first_arguments.entry(id).or_default();
        if !words.iter().any(|known| known.eq_ignore_ascii_case(word)) {
            words.push(Bytes::copy_from_slice(word));
        }
        Ok(())
    }

    fn set_category(&mut self, category: u32, allow: bool) {
        for (id, command) in CATALOG.commands.iter().enumerate() {
            if command.categories & category != 0 {
                self.set_command(id, allow);
            }
        }
    }

    /// A container stands for its subcommands.
    fn set_command(&mut self, id: usize, allow: bool) {
        self.first_arguments.remove(&id);
        self.set_bit(id, allow);
        for &id in &CATALOG.commands[id].subcommands {
            self.set_bit(id, allow);
        }
    }

    fn set_bit(&mut self, id: usize, allow: bool) {
        let bit = 1 << (id % 64);
        if allow {
            self.commands[id / 64] |= bit;
        } else {
            self.commands[id / 64] &= !bit;
            self.all_commands = false;
        }
    }

    fn has_bit(&self, id: usize) -> bool {
        self.commands[id / 64] & (1 << (id % 64)) != 0
    }

    // ---- asking it ----

    /// Whether all of a call is allowed.
    pub(crate) fn check(&self, spec: &Spec, args: &[Bytes]) -> Result<(), Denied> {
        if !self.all_commands && !spec.is(flag::NO_AUTH) && !self.allows_command(spec, args) {
            return Err(Denied::Command);
        }
        if !self.all_keys {
            let mut denied = None;
            access::each(spec, args, |at, flags| {
                if denied.is_none() && !self.allows_key(&args[at], flags) {
                    denied = Some(at);
                }
            });
            if let Some(at) = denied {
                return Err(Denied::Key(at));
            }
        }
        let channels = channels_of(spec);
        if !self.all_channels && channels != Channels::None {
            let last = match spec.full_name {
                "publish" | "spublish" => 2,
                _ => args.len(),
            };
            let patterns = channels == Channels::Patterns;
            let allowed = |at: &usize| self.allows_channel(&args[*at], patterns);
            // redis.acl_check_cmd may be asked about a call with too few arguments.
            if let Some(at) = (1..last.min(args.len())).find(|at| !allowed(at)) {
                return Err(Denied::Channel(at));
            }
        }
        Ok(())
    }

    fn allows_command(&self, spec: &Spec, args: &[Bytes]) -> bool {
        let id = CATALOG.id(spec);
        if self.has_bit(id) {
            return true;
        }
        // Subcommands have no first arguments of their own.
        let words = self.first_arguments.get(&id);
        match (words, args.get(1)) {
            (Some(words), Some(first)) => words.iter().any(|word| word.eq_ignore_ascii_case(first)),
            _ => false,
        }
    }

    fn allows_key(&self, name: &[u8], flags: u16) -> bool {
        if flags & key::NOT_KEY != 0 {
            return true;
        }
        let mut wanted = 0;
        if flags & key::ACCESS != 0 {
            wanted |= READ;
        }
        if flags & (key::INSERT | key::UPDATE | key::DELETE) != 0 {
            wanted |= WRITE;
        }
        let mut patterns = self.keys.iter();
        patterns.any(|key| key.allowed & wanted == wanted && glob::matches(&key.pattern, name))
    }

    /// A pattern of PSUBSCRIBE must be among the allowed ones as it stands.
    pub(crate) fn allows_channel(&self, name: &[u8], is_pattern: bool) -> bool {
        self.all_channels
            || self.channels.iter().any(|channel| match is_pattern {
                true => channel == name,
                false => glob::matches(channel, name),
            })
    }

    /// Whether every key there is may be read.
    pub(crate) fn reads_all_keys(&self) -> bool {
        let all = |key: &KeyPattern| key.allowed & READ != 0 && key.pattern.as_ref() == b"*";
        self.all_keys || self.keys.iter().any(all)
    }

    // ---- describing it ----

    /// The patterns of keys as rules.
    pub(crate) fn describe_keys(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let rules = self.keys.iter().map(|key| {
            let prefix: &[u8] = match key.allowed {
                READ => b"%R~",
                WRITE => b"%W~",
                _ => b"~",
            };
            [prefix, &key.pattern].concat()
        });
        rules.collect::<Vec<_>>().join(&b' ')
    }

    /// The channels as rules.
    pub(crate) fn describe_channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let rules = self
            .channels
            .iter()
            .map(|channel| [b"&", channel.as_ref()].concat());
        rules.collect::<Vec<_>>().join(&b' ')
    }

    /// The commands as rules. As in Redis 7.0, that is not how they were given: categories that fit
    /// best come first, then the commands that differ, of those that this version has.
    pub(crate) fn describe_commands(&self, compat: Compat) -> Vec<u8> {
        let mut rules = Vec::new();
        // What the rules so far would allow, and what they leave to be said.
        let mut said = Selector::new(false);
        let mut left = self.clone();
        said.set_all(self.future);
        rules.extend_from_slice(if self.future { b"+@all" } else { b"-@all" });
        let adds = !self.future;
        let mut used = 0;
        while let Some(category) = left.best_category(used, adds) {
            used |= category;
            said.set_category(category, adds);
            left.set_category(category, !adds);
            let name = NAMES[category.trailing_zeros() as usize];
            rules.extend_from_slice(if adds { b" +@" } else { b" -@" });
            rules.extend_from_slice(name.as_bytes());
        }
        let all = CATALOG.commands.iter().enumerate();
        let top = all.filter(|(_, command)| !command.nested && command.is_in(compat));
        for (id, command) in top {
            self.describe_command(id, &mut said, &mut rules);
            let nested = command.subcommands.iter();
            for &id in nested.filter(|&&id| CATALOG.commands[id].is_in(compat)) {
                self.describe_command(id, &mut said, &mut rules);
            }
        }
        rules
    }

    fn describe_command(&self, id: usize, said: &mut Selector, rules: &mut Vec<u8>) {
        let name = CATALOG.commands[id].name;
        let allowed = self.has_bit(id);
        if allowed != said.has_bit(id) {
            said.set_command(id, allowed);
            rules.extend_from_slice(if allowed { b" +" } else { b" -" });
            rules.extend_from_slice(name.as_bytes());
        }
        if !allowed {
            for word in self.first_arguments.get(&id).into_iter().flatten() {
                rules.extend_from_slice(b" +");
                rules.extend_from_slice(name.as_bytes());
                rules.push(b'|');
                rules.extend_from_slice(word);
            }
        }
    }

    /// The category that fits best: fewest commands that differ, then most that agree.
    fn best_category(&self, used: u32, adds: bool) -> Option<u32> {
        let mut best: Option<(u32, usize, usize)> = None;
        for category in (0..NAMES.len()).map(|bit| 1 << bit) {
            if used & category != 0 {
                continue;
            }
            let (mut on, mut off) = (0, 0);
            for (id, command) in CATALOG.commands.iter().enumerate() {
                if command.original && command.categories & category != 0 {
                    match self.has_bit(id) {
                        true => on += 1,
                        false => off += 1,
                    }
                }
            }
            let (same, different) = if adds { (on, off) } else { (off, on) };
            let better = best.is_none_or(|(_, least, most)| {
                different < least || (different == least && same > most)
            });
            if same > different && better {
                best = Some((category, different, same));
            }
        }
        best.map(|(category, ..)| category)
    }

    /// All of it as rules.
    pub(crate) fn describe(&self, compat: Compat) -> Vec<u8> {
        let mut rules = self.describe_keys();
        if !rules.is_empty() {
            rules.push(b' ');
        }
        if !self.all_channels {
            rules.extend_from_slice(b"resetchannels ");
        }
        let channels = self.describe_channels();
        rules.extend_from_slice(&channels);
        if !channels.is_empty() {
            rules.push(b' ');
        }
        rules.extend(self.describe_commands(compat));
        rules
    }
}
