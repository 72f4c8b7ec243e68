//! The locks of a world as its servers gave them out.
//!
//! A caller that was refused cannot know why: the holder may be another caller, one that has died, or a request that arrived
//! after its caller had given up. The servers know. This is a second, small account of who holds what until when and who
//! waits, made from the requests and their answers alone: a refusal without a reason is odd, and so is a grant past a waiter.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use redstart_engine::Reply;

/// Servers and timers round to milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);
/// By how much longer a lease lasts at most if the data comes under another server's clock.
const CLOCKS: Duration = Duration::from_secs(5);
/// In the error of an engine that did something and could not log it.
const CARRIED_OUT: &str = "the command was carried out";
/// What the keys of these locks begin with.
const KINDS: &[&[u8]] = &[b"sim:fair:", b"sim:semaphore:", b"sim:rw:", b"sim:leader:"];

/// What the servers gave out.
#[derive(Default)]
pub struct LockView(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// By key.
    locks: BTreeMap<Bytes, View>,
    oddities: Vec<(Duration, Duration, String)>,
}

/// One lock.
#[derive(Default)]
struct View {
    holders: Vec<Held>,
    /// Those who wait: in line, or writers whom readers let pass.
    waiters: Vec<Held>,
    /// Until then nothing is known for certain: the log did not take what was done.
    unclear: Duration,
    longest: Duration,
}

/// Somebody has something until a time.
#[derive(Clone)]
struct Held {
    token: Bytes,
    until: Duration,
    /// Nobody else may hold the lock meanwhile.
    alone: bool,
    /// Its place in line was renewed in the very moment of its end: it may be at the end of the line since.
    unsure: bool,
}

impl Held {
    fn runs(&self, now: Duration) -> bool {
        now + ROUNDING < self.until
    }

    fn may_run(&self, now: Duration) -> bool {
        now <= self.until + ROUNDING
    }
}

/// A request about a lock.
struct Asked<'a> {
    script: &'static str,
    token: &'a Bytes,
    args: &'a [Bytes],
    now: Duration,
}

impl Asked<'_> {
    fn millis(&self, number: usize) -> Duration {
        Duration::from_millis(self.number(number))
    }

    fn number(&self, number: usize) -> u64 {
        let word = self
            .args
            .get(number)
            .and_then(|word| std::str::from_utf8(word).ok());
        word.and_then(|word| word.parse().ok()).unwrap_or_default()
    }

    fn waits(&self) -> bool {
        self.args.get(2).is_some_and(|word| word == "1")
    }
}

impl View {
    /// Others than the caller that hold it: surely, or perhaps.
    fn others<'a>(&'a self, of: &'a [Held], asked: &'a Asked<'_>, surely: bool) -> Vec<&'a Held> {
        let others = of.iter().filter(|held| held.token != asked.token);
        let others = others.filter(|held| match surely {
            true => held.runs(asked.now),
            false => held.may_run(asked.now),
        });
        others.collect()
    }

    fn set(list: &mut Vec<Held>, token: &Bytes, now: Duration, lasts: Duration, alone: bool) {
        let until = now + lasts;
        match list.iter_mut().find(|held| held.token == token) {
            Some(held) => {
                held.unsure |= !held.runs(now);
                held.until = until;
            }
            None => list.push(Held {
                token: token.clone(),
                until,
                alone,
                unsure: false,
            }),
        }
    }

    /// How many are in line before the caller: surely, or perhaps. All of them, if it has no place.
    fn ahead(&self, asked: &Asked<'_>, surely: bool) -> usize {
        let own = |held: &&Held| held.token == asked.token;
        let may_be_last = |own: &Held| own.unsure || !own.runs(asked.now);
        let last = !surely && self.waiters.iter().find(own).is_some_and(may_be_last);
        let others = self.waiters.iter();
        let ahead = others.take_while(|held| last || !own(held));
        let ahead = ahead.filter(|held| !own(held));
        let ahead = ahead.filter(|place| match surely {
            true => place.runs(asked.now) && !place.unsure,
            false => place.may_run(asked.now),
        });
        ahead.count()
    }

