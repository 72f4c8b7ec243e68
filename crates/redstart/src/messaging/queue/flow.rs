//! Flows: jobs that run when other jobs are over, with their results.

use serde::de::DeserializeOwned;

use super::{
    Job, JobId, JobPolicy, Queue,
    raw::check_job,
    record::{Body, Child, Options, Record},
    script::{FLOW, FLOW_CLOSE, FLOW_COMPLETE, FLOW_PUBLISH, FLOW_STAGE},
};
use crate::{
    codec::{Codec, Json},
    duration::{micros, millis},
    error::{Error, Result},
    observe,
};
use std::{borrow::Cow, sync::Arc, time::Duration};

use tokio::time::Instant;

/// Jobs and bytes that one script adds.
const CHUNK_JOBS: usize = 1000;
const CHUNK_BYTES: usize = 512 * 1024;
/// How long a flow may take to be added in steps. After that, what is there of it is forgotten, or buried if it is in several
/// queues.
const OPEN: Duration = Duration::from_secs(60);
/// When a large flow that was not added completely expires, if there is no worker that removes it piece by piece: a key with a
/// million fields that expires holds up its server for a second.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// For how long workers leave a large flow to the process that hands it out.
const ALONE: Duration = Duration::from_secs(5);
const MAX_DEPTH: usize = 64;
/// What became of each of so many children is kept for their parent.
const MAX_CHILDREN: usize = 10_000;

/// What happens to a parent whose child is dead, cancelled or expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChildFailure {
    /// The parent becomes a dead letter at once. Other children still run. If the parent is
    /// [replayed](super::DeadLetters::replay), it waits for the children that are not over, and for those that are dead
    /// letters until they are replayed too, or deleted.
    #[default]
    FailParent,
    /// The parent runs after all children are over, and sees [that this one failed](ChildResult::Failed).
    Continue,
    /// The same, but the parent does not see this child.
    Ignore,
    /// The parent runs after all children are over, and is told [how many failed](super::JobContext::failed_children),
    /// but not what each returned. For batches of any size.
    Count,
}

impl ChildFailure {
    pub(crate) fn letter(self) -> u8 {
        match self {
            Self::FailParent => b'f',
            Self::Continue => b'c',
            Self::Ignore => b'i',
            Self::Count => b'b',
        }
    }
}

/// A job that runs when its children are over; each of them may have children too. Added by [`Queue::add_flow`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, messaging::{ChildResult, Flow, Job, JobContext, Outcome, Queue, Returned, JobOutput}};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)] struct Square(u64);
/// impl Job for Square { const NAME: &'static str = "square"; }
/// impl JobOutput for Square { type Output = u64; }
/// #[derive(Serialize, Deserialize)] struct Sum;
/// impl Job for Sum { const NAME: &'static str = "sum"; }
/// impl JobOutput for Sum { type Output = u64; }
///
/// let store = Store::connect("memory://").await?;
/// let queue = Queue::builder(&store, "docs", "flow").keep_done(100, Duration::from_secs(60)).build()?;
/// let worker = queue
///     .worker(|Square(n): Square, _: JobContext| async move { Returned::<Square>(n * n) })
///     .handler(|_: Sum, cx: JobContext| async move {
///         let squares = cx.children::<u64>().await?;
///         let sum = squares.into_iter().filter_map(ChildResult::done).sum();
///         Ok::<_, redstart::Error>(Returned::<Sum>(sum))
///     })
///     .start()
///     .await?;
///
/// let flow = Flow::new(&Sum)?.child(Flow::new(&Square(3))?).child(Flow::new(&Square(4))?);
/// let added = queue.add_flow(flow).await?;
/// let root = added.root().expect("the queue has no capacity limit");
/// assert_eq!(queue.handle::<Sum>(root).result().await?, Outcome::Done(25));
/// # worker.shutdown(Duration::from_secs(5)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a flow does nothing until it is added to a queue"]
pub struct Flow {
    id: JobId,
    name: Cow<'static, str>,
    payload: Vec<u8>,
    policy: JobPolicy,
    group: Option<String>,
    failure: ChildFailure,
    queue: Option<Queue>,
    children: Vec<Flow>,
}

