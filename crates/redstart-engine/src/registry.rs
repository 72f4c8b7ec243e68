//! Which commands there are: names, arity, flags and key positions as Redis 7.0's COMMAND says.
//!
//! Each family's file has a table `COMMANDS`; [`FAMILIES`] is the only list of those tables.

pub(crate) mod access;
pub(crate) mod facts;

use std::sync::LazyLock;

use bytes::Bytes;
use hashbrown::HashTable;

use crate::{
    commands,
    compat::{Compat, versions},
    context::Ctx,
    error::{CommandResult, Stop},
    number::parse_int,
};

/// The function that runs a command; the arguments start with the command's name.
pub(crate) type Handler = fn(&mut Ctx<'_>, &[Bytes]) -> CommandResult;

/// Finds the keys of a command whose key positions depend on its arguments.
/// `None` if the arguments do not say where the keys are.
pub(crate) type KeyFinder = fn(&[Bytes]) -> Option<Vec<usize>>;

/// What a command is and may do; the names of [`flag_names`] are those of COMMAND.
pub(crate) mod flag {
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const READONLY: u32 = 1 << 1;
    pub(crate) const DENYOOM: u32 = 1 << 2;
    pub(crate) const ADMIN: u32 = 1 << 3;
    pub(crate) const PUBSUB: u32 = 1 << 4;
    pub(crate) const NOSCRIPT: u32 = 1 << 5;
    pub(crate) const BLOCKING: u32 = 1 << 6;
    pub(crate) const LOADING: u32 = 1 << 7;
    pub(crate) const STALE: u32 = 1 << 8;
    pub(crate) const SKIP_MONITOR: u32 = 1 << 9;
    pub(crate) const SKIP_SLOWLOG: u32 = 1 << 10;
    pub(crate) const ASKING: u32 = 1 << 11;
    pub(crate) const FAST: u32 = 1 << 12;
    pub(crate) const NO_AUTH: u32 = 1 << 13;
    pub(crate) const MOVABLEKEYS: u32 = 1 << 14;
    pub(crate) const NO_ASYNC_LOADING: u32 = 1 << 15;
    pub(crate) const NO_MULTI: u32 = 1 << 16;
    pub(crate) const ALLOW_BUSY: u32 = 1 << 17;
    pub(crate) const NO_MANDATORY_KEYS: u32 = 1 << 18;
    /// The key positions hold channels, which have a slot but are not keys; not
    /// shown by COMMAND.
    pub(crate) const NOT_KEYS: u32 = 1 << 30;
    /// Runs at once inside MULTI instead of being queued (EXEC, DISCARD, …); not shown by COMMAND.
    pub(crate) const UNQUEUED: u32 = 1 << 31;
}

/// Names of the flags in the order in which COMMAND lists them.
pub(crate) fn flag_names(flags: u32) -> impl Iterator<Item = &'static str> {
    const NAMES: [&str; 19] = [
        "write",
        "readonly",
        "denyoom",
        "admin",
        "pubsub",
        "noscript",
        "blocking",
        "loading",
        "stale",
        "skip_monitor",
        "skip_slowlog",
        "asking",
        "fast",
        "no_auth",
        "movablekeys",
        "no_async_loading",
        "no_multi",
        "allow_busy",
        "no_mandatory_keys",
    ];
    NAMES
        .into_iter()
        .enumerate()
        .filter(move |(bit, _)| flags & (1 << bit) != 0)
        .map(|(_, n)| n)
}

/// A command or a subcommand.
pub(crate) struct Spec {
    /// In lower case; a subcommand's own word only.
    pub(crate) name: &'static str,
    /// As in Redis: exact if positive, a minimum if negative, the name counted.
    /// A subcommand counts its container's word, too.
    pub(crate) arity: i32,
    pub(crate) flags: u32,
    /// First key, last key (negative: from the end) and step, as COMMAND says.
    pub(crate) keys: (i32, i32, i32),
    pub(crate) movable: Option<KeyFinder>,
    pub(crate) handler: Handler,
    pub(crate) subcommands: &'static [Spec],
    /// `container|subcommand`, or the name itself.
    pub(crate) full_name: &'static str,
    /// Which servers have it: a set of [`versions`].
    pub(crate) versions: u8,
    /// The arity since Redis 7.2, where that differs.
    pub(crate) newer_arity: Option<i32>,
}

