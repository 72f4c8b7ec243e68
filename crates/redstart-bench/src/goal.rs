//! What we want of a row, where that is more than what must hold: a floor that is not held fails the run, a goal that is
//! missed is said in the table.

/// The start of a row's name, a part of its peer's, and the ratio that we want.
const GOALS: &[(&str, &str, f64)] = &[
    ("add 1,000", "", 1.2),
    ("contains 1,000", "", 1.2),
    ("get_or_load_many", "MGET", 0.95),
    ("submit and rank", "", 1.1),
    ("session load", "", 1.0),
    ("write-behind put", "our store", 0.7),
    ("hit in the store", "our store", 0.95),
    ("mutex without fencing", "our store", 0.95),
    ("mutex with fencing", "our store", 0.8),
    ("works again", "", 1.0),
    ("token bucket", "GCRA", 1.3),
    ("drain", "three consumers", 0.9),
    ("drain 4k jobs", "bullmq-official", 5.0),
    ("enqueue to start, p99", "", 0.67),
    ("LRANGE", "", 1.0),
    ("SET of 4 KiB over TCP", "", 1.0),
    ("GET of 4 KiB over TCP", "", 1.0),
    ("check over", "", 0.5),
];

pub(crate) fn of(name: &str, peer: &str) -> Option<f64> {
    let goal = GOALS
        .iter()
        .find(|(start, part, _)| name.starts_with(start) && peer.contains(part));
    goal.map(|(_, _, goal)| *goal)
}
