//! Makes commands out of templates and small pools of keys, fields and values.

use std::collections::VecDeque;

use bytes::Bytes;
use redstart_testkit::Kind;

use super::sequence::{Action, Step};

mod pool;
mod template;

pub(crate) use pool::KEYS;
use pool::{
    BOUNDS, CHANNELS, CURSORS, DEADLINES, DEGREES, FIELDS, FUNCTIONS, INTS, LEX, LIBRARIES,
    PATTERNS, RADII, SCORES, SCRIPTS, SHARED, SMALL, STREAM_IDS, TIMEOUTS, UNITS, VALUES, WIDTHS,
};
use template::{FAMILIES, SUBSCRIPTIONS};

/// A small generator of numbers: the same seed gives the same sequence everywhere.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }

    pub(crate) fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Valkey makes a consumer that is named even if it gets nothing, Redis 7.0 does not: it is made before.
fn consumers(step: &Step) -> Vec<Step> {
    let Action::Command { args, .. } = &step.action else {
        return Vec::new();
    };
    let (keys, group) = match &args[0][..] {
        b"XCLAIM" | b"XAUTOCLAIM" => (&args[1..2], &args[2..4]),
        b"XREADGROUP" => {
            let streams = args.iter().position(|arg| arg == "STREAMS").unwrap_or(0) + 1;
            let keys = (args.len() - streams) / 2;
            (&args[streams..streams + keys], &args[2..4])
        }
        _ => return Vec::new(),
    };
    let make = |key: &Bytes| {
        let words = ["XGROUP", "CREATECONSUMER"].map(Bytes::from);
        let args = [&words[..], std::slice::from_ref(key), group].concat();
        before(step, args, false)
    };
    keys.iter().map(make).collect()
}

/// A key whose deadline has passed may still be there, or the server's background cycle was faster: a
/// command that stores nothing in it says `del`, and a SCAN that looks at its type `keymiss`, only in the
/// first case. It is looked at, and so removed, before.
fn remover(step: &Step) -> Option<Step> {
    let Action::Command { args, .. } = &step.action else {
        return None;
    };
    let key = match &args[0][..] {
        b"BITOP" => &args[2],
        b"SORT" | b"GEORADIUS" | b"GEORADIUSBYMEMBER" => {
            let store = args.iter().position(|arg| arg.starts_with(b"STORE"))?;
            args.get(store + 1)?
        }
        name if name.ends_with(b"STORE") => &args[1],
        b"SCAN" if args.iter().any(|arg| arg == "TYPE") => {
            let all = ["SCAN", "0", "COUNT", "1000"];
            return Some(before(step, all.map(Bytes::from).to_vec(), true));
        }
        _ => return None,
    };
    Some(before(step, vec!["EXISTS".into(), key.clone()], false))
}

/// A command of the same client.
fn before(step: &Step, args: Vec<Bytes>, unordered: bool) -> Step {
    Step {
        client: step.client,
        action: Action::Command { args, unordered },
    }
}

/// How commands that Redis 7.0 does not have are told.
const NEWER: &[&str] = &[
    "FIELDS",
    "DELIFEQ",
    "IFEQ",
    "MSETEX",
    "NOVALUES",
    "RANK $z $f W",
    "RANK $k $f $v",
];

/// What most steps are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Everything alike.
    Even,
    /// Scripts and functions.
    Scripts,
    /// Commands that wait, and those that serve clients that wait.
    Waits,
}

impl Mix {
    /// Whether a template is one of those that this mix has more of.
    fn prefers(self, template: &str) -> bool {
        let mut words = template.trim_start_matches('~').split(' ');
        let name = words.next().unwrap_or_default();
        match self {
            Mix::Even => false,
            Mix::Scripts => ["EVAL", "FCALL", "FUNCTION", "SCRIPT"]
                .iter()
                .any(|start| name.starts_with(start)),
            Mix::Waits => {
                let waits = ["BL", "BR", "BZ"]
                    .iter()
                    .any(|start| name.starts_with(start));
                let serves = ["LPUSH", "RPUSH", "ZADD", "XADD", "LMOVE", "RPOPLPUSH"];
                waits || words.any(|word| word == "BLOCK") || serves.contains(&name)
            }
        }
    }
}

/// Makes steps; the same seed makes the same ones as long as the same clients are free.
pub(crate) struct Generator {
    kind: Kind,
    /// The templates that three of five steps are made of.
    preferred: Vec<(&'static str, &'static str)>,
    chance: Chance,
    in_multi: [bool; 4],
    /// To be done next.
    next: VecDeque<Step>,
    /// Grows: the ids of streams, and numbers that were never used before.
    counter: u64,
}

