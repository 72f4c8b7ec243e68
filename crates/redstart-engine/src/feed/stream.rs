//! The bytes that replicas get, and how far each of them is.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    client::Profile,
    config::Config,
    effect::Effect,
    registry::{self, flag},
    resp,
};

/// A piece of the buffer is begun when the last one is that long.
const PIECE: usize = 64 * 1024;
/// The place at which every stream begins, as in Redis: a replica with a log says that its disk has place 0 while it has
/// nothing.
pub(crate) const BEGINNING: u64 = 1;
/// More keys than this are not noted one by one, unless less is asked for.
pub(crate) const NOTED: usize = 1_000_000;

/// How much the buffer holds, and how far a replica may lag behind; 0 is no limit.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(super) backlog: u64,
    hard: u64,
    soft: u64,
    /// In microseconds.
    soft_time: i64,
}

impl Limits {
    pub(super) fn by(config: &Config) -> Limits {
        let backlog = super::number(config, "repl-backlog-size", 1 << 20);
        let limit = config.output_limits[1];
        Limits {
            backlog,
            // What is kept in any case is no reason to disconnect.
            hard: match limit.hard {
                0 => 0,
                hard => hard.max(backlog),
            },
            soft: match limit.soft {
                0 => 0,
                soft => soft.max(backlog),
            },
            soft_time: (limit.seconds as i64).saturating_mul(1_000_000),
        }
    }
}

/// What a replica is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// All data is on its way.
    Copying,
    Online,
}

/// One replica.
pub(crate) struct Follower {
    pub(super) profile: Arc<Profile>,
    pub(super) host: String,
    /// Where it listens, by its own word.
    pub(super) port: u16,
    pub(super) stage: Stage,
    /// Up to where its connection has taken the stream.
    pub(super) position: u64,
    /// Up to where it has confirmed the stream.
    pub(super) acked: Option<u64>,
    /// Up to where it has the stream on its disk, by its own word.
    pub(super) synced: Option<u64>,
    /// When it last said so, in unix microseconds.
    pub(super) heard: i64,
    /// Since when it lags too far behind.
    pub(super) over_since: Option<i64>,
    pub(super) wake: Arc<Notify>,
}

/// What is known of a replica.
pub(crate) struct Facts {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) stage: Stage,
    pub(crate) acked: u64,
    pub(crate) heard: i64,
}

/// The buffer, for INFO: the first byte's place, how many bytes there are, how many there may be.
pub(crate) struct Sizes {
    pub(crate) first: u64,
    pub(crate) len: u64,
    pub(crate) size: u64,
}

/// What a replica has said of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Confirmed {
    /// Up to where it has applied the stream.
    pub(crate) applied: Option<u64>,
    /// Up to where it has it on its disk.
    pub(crate) synced: Option<u64>,
}

/// What the connection of a replica finds.
pub(crate) enum Taken {
    /// Up to this place.
    Bytes(u64),
    Nothing,
    /// It is not a replica any more.
    Gone,
}

/// What the noted keys do not tell; the worst of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    #[default]
    Nothing,
    /// More keys were changed than are noted.
    TooMany,
    /// Keys were changed that the command did not name.
    Unnamed,
}

impl Lack {
    /// As a client is told.
    pub(crate) fn number(self) -> i64 {
        match self {
            Lack::Nothing => 0,
            Lack::Unnamed => 1,
            Lack::TooMany => 2,
        }
    }
}

/// Keys that were changed, for who compares two servers while they are used.
struct Changes {
    keys: BTreeSet<Bytes>,
    /// How many are noted.
    most: usize,
    lack: Lack,
}

struct Buffer {
    pieces: VecDeque<Vec<u8>>,
    /// The place of the first byte in the stream.
    start: u64,
    /// The place behind the last one.
    end: u64,
    /// The database that the stream has selected.
    db: Option<usize>,
    limits: Limits,
    /// By the number of the client.
    followers: BTreeMap<u64, Follower>,
    changes: Option<Changes>,
}

/// What all replicas read. Its lock is taken after the engine's.
pub(crate) struct Stream {
    buffer: Mutex<Buffer>,
}

impl Stream {
    pub(super) fn new(limits: Limits) -> Stream {
        Stream {
            buffer: Mutex::new(Buffer {
                pieces: VecDeque::new(),
                start: BEGINNING,
                end: BEGINNING,
                db: None,
                limits,
                followers: BTreeMap::new(),
                changes: None,
            }),
        }
    }

    pub(super) fn set_limits(&self, limits: Limits) {
        self.buffer.lock().limits = limits;
    }