/// A clone is another flow: each of its jobs has an id of its own.
impl Clone for Flow {
    fn clone(&self) -> Self {
        Self {
            id: JobId::generate(),
            name: self.name.clone(),
            payload: self.payload.clone(),
            policy: self.policy.clone(),
            group: self.group.clone(),
            failure: self.failure,
            queue: self.queue.clone(),
            children: self.children.clone(),
        }
    }
}

impl Flow {
    /// A job, for now without children.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the payload cannot be encoded.
    pub fn new<J: Job>(job: &J) -> Result<Self> {
        const { assert!(!J::NAME.is_empty() && J::NAME.len() <= 255) };
        Ok(Self {
            id: JobId::generate(),
            name: J::NAME.into(),
            payload: Json::encode(job)?,
            policy: J::policy(),
            group: None,
            failure: ChildFailure::default(),
            queue: None,
            children: Vec::new(),
        })
    }

    /// A job whose kind and payload, which must be JSON, are known only at run time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{Flow, Queue}};
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "images")?;
    /// let flow = Flow::raw("publish", b"{}")?.child(Flow::raw("resize", b"320")?);
    /// let _ = queue.add_flow(flow).await?;
    /// assert_eq!(queue.inspect().counts().await?.waiting, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a kind that is empty or over 255 bytes, or a payload that is not JSON.
    pub fn raw(kind: &str, payload: &[u8]) -> Result<Self> {
        check_job(kind, payload)?;
        Ok(Self {
            id: JobId::generate(),
            name: kind.to_owned().into(),
            payload: payload.to_vec(),
            policy: JobPolicy::new(),
            group: None,
            failure: ChildFailure::default(),
            queue: None,
            children: Vec::new(),
        })
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Adds a child: this job runs after it.
    pub fn child(mut self, child: Flow) -> Self {
        self.children.push(child);
        self
    }

    /// Adds children: this job runs after them.
    pub fn children(mut self, children: impl IntoIterator<Item = Flow>) -> Self {
        self.children.extend(children);
        self
    }

    /// Adds children whose results are not kept: this job is called when all of a batch is over, and is told
    /// [how many failed](super::JobContext::failed_children).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{Flow, Job, Queue}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail(u64);
    /// # impl Job for Mail { const NAME: &'static str = "mail"; }
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct AllSent;
    /// # impl Job for AllSent { const NAME: &'static str = "all_sent"; }
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
    /// let batch = Flow::new(&AllSent)?.batch(&(0..25).map(Mail).collect::<Vec<_>>())?;
    /// let _ = queue.add_flow(batch).await?;
    /// # assert_eq!(queue.inspect().counts().await?.ready, 25);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn batch<J: Job>(mut self, jobs: &[J]) -> Result<Self> {
        for job in jobs {
            let child = Self::new(job)?.on_failure(ChildFailure::Count);
            self.children.push(child);
        }
        Ok(self)
    }

    /// How many children there are up to the last one whose result is kept.
    fn results(&self) -> usize {
        let kept = |child: &Flow| child.failure != ChildFailure::Count;
        self.children.iter().rposition(kept).map_or(0, |at| at + 1)
    }

    /// A job that runs after this one: the flow of `next`, whose only child is this.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn then<J: Job>(self, next: &J) -> Result<Self> {
        Ok(Self::new(next)?.child(self))
    }

    /// What happens to the parent if this job fails for good (default: the parent fails).
    pub fn on_failure(mut self, failure: ChildFailure) -> Self {
        self.failure = failure;
        self
    }

    /// How the job is run, instead of its kind's policy.
    pub fn policy(mut self, policy: JobPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The group that the job belongs to; see [`Enqueue::group`](super::Enqueue::group).
    pub fn group(mut self, group: &str) -> Self {
        self.group = Some(group.to_owned());
        self
    }

    /// The queue that the job runs in, if that is not its parent's; its children run there too unless they say otherwise.
    /// It must be of the same [`Store`](crate::Store) or a clone of it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{Flow, Job, Queue}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Resize(u64);
    /// # impl Job for Resize { const NAME: &'static str = "resize"; }
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Publish;
    /// # impl Job for Publish { const NAME: &'static str = "publish"; }
    /// # let store = Store::connect("memory://").await?;
    /// let (pages, images) = (Queue::new(&store, "shop", "pages")?, Queue::new(&store, "shop", "images")?);
    /// let flow = Flow::new(&Publish)?.child(Flow::new(&Resize(1))?.queue(&images));
    /// let _ = pages.add_flow(flow).await?;
    /// assert_eq!(images.inspect().counts().await?.ready, 1);
    /// assert_eq!(pages.inspect().counts().await?.waiting, 1);
    /// # Ok(()) }
    /// ```
    pub fn queue(mut self, queue: &Queue) -> Self {
        self.queue = Some(queue.clone());
        self
    }

    fn depth(&self) -> usize {
        // Not recursive: a chain may be long.
        let mut deepest = 0;
        let mut open = vec![(self, 1)];
        while let Some((flow, depth)) = open.pop() {
            deepest = deepest.max(depth);
            open.extend(flow.children.iter().map(|child| (child, depth + 1)));
        }
        deepest
    }
}

