//! Random sequences of what operators and client libraries say — CONFIG, INFO, ACL, CLIENT, COMMAND,
//! OBJECT — by three clients, compared reply by reply. What random.rs says of its variables holds here.
//!
//! What may differ, besides what dialect.rs lists:
//!
//! | applies to | what is made equal | why |
//! |---|---|---|
//! | both | the values of INFO but for counters of commands and errors, and of CLIENT INFO and LIST but for what a client chose | they are of the process and of the moment |
//! | both | times, addresses and numbers of entries in ACL LOG, ids of clients, random passwords | the same |
//! | both | passwords in errors of ACL SETUSER, and INFO latencystats | the engine repeats no password, and times calls of its own process now and then |
//! | both | OBJECT REFCOUNT | only the server knows whether a small number is shared or a copy |
//! | both | the texts of summaries, and HELP, which is not asked for | the engine has its own |
//! | Valkey | settings, categories and fields of INFO that came after Redis 7.0, and defaults that Valkey has changed | the engine has those of Redis 7.0 with every `--compat`, see `docs/engine.md` |
//! | both | commands that only one side has, in what ACL says of a user | the engine has Bloom filters as if by a module |
//! | Valkey | `cluster-announce-ip`, which is not drawn | Valkey looks at its characters, which Redis 7.0 does not |
//! | Valkey | how ACL describes a user | it also names databases, and keeps rules as they were given |

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use bytes::Bytes;
use redstart_engine::{Protocol, Reply};
use redstart_testkit::Kind;

use super::{
    dialect,
    generator::Chance,
    random::{PROTOCOLS, fresh, parameter},
    sequence::{Action, Step},
};
use crate::{Pair, Server, nil_array_to_nil, sorted, split};

