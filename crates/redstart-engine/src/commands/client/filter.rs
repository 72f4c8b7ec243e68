//! Which clients CLIENT LIST and CLIENT KILL mean, as Valkey has it: conditions that all hold, most of them also with a
//! `NOT-` before.

use std::sync::Arc;

use bytes::Bytes;

use super::{ClientType, client_type, flags, is_at, type_of};
use crate::{
    acl::Account,
    client::Profile,
    context::Ctx,
    error::{SYNTAX, Stop},
    number::parse_int,
    registry::printable,
};

/// What CLIENT LIST can show as flags.
const FLAGS: &[u8] = b"ABEIMNOPRSTUbcdeirtux";

/// One thing that is asked of a client.
enum Condition {
    /// It is one of these.
    Ids(Vec<i64>),
    Kind(ClientType),
    Addr(Bytes),
    Laddr(Bytes),
    Ip(Bytes),
    User(Arc<Account>),
    /// It has all of these.
    Flags(Bytes),
    /// It has all of these capabilities.
    Capa(Bytes),
    Name(Bytes),
    LibName(Bytes),
    LibVer(Bytes),
    Db(usize),
    /// Seconds since it came, at least.
    Age(i64),
    /// Seconds since its last command, at least.
    Idle(i64),
}

/// All that is asked of a client.
#[derive(Default)]
pub(super) struct Filter {
    /// By the word that asks for it: the last one counts.
    conditions: Vec<(Vec<u8>, bool, Condition)>,
    /// Whether the client that asks is not meant.
    skip_me: bool,
}

impl Filter {
    /// Reads what follows the name of the command.
    pub(super) fn parse(cx: &Ctx<'_>, args: &[Bytes], skip_me: bool) -> Result<Filter, Stop> {
        let mut filter = Filter {
            skip_me,
            ..Filter::default()
        };
        let mut rest = args;
        while let [word, more @ ..] = rest {
            let word = word.to_ascii_lowercase();
            let (negated, plain) = match word.strip_prefix(b"not-") {
                Some(plain) => (true, plain),
                None => (false, word.as_slice()),
            };
            if plain == b"id" {
                let taken = filter.take_ids(&word, negated, more)?;
                rest = &more[taken..];
                continue;
            }
            let [value, more @ ..] = more else {
                return Err(SYNTAX.into());
            };
            rest = more;
            match word.as_slice() {
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => filter.skip_me = true,
                b"skipme" if value.eq_ignore_ascii_case(b"no") => filter.skip_me = false,
                b"maxage" | b"idle" => {
                    let seconds = seconds(plain, value)?;
                    let condition = match plain {
                        b"idle" => Condition::Idle(seconds),
                        _ => Condition::Age(seconds),
                    };
                    filter.set(&word, negated, condition);
                }
                _ => {
                    let condition = condition(cx, plain, negated, value)?;
                    filter.set(&word, negated, condition);
                }
            }
        }
        Ok(filter)
    }

    fn set(&mut self, word: &[u8], negated: bool, condition: Condition) {
        self.conditions.retain(|(other, _, _)| other != word);
        self.conditions.push((word.to_owned(), negated, condition));
    }

    /// Takes the numbers that follow, which add to those of before; how many there are.
    fn take_ids(&mut self, word: &[u8], negated: bool, args: &[Bytes]) -> Result<usize, Stop> {
        let mut ids = Vec::new();
        for id in args.iter().map_while(|arg| parse_int(arg)) {
            if id < 1 {
                return Err("ERR client-id should be greater than 0".into());
            }
            ids.push(id);
        }
        let taken = ids.len();
        let before = self.conditions.iter_mut().find_map(|one| match one {
            (other, _, Condition::Ids(before)) if other == word => Some(before),
            _ => None,
        });
        match before {
            Some(before) => before.extend(ids),
            None => self.set(word, negated, Condition::Ids(ids)),
        }
        Ok(taken)
    }

    pub(super) fn matches(&self, cx: &Ctx<'_>, profile: &Profile) -> bool {
        let mut conditions = self.conditions.iter();
        !(self.skip_me && profile.id == cx.client.id)
            && conditions.all(|(_, negated, condition)| holds(cx, profile, condition) != *negated)
    }
}