impl Generator {
    pub(crate) fn new(kind: Kind, mix: Mix, seed: u64) -> Generator {
        let all = FAMILIES.iter().flat_map(|(family, templates)| {
            let templates = templates.iter().copied();
            templates.map(|template| (*family, template))
        });
        Generator {
            kind,
            preferred: all.filter(|(_, template)| mix.prefers(template)).collect(),
            in_multi: [false; 4],
            next: VecDeque::new(),
            chance: Chance::new(seed),
            counter: 100,
        }
    }

    /// A step of one of the free clients; now and then one that waits gives up.
    pub(crate) fn step(&mut self, free: &[usize]) -> Step {
        if let Some(step) = self.next.pop_front()
            && free.contains(&step.client)
        {
            return step;
        }
        let chance = &mut self.chance;
        if free.len() < 3 && chance.below(10) == 0 {
            let client = chance.below(3);
            let action = Action::GiveUp;
            return Step { client, action };
        }
        if chance.below(60) == 0 {
            let template = chance.of(SUBSCRIPTIONS);
            return self.command(3, "key", template);
        }
        loop {
            let chance = &mut self.chance;
            let client = free[chance.below(free.len())];
            let (family, template) = match &self.preferred[..] {
                preferred if !preferred.is_empty() && chance.below(5) < 3 => {
                    preferred[chance.below(preferred.len())]
                }
                _ => {
                    let (family, templates) = FAMILIES[chance.below(FAMILIES.len())];
                    (family, templates[chance.below(templates.len())])
                }
            };
            // On Redis 7.0 it only shows that nobody knows them.
            let unknown = self.kind == Kind::Redis
                && NEWER.iter().any(|name| template.contains(name))
                && chance.below(10) > 0;
            if unknown {
                continue;
            }
            let rare = ["SWAPDB", "FLUSHDB", "EVAL $d", "FUNCTION FLUSH"];
            if rare.iter().any(|name| template.starts_with(name)) && chance.below(20) > 0 {
                continue;
            }
            let word = template.split(' ').next().unwrap_or_default();
            if self.kind == Kind::Valkey && !self.also_on_valkey(client, template) {
                continue;
            }
            match word {
                "MULTI" => self.in_multi[client] = true,
                "EXEC" | "DISCARD" => self.in_multi[client] = false,
                _ => {}
            }
            let step = self.command(client, family, template);
            match self.kind {
                Kind::Redis => self.next.extend(remover(&step)),
                Kind::Valkey => self.next.extend(consumers(&step)),
            }
            self.next.push_back(step);
            return self.next.pop_front().expect("it was just put there");
        }
    }

    /// What would leave Valkey in another state than Redis 7.0 is not sent to it:
    ///
    /// - XSETID within MULTI: whether it would set the id before one that was deleted cannot be told;
    /// - MULTI and WATCH within MULTI: both refuse them, but Valkey then refuses EXEC as well;
    /// - deadlines in the past: both remove the key, but the one says `del` and the other `expired`;
    /// - cursors that are no numbers, and names of clients with zero bytes: Valkey is more strict;
    /// - the smallest integer in LPOS and LREM: to Valkey it is out of range;
    /// - a negative offset of LIMIT: Valkey takes some for 0;
    /// - huge indices of LSET: Valkey cuts them off to 32 bits in a packed list;
    /// - ENTRIESREAD, which may be more than was ever added: Valkey then counts in another way;
    /// - `+` in XREAD and blocking commands in scripts: Redis 7.0 does not have them.
    fn also_on_valkey(&self, client: usize, template: &str) -> bool {
        let nested = ["MULTI", "WATCH", "XSETID"]
            .iter()
            .any(|name| template.starts_with(name));
        let past = template.contains("EXPIRE $k")
            && !template.contains("TIME")
            && !template.contains("FIELDS");
        let strict = template == "~HSCAN $k $C COUNT 1000" || template == "CLIENT SETNAME $f";
        let strict =
            strict || template.starts_with("LSET $k $i") || template.contains("ENTRIESREAD");
        !(nested && self.in_multi[client] || past || strict)
    }

    fn command(&mut self, client: usize, family: &str, template: &str) -> Step {
        let (unordered, template) = match template.strip_prefix('~') {
            Some(template) => (true, template),
            None => (false, template),
        };
        let mut args: Vec<Bytes> = template
            .split(' ')
            .map(|part| self.word(family, part))
            .collect();
        if self.kind == Kind::Valkey {
            let replaced = match &args[0][..] {
                b"XREAD" => Some(("+", "0")),
                b"LPOS" | b"LREM" => Some(("-9223372036854775808", "-100")),
                _ => None,
            };
            let limit = args.iter().position(|arg| arg == "LIMIT");
            if let Some(offset) = limit.and_then(|at| args.get_mut(at + 1))
                && offset == "-1"
            {
                *offset = "0".into();
            }
            for arg in &mut args {
                if let Some((other, same)) = replaced
                    && arg == other
                {
                    *arg = same.into();
                }
            }
        }
        let action = Action::Command { args, unordered };
        Step { client, action }
    }