/// Commands by family; words with a `$` are drawn from [`pool`], `~` marks replies without an order.
const TEMPLATES: &[&[&str]] = &[
    // settings
    &[
        "CONFIG GET $setting",
        "CONFIG GET $setting",
        "~CONFIG GET $settings",
        "~CONFIG GET $settings $setting",
        "~CONFIG GET $setting $setting",
        "CONFIG SET $setting $value",
        "CONFIG SET $setting $value",
        "CONFIG SET $setting $value",
        "CONFIG SET $setting $value $setting $value",
        "CONFIG SET $setting $value $setting",
        "CONFIG SET $setting",
        "CONFIG SET $user $value",
        "CONFIG RESETSTAT",
        "CONFIG RESETSTAT $value",
        "CONFIG REWRITE",
        "CONFIG GET",
        "CONFIG",
        "CONFIG $user",
    ],
    // figures
    &[
        "INFO",
        "INFO $section",
        "INFO $section",
        "INFO $section $section",
        "INFO commandstats errorstats",
        "MEMORY USAGE $key SAMPLES $value",
        "MEMORY $user",
        "SLOWLOG GET $value",
        "SLOWLOG LEN $value",
        "SLOWLOG $user",
        "LATENCY RESET $user",
        "LATENCY HISTORY $user",
        "LATENCY $user",
        "LASTSAVE $value",
        "DBSIZE",
        "ROLE",
        "ROLE $value",
    ],
    // users
    &[
        "ACL SETUSER $user $rule",
        "ACL SETUSER $user $rule $rule",
        "ACL SETUSER $user $rule $rule $rule",
        "ACL SETUSER $user reset $rule $rule $rule $rule",
        "ACL SETUSER $user",
        "ACL SETUSER",
        "ACL GETUSER $user",
        "ACL GETUSER $user",
        "~ACL LIST",
        "~ACL USERS",
        "ACL DELUSER carol nosuch",
        "ACL DELUSER default",
        "ACL WHOAMI",
        "ACL CAT",
        "~ACL CAT $category",
        "ACL GENPASS $value",
        "ACL GENPASS $value $value",
        "ACL DRYRUN $user $call",
        "ACL DRYRUN $user $call",
        "ACL DRYRUN $user $user",
        "ACL DRYRUN",
        "ACL LOG",
        "ACL LOG $value",
        "ACL LOG RESET",
        "ACL LOAD",
        "ACL SAVE",
        "ACL $user",
        "ACL",
        "@AUTH $guest $password",
        "@AUTH $guest $password",
        "@AUTH default nopassword",
        "AUTH $guest wrong",
        "AUTH nosuch $password",
        "AUTH $password",
        "AUTH a b c",
    ],
    // clients
    &[
        "CLIENT SETNAME $user",
        "CLIENT SETNAME $value",
        "CLIENT GETNAME",
        "CLIENT ID",
        "CLIENT INFO",
        "CLIENT LIST",
        "CLIENT LIST TYPE $type",
        "CLIENT LIST ID 99999999 $bad",
        "CLIENT LIST $user",
        "CLIENT LIST NAME $user",
        "CLIENT LIST LIB-NAME $user NOT-TYPE $type",
        "CLIENT LIST NOT-LIB-VER $value DB $value",
        "CLIENT LIST USER $user NOT-NAME $user CAPA r",
        "CLIENT LIST FLAGS $value NOT-DB $value SKIPME $switch",
        "CLIENT LIST NOT-FLAGS x IDLE $value",
        "CLIENT KILL MAXAGE 100000 NAME $user ID $value",
        "CLIENT CAPA redirect",
        "CLIENT KILL $value",
        "CLIENT KILL ID 99999999",
        "CLIENT KILL ID $bad",
        "CLIENT KILL ADDR $value",
        "CLIENT KILL LADDR $value SKIPME yes",
        "CLIENT KILL SKIPME $user",
        "CLIENT KILL TYPE pubsub",
        "CLIENT KILL TYPE $user",
        "CLIENT KILL USER $user SKIPME $user",
        "CLIENT KILL USER nosuch",
        "CLIENT KILL",
        "CLIENT NO-EVICT $switch",
        "CLIENT NO-TOUCH $switch",
        "CLIENT REPLY ON",
        "CLIENT REPLY $value",
        "CLIENT TRACKING OFF",
        "CLIENT TRACKING ON BCAST PREFIX nosuch",
        "CLIENT TRACKING ON OPTIN OPTOUT",
        "CLIENT TRACKING ON PREFIX a",
        "CLIENT TRACKING ON BCAST PREFIX nosuch PREFIX nosuchtoo NOLOOP",
        "CLIENT TRACKING ON REDIRECT 99999999",
        "CLIENT TRACKING $switch $user",
        "CLIENT TRACKINGINFO",
        "CLIENT GETREDIR",
        "CLIENT CACHING $switch",
        "CLIENT CACHING YES",
        "CLIENT UNPAUSE",
        "CLIENT PAUSE $user",
        "CLIENT PAUSE 0 $user",
        "CLIENT UNBLOCK 99999999",
        "CLIENT UNBLOCK 99999999 $user",
        "CLIENT UNBLOCK $value",
        "CLIENT SETINFO LIB-NAME $user",
        "CLIENT SETINFO LIB-VER $value",
        "CLIENT SETINFO $user $value",
        "CLIENT CAPA redirect $user",
        "CLIENT $user",
        "CLIENT",
        "SELECT $value",
        "ECHO $value",
        "PING $value $value",
    ],
    // commands
    &[
        "COMMAND INFO $command",
        "COMMAND INFO $command $command nosuch",
        "COMMAND DOCS $command",
        "COMMAND DOCS nosuch",
        "~COMMAND LIST FILTERBY PATTERN $pattern",
        "~COMMAND LIST FILTERBY ACLCAT $category",
        "COMMAND LIST FILTERBY MODULE $user",
        "COMMAND LIST FILTERBY $user $value",
        "COMMAND LIST $user",
        "COMMAND COUNT $value",
        "COMMAND GETKEYS $call",
        "COMMAND GETKEYS $call",
        "COMMAND GETKEYSANDFLAGS $call",
        "COMMAND GETKEYSANDFLAGS $call",
        "COMMAND GETKEYS",
        "COMMAND GETKEYS $command",
        "COMMAND $user",
    ],
    // values, and what is told of them
    &[
        "SET $key $value",
        "SET $key {v*100}",
        "APPEND $key $value",
        "RPUSH $key $value $value",
        "RPUSH $key {v*9000}",
        "HSET $key $value $value",
        "HSET $key $value {v*65}",
        "SADD $key $value $user",
        "ZADD $key 1 $value 2 $user",
        "XADD $key * f v",
        "DEL $key",
        "OBJECT ENCODING $key",
        "OBJECT ENCODING $key",
        "OBJECT REFCOUNT $key",
        "OBJECT IDLETIME $key",
        "OBJECT FREQ $key",
        "OBJECT ENCODING",
        "OBJECT ENCODING $key $key",
        "OBJECT $user $key",
        "OBJECT $user",
        "OBJECT",
        "MULTI",
        "EXEC",
        "DISCARD",
        "GET $key",
        "PUBLISH $user $value",
        "$run",
    ],
];

