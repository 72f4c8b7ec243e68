//! Random sequences of commands by three interleaved clients, compared reply by reply with what the
//! keyspace notifications say, and the keyspaces key by key.
//!
//! `REDSTART_FUZZ_SEED` and `REDSTART_FUZZ_COMMANDS` repeat and extend a sequence; `cargo xtask fuzz`
//! sets them. Some tests are mostly about scripts, or about clients that wait. A failure is made short and printed: put what it prints into `regressions/`.
//! `REDSTART_FUZZ_GO_ON=1` shows each kind of difference once instead of stopping at the first.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use bytes::Bytes;
use redstart_engine::{Outcome, Protocol, PushReceiver, Reply, Session};
use redstart_testkit::Kind;

use super::{
    dialect,
    generator::{Generator, KEYS, Mix},
    sequence::{self, Action, Step},
};
use crate::{Pair, Server, Wire, nil_array_to_nil, split};

pub(super) const PROTOCOLS: [Protocol; 2] = [Protocol::Resp2, Protocol::Resp3];

/// How often the keyspaces are compared.
const EVERY: usize = 300;

#[derive(Debug)]
struct Difference {
    what: String,
    ours: String,
    theirs: String,
}

impl Difference {
    /// Which command it is about, and what kinds of replies, so that a shorter sequence is about the same.
    fn subject(&self) -> [&str; 4] {
        let name = match self.what.split_once(": ") {
            Some((place, line)) if place.starts_with("in database") => line.split(' ').next(),
            _ => self.what.split('"').nth(1),
        };
        let hears = if self.what.ends_with("hears") {
            "hears"
        } else {
            ""
        };
        let kind = |reply: &'_ str| reply.find('(').unwrap_or(reply.len());
        [
            name.unwrap_or(&self.what),
            hears,
            &self.ours[..kind(&self.ours)],
            &self.theirs[..kind(&self.theirs)],
        ]
    }

    fn new(what: impl Into<String>, ours: impl Into<String>, theirs: impl Into<String>) -> Self {
        Difference {
            what: what.into(),
            ours: ours.into(),
            theirs: theirs.into(),
        }
    }
}

/// Both sides, with three clients and one that listens to keyspace notifications.
struct Run<'a> {
    kind: Kind,
    server: &'a Server,
    pair: Pair,
    listener: (Session, PushReceiver, Wire),
    /// What the waiting clients wait with.
    waiting: [Option<Step>; 3],
    /// What is queued by MULTI: the arguments, and whether the reply is without order.
    queued: [Vec<(Vec<Bytes>, bool)>; 3],
    /// The server's numbers of the clients.
    ids: Vec<i64>,
    /// How long the server may take for a reply that the engine has.
    patience: Duration,
    /// Checks after each step what is otherwise checked now and then.
    thorough: bool,
    steps: usize,
}

