//! What else would do, what it takes, and where each stops being right.

use serde::Serialize;

use super::{cost::ServerCosts, need::Need, plan::Limits};
use crate::workload::BOARD_SHARDS;

/// Another way to the same answer.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Alternative {
    /// What it is for.
    pub instead_of: String,
    /// What it is.
    pub form: String,
    /// Bytes that it takes for the same need.
    pub bytes: f64,
    /// How many shards it needs, if it has shards.
    pub shards: Option<u64>,
    /// Where it is right, and where it stops being so.
    pub right: String,
}

/// The alternatives to what is wanted.
pub(super) fn alternatives(costs: &ServerCosts, need: &Need, limits: &Limits) -> Vec<Alternative> {
    match need.pattern.as_str() {
        "unique_visitors" => visitors(costs, need),
        "check_ins" => check_ins(costs, need),
        "activity" => activity(costs, need),
        "leaderboard" => boards(costs, need, limits),
        "token_bucket" | "sliding_window" => limiters(costs, need),
        _ => Vec::new(),
    }
}

fn alternative(need: &Need, form: &str, bytes: f64, right: String) -> Alternative {
    Alternative {
        instead_of: need.pattern.clone(),
        form: form.to_owned(),
        bytes,
        shards: None,
        right,
    }
}

/// HyperLogLog, set or bitmap.
fn visitors(costs: &ServerCosts, need: &Need) -> Vec<Alternative> {
    let (days, users) = (need.entities, need.parameter.unwrap_or(0.0));
    let mut found = Vec::new();
    if let (Some(set), Some(sketch)) =
        (costs.entity("visitor_set"), costs.entity("unique_visitors"))
    {
        // The number of visitors at which a set becomes larger than a sketch.
        let mut even = 1.0;
        while even < 1e6 && set.bytes(even) <= sketch.bytes(even).max(1.0) {
            even *= 1.1;
        }
        found.push(alternative(
            need,
            "a set of ids per day",
            days * set.bytes(users),
            format!("exact, and the members can be listed; smaller than a HyperLogLog only below about {even:.0} visitors"),
        ));
    }
    if let Some(bitmap) = costs.entity("activity") {
        let sketch = costs
            .entity("unique_visitors")
            .map_or(0.0, |cost| cost.bytes(users));
        let per_user = bitmap.bytes(1e6) / 1e6;
        found.push(alternative(
            need,
            "activity: a bitmap per day",
            days * bitmap.bytes(users),
            format!(
                "exact, if ids are dense numbers; smaller than a HyperLogLog below about {:.0} users",
                sketch / per_user.max(1e-9)
            ),
        ));
    }
    found
}

/// A bitmap per user, or one per day.
fn check_ins(costs: &ServerCosts, need: &Need) -> Vec<Alternative> {
    let days = need.parameter.unwrap_or(31.0);
    let Some(bitmap) = costs.entity("activity") else {
        return Vec::new();
    };
    vec![alternative(
        need,
        "activity: a bitmap per day over all users",
        days * bitmap.bytes(need.entities),
        "needs dense numeric ids; counts a day at once; a streak of one user reads one bit of every day; one hot key per day".to_owned(),
    )]
}

