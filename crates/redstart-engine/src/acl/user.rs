//! A user: whether it may connect, its passwords, and its rules.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{
    RuleError,
    selector::{Denied, Selector},
};
use crate::{compat::Compat, registry::Spec};

/// SHA-256 of a password; the password itself is not kept.
pub(crate) type Hash = [u8; 32];

pub(crate) fn hash(password: &[u8]) -> Hash {
    Sha256::digest(password).into()
}

/// 64 digits, which must be in lower case.
fn parse_hash(text: &[u8]) -> Result<Hash, RuleError> {
    let mut hash = [0; 32];
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(RuleError::BadHash),
    };
    if text.len() != 64 {
        return Err(RuleError::BadHash);
    }
    for (byte, pair) in hash.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? * 16 + digit(pair[1])?;
    }
    Ok(hash)
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What RESTORE is told about payloads of this user; kept and shown, as every payload is checked here.
#[derive(Clone, Copy, PartialEq)]
enum Payload {
    Unsaid,
    Sanitize,
    Skip,
}

#[derive(Clone)]
pub(crate) struct User {
    enabled: bool,
    no_password: bool,
    payload: Payload,
    passwords: Vec<Hash>,
    /// The user's own rules first.
    selectors: Vec<Selector>,
}

impl User {
    /// A user that may do nothing, not even connect.
    pub(crate) fn new(all_channels: bool) -> User {
        User {
            enabled: false,
            no_password: false,
            payload: Payload::Unsaid,
            passwords: Vec::new(),
            selectors: vec![Selector::new(all_channels)],
        }
    }

    /// A user that may do everything, without a password.
    pub(crate) fn unlimited() -> User {
        User {
            enabled: true,
            no_password: true,
            selectors: vec![Selector::unlimited()],
            ..User::new(true)
        }
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.selectors.iter().any(Selector::is_unlimited)
    }

    pub(crate) fn has_password(&self) -> bool {
        !self.no_password
    }

    /// Whether a connection is this user's without a password.
    pub(crate) fn is_open(&self) -> bool {
        self.enabled && self.no_password
    }

