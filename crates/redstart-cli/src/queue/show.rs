//! Jobs, letters and counters as tables and as JSON.

use std::{collections::BTreeMap, fmt, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};
use jiff::{Timestamp, tz::TimeZone};
use redstart::messaging::{
    CronEntry, DeadGroup, DeadLetter, JobDetails, JobInfo, JobState, QueueCounts, QueueMinute,
    Spread,
};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};

/// Where the width of the terminal is unknown.
const WIDTH: u16 = 100;

/// The names of states.
pub(super) const STATES: [(&str, JobState); 9] = [
    ("ready", JobState::Ready),
    ("delayed", JobState::Delayed),
    ("running", JobState::Running),
    ("parked", JobState::Parked),
    ("waiting", JobState::Waiting),
    ("done", JobState::Done),
    ("cancelled", JobState::Cancelled),
    ("expired", JobState::Expired),
    ("dead", JobState::Dead),
];

pub(super) fn state(name: &str) -> Option<JobState> {
    let found = STATES.iter().find(|(known, _)| *known == name);
    found.map(|(_, state)| *state)
}

fn state_name(state: JobState) -> &'static str {
    let found = STATES.iter().find(|(_, known)| *known == state);
    found.map_or("?", |(name, _)| name)
}

/// A table that fits the terminal.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    let width = table.width().unwrap_or(WIDTH);
    table.set_width(width.clamp(40, 160));
    table
}

/// A time since the Unix epoch, in the local time zone.
fn time(since_epoch: Duration) -> String {
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    match Timestamp::from_second(seconds) {
        Ok(time) => {
            let zoned = time.to_zoned(TimeZone::system());
            zoned.strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
        Err(_) => "?".to_owned(),
    }
}

/// A text as a terminal may have it, on one line: who wrote it must not steer the terminal.
fn one_line(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|c| if steers(c) { ' ' } else { c })
        .collect()
}

/// At most this many characters of a text, on one line.
fn short(text: &str, most: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

fn payload(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(bytes).into_owned()))
}

/// A payload for programs: JSON as it was written, byte by byte, and anything else as base64.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Payload<'a> {
    Payload(&'a RawValue),
    PayloadBase64(String),
}

impl<'a> Payload<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        match serde_json::from_slice::<&RawValue>(bytes) {
            // White space around it would be lost, and a line break would end the line.
            Ok(json) if json.get().len() == bytes.len() && !json.get().contains(['\n', '\r']) => {
                Self::Payload(json)
            }
            _ => Self::PayloadBase64(STANDARD.encode(bytes)),
        }
    }
}

/// A job for programs.
#[derive(Serialize)]
pub(super) struct JobLine<'a> {
    #[serde(flatten)]
    pub(super) fields: Map<String, Value>,
    #[serde(flatten)]
    payload: Payload<'a>,
}

impl fmt::Display for JobLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&line)
    }
}

/// A job for programs.
pub(super) fn job_line(job: &JobInfo) -> JobLine<'_> {
    let fields = match job_fields(job) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let payload = Payload::of(&job.payload);
    JobLine { fields, payload }
}

fn job_fields(job: &JobInfo) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    json!({
        "id": job.id.to_string(),
        "kind": job.name,
        "state": state_name(job.state),
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "priority": job.priority,
        "created": job.created.as_secs_f64(),
        "due": job.due.as_secs_f64(),
        "started": seconds(job.started),
        "expires": seconds(job.expires),
        "worker": job.worker,
        "progress": job.progress,
        "unique": job.unique,
        "group": job.group,
        "parent": job.parent.map(|parent| parent.to_string()),
        "to_be_cancelled": job.to_be_cancelled,
        "policy": job.policy,
    })
}

pub(super) fn jobs(jobs: &[JobInfo], json: bool) {
    if json {
        jobs.iter().for_each(|job| say!("{}", job_line(job)));
        return;
    }
    let mut table = table(&["id", "kind", "state", "tries", "due", "group", "payload"]);
    for job in jobs {
        let state = match job.progress {
            Some(progress) => format!("{} {:.0} %", state_name(job.state), progress * 100.0),
            None => state_name(job.state).to_owned(),
        };
        table.add_row([
            job.id.to_string(),
            short(&job.name, 60),
            state,
            job.attempts.to_string(),
            time(job.due),
            short(job.group.as_deref().unwrap_or_default(), 60),
            short(&String::from_utf8_lossy(&job.payload), 60),
        ]);
    }
    say!("{table}");
}