    /// Puts a unit behind the others.
    pub(crate) fn append(&self, unit: &[Effect]) {
        let mut buffer = self.buffer.lock();
        if let Some(changes) = &mut buffer.changes {
            unit.iter().for_each(|effect| changes.note(effect));
        }
        let atomic = unit.len() > 1;
        let word = |word: &'static str| [Bytes::from_static(word.as_bytes())];
        buffer.write(|out, selected| {
            // A replica selects before it begins a transaction.
            let select = |db: usize, selected: &mut Option<usize>, out: &mut Vec<u8>| {
                if selected.replace(db) != Some(db) {
                    let args = [Bytes::from_static(b"SELECT"), Bytes::from(db.to_string())];
                    resp::encode_command(&args, out);
                }
            };
            select(unit[0].db, selected, out);
            if atomic {
                resp::encode_command(&word("MULTI"), out);
            }
            for effect in unit {
                select(effect.db, selected, out);
                resp::encode_command(&effect.args, out);
            }
            if atomic {
                resp::encode_command(&word("EXEC"), out);
            }
        });
    }

    /// Says something to all replicas that changes nothing.
    pub(super) fn tell(&self, args: &[Bytes]) {
        let mut buffer = self.buffer.lock();
        buffer.write(|out, _| resp::encode_command(args, out));
    }

    /// Asks all replicas how far they are.
    pub(crate) fn ask(&self) {
        self.tell(&["REPLCONF", "GETACK", "*"].map(Bytes::from));
    }

    /// The next unit names its database.
    pub(super) fn select_again(&self) {
        self.buffer.lock().db = None;
    }

    pub(crate) fn end(&self) -> u64 {
        self.buffer.lock().end
    }

    /// Whether the stream can go on from there.
    pub(super) fn covers(&self, position: u64) -> bool {
        let buffer = self.buffer.lock();
        (buffer.start..=buffer.end).contains(&position)
    }

    pub(super) fn add(&self, follower: Follower) {
        let mut buffer = self.buffer.lock();
        buffer.followers.insert(follower.profile.id, follower);
    }

    pub(super) fn remove(&self, client: u64) {
        self.buffer.lock().followers.remove(&client);
    }

    pub(super) fn is_alone(&self) -> bool {
        self.buffer.lock().followers.is_empty()
    }

    pub(super) fn disconnect_all(&self) {
        let followers = std::mem::take(&mut self.buffer.lock().followers);
        followers.values().for_each(|one| one.profile.kill());
    }

    /// The replica has all data.
    pub(crate) fn set_online(&self, client: u64, now_micros: i64) {
        if let Some(follower) = self.buffer.lock().followers.get_mut(&client) {
            follower.stage = Stage::Online;
            follower.heard = now_micros;
        }
    }

    /// The replica has confirmed a place, or said only that it is alive.
    pub(crate) fn heard(&self, client: u64, confirmed: Confirmed, now_micros: i64) {
        if let Some(follower) = self.buffer.lock().followers.get_mut(&client) {
            follower.heard = now_micros;
            follower.acked = follower.acked.max(confirmed.applied);
            follower.synced = follower.synced.max(confirmed.synced);
        }
    }

    /// Moves what a replica has not got into `out`, up to about `enough` bytes.
    pub(crate) fn take(&self, client: u64, enough: usize, out: &mut Vec<u8>) -> Taken {
        let mut buffer = self.buffer.lock();
        let Some(position) = buffer.followers.get(&client).map(|one| one.position) else {
            return Taken::Gone;
        };
        let before = out.len();
        let mut at = buffer.start;
        for piece in &buffer.pieces {
            let next = at + piece.len() as u64;
            if next > position && out.len() - before < enough {
                let from = position.saturating_sub(at) as usize;
                out.extend_from_slice(&piece[from..]);
            }
            at = next;
        }
        let count = out.len() - before;
        if count == 0 {
            return Taken::Nothing;
        }
        if let Some(follower) = buffer.followers.get_mut(&client) {
            follower.position += count as u64;
        }
        buffer.trim();
        Taken::Bytes(position + count as u64)
    }

    /// Disconnects replicas that were too far behind for too long, or silent.
    pub(super) fn check(&self, now_micros: i64, timeout: i64) {
        let mut buffer = self.buffer.lock();
        let (end, limits) = (buffer.end, buffer.limits);
        buffer.followers.retain(|_, one| {
            let over = limits.soft > 0 && end - one.position > limits.soft;
            one.over_since = over.then(|| one.over_since.unwrap_or(now_micros));
            let slow = one
                .over_since
                .is_some_and(|since| now_micros - since >= limits.soft_time);
            let silent = one.stage == Stage::Online && now_micros - one.heard > timeout;
            if slow || silent {
                tracing::warn!(
                    replica = one.profile.addr,
                    slow,
                    "a replica is disconnected"
                );
                one.profile.kill();
            }
            !slow && !silent
        });
        buffer.trim();
    }

