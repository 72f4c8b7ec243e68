//! Histories of calls, and whether an order of single steps explains them.
//!
//! A history is explained if every call can be given one moment between its sending and its answer, such that a
//! [`Model`] that takes the calls one after the other gives the same answers (linearizability; the search is that of Wing
//! and Gong, with the memory of visited states that Lowe added). A call whose outcome is in doubt may have its moment at
//! any time after it was sent, or never.

use std::{collections::HashSet, fmt, hash::Hash, time::Duration};

use parking_lot::Mutex;

/// What a server may do. States are small; time is no part of them: what happens on its own is a call too.
pub trait Model {
    /// What the server knows.
    type State: Clone + Eq + Hash;
    /// A call with its answer, if it had one.
    type Call: Clone + PartialEq + fmt::Debug;

    /// The state before the first call.
    fn initial(&self) -> Self::State;

    /// A state about which nothing is known: data was lost.
    fn unknown(&self) -> Self::State;

    /// The state after a call; `None` if a server in this state cannot have answered so.
    fn step(&self, state: &Self::State, call: &Self::Call) -> Option<Self::State>;

    /// The same call without its answer; `None` if it changes nothing.
    fn unanswered(&self, call: &Self::Call) -> Option<Self::Call>;
}

/// One call.
#[derive(Clone, Debug)]
pub struct Event<C> {
    /// What was asked, and the answer.
    pub call: C,
    /// When it was sent.
    pub from: Duration,
    /// When the answer came; `None` if it is in doubt whether and when the call happened.
    pub to: Option<Duration>,
}

/// How many calls were under way at the same time as another one that was answered.
pub fn overlapping<C>(events: &[Event<C>]) -> u64 {
    let mut spans: Vec<_> = events
        .iter()
        .filter_map(|event| Some((event.from, event.to?)))
        .collect();
    spans.sort();
    let mut last = Duration::ZERO;
    let mut count = 0;
    for (from, to) in spans {
        count += u64::from(from < last);
        last = last.max(to);
    }
    count
}

/// Calls as they are made.
pub struct History<C>(Mutex<Vec<Option<Event<C>>>>);

impl<C> Default for History<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Clone> History<C> {
    /// A call is sent; until its answer comes it is in doubt.
    pub fn begin(&self, call: C, from: Duration) -> usize {
        let mut events = self.0.lock();
        events.push(Some(Event {
            call,
            from,
            to: None,
        }));
        events.len() - 1
    }

    /// The answer came.
    pub fn end(&self, number: usize, call: C, to: Duration) {
        if let Some(event) = &mut self.0.lock()[number] {
            (event.call, event.to) = (call, Some(to));
        }
    }

    /// Another call than the one that began.
    pub fn replace(&self, number: usize, call: C) {
        if let Some(event) = &mut self.0.lock()[number] {
            event.call = call;
        }
    }

    /// It surely did not happen.
    pub fn cancel(&self, number: usize) {
        self.0.lock()[number] = None;
    }

    /// Something that is known at once, such as what happens on its own.
    pub fn add(&self, event: Event<C>) {
        self.0.lock().push(Some(event));
    }

    /// What is known by now.
    pub fn events(&self) -> Vec<Event<C>> {
        self.0.lock().iter().flatten().cloned().collect()
    }
}

/// How many states are visited before a history counts as undecided.
const PATIENCE: usize = 20_000;

/// What a history shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explained {
    /// There is an order.
    Yes,
    /// There is none; the longest beginning that could be explained ends before this call.
    No(String),
    /// There are too many orders to try.
    Undecided,
}

