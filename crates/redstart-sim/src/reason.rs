//! Whether something that went wrong in a world can be the reason of an error.

use std::time::Duration;

use crate::{plan::Plan, trouble::What};

/// What the library says if a server refused a command for good, or answered what nobody understands. No fault makes a
/// server do that: a request was wrong, or went to a server that does not have the command.
const NEVER: &[&str] = &[
    "the server refused the command",
    "the server refused the credentials",
    "invalid store configuration",
    "unexpected shape",
    "invalid integer in reply",
];

/// Codes of errors that servers answer for a while, as the client names them, and as they are injected.
const CODES: &[(&str, &str)] = &[
    ("BusyLoading", "LOADING"),
    ("\"BUSY\"", "BUSY "),
    ("ReadOnly", "READONLY"),
    ("\"OOM\"", "OOM"),
    ("\"MISCONF\"", "MISCONF"),
    ("MasterDown", "MASTERDOWN"),
    ("ClusterDown", "CLUSTERDOWN"),
    ("TryAgain", "TRYAGAIN"),
    ("Moved", "MOVED"),
    ("Ask:", "ASK"),
];

/// What the library says if it could not reach a server in time.
const DOWN: &[&str] = &[
    "did not answer in time",
    "cannot be reached",
    "in time",
    "servers answered",
];

/// Whether something of a kind went wrong.
pub type Met<'a> = &'a dyn Fn(&dyn Fn(What) -> bool) -> bool;

/// Whether an error with this text has a reason. `met` says whether something of a kind went wrong for its caller, from shortly
/// before the call on. Servers may have `lost` data before.
pub fn explains(plan: &Plan, text: &str, lost: bool, met: Met<'_>) -> bool {
    // Of several commands, each may have another reason.
    let mut codes = CODES.iter().filter(|(name, _)| text.contains(name));
    if codes.clone().any(|(_, code)| !is_answered(code, met)) {
        return false;
    }
    if text.contains("unknown command") {
        return false;
    }
    if codes.next().is_some() || lost && text.contains("\"NOGROUP\"") {
        return true;
    }
    if NEVER.iter().any(|words| text.contains(words)) {
        return false;
    }
    // A script of a queue is many windows long, and several of them share a connection.
    let narrow =
        plan.weather.window <= 1024 && (plan.weather.split >= 500 || plan.weather.delay.1 >= 3);
    if narrow && plan.deadline <= Duration::from_millis(300) {
        return true;
    }
    !DOWN.iter().any(|words| text.contains(words)) || met(&|what| what != What::Clock)
}

/// Whether a server may have answered with this code.
fn is_answered(code: &str, met: Met<'_>) -> bool {
    met(&|what| match what {
        What::Answer(error) => error.starts_with(code),
        What::Master => code == "READONLY",
        What::Slots => matches!(code, "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK"),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    fn plan() -> Plan {
        let mut plan = Plan::new(1, Pattern::Store);
        (plan.weather.delay, plan.weather.slow) = ((1, 3), (0, 0));
        (plan.weather.window, plan.weather.split) = (64 * 1024, 500);
        plan.deadline = Duration::from_millis(150);
        plan
    }

    fn explained(plan: &Plan, text: &str, troubles: &[What]) -> bool {
        explains(plan, text, false, &|is| {
            troubles.iter().any(|what| is(*what))
        })
    }

    #[test]
    fn only_what_went_wrong_explains_an_error() {
        let (down, full, moved) = (
            "the store did not answer in time",
            "the store cannot serve this now: \"OOM\": command not allowed",
            "the store cannot serve this now: Moved: 12 db0:6379",
        );
        let plan = plan();
        for text in [down, full, moved] {
            assert!(!explained(&plan, text, &[]), "{text}");
            assert!(!explained(&plan, text, &[What::Clock]), "{text}");
        }
        assert!(explained(&plan, down, &[What::Line]));
        assert!(!explained(&plan, full, &[What::Line]));
        assert!(!explained(&plan, moved, &[What::Line]));
        assert!(explained(&plan, full, &[What::Answer("OOM")]));
        assert!(explained(&plan, moved, &[What::Slots]));
        // What a handler says is its own.
        assert!(explained(&plan, "not yet", &[]));
    }

    #[test]
    fn narrow_windows_and_a_short_deadline_explain_a_time_out() {
        let mut narrow = plan();
        narrow.weather.window = 1024;
        let down = "db0:6379 did not answer in time";
        assert!(explained(&narrow, down, &[]));
        narrow.deadline = Duration::from_secs(1);
        assert!(!explained(&narrow, down, &[]));
    }

    #[test]
    fn nothing_explains_a_command_that_the_server_does_not_have() {
        let text = "mutex.release in \"sim\": the server refused the command: ResponseError: unknown command 'DELIFEQ'";
        assert!(!explained(&plan(), text, &[What::Line, What::Master]));
    }
}