impl<'a> Run<'a> {
    fn new(server: &'a Server, protocol: Protocol, thorough: bool) -> Run<'a> {
        let mut pair = Pair::new(server, protocol);
        pair.monitor.call(&split("SCRIPT FLUSH"));
        pair.monitor.call(&split("FUNCTION FLUSH"));
        // Valkey misses keys in another order, since it looks at arguments first.
        let notify = split(match server.kind {
            Kind::Redis => "CONFIG SET notify-keyspace-events EAmn",
            Kind::Valkey => "CONFIG SET notify-keyspace-events EAn",
        });
        pair.monitor.call(&notify);
        pair.engine.session().execute(&notify);
        let ids = pair
            .wires
            .iter_mut()
            .map(|wire| match wire.call(&split("CLIENT ID")) {
                Reply::Int(id) => id,
                other => panic!("{other:?}"),
            })
            .collect();
        let mut session = match protocol {
            Protocol::Resp2 => pair.engine.session(),
            Protocol::Resp3 => pair.engine.session_resp3(),
        };
        let pushes = session.pushes();
        let mut wire = server.connect();
        if protocol == Protocol::Resp3 {
            wire.call(&split("HELLO 3"));
        }
        let all = split("PSUBSCRIBE __key*");
        session.execute(&all);
        wire.call(&all);
        Run {
            kind: server.kind,
            server,
            pair,
            listener: (session, pushes, wire),
            waiting: [None, None, None],
            queued: [Vec::new(), Vec::new(), Vec::new()],
            ids,
            // A busy machine is no difference; while a failure is made shorter, many replays wait for nothing.
            patience: Duration::from_secs(if thorough { 20 } else { 120 }),
            thorough,
            steps: 0,
        }
    }

    fn free(&self) -> Vec<usize> {
        (0..3)
            .filter(|&client| self.pair.blocked[client].is_none())
            .collect()
    }

    fn check(
        &self,
        what: &str,
        args: &[Bytes],
        unordered: bool,
        queued: &[(Vec<Bytes>, bool)],
        ours: Reply,
        theirs: Reply,
    ) -> Result<(), Difference> {
        let ours = match self.pair.protocol {
            // Both are `_` on the wire.
            Protocol::Resp3 => nil_array_to_nil(ours),
            Protocol::Resp2 => ours,
        };
        let alike = match (&ours, &theirs) {
            // What EXEC returns is in order; what is in it is as its command has it.
            (Reply::Array(ours), Reply::Array(theirs))
                if ours.len() == queued.len() && theirs.len() == queued.len() =>
            {
                let mut items = ours.iter().zip(theirs).zip(queued);
                items.all(|((ours, theirs), (args, unordered))| {
                    dialect::alike(self.kind, args, *unordered, ours, theirs)
                })
            }
            (ours, theirs) => dialect::alike(self.kind, args, unordered, ours, theirs),
        };
        match (alike, ours, theirs) {
            (true, ..) => Ok(()),
            // Only what differs of a long transaction.
            (false, Reply::Array(ours), Reply::Array(theirs))
                if ours.len() == queued.len() && theirs.len() == queued.len() =>
            {
                let mut items = ours.iter().zip(&theirs).zip(queued);
                let first = items.find(|((ours, theirs), (args, unordered))| {
                    !dialect::alike(self.kind, args, *unordered, ours, theirs)
                });
                let ((ours, theirs), (args, _)) = first.expect("one differs");
                Err(Difference::new(
                    format!("{what} of {args:?}"),
                    format!("{ours:?}"),
                    format!("{theirs:?}"),
                ))
            }
            (false, ours, theirs) => Err(Difference::new(
                what,
                format!("{ours:?}"),
                format!("{theirs:?}"),
            )),
        }
    }

    /// Reads what the engine has for the clients that waited.
    fn settle(&mut self) -> Result<(), Difference> {
        for client in 0..3 {
            let Some(blocked) = &mut self.pair.blocked[client] else {
                continue;
            };
            let Some(ours) = blocked.try_take() else {
                continue;
            };
            self.pair.blocked[client] = None;
            let Some(step) = self.waiting[client].take() else {
                continue;
            };
            if self.kind == Kind::Valkey && dialect::has_no_entries(&ours) {
                self.unblock(client)?;
                continue;
            }
            let Some(theirs) = self.pair.wires[client].read_within(self.patience) else {
                return Err(Difference::new(
                    format!("{step} ?"),
                    format!("{ours:?}"),
                    "still waits",
                ));
            };
            if let Action::Command { args, unordered } = &step.action {
                self.check(&format!("{step} ?"), args, *unordered, &[], ours, theirs)?;
            }
        }
        Ok(())
    }

    /// What the listener hears on both sides.
    fn hear(&mut self, what: &str) -> Result<(), Difference> {
        let patience = self.patience;
        let mut ours = Vec::new();
        while let Some(push) = self.listener.1.try_recv() {
            ours.push(self.framed(push));
        }
        ours.retain(dialect::is_timely);
        let wire = &mut self.listener.2;
        let mut theirs = Vec::new();
        while theirs.len() < ours.len()
            && let Some(push) = wire.read_within(patience)
        {
            if dialect::is_timely(&push) {
                theirs.push(push);
            }
        }
        let alike = dialect::messages(&ours) == dialect::messages(&theirs);
        if !alike || self.thorough || self.steps.is_multiple_of(32) {
            wire.send(&split("PING that-is-all"));
            loop {
                let push = wire.read();
                if format!("{push:?}").contains("that-is-all") {
                    break;
                }
                if dialect::is_timely(&push) {
                    theirs.push(push);
                }
            }
        }
        match dialect::messages(&ours) == dialect::messages(&theirs) {
            true => Ok(()),
            false => Err(Difference::new(
                format!("{what}: the listener hears"),
                format!("{ours:?}"),
                format!("{theirs:?}"),
            )),
        }
    }

    /// Forgets what the engine says to the listener of a command that the server did not get.
    fn forget(&mut self) {
        while self.listener.1.try_recv().is_some() {}
    }

    /// A push is an array in RESP2.
    fn framed(&self, reply: Reply) -> Reply {
        match (reply, self.pair.protocol) {
            (Reply::Push(items), Protocol::Resp2) => Reply::Array(items),
            (Reply::Push(items), Protocol::Resp3) => {
                Reply::Push(items.into_iter().map(nil_array_to_nil).collect())
            }
            (other, _) => other,
        }
    }

    fn give_up(&mut self, client: usize) -> Result<(), Difference> {
        let Some(blocked) = self.pair.blocked[client].take() else {
            return Ok(());
        };
        drop(blocked);
        self.waiting[client] = None;
        self.unblock(client)
    }

    /// Whether it is an XSETID to before an entry that was deleted.
    fn sets_before_deleted(&mut self, client: usize, args: &[Bytes]) -> bool {
        if args[0] != "XSETID" {
            return false;
        }
        let info = ["XINFO".into(), "STREAM".into(), args[1].clone()];
        let reply = self.pair.sessions[client].execute(&info).into_reply();
        let deleted = reply.and_then(|reply| dialect::max_deleted(&reply));
        match (dialect::stream_id(&args[2]), deleted) {
            (Some(id), Some(deleted)) => id < deleted,
            _ => false,
        }
    }

    /// Whether a command exchanges databases, at once or for a transaction.
    fn swaps(&self, client: usize, name: &[u8]) -> bool {
        let is_swap = |(args, _): &(Vec<Bytes>, bool)| args[0].eq_ignore_ascii_case(b"SWAPDB");
        name == b"SWAPDB" || name == b"EXEC" && self.queued[client].iter().any(is_swap)
    }

    fn give_up_several(&mut self, client: usize) -> Result<(), Difference> {
        match &self.waiting[client] {
            Some(Step {
                action: Action::Command { args, .. },
                ..
            }) if dialect::awaits_several(args) => self.give_up(client),
            _ => Ok(()),
        }
    }

    /// Ends a wait on the server, where the client must still wait.
    fn unblock(&mut self, client: usize) -> Result<(), Difference> {
        let id = self.ids[client];
        let done = self
            .pair
            .monitor
            .call(&split(&format!("CLIENT UNBLOCK {id}")));
        let theirs = self.pair.wires[client].read_within(self.patience);
        match done {
            Reply::Int(1) => Ok(()),
            _ => Err(Difference::new(
                format!("@{} gives up", client + 1),
                "waits",
                format!("{theirs:?}"),
            )),
        }
    }

    /// The subscriber's commands have several replies.
    fn subscribe(&mut self, step: &Step, args: &[Bytes]) -> Result<(), Difference> {
        self.listener.2.send(args);
        let reply = match self.listener.0.execute(args) {
            Outcome::Reply(reply) => reply,
            Outcome::Blocked(_) => panic!("{step} blocks"),
        };
        let mut all = Vec::new();
        while let Some(push) = self.listener.1.try_recv() {
            all.push(push);
        }
        all.push(reply);
        for ours in all {
            let ours = self.framed(ours);
            if !dialect::is_timely(&ours) {
                continue;
            }
            let mut theirs = self.listener.2.read_within(self.patience);
            while theirs
                .as_ref()
                .is_some_and(|push| !dialect::is_timely(push))
            {
                theirs = self.listener.2.read_within(self.patience);
            }
            if theirs.as_ref() != Some(&ours) {
                return Err(Difference::new(
                    step.to_string(),
                    format!("{ours:?}"),
                    format!("{theirs:?}"),
                ));
            }
        }
        Ok(())
    }

    /// One step on both sides. A step of a client that waits is left out.
    fn step(&mut self, step: &Step) -> Result<(), Difference> {
        self.steps += 1;
        let client = step.client;
        let (args, unordered) = match &step.action {
            Action::GiveUp => {
                self.give_up(client)?;
                return self.settle();
            }
            Action::Command { args, unordered } => (args, *unordered),
        };
        if client == 3 {
            return self.subscribe(step, args);
        }
        let free = self.free();
        if !free.contains(&client) {
            return Ok(());
        }
        if self.kind == Kind::Valkey && self.sets_before_deleted(client, args) {
            return Ok(());
        }
        let name = args[0].to_ascii_uppercase();
        if self.swaps(client, &name) {
            for other in 0..3 {
                self.give_up_several(other)?;
            }
        }
        let session = &mut self.pair.sessions[client];
        let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| session.execute(args))) else {
            return Err(Difference::new(step.to_string(), "panicked", ""));
        };
        match outcome {
            Outcome::Reply(ours) => {
                self.pair.wires[client].send(args);
                let Some(theirs) = self.pair.wires[client].read_within(self.patience) else {
                    return Err(Difference::new(
                        step.to_string(),
                        format!("{ours:?}"),
                        "waits",
                    ));
                };
                let queued = match &name[..] {
                    b"EXEC" | b"DISCARD" if !matches!(&ours, Reply::Error(e) if e.contains("MULTI")) => {
                        std::mem::take(&mut self.queued[client])
                    }
                    _ => Vec::new(),
                };
                if ours == Reply::Status("QUEUED".into()) {
                    self.queued[client].push((args.clone(), unordered));
                }
                self.check(&step.to_string(), args, unordered, &queued, ours, theirs)?;
            }
            // Nobody would be left to push.
            Outcome::Blocked(blocked) if free.len() == 1 => {
                drop(blocked);
                self.forget();
            }
            Outcome::Blocked(blocked)
                if self.kind == Kind::Valkey && dialect::awaits_several(args) =>
            {
                drop(blocked);
                self.forget();
            }
            Outcome::Blocked(blocked) => {
                self.pair.wires[client].send(args);
                self.pair.blocked[client] = Some(blocked);
                self.waiting[client] = Some(step.clone());
                let waiting = 4 - free.len();
                let deadline = Instant::now() + self.patience;
                while self.pair.waiting_on_server() != waiting {
                    let answer = self.pair.wires[client].pending();
                    if answer || Instant::now() > deadline {
                        let theirs = self.pair.wires[client].read_within(self.patience);
                        return Err(Difference::new(
                            step.to_string(),
                            "waits",
                            format!("{theirs:?}"),
                        ));
                    }
                }
            }
        }
        self.settle()?;
        self.hear(&step.to_string())?;
        let blocked = 3 - self.free().len();
        if self.thorough && blocked > 0 {
            self.same_number_waits()?;
        }
        Ok(())
    }

    fn same_number_waits(&mut self) -> Result<(), Difference> {
        let (ours, theirs) = (3 - self.free().len(), self.pair.waiting_on_server());
        match ours == theirs {
            true => Ok(()),
            false => Err(Difference::new(
                "how many clients wait",
                ours.to_string(),
                theirs.to_string(),
            )),
        }
    }

    /// Compares both databases key by key.
    fn compare_keyspaces(&mut self) -> Result<(), Difference> {
        self.same_number_waits()?;
        for db in 0..2 {
            let mut ours = self.pair.engine.session();
            if self.pair.protocol == Protocol::Resp3 {
                ours = self.pair.engine.session_resp3();
            }
            ours.select(db).unwrap();
            let mut lines = vec!["KEYS *".to_owned()];
            for key in KEYS {
                lines.push(format!("TYPE {key}"));
                lines.push(format!("PEXPIRETIME {key}"));
                lines.push(format!("OBJECT ENCODING {key}"));
                let kind = ours.execute(&split(&format!("TYPE {key}")));
                let Some(Reply::Status(kind)) = kind.into_reply() else {
                    continue;
                };
                let whole: &[&str] = match kind.as_ref() {
                    "string" => &["GET"],
                    "list" => &["LRANGE 0 -1"],
                    "hash" if self.kind == Kind::Valkey => &[
                        "HGETALL",
                        r#"HPEXPIRETIME FIELDS 10 a b c d 1 2 -5 "" "\x00\xff" 10"#,
                    ],
                    "hash" => &["HGETALL"],
                    "set" => &["SMEMBERS"],
                    "zset" => &["ZRANGE 0 -1 WITHSCORES"],
                    "stream" => &["XRANGE - +", "XINFO STREAM FULL COUNT 0"],
                    _ => &[],
                };
                for command in whole {
                    let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
                    let line = match name {
                        "XINFO" => format!("XINFO STREAM {key} FULL COUNT 0"),
                        name => format!("{name} {key} {rest}"),
                    };
                    lines.push(line);
                }
            }
            self.forget();
            let lines: Vec<(String, Vec<Bytes>)> = lines
                .into_iter()
                .map(|line| (format!("in database {db}: {line}"), split(&line)))
                .collect();
            // A connection of its own: it has the protocol of the clients.
            let mut wire = self.server.connect();
            if self.pair.protocol == Protocol::Resp3 {
                wire.call(&split("HELLO 3"));
            }
            wire.call(&split(&format!("SELECT {db}")));
            // All at once: one round trip.
            for (_, args) in &lines {
                wire.send(args);
            }
            for (what, args) in &lines {
                let ours = ours.execute(args).into_reply().unwrap();
                let theirs = wire.read();
                let unordered = [&b"KEYS"[..], b"HGETALL", b"SMEMBERS"].contains(&&args[0][..]);
                self.check(what, args, unordered, &[], ours, theirs)?;
            }
            self.hear("the comparison")?;
        }
        Ok(())
    }
}