/// What became of [`Queue::add_flow`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a full queue adds nothing"]
pub enum FlowAdded {
    /// All jobs were added; this is the one that runs last.
    Added(JobId),
    /// The queue is at its capacity; nothing was added.
    Full,
}

impl FlowAdded {
    /// The id of the job that runs last; `None` if the queue is full.
    pub fn root(&self) -> Option<JobId> {
        match self {
            Self::Added(id) => Some(*id),
            Self::Full => None,
        }
    }
}

/// What became of a child, for its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChildResult<T> {
    /// It is done, and returned this; `None` if it returns nothing.
    Done(Option<T>),
    /// It is dead, cancelled or expired.
    Failed {
        /// Why.
        reason: String,
    },
    /// It failed, and is [ignored](ChildFailure::Ignore).
    Ignored,
}

impl<T> ChildResult<T> {
    /// What it returned, if it did.
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(result) => result,
            _ => None,
        }
    }
}

impl<T: DeserializeOwned> ChildResult<T> {
    /// From a field of `details`: a letter, then the result or the reason.
    pub(super) fn read(bytes: Option<&[u8]>) -> Result<Self> {
        Ok(match bytes.and_then(<[u8]>::split_first) {
            None => Self::Ignored,
            Some((b'd', [])) => Self::Done(None),
            Some((b'd', result)) => Self::Done(Some(Json::decode(result)?)),
            Some((_, reason)) => Self::Failed {
                reason: String::from_utf8_lossy(reason).into_owned(),
            },
        })
    }
}

/// What became of the children of a job; from [`QueueInspector::children`](super::QueueInspector::children).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Children<T> {
    /// How many failed, other than those that made the job fail.
    pub failed: u64,
    /// How many are not over yet.
    pub waiting: u64,
    /// What became of each of those whose result is kept, in the order in which they were added.
    /// [`Ignored`](ChildResult::Ignored) also means that it is not over.
    pub results: Vec<ChildResult<T>>,
}

