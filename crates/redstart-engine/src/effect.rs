//! What a command changed, as commands that would change it again: the source of the log.
//!
//! A command that made the keyspace dirty is recorded as it was given, unless its handler said by
//! [`crate::context::Ctx::propagate`] what to record instead. All effects of one unit (a command
//! with the keys it found expired, a transaction, a script) reach the sink together.

use std::{collections::VecDeque, io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use hashbrown::HashMap;

use crate::{
    engine::State,
    error::{EngineError, Stop},
    feed::stream::Stream,
    reply::Reply,
    types::blob::Blob,
};

/// A command that repeats a change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Effect {
    pub(crate) db: usize,
    pub(crate) args: Vec<Bytes>,
}

/// Takes the outcome of something that was done in the background.
pub(crate) type Told = Box<dyn FnOnce(Reply) + Send>;

/// Takes the effects of each unit, in order. Called with the engine's lock held.
pub(crate) trait Sink: Send {
    /// A unit of more than one effect must be made atomic with MULTI and EXEC. Returns the
    /// position at which it ends, which rises from unit to unit.
    fn append(&mut self, unit: &[Effect]) -> u64;

    /// Whether what was appended cannot be kept at present.
    fn is_failing(&self) -> bool {
        false
    }

    /// The state of the log, for INFO.
    fn health(&self) -> Health {
        Health {
            writable: true,
            rewriting: false,
            rewritten: true,
        }
    }

    /// Whether what was read may be told only when it is on the disk.
    fn holds_reads(&self) -> bool {
        false
    }

    /// The position up to which everything is on the disk.
    fn durable(&self) -> u64 {
        u64::MAX
    }

    /// Asks for a shorter log; false if one is being made.
    fn rewrite(&mut self) -> bool {
        false
    }

    /// Copies the log in the background and tells the outcome; the key is then ready.
    fn backup(&mut self, _: PathBuf, _ready: (usize, Bytes), _: Told) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Replaces all data by what the log holds.
    fn reload(&mut self, _: &mut State, _now_micros: i64) -> Result<(), EngineError> {
        Ok(())
    }
}

/// The state of a log.
pub(crate) struct Health {
    /// The last write succeeded.
    pub(crate) writable: bool,
    /// A rewrite is under way.
    pub(crate) rewriting: bool,
    /// The last rewrite succeeded.
    pub(crate) rewritten: bool,
}

/// Changed keys are noted one by one in up to about this many bytes.
pub(crate) const MOST_NOTED: usize = 32 * 1024 * 1024;

/// Collects the effects of the running unit, and knows which replies depend on which of them.
///
/// A reply depends on what its command appended. Where reads are held (`fsync always`) it also
/// depends on the last change of each key that the command read, if that is not on the disk yet; a
/// read of other keys waits for nothing.
#[derive(Default)]
pub(crate) struct Effects {
    sink: Option<Box<dyn Sink>>,
    /// What replicas are fed with, if there are any.
    stream: Option<Arc<Stream>>,
    pending: Vec<Effect>,
    /// How many of them were there when the sink was set: it began with what they did.
    known: usize,
    /// A reply depends on some of them.
    owed: bool,
    /// Where reads are held.
    holds: bool,
    /// Keys that the running unit changed.
    touched: Vec<(usize, Blob)>,
    /// The last change of keys that may not be on the disk yet.
    undurable: HashMap<(usize, Blob), u64>,
    /// All changes that may not be on the disk yet, in order.
    unsettled: VecDeque<(u64, (usize, Blob))>,
    /// About how many bytes those two take.
    noted: usize,
    /// The last change of all keys at once, while that may not be on the disk yet.
    everything: u64,
    /// The running unit changed all keys at once.
    touched_all: bool,
    /// Where the last unit ended.
    last: u64,
    /// What the replies of the running batch depend on.
    needed: u64,
    /// How many units a reply depended on.
    units: u64,
}

impl Effects {
    /// Whether anybody listens; handlers need not build effects otherwise.
    #[inline]
    pub(crate) fn enabled(&self) -> bool {
        self.sink.is_some() || self.stream.is_some()
    }

    pub(crate) fn set_stream(&mut self, stream: Option<Arc<Stream>>) {
        self.stream = stream;
    }