const SECTIONS: &[&str] = &[
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cpu",
    "modules",
    "errorstats",
    "cluster",
    "keyspace",
    "nosuch",
    "default",
    "all",
    "everything",
    "COMMANDSTATS",
    "",
];
const VALUES: &[&str] = &[
    "0",
    "1",
    "7",
    "-1",
    "-2",
    "10",
    "255",
    "1000000",
    "9223372036854775807",
    "99999999999999999999",
    "yes",
    "no",
    "YES",
    "local",
    "",
    "a b",
    "1kb",
    "3MB",
    "50%",
    "x",
    "1.5",
    "everysec",
    "allkeys-lru",
    "notice",
    "KEA",
    "normal 1mb 2mb 60",
    "default",
    "127.0.0.1:1",
    "\"\\xff\"",
];
const USERS: &[&str] = &["alice", "bob", "carol", "default", "nosuch"];
const PASSWORDS: &[&str] = &["secret", "other", ""];
const CATEGORIES: &[&str] = &[
    "read",
    "write",
    "admin",
    "dangerous",
    "fast",
    "string",
    "hash",
    "stream",
    "geo",
    "pubsub",
    "connection",
    "scripting",
    "bitmap",
    "hyperloglog",
    "transaction",
    "nosuch",
    "READ",
];
const RULES: &[&str] = &[
    "on",
    "off",
    ">secret",
    ">other",
    "<secret",
    "<nosuch",
    "nopass",
    "resetpass",
    "~*",
    "allkeys",
    "resetkeys",
    "~a*",
    "%R~b*",
    "%W~c*",
    "%RW~d*",
    "%X~e",
    "&*",
    "&news*",
    "allchannels",
    "resetchannels",
    "+@all",
    "-@all",
    "allcommands",
    "nocommands",
    "+get",
    "-get",
    "+set",
    "+client",
    "-client|kill",
    "+client|id",
    "+config|get",
    "-config|set",
    "+@read",
    "-@write",
    "+@nosuch",
    "-@dangerous",
    "+nosuch",
    "+get|a",
    "+select|1",
    "-select|1",
    "+acl|nosuch",
    "(+get ~z*)",
    "(~q +@read -mget)",
    "(nosuch)",
    "(",
    "clearselectors",
    "reset",
    "#nothex",
    "!nothex",
    "sanitize-payload",
    "skip-sanitize-payload",
    "nosuch",
    "",
    "+object|freq",
    "-@all +ping",
    "+@connection",
    "#2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
    "!2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
];
const CALLS: &[&str] = &[
    "GET a1",
    "GET z1",
    "SET a1 x",
    "SET b1 x",
    "SET a1 x GET",
    "MGET a1 b1",
    "MSET a 1 b 2",
    "DEL a1 z1",
    "COPY a1 b1",
    "RENAME a1 c1",
    "LMOVE a b LEFT RIGHT",
    "SORT a BY nosort STORE b",
    "SORT_RO a",
    "EVAL x 2 a b",
    "EVAL x 0",
    "EVAL x -1",
    "FCALL f 1 a",
    "XREAD STREAMS a b 1 2",
    "XREADGROUP GROUP g c STREAMS a 1",
    "ZUNIONSTORE a 2 b c",
    "ZINTER 2 a b",
    "BITFIELD a GET u8 0",
    "BITFIELD a SET u8 0 1",
    "GEORADIUS a 1 2 3 m STORE b",
    "PUBLISH news1 x",
    "PUBLISH other x",
    "SUBSCRIBE news1",
    "CLIENT ID",
    "CLIENT KILL ID 1",
    "CONFIG GET a",
    "CONFIG SET a b",
    "OBJECT FREQ a",
    "MEMORY USAGE a",
    "XINFO STREAM a",
    "PING",
    "GET",
    "PFMERGE a b c",
    "LMPOP 2 a b LEFT",
    "BLMPOP 0 1 a LEFT",
    "SINTERCARD 2 a b",
    "NOSUCH a",
    "KEYS *",
    "FLUSHALL",
    "SCAN 0",
    "TOUCH a b",
    "WATCH a",
    "SETRANGE a1 0 x",
    "XGROUP CREATE a g 0",
    "SPUBLISH a b",
    "ACL WHOAMI",
    "DEBUG OBJECT a",
];
const PATTERNS: &[&str] = &["x*", "*get*", "config|*", "CLIENT|S*", "z[a-m]*", "nosuch"];