    /// How many replicas have confirmed this place.
    pub(super) fn reached(&self, offset: u64) -> usize {
        // One that has confirmed nothing has not even confirmed the beginning.
        self.count(|one| one.acked.is_some_and(|acked| acked >= offset))
    }

    /// How many replicas have this place on their disks.
    pub(crate) fn synced(&self, offset: u64) -> usize {
        self.count(|one| one.synced.is_some_and(|synced| synced >= offset))
    }

    /// How many replicas were heard since.
    pub(super) fn heard_since(&self, micros: i64) -> usize {
        self.count(|one| one.heard >= micros)
    }

    fn count(&self, test: impl Fn(&Follower) -> bool) -> usize {
        let buffer = self.buffer.lock();
        let online = buffer
            .followers
            .values()
            .filter(|one| one.stage == Stage::Online);
        online.filter(|one| test(one)).count()
    }

    pub(super) fn facts(&self) -> Vec<Facts> {
        let buffer = self.buffer.lock();
        let facts = |one: &Follower| Facts {
            host: one.host.clone(),
            port: one.port,
            stage: one.stage,
            acked: one.acked.unwrap_or(0),
            heard: one.heard,
        };
        buffer.followers.values().map(facts).collect()
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let buffer = self.buffer.lock();
        Sizes {
            first: buffer.start + 1,
            len: buffer.end - buffer.start,
            size: buffer.limits.backlog,
        }
    }

    /// Notes the keys that change from now on, but this many at most.
    pub(crate) fn note_changes(&self, most: usize) {
        self.buffer.lock().changes = Some(Changes {
            keys: BTreeSet::new(),
            most,
            lack: Lack::Nothing,
        });
    }

    pub(crate) fn forget_changes(&self) {
        self.buffer.lock().changes = None;
    }

    /// Some of the keys that were noted, which are then forgotten, and what they do not tell; `None` if
    /// nothing is noted.
    pub(crate) fn take_changes(&self, count: usize) -> Option<(Vec<Bytes>, Lack)> {
        let mut buffer = self.buffer.lock();
        let changes = buffer.changes.as_mut()?;
        let mut keys = Vec::new();
        while keys.len() < count
            && let Some(key) = changes.keys.pop_first()
        {
            keys.push(key);
        }
        let lack = std::mem::take(&mut changes.lack);
        Some((keys, lack))
    }
}

impl Buffer {
    /// Adds bytes, wakes the replicas, and lets those go that are too far behind.
    fn write(&mut self, encode: impl FnOnce(&mut Vec<u8>, &mut Option<usize>)) {
        if self.pieces.back().is_none_or(|last| last.len() >= PIECE) {
            self.pieces.push_back(Vec::new());
        }
        let Some(last) = self.pieces.back_mut() else {
            return;
        };
        let before = last.len();
        encode(last, &mut self.db);
        self.end += (last.len() - before) as u64;
        let (end, hard) = (self.end, self.limits.hard);
        self.followers.retain(|_, one| {
            let fits = hard == 0 || end - one.position <= hard;
            if fits {
                one.wake.notify_one();
            } else {
                tracing::warn!(
                    replica = one.profile.addr,
                    "a replica is too slow and is disconnected"
                );
                one.profile.kill();
            }
            fits
        });
        self.trim();
    }

    /// Frees what neither the backlog nor a replica needs.
    fn trim(&mut self) {
        let kept = self.end.saturating_sub(self.limits.backlog);
        let needed = self.followers.values().map(|one| one.position).min();
        let from = needed.map_or(kept, |needed| needed.min(kept));
        while self.pieces.len() > 1
            && let Some(first) = self.pieces.front()
            && self.start + first.len() as u64 <= from
        {
            self.start += first.len() as u64;
            self.pieces.pop_front();
        }
    }
}

