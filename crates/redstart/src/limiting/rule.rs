//! What the front needs to know of a kind of limiter.

use std::{fmt, time::Duration};

use redis::Value;

use super::limiter::Kind;
use crate::{
    error::{Error, Result},
    script::Script,
};

/// One limit, in the terms of its scripts. Costs are at least 1 and at most the capacity.
pub(super) trait Rule: Send + Sync + fmt::Debug {
    fn kind(&self) -> Kind;

    /// The most that one request can ever cost.
    fn capacity(&self) -> u64;

    /// The part of the subject under which the state is kept, where it is not the subject's own key.
    fn part(&self) -> Option<String> {
        None
    }

    /// The script that asks this limit alone.
    fn check(&self) -> &'static Script;

    /// The script that gives back; `None` if this limit keeps no account for that.
    fn refund(&self) -> Option<&'static Script>;

    /// The rule's name in the script that asks several.
    fn name(&self) -> &'static str;

    /// Whether what is admitted needs a name of its own.
    fn names_requests(&self) -> bool {
        false
    }

    /// The rule's arguments. The fourth is the request's name, if the rule names requests.
    fn args(&self, cost: u64) -> [u64; 3];

    /// The arguments of a refund, from the receipt of the grant.
    fn refund_args(&self, cost: u64, receipt: &str) -> Vec<String>;

    /// The duration of so many ticks of waiting, rounded up to the next tick.
    fn wait(&self, ticks: u64) -> Duration;

    /// How many units are free in this state.
    fn remaining(&self, state: u64) -> u64;

    /// How long until everything is free again.
    fn reset(&self, state: u64, reset: u64) -> Duration;

    /// The state in which a request of this cost is told to wait so long, for scripts that say only that.
    fn state_refused(&self, cost: u64, wait: u64) -> u64 {
        let _ = cost;
        wait
    }

    /// The units that a refund script's answer stands for.
    fn credited(&self, answer: u64) -> u64 {
        answer
    }
}

/// What a script said of one limit.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// In ticks; zero if the request was, or would be, admitted.
    pub(super) wait: u64,
    pub(super) state: u64,
    pub(super) reset: u64,
    pub(super) receipt: String,
}

impl Answer {
    /// Reads `n` (state, or minus the wait) or `{wait, state[, reset[, receipt]]}`.
    pub(super) fn read(value: Value, rule: &dyn Rule, cost: u64) -> Result<Self> {
        let wrong = || Error::codec("the limiter's script answered in an unexpected shape");
        let number = |value: &Value| match value {
            Value::Int(n) => u64::try_from(*n).map_err(|_| wrong()),
            _ => Err(wrong()),
        };
        match value {
            Value::Int(n) if n < 0 => Ok(Self {
                wait: n.unsigned_abs(),
                state: rule.state_refused(cost, n.unsigned_abs()),
                reset: 0,
                receipt: String::new(),
            }),
            Value::Int(n) => Ok(Self {
                wait: 0,
                state: n.unsigned_abs(),
                reset: 0,
                receipt: String::new(),
            }),
            Value::Array(items) => Ok(Self {
                wait: number(items.first().ok_or_else(wrong)?)?,
                state: number(items.get(1).ok_or_else(wrong)?)?,
                reset: items.get(2).map(number).transpose()?.unwrap_or(0),
                receipt: match items.get(3) {
                    Some(value) => redis::from_redis_value_ref(value)?,
                    None => String::new(),
                },
            }),
            _ => Err(wrong()),
        }
    }
}