/// What is not drawn: it moves the server, ends it, locks everybody out, or is of the machine. Some of them have tests of
/// their own in config.rs.
fn is_drawn(kind: Kind, setting: &str) -> bool {
    const OF_THE_PLACE: &[&str] = &[
        "bind",
        "port",
        "tls-port",
        "unixsocket",
        "dir",
        "pidfile",
        "save",
        "enable-debug-command",
        "appendonly",
        "maxclients",
        "tls-cluster",
        "tls-replication",
        "requirepass",
        "maxmemory",
        "timeout",
        "oom-score-adj",
        "client-query-buffer-limit",
        "client-output-buffer-limit",
        "maxmemory-clients",
        "proto-max-bulk-len",
        "busy-reply-threshold",
        "lua-time-limit",
        "slowlog-log-slower-than",
        "min-replicas-to-write",
        "min-slaves-to-write",
        "aclfile",
        "acllog-max-len",
        "notify-keyspace-events",
        "rename-command",
    ];
    /// Valkey's defaults and checks of them are others.
    const VALKEYS: &[&str] = &[
        "lazyfree-lazy-eviction",
        "lazyfree-lazy-expire",
        "lazyfree-lazy-server-del",
        "lazyfree-lazy-user-del",
        "lazyfree-lazy-user-flush",
        "repl-backlog-size",
        "replica-lazy-flush",
        "io-threads",
        "maxmemory-samples",
        "slave-lazy-flush",
        "syslog-ident",
        "cluster-announce-ip",
    ];
    let is_other =
        OF_THE_PLACE.contains(&setting) || kind == Kind::Valkey && VALKEYS.contains(&setting);
    !is_other
}

struct Generator {
    chance: Chance,
    /// Names that both sides know.
    settings: Vec<String>,
    commands: Vec<String>,
}

impl Generator {
    fn step(&mut self) -> Step {
        let family = TEMPLATES[self.chance.below(TEMPLATES.len())];
        let template = family[self.chance.below(family.len())];
        let (unordered, template) = match template.strip_prefix('~') {
            Some(template) => (true, template),
            None => (false, template),
        };
        // The first client is nobody else, so that one can always do everything.
        let (client, template) = match template.strip_prefix('@') {
            Some(template) => (1 + self.chance.below(2), template),
            None => (self.chance.below(3), template),
        };
        let client = match template.starts_with("ACL") || template.starts_with("CONFIG") {
            true if self.chance.below(3) > 0 => 0,
            _ => client,
        };
        let words: Vec<String> = template.split(' ').map(|word| self.word(word)).collect();
        let args = split(&words.join(" "));
        let action = Action::Command { args, unordered };
        Step { client, action }
    }

    fn word(&mut self, word: &str) -> String {
        let chance = &mut self.chance;
        let of = |chance: &mut Chance, pool: &[&str]| chance.of(pool).to_owned();
        let quoted = |text: String| match text.is_empty() || text.contains(' ') {
            true => format!("\"{text}\""),
            false => text,
        };
        match word {
            "$setting" => {
                let name = self.settings[chance.below(self.settings.len())].clone();
                match chance.below(10) {
                    0 => name.to_uppercase(),
                    _ => name,
                }
            }
            "$settings" => {
                let name = &self.settings[chance.below(self.settings.len())];
                match chance.below(3) {
                    0 => format!("{}*", &name[..name.len().min(6)]),
                    1 => format!("*{}", &name[name.len() / 2..]),
                    _ => name.replacen('-', "?", 1),
                }
            }
            "$command" => self.commands[chance.below(self.commands.len())].clone(),
            "$value" => match of(chance, VALUES) {
                raw if raw.starts_with('"') => raw,
                text => quoted(text),
            },
            "$bad" => of(chance, &["x", "-1", "0", "1x", "-99999999999"]),
            "$section" => quoted(of(chance, SECTIONS)),
            // What is done to the default user is done to everybody.
            "$user" => of(chance, USERS).replace("default", "dave"),
            "$guest" => of(chance, &USERS[..2]),
            "$password" => quoted(of(chance, PASSWORDS)),
            "$category" => of(chance, CATEGORIES),
            "$rule" => quoted(of(chance, RULES)),
            "$run" => loop {
                // Others are families of their own, or change what a reply is.
                let call = chance.of(CALLS);
                if ![
                    "SUBSCRIBE",
                    "CLIENT",
                    "ACL",
                    "CONFIG",
                    "DEBUG",
                    "MEMORY",
                    "XREAD STREAMS",
                    "BLMPOP",
                    "FLUSHALL",
                ]
                .iter()
                .any(|name| call.starts_with(name))
                {
                    return call.to_owned();
                }
            },
            "$call" => of(chance, CALLS),
            "$pattern" => of(chance, PATTERNS),
            "$key" => of(chance, &["a1", "b1", "c1", "d1"]),
            "$type" => of(chance, &["normal", "PUBSUB", "replica", "master", "nosuch"]),
            "$switch" => of(chance, &["on", "OFF", "yes", "no"]),
            other => other.to_owned(),
        }
    }
}

/// Both sides, from their beginning.
struct Run {
    pair: Pair,
    kind: Kind,
    /// What MULTI has queued.
    queued: [Vec<(Vec<Bytes>, bool)>; 3],
    _server: Server,
}

struct Difference {
    what: String,
    ours: String,
    theirs: String,
}