    /// What speaks against the answer.
    fn objection(&self, asked: &Asked<'_>, granted: bool) -> Option<String> {
        let (holders, waiters) = (&self.holders, &self.waiters);
        let runs = |held: &Held| held.token == asked.token && held.may_run(asked.now);
        // The same request again is answered as the first one was.
        if granted && holders.iter().any(runs) {
            return None;
        }
        let held = self.others(holders, asked, granted);
        let waiting = self.others(waiters, asked, granted);
        let (taken, most) = match asked.script {
            "fair.acquire" => (held.len() + self.ahead(asked, granted), 1),
            "semaphore.acquire" => (held.len(), asked.number(5) as usize),
            "rw.read" => {
                let writers = held.iter().filter(|held| held.alone).count();
                (writers + waiting.len(), 1)
            }
            _ => (held.len(), 1),
        };
        let script = asked.script;
        match granted {
            true if taken >= most => Some(format!("{script} is granted past {taken} others")),
            false if taken < most => Some(format!(
                "{script} is refused, and {taken} hold it or wait, of {most} that may"
            )),
            _ => None,
        }
    }

    fn acquire(&mut self, asked: &Asked<'_>, granted: bool) {
        let (token, now) = (asked.token, asked.now);
        let (ttl, place) = (asked.millis(1), asked.millis(3));
        self.longest = self.longest.max(ttl).max(place);
        if granted {
            self.waiters.retain(|held| held.token != token);
            let alone = !matches!(asked.script, "semaphore.acquire" | "rw.read");
            Self::set(&mut self.holders, token, now, ttl, alone);
        } else if asked.waits() && matches!(asked.script, "fair.acquire" | "rw.write") {
            Self::set(&mut self.waiters, token, now, place, true);
        }
    }

    /// Forgets what surely has ended: a place in line that has is taken from it before anything else happens.
    fn reap(&mut self, now: Duration) {
        self.holders.retain(|held| held.may_run(now));
        self.waiters.retain(|held| held.may_run(now));
    }
}

/// The name of a script, by how it is called.
fn script(command: &[Bytes]) -> Option<&'static str> {
    let (name, text) = (command.first()?, command.get(1)?);
    let text = std::str::from_utf8(text).ok()?;
    let all = redstart::script::all();
    let found = all.iter().find(|script| match name.len() {
        4 => script.source() == text,
        _ => script.digest() == text,
    })?;
    Some(found.name())
}

impl LockView {
    /// A server carried a command out.
    pub fn look(&self, command: &[Bytes], reply: &Reply, now: Duration) {
        let [name, _, keys, lock, ..] = command else {
            return;
        };
        let is_script = name.len() >= 4 && name[..4].eq_ignore_ascii_case(b"EVAL");
        if !is_script || !KINDS.iter().any(|kind| lock.starts_with(kind)) {
            return;
        }
        let Some(script) = script(command) else {
            return;
        };
        let count: usize = std::str::from_utf8(keys)
            .ok()
            .and_then(|keys| keys.parse().ok())
            .unwrap_or(1);
        let args = command.get(3 + count..).unwrap_or_default();
        let Some(token) = args.first() else {
            return;
        };
        let asked = Asked {
            script,
            token,
            args,
            now,
        };
        let mut inner = self.0.lock();
        let Inner { locks, oddities } = &mut *inner;
        let view = locks.entry(lock.clone()).or_default();
        if let Reply::Error(text) = reply {
            if text.contains(CARRIED_OUT) {
                let lasts = asked.millis(1).max(asked.millis(3)).max(view.longest);
                view.unclear = now + lasts + CLOCKS;
            }
            return;
        }
        view.reap(now);
        match (script, reply) {
            (
                "fair.acquire" | "semaphore.acquire" | "rw.read" | "rw.write" | "leader.campaign",
                Reply::Array(said),
            ) => {
                let granted = matches!(said.first(), Some(Reply::Int(1)));
                if now > view.unclear
                    && let Some(text) = view.objection(&asked, granted)
                {
                    let from = now.saturating_sub(view.longest + CLOCKS);
                    oddities.push((from, now, text));
                }
                view.acquire(&asked, granted);
            }
            (_, Reply::Int(1)) if script.contains("extend") => {
                let until = now + asked.millis(1);
                let of_token = view.holders.iter_mut().filter(|held| held.token == token);
                of_token.for_each(|held| held.until = held.until.max(until));
            }
            (_, Reply::Int(_)) if script.contains("release") || script == "leader.resign" => {
                view.holders.retain(|held| held.token != token);
                view.waiters.retain(|held| held.token != token);
            }
            _ => {}
        }
    }

