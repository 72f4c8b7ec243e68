//! The history of one key.

use super::{
    When, Who,
    command::{Action, Form, Ttl},
};

/// Reads that wait for their write, per key.
const READERS: usize = 64;
/// The same where the memory for them is used up.
const FEW: usize = 4;
/// A read and a write further apart are not one piece of work.
const TOGETHER: f64 = 5.0;
/// A second step follows its first within this time.
const NEXT_STEP: f64 = 2.0;

/// Counters of one key. Sums of them describe a pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ops {
    /// All commands of clients.
    pub(crate) all: u64,
    pub(crate) scripts: u64,
    pub(crate) by_script: u64,
    pub(crate) gets: u64,
    pub(crate) sets: u64,
    pub(crate) sets_without_ttl: u64,
    /// Whether they gave a TTL was not seen, because the line was too long.
    pub(crate) sets_unknown: u64,
    pub(crate) sets_json: u64,
    pub(crate) sets_integer: u64,
    pub(crate) set_then_expire: u64,
    /// Writes over a value that nobody had read since it was written.
    pub(crate) blind_sets: u64,
    /// A read and then a write by one connection.
    pub(crate) get_set: u64,
    pub(crate) get_incr: u64,
    /// The same with a foreign write in between.
    pub(crate) race_incr: u64,
    /// Two reads and then two writes on one connection: tasks that share it overlapped.
    pub(crate) overlaps: u64,
    /// The same over all connections: with a pool, a task's read and write may be on two of them.
    pub(crate) crossed: u64,
    /// Numbers written twice in a row, and numbers that differ from the one before.
    pub(crate) repeated: u64,
    pub(crate) changed: u64,
    /// Writes after a deletion that no read followed: their reads were before it.
    pub(crate) late_fill: u64,
    pub(crate) race_counter: u64,
    pub(crate) race_value: u64,
    pub(crate) stale_fill: u64,
    pub(crate) duplicate_fill: u64,
    /// Writes of the value that is there, by those who knew that it is.
    pub(crate) refreshed: u64,
    /// Reads that found nothing, as far as is known, and then a write with a TTL by the same connection.
    pub(crate) fills: u64,
    /// What one connection had filled, and another wrote over unread.
    pub(crate) overwritten: u64,
    /// Reads together with many other keys.
    pub(crate) together: u64,
    /// The most connections that had read the key and not yet written it.
    pub(crate) waiting: u64,
    pub(crate) increments: u64,
    /// Increments of a key after its first, and settings of its TTL from then on.
    pub(crate) increments_again: u64,
    pub(crate) expires_again: u64,
    pub(crate) incr_then_expire: u64,
    pub(crate) incr_with_expire: u64,
    pub(crate) drains: u64,
    pub(crate) expires: u64,
    /// Those that change nothing where there is a TTL.
    pub(crate) expires_if_none: u64,
    pub(crate) deletes: u64,
    /// `SET NX`, and those of it without TTL.
    pub(crate) takes: u64,
    pub(crate) takes_without_ttl: u64,
    pub(crate) take_then_expire: u64,
    /// Another connection tried while it was held.
    pub(crate) contended: u64,
    /// Those whose value is of use to others.
    pub(crate) takes_of_data: u64,
    /// Another connection took it with the same value.
    pub(crate) shared_value: u64,
    pub(crate) plain_release: u64,
    /// Those of them, and of releases by a script, that were sent by the connection that had taken it.
    pub(crate) own_release: u64,
    pub(crate) own_script_release: u64,
    pub(crate) get_delete: u64,
    pub(crate) own_get_delete: u64,
    pub(crate) foreign_release: u64,
    pub(crate) script_release: u64,
    pub(crate) overrun: u64,
    pub(crate) hash_gets: u64,
    pub(crate) hash_sets: u64,
    pub(crate) hash_removes: u64,
    pub(crate) pushes: u64,
    pub(crate) pops: u64,
    pub(crate) blocking_pops: u64,
    pub(crate) moves: u64,
    pub(crate) list_trims: u64,
    pub(crate) whole: u64,
    pub(crate) set_adds: u64,
    pub(crate) set_removes: u64,
    pub(crate) set_counts: u64,
    pub(crate) set_uses: u64,
    pub(crate) zadds: u64,
    pub(crate) zadds_of_time: u64,
    pub(crate) ztrims: u64,
    pub(crate) zremoves: u64,
    pub(crate) zcounts: u64,
    /// A sorted set was added to and then counted.
    pub(crate) zadd_then_count: u64,
    pub(crate) stream_adds: u64,
    pub(crate) stream_adds_trimming: u64,
    pub(crate) stream_reads: u64,
    pub(crate) stream_acks: u64,
    pub(crate) stream_trims: u64,
}