/// Whether an order of single steps explains the calls. Data that servers took in one of the `losses` may be gone: the
/// history is explained before and after each on its own.
pub fn explain<M: Model>(
    model: &M,
    events: &[Event<M::Call>],
    losses: &[(Duration, Duration)],
) -> Explained {
    let mut losses = losses.to_vec();
    losses.sort_unstable();
    let mut undecided = false;
    let mut start = None;
    let mut at = 0;
    loop {
        // Losses that overlap are one.
        let next = losses.get(at).copied();
        let end = next.map(|(begin, _)| begin);
        if start.is_none_or(|start| end.is_none_or(|end| start < end)) {
            let part = part_of(model, events, start, end);
            let state = match start {
                None => model.initial(),
                Some(_) => model.unknown(),
            };
            match search(model, state, &part) {
                Explained::Yes => {}
                Explained::No(call) => return Explained::No(call),
                Explained::Undecided => undecided = true,
            }
        }
        let Some((_, over)) = next else { break };
        start = start.max(Some(over));
        at += 1;
    }
    match undecided {
        true => Explained::Undecided,
        false => Explained::Yes,
    }
}

/// The calls between two losses. Those that were under way during one may have happened here, or not.
fn part_of<M: Model>(
    model: &M,
    events: &[Event<M::Call>],
    start: Option<Duration>,
    end: Option<Duration>,
) -> Vec<Event<M::Call>> {
    let mut part: Vec<_> = events
        .iter()
        .filter_map(|event| {
            let over = event.to.is_some_and(|to| start.is_some_and(|s| to < s));
            let later = end.is_some_and(|end| event.from > end);
            if over || later {
                return None;
            }
            // At the very time of a loss, nobody can tell which came first.
            let inside = start.is_none_or(|start| event.from > start)
                && event.to.is_some_and(|to| end.is_none_or(|end| to < end));
            if inside {
                return Some(event.clone());
            }
            Some(Event {
                call: match event.to {
                    Some(_) => model.unanswered(&event.call)?,
                    None => event.call.clone(),
                },
                from: start.map_or(event.from, |start| event.from.max(start)),
                to: None,
            })
        })
        .collect();
    part.sort_by_key(|event| (event.from, event.to));
    part
}

/// Which calls have had their moment.
type Done = Vec<u64>;

fn is_done(done: &Done, number: usize) -> bool {
    done[number / 64] & (1 << (number % 64)) != 0
}

