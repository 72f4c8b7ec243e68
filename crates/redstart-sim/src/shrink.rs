//! A broken world made smaller: fewer faults, clients and operations, better weather, as long as it stays broken.

use redstart_engine::Compat;

use crate::{
    Plan,
    mutation::Mutation,
    network::Weather,
    plan::{FaultKind, Shape},
    run,
};

/// The smallest broken world that was found within this many runs, and how many were needed.
pub fn shrink(plan: &Plan, mutation: Option<&Mutation>, most: usize) -> (Plan, usize) {
    let mut shrinker = Shrinker {
        kind: run(plan, false, mutation)
            .breaches
            .first()
            .map(|breach| kind(breach)),
        best: plan.clone(),
        mutation,
        runs: 0,
        most,
    };
    while shrinker.round() {}
    (shrinker.best, shrinker.runs)
}

/// What kind of breach this is: its text without names, numbers and times, and without what follows a semicolon or colon.
/// Panics are told apart by their place, and errors by their text.
fn kind(breach: &str) -> String {
    let timed = breach.strip_prefix("at ");
    let text = timed.and_then(|text| Some(text.split_once(": ")?.1));
    let text = text.unwrap_or(breach);
    if text.starts_with("a task panicked") {
        return text.lines().next().unwrap_or_default().to_owned();
    }
    let text = match text.starts_with("an error for which") {
        true => text,
        false => text.split([';', ':']).next().unwrap_or_default(),
    };
    let words = text.split_whitespace();
    let words = words.filter(|word| !word.contains(|letter: char| letter.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

struct Shrinker<'a> {
    /// What was broken first. A smaller world that is broken in another way is another world.
    kind: Option<String>,
    best: Plan,
    mutation: Option<&'a Mutation>,
    runs: usize,
    most: usize,
}

impl Shrinker<'_> {
    /// Tries everything once; whether something was taken away.
    fn round(&mut self) -> bool {
        let mut smaller = false;
        // Half of the faults at once, then one by one.
        let count = self.best.faults.len();
        if count > 2 {
            smaller |= self.attempt(|plan| plan.faults.truncate(count / 2));
            smaller |= self.attempt(|plan| drop(plan.faults.drain(..plan.faults.len() / 2)));
        }
        let mut at = 0;
        while at < self.best.faults.len() {
            match self.attempt(|plan| {
                plan.faults.remove(at);
            }) {
                true => smaller = true,
                false => at += 1,
            }
        }
        while self.best.clients > 1 && self.attempt(remove_client) {
            smaller = true;
        }
        while self.best.operations > 1 && self.attempt(|plan| plan.operations /= 2) {
            smaller = true;
        }
        while self.best.operations > 1 && self.attempt(|plan| plan.operations -= 1) {
            smaller = true;
        }
        let fine = Weather {
            delay: (1, 3),
            slow: (0, 0),
            split: 0,
            window: 64 * 1024,
        };
        if self.best.weather != fine {
            smaller |= self.attempt(|plan| plan.weather = fine.clone());
        }
        if self.best.clocks_differ {
            smaller |= self.attempt(|plan| plan.clocks_differ = false);
        }
        if self.best.rates_differ {
            smaller |= self.attempt(|plan| plan.rates_differ = false);
        }
        if self.best.keeps_log {
            smaller |= self.attempt(|plan| plan.keeps_log = false);
        }
        if self.best.settings_differ {
            smaller |= self.attempt(|plan| plan.settings_differ = false);
        }
        if self.best.versions_differ || self.best.compat != Compat::default() {
            smaller |= self.attempt(|plan| {
                (plan.versions_differ, plan.compat) = (false, Compat::default());
            });
        }
        if !matches!(self.best.shape, Shape::Single | Shape::Separate) {
            smaller |= self.attempt(single_server);
        }
        smaller
    }

    /// Keeps a change if the world is still broken.
    fn attempt(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        if self.runs >= self.most {
            return false;
        }
        self.runs += 1;
        let mut plan = self.best.clone();
        change(&mut plan);
        let breaches = run(&plan, false, self.mutation).breaches;
        let broken = breaches
            .iter()
            .any(|breach| Some(kind(breach)) == self.kind);
        if broken {
            self.best = plan;
        }
        broken
    }
}

fn remove_client(plan: &mut Plan) {
    plan.clients -= 1;
    let clients = plan.clients;
    plan.faults.retain(|fault| match fault.kind {
        FaultKind::Cut { client }
        | FaultKind::CutInside { client, .. }
        | FaultKind::Silence { client, .. }
        | FaultKind::Stop { client, .. }
        | FaultKind::Kill { client, .. }
        | FaultKind::ClockJump { client, .. }
        | FaultKind::StopAtReply { client, .. }
        | FaultKind::Suspend { client, .. } => client < clients,
        _ => true,
    });
}

fn single_server(plan: &mut Plan) {
    plan.shape = Shape::Single;
    plan.faults.retain_mut(|fault| match &mut fault.kind {
        FaultKind::Failover { .. } | FaultKind::MoveSlots { .. } | FaultKind::Promote { .. } => {
            false
        }
        FaultKind::Silence { server, .. }
        | FaultKind::Hang { server, .. }
        | FaultKind::Crash { server, .. }
        | FaultKind::Refuse { server, .. }
        | FaultKind::Answer { server, .. }
        | FaultKind::Evict { server, .. }
        | FaultKind::DiskFails { server, .. }
        | FaultKind::NoMemory { server, .. }
        | FaultKind::Forget { server } => {
            *server = 0;
            true
        }
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_breaches_are_of_another_kind() {
        assert_eq!(
            kind("at 3.2s: client 1 passes client 2; it waits"),
            kind("at 17.25s: client 3 passes client 4")
        );
        assert_ne!(
            kind("at 3.2s: client 1 passes client 2"),
            kind("at 3.2s: client 1 is refused")
        );
        let panicked = |line| {
            kind(&format!(
                "a task panicked: panicked at src/a.rs:{line}:5:\nno"
            ))
        };
        assert_eq!(panicked(1), panicked(1));
        assert_ne!(panicked(1), panicked(2));
        let error = |code| {
            kind(&format!(
                "an error for which there is no reason: {code}: db0:6379"
            ))
        };
        assert_ne!(error("\"OOM\""), error("did not answer in time"));
    }
}