macro_rules! add_fields {
    ($into:ident, $from:ident, $($field:ident)*) => { $($into.$field += $from.$field;)* };
}

impl Ops {
    pub(crate) fn add(&mut self, other: &Self) {
        add_fields!(self, other, all scripts by_script gets sets sets_without_ttl sets_unknown sets_json sets_integer set_then_expire blind_sets get_set get_incr
            race_incr overlaps crossed repeated changed late_fill race_counter race_value stale_fill duplicate_fill refreshed fills overwritten together increments increments_again expires_again incr_then_expire incr_with_expire
            drains expires expires_if_none deletes takes takes_without_ttl take_then_expire contended takes_of_data shared_value plain_release own_release own_script_release get_delete own_get_delete
            foreign_release script_release overrun hash_gets hash_sets hash_removes pushes pops blocking_pops moves list_trims whole
            set_adds set_removes set_counts set_uses zadds zadds_of_time ztrims zremoves zcounts zadd_then_count stream_adds
            stream_adds_trimming stream_reads stream_acks stream_trims);
        self.waiting = self.waiting.max(other.waiting);
    }

    /// Whether most values that were written, and whose TTL was seen, got none.
    pub(crate) fn mostly_without_ttl(&self) -> bool {
        self.sets_without_ttl * 2 > self.sets.saturating_sub(self.sets_unknown)
    }
}

#[derive(Clone, Copy, Debug)]
struct Read {
    client: u32,
    when: f64,
    sequence: u64,
    /// How often this connection read it since it last wrote it.
    times: u32,
    /// It was there.
    hit: bool,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    client: u32,
    sequence: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// A value by its fingerprint, if all of it was seen.
    Value(Option<u64>),
    Delete,
    Increment,
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    client: u32,
    until: f64,
    /// It has not tried again since. One that tries again does not have it, or shares its connection with others.
    sure: bool,
}

/// A script that a client ran on the key.
#[derive(Clone, Copy, Debug)]
struct Ran {
    client: u32,
    /// A command of it that changes the key was seen.
    wrote: bool,
}

/// A first step that wants its second.
#[derive(Clone, Copy, Debug)]
struct Step {
    client: u32,
    at: f64,
    atomic: bool,
}

/// One key's counters and what is open on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyTrace {
    pub(crate) ops: Ops,
    reads: Vec<Read>,
    /// Reads of a connection that its last write did not answer.
    spare: Option<Read>,
    /// When anybody last read it.
    last_read: f64,
    /// Reads of all connections that no write has answered.
    open_reads: u32,
    /// The last command of a client was a write.
    just_written: bool,
    /// Until when it is there, as far as its TTL is known.
    until: Option<f64>,
    /// Who filled it after a read that found nothing.
    filler: Option<u32>,
    /// When it was deleted, by whom, and whether somebody had just read it.
    deleted: Option<(f64, u32, bool)>,
    writes: Vec<Write>,
    holder: Option<Holder>,
    /// Who held it last and let its time pass.
    late: Option<Holder>,
    /// The last command of a client was this script.
    ran: Option<Ran>,
    taken_with: Vec<(u64, u32)>,
    taken: Option<Step>,
    set: Option<Step>,
    incremented: Option<Step>,
    added: Option<Step>,
    /// There is no memory for more than a few reads and writes that are open.
    crowded: bool,
}

impl KeyTrace {
    /// Takes a command; `crowded` if there is no memory for more than a few open reads and writes.
    pub(crate) fn take(&mut self, action: &Action, who: Who, when: When, crowded: bool) {
        self.crowded = crowded;
        self.follow(action, who, when);
        if crowded {
            self.reads.shrink_to(FEW);
            self.writes.shrink_to(FEW);
            self.taken_with.shrink_to(FEW);
        }
    }