/// Replays a sequence. The index of the step at which the two differ, and how.
fn replay(server: &Server, protocol: Protocol, steps: &[Step]) -> Option<(usize, Difference)> {
    let mut run = Run::new(server, protocol, true);
    for (at, step) in steps.iter().enumerate() {
        if let Err(difference) = run.step(step) {
            return Some((at, difference));
        }
    }
    let difference = run.compare_keyspaces().err()?;
    Some((steps.len().saturating_sub(1), difference))
}

/// Leaves out whatever is not needed for the two to differ.
fn shrink(
    server: &Server,
    protocol: Protocol,
    mut steps: Vec<Step>,
    first: &Difference,
) -> Vec<Step> {
    let deadline = Instant::now() + Duration::from_secs(120);
    let replay = |steps: &[Step]| {
        let found = replay(server, protocol, steps);
        found.filter(|(_, found)| found.subject() == first.subject())
    };
    match replay(&steps) {
        Some((at, _)) => steps.truncate(at + 1),
        None => return steps,
    }
    // Most often the last steps are enough.
    for last in [20, 100, 500, 2500] {
        let from = steps.len().saturating_sub(last);
        if let Some((at, _)) = replay(&steps[from..]) {
            steps = steps[from..=from + at].to_vec();
            break;
        }
    }
    let mut chunk = steps.len().div_ceil(2);
    loop {
        let mut at = 0;
        let mut shorter = false;
        while at < steps.len() && Instant::now() < deadline {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + chunk).min(steps.len()));
            match replay(&fewer) {
                Some((last, _)) => {
                    fewer.truncate(last + 1);
                    steps = fewer;
                    shorter = true;
                }
                None => at += chunk,
            }
        }
        if Instant::now() >= deadline || chunk == 1 && !shorter {
            return steps;
        }
        if !shorter || chunk > steps.len() {
            chunk = chunk.min(steps.len()).div_ceil(2);
        }
    }
}

