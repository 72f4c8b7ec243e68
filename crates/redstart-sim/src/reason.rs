//! Whether something that went wrong in a world can be the reason of an error.

use std::time::Duration;

use crate::plan::{FaultKind, Plan, Shape};

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

/// Whether the faults and the weather of a world can be the reason of an error with this text. Servers may have `lost` data
/// before.
pub fn explains(plan: &Plan, text: &str, lost: bool) -> bool {
    // Of several commands, each may have another reason.
    let mut codes = CODES.iter().filter(|(name, _)| text.contains(name));
    if codes.clone().any(|(_, code)| !answers(plan, code)) {
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
    // Where round trips take long, several of them may not fit into a deadline.
    let calm = plan.faults.is_empty() && plan.weather.slow.0 == 0 && plan.weather.delay.1 <= 3;
    // A script of a queue is many windows long, and several of them share a connection.
    let narrow =
        plan.weather.window <= 1024 && (plan.weather.split >= 500 || plan.weather.delay.1 >= 3);
    let calm = calm && !(narrow && plan.deadline <= Duration::from_millis(150));
    !(calm && DOWN.iter().any(|words| text.contains(words)))
}

/// Whether a server of this world may answer with this code.
fn answers(plan: &Plan, code: &str) -> bool {
    let has = |is: fn(&FaultKind) -> bool| plan.faults.iter().any(|fault| is(&fault.kind));
    let injected = plan.faults.iter().any(
        |fault| matches!(fault.kind, FaultKind::Answer { error, .. } if error.starts_with(code)),
    );
    injected
        || match code {
            "OOM" => has(|kind| matches!(kind, FaultKind::NoMemory { .. })),
            "MISCONF" => has(|kind| matches!(kind, FaultKind::DiskFails { .. })),
            "READONLY" => has(|kind| matches!(kind, FaultKind::Failover { .. })),
            "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK" => {
                plan.shape == Shape::Cluster && !plan.faults.is_empty()
            }
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pattern, plan::Fault};

    fn plan(faults: Vec<FaultKind>) -> Plan {
        let mut plan = Plan::new(1, Pattern::Store);
        plan.shape = Shape::Single;
        (plan.weather.delay, plan.weather.slow) = ((1, 3), (0, 0));
        (plan.weather.window, plan.weather.split) = (64 * 1024, 500);
        plan.deadline = Duration::from_millis(150);
        let at = Duration::from_secs(1);
        let faults = faults.into_iter().map(|kind| Fault { at, kind });
        plan.faults = faults.collect();
        plan
    }

    #[test]
    fn only_what_goes_wrong_explains_an_error() {
        let (down, full) = (
            "the store did not answer in time",
            "the store cannot serve this now: \"OOM\": command not allowed",
        );
        let calm = plan(Vec::new());
        assert!(!explains(&calm, down, false));
        assert!(!explains(&calm, full, false));
        let cut = plan(vec![FaultKind::Cut { client: 0 }]);
        assert!(explains(&cut, down, false));
        assert!(!explains(&cut, full, false));
        let lasts = Duration::from_secs(1);
        let starved = plan(vec![FaultKind::NoMemory { server: 0, lasts }]);
        assert!(explains(&starved, full, false));
        // What a handler says is its own.
        assert!(explains(&calm, "not yet", false));
    }

    #[test]
    fn narrow_windows_and_a_short_deadline_explain_a_time_out() {
        let mut narrow = plan(Vec::new());
        narrow.weather.window = 1024;
        assert!(explains(&narrow, "db0:6379 did not answer in time", false));
        narrow.deadline = Duration::from_secs(1);
        assert!(!explains(&narrow, "db0:6379 did not answer in time", false));
    }

    #[test]
    fn nothing_explains_a_command_that_the_server_does_not_have() {
        let cut = plan(vec![FaultKind::Cut { client: 0 }]);
        let text = "mutex.release in \"sim\": the server refused the command: ResponseError: unknown command 'DELIFEQ'";
        assert!(!explains(&cut, text, true));
    }
}
