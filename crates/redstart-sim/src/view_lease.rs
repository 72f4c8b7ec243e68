//! Who builds a sorted view, as the servers gave it out: one client at a time.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use redstart_engine::Reply;

/// Servers round to milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// The leases of the views of a world.
#[derive(Default)]
pub struct ViewLeases(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// By the key of the lease.
    held: BTreeMap<Bytes, Held>,
    oddities: Vec<(Duration, Duration, String)>,
}

struct Held {
    token: Bytes,
    since: Duration,
    until: Duration,
}

impl ViewLeases {
    /// A server carried a command out.
    pub fn look(&self, command: &[Bytes], reply: &Reply, now: Duration) {
        let [name, _, keys, rest @ ..] = command else {
            return;
        };
        let is_script = name.len() >= 4 && name[..4].eq_ignore_ascii_case(b"EVAL");
        let count = match &keys[..] {
            b"2" => 2,
            b"3" => 3,
            b"4" => 4,
            _ => return,
        };
        // The mark of a built view, and then its lease, are the last keys of all scripts.
        if !is_script || rest.len() <= count || !rest[count - 2].ends_with(b":built") {
            return;
        }
        let (lease, args) = (&rest[count - 1], &rest[count..]);
        let mut inner = self.0.lock();
        match (count, reply) {
            (2, Reply::Int(0)) => {
                let lasts = args.get(1).and_then(|word| std::str::from_utf8(word).ok());
                let lasts = lasts.and_then(|word| word.parse().ok()).unwrap_or(0);
                let grant = Held {
                    token: args[0].clone(),
                    since: now,
                    until: now + Duration::from_millis(lasts),
                };
                let before = inner.held.insert(lease.clone(), grant);
                if let Some(before) = before
                    && before.token != args[0]
                    && now + ROUNDING < before.until
                {
                    let text = "two clients build a view at the same time".to_owned();
                    inner.oddities.push((before.since, now, text));
                }
            }
            (2, _) => {}
            // The lease was lost before.
            (_, Reply::Int(-1)) => {}
            // It was built or dropped, or nobody knows.
            _ => drop(inner.held.remove(lease)),
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

    fn ask(view: &ViewLeases, at: u64, words: &[&str], said: i64) {
        let words = words
            .iter()
            .map(|word| Bytes::copy_from_slice(word.as_bytes()));
        let words: Vec<_> = words.collect();
        view.look(&words, &Reply::Int(said), Duration::from_millis(at));
    }

    fn lease(view: &ViewLeases, at: u64, token: &str) {
        ask(
            view,
            at,
            &["EVALSHA", "", "2", "v:built", "v:lease", token, "100"],
            0,
        );
    }

    fn built(view: &ViewLeases, at: u64, token: &str, said: i64) {
        let words = [
            "EVALSHA", "", "4", "s", "v", "v:built", "v:lease", token, "9",
        ];
        ask(view, at, &words, said);
    }

    #[test]
    fn a_second_lease_is_odd_before_the_first_one_has_ended() {
        let view = ViewLeases::default();
        lease(&view, 0, "a");
        lease(&view, 10, "a");
        built(&view, 20, "a", 3);
        lease(&view, 30, "b");
        lease(&view, 130, "c");
        built(&view, 135, "b", -1);
        assert!(view.oddities().is_empty());
        lease(&view, 140, "d");
        assert_eq!(view.oddities().len(), 1);
    }
}