    /// The memory of what is open beyond a few of each kind, in bytes.
    pub(crate) fn held(&self) -> usize {
        let beyond = |capacity: usize, size: usize| capacity.saturating_sub(FEW) * size;
        beyond(self.reads.capacity(), size_of::<Read>())
            + beyond(self.writes.capacity(), size_of::<Write>())
            + beyond(self.taken_with.capacity(), size_of::<(u64, u32)>())
    }

    /// How many of each kind may be open.
    fn room(&self) -> usize {
        if self.crowded { FEW } else { READERS }
    }

    fn follow(&mut self, action: &Action, who: Who, when: When) {
        let script = who.id == u32::MAX;
        if script {
            self.ops.by_script += 1;
        } else {
            self.ops.all += 1;
            self.after_script();
        }
        match action {
            Action::Together if !script => {
                self.ops.together += 1;
                self.read(who, when);
            }
            Action::Get if !script => self.read(who, when),
            Action::Get | Action::Together => {}
            Action::Renew { seconds } => {
                if !script {
                    self.read(who, when);
                }
                self.expire(*seconds, false, who, when);
            }
            Action::Set { value, form, ttl } => self.set(*value, *form, *ttl, who, when),
            Action::Take { value, ttl, data } => {
                self.ops.takes_of_data += u64::from(*data);
                self.try_take(*value, *ttl, who, when);
            }
            Action::Increment => self.increment(who, when),
            Action::Expire { seconds, if_none } => self.expire(*seconds, *if_none, who, when),
            Action::Delete => self.delete(who, when),
            Action::Revoke => self.gone(who, when),
            Action::Release => self.release(who, when),
            Action::Script => {
                self.ops.scripts += 1;
                self.after_its_time(who, when);
                self.ran = Some(Ran {
                    client: who.id,
                    wrote: false,
                });
            }
            Action::Drain => {
                self.ops.drains += 1;
                self.wrote(who, when, What::Other);
            }
            Action::ZAdd { score } => {
                self.ops.zadds += 1;
                self.ops.zadds_of_time += u64::from(*score > 1e9);
                self.added = (!script).then_some(self.step(who, when));
            }
            Action::ZCount => {
                self.ops.zcounts += 1;
                if self
                    .added
                    .is_some_and(|step| step.client == who.id && when.at - step.at < NEXT_STEP)
                {
                    self.ops.zadd_then_count += 1;
                    self.added = None;
                }
            }
            action => self.count(action),
        }
    }

    /// Those that are only counted.
    fn count(&mut self, action: &Action) {
        let ops = &mut self.ops;
        match action {
            Action::HashGet => ops.hash_gets += 1,
            Action::HashSet => ops.hash_sets += 1,
            Action::HashRemove => ops.hash_removes += 1,
            Action::Push => ops.pushes += 1,
            Action::Pop(blocking) => {
                ops.pops += 1;
                ops.blocking_pops += u64::from(*blocking);
            }
            Action::Move(_) => ops.moves += 1,
            Action::ListTrim => ops.list_trims += 1,
            Action::Whole => ops.whole += 1,
            Action::SetAdd => ops.set_adds += 1,
            Action::SetRemove => ops.set_removes += 1,
            Action::SetCount => ops.set_counts += 1,
            Action::SetUse => ops.set_uses += 1,
            Action::ZTrim => ops.ztrims += 1,
            Action::ZRemove => ops.zremoves += 1,
            Action::StreamAdd { trims } => {
                ops.stream_adds += 1;
                ops.stream_adds_trimming += u64::from(*trims);
            }
            Action::StreamRead => ops.stream_reads += 1,
            Action::StreamAck => ops.stream_acks += 1,
            Action::StreamTrim => ops.stream_trims += 1,
            _ => {}
        }
    }

    /// Without a line that shows what a script did, it may have released the lock; a log of an application has no such lines.
    /// And a script that only read it tells its caller that it does not have the lock. Either way nobody is known to hold it.
    fn after_script(&mut self) {
        if self.ran.take().is_some_and(|ran| !ran.wrote) {
            self.holder = None;
            self.late = None;
            self.taken = None;
        }
    }

    fn step(&self, who: Who, when: When) -> Step {
        Step {
            client: who.id,
            at: when.at,
            atomic: who.atomic,
        }
    }

    /// Whether it is known to be there.
    fn is_there(&self, when: When) -> bool {
        self.until.is_some_and(|until| until > when.at)
    }

