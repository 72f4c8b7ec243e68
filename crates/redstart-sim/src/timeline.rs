//! What happened in a world, for a person.

use std::fmt::Write as _;

use crate::{Outcome, Plan};

/// What every connection begins with.
const GREETINGS: &[&str] = &[
    "CLIENT SETINFO",
    "INFO server",
    "COMMAND INFO",
    "HELLO",
    "CLUSTER SLOTS",
    "PING",
];

/// The plan, the events in order, and what was broken. Lines are cut to `width`.
pub fn tell(plan: &Plan, outcome: &Outcome, width: usize) -> String {
    let mut text = plan.to_string();
    let mut skip = false;
    for line in &outcome.lines {
        // A greeting and its answer.
        if std::mem::take(&mut skip) && line.what.starts_with("answers") {
            continue;
        }
        if GREETINGS
            .iter()
            .any(|greeting| line.what.contains(greeting))
        {
            skip = true;
            continue;
        }
        let whole = format!(
            "{:>9.3} s  {:<9} {}",
            line.at.as_secs_f64(),
            line.who,
            line.what
        );
        match whole.char_indices().nth(width.saturating_sub(1)) {
            Some((at, _)) => drop(writeln!(text, "{}…", &whole[..at])),
            None => drop(writeln!(text, "{whole}")),
        }
    }
    for breach in &outcome.breaches {
        let _ = writeln!(text, "broken: {breach}");
    }
    text
}