fn fail(server: &Server, protocol: Protocol, seed: u64, steps: Vec<Step>, first: &Difference) -> ! {
    let Difference { what, ours, theirs } = first;
    println!("{what}\n engine: {ours}\n server: {theirs}\nmaking it shorter …");
    let short = shrink(server, protocol, steps, first);
    println!("{} steps are left", short.len());
    let again = replay(server, protocol, &short);
    let found = match &again {
        Some((_, found)) => found,
        None => first,
    };
    let Difference { what, ours, theirs } = found;
    let mut lines: Vec<String> = short.iter().map(Step::to_string).collect();
    if lines.len() > 200 {
        let path = format!("{}/{seed}.txt", env!("CARGO_TARGET_TMPDIR"));
        std::fs::write(&path, lines.join("\n")).unwrap();
        lines.drain(..lines.len() - 200);
        lines.insert(0, format!("# the last ones of {path}"));
    }
    panic!(
        "{what}\n engine: {ours}\n server: {theirs}\n\
         As a file of tests/differential/regressions/{}:\n\n\
         # {:?}, {protocol:?}, REDSTART_FUZZ_SEED={seed}\n{}\n",
        if again.is_some() {
            ""
        } else {
            " (not reproduced)"
        },
        server.kind,
        lines.join("\n")
    );
}

