//! What a command handler works with: the keyspace as of one moment, on behalf of one client.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    answer::Answer,
    blocking::{Served, Wait},
    client::Client,
    config::Config,
    engine::State,
    error::{CommandResult, OUT_OF_MEMORY, Stop, WRONG_TYPE},
    eviction, feed, free,
    keyspace::{Db, Entry, NEVER},
    notify,
    random::Random,
    registry::{Spec, flag},
    replica::READ_ONLY,
    reply::{Protocol, Reply},
    stats::{
        Timer,
        monitor::{self, Telling, telling},
        slowlog,
    },
    tracking,
    types::{Typed, Value, dict::Slot},
};

/// Who runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client, directly.
    Client,
    /// EXEC, for a queued command: nothing may block.
    Exec,
    /// A script: nothing may block, and what has the `noscript` flag may not run.
    Script,
    /// The engine: to serve a waiting client, to undo that, to load the log.
    Engine,
}

/// The context of one command. Its time does not move, not even from command to command of a
/// transaction or a script.
pub(crate) struct Ctx<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) client: &'a mut Client,
    /// Unix time in microseconds.
    pub(crate) now_micros: i64,
    pub(crate) origin: Origin,
    /// How many changes the running command made.
    dirty: u64,
    /// The key that the running command has used already: looking it up again is no further use.
    used: Option<Slot>,
    /// What to record instead of the running command.
    rewritten: Option<Vec<Vec<Bytes>>>,
}

