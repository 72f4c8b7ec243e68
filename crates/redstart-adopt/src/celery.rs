//! Celery: tasks sent from Rust, which Python runs, and their results.
//!
//! Messages are of protocol 2 with JSON bodies, as Celery 5 writes them through kombu's Redis transport.
//!
//! # Limits
//!
//! Sending and reading results; Python runs the tasks. Chains, groups and chords are Python's business. Workers must accept JSON, which
//! is Celery's default. A task's ETA must be within the visibility timeout of the broker: later ones would be delivered again and
//! again, so they are refused here.
//!
//! The transport options of the workers decide which keys they read: `sep`, `priority_steps` and `global_keyprefix` must be
//! repeated here ([`separator`](Celery::separator), [`priority_steps`](Celery::priority_steps), [`key_prefix`](Celery::key_prefix)).
//! The server knows only the first: a task with a priority is refused if the queue's binding has another separator. What
//! is set for the two others cannot be checked, and a task that is sent to a list that nobody reads waits there.

use std::{collections::BTreeSet, time::Duration};

use base64::Engine as _;
use redis::cmd;
use redstart::Store;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// The steps of priorities that kombu has by default: each is a list of its own.
const STEPS: [u8; 4] = [0, 3, 6, 9];

/// Between the parts of a binding and before a priority, by default.
pub(crate) const SEPARATOR: &str = "\u{6}\u{16}";

/// Before the name of an exchange, in the key of its bindings.
pub(crate) const BINDING: &str = "_kombu.binding.";

/// The bindings that are looked at.
pub(crate) const BINDINGS: usize = 16;

/// The separators of the bindings of a queue.
pub(crate) fn separators_of(members: &[Vec<u8>], queue: &str) -> BTreeSet<String> {
    let members = members.iter();
    members
        .filter_map(|member| separator_of(member, queue))
        .collect()
}

/// The separator of a binding, if the queue is bound by its own name, as Celery does: the routing key, an empty pattern and the
/// queue.
pub(crate) fn separator_of(member: &[u8], queue: &str) -> Option<String> {
    let text = std::str::from_utf8(member).ok()?;
    let twice = text.strip_prefix(queue)?.strip_suffix(queue)?;
    let (first, second) = twice.split_at_checked(twice.len() / 2)?;
    (first == second && !first.is_empty()).then(|| first.to_owned())
}

/// Sends tasks to Celery workers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart::Store;
/// use redstart_adopt::celery::{Celery, Task};
///
/// let store = Store::connect("memory://").await?;
/// let celery = Celery::new(&store);
/// let id = celery.send(Task::new("shop.charge").args(&(17, "eur"))?).await?;
/// assert!(celery.result(&id).await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Celery {
    store: Store,
    queue: String,
    visibility: Duration,
    separator: String,
    steps: Vec<u8>,
    key_prefix: String,
    result_key_prefix: String,
}

/// A task to be sent.
#[derive(Clone, Debug)]
pub struct Task {
    name: String,
    args: Value,
    kwargs: Value,
    priority: u8,
    delay: Option<Duration>,
}

/// What a task has returned, or why it failed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TaskResult {
    /// `SUCCESS`, `FAILURE`, `RETRY`, `STARTED` …
    pub status: String,
    /// What it returned; of a failure, the exception.
    pub result: Value,
    /// The traceback of a failure.
    pub traceback: Option<String>,
}

impl Task {
    /// A task by the name under which Python registered it.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            args: json!([]),
            kwargs: json!({}),
            priority: 0,
            delay: None,
        }
    }

    /// Its positional arguments: a tuple, an array, a list.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if they do not become a JSON array.
    pub fn args(mut self, args: &impl Serialize) -> Result<Self> {
        let args = serde_json::to_value(args).ok().filter(Value::is_array);
        self.args =
            args.ok_or_else(|| Error::invalid("the arguments of a task must be a JSON array"))?;
        Ok(self)
    }

    /// Its keyword arguments: a struct, a map.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if they do not become a JSON object.
    pub fn kwargs(mut self, kwargs: &impl Serialize) -> Result<Self> {
        let kwargs = serde_json::to_value(kwargs).ok().filter(Value::is_object);
        self.kwargs = kwargs
            .ok_or_else(|| Error::invalid("keyword arguments of a task must be a JSON object"))?;
        Ok(self)
    }

    /// From 0, which is served first on Redis, to 9.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) above 9.
    pub fn priority(mut self, priority: u8) -> Result<Self> {
        if priority > 9 {
            return Err(Error::invalid("the priority of a task must be from 0 to 9"));
        }
        self.priority = priority;
        Ok(self)
    }

    /// Not before this time has passed (an ETA, in Celery's words).
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }
}