    /// What was wrong, unless servers lost data or their clocks were set between these times.
    pub fn oddities(&self) -> Vec<(Duration, Duration, String)> {
        self.0.lock().oddities.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn ask(view: &LockView, at: u64, name: &str, key: &str, keys: usize, args: &[&str], said: i64) {
        let all = redstart::script::all();
        let Some(script) = all.iter().find(|script| script.name() == name) else {
            panic!("no script {name}");
        };
        let count = keys.to_string();
        let mut words = vec!["EVALSHA", script.digest(), &count];
        words.extend(vec![key; keys]);
        words.extend(args);
        let words: Vec<_> = words
            .iter()
            .map(|word| Bytes::copy_from_slice(word.as_bytes()))
            .collect();
        let reply = match args.len() {
            2 => Reply::Int(said),
            _ => Reply::Array(vec![Reply::Int(said), Reply::Int(0)]),
        };
        view.look(&words, &reply, ms(at));
    }

    fn fair(view: &LockView, at: u64, token: &str, waits: &str, said: i64) {
        let args = [token, "1000", waits, "500", "ch"];
        ask(view, at, "fair.acquire", "sim:fair:{a}", 4, &args, said);
    }

    #[test]
    fn a_grant_past_a_place_in_line_is_odd() {
        let view = LockView::default();
        fair(&view, 0, "a", "0", 1);
        fair(&view, 10, "b", "1", 0);
        ask(
            &view,
            20,
            "fair.release",
            "sim:fair:{a}",
            4,
            &["a", "ch"],
            1,
        );
        fair(&view, 30, "c", "0", 0);
        assert!(view.oddities().is_empty());
        fair(&view, 40, "c", "0", 1);
        assert_eq!(view.oddities().len(), 1);
    }

    #[test]
    fn a_place_that_is_renewed_as_it_ends_may_be_the_last_of_the_line() {
        let view = LockView::default();
        fair(&view, 0, "a", "0", 1);
        fair(&view, 500, "b", "1", 0);
        fair(&view, 900, "c", "1", 0);
        // The place of b ends now, and it asks again: before c, or after it.
        fair(&view, 1000, "b", "1", 0);
        fair(&view, 1100, "b", "1", 0);
        fair(&view, 1110, "c", "1", 1);
        assert!(view.oddities().is_empty());
    }

    #[test]
    fn a_refusal_is_odd_when_nobody_holds_it_or_waits() {
        let view = LockView::default();
        fair(&view, 0, "a", "0", 1);
        fair(&view, 10, "b", "1", 0);
        // Its place has ended, and so has the lock.
        fair(&view, 900, "c", "0", 0);
        assert!(view.oddities().is_empty());
        fair(&view, 1100, "c", "0", 0);
        assert_eq!(view.oddities().len(), 1);
    }

    #[test]
    fn readers_share_and_wait_for_writers() {
        let view = LockView::default();
        let rw = |at, name, token, waits, said| {
            let args = [token, "1000", waits, "500", "ch"];
            ask(&view, at, name, "sim:rw:{a}", 4, &args, said);
        };
        rw(0, "rw.read", "a", "0", 1);
        rw(10, "rw.read", "b", "0", 1);
        rw(20, "rw.write", "c", "1", 0);
        rw(30, "rw.read", "d", "0", 0);
        assert!(view.oddities().is_empty());
        rw(600, "rw.read", "d", "0", 0);
        assert_eq!(view.oddities().len(), 1);
    }

    #[test]
    fn a_semaphore_gives_out_all_of_its_permits() {
        let view = LockView::default();
        let acquire = |at, token, said| {
            let args = [token, "1000", "0", "500", "ch", "2"];
            ask(
                &view,
                at,
                "semaphore.acquire",
                "sim:semaphore:{a}",
                1,
                &args,
                said,
            );
        };
        acquire(0, "a", 1);
        acquire(1, "b", 1);
        acquire(2, "c", 0);
        assert!(view.oddities().is_empty());
        acquire(1100, "b", 1);
        acquire(1200, "c", 0);
        assert_eq!(view.oddities().len(), 1);
    }
}