/// What can be said with and without `NOT-`.
fn condition(cx: &Ctx<'_>, word: &[u8], negated: bool, value: &Bytes) -> Result<Condition, Stop> {
    let known = |letters: &[u8], what: &str| {
        if value.iter().all(|letter| letters.contains(letter)) {
            return Ok(value.clone());
        }
        let filter = match negated {
            true => format!("NOT-{} filter", what.to_uppercase()),
            false => "provided filter".to_owned(),
        };
        let text = format!(
            "ERR Unknown {what} found in the {filter}: {}",
            printable(value)
        );
        Err(Stop::from(text))
    };
    Ok(match word {
        b"type" => Condition::Kind(client_type(cx, value)?),
        b"addr" => Condition::Addr(value.clone()),
        b"laddr" => Condition::Laddr(value.clone()),
        b"ip" => Condition::Ip(value.clone()),
        b"user" => match cx.state.acl.find(value) {
            Some(account) => Condition::User(account),
            None => return Err(format!("ERR No such user '{}'", printable(value)).into()),
        },
        b"flags" => Condition::Flags(known(FLAGS, "flags")?),
        b"capa" => Condition::Capa(known(b"r", "capa")?),
        b"name" => Condition::Name(value.clone()),
        b"lib-name" => Condition::LibName(value.clone()),
        b"lib-ver" => Condition::LibVer(value.clone()),
        b"db" => Condition::Db(database(cx, negated, value)?),
        _ => return Err(SYNTAX.into()),
    })
}

fn seconds(word: &[u8], value: &[u8]) -> Result<i64, Stop> {
    let word = String::from_utf8_lossy(word);
    match parse_int(value) {
        None => Err(format!("ERR {word} is not an integer or out of range").into()),
        Some(..=0) => Err(format!("ERR {word} should be greater than 0").into()),
        Some(seconds) => Ok(seconds),
    }
}

fn database(cx: &Ctx<'_>, negated: bool, value: &[u8]) -> Result<usize, Stop> {
    let word = if negated { "NOT-DB" } else { "DB" };
    let index = parse_int(value).and_then(|index| i32::try_from(index).ok());
    let index = index.ok_or_else(|| format!("ERR {word} is not an integer or out of range"))?;
    let count = cx.state.dbs.len();
    let index = usize::try_from(index).ok().filter(|index| *index < count);
    let beyond = || format!("ERR {word} number should be between 0 and {}", count - 1);
    index.ok_or_else(|| beyond().into())
}

fn holds(cx: &Ctx<'_>, profile: &Profile, condition: &Condition) -> bool {
    let seconds = |since: i64| (cx.now_micros / 1_000_000) - since / 1_000_000;
    // What nobody has chosen is not equal to anything.
    let is = |own: &Bytes, wanted: &Bytes| !own.is_empty() && own == wanted;
    let activity = || profile.activity.lock();
    match condition {
        Condition::Ids(ids) => ids.contains(&(profile.id as i64)),
        Condition::Kind(kind) => type_of(profile) == *kind,
        Condition::Addr(addr) => is_at(&profile.addr, addr),
        Condition::Laddr(laddr) => is_at(&profile.laddr, laddr),
        Condition::Ip(ip) => has_ip(&profile.addr, ip),
        Condition::User(user) => Arc::ptr_eq(user, &activity().account),
        Condition::Flags(wanted) => {
            let own = flags(cx, profile);
            wanted.iter().all(|flag| own.as_bytes().contains(flag))
        }
        Condition::Capa(wanted) => wanted.is_empty() || activity().redirects,
        Condition::Name(name) => is(&activity().name, name),
        Condition::LibName(name) => is(&activity().lib_name, name),
        Condition::LibVer(version) => is(&activity().lib_ver, version),
        Condition::Db(db) => activity().db == *db,
        Condition::Age(least) => seconds(profile.created) >= *least,
        Condition::Idle(least) => seconds(activity().used) >= *least,
    }
}

/// Whether an address, with its port behind, is of this host. That of a unix socket is of none.
fn has_ip(addr: &str, ip: &[u8]) -> bool {
    let addr = addr.strip_prefix('[').unwrap_or(addr).as_bytes();
    let Some(rest) = addr.strip_prefix(ip) else {
        return false;
    };
    let rest = rest.strip_prefix(b"]").unwrap_or(rest);
    matches!(rest, [b':', port, ..] if *port != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_its_whole_address() {
        assert!(has_ip("127.0.0.1:4242", b"127.0.0.1"));
        assert!(has_ip("[::1]:4242", b"::1"));
        for (addr, ip) in [
            ("127.0.0.1:4242", &b"127.0.0."[..]),
            ("127.0.0.1:4242", b"127.0.0.1:4"),
            ("127.0.0.1:4242", b""),
            ("[::1]:4242", b"::"),
            ("/tmp/a.sock:0", b"/tmp/a.sock"),
            ("", b""),
        ] {
            assert!(!has_ip(addr, ip), "{addr}");
        }
    }
}