/// One bitmap per day, or what takes less for few users, for counts alone, or for the days of one user.
fn activity(costs: &ServerCosts, need: &Need) -> Vec<Alternative> {
    let (days, users) = (need.entities, need.parameter.unwrap_or(0.0));
    let mut found = Vec::new();
    if let Some(sketch) = costs.entity("unique_visitors") {
        let bytes = days * sketch.bytes(users);
        let right = "counts a day with a standard error of 0.81 % and never says who came; ids may be any text";
        found.push(alternative(
            need,
            "unique_visitors: a HyperLogLog per day",
            bytes,
            right.to_owned(),
        ));
    }
    if let Some(month) = costs.entity("check_ins") {
        let bytes = users * month.bytes(days);
        let right = "a streak of one user is one read, and no day is a hot key; a count of a day reads every user";
        found.push(alternative(
            need,
            "check_ins: a small bitmap per user",
            bytes,
            right.to_owned(),
        ));
    }
    if let (Some(set), Some(bitmap)) = (costs.entity("visitor_set"), costs.entity("activity")) {
        let of_all = bitmap.bytes(users) / set.bytes(users).max(1.0) * 100.0;
        let right = format!(
            "ids may be any text, and the members can be listed; smaller only if fewer than {of_all:.1} % of the users come in a day, shown for all"
        );
        found.push(alternative(
            need,
            "a set of ids per day",
            days * set.bytes(users),
            right,
        ));
    }
    found
}

/// One board or shards.
fn boards(costs: &ServerCosts, need: &Need, limits: &Limits) -> Vec<Alternative> {
    let (Some(one), Some(sharded)) = (
        costs.entity("leaderboard"),
        costs.entity("sharded_leaderboard"),
    ) else {
        return Vec::new();
    };
    let micros = 1e6 * limits.cpu;
    let cost = costs.pattern("leaderboard");
    let per_op = cost.map_or(0.0, |cost| cost.server_us_per_op);
    let ops = cost.map_or(0.0, |cost| micros / cost.server_us_per_op.max(1e-9));
    let members = limits.usable_memory() / one.bytes(0.0).max(1.0);
    let by_members = need.entities / members.max(1e-9);
    // Every rank costs each shard something, however many there are.
    let asked = need.ops * cost_of_being_asked(costs);
    let left = micros - asked;
    let by_ops = match need.ops > 0.0 {
        true if left <= 0.0 => None,
        true => Some(need.ops * per_op / left),
        false => Some(0.0),
    };
    // Each shard is on one node at most: as many as one board would need nodes.
    let shards = by_ops.map(|by_ops| by_ops.max(by_members).ceil().max(1.0) as u64);
    let needs = match shards {
        Some(shards) => format!("this needs {shards} shards; a rank then asks every shard"),
        None => format!(
            "no number of shards carries this: a rank asks every shard, and {:.0} operations per second with their ranks take all that one may spend; ask for fewer exact ranks, or cache them",
            micros * need.ops / asked
        ),
    };
    let mut board = alternative(
        need,
        "sharded_leaderboard",
        need.entities * sharded.bytes(0.0),
        format!(
            "one board ends at {ops:.0} operations per second or {members:.0} members, which one node carries: {needs}"
        ),
    );
    board.shards = shards;
    vec![board]
}

/// Microseconds that an operation costs a shard only because its ranks ask all of them: what the measured board of so many
/// shards costs more than one board, spread over its shards.
fn cost_of_being_asked(costs: &ServerCosts) -> f64 {
    let pair = costs
        .pattern("leaderboard")
        .zip(costs.pattern("sharded_leaderboard"));
    pair.map_or(0.0, |(one, sharded)| {
        let more = sharded.server_us_per_op - one.server_us_per_op;
        more.max(0.0) / f64::from(BOARD_SHARDS)
    })
}

/// The limiters by their memory.
fn limiters(costs: &ServerCosts, need: &Need) -> Vec<Alternative> {
    let mut found = Vec::new();
    for (kind, right) in [
        (
            "fixed_window",
            "one counter per subject; admits up to twice the limit around a boundary",
        ),
        (
            "sliding_counter",
            "two numbers per subject; the previous window is assumed to be even",
        ),
        (
            "sliding_window",
            "exact in every rolling window; grows with the calls in the window, shown for 20",
        ),
        ("token_bucket", "bursts and a steady rate; exact"),
    ] {
        if kind != need.pattern
            && let Some(cost) = costs.entity(kind)
        {
            let bytes = need.entities * cost.bytes(20.0);
            found.push(alternative(need, kind, bytes, right.to_owned()));
        }
    }
    found
}