    fn word(&mut self, family: &str, template: &str) -> Bytes {
        let chance = &mut self.chance;
        let pool = match template {
            "$k" if family != "key" && chance.below(4) > 0 => {
                return format!("{family}{}", 1 + chance.below(3)).into();
            }
            "$k" => return KEYS[chance.below(SHARED)].into(),
            "$z" => return chance.of(&["z1", "z2"]).into(),
            "$l" => return chance.of(&["l1", "l2"]).into(),
            "$o" => return chance.of(&["g1", "g1", "g2", ""]).into(),
            "$c" => return chance.of(&["alice", "alice", "bob", ""]).into(),
            "$d" => return SCRIPTS[SCRIPTS.len() - 1].into(),
            "$e" if self.kind == Kind::Valkey => {
                return SCRIPTS[chance.below(SCRIPTS.len() - 3)].into();
            }
            "$e" => return SCRIPTS[chance.below(SCRIPTS.len() - 1)].into(),
            "$q" => {
                let script = chance.of(&SCRIPTS[..SCRIPTS.len() - 3]);
                return sha1_smol::Sha1::from(script).digest().to_string().into();
            }
            "$w" => return vec![b'w'; chance.below(100)].into(),
            "$h" => {
                let sizes = [200, 2000, 4097, 5000, 8200, 9000, 70_000];
                // Long ones are seldom: they are copied and printed again and again.
                let size = match chance.below(4) {
                    0 => sizes[chance.below(sizes.len())],
                    _ => 65,
                };
                return vec![b'h'; size].into();
            }
            "$u" => {
                self.counter += 1;
                return self.counter.to_string().into();
            }
            "$m" => {
                self.counter += 1;
                let at = self.counter;
                return match chance.below(8) {
                    0 => format!("{at}-*"),
                    1 => format!("{at}-{}", chance.below(3)),
                    2 => format!("{}-*", at - 1),
                    _ => at.to_string(),
                }
                .into();
            }
            "$p" if chance.below(3) > 0 => {
                let at = self.counter - chance.below(60) as u64;
                return match chance.below(4) {
                    0 => format!("({at}"),
                    1 => format!("{at}-0"),
                    _ => at.to_string(),
                }
                .into();
            }
            "$p" => STREAM_IDS,
            "$f" => FIELDS,
            "$v" => VALUES,
            "$i" => INTS,
            "$n" => SMALL,
            "#$n" => return [&b"#"[..], chance.of(SMALL)].concat().into(),
            "$s" => SCORES,
            "$b" => BOUNDS,
            "$x" => LEX,
            "$t" if self.kind == Kind::Valkey => &DEADLINES[..2],
            "$t" => DEADLINES,
            "$g" => DEGREES,
            "$r" => RADII,
            "$T" => TIMEOUTS,
            "$C" => CURSORS,
            "$j" => UNITS,
            "$a" => CHANNELS,
            "$A" => PATTERNS,
            "$y" => WIDTHS,
            "$L" => LIBRARIES,
            "$F" => FUNCTIONS,
            literal => return Bytes::copy_from_slice(literal.as_bytes()),
        };
        Bytes::copy_from_slice(chance.of(pool))
    }
}

#[test]
fn most_steps_of_a_mix_are_what_it_is_named_for() {
    let named = |mix, args: &[Bytes]| {
        let begins = |starts: &[&str]| {
            let mut starts = starts.iter();
            starts.any(|start| args[0].starts_with(start.as_bytes()))
        };
        match mix {
            Mix::Even => true,
            Mix::Scripts => begins(&["EVAL", "FCALL", "FUNCTION", "SCRIPT"]),
            Mix::Waits => {
                begins(&[
                    "BL",
                    "BR",
                    "BZ",
                    "LPUSH",
                    "RPUSH",
                    "ZADD",
                    "XADD",
                    "LMOVE",
                    "RPOPLPUSH",
                ]) || args.contains(&Bytes::from("BLOCK"))
            }
        }
    };
    for kind in [Kind::Redis, Kind::Valkey] {
        for mix in [Mix::Scripts, Mix::Waits] {
            let share = |made: Mix| {
                let mut generator = Generator::new(kind, made, 1);
                let steps = (0..10_000).map(|_| generator.step(&[0, 1, 2]));
                let is_one = |step: &Step| match &step.action {
                    Action::Command { args, .. } => named(mix, args),
                    Action::GiveUp => false,
                };
                steps.filter(is_one).count()
            };
            let (ours, even) = (share(mix), share(Mix::Even));
            assert!(ours > 5000, "{kind:?}, {mix:?}: {ours} of 10,000");
            assert!(
                even < 2500,
                "{kind:?}, {mix:?}: {even} of 10,000 without it"
            );
        }
    }
}