impl Run {
    fn new(kind: Kind, protocol: Protocol) -> Run {
        let server = Server::start_kind(kind);
        let pair = Pair::new(&server, protocol);
        let mut run = Run {
            pair,
            kind,
            queued: Default::default(),
            _server: server,
        };
        // Only the server was greeted.
        for client in 0..3 {
            // A client of the process is listed from its first use of CLIENT on.
            run.both(client, &split("CLIENT ID"));
        }
        run.both(0, &split("CONFIG RESETSTAT"));
        run
    }

    fn both(&mut self, client: usize, args: &[Bytes]) -> (Reply, Reply) {
        let theirs = self.pair.wires[client].call(args);
        let ours = self.pair.sessions[client].execute(args).into_reply();
        let ours = ours.unwrap_or(Reply::Error("waits".into()));
        match self.pair.protocol {
            Protocol::Resp3 => (nil_array_to_nil(ours), theirs),
            Protocol::Resp2 => (ours, theirs),
        }
    }

    fn names(&mut self, line: &str, step: usize) -> BTreeSet<String> {
        let flat = |reply: Reply| match reply {
            Reply::Map(pairs) => pairs.into_iter().flat_map(|(a, b)| [a, b]).collect(),
            Reply::Array(items) | Reply::Set(items) => items,
            other => panic!("{other:?}"),
        };
        let (ours, theirs) = self.both(0, &split(line));
        let names = |reply: Reply| -> BTreeSet<String> {
            let items = flat(reply).into_iter().step_by(step);
            items.map(|item| text(&item)).collect()
        };
        let (ours, theirs) = (names(ours), names(theirs));
        ours.intersection(&theirs).cloned().collect()
    }

    fn step(&mut self, step: &Step) -> Result<(), Difference> {
        let Action::Command { args, unordered } = &step.action else {
            return Ok(());
        };
        let client = step.client;
        let (ours, theirs) = self.both(client, args);
        let name = args[0].to_ascii_uppercase();
        let queued = match &name[..] {
            b"EXEC" | b"DISCARD" | b"RESET" => std::mem::take(&mut self.queued[client]),
            _ => Vec::new(),
        };
        if ours == Reply::Status("QUEUED".into()) {
            self.queued[client].push((args.clone(), *unordered));
        }
        let pairs: Vec<(Vec<Bytes>, bool, Reply, Reply)> = match (ours, theirs) {
            (Reply::Array(ours), Reply::Array(theirs))
                if name == b"EXEC"
                    && ours.len() == queued.len()
                    && theirs.len() == queued.len() =>
            {
                let replies = ours.into_iter().zip(theirs).zip(queued);
                replies
                    .map(|((ours, theirs), (args, unordered))| (args, unordered, ours, theirs))
                    .collect()
            }
            (ours, theirs) => vec![(args.clone(), *unordered, ours, theirs)],
        };
        for (args, unordered, ours, theirs) in pairs {
            let (ours, theirs) = alike(self.kind, &args, unordered, ours, theirs);
            if !dialect::alike(self.kind, &args, unordered, &ours, &theirs) {
                return Err(Difference {
                    what: step.to_string(),
                    ours: format!("{ours:?}"),
                    theirs: format!("{theirs:?}"),
                });
            }
        }
        Ok(())
    }
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(text) | Reply::Verbatim { text, .. } => {
            String::from_utf8_lossy(text).into_owned()
        }
        Reply::Status(text) => text.to_string(),
        other => format!("{other:?}"),
    }
}