    /// Applies one rule. `all_channels` is what selectors begin with.
    pub(crate) fn apply(&mut self, rule: &[u8], all_channels: bool) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("") {
            // As in Redis, an empty rule is ignored.
        } else if is("on") {
            self.enabled = true;
        } else if is("off") {
            self.enabled = false;
        } else if is("nopass") {
            self.no_password = true;
            self.passwords.clear();
        } else if is("resetpass") {
            self.no_password = false;
            self.passwords.clear();
        } else if is("sanitize-payload") {
            self.payload = Payload::Sanitize;
        } else if is("skip-sanitize-payload") {
            self.payload = Payload::Skip;
        } else if is("clearselectors") {
            self.selectors.truncate(1);
        } else if is("reset") {
            *self = User::new(all_channels);
            self.payload = Payload::Sanitize;
        } else {
            match rule {
                [b'>', password @ ..] => self.add_password(hash(password)),
                [b'#', text @ ..] => self.add_password(parse_hash(text)?),
                [b'<', password @ ..] => self.remove_password(&hash(password))?,
                [b'!', text @ ..] => self.remove_password(&parse_hash(text)?)?,
                [b'(', rules @ .., b')'] => {
                    let mut selector = Selector::new(all_channels);
                    for rule in words(rules) {
                        // It would end the selector where the rules are read from a file.
                        if rule.ends_with(b")") {
                            return Err(RuleError::Syntax);
                        }
                        selector.apply(rule)?;
                    }
                    self.selectors.push(selector);
                }
                rule => self.selectors[0].apply(rule)?,
            }
        }
        Ok(())
    }

    fn add_password(&mut self, hash: Hash) {
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
        self.no_password = false;
    }

    fn remove_password(&mut self, hash: &Hash) -> Result<(), RuleError> {
        let count = self.passwords.len();
        self.passwords.retain(|known| known != hash);
        match self.passwords.len() < count {
            true => Ok(()),
            false => Err(RuleError::NoSuchPassword),
        }
    }

    /// Whether this password opens a connection. Takes as long for a wrong one as for a right one.
    pub(crate) fn accepts(&self, password: &[u8]) -> bool {
        let given = hash(password);
        let same = |known: &Hash| {
            let pairs = known.iter().zip(&given);
            pairs.fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
        };
        let known = self
            .passwords
            .iter()
            .fold(false, |any, hash| any | same(hash));
        self.enabled && (self.no_password || known)
    }

    /// Whether all of a call is allowed by one of the user's sets of rules.
    pub(crate) fn check(&self, spec: &Spec, args: &[Bytes]) -> Result<(), Denied> {
        // The least that was missing: a place further on is nearer to being allowed.
        let mut nearest = Denied::Command;
        for selector in &self.selectors {
            match selector.check(spec, args) {
                Ok(()) => return Ok(()),
                Err(denied) => nearest = nearest.max(denied),
            }
        }
        Err(nearest)
    }

    /// Whether a set of rules that allows the call also allows to read every key.
    pub(crate) fn reads_all_keys(&self, spec: &Spec, args: &[Bytes]) -> bool {
        let mut selectors = self.selectors.iter();
        selectors.any(|selector| selector.reads_all_keys() && selector.check(spec, args).is_ok())
    }

    pub(crate) fn may_subscribe(&self, name: &[u8], is_pattern: bool) -> bool {
        let mut selectors = self.selectors.iter();
        selectors.any(|selector| selector.allows_channel(name, is_pattern))
    }

    // ---- describing it ----

    /// The flags in the order in which Redis lists them.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.enabled { "on" } else { "off" }];
        if self.no_password {
            flags.push("nopass");
        }
        match self.payload {
            Payload::Unsaid => {}
            Payload::Sanitize => flags.push("sanitize-payload"),
            Payload::Skip => flags.push("skip-sanitize-payload"),
        }
        flags
    }

    /// The hashes of the passwords, as text.
    pub(crate) fn passwords(&self) -> impl Iterator<Item = String> {
        self.passwords.iter().map(hex)
    }

    /// The user's own rules, and the further ones.
    pub(crate) fn selectors(&self) -> (&Selector, &[Selector]) {
        (&self.selectors[0], &self.selectors[1..])
    }

    /// All of it as rules, as ACL LIST shows them and a file holds them.
    pub(crate) fn describe(&self, compat: Compat) -> Vec<u8> {
        let mut text = self.flags().join(" ").into_bytes();
        for hash in self.passwords() {
            text.extend_from_slice(b" #");
            text.extend_from_slice(hash.as_bytes());
        }
        let (own, further) = self.selectors();
        text.push(b' ');
        text.extend(own.describe(compat));
        for selector in further {
            text.extend_from_slice(b" (");
            text.extend(selector.describe(compat));
            text.push(b')');
        }
        text
    }
}

/// The words of a line.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

/// Joins the parts of selectors that blanks have separated: `(+get`, `~a)`.
///
/// # Errors
///
/// The part that opens a selector which nothing closes.
pub(crate) fn joined<T: AsRef<[u8]>>(parts: &[T]) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    let mut rules: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<(&T, Vec<u8>)> = None;
    for part in parts {
        let text = part.as_ref();
        let closes = text.last() == Some(&b')');
        match open.take() {
            Some((first, mut rule)) => {
                rule.push(b' ');
                rule.extend_from_slice(text);
                match closes {
                    true => rules.push(rule),
                    false => open = Some((first, rule)),
                }
            }
            None if text.first() == Some(&b'(') && !closes => open = Some((part, text.to_vec())),
            None => rules.push(text.to_vec()),
        }
    }
    match open {
        None => Ok(rules),
        Some((first, _)) => Err(first.as_ref().to_vec()),
    }
}