impl Spec {
    pub(crate) const fn new(
        name: &'static str,
        arity: i32,
        flags: u32,
        keys: (i32, i32, i32),
        handler: Handler,
    ) -> Spec {
        Spec {
            name,
            arity,
            flags,
            keys,
            movable: None,
            handler,
            subcommands: &[],
            full_name: name,
            versions: versions::ALL,
            newer_arity: None,
        }
    }

    /// A subcommand, with its name written out as `container|subcommand`.
    pub(crate) const fn sub(
        name: &'static str,
        full_name: &'static str,
        arity: i32,
        flags: u32,
        keys: (i32, i32, i32),
        handler: Handler,
    ) -> Spec {
        Spec {
            name,
            arity,
            flags,
            keys,
            movable: None,
            handler,
            subcommands: &[],
            full_name,
            versions: versions::ALL,
            newer_arity: None,
        }
    }

    /// A command that does nothing but hold subcommands.
    pub(crate) const fn container(
        name: &'static str,
        arity: i32,
        flags: u32,
        subcommands: &'static [Spec],
    ) -> Spec {
        Spec {
            name,
            arity,
            flags,
            keys: (0, 0, 0),
            movable: None,
            handler: no_subcommand,
            subcommands,
            full_name: name,
            versions: versions::ALL,
            newer_arity: None,
        }
    }

    pub(crate) const fn movable(mut self, find: KeyFinder) -> Spec {
        self.movable = Some(find);
        self
    }

    pub(crate) fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// A command that only these [`versions`] have.
    pub(crate) const fn only(mut self, versions: u8) -> Spec {
        self.versions = versions;
        self
    }

    /// A command that takes more arguments since Redis 7.2.
    pub(crate) const fn newer_arity(mut self, arity: i32) -> Spec {
        self.newer_arity = Some(arity);
        self
    }

    /// The subcommands that a server of this version has.
    pub(crate) fn subcommands_in(&self, compat: Compat) -> impl Iterator<Item = &'static Spec> {
        let subcommands = self.subcommands.iter();
        subcommands.filter(move |sub| sub.exists_in(compat))
    }

    pub(crate) fn exists_in(&self, compat: Compat) -> bool {
        compat.is_in(self.versions)
    }

    /// The arity that COMMAND tells.
    pub(crate) fn arity_in(&self, compat: Compat) -> i32 {
        match self.newer_arity {
            Some(arity) if compat.is_in(versions::FROM_7_2) => arity,
            _ => self.arity,
        }
    }

    pub(crate) fn accepts(&self, count: usize, compat: Compat) -> bool {
        let count = count as i64;
        let arity = i64::from(self.arity_in(compat));
        if arity >= 0 {
            count == arity
        } else {
            count >= -arity
        }
    }

    /// Calls `visit` with the position of each key among the arguments.
    pub(crate) fn each_key(&self, args: &[Bytes], mut visit: impl FnMut(usize)) {
        if let Some(find) = self.movable {
            find(args).unwrap_or_default().into_iter().for_each(visit);
            return;
        }
        let (first, last, step) = self.keys;
        if first <= 0 {
            return;
        }
        let last = if last < 0 {
            args.len() as i32 + last
        } else {
            last
        };
        let mut at = first;
        while at <= last && (at as usize) < args.len() {
            visit(at as usize);
            at += step.max(1);
        }
    }
}

fn no_subcommand(_: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    // Reached only by a container called without a subcommand that its arity would demand.
    Err(Stop::wrong_arity(
        &String::from_utf8_lossy(&args[0]).to_lowercase(),
    ))
}

/// One table per family, with the name that COMMAND DOCS has for it.
static FAMILIES: &[(&str, &[Spec])] = &[
    ("generic", commands::keys::COMMANDS),
    ("string", commands::string::COMMANDS),
    ("list", commands::list::COMMANDS),
    ("hash", commands::hash::COMMANDS),
    ("set", commands::set::COMMANDS),
    ("sorted-set", commands::sorted_set::COMMANDS),
    ("stream", commands::stream::COMMANDS),
    ("hyperloglog", commands::hyperloglog::COMMANDS),
    ("geo", commands::geo::COMMANDS),
    ("bitmap", commands::bitmap::COMMANDS),
    ("bf", commands::bloom::COMMANDS),
    ("pubsub", commands::pubsub::COMMANDS),
    ("transactions", commands::transaction::COMMANDS),
    ("scripting", commands::scripting::COMMANDS),
    ("scripting", commands::function::COMMANDS),
    ("connection", commands::connection::COMMANDS),
    ("server", commands::server::COMMANDS),
    ("server", commands::acl::COMMANDS),
    ("cluster", commands::cluster::COMMANDS),
    ("server", commands::database::COMMANDS),
    ("server", commands::watch::COMMANDS),
    ("generic", commands::dump::VALUES),
    ("server", commands::dump::SNAPSHOTS),
    ("server", commands::replication::COMMANDS),
    ("server", commands::debug::COMMANDS),
    ("server", commands::backup::COMMANDS),
    ("generic", commands::sort::COMMANDS),
    ("generic", commands::durability::COMMANDS),
];