impl<T: DeserializeOwned> Children<T> {
    pub(super) async fn read(queue: &Queue, id: JobId) -> Result<Option<Self>> {
        let (store, details) = (queue.store(), queue.entity().part("details"));
        let mut pipeline = redis::pipe();
        pipeline
            .cmd("HGET")
            .arg(queue.entity().part("jobs"))
            .arg(&id.0[..]);
        pipeline.cmd("HMGET").arg(&details);
        for letter in [b"f", b"w"] {
            pipeline.arg([&id.0[..], letter].concat());
        }
        type Found = (Option<Vec<u8>>, (Option<u64>, Option<u64>));
        let (record, (failed, waiting)): Found = store.pipeline(&pipeline).await?;
        let Some(record) = record.as_deref().and_then(Record::parse) else {
            return Ok(None);
        };
        let numbers: Vec<u32> = (0..record.children().unwrap_or(0)).collect();
        Ok(Some(Self {
            failed: failed.unwrap_or(0),
            waiting: waiting.unwrap_or(0),
            results: child_results(queue, id, &numbers).await?,
        }))
    }
}

/// What became of these children of a job.
pub(super) async fn child_results<T: DeserializeOwned>(
    queue: &Queue,
    id: JobId,
    numbers: &[u32],
) -> Result<Vec<ChildResult<T>>> {
    let details = queue.entity().part("details");
    let mut children = Vec::with_capacity(numbers.len());
    for chunk in numbers.chunks(500) {
        let mut get = redis::cmd("HMGET");
        get.arg(&details);
        for number in chunk {
            get.arg([&id.0[..], format!("c{number}").as_bytes()].concat());
        }
        let found: Vec<Option<Vec<u8>>> = queue.store().query(&get).await?;
        for result in found {
            children.push(ChildResult::read(result.as_deref())?);
        }
    }
    Ok(children)
}

/// A job of a flow, ready to be sent.
struct Node {
    queue: Queue,
    id: JobId,
    children: usize,
    bytes: Vec<u8>,
}

impl Queue {
    /// Adds a flow: its leaves are ready at once, and each other job when its children are over.
    ///
    /// It is added whole or not at all, whatever its size. Up to a thousand jobs are added in one step. More are sent in
    /// several and lie where nobody takes them until the last is there; then they are handed out, parents before their children,
    /// the root at once. If this is cut off, either a worker removes what is there after a minute, some hundreds of jobs at a
    /// time (without a worker it expires after ten), or a worker hands out the rest of it some seconds later.
    ///
    /// A flow whose jobs are in [several queues](Flow::queue) is added in several steps, parents first. If that is cut off
    /// half-way, the parents that are there become dead letters after a minute, and leaves that are there run. Such a
    /// parent, if it is replayed, does not wait for its children. What becomes of a child is kept in
    /// its queue until a worker of that queue has told the parent's: however often that is tried, it counts once. It is
    /// tried again after 5 to 30 seconds while the parent's queue cannot be reached, which holds up no other queue.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid option, a queue of another store, more than 64 levels, more than
    /// 10,000 children of one job whose results are kept, or a payload over the limit, with nothing sent;
    /// [`is_timeout`](Error::is_timeout) if a step took so long that what was there was forgotten or, of a flow in several
    /// queues, parents became dead letters; otherwise those of the store. A step whose reply was lost is sent again automatically, and is added once even if its jobs have run in the
    /// meantime.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the flow may have been added or, if it is in several queues, a part of it, as above.
    pub async fn add_flow(&self, flow: Flow) -> Result<FlowAdded> {
        observe::operation("queue.flow", self.namespace(), async {
            let root = flow.id;
            let nodes = self.nodes(flow)?;
            let bytes: usize = nodes.iter().map(|node| node.bytes.len()).sum();
            let all_here = nodes.iter().all(|node| node.queue.is(self));
            if all_here && nodes.len() <= CHUNK_JOBS && bytes <= CHUNK_BYTES {
                return match self.add_nodes(&nodes, Duration::ZERO).await? {
                    true => Ok(FlowAdded::Added(root)),
                    false => Ok(FlowAdded::Full),
                };
            }
            match all_here {
                true => self.add_staged(root, &nodes).await?,
                false => add_in_steps(nodes).await?,
            }
            Ok(FlowAdded::Added(root))
        })
        .await
    }

    /// Whether both are the same queue.
    fn is(&self, other: &Self) -> bool {
        self.store().is_same(other.store()) && self.entity().key() == other.entity().key()
    }