/// Both replies without what may differ.
fn alike(
    kind: Kind,
    args: &[Bytes],
    unordered: bool,
    ours: Reply,
    theirs: Reply,
) -> (Reply, Reply) {
    let word = |at: usize| {
        args.get(at)
            .map(|arg| arg.to_ascii_uppercase())
            .unwrap_or_default()
    };
    let (name, sub) = (word(0), word(1));
    let both = |change: &dyn Fn(Reply) -> Reply| (change(ours.clone()), change(theirs.clone()));
    match (&name[..], &sub[..]) {
        (b"CONFIG", b"GET") if !matches!(ours, Reply::Error(_)) => settings(kind, ours, theirs),
        (b"ACL", b"GETUSER" | b"LIST") if kind == Kind::Redis => both(&rules),
        (b"INFO", _) => info(kind, &ours, &theirs),
        (b"CLIENT", b"INFO" | b"LIST") => both(&|reply| clients(kind, reply)),
        (b"CLIENT", b"ID") | (b"LASTSAVE", _) => both(&|reply| kind_only(reply)),
        (b"ACL", b"GENPASS") => both(&|reply| match reply {
            Reply::Bulk(text) => Reply::Int(text.len() as i64),
            other => other,
        }),
        // The engine repeats no password.
        (b"ACL", b"SETUSER") => match (&ours, &theirs) {
            (Reply::Error(told), Reply::Error(full)) if told.contains("(redacted)") => {
                let (head, tail) = told.split_once("(redacted)").unwrap_or_default();
                match full.starts_with(head) && full.ends_with(tail) {
                    true => (ours.clone(), ours),
                    false => (ours, theirs),
                }
            }
            _ => (ours, theirs),
        },
        (b"ACL", b"LOG") => both(&|reply| {
            strip(
                reply,
                &[
                    "age-seconds",
                    "client-info",
                    "entry-id",
                    "timestamp-created",
                    "timestamp-last-updated",
                ],
            )
        }),
        (b"ACL", b"GETUSER" | b"LIST") if kind == Kind::Valkey => both(&|reply| kind_only(reply)),
        (b"ACL", b"CAT") if kind == Kind::Valkey => both(&|reply| kind_only(reply)),
        (b"ACL", b"CAT") => {
            let reply = both(&known);
            (sorted(reply.0), sorted(reply.1))
        }
        (b"COMMAND", b"DOCS") => both(&|reply| {
            let texts = [
                "summary",
                "complexity",
                "history",
                "replaced_by",
                "subcommands",
            ];
            sorted(strip(reply, &texts))
        }),
        (b"COMMAND", b"INFO") => both(&|reply| sorted(subcommands(strip(reply, &["notes"])))),
        (b"COMMAND", b"LIST") => {
            let reply = both(&known);
            (sorted(reply.0), sorted(reply.1))
        }
        (b"COMMAND", b"GETKEYSANDFLAGS") => both(&sorted),
        (b"MEMORY", b"USAGE") | (b"OBJECT", b"IDLETIME" | b"REFCOUNT") | (b"XADD", _) => {
            both(&|reply| kind_only(reply))
        }
        (b"SLOWLOG", _) => both(&|reply| kind_only(reply)),
        (b"SCAN" | b"KEYS", _) => (sorted(ours), sorted(theirs)),
        _ if unordered => (sorted(ours), sorted(theirs)),
        _ => (ours, theirs),
    }
}

/// Commands that only one side has.
fn is_absent(name: &str) -> bool {
    super::command::is_own(name)
        || super::command::ABSENT
            .iter()
            .any(|(absent, _)| *absent == name)
}

/// The settings that are drawn; Valkey has more of them, and lacks some.
fn settings(kind: Kind, ours: Reply, theirs: Reply) -> (Reply, Reply) {
    const NOT_VALKEYS: &[&str] = &[
        "aof-disable-auto-gc",
        "dynamic-hz",
        "io-threads-do-reads",
        "sanitize-dump-payload",
    ];
    let pairs = |reply: Reply| -> Vec<(Reply, Reply)> {
        match reply {
            Reply::Map(pairs) => pairs,
            Reply::Array(items) => {
                let pairs = items.chunks_exact(2);
                pairs
                    .map(|pair| (pair[0].clone(), pair[1].clone()))
                    .collect()
            }
            other => vec![(other, Reply::Nil)],
        }
    };
    let lower = |name: &Reply| text(name).to_lowercase();
    let (mut ours, mut theirs) = (pairs(ours), pairs(theirs));
    for all in [&mut ours, &mut theirs] {
        all.retain(|(name, _)| is_drawn(kind, &lower(name)));
    }
    if kind == Kind::Valkey {
        ours.retain(|(name, _)| !NOT_VALKEYS.contains(&lower(name).as_str()));
        theirs.retain(|(name, _)| ours.iter().any(|(own, _)| lower(own) == lower(name)));
    }
    (sorted(Reply::Map(ours)), sorted(Reply::Map(theirs)))
}

/// The words of rules in one order: the server keeps them in a hash table.
fn rules(reply: Reply) -> Reply {
    match reply {
        Reply::Bulk(text) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            let named = |word: &str| is_absent(word.trim_start_matches(['+', '-']));
            let mut words: Vec<&str> = text.split(' ').filter(|word| !named(word)).collect();
            words.sort_unstable();
            Reply::bulk(words.join(" "))
        }
        Reply::Array(items) => Reply::Array(items.into_iter().map(rules).collect()),
        Reply::Map(pairs) => Reply::Map(pairs.into_iter().map(|(k, v)| (k, rules(v))).collect()),
        other => other,
    }
}

/// Names of commands, without those that one side lacks.
fn known(reply: Reply) -> Reply {
    match reply {
        Reply::Array(items) | Reply::Set(items) => {
            let items = items.into_iter().filter(|item| !is_absent(&text(item)));
            Reply::Array(items.collect())
        }
        other => other,
    }
}