fn search<M: Model>(model: &M, state: M::State, events: &[Event<M::Call>]) -> Explained {
    let begin: (Done, M::State) = (vec![0; events.len().div_ceil(64)], state);
    let mut visited = HashSet::from([begin.clone()]);
    let mut stack = vec![begin];
    let mut furthest: Option<(Duration, usize)> = None;
    while let Some((done, state)) = stack.pop() {
        let pending = |number: &usize| !is_done(&done, *number);
        let answered = (0..events.len())
            .filter(pending)
            .filter_map(|number| Some((events[number].to?, number)));
        // Whoever was answered first must have its moment before everything that was sent after that.
        let Some((limit, first)) = answered.min() else {
            return Explained::Yes;
        };
        furthest = furthest.max(Some((limit, first)));
        if visited.len() > PATIENCE {
            return Explained::Undecided;
        }
        for number in (0..events.len()).rev().filter(pending) {
            let event = &events[number];
            if event.from > limit {
                continue;
            }
            // Of calls in doubt that are the same, the earliest stands for all.
            let doubled = event.to.is_none()
                && (0..number).any(|other| {
                    let other_event = &events[other];
                    pending(&other) && other_event.to.is_none() && other_event.call == event.call
                });
            if doubled {
                continue;
            }
            let Some(next) = model.step(&state, &event.call) else {
                continue;
            };
            // A call in doubt that changes nothing leads nowhere.
            if event.to.is_none() && next == state {
                continue;
            }
            let mut after = done.clone();
            after[number / 64] |= 1 << (number % 64);
            let node = (after, next);
            if visited.insert(node.clone()) {
                stack.push(node);
            }
        }
    }
    let shown = furthest.map(|(_, number)| &events[number]);
    Explained::No(shown.map_or_else(String::new, |event| format!("{event:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter that can be lost.
    struct Counter;

    impl Model for Counter {
        type State = Option<u64>;
        /// The number that came back.
        type Call = Option<u64>;

        fn initial(&self) -> Option<u64> {
            Some(0)
        }

        fn unknown(&self) -> Option<u64> {
            None
        }

        fn step(&self, state: &Option<u64>, call: &Option<u64>) -> Option<Option<u64>> {
            match (state, call) {
                (Some(count), Some(answer)) => (count + 1 == *answer).then_some(Some(*answer)),
                (Some(count), None) => Some(Some(count + 1)),
                (None, answer) => Some(*answer),
            }
        }

        fn unanswered(&self, _: &Option<u64>) -> Option<Option<u64>> {
            Some(None)
        }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn call(answer: u64, from: u64, to: u64) -> Event<Option<u64>> {
        Event {
            call: Some(answer),
            from: ms(from),
            to: Some(ms(to)),
        }
    }

    fn doubt(from: u64) -> Event<Option<u64>> {
        Event {
            call: None,
            from: ms(from),
            to: None,
        }
    }

    fn is_explained(events: &[Event<Option<u64>>]) -> bool {
        explain(&Counter, events, &[]) == Explained::Yes
    }

    #[test]
    fn calls_at_the_same_time_may_have_happened_in_any_order() {
        assert!(is_explained(&[call(2, 0, 10), call(1, 0, 10)]));
        assert!(is_explained(&[
            call(1, 0, 10),
            call(2, 5, 15),
            call(3, 12, 20)
        ]));
    }

    #[test]
    fn two_callers_with_one_number_are_not_explained() {
        assert!(!is_explained(&[call(1, 0, 10), call(1, 0, 10)]));
    }

    #[test]
    fn a_number_that_was_given_before_it_was_asked_for_is_not_explained() {
        assert!(!is_explained(&[call(2, 0, 10), call(1, 11, 20)]));
    }

    #[test]
    fn a_gap_is_explained_by_a_call_in_doubt_that_was_sent_before() {
        assert!(!is_explained(&[call(1, 0, 10), call(3, 11, 20)]));
        assert!(is_explained(&[call(1, 0, 10), doubt(1), call(3, 11, 20)]));
        assert!(!is_explained(&[call(1, 0, 10), doubt(21), call(3, 11, 20)]));
        assert!(is_explained(&[call(1, 0, 10), doubt(1), call(2, 11, 20)]));
    }

    #[test]
    fn a_loss_separates_what_was_before_from_what_came_after() {
        let events = [
            call(1, 0, 10),
            call(2, 20, 30),
            call(1, 50, 60),
            call(2, 70, 80),
        ];
        let lost = [(ms(15), ms(40))];
        assert!(matches!(explain(&Counter, &events, &[]), Explained::No(_)));
        assert_eq!(explain(&Counter, &events, &lost), Explained::Yes);
        // Also after a loss two callers do not get the same number.
        let twice = [call(1, 0, 10), call(1, 50, 60), call(1, 70, 80)];
        assert!(matches!(explain(&Counter, &twice, &lost), Explained::No(_)));
    }

    #[test]
    fn what_ended_or_began_at_the_time_of_a_loss_may_be_on_either_side_of_it() {
        let lost = [(ms(20), ms(20))];
        let before = [call(1, 0, 10), call(7, 15, 20), call(8, 30, 40)];
        assert_eq!(explain(&Counter, &before, &lost), Explained::Yes);
        let after = [call(1, 0, 10), call(2, 20, 25), call(7, 30, 40)];
        assert_eq!(explain(&Counter, &after, &lost), Explained::Yes);
        let gone = [call(1, 0, 10), call(7, 15, 19), call(8, 30, 40)];
        assert!(matches!(explain(&Counter, &gone, &lost), Explained::No(_)));
    }

    #[test]
    fn a_loss_inside_of_a_loss_does_not_widen_what_is_explained() {
        let lost = [(ms(15), ms(90)), (ms(20), ms(30))];
        let events = [
            call(1, 0, 10),
            call(7, 40, 50),
            call(7, 60, 70),
            call(8, 91, 92),
            call(8, 93, 94),
        ];
        assert!(matches!(
            explain(&Counter, &events, &lost),
            Explained::No(_)
        ));
        assert_eq!(explain(&Counter, &events[..4], &lost), Explained::Yes);
    }
}