    /// Adds the jobs of one step, once however often it is sent.
    async fn add_nodes(&self, nodes: &[Node], open: Duration) -> Result<bool> {
        // A repeated request finds its own mark, also after its jobs are over.
        let mark = format!("flow:{}", nodes[0].id);
        let mut call = self
            .call(&FLOW, &[&mark])
            .arg(self.0.capacity)
            .arg(micros(open))
            .arg(self.mark_millis());
        for node in nodes {
            call = call.arg(node.children).arg(&node.bytes[..]);
        }
        let added: u8 = call.idempotent().run(self.store()).await?;
        Ok(added == 1)
    }

    /// Adds a flow that is too large for one script: nobody finds a part of it before all of it is there.
    async fn add_staged(&self, flow: JobId, nodes: &[Node]) -> Result<()> {
        if self.0.capacity > 0 {
            return Err(too_large_for_a_capacity());
        }
        let staged = format!("staged:{flow}");
        let mut rest = nodes;
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(fitting(rest));
            let mut call = FLOW_STAGE
                .on(self.entity())
                .part(&staged)
                .part("flows")
                .arg(micros(OPEN))
                .arg(nodes.len() - rest.len())
                .arg(millis(FORGOTTEN))
                .arg(&flow.0[..]);
            for node in chunk {
                let children = format!("{}:", node.children);
                call = call.arg([children.as_bytes(), &node.bytes[..]].concat());
            }
            let _: u8 = call.idempotent().run(self.store()).await?;
            rest = after;
        }
        let parts: [&str; 3] = [&staged, "flows", &format!("flow:{flow}")];
        let complete: u8 = self
            .call(&FLOW_COMPLETE, &parts)
            .arg(&flow.0[..])
            .arg(nodes.len())
            .arg(self.mark_millis())
            .arg(micros(ALONE))
            .idempotent()
            .run(self.store())
            .await?;
        if complete == 0 {
            return Err(Error::timeout(
                "the flow took too long to be added; nothing of it is left",
            ));
        }
        loop {
            match self.hand_out(flow, ALONE).await {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    // Workers do the rest.
                    tracing::debug!(%error, "the jobs of a large flow could not be handed out");
                    return Ok(());
                }
            }
        }
    }

    /// Hands out some jobs of a large flow that is complete, and lets others do the same after a time; how many are left.
    pub(super) async fn hand_out(&self, flow: JobId, alone: Duration) -> Result<u64> {
        self.call(&FLOW_PUBLISH, &[&format!("staged:{flow}"), "flows"])
            .arg(&flow.0[..])
            .arg(micros(alone))
            .idempotent()
            .run(self.store())
            .await
    }

    /// The jobs of a flow, parents before their children.
    fn nodes(&self, flow: Flow) -> Result<Vec<Node>> {
        if flow.depth() > MAX_DEPTH {
            return Err(Error::config(format!(
                "a flow must have at most {MAX_DEPTH} levels"
            )));
        }
        let mut nodes = Vec::new();
        let mut open = vec![(flow, self.clone(), None)];
        while let Some((mut flow, of_parent, child_of)) = open.pop() {
            let queue = flow.queue.take().unwrap_or(of_parent);
            if !queue.store().is_same(self.store()) {
                return Err(Error::config(
                    "the queues of a flow must be of one store, or of its clones",
                ));
            }
            if flow.payload.len() > queue.0.max_payload {
                return Err(Error::config(format!(
                    "the payload has {} bytes; the queue accepts at most {}",
                    flow.payload.len(),
                    queue.0.max_payload
                )));
            }
            if flow.results() > MAX_CHILDREN {
                return Err(Error::config(format!(
                    "a job of a flow must have at most {MAX_CHILDREN} children whose results are kept"
                )));
            }
            let results = flow.results();
            let mut options: Options = queue.options_of(&flow.name, flow.policy);
            options.group = flow.group;
            options.child_of = child_of;
            options.children = (!flow.children.is_empty()).then_some(results as u32);
            options.check()?;
            nodes.push(Node {
                queue: queue.clone(),
                id: flow.id,
                children: flow.children.len(),
                bytes: Body::with_id(flow.id, &flow.name, &flow.payload, &options).bytes,
            });
            for (number, child) in flow.children.into_iter().enumerate() {
                let link = Child {
                    parent: flow.id,
                    failure: child.failure,
                    number: number as u32,
                    away: queue.address_for(&child)?,
                };
                open.push((child, queue.clone(), Some(link)));
            }
        }
        Ok(nodes)
    }

    /// How the child's queue finds this one, if it is another.
    fn address_for(&self, child: &Flow) -> Result<Option<(Arc<str>, Arc<str>)>> {
        if child.queue.as_ref().is_none_or(|queue| queue.is(self)) {
            return Ok(None);
        }
        if child.failure == ChildFailure::Count {
            return Err(Error::config(
                "a child in another queue must be one whose result is kept, not one of a batch",
            ));
        }
        match &self.0.address {
            Some(address) => Ok(Some(address.clone())),
            None => Err(Error::config(
                "a queue with a layout of its own cannot have children in other queues",
            )),
        }
    }
}