impl Changes {
    fn note(&mut self, effect: &Effect) {
        let Some(spec) = registry::lookup(&effect.args) else {
            self.lack = Lack::Unnamed;
            return;
        };
        let mut named = false;
        spec.each_key(&effect.args, |at| {
            named = true;
            let key = &effect.args[at];
            let is_noted = self.keys.contains(key);
            if !is_noted && self.keys.len() < self.most {
                // A copy: an argument is a part of a read buffer.
                self.keys.insert(Bytes::copy_from_slice(key));
            } else if !is_noted {
                self.lack = self.lack.max(Lack::TooMany);
            }
        });
        // FLUSHALL and SWAPDB change keys that they do not name; FUNCTION changes none.
        if !named && spec.is(flag::WRITE) && !spec.full_name.starts_with("function") {
            self.lack = Lack::Unnamed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{acl::Account, client::Client};

    fn stream(backlog: u64, hard: u64) -> Stream {
        Stream::new(Limits {
            backlog,
            hard,
            soft: 0,
            soft_time: 0,
        })
    }

    fn set(db: usize, key: &str, len: usize) -> Effect {
        let value = Bytes::from(vec![b'x'; len]);
        Effect {
            db,
            args: vec![
                Bytes::from_static(b"SET"),
                Bytes::from(key.to_owned()),
                value,
            ],
        }
    }

    fn follower(stream: &Stream, id: u64) -> Arc<Profile> {
        let mut client = Client::new(id, Account::of_engine(), true);
        let profile = client.make_profile(0, String::new(), String::new(), false);
        stream.add(Follower {
            profile: profile.clone(),
            host: String::new(),
            port: 0,
            stage: Stage::Online,
            position: stream.end(),
            acked: None,
            synced: None,
            heard: 0,
            over_since: None,
            wake: Arc::default(),
        });
        profile
    }

    #[test]
    fn a_unit_of_several_effects_is_a_transaction_in_its_database() {
        let stream = stream(1 << 20, 0);
        let _profile = follower(&stream, 1);
        stream.append(&[set(2, "a", 1)]);
        stream.append(&[set(2, "b", 1), set(3, "c", 1)]);
        let mut out = Vec::new();
        let taken = stream.take(1, usize::MAX, &mut out);
        assert!(matches!(taken, Taken::Bytes(place) if place == stream.end()));
        let words: Vec<String> = String::from_utf8(out)
            .unwrap()
            .split("\r\n")
            .filter(|line| !line.starts_with(['*', '$']) && !line.is_empty())
            .map(str::to_owned)
            .collect();
        assert_eq!(
            words.join(" "),
            "SELECT 2 SET a x MULTI SET b x SELECT 3 SET c x EXEC"
        );
        assert!(matches!(
            stream.take(1, usize::MAX, &mut Vec::new()),
            Taken::Nothing
        ));
    }

    #[test]
    fn memory_is_bounded_by_the_backlog_and_by_the_limit_of_a_slow_replica() {
        let stream = stream(100_000, 1_000_000);
        for _ in 0..1000 {
            stream.append(&[set(0, "a", 1000)]);
        }
        let held = |stream: &Stream| stream.sizes().len as usize;
        assert!(held(&stream) >= 100_000 && held(&stream) < 300_000);
        let first = stream.sizes().first;
        assert!(stream.covers(first - 1) && !stream.covers(first - 2));
        let slow = follower(&stream, 1);
        let mut most = 0;
        for _ in 0..5000 {
            stream.append(&[set(0, "a", 1000)]);
            most = most.max(held(&stream));
        }
        assert!(slow.is_killed());
        assert!(matches!(stream.take(1, 1, &mut Vec::new()), Taken::Gone));
        assert!((900_000..1_300_000).contains(&most), "{most}");
        assert!(held(&stream) < 300_000);
    }

    #[test]
    fn changed_keys_are_noted_while_somebody_asks() {
        let stream = stream(1 << 20, 0);
        assert!(stream.take_changes(10).is_none());
        stream.append(&[set(0, "before", 1)]);
        stream.note_changes(2);
        stream.append(&[set(0, "a", 1), set(1, "b", 1), set(0, "a", 1)]);
        let (keys, lack) = stream.take_changes(10).unwrap();
        assert_eq!(keys, ["a", "b"].map(Bytes::from));
        assert_eq!(lack, Lack::Nothing);
        stream.append(&[set(0, "a", 1), set(1, "b", 1), set(0, "c", 1)]);
        assert_eq!(stream.take_changes(10).unwrap().1, Lack::TooMany);
        let flush = Effect {
            db: 0,
            args: vec![Bytes::from_static(b"FLUSHALL")],
        };
        stream.append(&[flush]);
        assert_eq!(stream.take_changes(10), Some((Vec::new(), Lack::Unnamed)));
        stream.forget_changes();
        assert!(stream.take_changes(10).is_none());
    }
}