pub(super) fn parameter(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {value}")),
    )
}

/// Sequences of everything.
fn fuzz(kind: Kind, seed: u64) {
    fuzz_mix(
        kind,
        Mix::Even,
        redstart_testkit::scale(100_000, "fuzz"),
        seed,
    );
}

/// A known sequence and a fresh one, mostly of one kind of commands.
fn fuzz_mostly(kind: Kind, mix: Mix) {
    let commands = redstart_testkit::scale(10_000, "fuzz of a mix");
    for seed in [KNOWN, fresh()] {
        fuzz_mix(kind, mix, commands, seed);
    }
}

/// Half of the commands in each protocol.
fn fuzz_mix(kind: Kind, mix: Mix, commands: u64, seed: u64) {
    let seed = parameter("REDSTART_FUZZ_SEED").unwrap_or(seed);
    let commands = parameter("REDSTART_FUZZ_COMMANDS").unwrap_or(commands);
    let go_on = parameter("REDSTART_FUZZ_GO_ON").is_some();
    println!("{kind:?}, {mix:?}: {commands} commands of REDSTART_FUZZ_SEED={seed}");
    let server = Server::start_kind(kind);
    for protocol in PROTOCOLS {
        let mut generator = Generator::new(kind, mix, seed);
        let mut seen = BTreeSet::new();
        let mut left = commands / 2;
        // Now and then from the start: a failure is then found in a shorter sequence.
        while left > 0 {
            let length = left.min(25_000);
            left -= length;
            let mut run = Run::new(&server, protocol, false);
            let mut steps = Vec::new();
            while steps.len() < length as usize {
                let step = generator.step(&run.free());
                steps.push(step);
                let mut outcome = run.step(&steps[steps.len() - 1]);
                if outcome.is_ok() && (steps.len() % EVERY == 0 || steps.len() == length as usize) {
                    outcome = run.compare_keyspaces();
                }
                let Err(difference) = outcome else {
                    continue;
                };
                if !go_on {
                    drop(run);
                    fail(&server, protocol, seed, steps, &difference);
                }
                if seen.insert(difference.subject().map(str::to_owned)) {
                    let Difference { what, ours, theirs } = difference;
                    println!("{what}\n engine: {ours}\n server: {theirs}");
                }
            }
        }
    }
}