/// The jobs of a flow in one queue.
struct Part {
    queue: Queue,
    parents: Vec<Node>,
    leaves: Vec<Node>,
}

fn too_large_for_a_capacity() -> Error {
    Error::config("a queue with a capacity takes flows of up to a thousand jobs, all of them in it")
}

/// How many of the first jobs one script takes.
fn fitting(nodes: &[Node]) -> usize {
    let mut bytes = 0;
    let fits = nodes.iter().take(CHUNK_JOBS).take_while(|node| {
        bytes += node.bytes.len();
        bytes <= CHUNK_BYTES
    });
    fits.count().max(1)
}

/// Adds a flow that is in several queues, parents first: a parent must be there before its children can end.
async fn add_in_steps(nodes: Vec<Node>) -> Result<()> {
    let mut parts: Vec<Part> = Vec::new();
    for node in nodes {
        if node.queue.0.capacity > 0 {
            return Err(too_large_for_a_capacity());
        }
        let at = parts.iter().position(|part| part.queue.is(&node.queue));
        let at = at.unwrap_or_else(|| {
            parts.push(Part {
                queue: node.queue.clone(),
                parents: Vec::new(),
                leaves: Vec::new(),
            });
            parts.len() - 1
        });
        let part = &mut parts[at];
        match node.children {
            0 => part.leaves.push(node),
            _ => part.parents.push(node),
        }
    }
    let parents = parts.iter().map(|part| (&part.queue, &part.parents[..]));
    let leaves = parts.iter().map(|part| (&part.queue, &part.leaves[..]));
    let mut renewed = Instant::now();
    for (queue, mut rest) in parents.chain(leaves) {
        while !rest.is_empty() {
            if renewed.elapsed() > OPEN / 4 {
                keep_open(&parts, OPEN).await?;
                renewed = Instant::now();
            }
            let (chunk, after) = rest.split_at(fitting(rest));
            queue.add_nodes(chunk, OPEN).await?;
            rest = after;
        }
    }
    keep_open(&parts, Duration::ZERO).await
}

/// Gives a flow that is added in steps more time, or as long as it takes (zero).
async fn keep_open(parts: &[Part], more: Duration) -> Result<()> {
    for Part { queue, parents, .. } in parts {
        for chunk in parents.chunks(CHUNK_JOBS) {
            let mut call = queue.call(&FLOW_CLOSE, &[]).arg(micros(more));
            for node in chunk {
                call = call.arg(&node.id.0[..]);
            }
            let late: u64 = call.idempotent().run(queue.store()).await?;
            if late > 0 {
                return Err(Error::timeout(
                    "the flow took too long to be added; its parents are dead letters",
                ));
            }
        }
    }
    Ok(())
}