pub(super) fn details(found: &JobDetails, json: bool) {
    if json {
        let mut job = job_line(&found.job);
        let mut set = |name: &str, value: Value| job.fields.insert(name.to_owned(), value);
        let attempts = found.attempts.iter().map(|attempt| {
            json!({
                "started": attempt.started.as_secs_f64(),
                "ended": attempt.ended.as_secs_f64(),
                "worker": attempt.worker,
                "error": attempt.error,
            })
        });
        set("attempts_made", attempts.collect());
        set("log", json!(found.log));
        let result = found.result.as_deref().map_or(Value::Null, payload);
        set("result", result);
        set("reason", json!(found.reason));
        let ended = found.ended.map(|ended| ended.as_secs_f64());
        set("ended", json!(ended));
        say!("{job}");
        return;
    }
    let job = &found.job;
    let bold = anstyle::Style::new().bold();
    say!(
        "{bold}{}{bold:#}  {}  {}",
        job.id,
        short(&job.name, 200),
        state_name(job.state)
    );
    let line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            say!("  {name:<10} {}", one_line(&value));
        }
    };
    line("enqueued", Some(time(job.created)));
    line("due", found.ended.is_none().then(|| time(job.due)));
    line("started", job.started.map(time));
    line("ended", found.ended.map(time));
    line("worker", job.worker.clone());
    line(
        "progress",
        job.progress.map(|p| format!("{:.0} %", p * 100.0)),
    );
    line(
        "priority",
        (job.priority != 0).then(|| job.priority.to_string()),
    );
    line("group", job.group.clone());
    line("unique", job.unique.clone());
    line("parent", job.parent.map(|parent| parent.to_string()));
    line("expires", job.expires.map(time));
    line("reason", found.reason.clone());
    line("payload", Some(payload(&job.payload).to_string()));
    let result = found.result.as_deref().filter(|result| !result.is_empty());
    line("result", result.map(|result| payload(result).to_string()));
    if !found.attempts.is_empty() {
        let mut table = table(&["attempt", "started", "took", "worker", "error"]);
        let first = job.attempts.saturating_sub(found.attempts.len() as u32) + 1;
        for (number, attempt) in (first..).zip(&found.attempts) {
            let took = attempt.ended.saturating_sub(attempt.started);
            table.add_row([
                number.to_string(),
                time(attempt.started),
                format!("{took:.1?}"),
                short(&attempt.worker, 8),
                one_line(attempt.error.as_deref().unwrap_or_default()),
            ]);
        }
        say!("{table}");
    }
    for line in &found.log {
        say!("  | {}", short(line, 400));
    }
}

/// A dead letter for programs.
#[derive(Serialize)]
struct LetterLine<'a> {
    letter: &'a str,
    reason: &'a str,
    at: f64,
    job: Option<JobLine<'a>>,
}

pub(super) fn letters(letters: &[DeadLetter], json: bool) {
    if json {
        for letter in letters {
            let line = LetterLine {
                letter: &letter.letter,
                reason: &letter.reason,
                at: letter.at.as_secs_f64(),
                job: letter.job.as_ref().map(job_line),
            };
            if let Ok(line) = serde_json::to_string(&line) {
                say!("{line}");
            }
        }
        return;
    }
    let mut table = table(&["id", "kind", "died", "reason"]);
    for letter in letters {
        let job = letter.job.as_ref();
        table.add_row([
            job.map_or_else(|| "?".to_owned(), |job| job.id.to_string()),
            job.map_or_else(|| "?".to_owned(), |job| short(&job.name, 60)),
            time(letter.at),
            short(&letter.reason, 120),
        ]);
    }
    say!("{table}");
}

pub(super) fn groups(groups: &[DeadGroup], json: bool) {
    if json {
        for group in groups {
            say!(
                "{}",
                json!({
                    "error": group.error,
                    "count": group.count,
                    "kinds": group.kinds,
                    "first": group.first.as_secs_f64(),
                    "last": group.last.as_secs_f64(),
                    "example": group.example,
                })
            );
        }
        return;
    }
    let mut table = table(&["letters", "error", "kinds", "first", "last"]);
    for group in groups {
        let kinds: Vec<String> = group
            .kinds
            .iter()
            .map(|(kind, count)| format!("{} {count}", short(kind, 60)))
            .collect();
        table.add_row([
            group.count.to_string(),
            one_line(&group.error),
            kinds.join(", "),
            time(group.first),
            time(group.last),
        ]);
    }
    say!("{table}");
}