/// What kind of reply it is; errors as they are.
fn kind_only(reply: Reply) -> Reply {
    match reply {
        Reply::Bulk(_) => Reply::bulk("text"),
        Reply::Int(_) => Reply::Int(0),
        Reply::Array(_) | Reply::Set(_) => Reply::Array(Vec::new()),
        Reply::Map(_) => Reply::Map(Vec::new()),
        other => other,
    }
}

/// Maps, also those that are arrays in RESP2, without some names.
fn strip(reply: Reply, names: &[&str]) -> Reply {
    let named =
        |item: &Reply| matches!(item, Reply::Bulk(_)) && names.contains(&text(item).as_str());
    match reply {
        Reply::Map(pairs) => {
            let pairs = pairs.into_iter().filter(|(key, _)| !named(key));
            Reply::Map(
                pairs
                    .map(|(key, value)| (key, strip(value, names)))
                    .collect(),
            )
        }
        Reply::Array(items) => {
            let mut kept = Vec::new();
            let mut items = items.into_iter();
            while let Some(item) = items.next() {
                match named(&item) {
                    true => drop(items.next()),
                    false => kept.push(strip(item, names)),
                }
            }
            Reply::Array(kept)
        }
        Reply::Set(items) => Reply::Set(items.into_iter().map(|item| strip(item, names)).collect()),
        other => other,
    }
}

/// Of each command, without its subcommands, which are asked for by themselves.
fn subcommands(reply: Reply) -> Reply {
    let alone = |command: Reply| match command {
        Reply::Array(mut fields) => {
            fields.truncate(9);
            Reply::Array(fields)
        }
        other => other,
    };
    match reply {
        Reply::Array(commands) => Reply::Array(commands.into_iter().map(alone).collect()),
        other => other,
    }
}

/// The names of the fields by section, and how often commands ran and failed.
fn fields(reply: &Reply) -> BTreeSet<String> {
    let page = text(reply);
    let mut section = String::new();
    let mut all = BTreeSet::new();
    for line in page.split("\r\n").filter(|line| !line.is_empty()) {
        if let Some(title) = line.strip_prefix("# ") {
            section = title.to_owned();
            all.insert(line.to_owned());
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let counts: Vec<&str> = value
            .split(',')
            .filter(|part| !part.starts_with("usec"))
            .collect();
        all.insert(match &section[..] {
            "Commandstats" | "Errorstats" => format!("{section} {name} {counts:?}"),
            // A call in this process is timed now and then.
            "Latencystats" => continue,
            "Keyspace" => format!("{section} {name}"),
            // A name appears when there is something to tell.
            _ if name.starts_with("active_defrag") => continue,
            _ => format!("{section} {name}"),
        });
    }
    all
}

fn info(kind: Kind, ours: &Reply, theirs: &Reply) -> (Reply, Reply) {
    if !matches!(
        (ours, theirs),
        (Reply::Bulk(_), Reply::Bulk(_)) | (Reply::Verbatim { .. }, Reply::Verbatim { .. })
    ) {
        return (ours.clone(), theirs.clone());
    }
    let (mut ours, mut theirs) = (fields(ours), fields(theirs));
    ours.remove("Server redstart_version");
    if kind == Kind::Valkey {
        for absent in ["Server redis_mode", "Server atomicvar_api"] {
            ours.remove(absent);
        }
        let counted =
            |line: &String| line.starts_with("Commandstats ") || line.starts_with("Errorstats ");
        theirs.retain(|line| counted(line) || ours.contains(line));
    }
    // Only what differs, so that a failure can be read.
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| {
        Reply::Array(one.difference(other).map(Reply::bulk).collect())
    };
    (only(&ours, &theirs), only(&theirs, &ours))
}

/// A line for each client: the names of its fields, and the values that it chose itself.
fn clients(kind: Kind, reply: Reply) -> Reply {
    const CHOSEN: &[&str] = &[
        "name", "db", "sub", "psub", "ssub", "multi", "user", "resp", "lib-name", "lib-ver", "capa",
    ];
    let shape = |line: &str| -> String {
        let fields = line.split(' ').filter_map(|field| {
            let (name, value) = field.split_once('=')?;
            match () {
                // A server queues no more once a watched key was changed.
                () if name == "multi" && kind == Kind::Redis && value != "-1" => {
                    Some("multi=some".to_owned())
                }
                // Valkey also says 0 outside of a transaction.
                () if kind == Kind::Valkey && name == "multi" => Some(name.to_owned()),
                () if CHOSEN.contains(&name) => Some(field.to_owned()),
                () => Some(name.to_owned()),
            }
        });
        fields.collect::<Vec<_>>().join(" ")
    };
    let page = text(&reply);
    match reply {
        Reply::Bulk(_) | Reply::Verbatim { .. } => {
            // The server has a client that the engine has not: the one that watches it.
            let mut lines: Vec<String> = page.lines().map(shape).collect();
            lines.sort();
            lines.dedup();
            let is_plain = |line: &str| {
                ["name= ", " db=0 ", " user=default "]
                    .iter()
                    .all(|part| line.contains(part))
                    && (line.contains(" multi=-1 ") || line.contains(" multi "))
            };
            lines.retain(|line| !line.is_empty() && !is_plain(line));
            Reply::Array(lines.into_iter().map(Reply::bulk).collect())
        }
        other => other,
    }
}

/// How many steps are made on one server.
const LENGTH: u64 = 5_000;

fn generator(run: &mut Run, seed: u64) -> Generator {
    let kind = run.kind;
    let mut settings: Vec<String> = run.names("CONFIG GET *", 2).into_iter().collect();
    settings.retain(|name| is_drawn(kind, name));
    let commands = run.names("COMMAND LIST", 1).into_iter().collect();
    run.both(0, &split("CONFIG RESETSTAT"));
    Generator {
        chance: Chance::new(seed),
        settings,
        commands,
    }
}

/// The index of the step at which the two differ, and how.
fn replay(kind: Kind, protocol: Protocol, steps: &[Step]) -> Option<(usize, Difference)> {
    let mut run = Run::new(kind, protocol);
    steps
        .iter()
        .enumerate()
        .find_map(|(at, step)| Some((at, run.step(step).err()?)))
}

/// Leaves out whatever is not needed for the two to differ in the last step.
fn shrink(kind: Kind, protocol: Protocol, mut steps: Vec<Step>) -> Vec<Step> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut chunk = steps.len().div_ceil(2);
    while chunk > 0 && Instant::now() < deadline {
        let mut at = 0;
        while at + 1 < steps.len() && Instant::now() < deadline {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + chunk).min(steps.len() - 1));
            match replay(kind, protocol, &fewer) {
                Some((last, found)) if found.what == steps[steps.len() - 1].to_string() => {
                    fewer.truncate(last + 1);
                    steps = fewer;
                }
                _ => at += chunk,
            }
        }
        chunk /= 2;
    }
    steps
}

