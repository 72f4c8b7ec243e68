//! Who owns which slot of a cluster, as each node believes.

use bytes::Bytes;
use parking_lot::Mutex;
use redstart_engine::{Engine, Outcome, Reply};

/// The number of slots.
pub const SLOTS: u16 = 16_384;

/// The map of a cluster.
pub struct Map {
    nodes: Vec<(String, u16)>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// What each node believes, by node: the owners of the parts.
    views: Vec<Vec<usize>>,
    /// A part that moves, from a node to another.
    moving: Option<Moving>,
}

/// A part of the slots on its way.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    /// Which part.
    pub part: usize,
    /// From which node.
    pub from: usize,
    /// To which node.
    pub to: usize,
}

/// What a node does with a command.
pub enum Verdict {
    /// It serves it.
    Serve,
    /// The next command is asked for by ASK.
    Asking,
    /// It answers this.
    Reply(Reply),
}

impl Map {
    /// A cluster of these nodes with this many parts of equal size, which they own in turn.
    pub fn new(nodes: Vec<(String, u16)>, owners: Vec<usize>) -> Self {
        let views = vec![owners; nodes.len()];
        Self {
            nodes,
            inner: Mutex::new(Inner {
                views,
                moving: None,
            }),
        }
    }

    fn part(&self, slot: u16, parts: usize) -> usize {
        usize::from(slot) * parts / usize::from(SLOTS)
    }

    /// Who owns the parts, as a node believes.
    pub fn view(&self, node: usize) -> Vec<usize> {
        self.inner.lock().views[node].clone()
    }

    /// A node learns who owns a part.
    pub fn learn(&self, node: usize, part: usize, owner: usize) {
        self.inner.lock().views[node][part] = owner;
    }

    /// A part begins to move, or has moved.
    pub fn set_moving(&self, moving: Option<Moving>) {
        self.inner.lock().moving = moving;
    }

    /// Whether a part is on its way.
    pub fn is_moving(&self) -> bool {
        self.inner.lock().moving.is_some()
    }

    /// The part of a key.
    pub fn part_of(&self, key: &[u8]) -> usize {
        let parts = self.inner.lock().views[0].len();
        self.part(slot(key), parts)
    }

    /// What a node does with a command.
    pub fn judge(
        &self,
        node: usize,
        name: &[u8],
        args: &[Bytes],
        asked: bool,
        engine: &Engine,
    ) -> Verdict {
        match name {
            b"CLUSTER" => return Verdict::Reply(self.slots(node)),
            b"ASKING" => return Verdict::Asking,
            _ => {}
        }
        let keys = keys(name, args);
        let Some(first) = keys.first() else {
            return Verdict::Serve;
        };
        let slot = slot(first);
        let inner = self.inner.lock();
        let view = &inner.views[node];
        let part = self.part(slot, view.len());
        let owner = view[part];
        let moving = inner.moving.filter(|moving| moving.part == part);
        drop(inner);
        let redirect = |word: &str, to: usize| {
            let (host, port) = &self.nodes[to];
            Verdict::Reply(Reply::Error(format!("{word} {slot} {host}:{port}")))
        };
        if owner != node {
            return match moving {
                Some(moving) if moving.to == node && asked => {
                    match (keys.len(), present(engine, &keys)) {
                        (count, here) if count > 1 && here > 0 && here < count => try_again(),
                        _ => Verdict::Serve,
                    }
                }
                _ => redirect("MOVED", owner),
            };
        }
        match moving {
            // Channels stay until the whole part has moved.
            Some(moving)
                if moving.from == node && !name.ends_with(b"SUBSCRIBE") && name != b"SPUBLISH" =>
            {
                match present(engine, &keys) {
                    0 => redirect("ASK", moving.to),
                    here if here == keys.len() => Verdict::Serve,
                    _ => try_again(),
                }
            }
            _ => Verdict::Serve,
        }
    }