    fn read(&mut self, who: Who, when: When) {
        self.ops.gets += 1;
        if when.at - self.last_read > 1.0 {
            self.open_reads = 0;
        }
        self.last_read = when.at;
        self.deleted = None;
        if who.atomic {
            return;
        }
        self.open_reads += 1;
        self.just_written = false;
        self.reads.retain(|read| when.at - read.when < TOGETHER);
        self.spare = None;
        // Which of the clients with this name will write is not known.
        if who.shared {
            return;
        }
        let read = Read {
            client: who.id,
            when: when.at,
            sequence: when.sequence,
            times: 1,
            hit: self.is_there(when),
        };
        if let Some(known) = self.reads.iter_mut().find(|known| known.client == who.id) {
            let times = known.times + 1;
            *known = Read { times, ..read };
        } else if self.reads.len() < self.room() {
            self.reads.push(read);
        }
    }

    /// The read of this connection that this write follows.
    fn read_before(&mut self, who: Who, when: When) -> Option<Read> {
        let at = self.reads.iter().position(|read| read.client == who.id)?;
        let read = self.reads.remove(at);
        self.spare = (read.times > 1).then_some(Read {
            times: read.times - 1,
            ..read
        });
        (!who.atomic && when.at - read.when < TOGETHER).then_some(read)
    }

    /// Counts a write that follows a write, while a read from before both is unanswered.
    fn cross(&mut self, who: Who, when: When) {
        if who.atomic {
            return;
        }
        let fresh = when.at - self.last_read < 1.0;
        self.ops.crossed += u64::from(self.just_written && self.open_reads > 0 && fresh);
        self.open_reads = self.open_reads.saturating_sub(1);
        self.just_written = true;
    }

    /// Whether this write belongs to a read that came before the connection's last write: two tasks that share the
    /// connection both read, and both write.
    fn overlaps(&mut self, who: Who, when: When) -> bool {
        let Some(spare) = &mut self.spare else {
            return false;
        };
        let own = spare.client == who.id && !who.atomic && when.at - spare.when < TOGETHER;
        if own {
            spare.times -= 1;
            if spare.times == 0 {
                self.spare = None;
            }
        }
        own
    }

    /// The last write of others since a read.
    fn foreign_since(&self, read: Read) -> Option<What> {
        self.writes
            .iter()
            .rev()
            .take_while(|write| write.sequence > read.sequence)
            .find(|write| write.client != read.client)
            .map(|write| write.what)
    }

    fn wrote(&mut self, who: Who, when: When, what: What) {
        if who.id == u32::MAX
            && let Some(ran) = &mut self.ran
        {
            ran.wrote = true;
        }
        // Only what came after a read that waits for its write is asked for, and the last one.
        if self.reads.is_empty() {
            self.writes.clear();
        } else if self.writes.len() >= self.room() {
            self.writes.remove(0);
        }
        self.writes.push(Write {
            client: who.id,
            sequence: when.sequence,
            what,
        });
    }