impl<'a> Ctx<'a> {
    pub(crate) fn new(
        state: &'a mut State,
        client: &'a mut Client,
        now_micros: i64,
        origin: Origin,
    ) -> Ctx<'a> {
        Ctx {
            state,
            client,
            now_micros,
            origin,
            dirty: 0,
            used: None,
            rewritten: None,
        }
    }

    /// Runs a command whose arguments were checked, and records its effect.
    pub(crate) fn call(&mut self, spec: &'static Spec, args: &[Bytes]) -> CommandResult {
        let outer_dirty = std::mem::take(&mut self.dirty);
        let outer_rewritten = self.rewritten.take();
        self.used = None;
        let db = self.client.db;
        self.state.stats.commands += 1;
        let timer =
            self.state
                .stats
                .timer(spec, self.client.networked, self.origin == Origin::Client);
        if !self.state.monitors.is_empty() && telling(spec) == Telling::Before {
            monitor::feed(self, spec, args);
        }
        if self.state.out_of_memory && self.origin == Origin::Script && spec.is(flag::DENYOOM) {
            return Err(OUT_OF_MEMORY.into());
        }
        if self.origin == Origin::Script && self.state.replica.is_some() && spec.is(flag::WRITE) {
            return Err(READ_ONLY.into());
        }
        if self.state.feed.needed > 0
            && self.origin == Origin::Script
            && spec.is(flag::WRITE)
            && feed::lacks_replicas(self.state, self.now_micros)
        {
            return Err(feed::TOO_FEW_REPLICAS.into());
        }
        if self.state.effects.is_undurable() {
            self.depend_on_changes(spec, args);
        }
        let said = self.state.effects.said();
        let result = (spec.handler)(self, args);
        if !self.state.hidden.is_empty() {
            self.show_fields();
        }
        self.client.commands += 1;
        let took = timer.map(Timer::stop);
        let tracked = self.state.config.latency_tracking;
        let stats = &mut self.state.stats;
        stats.ran(spec, is_failure(&result), took.as_ref(), tracked);
        if let Some(took) = took
            && self.state.config.is_long(took.nanos)
        {
            self.tell_of_time(spec, args, Duration::from_nanos(took.nanos), &result);
        }
        if !self.state.monitors.is_empty() && telling(spec) == Telling::After {
            monitor::feed(self, spec, args);
        }
        if self.origin != Origin::Client {
            self.count_error(&result);
        }
        if self.dirty > 0 {
            self.state.dirty += self.dirty;
            if said.is_some() && said == self.state.effects.said() {
                self.touch_named(db, spec, args);
            }
            if self.state.effects.enabled() {
                match self.rewritten.take() {
                    Some(effects) => {
                        for effect in effects {
                            self.state.effects.record(db, effect);
                        }
                    }
                    None => self.state.effects.record(db, args.to_vec()),
                }
            }
        }
        if self.client.tracking.is_some() && spec.is(flag::READONLY) {
            spec.each_key(args, |at| {
                tracking::remember(self.state, self.client, &args[at])
            });
        }
        self.dirty = outer_dirty;
        self.rewritten = outer_rewritten;
        result
    }

    /// Keeps what is out of the ordinary about how long a command took.
    fn tell_of_time(
        &mut self,
        spec: &'static Spec,
        args: &[Bytes],
        took: Duration,
        result: &CommandResult,
    ) {
        let config = &self.state.config;
        // A client that waits is not slow.
        if matches!(result, Err(Stop::Block(_))) {
            return;
        }
        let slow = config.slowlog_slower_than;
        if slow >= 0 && took.as_micros() >= slow as u128 && !spec.is(flag::SKIP_SLOWLOG) {
            let shown = slowlog::shown(spec, args);
            let who = (&*self.client, self.origin);
            let log = &mut self.state.slowlog;
            let micros = took.as_micros() as u64;
            log.add(config.slowlog_max_len, who, &shown, self.now_micros, micros);
        }
        if config.latency_threshold > 0 && took.as_millis() as u64 >= config.latency_threshold {
            let event = match spec.is(flag::FAST) {
                true => "fast-command",
                false => "command",
            };
            let seconds = self.now_micros / 1_000_000;
            let millis = took.as_millis() as u64;
            self.state.latency.add(event, seconds, millis);
        }
    }

    /// Counts the error of a command inside a transaction or a script.
    fn count_error(&mut self, result: &CommandResult) {
        let text = match result {
            Err(Stop::Error(text)) => text.as_ref(),
            Ok(Reply::Error(text)) => text.as_str(),
            _ => return,
        };
        match self.origin {
            Origin::Script => self.state.stats.error_in_script(text),
            Origin::Exec => self.state.stats.error(text),
            Origin::Client | Origin::Engine => {}
        }
    }

    /// Lets the reply wait for changes of the command's keys that are not on the disk yet.
    fn depend_on_changes(&mut self, spec: &'static Spec, args: &[Bytes]) {
        let (db, effects) = (self.client.db, &mut self.state.effects);
        let mut named = false;
        spec.each_key(args, |at| {
            named = true;
            effects.depend_on(db, &args[at]);
        });
        let reads = spec.is(flag::READONLY) || spec.is(flag::WRITE);
        // SORT's patterns lead to keys that its arguments do not name.
        if reads && (!named || spec.name.starts_with("sort")) {
            effects.depend_on_all();
        } else if spec.name.starts_with("fcall") || spec.full_name.starts_with("function|") {
            effects.depend_on_everything();
        }
    }

    /// Lets later replies wait for what a command changed that it did not say by [`Ctx::modified`]: who watches the key of a
    /// stream is not told of its groups, and functions have no key.
    #[cold]
    fn touch_named(&mut self, db: usize, spec: &'static Spec, args: &[Bytes]) {
        let effects = &mut self.state.effects;
        let mut named = false;
        spec.each_key(args, |at| {
            named = true;
            effects.touch(db, &args[at]);
        });
        if !named {
            effects.touch_all();
        }
    }

    // ---- time and protocol ----

    /// Unix time in milliseconds.
    #[inline]
    pub(crate) fn now_ms(&self) -> i64 {
        self.now_micros / 1000
    }

    #[inline]
    fn now_secs(&self) -> u32 {
        (self.now_micros / 1_000_000) as u32
    }

    pub(crate) fn is_resp3(&self) -> bool {
        self.client.protocol == Protocol::Resp3
    }

    // ---- looking keys up ----

    #[inline]
    pub(crate) fn db(&mut self) -> &mut Db {
        &mut self.state.dbs[self.client.db]
    }

    /// A live key's place; removes the key if its deadline has passed, and marks it as used.
    #[inline]
    pub(crate) fn find(&mut self, key: &[u8]) -> Option<Slot> {
        let slot = self.peek(key)?;
        if !self.client.no_touch {
            let now = self.now_secs();
            let state = &mut *self.state;
            let entry = state.dbs[self.client.db].entry_mut(slot);
            if !state.config.policy.counts_uses() {
                entry.used = now;
            } else if self.used.replace(slot) != Some(slot) {
                entry.used = eviction::next_use(entry.used, &state.config, now, &mut state.random);
            }
        }
        Some(slot)
    }

    /// Lets the next look at the key count as another use, for commands that read and then write.
    pub(crate) fn use_again(&mut self) {
        self.used = None;
    }

    /// As [`Ctx::find`], without marking the key as used.
    #[inline]
    pub(crate) fn peek(&mut self, key: &[u8]) -> Option<Slot> {
        let now = self.now_ms();
        let db = &self.state.dbs[self.client.db];
        let slot = db.find(key)?;
        if db.entry(slot).is_expired(now) && !self.state.loading {
            if self.state.replica.is_some() {
                // The followed server says when it is gone, and may change it until then.
                return (self.origin == Origin::Engine).then_some(slot);
            }
            self.expire(key);
            return None;
        }
        if db.entry(slot).has_expired_fields(now) && !self.state.loading {
            if self.state.replica.is_some() {
                return self.hide_fields(key, slot).then_some(slot);
            }
            return self.expire_fields(key).then_some(slot);
        }
        Some(slot)
    }

    /// As [`Ctx::find`], counted as a read.
    #[inline]
    pub(crate) fn find_read(&mut self, key: &[u8]) -> Option<Slot> {
        let slot = self.find(key);
        match slot {
            Some(_) => self.state.stats.hits += 1,
            None => self.missed(key),
        }
        slot
    }

    /// As [`Ctx::peek`], counted as a read.
    pub(crate) fn peek_read(&mut self, key: &[u8]) -> Option<Slot> {
        let slot = self.peek(key);
        match slot {
            Some(_) => self.state.stats.hits += 1,
            None => self.missed(key),
        }
        slot
    }

    fn missed(&mut self, key: &[u8]) {
        self.state.stats.misses += 1;
        self.notify(notify::class::KEY_MISS, "keymiss", key);
    }

    /// A live key's value of whatever type.
    pub(crate) fn value(&mut self, key: &[u8]) -> Option<&Value> {
        let slot = self.find(key)?;
        Some(&self.db().entry(slot).value)
    }

    pub(crate) fn exists(&mut self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// A key's value of type `T`; an error if it holds another type.
    #[inline]
    pub(crate) fn get<T: Typed>(&mut self, key: &[u8]) -> Result<Option<&T>, Stop> {
        match self.find_read(key) {
            None => Ok(None),
            Some(slot) => match T::of(&self.state.dbs[self.client.db].entry(slot).value) {
                Some(value) => Ok(Some(value)),
                None => Err(WRONG_TYPE.into()),
            },
        }
    }

    /// As [`Ctx::get`], with what the reply is made with.
    #[inline]
    pub(crate) fn read<T: Typed>(&mut self, key: &[u8]) -> Result<(Option<&T>, Answer<'_>), Stop> {
        let slot = self.find_read(key);
        let state = &mut *self.state;
        let value = match slot {
            None => None,
            Some(slot) => match T::of(&state.dbs[self.client.db].entry(slot).value) {
                Some(value) => Some(value),
                None => return Err(WRONG_TYPE.into()),
            },
        };
        let direct = self.origin == Origin::Client;
        Ok((value, state.output.answer(direct, self.client.protocol)))
    }

    /// As [`Ctx::read`], for several keys; those of another type count as absent.
    pub(crate) fn read_all<'k, T: Typed + 'static>(
        &mut self,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> (impl ExactSizeIterator<Item = Option<&T>>, Answer<'_>) {
        let slots: Vec<Option<Slot>> = keys.map(|key| self.find_read(key)).collect();
        let state = &mut *self.state;
        let db = &state.dbs[self.client.db];
        let values = slots.into_iter().map(|slot| T::of(&db.entry(slot?).value));
        let direct = self.origin == Origin::Client;
        (values, state.output.answer(direct, self.client.protocol))
    }

    /// As [`Ctx::get`], to change it; [`Ctx::modified`] must be called if it was.
    #[inline]
    pub(crate) fn get_mut<T: Typed>(&mut self, key: &[u8]) -> Result<Option<&mut T>, Stop> {
        match self.find(key) {
            None => Ok(None),
            Some(slot) => match T::of_mut(&mut self.db().entry_mut(slot).value) {
                Some(value) => Ok(Some(value)),
                None => Err(WRONG_TYPE.into()),
            },
        }
    }

    /// As [`Ctx::get_mut`], counted as a read, for what Redis only looks up.
    pub(crate) fn get_mut_read<T: Typed>(&mut self, key: &[u8]) -> Result<Option<&mut T>, Stop> {
        match self.find_read(key) {
            None => Ok(None),
            Some(slot) => match T::of_mut(&mut self.db().entry_mut(slot).value) {
                Some(value) => Ok(Some(value)),
                None => Err(WRONG_TYPE.into()),
            },
        }
    }

    /// The value of type `T`, made empty if the key is not there. A caller that leaves it empty must
    /// delete the key again: an empty list, hash or set does not exist in Redis.
    pub(crate) fn get_or_create<T: Typed + Default>(&mut self, key: &[u8]) -> Result<&mut T, Stop> {
        let slot = match self.find(key) {
            Some(slot) => slot,
            None => self.add(key, T::default().wrap(), NEVER),
        };
        match T::of_mut(&mut self.db().entry_mut(slot).value) {
            Some(value) => Ok(value),
            None => Err(WRONG_TYPE.into()),
        }
    }

    /// As [`Ctx::get_mut`], with the settings and the chance that the work may need beside it.
    pub(crate) fn edit<T: Typed, R>(
        &mut self,
        key: &[u8],
        work: impl FnOnce(&mut T, &Config, &mut Random) -> R,
    ) -> Result<Option<R>, Stop> {
        let slot = self.find(key);
        self.edit_at(slot, work)
    }

    fn edit_at<T: Typed, R>(
        &mut self,
        slot: Option<Slot>,
        work: impl FnOnce(&mut T, &Config, &mut Random) -> R,
    ) -> Result<Option<R>, Stop> {
        let Some(slot) = slot else {
            return Ok(None);
        };
        let state = &mut *self.state;
        match T::of_mut(&mut state.dbs[self.client.db].entry_mut(slot).value) {
            Some(value) => Ok(Some(work(value, &state.config, &mut state.random))),
            None => Err(WRONG_TYPE.into()),
        }
    }

    /// As [`Ctx::edit`], counted as a read.
    pub(crate) fn edit_read<T: Typed, R>(
        &mut self,
        key: &[u8],
        work: impl FnOnce(&mut T, &Config, &mut Random) -> R,
    ) -> Result<Option<R>, Stop> {
        let slot = self.find_read(key);
        self.edit_at(slot, work)
    }

    /// As [`Ctx::edit`], on a value that is made empty if the key is not there.
    pub(crate) fn edit_or_create<T: Typed + Default, R>(
        &mut self,
        key: &[u8],
        work: impl FnOnce(&mut T, &Config, &mut Random) -> R,
    ) -> Result<R, Stop> {
        let slot = match self.find(key) {
            Some(slot) => slot,
            None => self.add(key, T::default().wrap(), NEVER),
        };
        let state = &mut *self.state;
        match T::of_mut(&mut state.dbs[self.client.db].entry_mut(slot).value) {
            Some(value) => Ok(work(value, &state.config, &mut state.random)),
            None => Err(WRONG_TYPE.into()),
        }
    }

    /// An error if the key holds something else than a `T`; nothing if it does not exist.
    pub(crate) fn check_type<T: Typed>(&mut self, key: &[u8]) -> Result<(), Stop> {
        self.get_mut::<T>(key).map(|_| ())
    }

    // ---- changing keys ----

    /// Adds a key that is known not to be there, and wakes the clients that block on it.
    pub(crate) fn add(&mut self, key: &[u8], value: Value, deadline: i64) -> Slot {
        let used = eviction::first_use(&self.state.config, self.now_secs());
        let slot = self.db().insert_new(key, value, deadline, used);
        self.signal_ready(key);
        self.notify(notify::class::NEW, "new", key);
        slot
    }

    /// Sets a key's value whatever it held, without a deadline, and marks it as modified.
    pub(crate) fn put(&mut self, key: &[u8], value: Value) {
        self.put_until(key, value, Some(NEVER));
    }

    /// As [`Ctx::put`] with a deadline in unix milliseconds; `None` keeps the one there is.
    pub(crate) fn put_until(&mut self, key: &[u8], value: Value, deadline: Option<i64>) {
        match self.find(key) {
            Some(slot) => {
                let db = self.db();
                let expires = matches!(&value, Value::Hash(hash) if hash.next_deadline() != NEVER);
                let old = std::mem::replace(&mut db.entry_mut(slot).value, value);
                if let Some(deadline) = deadline {
                    db.set_deadline(slot, deadline);
                }
                if expires {
                    db.enter(slot);
                }
                // As in Redis 7.0, replacing a value wakes no client, except that the readers of
                // a stream's group must hear that the stream is gone.
                if matches!(old, Value::Stream(_)) {
                    self.signal_ready(key);
                }
                free::later(old.elements(), old);
            }
            None => {
                self.add(key, value, deadline.unwrap_or(NEVER));
            }
        }
        self.modified(key);
    }

    /// Removes a live key and marks it as modified; the caller notifies and counts. Whether it was
    /// there. A large value is freed in the background.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        match self.take(key) {
            Some(entry) => {
                free::later(entry.value.elements(), entry.value);
                true
            }
            None => false,
        }
    }

    /// As [`Ctx::delete`], with what was removed.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<Entry> {
        self.find(key)?;
        let entry = self.db().remove(key)?;
        self.signal_ready(key);
        self.modified(key);
        Some(entry)
    }

    /// Removes a key that a command has emptied: event `del`.
    pub(crate) fn delete_emptied(&mut self, key: &[u8]) {
        if self.delete(key) {
            self.notify(notify::class::GENERIC, "del", key);
        }
    }

    /// Removes a key whose deadline has passed: event `expired`, effect `DEL`.
    pub(crate) fn expire(&mut self, key: &[u8]) {
        if self.state.replica.is_some() {
            return;
        }
        let Some(entry) = self.db().remove(key) else {
            return;
        };
        free::later(entry.value.elements(), entry.value);
        self.state.stats.expired += 1;
        self.signal_ready(key);
        let db = self.client.db;
        if self.state.effects.enabled() {
            let args = vec![Bytes::from_static(b"DEL"), Bytes::copy_from_slice(key)];
            self.state.effects.record_aside(db, args);
        }
        self.notify(notify::class::EXPIRED, "expired", key);
        // No reply depends on this being on the disk: the key would be found expired again.
        self.tell_of_change(key);
    }

    /// Removes the fields of a hash whose deadlines have passed: event `hexpired`, effect `HDEL`.
    /// Whether fields are left.
    pub(crate) fn expire_fields(&mut self, key: &[u8]) -> bool {
        self.expire_some_fields(key, usize::MAX).0
    }

    /// As [`Ctx::expire_fields`], no more than so many; how many they were, too.
    pub(crate) fn expire_some_fields(&mut self, key: &[u8], most: usize) -> (bool, usize) {
        let now = self.now_ms();
        let Some(slot) = self.db().find(key) else {
            return (false, 0);
        };
        let Value::Hash(hash) = &mut self.db().entry_mut(slot).value else {
            return (true, 0);
        };
        let fields = hash.remove_due(now, most);
        let (emptied, count) = (hash.is_empty(), fields.len());
        if fields.is_empty() {
            return (true, 0);
        }
        let db = self.client.db;
        if self.state.effects.enabled() {
            let mut args = vec![Bytes::from_static(b"HDEL"), Bytes::copy_from_slice(key)];
            args.extend(fields.iter().map(|field| field.to_bytes()));
            self.state.effects.record_aside(db, args);
        }
        self.notify(notify::class::HASH, "hexpired", key);
        if emptied {
            self.db().remove(key);
            self.signal_ready(key);
            self.notify(notify::class::GENERIC, "del", key);
        }
        self.tell_of_change(key);
        (!emptied, count)
    }

    /// Lets a client not see the fields of a hash whose deadlines have passed, until its command is over:
    /// the followed server says when they are gone, and may change them until then. Whether it sees any.
    fn hide_fields(&mut self, key: &[u8], slot: Slot) -> bool {
        if self.origin == Origin::Engine {
            return true;
        }
        let (now, number) = (self.now_ms(), self.client.db);
        let Value::Hash(hash) = &mut self.state.dbs[number].entry_mut(slot).value else {
            return true;
        };
        let fields = hash.take_due(now);
        let sees = !hash.is_empty();
        let hidden = (number, Bytes::copy_from_slice(key), fields);
        self.state.hidden.push(hidden);
        sees
    }

    /// Undoes [`Ctx::hide_fields`].
    #[cold]
    fn show_fields(&mut self) {
        let state = &mut *self.state;
        for (number, key, fields) in std::mem::take(&mut state.hidden) {
            let db = &mut state.dbs[number];
            if let Some(slot) = db.find(&key)
                && let Value::Hash(hash) = &mut db.entry_mut(slot).value
            {
                hash.give_back(fields, &state.config);
            }
        }
    }

    // ---- telling others ----

    /// Tells watchers (and caching clients) that a key has changed. Every change must pass here.
    #[inline]
    pub(crate) fn modified(&mut self, key: &[u8]) {
        self.state.effects.touch(self.client.db, key);
        self.tell_of_change(key);
    }

    #[inline]
    fn tell_of_change(&mut self, key: &[u8]) {
        if !self.state.dbs[self.client.db].watched.is_empty() {
            self.touch_watchers(key);
        }
        if self.state.config.maxmemory > 0 {
            self.db().measure(key);
        }
        if self.state.tracking.is_active() {
            tracking::invalidate(self.state, self.client.id, key);
        }
    }

    fn touch_watchers(&mut self, key: &[u8]) {
        let db = &mut self.state.dbs[self.client.db];
        let gone = db.find(key).is_none();
        if let Some(watchers) = db.watched.get_mut(key) {
            for watcher in watchers {
                watcher.touch(gone);
            }
        }
    }

    /// Counts changes; a command that counted none has no effect to record.
    #[inline]
    pub(crate) fn dirty(&mut self, changes: usize) {
        self.dirty += changes as u64;
    }

    /// Publishes a keyspace event if events of this class are enabled.
    #[inline]
    pub(crate) fn notify(&mut self, class: u32, event: &str, key: &[u8]) {
        if self.state.config.notify & class != 0 {
            notify::publish(self.state, class, event, key, self.client.db);
        }
    }

    /// The usual end of a change: modified, event, one more change.
    #[inline]
    pub(crate) fn changed(&mut self, key: &[u8], class: u32, event: &str) {
        self.modified(key);
        self.notify(class, event, key);
        self.dirty += 1;
    }

    /// Records this effect instead of the command itself; several calls record several effects.
    pub(crate) fn propagate<A: Into<Bytes>>(&mut self, args: impl IntoIterator<Item = A>) {
        if self.state.effects.enabled() {
            let args = args.into_iter().map(Into::into).collect();
            self.rewritten.get_or_insert_with(Vec::new).push(args);
        }
    }

    /// Records nothing for this command, whatever it changed.
    pub(crate) fn propagate_nothing(&mut self) {
        self.rewritten.get_or_insert_with(Vec::new);
    }

    // ---- blocking ----

    /// Lets clients that block on this key be served once the running unit is over.
    #[inline]
    pub(crate) fn signal_ready(&mut self, key: &[u8]) {
        let db = &self.state.dbs[self.client.db];
        if !db.blocked.is_empty() && db.blocked.contains_key(key) {
            self.state
                .ready
                .push((self.client.db, Bytes::copy_from_slice(key)));
        }
    }

    /// Blocks the client, or answers as after a timeout where nothing may block.
    pub(crate) fn block(&self, wait: Wait) -> CommandResult {
        match self.origin {
            Origin::Client => Err(Stop::Block(Box::new(wait))),
            Origin::Exec | Origin::Script | Origin::Engine => Ok(wait.on_timeout),
        }
    }

    /// Whether a command that finds nothing may wait.
    pub(crate) fn may_block(&self) -> bool {
        self.origin == Origin::Client
    }

    /// Runs the part of the engine's own work that serves or undoes for a waiting client.
    pub(crate) fn record(&mut self, args: Vec<Bytes>) {
        let db = self.client.db;
        self.state.effects.record(db, args);
    }

    /// Lets later replies wait for a change of a key that those who watch it are not told of.
    pub(crate) fn touch(&mut self, key: &[u8]) {
        self.state.effects.touch(self.client.db, key);
    }
}

fn is_failure(result: &CommandResult) -> bool {
    matches!(result, Err(Stop::Error(_)) | Ok(Reply::Error(_)))
}

/// Shorthand for a served client's reply without anything to undo.
impl From<Reply> for Served {
    fn from(reply: Reply) -> Served {
        Served { reply, undo: None }
    }
}