    /// Counts the units that clients made; what expires or is evicted is not one.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    pub(crate) fn set_sink(&mut self, sink: Option<Box<dyn Sink>>) {
        self.sink = sink;
        self.known = self.pending.len();
        self.follow_sink();
    }

    /// Whether reads are held may have changed.
    pub(crate) fn follow_sink(&mut self) {
        let held = self.holds;
        self.holds = self.sink.as_ref().is_some_and(|sink| sink.holds_reads());
        if self.holds && !held {
            // Which keys changed until now was not noted, and not all of that may be on the disk.
            self.everything = self.last;
            // Nor which keys the running unit has changed.
            self.touched_all = true;
        }
        if !self.holds {
            self.touched.clear();
            self.forget_keys();
            self.everything = 0;
            self.touched_all = false;
        }
    }

    /// Takes the sink out while it works on the state that holds it; nothing is recorded meanwhile.
    pub(crate) fn lend(&mut self) -> Option<Box<dyn Sink>> {
        self.sink.take()
    }

    /// Puts back what [`Effects::lend`] took.
    pub(crate) fn give_back(&mut self, sink: Box<dyn Sink>) {
        self.sink = Some(sink);
    }

    /// A batch of commands begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.needed = 0;
        self.settle();
    }

    /// Forgets changes that are on the disk by now.
    #[inline]
    fn settle(&mut self) {
        if let Some(sink) = &self.sink
            && self.is_undurable()
        {
            let durable = sink.durable();
            while let Some((position, _)) = self.unsettled.front()
                && *position <= durable
            {
                if let Some((position, key)) = self.unsettled.pop_front() {
                    self.noted -= Effects::cost(&key.1);
                    if self.undurable.get(&key) == Some(&position) {
                        self.undurable.remove(&key);
                    }
                }
            }
            if self.everything <= durable {
                self.everything = 0;
            }
        }
    }

    /// About how many bytes it takes to note a change of a key, in both tables.
    fn cost(key: &Blob) -> usize {
        2 * (size_of::<(u64, (usize, Blob))>() + key.len())
    }

    /// Notes which keys the unit that just ended has changed.
    fn note_touched(&mut self) {
        // Also here: a replica applies its stream without ever beginning a batch.
        self.settle();
        for key in self.touched.drain(..) {
            self.noted += Effects::cost(&key.1);
            self.unsettled.push_back((self.last, key.clone()));
            self.undurable.insert(key, self.last);
        }
        if self.noted > MOST_NOTED {
            // The disk takes nothing: reads of other keys wait as well, which is less bad than memory without an end.
            self.forget_keys();
            self.everything = self.last;
        }
    }

    /// About how many bytes the noted keys take.
    #[cfg(test)]
    pub(crate) fn noted_bytes(&self) -> usize {
        self.noted
    }

    /// How many changed keys are noted.
    #[cfg(test)]
    pub(crate) fn noted_keys(&self) -> usize {
        self.undurable.len()
    }

    fn forget_keys(&mut self) {
        self.undurable = HashMap::new();
        self.unsettled = VecDeque::new();
        self.noted = 0;
    }

    /// The position that the replies of the batch depend on.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        // Where reads are not held, they wait for what is only being written, but not for a disk
        // that refuses it.
        if self.holds || self.is_failing() {
            self.needed
        } else if self.sink.is_some() {
            self.last
        } else {
            0
        }
    }

    /// Where the last unit ended.
    pub(crate) fn last_position(&self) -> u64 {
        self.last
    }

    /// All data was replaced, which the log has up to a position.
    pub(crate) fn replaced(&mut self, position: u64) {
        self.last = position;
        if self.holds {
            self.everything = position;
        }
    }

    /// A key has changed.
    #[inline]
    pub(crate) fn touch(&mut self, db: usize, key: &[u8]) {
        if self.holds {
            self.touched.push((db, Blob::new(key)));
        }
    }

    /// How many keys the running unit has said that it changed, and whether it said that of all; `None` where reads are not
    /// held.
    #[inline]
    pub(crate) fn said(&self) -> Option<(usize, bool)> {
        self.holds.then_some((self.touched.len(), self.touched_all))
    }

    /// All keys have changed or may have.
    pub(crate) fn touch_all(&mut self) {
        self.touched_all = self.holds;
    }

    /// Whether some changes may not be on the disk and reads have to take care.
    #[inline]
    pub(crate) fn is_undurable(&self) -> bool {
        !self.undurable.is_empty() || self.everything > 0
    }

    /// A command reads or depends on a key.
    pub(crate) fn depend_on(&mut self, db: usize, key: &[u8]) {
        self.needed = self.needed.max(self.changed_at(db, key));
    }

    /// The last change of a key, if that may not be on the disk.
    fn changed_at(&self, db: usize, key: &[u8]) -> u64 {
        let own = self.undurable.get(&(db, Blob::new(key)));
        own.map_or(self.everything, |own| self.everything.max(*own))
    }

    /// A command depends on what changes for all keys at once, such as the functions.
    pub(crate) fn depend_on_everything(&mut self) {
        self.needed = self.needed.max(self.everything);
    }

    /// What an answer depends on that tells of keys after a wait in vain.
    pub(crate) fn position_in_vain<'k>(
        &self,
        db: usize,
        keys: impl IntoIterator<Item = &'k Bytes>,
    ) -> u64 {
        match self.holds {
            true => {
                let changes = keys.into_iter().map(|key| self.changed_at(db, key));
                changes.max().unwrap_or(0)
            }
            false => 0,
        }
    }

    /// What an answer depends on that tells what a key holds after a wait, and changed nothing.
    pub(crate) fn position_of(&self, db: usize, key: &Bytes) -> u64 {
        if self.holds || self.is_failing() || self.sink.is_none() {
            self.position_in_vain(db, [key])
        } else {
            self.last
        }
    }

    /// A command reads the keyspace as a whole.
    pub(crate) fn depend_on_all(&mut self) {
        // Where reads are not held, they do not wait for a disk that refuses what was written.
        if self.is_undurable() {
            self.needed = self.needed.max(self.last);
        }
    }

    /// Whether everything up to a position is on the disk; false without a log.
    pub(crate) fn is_durable(&self, position: u64) -> bool {
        let durable = self.sink.as_ref().map(|sink| sink.durable());
        durable.is_some_and(|durable| durable >= position)
    }

    /// The state of the log; `None` without one.
    pub(crate) fn health(&self) -> Option<Health> {
        self.sink.as_ref().map(|sink| sink.health())
    }

    #[inline]
    pub(crate) fn is_failing(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.is_failing())
    }

    /// Asks for a shorter log; `None` if there is no log.
    pub(crate) fn rewrite(&mut self) -> Option<bool> {
        self.sink.as_mut().map(|sink| sink.rewrite())
    }

    /// Copies the log in the background; see [`Sink::backup`].
    pub(crate) fn backup(
        &mut self,
        target: PathBuf,
        ready: (usize, Bytes),
        then: Told,
    ) -> Result<(), Stop> {
        match &mut self.sink {
            Some(sink) => sink
                .backup(target, ready, then)
                .map_err(|error| format!("ERR the backup failed: {error}").into()),
            None => Err("ERR there is no append only file to copy".into()),
        }
    }

    pub(crate) fn record(&mut self, db: usize, args: Vec<Bytes>) {
        if self.enabled() {
            self.pending.push(Effect { db, args });
            self.owed = true;
        }
    }

    /// As [`Effects::record`] for what the engine does of its own accord: no reply depends on it.
    pub(crate) fn record_aside(&mut self, db: usize, args: Vec<Bytes>) {
        if self.enabled() {
            self.pending.push(Effect { db, args });
        }
    }

    /// As [`Effects::flush`] for what was done for a client that waits: the position that its answer depends on, 0 if
    /// nothing was changed for it.
    pub(crate) fn flush_for_waiting(&mut self) -> u64 {
        let of_batch = std::mem::take(&mut self.needed);
        self.flush();
        let own = self.needed;
        self.needed = of_batch.max(own);
        own
    }

    /// Hands the unit that just ended to the sink.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if !self.pending.is_empty() {
            let owed = std::mem::take(&mut self.owed);
            self.units += u64::from(owed);
            let known = std::mem::take(&mut self.known);
            let new = self.pending.get(known..).unwrap_or_default();
            if let Some(sink) = &mut self.sink
                && !new.is_empty()
            {
                self.last = sink.append(new);
                if owed {
                    self.needed = self.last;
                }
            }
            if let Some(stream) = &self.stream {
                stream.append(&self.pending);
            }
            self.pending.clear();
        }
        if std::mem::take(&mut self.touched_all) {
            self.everything = self.last;
        }
        if !self.touched.is_empty() {
            self.note_touched();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::{Clock, Engine, Outcome, Session};

    type Log = Arc<Mutex<Vec<Vec<String>>>>;

    struct Recorder(Log);

    impl Sink for Recorder {
        fn append(&mut self, unit: &[Effect]) -> u64 {
            let line = |effect: &Effect| {
                let words: Vec<_> = effect
                    .args
                    .iter()
                    .map(|word| String::from_utf8_lossy(word))
                    .collect();
                format!("{}> {}", effect.db, words.join(" "))
            };
            self.0.lock().push(unit.iter().map(line).collect());
            0
        }
    }

    fn engine() -> (Engine, Log) {
        let engine = Engine::builder()
            .clock(Clock::manual_at(1_000_000_000))
            .build()
            .expect("an engine");
        let log = Log::default();
        engine
            .inner
            .state
            .lock()
            .effects
            .set_sink(Some(Box::new(Recorder(log.clone()))));
        (engine, log)
    }

    fn run(session: &mut Session, line: &str) -> Outcome {
        let args: Vec<Bytes> = line
            .split(' ')
            .map(|word| Bytes::copy_from_slice(word.as_bytes()))
            .collect();
        session.execute(&args)
    }

    #[test]
    fn what_depends_on_time_or_chance_is_recorded_as_what_it_did() {
        let (engine, log) = engine();
        let mut session = engine.session();
        for (command, effect) in [
            ("SET a 1", Some("SET a 1")),
            ("SET a 1 NX", None),
            ("GET a", None),
            ("SET a 2 EX 10", Some("SET a 2 PXAT 1010000")),
            ("SET a 2 PX 10 GET", Some("SET a 2 PXAT 1000010")),
            ("SET a 3 XX GET", Some("SET a 3 XX")),
            ("SETEX a 10 4", Some("SET a 4 PXAT 1010000")),
            ("GETEX a PERSIST", Some("PERSIST a")),
            ("EXPIRE a 10", Some("PEXPIREAT a 1010000")),
            ("EXPIRE a 10 NX", None),
            ("PERSIST a", Some("PERSIST a")),
            ("INCRBYFLOAT a 0.5", Some("SET a 4.5 KEEPTTL")),
            ("EXPIRE a -1", Some("DEL a")),
            ("SADD s x", Some("SADD s x")),
            ("SADD s x", None),
            ("SPOP s", Some("SREM s x")),
            ("HINCRBYFLOAT h f 1.5", Some("HSET h f 1.5")),
            ("RPUSH l a b c", Some("RPUSH l a b c")),
            ("BLPOP l 0", Some("LPOP l")),
            ("LMPOP 1 l LEFT COUNT 5", Some("LPOP l 2")),
            ("ZADD z 1 a", Some("ZADD z 1 a")),
            ("BZPOPMIN z 0", Some("ZREM z a")),
            ("GETSET g 1", Some("SET g 1")),
            ("GETDEL g", Some("DEL g")),
            ("DEL nothing", None),
        ] {
            run(&mut session, command);
            let recorded: Vec<String> = log.lock().drain(..).flatten().collect();
            let expected: Vec<String> = effect
                .into_iter()
                .map(|effect| format!("0> {effect}"))
                .collect();
            assert_eq!(recorded, expected, "{command}");
        }
    }

    #[test]
    fn fields_that_expire_together_leave_in_pieces() {
        const FIELDS: usize = 25_000;
        let builder = Engine::builder().clock(Clock::manual_at(1_000_000_000));
        let engine = builder.compat(crate::Compat::Redis74).build().unwrap();
        let mut session = engine.session();
        let names: Vec<String> = (0..FIELDS).map(|n| format!("f{n}")).collect();
        run(
            &mut session,
            &format!("HSET h stays 1 {} 1", names.join(" 1 ")),
        );
        let line = format!("HPEXPIRE h 10 FIELDS {FIELDS} {}", names.join(" "));
        run(&mut session, &line);
        let log = Log::default();
        let sink = Box::new(Recorder(log.clone()));
        engine.inner.state.lock().effects.set_sink(Some(sink));
        for _ in 0..3 {
            // Not by the engine, which would expire all that is due.
            engine
                .inner
                .clock
                .advance(std::time::Duration::from_secs(1));
            run(&mut session, "PING");
        }
        let pieces: Vec<usize> = log
            .lock()
            .drain(..)
            .flatten()
            .map(|line| line.split(' ').count() - 3)
            .collect();
        assert_eq!(pieces.iter().sum::<usize>(), FIELDS, "{pieces:?}");
        assert!(pieces.iter().all(|count| *count <= 10_000), "{pieces:?}");
        let left = run(&mut session, "HLEN h").into_reply();
        assert_eq!(left, Some(Reply::Int(1)));
    }

    #[test]
    fn a_transaction_is_one_unit() {
        let (engine, log) = engine();
        let mut session = engine.session();
        for line in ["MULTI", "SET a 1", "GET a", "SELECT 2", "INCR b", "EXEC"] {
            run(&mut session, line);
        }
        assert_eq!(
            *log.lock(),
            vec![vec!["0> SET a 1".to_owned(), "2> INCR b".to_owned()]]
        );
    }

    #[test]
    fn expiry_is_recorded_as_a_deletion() {
        let (engine, log) = engine();
        let mut session = engine.session();
        run(&mut session, "SET a 1 PX 5");
        log.lock().clear();
        engine.advance(std::time::Duration::from_millis(6));
        assert_eq!(*log.lock(), vec![vec!["0> DEL a".to_owned()]]);
    }

    #[test]
    fn serving_and_undoing_are_recorded() {
        let (engine, log) = engine();
        let (mut session, mut waiting) = (engine.session(), engine.session());
        let blocked = run(&mut waiting, "BLMOVE a b LEFT RIGHT 0");
        run(&mut session, "RPUSH a x");
        drop(blocked);
        let recorded: Vec<String> = log.lock().drain(..).flatten().collect();
        let expected = [
            "0> RPUSH a x",
            "0> LMOVE a b LEFT RIGHT",
            "0> LMOVE b a RIGHT LEFT",
        ];
        assert_eq!(recorded, expected);
    }
}