pub(super) fn schedules(entries: &[CronEntry], json: bool) {
    if json {
        for entry in entries {
            let next: Vec<f64> = entry
                .upcoming(5)
                .iter()
                .map(Duration::as_secs_f64)
                .collect();
            say!(
                "{}",
                json!({
                    "id": entry.id,
                    "expression": entry.expression,
                    "time_zone": entry.time_zone,
                    "job": entry.job,
                    "paused": entry.paused,
                    "next": next,
                })
            );
        }
        return;
    }
    let mut table = table(&["id", "schedule", "job", "next runs"]);
    for entry in entries {
        let next: Vec<String> = entry.upcoming(3).into_iter().map(time).collect();
        table.add_row([
            one_line(&entry.id),
            one_line(&format!("{} {}", entry.expression, entry.time_zone)),
            one_line(&entry.job),
            if entry.paused {
                "paused".to_owned()
            } else {
                next.join("\n")
            },
        ]);
    }
    say!("{table}");
}

/// What happened to a kind of job over the minutes that are shown.
#[derive(Default)]
struct Kind {
    done: u64,
    failed: u64,
    wait: Spread,
    run: Spread,
    minutes: u64,
}

pub(super) fn stats(counts: &QueueCounts, history: &[QueueMinute], json: bool) {
    let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
    for minute in history {
        let kind = kinds.entry(&minute.kind).or_default();
        kind.done += minute.done;
        kind.failed += minute.failed;
        kind.minutes += 1;
        kind.wait.merge(&minute.wait);
        kind.run.merge(&minute.run);
    }
    let numbers = [
        ("ready", counts.ready),
        ("delayed", counts.delayed),
        ("running", counts.running),
        ("parked", counts.parked),
        ("waiting", counts.waiting),
        ("done", counts.done),
        ("dead", counts.dead),
        ("workers", counts.workers),
    ];
    if json {
        return stats_json(counts, &numbers, &kinds);
    }
    let mut table_of_counts = table(&numbers.map(|(name, _)| name));
    table_of_counts.add_row(numbers.map(|(_, number)| number.to_string()));
    say!("{table_of_counts}");
    if counts.paused {
        say!("the queue is paused: `redstart queue … resume`");
    }
    if kinds.is_empty() {
        return;
    }
    show_kinds(&kinds);
}

fn stats_json(counts: &QueueCounts, numbers: &[(&str, u64)], kinds: &BTreeMap<&str, Kind>) {
    let millis =
        |spread: &Spread, share: f64| spread.percentile(share).map(|t| t.as_millis() as u64);
    let mut all: serde_json::Map<String, Value> = numbers
        .iter()
        .map(|(name, number)| ((*name).to_owned(), json!(number)))
        .collect();
    all.insert("paused".to_owned(), json!(counts.paused));
    let kinds: serde_json::Map<String, Value> = kinds
        .iter()
        .map(|(name, kind)| {
            let numbers = json!({
                "done": kind.done, "failed": kind.failed, "minutes": kind.minutes,
                "wait_p50_ms": millis(&kind.wait, 0.5), "wait_p99_ms": millis(&kind.wait, 0.99),
                "run_p50_ms": millis(&kind.run, 0.5), "run_p99_ms": millis(&kind.run, 0.99),
            });
            ((*name).to_owned(), numbers)
        })
        .collect();
    all.insert("kinds".to_owned(), Value::Object(kinds));
    say!("{}", Value::Object(all));
}

fn show_kinds(kinds: &BTreeMap<&str, Kind>) {
    let mut table = table(&[
        "kind",
        "done",
        "failed",
        "per minute",
        "wait p50",
        "wait p99",
        "run p50",
        "run p99",
    ]);
    let shown = |spread: &Spread, share: f64| {
        let time = spread.percentile(share);
        time.map_or_else(String::new, |time| format!("≤ {time:?}"))
    };
    for (name, kind) in kinds {
        table.add_row([
            one_line(name),
            kind.done.to_string(),
            kind.failed.to_string(),
            (kind.done + kind.failed)
                .div_ceil(kind.minutes.max(1))
                .to_string(),
            shown(&kind.wait, 0.5),
            shown(&kind.wait, 0.99),
            shown(&kind.run, 0.5),
            shown(&kind.run, 0.99),
        ]);
    }
    say!("{table}");
}