static TABLE: LazyLock<HashTable<&'static Spec>> = LazyLock::new(|| {
    let mut table = HashTable::new();
    for spec in all() {
        let hash = hash(spec.name.as_bytes());
        table.insert_unique(hash, spec, |spec| self::hash(spec.name.as_bytes()));
    }
    table
});

/// All commands, without their subcommands.
pub(crate) fn all() -> impl Iterator<Item = &'static Spec> {
    FAMILIES.iter().flat_map(|(_, family)| family.iter())
}

/// The commands that a server of this version has, without their subcommands.
pub(crate) fn of(compat: Compat) -> impl Iterator<Item = &'static Spec> {
    all().filter(move |spec| spec.exists_in(compat))
}

/// What COMMAND DOCS calls the command's family.
pub(crate) fn group(spec: &Spec) -> &'static str {
    let container = spec.full_name.split('|').next().unwrap_or_default();
    if matches!(container, "echo" | "ping" | "select") {
        return "connection";
    }
    FAMILIES
        .iter()
        .find(|(_, family)| family.iter().any(|other| other.name == container))
        .map_or("generic", |(group, _)| group)
}

/// Ignores ASCII case by folding one bit: names that differ elsewhere are told apart on comparison.
fn hash(name: &[u8]) -> u64 {
    let mut hash = 0u64;
    for &byte in name {
        hash = (hash.rotate_left(5) ^ u64::from(byte | 0x20)).wrapping_mul(0x517C_C1B7_2722_0A95);
    }
    hash
}

/// The command of that name, in any case.
pub(crate) fn command(name: &[u8]) -> Option<&'static Spec> {
    TABLE
        .find(hash(name), |spec| {
            spec.name.as_bytes().eq_ignore_ascii_case(name)
        })
        .copied()
}

/// The command or subcommand that these arguments call, if there is one.
pub(crate) fn lookup(args: &[Bytes]) -> Option<&'static Spec> {
    let spec = command(args.first()?)?;
    let word = match args.get(1) {
        Some(word) if !spec.subcommands.is_empty() => word,
        _ => return Some(spec),
    };
    let mut subs = spec.subcommands.iter();
    subs.find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(word))
}

/// The command or subcommand that these arguments call, with their number checked.
pub(crate) fn resolve(args: &[Bytes], compat: Compat) -> Result<&'static Spec, Stop> {
    find(args, compat, |spec| spec.exists_in(compat))
}

/// As [`resolve`], whatever the version: a log may have been written by another.
pub(crate) fn resolve_any(args: &[Bytes]) -> Result<&'static Spec, Stop> {
    find(args, Compat::Valkey9, |_| true)
}

fn find(
    args: &[Bytes],
    compat: Compat,
    exists: impl Fn(&Spec) -> bool,
) -> Result<&'static Spec, Stop> {
    let name = args.first().map_or(&b""[..], |name| name);
    let Some(mut spec) = command(name).filter(|spec| exists(spec)) else {
        return Err(unknown_command(name, &args[1.min(args.len())..]));
    };
    if !spec.subcommands.is_empty() && args.len() >= 2 {
        let word = &args[1];
        let found = spec
            .subcommands
            .iter()
            .find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(word) && exists(sub));
        match found {
            Some(sub) => spec = sub,
            None => {
                return Err(Stop::Error(
                    format!(
                        "ERR unknown subcommand '{}'. Try {} HELP.",
                        printable(c_string(&word[..word.len().min(128)])),
                        spec.name.to_uppercase()
                    )
                    .into(),
                ));
            }
        }
    }
    if spec.accepts(args.len(), compat) {
        Ok(spec)
    } else {
        Err(Stop::wrong_arity(spec.full_name))
    }
}

/// Text for an error line: bytes that are not UTF-8 are replaced, line breaks become blanks.
pub(crate) fn printable(text: &[u8]) -> String {
    String::from_utf8_lossy(text).replace(['\r', '\n'], " ")
}

/// Up to a NUL, where C's strings end.
fn c_string(text: &[u8]) -> &[u8] {
    &text[..memchr::memchr(0, text).unwrap_or(text.len())]
}

