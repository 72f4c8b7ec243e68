//! The places of a breaker's probes, as the servers gave them out.
//!
//! A breaker that cannot reach its store has probes of its own, and nothing that a caller sees tells them from those of
//! the store. What the servers answered does. So the judge of the breakers knows of every place who has it and until when,
//! also in worlds in which some instances break alone.

use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use redstart_engine::Reply;

use crate::network::Peer;

/// Servers and timers round to milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);
/// By how much longer a lease lasts at most if the data comes under another server's clock.
const CLOCKS: Duration = Duration::from_secs(5);
/// In the error of an engine that did something and could not log it.
const CARRIED_OUT: &str = "the command was carried out";

/// The places of one circuit.
#[derive(Default)]
pub struct ProbePlaces(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    places: Vec<Place>,
    oddities: Vec<Oddity>,
}

/// A place that was given to a probe.
struct Place {
    client: Peer,
    token: Bytes,
    generation: i64,
    /// When it was given, or given again to the same request.
    at: Duration,
    lease: Duration,
    /// The call to which it belongs was seen.
    claimed: bool,
    /// The answer said that the log did not take what was done: the place may be taken or free.
    in_doubt: bool,
}

impl Place {
    /// Whether its lease surely runs.
    fn runs(&self, now: Duration) -> bool {
        !self.in_doubt && now + ROUNDING < self.at + self.lease
    }

    /// Whether its lease may run.
    fn may_run(&self, now: Duration) -> bool {
        now <= self.at + self.lease + ROUNDING
    }
}

/// Something that is wrong, unless servers lost data or their clocks were set between these times.
#[derive(Clone, Debug)]
pub struct Oddity {
    /// From then on it matters what servers lost.
    pub from: Duration,
    /// When it happened.
    pub at: Duration,
    /// What is wrong.
    pub text: String,
}

/// A request of a breaker, as its scripts take it: four keys, four arguments that all have, then these.
enum Asked<'a> {
    /// A probe wants a place for so many microseconds.
    Place(&'a Bytes, &'a Bytes),
    /// A probe has ended.
    Ended(&'a Bytes),
}

fn asked(command: &[Bytes]) -> Option<(Asked<'_>, usize)> {
    let [
        name,
        _,
        keys,
        _,
        _,
        probes,
        _,
        _,
        _,
        _,
        most,
        token,
        rest @ ..,
    ] = command
    else {
        return None;
    };
    let is_script = name.len() >= 4 && name[..4].eq_ignore_ascii_case(b"EVAL");
    if !is_script || keys != "4" || !probes.ends_with(b":probes") {
        return None;
    }
    let asked = match rest {
        [lease] => Asked::Place(token, lease),
        [_, letter] if matches!(&letter[..], b"o" | b"f" | b"a") => Asked::Ended(token),
        _ => return None,
    };
    Some((asked, number(most)? as usize))
}

fn number(word: &Bytes) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

impl ProbePlaces {
    /// A server carried a command out.
    pub fn look(&self, client: Peer, command: &[Bytes], reply: &Reply, now: Duration) {
        let Some((asked, most)) = asked(command) else {
            return;
        };
        let mut inner = self.0.lock();
        let said = match reply {
            Reply::Array(said) => said,
            Reply::Error(text) if text.contains(CARRIED_OUT) => {
                return inner.perhaps(client, &asked, now);
            }
            _ => return,
        };
        match (asked, &said[..]) {
            (Asked::Ended(token), _) => inner.places.retain(|place| place.token != token),
            (
                Asked::Place(token, lease),
                [
                    Reply::Bulk(state),
                    Reply::Int(generation),
                    _,
                    Reply::Int(admitted),
                    ..,
                ],
            ) => {
                let lease = Duration::from_micros(number(lease).unwrap_or_default());
                if *admitted == 1 {
                    inner.given(client, token, *generation, lease, most, now);
                } else if state == "h" {
                    inner.refused(*generation, lease, most, now);
                }
            }
            _ => {}
        }
    }

    /// When the place was given out that a client heard of by now and asked for then; `None` if the servers gave it none.
    pub fn claim(&self, client: usize, asked: Duration) -> Option<Duration> {
        let mut inner = self.0.lock();
        let mut places = inner.places.iter_mut();
        let found = places.find(|place| {
            place.client == Peer::Client(client)
                && place.at >= asked
                && !place.claimed
                && !place.in_doubt
        })?;
        found.claimed = true;
        Some(found.at)
    }

    /// What was wrong.
    pub fn oddities(&self) -> Vec<Oddity> {
        self.0.lock().oddities.clone()
    }
}