impl Celery {
    /// Sends to the queue `celery`, with Celery's visibility timeout of one hour.
    pub fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            queue: "celery".to_owned(),
            visibility: Duration::from_secs(3600),
            separator: SEPARATOR.to_owned(),
            steps: STEPS.to_vec(),
            key_prefix: String::new(),
            result_key_prefix: String::new(),
        }
    }

    /// Sends to another queue.
    #[must_use]
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = queue.to_owned();
        self
    }

    /// The visibility timeout that the workers are configured with (`broker_transport_options`).
    #[must_use]
    pub fn visibility_timeout(mut self, visibility: Duration) -> Self {
        self.visibility = visibility;
        self
    }

    /// What stands between the name of a queue and a priority: `sep` in `broker_transport_options` (default kombu's, two
    /// control characters).
    #[must_use]
    pub fn separator(mut self, separator: &str) -> Self {
        self.separator = separator.to_owned();
        self
    }

    /// The priorities that have lists of their own: `priority_steps` in `broker_transport_options` (default 0, 3, 6, 9). A task goes
    /// to the list of the highest step that is not above its priority.
    #[must_use]
    pub fn priority_steps(mut self, steps: impl IntoIterator<Item = u8>) -> Self {
        self.steps = steps.into_iter().collect();
        self.steps.sort_unstable();
        self
    }

    /// What stands before the names of queues: `global_keyprefix` in `broker_transport_options` (default nothing).
    #[must_use]
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        self.key_prefix = prefix.to_owned();
        self
    }

    /// What stands before the names of results: `global_keyprefix` in `result_backend_transport_options` (default nothing). As in
    /// Celery, `_` follows unless it ends in one of `:_-.`.
    #[must_use]
    pub fn result_key_prefix(mut self, prefix: &str) -> Self {
        self.result_key_prefix = prefix.to_owned();
        if !prefix.is_empty() && !prefix.ends_with([':', '_', '-', '.']) {
            self.result_key_prefix.push('_');
        }
        self
    }

    /// Sends a task and returns its id. Takes one round trip, and one more if the task has a delay or a priority.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a delay that is not below the visibility timeout, and for a priority if the workers
    /// of the queue have another [`separator`](Self::separator), so that they would not find the task; otherwise those of the store.
    /// After [`is_in_doubt`](redstart::Error::is_in_doubt) the task may have been sent.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the task may have been sent.
    pub async fn send(&self, task: Task) -> Result<String> {
        if task.delay.is_some_and(|delay| delay >= self.visibility) {
            return Err(Error::invalid(
                "the delay of a task must be below the visibility timeout, or it would be delivered more than once",
            ));
        }
        let eta = match task.delay {
            Some(delay) => Some(moment(self.store.time().await? + delay)?),
            None => None,
        };
        let step = self.step(task.priority);
        if step != 0 {
            self.check_separator().await?;
        }
        let (id, tag) = (uuid(), uuid());
        let embed = json!({"callbacks": null, "errbacks": null, "chain": null, "chord": null});
        let body = json!([task.args, task.kwargs, embed]).to_string();
        let message = json!({
            "body": base64::engine::general_purpose::STANDARD.encode(body),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers(&task, &id, eta),
            "properties": {
                "correlation_id": id, "reply_to": uuid(), "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": self.queue},
                "priority": task.priority, "body_encoding": "base64", "delivery_tag": tag,
            },
        });
        let _: u64 = self
            .store
            .query(cmd("LPUSH").arg(self.list(step)).arg(message.to_string()))
            .await?;
        Ok(id)
    }

    /// The highest step at or below a priority; if there is none, kombu uses the last step.
    fn step(&self, priority: u8) -> u8 {
        let below = self.steps.iter().rfind(|step| **step <= priority);
        below.or(self.steps.last()).copied().unwrap_or(0)
    }

    fn list(&self, step: u8) -> String {
        let (prefix, queue, separator) = (&self.key_prefix, &self.queue, &self.separator);
        match step {
            0 => format!("{prefix}{queue}"),
            step => format!("{prefix}{queue}{separator}{step}"),
        }
    }

    /// Workers bind their queue under an exchange of its name, by members that are joined by their separator.
    async fn check_separator(&self) -> Result<()> {
        let binding = format!("{}{BINDING}{}", self.key_prefix, self.queue);
        let members: Vec<Vec<u8>> = self
            .store
            .query(cmd("SRANDMEMBER").arg(binding).arg(BINDINGS))
            .await?;
        // Bindings of earlier settings stay, so one that fits is enough. Without any, no worker has been there yet, or another
        // exchange is used: nothing is known.
        let found = separators_of(&members, &self.queue);
        if found.is_empty() || found.contains(&self.separator) {
            return Ok(());
        }
        Err(Error::invalid(
            "the workers of this queue have another separator: set it as `sep` of broker_transport_options says",
        ))
    }

    /// The result of a task; `None` before the task has ended, and after the result expired.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if what is stored is no result in JSON; otherwise those of the store.
    pub async fn result(&self, id: &str) -> Result<Option<TaskResult>> {
        let stored: Option<Vec<u8>> = self
            .store
            .query(cmd("GET").arg(format!("{}celery-task-meta-{id}", self.result_key_prefix)))
            .await?;
        let Some(stored) = stored else {
            return Ok(None);
        };
        let known: Map<String, Value> = serde_json::from_slice(&stored)
            .map_err(|_| Error::invalid("the result of the task is not JSON"))?;
        let string = |name: &str| known.get(name).and_then(Value::as_str).map(str::to_owned);
        Ok(Some(TaskResult {
            status: string("status").unwrap_or_default(),
            result: known.get("result").cloned().unwrap_or_default(),
            traceback: string("traceback"),
        }))
    }
}

fn headers(task: &Task, id: &str, eta: Option<String>) -> Value {
    json!({
        "lang": "py", "task": task.name, "id": id, "shadow": null, "eta": eta, "expires": null, "group": null,
        "group_index": null, "retries": 0, "timelimit": [null, null], "root_id": id, "parent_id": null,
        "argsrepr": task.args.to_string(), "kwargsrepr": task.kwargs.to_string(), "origin": "redstart",
        "ignore_result": false, "replaced_task_nesting": 0, "stamped_headers": null, "stamps": {},
    })
}

/// A time as Python writes it.
fn moment(since_1970: Duration) -> Result<String> {
    let micros = i64::try_from(since_1970.as_micros()).ok();
    let at = micros.and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok());
    let at = at.ok_or_else(|| Error::invalid("the delay of a task is too long"))?;
    Ok(at.to_string().replace('Z', "+00:00"))
}

/// A random UUID.
fn uuid() -> String {
    let bits = rand::random::<u128>() & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}
