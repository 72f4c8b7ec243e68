//! What the limiter needs to know of an algorithm.

use std::{fmt, time::Duration};

use redis::Value;

use crate::{
    error::{Error, Result},
    script::Script,
};

/// One limit, in the terms of its scripts. Costs are at least 1 and at most the capacity.
pub(super) trait Rule: Send + Sync + fmt::Debug {
    /// The most that one request can ever cost.
    fn capacity(&self) -> u64;

    /// The script that asks this limit alone.
    fn check_script(&self) -> &'static Script;

    /// The script that gives back; `None` if this limit keeps no account for that.
    fn refund_script(&self) -> Option<&'static Script>;

    /// The rule's name in the script that asks several.
    fn name(&self) -> &'static str;

    /// Whether each request needs a unique id.
    fn needs_id(&self) -> bool {
        false
    }

    /// The rule's arguments. A fourth is the request's id, if the rule needs one.
    fn args(&self, cost: u64) -> [u64; 3];

    /// The arguments of a refund, from the receipt of the grant.
    fn refund_args(&self, cost: u64, receipt: &str) -> Vec<String>;

    /// The duration of a wait that the script gave, rounded up to the next tick.
    fn wait(&self, ticks: u64) -> Duration;

    /// How many units are free in this state.
    fn remaining(&self, state: u64) -> u64;

    /// How long until everything is free again.
    fn reset(&self, state: u64, reset: u64) -> Duration;

    /// The state in which a request of this cost has this wait, for scripts that return only the wait.
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
        let wrong = || Error::codec("unexpected reply from a limiter's script");
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