fn unknown_command(name: &[u8], args: &[Bytes]) -> Stop {
    let mut shown = String::new();
    for arg in args {
        if shown.len() >= 128 {
            break;
        }
        let room = 128 - shown.len();
        shown.push_str(&format!(
            "'{}' ",
            printable(c_string(&arg[..arg.len().min(room)]))
        ));
    }
    Stop::Error(
        format!(
            "ERR unknown command '{}', with args beginning with: {shown}",
            printable(c_string(&name[..name.len().min(128)]))
        )
        .into(),
    )
}

/// Keys that follow their number at `at`.
fn counted(args: &[Bytes], at: usize) -> Option<Vec<usize>> {
    let count = parse_int(args.get(at)?)?;
    let count = usize::try_from(count).ok()?;
    (count < args.len() - at).then(|| (at + 1..at + 1 + count).collect())
}

/// `CMD numkeys key …`
pub(crate) fn keys_counted_first(args: &[Bytes]) -> Option<Vec<usize>> {
    counted(args, 1)
}

/// `CMD numkeys key value …`
pub(crate) fn keys_counted_with_values(args: &[Bytes]) -> Option<Vec<usize>> {
    let count = usize::try_from(parse_int(args.get(1)?)?).ok()?;
    (count <= (args.len() - 2) / 2).then(|| (0..count).map(|at| 2 + 2 * at).collect())
}

/// `CMD something numkeys key …`
pub(crate) fn keys_counted_second(args: &[Bytes]) -> Option<Vec<usize>> {
    counted(args, 2)
}

/// `CMD destination numkeys key …`
pub(crate) fn keys_stored_and_counted(args: &[Bytes]) -> Option<Vec<usize>> {
    let mut keys = counted(args, 2)?;
    keys.insert(0, 1);
    Some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_are_unique() {
        assert!(command(b"gEt").is_some());
        assert!(command(b"ge").is_none());
        let mut names: Vec<_> = all().map(|spec| spec.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    /// `name arity flags first last step` of each command and subcommand, as redis-cli prints them.
    #[test]
    fn the_table_is_what_the_server_says() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("redis.sock");
        let mut server = std::process::Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("redis-server 7.0 is needed: apt-get install redis-server");
        let mut differences = Vec::new();
        for spec in all() {
            let Some(reply) = info(&socket, spec.name) else {
                continue;
            };
            compare(spec, &reply, &mut differences);
            for sub in spec.subcommands {
                if let Some(reply) = info(&socket, sub.full_name) {
                    compare(sub, &reply, &mut differences);
                }
            }
        }
        server.kill().expect("the server ends");
        server.wait().expect("the server ends");
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    fn compare(spec: &Spec, reply: &[String], differences: &mut Vec<String>) {
        let mut flags: Vec<&str> = flag_names(spec.flags).collect();
        flags.sort_unstable();
        let (first, last, step) = spec.keys;
        let ours = format!("{} {flags:?} {first} {last} {step}", spec.arity);
        let mut theirs: Vec<&str> = reply[2..reply.len() - 3]
            .iter()
            .map(String::as_str)
            .collect();
        theirs.sort_unstable();
        let keys = reply[reply.len() - 3..].join(" ");
        let theirs = format!("{} {theirs:?} {keys}", reply[1]);
        if ours != theirs {
            differences.push(format!(
                "{}\n ours: {ours}\n server: {theirs}",
                spec.full_name
            ));
        }
    }

    /// The words of COMMAND INFO up to the step; `None` if the server has no such command.
    fn info(socket: &std::path::Path, name: &str) -> Option<Vec<String>> {
        use std::io::{BufRead, BufReader, Write};
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let mut stream = loop {
            match std::os::unix::net::UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
            }
        };
        write!(stream, "COMMAND INFO {name}\r\nQUIT\r\n").expect("the server listens");
        let lines: Vec<String> = BufReader::new(stream)
            .lines()
            .map(|line| line.expect("a line"))
            .collect();
        if lines[1].starts_with("*-1") || lines[1].starts_with("$-1") {
            return None;
        }
        // *1, *10, $len, name, :arity, *flags, +flag …, :first, :last, :step
        let flags: usize = lines[5][1..].parse().expect("a number of flags");
        let mut words = vec![lines[3].clone(), lines[4][1..].to_owned()];
        words.extend(lines[6..6 + flags].iter().map(|flag| flag[1..].to_owned()));
        words.extend(
            lines[6 + flags..9 + flags]
                .iter()
                .map(|word| word[1..].to_owned()),
        );
        Some(words)
    }
}