    fn set(&mut self, value: Option<u64>, form: Form, ttl: Ttl, who: Who, when: When) {
        let ops = &mut self.ops;
        ops.sets += 1;
        ops.sets_without_ttl += u64::from(ttl == Ttl::Never);
        ops.sets_unknown += u64::from(ttl == Ttl::Unknown);
        ops.sets_json += u64::from(form == Form::Json);
        ops.sets_integer += u64::from(form == Form::Integer);
        if form == Form::Integer
            && let Some(Write {
                what: What::Value(before),
                ..
            }) = self.writes.last()
        {
            ops.repeated += u64::from(*before == value);
            ops.changed += u64::from(*before != value);
        }
        if let Some((at, by, read)) = self.deleted.take() {
            let late = read && by != who.id && !who.atomic && when.at - at < 1.0;
            ops.late_fill += u64::from(late);
        }
        self.cross(who, when);
        let waiting = self
            .reads
            .iter()
            .filter(|read| when.at - read.when < 1.0)
            .count() as u64;
        let there = self.is_there(when);
        let last = self.writes.last().map(|write| write.what);
        let same = value.is_some() && last == Some(What::Value(value));
        let lives = matches!(ttl, Ttl::Seconds(seconds) if seconds.is_finite());
        // A number that stays and is written twice was counted twice.
        let is_copy = same && (form != Form::Integer || lives);
        let mut refreshes = there && same && self.open_reads == 0;
        if let Some(read) = self.read_before(who, when) {
            refreshes = there && same && read.hit;
            self.ops.get_set += 1;
            self.ops.waiting = self.ops.waiting.max(waiting);
            if lives && !read.hit {
                self.ops.fills += 1;
                self.filler = Some(who.id);
            }
            match self.foreign_since(read) {
                None => {}
                Some(What::Delete) => self.ops.stale_fill += 1,
                // The later time is the right one.
                Some(_) if form == Form::Time => {}
                Some(What::Value(other)) if other == value && is_copy => {
                    self.ops.duplicate_fill += u64::from(!read.hit);
                }
                Some(What::Value(_)) if form == Form::Integer && lives => {
                    self.ops.race_value += 1;
                }
                Some(_) if form == Form::Integer => self.ops.race_counter += 1,
                // Whether they differ was not seen.
                Some(What::Value(other)) if other.is_none() || value.is_none() => {}
                Some(_) if value.is_none() => {}
                Some(What::Value(other)) if other == value => {
                    self.ops.duplicate_fill += u64::from(!read.hit);
                }
                Some(What::Value(_) | What::Increment | What::Other) => self.ops.race_value += 1,
            }
        } else if self.overlaps(who, when) {
            refreshes = false;
            match last {
                _ if form == Form::Time => {}
                Some(What::Value(other)) if other.is_none() || value.is_none() => {}
                _ if is_copy => self.ops.duplicate_fill += 1,
                _ if form == Form::Integer || ttl == Ttl::Never => self.ops.overlaps += 1,
                _ => {}
            }
        }
        self.ops.refreshed += u64::from(refreshes);
        // With a pool of connections the read of a fill may be another connection's, but it is there.
        let written_before = matches!(last, Some(What::Value(_)));
        let blind = written_before && when.at - self.last_read > TOGETHER.min(0.5);
        self.ops.blind_sets += u64::from(blind);
        let foreign = self.filler.is_some_and(|filler| filler != who.id);
        let changes = !same && !matches!(form, Form::Integer | Form::Time);
        self.ops.overwritten += u64::from(blind && foreign && changes);
        self.until = match ttl {
            Ttl::Unknown => None,
            // It keeps what it has.
            Ttl::Seconds(seconds) if seconds.is_infinite() && there => self.until,
            ttl => Some(ttl.end(when.at)),
        };
        self.set = (ttl == Ttl::Never && who.id != u32::MAX).then_some(self.step(who, when));
        self.wrote(who, when, What::Value(value));
    }

    fn try_take(&mut self, value: Option<u64>, ttl: Ttl, who: Who, when: When) {
        self.ops.takes += 1;
        if who.id != u32::MAX {
            self.ops.takes_without_ttl += u64::from(ttl == Ttl::Never);
            let (known, room) = (self.taken_with.iter(), self.room());
            match (
                value,
                known.clone().find(|(other, _)| Some(*other) == value),
            ) {
                (_, Some((_, client))) => {
                    self.ops.shared_value += u64::from(*client != who.id);
                }
                (Some(value), None) if known.len() < room => {
                    self.taken_with.push((value, who.id));
                }
                _ => {}
            }
        }
        let again = |holder: &Holder| holder.client == who.id;
        self.late = self.late.filter(|late| !again(late));
        if let Some(holder) = self.holder.as_mut().filter(|holder| again(holder)) {
            holder.sure = false;
        }
        let free = match self.holder {
            None => true,
            Some(holder) if holder.until < when.at => {
                self.late = Some(holder).filter(|holder| holder.sure);
                true
            }
            Some(holder) => {
                self.ops.contended += u64::from(!again(&holder));
                false
            }
        };
        if free {
            self.until = Some(ttl.end(when.at));
            self.holder = Some(Holder {
                client: who.id,
                until: ttl.end(when.at),
                sure: !who.shared,
            });
            self.taken = (ttl == Ttl::Never).then_some(self.step(who, when));
            self.wrote(who, when, What::Value(value));
        }
    }

