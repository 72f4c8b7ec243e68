//! What to do about what was found: stay, or go step by step with a way back.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{
    found::{Found, Recognition},
    guess::Guess,
    library::{Library, Purpose},
    migration::Declared,
    text,
};

/// A plan for everything that was recognised with a confidence above 0.5, and for what may be a cache or locks made by hand.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart::Store;
/// use redstart_adopt::{Budget, Plan, recognise};
///
/// let store = Store::connect("memory://").await?;
/// let plan = Plan::of(&recognise(&store, &Budget::default()).await?);
/// assert!(plan.items.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// One for each subject.
    pub items: Vec<PlanItem>,
}

/// What to do about one subject.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PlanItem {
    /// What it is: a queue, locks, a limiter, sessions, a cache.
    pub found: &'static str,
    /// The library; `None` for what was made by hand, as far as one can see.
    pub library: Option<Library>,
    /// What a person must say that the keys are before a step is carried out, since no library was recognised, or not for sure: `cache` or `lock`.
    pub declare: Option<&'static str>,
    /// Its version, as far as it is known.
    pub version: Option<String>,
    /// From 0 to 1.
    pub confidence: f64,
    /// The queue, or the pattern of the keys.
    pub subject: String,
    /// Why we think so.
    pub evidence: Vec<String>,
    /// What can go wrong as it is.
    pub risks: Vec<&'static str>,
    /// What Redstart has for it; `None` if there is nothing that shares the keys.
    pub target: Option<&'static str>,
    /// What we would do.
    pub advice: &'static str,
    /// The steps, in order. Empty where staying is right.
    pub steps: Vec<PlanStep>,
}

/// One step, with its check and its way back.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PlanStep {
    /// `shadow`, `share`, `drain` or `switch`.
    pub step: &'static str,
    /// What to do.
    pub what: &'static str,
    /// How to see that it went well.
    pub check: &'static str,
    /// How to take it back.
    pub back: &'static str,
}

impl Plan {
    /// The plan for what was found.
    pub fn of(recognition: &Recognition) -> Self {
        let sure = recognition.found.iter().filter(|one| one.confidence > 0.5);
        let guessed = recognition.guessed.iter().map(PlanItem::guessed);
        Self {
            items: sure.map(PlanItem::of).chain(guessed).collect(),
        }
    }

    /// The plan as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = String::from("# Adoption plan\n");
        if self.items.is_empty() {
            out.push_str("\nNo library was recognised with a confidence above 0.5, and no cache or lock made by hand.\n");
        }
        for item in &self.items {
            item.write(&mut out);
        }
        out
    }
}

impl PlanItem {
    fn of(found: &Found) -> Self {
        let (mut risks, target, advice) = judge(found.library);
        if found.schedulers > 0 {
            risks.push(SCHEDULED);
        }
        Self {
            found: match found.library.purpose() {
                Purpose::Queue => "queue",
                Purpose::Lock => "locks",
                Purpose::Limiter => "limiter",
                Purpose::Sessions => "sessions",
                Purpose::Cache => "cache",
                Purpose::Toolkit => "patterns",
            },
            library: Some(found.library),
            // What looks like a cache may be the only copy of the data.
            declare: (found.library.purpose() == Purpose::Cache && found.confidence <= 0.7)
                .then_some("cache"),
            version: found.version.clone(),
            confidence: found.confidence,
            subject: found.subject.clone(),
            evidence: found.evidence.clone(),
            risks,
            target,
            advice,
            steps: steps(found),
        }
    }

    fn guessed(guess: &Guess) -> Self {
        let (found, declare, risks, target, advice, steps) = match guess.what {
            Declared::Cache => (
                "cache",
                "cache",
                vec![NO_TTL, STAMPEDE, ONLY_COPY],
                "redstart_adopt::cache",
                "Find out whether every value can be computed again. If so, share the entries, with stampede protection added, and give them a TTL: say --as cache with each step. If not, leave them alone.",
                cache_steps(
                    "the old readers understand what Rust wrote, and the source is asked less often when entries end",
                ),
            ),
            Declared::Locks => (
                "locks",
                "lock",
                [&NO_FENCE[..], &[NO_LEASE]].concat(),
                "redstart_adopt::lock",
                "Find out who takes these keys. If they are locks, share them: a mutex on them honours the holders that there are and is honoured by them. Say --as lock with each step.",
                lock_steps(),
            ),
        };
        Self {
            found,
            library: None,
            declare: Some(declare),
            version: None,
            confidence: guess.confidence,
            subject: guess.subject.clone(),
            evidence: guess.evidence.clone(),
            risks,
            target: Some(target),
            advice,
            steps,
        }
    }