impl Inner {
    fn given(
        &mut self,
        client: Peer,
        token: &Bytes,
        generation: i64,
        lease: Duration,
        most: usize,
        now: Duration,
    ) {
        self.places.retain(|place| place.may_run(now));
        let claimed = self.places.iter().find(|place| place.token == token);
        let claimed = claimed.is_some_and(|place| place.claimed);
        self.places.retain(|place| place.token != token);
        let others = self.places.iter().filter(|place| place.runs(now));
        let since = others.clone().map(|place| place.at).min();
        let count = others.count() + 1;
        if count > most {
            self.oddities.push(Oddity {
                from: since.unwrap_or(now),
                at: now,
                text: format!("the store admits {count} probes, and {most} is the most"),
            });
        }
        self.places.push(Place {
            client,
            token: token.clone(),
            generation,
            at: now,
            lease,
            claimed,
            in_doubt: false,
        });
    }

    /// What was asked for was carried out, and the caller heard an error.
    fn perhaps(&mut self, client: Peer, asked: &Asked<'_>, now: Duration) {
        match *asked {
            Asked::Ended(token) => {
                let of_token = self.places.iter_mut().filter(|place| place.token == token);
                of_token.for_each(|place| place.in_doubt = true);
            }
            Asked::Place(token, lease) => self.places.push(Place {
                client,
                token: token.clone(),
                generation: 0,
                at: now,
                lease: Duration::from_micros(number(lease).unwrap_or_default()),
                claimed: false,
                in_doubt: true,
            }),
        }
    }

    fn refused(&mut self, generation: i64, lease: Duration, most: usize, now: Duration) {
        let taken = self
            .places
            .iter()
            .filter(|place| {
                place.may_run(now) && (place.generation == generation || place.in_doubt)
            })
            .count();
        if taken < most {
            self.oddities.push(Oddity {
                from: now.saturating_sub(lease + CLOCKS),
                at: now,
                text: format!("a probe gets no place, although {taken} of {most} are taken"),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn command(rest: &[&str]) -> Vec<Bytes> {
        let words = [
            "EVALSHA", "x", "4", "c", "w", "c:probes", "t", "ch", "1", "1", "1",
        ];
        let words = words.iter().chain(rest);
        words
            .map(|word| Bytes::copy_from_slice(word.as_bytes()))
            .collect()
    }

    fn refuse_to_log(places: &ProbePlaces, at: u64, rest: &[&str]) {
        let said =
            Reply::Error("MISCONF no room; the command was carried out, and is not kept".into());
        places.look(Peer::Client(0), &command(rest), &said, ms(at));
    }

    fn send(places: &ProbePlaces, at: u64, rest: &[&str], admitted: i64) {
        let said = vec![
            Reply::bulk("h"),
            Reply::Int(7),
            Reply::Int(0),
            Reply::Int(admitted),
            Reply::Int(0),
        ];
        places.look(Peer::Client(0), &command(rest), &Reply::Array(said), ms(at));
    }

    fn oddities(places: &ProbePlaces) -> usize {
        places.oddities().len()
    }

    #[test]
    fn a_second_place_is_odd_until_the_first_has_ended() {
        let places = ProbePlaces::default();
        send(&places, 0, &["a", "1000000"], 1);
        // The same request again.
        send(&places, 10, &["a", "1000000"], 1);
        assert_eq!(oddities(&places), 0);
        send(&places, 500, &["b", "1000000"], 1);
        assert_eq!(oddities(&places), 1);

        let places = ProbePlaces::default();
        send(&places, 0, &["a", "1000000"], 1);
        send(&places, 100, &["a", "7", "o"], 0);
        send(&places, 101, &["b", "1000000"], 1);
        // Its lease is over, although nothing was heard of it.
        send(&places, 1200, &["c", "1000000"], 1);
        assert_eq!(oddities(&places), 0);
    }

    #[test]
    fn a_refusal_is_odd_while_a_place_is_free() {
        let places = ProbePlaces::default();
        send(&places, 0, &["a", "1000000"], 1);
        send(&places, 900, &["b", "1000000"], 0);
        assert_eq!(oddities(&places), 0);
        send(&places, 1100, &["b", "1000000"], 0);
        assert_eq!(oddities(&places), 1);
    }

    #[test]
    fn a_place_that_the_log_did_not_take_is_neither_surely_taken_nor_surely_free() {
        let places = ProbePlaces::default();
        refuse_to_log(&places, 0, &["a", "1000000"]);
        send(&places, 100, &["b", "1000000"], 0);
        send(&places, 200, &["c", "1000000"], 1);
        assert_eq!(oddities(&places), 0);
        refuse_to_log(&places, 300, &["c", "7", "o"]);
        send(&places, 400, &["d", "1000000"], 0);
        send(&places, 500, &["e", "1000000"], 1);
        assert_eq!(oddities(&places), 0);
        send(&places, 600, &["f", "1000000"], 1);
        assert_eq!(oddities(&places), 1);
    }

    #[test]
    fn a_place_is_claimed_once() {
        let places = ProbePlaces::default();
        send(&places, 50, &["a", "1000000"], 1);
        assert_eq!(places.claim(1, ms(0)), None);
        assert_eq!(places.claim(0, ms(60)), None);
        assert_eq!(places.claim(0, ms(40)), Some(ms(50)));
        assert_eq!(places.claim(0, ms(40)), None);
    }
}