const KNOWN: u64 = 20_240_229;

pub(super) fn fresh() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

#[test]
fn known_sequences_answer_as_on_redis() {
    fuzz(Kind::Redis, KNOWN);
}

#[test]
fn known_sequences_answer_as_on_valkey() {
    fuzz(Kind::Valkey, KNOWN);
}

#[test]
pub(super) fn fresh_sequences_answer_as_on_redis() {
    fuzz(Kind::Redis, fresh());
}

#[test]
pub(super) fn fresh_sequences_answer_as_on_valkey() {
    fuzz(Kind::Valkey, fresh());
}

#[test]
fn mostly_scripts_answer_as_on_redis() {
    fuzz_mostly(Kind::Redis, Mix::Scripts);
}

#[test]
fn mostly_scripts_answer_as_on_valkey() {
    fuzz_mostly(Kind::Valkey, Mix::Scripts);
}

#[test]
fn mostly_waits_answer_as_on_redis() {
    fuzz_mostly(Kind::Redis, Mix::Waits);
}

#[test]
fn mostly_waits_answer_as_on_valkey() {
    fuzz_mostly(Kind::Valkey, Mix::Waits);
}

#[test]
fn what_once_differed_answers_alike() {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/differential/regressions"
    );
    let mut cases: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "txt"))
        .collect();
    cases.sort();
    assert!(!cases.is_empty(), "{folder} has no cases");
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::start_kind(kind);
        for case in &cases {
            let text = std::fs::read_to_string(case).unwrap();
            let is_only = |name| text.lines().any(|line| line == format!("# only {name}"));
            let other = match kind {
                Kind::Redis => is_only("valkey"),
                Kind::Valkey => is_only("redis"),
            };
            if other {
                continue;
            }
            let steps = sequence::parse(&text);
            for protocol in PROTOCOLS {
                if let Some((_, Difference { what, ours, theirs })) =
                    replay(&server, protocol, &steps)
                {
                    panic!(
                        "{} on {kind:?}, {protocol:?}\n{what}\n engine: {ours}\n server: {theirs}",
                        case.display()
                    );
                }
            }
        }
    }
}