    /// The reply to CLUSTER SLOTS.
    fn slots(&self, node: usize) -> Reply {
        let view = self.view(node);
        let parts = view.len();
        let ranges = view.iter().enumerate().map(|(part, owner)| {
            // The first slot whose part it is, by the division in `part`.
            let first = |part: usize| (part * usize::from(SLOTS)).div_ceil(parts);
            let (first, last) = (first(part), first(part + 1) - 1);
            let (host, port) = &self.nodes[*owner];
            Reply::Array(vec![
                Reply::Int(first as i64),
                Reply::Int(last as i64),
                Reply::Array(vec![
                    Reply::bulk(host),
                    Reply::Int(i64::from(*port)),
                    Reply::bulk(format!("{owner:040}")),
                ]),
            ])
        });
        Reply::Array(ranges.collect())
    }
}

fn try_again() -> Verdict {
    let text = "TRYAGAIN Multiple keys request during rehashing of slot";
    Verdict::Reply(Reply::Error(text.into()))
}

/// How many of the keys exist.
fn present(engine: &Engine, keys: &[&Bytes]) -> usize {
    let mut command = vec![Bytes::from_static(b"EXISTS")];
    let mut unique: Vec<&Bytes> = keys.to_vec();
    unique.sort();
    unique.dedup();
    command.extend(unique.into_iter().cloned());
    let all = command.len() - 1;
    match engine.session().execute(&command) {
        Outcome::Reply(Reply::Int(count)) => count as usize,
        // An engine that does not answer before its log is written has them all the same.
        _ => all,
    }
}

/// The slot of a key.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

/// The keys of a command.
fn keys<'a>(name: &[u8], args: &'a [Bytes]) -> Vec<&'a Bytes> {
    match name {
        b"EVAL" | b"EVALSHA" | b"EVAL_RO" | b"EVALSHA_RO" => {
            let count = args
                .get(2)
                .and_then(|count| std::str::from_utf8(count).ok());
            let count = count.and_then(|count| count.parse().ok()).unwrap_or(0);
            args.iter().skip(3).take(count).collect()
        }
        b"XREAD" | b"XREADGROUP" => {
            let at = args
                .iter()
                .position(|word| word.eq_ignore_ascii_case(b"STREAMS"));
            let rest = at.map_or(&[][..], |at| &args[at + 1..]);
            rest.iter().take(rest.len() / 2).collect()
        }
        b"DEL" | b"UNLINK" | b"EXISTS" | b"MGET" | b"SSUBSCRIBE" => args.iter().skip(1).collect(),
        b"XGROUP" | b"XINFO" | b"OBJECT" | b"MEMORY" => args.iter().skip(2).take(1).collect(),
        b"BLPOP" | b"BRPOP" | b"BZPOPMIN" | b"BZPOPMAX" => args
            .iter()
            .skip(1)
            .take(args.len().saturating_sub(2))
            .collect(),
        b"PING" | b"INFO" | b"COMMAND" | b"CLIENT" | b"HELLO" | b"AUTH" | b"SELECT" | b"SCRIPT"
        | b"TIME" | b"MULTI" | b"EXEC" | b"DISCARD" | b"READONLY" | b"ROLE" | b"SUBSCRIBE"
        | b"PSUBSCRIBE" | b"PUBLISH" | b"PUBSUB" | b"WAIT" | b"DBSIZE" | b"FLUSHALL" | b"SCAN"
        | b"KEYS" | b"UNWATCH" | b"QUIT" | b"CONFIG" | b"SUNSUBSCRIBE" | b"UNSUBSCRIBE"
        | b"PUNSUBSCRIBE" => Vec::new(),
        b"BLMOVE" | b"LMOVE" | b"RENAME" | b"SMOVE" => args.iter().skip(1).take(2).collect(),
        _ => args.iter().skip(1).take(1).collect(),
    }
}