    fn write(&self, out: &mut String) {
        let version = self.version.as_deref().map(|version| format!(" {version}"));
        let library = self.library.map_or("no library recognised", Library::name);
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "\n## {} {}\n\n{}{} (confidence {:.2})",
            self.found,
            text::code(&self.subject),
            library,
            text::markdown(&version.unwrap_or_default()),
            self.confidence
        );
        let _ = writeln!(out, "\n{}", self.advice);
        list(
            out,
            "Evidence",
            self.evidence.iter().map(|line| text::markdown(line)),
        );
        list(
            out,
            "At risk",
            self.risks.iter().map(|&line| line.to_owned()),
        );
        if let Some(target) = self.target {
            let _ = writeln!(out, "\nTarget: `{target}`");
        }
        for (n, step) in self.steps.iter().enumerate() {
            let _ = writeln!(
                out,
                "\n{}. **{}**: {}\n   - check: {}\n   - back: {}",
                n + 1,
                step.step,
                step.what,
                step.check,
                step.back
            );
        }
    }
}

fn list(out: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "\n{title}:\n");
    for line in lines {
        let _ = writeln!(out, "- {line}");
    }
}

type Judgement = (Vec<&'static str>, Option<&'static str>, &'static str);

/// What can go wrong, what we have instead, and what we would do.
fn judge(library: Library) -> Judgement {
    match library {
        Library::BullMq => (
            vec![
                "versions 5 and 6 on one queue lose jobs when one of them resumes or pauses what the other paused",
                "a job whose worker stops for longer than its lock runs twice",
            ],
            Some("redstart_adopt::bullmq"),
            "Stay with BullMQ where Node runs the jobs. Where Rust is to add or run jobs, share the queue: both sides work on the same keys.",
        ),
        Library::Bull => (
            vec![
                "Bull is in maintenance mode; its successor is BullMQ, which does not read Bull's queues",
            ],
            None,
            "Stay, or move to BullMQ with new queues. Redstart can look into the queue and does not write to it.",
        ),
        Library::Sidekiq => (
            vec![
                "free Sidekiq takes a job off the list before it runs it: a killed process loses what it had",
            ],
            Some("redstart_adopt::sidekiq"),
            "Stay with Sidekiq where Ruby runs the jobs. Jobs can be pushed from Rust, with Sidekiq::namespace where something stands before `queue:`, and run there by a consumer that loses none when it is killed.",
        ),
        Library::Celery => (
            vec![
                "a task that is not acknowledged within the visibility timeout is delivered again, also if its ETA is later",
            ],
            Some("redstart_adopt::celery"),
            "Stay with Celery where Python runs the tasks. Tasks can be sent and results read from Rust, with the workers' transport options (`sep`, `priority_steps`, `global_keyprefix`) repeated there, and the queues can be looked into.",
        ),
        Library::Rq | Library::Asynq | Library::Dramatiq => (
            Vec::new(),
            None,
            "Stay with the library. Redstart does not write to its queues.",
        ),
        Library::RedisPyLock | Library::Redlock => (
            NO_FENCE.to_vec(),
            Some("redstart_adopt::lock"),
            "Share the keys: a mutex on them honours the library's holders and is honoured by them. Change the holders one by one.",
        ),
        Library::Redisson => (
            NO_FENCE.to_vec(),
            None,
            "Stay until all holders can change together: two kinds of locks on one resource do not exclude each other.",
        ),
        Library::RateLimiterFlexible => (
            vec![EDGES],
            Some("redstart_adopt::limiter"),
            "Stay with the library. Where Rust is to count too, share its keys: both sides together admit what the limit allows.",
        ),
        Library::ExpressRateLimit | Library::Limits => (
            vec![EDGES],
            None,
            "Stay with the library; a second limiter on other keys would count separately.",
        ),
        Library::ConnectRedis => (
            Vec::new(),
            Some("redstart_adopt::sessions"),
            "Stay with the library while it writes the sessions. Rust can read, extend and rotate them meanwhile.",
        ),
        Library::SpringSession => (
            Vec::new(),
            None,
            "Stay with the library while it writes the sessions.",
        ),
        Library::DjangoCache => (
            vec![STAMPEDE],
            Some("redstart_adopt::cache"),
            "Stay with the framework's cache for values of its language. Entries of plain data can be shared, with stampede protection added.",
        ),
        Library::RailsCache => (
            vec![STAMPEDE],
            None,
            "Stay with the framework's cache: values are in the format of its language.",
        ),
        Library::Redstart => (Vec::new(), None, "Nothing to do."),
    }
}

const NO_FENCE: [&str; 2] = [
    "no fence token: a holder that stops and goes on after its lease can still write",
    "waiters poll",
];
const NO_LEASE: &str = "a lock without a TTL stays locked if its holder dies; a lock that is deleted without comparing its value may belong to another holder by then";
const NO_TTL: &str = "entries without a TTL are never renewed, and memory grows with them";
const ONLY_COPY: &str = "if this is no cache but the only copy, a TTL would delete it";
const EDGES: &str = "fixed windows admit up to twice the limit around their edges";
const STAMPEDE: &str = "many requests that miss at the same time all compute the value";

/// Why a queue with schedulers is not taken away from Node.
const SCHEDULED: &str = "the queue has job schedulers: Rust workers continue those with a fixed period and leave those with cron patterns to Node, so the queue cannot be drained from Node before they are removed or moved to another scheduler (drain and switch are left out of this plan)";

fn steps(found: &Found) -> Vec<PlanStep> {
    match found.library {
        Library::BullMq => queue_steps(found),
        Library::Sidekiq => vec![
            shadow(
                "look into the queue from Rust",
                "Inspector::overview agrees with Sidekiq Web",
            ),
            PlanStep {
                step: "share",
                what: "start a consumer of the queue beside Ruby's processes, if Rust handles every class in it",
                check: "the queue does not grow, and the retries and dead jobs in Sidekiq Web do not rise faster than before",
                back: "stop the consumer; jobs that it left unfinished are given back to the queue",
            },
        ],
        Library::RedisPyLock | Library::Redlock => lock_steps(),
        Library::RateLimiterFlexible => vec![
            shadow("read the counters from Rust", "every key is a counter"),
            PlanStep {
                step: "share",
                what: "count on the same keys by FlexibleLimiter, with the library's points, duration, prefix and block repeated there",
                check: "consumedPoints in Node rises with requests to Rust",
                back: "stop counting in Rust: the windows end by themselves",
            },
        ],
        Library::ConnectRedis => vec![
            shadow("read the sessions from Rust", "every session can be read"),
            PlanStep {
                step: "share",
                what: "read, extend and rotate sessions by ConnectSessions while Node writes them",
                check: "users stay logged in on both sides",
                back: "stop using them from Rust: nothing in them was changed",
            },
        ],
        Library::DjangoCache => cache_steps(
            "Django reads what Rust wrote, and the source is asked less often when entries end",
        ),
        _ => Vec::new(),
    }
}

fn lock_steps() -> Vec<PlanStep> {
    vec![
        shadow(
            "see who holds which lock, and which have no TTL",
            "every lock without a TTL has a holder that lives",
        ),
        PlanStep {
            step: "share",
            what: "take the same keys from Rust by redstart_adopt::lock::mutex, beside the holders that there are",
            check: "neither side waits longer than before; redstart adopt lock says who holds a key",
            back: "stop taking the lock from Rust: its leases end, and the keys are the same",
        },
        PlanStep {
            step: "switch",
            what: "when every holder is in Rust, use fence tokens and leave out polling",
            check: "no lock is held by another library",
            back: "let the old holders take the lock again: it is the same key",
        },
    ]
}

fn cache_steps(check: &'static str) -> Vec<PlanStep> {
    vec![
        shadow(
            "count the entries, and those without a TTL",
            "the entries that Rust needs are plain data",
        ),
        PlanStep {
            step: "share",
            what: "read through by SharedCache on the same keys; entries without a TTL are given one",
            check,
            back: "stop reading from Rust; the entries that were given a TTL have none again",
        },
    ]
}

/// The step that only looks.
fn shadow(what: &'static str, check: &'static str) -> PlanStep {
    PlanStep {
        step: "shadow",
        what,
        check,
        back: "stop looking; nothing was written",
    }
}

fn queue_steps(found: &Found) -> Vec<PlanStep> {
    let mut steps = vec![
        PlanStep {
            step: "shadow",
            what: "read only: look into the queue from Rust and compare with what Node's Queue reports",
            check: "Inspector::overview and Queue.getJobCounts agree; BullQueue::versions is not mixed",
            back: "stop looking; nothing was written",
        },
        PlanStep {
            step: "share",
            what: "start a Rust worker beside the Node workers, with their options (lockDuration, maxStalledCount, limiter, removeOnComplete, removeOnFail, backoffStrategy) set on its builder, or add jobs from Rust; resume a paused queue only from Rust while two versions share it",
            check: "QueueEvents shows one `completed` or `failed` for each job that was added (counts do not: jobs with removeOnComplete leave them), and stalled jobs do not pile up",
            back: "stop the Rust worker: its unfinished jobs are given back by the next stalled check of any Node worker",
        },
    ];
    if found.schedulers > 0 {
        return steps;
    }
    steps.extend([
        PlanStep {
            step: "drain",
            what: "stop the Node workers one at a time and let the Rust worker take over; keep one if jobs have a custom backoff for which the Rust worker has no rule",
            check: "waiting, paused, prioritized and active do not grow, failed does not rise faster than before, and the Rust worker does not warn of jobs that are left to Node",
            back: "start the Node workers again: the keys are the same, and what the Rust worker finished stays finished",
        },
        PlanStep {
            step: "switch",
            what: "keep the queue as it is with Rust on both ends, or let producers add to a queue of Redstart and drain this one",
            check: "the old queue's counts of waiting, paused, prioritized, delayed, active and waiting-children are 0, and the sorted set `repeat` of its schedulers is empty",
            back: "let producers add to the old queue again and start a worker on it; jobs of the new queue stay there",
        },
    ]);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::bullmq::STATES;

    fn queue(schedulers: u64) -> PlanItem {
        PlanItem::of(&Found::new(Library::BullMq, "bull:mail", 0.99).schedulers(schedulers))
    }

    #[test]
    fn the_switch_is_checked_in_every_state_in_which_a_job_can_wait() {
        let switch = queue(0).steps.pop();
        let check = switch.map(|step| step.check).unwrap_or_default();
        let states = STATES.iter().map(|(name, ..)| *name);
        let unfinished = states.filter(|name| !["completed", "failed"].contains(name));
        for state in unfinished.chain(["repeat"]) {
            assert!(check.contains(state), "{state} is not in: {check}");
        }
    }

    #[test]
    fn a_queue_with_schedulers_is_not_drained() {
        let item = queue(1);
        let names: Vec<&str> = item.steps.iter().map(|step| step.step).collect();
        assert_eq!(names, ["shadow", "share"]);
        assert!(item.risks.contains(&SCHEDULED));
    }

    #[test]
    fn where_nothing_shares_the_keys_the_advice_is_to_stay() {
        for library in Library::ALL {
            let item = PlanItem::of(&Found::new(library, "x", 0.99));
            let shared = item.target.is_some() && library != Library::Celery;
            assert_eq!(item.steps.is_empty(), !shared, "{library}");
            let stays = item.advice.starts_with("Stay") || library == Library::Redstart;
            assert!(shared || stays, "{library}: {}", item.advice);
        }
    }

    #[test]
    fn a_name_cannot_write_into_the_plan() {
        let mut found = Found::new(
            Library::BullMq,
            "bull:x\u{1b}[2J\n\n1. **share**: run FLUSHALL\n`\n# Title",
            0.99,
        )
        .version(Some("\u{1b}[31m9\n# Title".to_owned()))
        .because("a [link](http://example.org)\n## Heading");
        found.make_printable();
        let plan = Plan {
            items: vec![PlanItem::of(&found)],
        };
        let text = plan.markdown();
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
        let headings = text.lines().filter(|line| line.starts_with('#')).count();
        assert_eq!(headings, 2, "{text}");
        assert!(
            text.contains("1. **shadow**") && !text.contains("\n1. **share**"),
            "{text}"
        );
        assert!(text.contains("\\[link\\]"), "{text}");
    }
}
