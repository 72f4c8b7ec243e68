//! Things that are in one of at most 64 states, for histories: after a loss they may be in any of them.

use std::fmt;

use crate::history::Model;

/// A thing with few states, which are numbered from 0.
pub trait Small {
    /// A call with its answer, if it had one.
    type Call: Clone + PartialEq + fmt::Debug;

    /// How many states there are, at most 64. The first one is that before the first call.
    fn states(&self) -> u32;

    /// The state after a call; `None` if a server in this state cannot have answered so.
    fn after(&self, state: u32, call: &Self::Call) -> Option<u32>;

    /// The same call without its answer; `None` if it changes nothing.
    fn unanswered(&self, call: &Self::Call) -> Option<Self::Call>;
}

/// A model of a small thing: the set of states that it may be in, one bit for each. What answers rule out is not in it.
pub struct Possible<S>(pub S);

impl<S: Small> Model for Possible<S> {
    type State = u64;
    type Call = S::Call;

    fn initial(&self) -> u64 {
        1
    }

    fn unknown(&self) -> u64 {
        u64::MAX >> (64 - self.0.states())
    }

    fn step(&self, state: &u64, call: &S::Call) -> Option<u64> {
        let mut after = 0;
        for one in (0..self.0.states()).filter(|one| state & (1 << one) != 0) {
            if let Some(next) = self.0.after(one, call) {
                after |= 1 << next;
            }
        }
        (after != 0).then_some(after)
    }

    fn unanswered(&self, call: &S::Call) -> Option<S::Call> {
        self.0.unanswered(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two switches, one bit for each.
    struct Switches;

    impl Small for Switches {
        /// Which one is turned on, and whether it was.
        type Call = (u32, Option<bool>);

        fn states(&self) -> u32 {
            4
        }

        fn after(&self, state: u32, (bit, answer): &(u32, Option<bool>)) -> Option<u32> {
            let was = state & (1 << bit) != 0;
            answer
                .is_none_or(|answer| answer == was)
                .then_some(state | 1 << bit)
        }

        fn unanswered(&self, (bit, _): &(u32, Option<bool>)) -> Option<(u32, Option<bool>)> {
            Some((*bit, None))
        }
    }

    #[test]
    fn what_answers_rule_out_stays_so() {
        let model = Possible(Switches);
        let lost = model.unknown();
        assert_eq!(lost, 0b1111);
        let known = model.step(&lost, &(0, Some(true))).unwrap();
        assert_eq!(known, 0b1010);
        assert_eq!(model.step(&known, &(0, Some(false))), None);
        assert_eq!(model.step(&known, &(1, Some(false))), Some(0b1000));
    }
}