fn fuzz(kind: Kind, seed: u64) {
    let seed = parameter("REDSTART_FUZZ_SEED").unwrap_or(seed);
    let commands = parameter("REDSTART_FUZZ_COMMANDS")
        .unwrap_or_else(|| redstart_testkit::scale(20_000, "administration"));
    let go_on = parameter("REDSTART_FUZZ_GO_ON").is_some();
    println!("{kind:?}: {commands} commands of REDSTART_FUZZ_SEED={seed}");
    let mut seen = BTreeSet::new();
    for protocol in PROTOCOLS {
        let mut left = commands / 2;
        let mut chapter = 0;
        while left > 0 {
            let length = left.min(LENGTH);
            left -= length;
            chapter += 1;
            let mut run = Run::new(kind, protocol);
            let mut generator = generator(&mut run, seed.wrapping_mul(2 * chapter + 1));
            let mut steps = Vec::new();
            for _ in 0..length {
                steps.push(generator.step());
                let Err(found) = run.step(&steps[steps.len() - 1]) else {
                    continue;
                };
                if go_on {
                    let words: Vec<&str> =
                        found.what.split('"').skip(1).step_by(2).take(2).collect();
                    if seen.insert(words.join(" ")) {
                        println!(
                            "{}\n engine: {}\n server: {}",
                            found.what, found.ours, found.theirs
                        );
                    }
                    // What follows from it is not another one.
                    for client in 0..3 {
                        run.both(client, &split("DISCARD"));
                        run.queued[client].clear();
                    }
                    run.both(0, &split("CONFIG RESETSTAT"));
                    continue;
                }
                drop(run);
                let short = shrink(kind, protocol, steps);
                let lines: Vec<String> = short.iter().map(Step::to_string).collect();
                panic!(
                    "{kind:?}, {protocol:?}, REDSTART_FUZZ_SEED={seed}\n{}\n engine: {}\n server: {}",
                    lines.join("\n"),
                    found.ours,
                    found.theirs
                );
            }
        }
    }
    assert!(seen.is_empty(), "{seen:?} differ");
}

const KNOWN: u64 = 20_240_229;

#[test]
fn known_administration_answers_as_on_redis() {
    fuzz(Kind::Redis, KNOWN);
}

#[test]
fn known_administration_answers_as_on_valkey() {
    fuzz(Kind::Valkey, KNOWN);
}

#[test]
#[ignore = "others each time: by the campaign engine-fuzz"]
fn fresh_administration_answers_as_on_redis() {
    fuzz(Kind::Redis, fresh());
}

#[test]
#[ignore = "others each time: by the campaign engine-fuzz"]
fn fresh_administration_answers_as_on_valkey() {
    fuzz(Kind::Valkey, fresh());
}