    fn increment(&mut self, who: Who, when: When) {
        self.ops.increments_again += u64::from(self.ops.increments > 0);
        self.ops.increments += 1;
        self.cross(who, when);
        if let Some(read) = self.read_before(who, when) {
            // All clients of a unix socket have one name.
            self.ops.get_incr += u64::from(!who.shared);
            self.ops.race_incr += u64::from(self.foreign_since(read).is_some());
        } else if self.overlaps(who, when) {
            self.ops.overlaps += 1;
        }
        self.incremented = Some(self.step(who, when));
        self.wrote(who, when, What::Increment);
    }

    fn expire(&mut self, seconds: f64, if_none: bool, who: Who, when: When) {
        self.ops.expires += 1;
        self.ops.expires_again += u64::from(self.ops.increments_again > 0);
        self.ops.expires_if_none += u64::from(if_none);
        self.until = Some(when.at + seconds).filter(|_| !if_none);
        let follows = |step: Option<Step>| {
            step.filter(|step| step.client == who.id && when.at - step.at < NEXT_STEP)
        };
        if let Some(step) = follows(self.incremented) {
            match step.atomic && who.atomic {
                true => self.ops.incr_with_expire += 1,
                false => self.ops.incr_then_expire += 1,
            }
            self.incremented = None;
        }
        if let Some(step) = follows(self.taken) {
            self.ops.take_then_expire += u64::from(!(step.atomic && who.atomic));
            self.ops.takes_without_ttl -= u64::from(self.ops.takes_without_ttl > 0);
            self.taken = None;
        }
        if follows(self.set).is_some() {
            self.ops.set_then_expire += 1;
            self.ops.sets_without_ttl -= u64::from(self.ops.sets_without_ttl > 0);
            self.set = None;
        }
        if let Some(holder) = &mut self.holder
            && (holder.client == who.id || who.id == u32::MAX)
        {
            holder.until = when.at + seconds;
        }
        if who.id == u32::MAX
            && let Some(ran) = &mut self.ran
        {
            ran.wrote = true;
        }
    }

    /// The former holder comes back after its time, and another has it.
    fn after_its_time(&mut self, who: Who, when: When) -> bool {
        let late = self
            .late
            .is_some_and(|late| late.client == who.id && late.until < when.at);
        let other = self.holder.is_some_and(|holder| {
            holder.client != who.id && holder.until >= when.at && holder.sure
        });
        if late && other {
            self.ops.overrun += 1;
            self.late = None;
        }
        late && other
    }

    fn delete(&mut self, who: Who, when: When) {
        self.ops.deletes += 1;
        let just_read = self.open_reads > 0 && when.at - self.last_read < 1.0;
        self.deleted = (who.id != u32::MAX).then_some((when.at, who.id, just_read));
        if who.id == u32::MAX {
            self.ops.script_release += u64::from(self.holder.is_some());
            // One that a script took is a script's to release.
            let by = self.ran.map(|ran| ran.client);
            let own = self.holder.is_some_and(|holder| {
                holder.client == u32::MAX || by.is_some_and(|by| by == holder.client)
            });
            self.ops.own_script_release += u64::from(own);
        } else if let Some(holder) = self.holder {
            let had = |holder: Holder| holder.client == who.id;
            let own = !who.shared && (had(holder) || self.late.is_some_and(had));
            let checked = self.read_before(who, when).is_some();
            self.ops.plain_release += u64::from(!who.atomic);
            self.ops.own_release += u64::from(!who.atomic && own);
            self.ops.get_delete += u64::from(checked);
            self.ops.own_get_delete += u64::from(checked && own);
            self.ops.foreign_release += u64::from(self.after_its_time(who, when));
        }
        self.gone(who, when);
    }

    /// It is deleted if the caller still has it, which the reply tells and the line does not.
    fn release(&mut self, who: Who, when: When) {
        self.ops.deletes += 1;
        self.after_its_time(who, when);
        let own = self.holder.is_some_and(|holder| holder.client == who.id);
        self.ops.script_release += u64::from(self.holder.is_some());
        self.ops.own_script_release += u64::from(own);
        self.late = None;
        self.gone(who, when);
    }

    /// It does not exist any more. Its holder has lost it, as intended.
    fn gone(&mut self, who: Who, when: When) {
        self.holder = None;
        self.taken = None;
        self.until = Some(0.0);
        self.reads.retain(|read| read.client != who.id);
        self.wrote(who, when, What::Delete);
    }
}
