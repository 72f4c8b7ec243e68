//! `redstart queue`: look into a job queue, and repair it by hand.
//!
//! ```text
//! queue.rs          arguments, one function per command
//! queue/show.rs     jobs, letters and counters as tables and as JSON
//! queue/transfer.rs export and import as JSON lines
//! queue/glob.rs     errors by a pattern
//! ```

use std::{
    collections::HashSet,
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use redstart::messaging::{
    Cancelled, DeadLetter, Enqueued, JobId, JobInfo, JobState, Queue, QueueInspector,
    normalized_error,
};

use crate::{Failure, careful::Careful, target::ByHand};

mod glob;
mod show;
mod transfer;

/// Arguments of `redstart queue`.
pub(crate) type Args = ByHand<Command>;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List jobs
    List {
        /// ready, delayed, running, parked, waiting, done, cancelled, expired or dead; all that are not over if left out
        #[arg(long)]
        state: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show a job with its attempts, its log and its result
    Show {
        /// Its id
        id: JobId,
    },
    /// Show the dead letters, grouped by what went wrong
    Dead {
        /// Each letter by itself
        #[arg(long)]
        each: bool,
        /// Only letters whose error matches, with * for any text
        #[arg(long)]
        error: Option<String>,
    },
    /// Make dead letters ready again, with all their attempts
    Retry(Chosen),
    /// Delete dead letters for good
    Purge(Chosen),
    /// Cancel jobs: at once if they wait, through their worker if they run
    Cancel {
        /// Their ids
        #[arg(required = true)]
        ids: Vec<JobId>,
        #[command(flatten)]
        careful: Careful,
    },
    /// Make delayed jobs ready now
    RunNow {
        /// Their ids
        #[arg(required = true)]
        ids: Vec<JobId>,
    },
    /// Delete jobs that wait, or are over; their unique keys are free
    Delete {
        /// Their ids
        #[arg(required = true)]
        ids: Vec<JobId>,
        #[command(flatten)]
        careful: Careful,
    },
    /// Add a job
    Add {
        /// The name of its kind, which workers ask for
        kind: String,
        /// Its payload as the workers expect it, usually JSON
        payload: String,
    },
    /// Hand out no more jobs until `resume`
    Pause,
    /// Hand out jobs again
    Resume,
    /// Delete all jobs that wait
    Drain {
        #[command(flatten)]
        careful: Careful,
    },
    /// Count the jobs of each state, and show how busy the queue is
    Stats {
        /// Again and again
        #[arg(long)]
        watch: bool,
        /// Seconds between two looks
        #[arg(long, default_value_t = 1.0)]
        every: f64,
    },
    /// List schedules, pause them one by one, or run one now
    Cron {
        /// What to do with an entry
        #[command(subcommand)]
        action: Option<CronAction>,
    },
    /// Write all jobs that are not over, and dead letters, as JSON lines. Jobs that move while they are read are looked for
    /// again; for an exact picture, pause the queue and let its workers finish first
    Export,
    /// Add jobs from JSON lines, as `export` writes them, with their options. Jobs of a flow are added without their
    /// parents and children
    Import {
        /// The file; - is the standard input
        #[arg(default_value = "-")]
        file: String,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(clap::Subcommand)]
pub(crate) enum CronAction {
    /// Stop its ticks
    Pause {
        /// The entry
        id: String,
    },
    /// Let its ticks go on
    Resume {
        /// The entry
        id: String,
    },
    /// Enqueue its job now
    Run {
        /// The entry
        id: String,
    },
}

/// Which dead letters: those that all the given options are true of.
#[derive(clap::Args)]
pub(crate) struct Chosen {
    /// The ids of jobs
    ids: Vec<JobId>,
    /// The names of letters, as the dashboard and the API have them; beside ids, these too
    #[arg(long)]
    letter: Vec<String>,
    /// Only those whose error is this one but for numbers, ids and quoted text, as `dead` shows it
    #[arg(long)]
    group: Option<String>,
    /// Only those whose error matches, with * for any text
    #[arg(long)]
    error: Option<String>,
    /// All of them
    #[arg(long, conflicts_with_all = ["ids", "letter", "group", "error"])]
    all: bool,
    #[command(flatten)]
    careful: Careful,
}

impl Chosen {
    fn accepts(&self) -> Result<impl Fn(&DeadLetter) -> bool + Clone + '_, Failure> {
        let by_name = !self.ids.is_empty() || !self.letter.is_empty();
        if !by_name && self.error.is_none() && self.group.is_none() && !self.all {
            return Err(Failure::Usage(
                "choose letters by their ids, by --error \"timeout*\", --group, --letter, or --all"
                    .to_owned(),
            ));
        }
        Ok(move |letter: &DeadLetter| {
            let job = letter.job.as_ref();
            let is_named = job.is_some_and(|job| self.ids.contains(&job.id))
                || self.letter.contains(&letter.letter);
            let (group, error) = (self.group.as_ref(), self.error.as_ref());
            (is_named || !by_name)
                && group.is_none_or(|group| normalized_error(&letter.reason) == *group)
                && error.is_none_or(|pattern| glob::matches(pattern, &letter.reason))
        })
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let (store, namespace, name) = args.target.open("queue").await?;
    let queue = Queue::builder(&store, namespace, name)
        .as_its_workers_have_it()
        .await?
        .build()?;
    let (look, json) = (queue.inspect(), args.target.json);
    match args.command {
        Command::List { state, limit } => list(&look, state.as_deref(), limit, json).await,
        Command::Show { id } => match queue.job(id).await? {
            Some(found) => {
                show::details(&found, json);
                Ok(())
            }
            None => Err(Failure::Usage(format!(
                "there is no job {id} in this queue"
            ))),
        },
        Command::Dead { each, error } => dead(&look, each, error.as_deref(), json).await,
        Command::Retry(chosen) => {
            let chosen_letters = letters(&look, &chosen.accepts()?).await?;
            if chosen.careful.dry_run {
                return done("would retry", chosen_letters.len() as u64, json);
            }
            let accepts = these(chosen_letters);
            done("retried", look.dead_letters().replay(accepts).await?, json)
        }
        Command::Purge(chosen) => {
            let chosen_letters = letters(&look, &chosen.accepts()?).await?;
            let count = chosen_letters.len();
            if count == 0 {
                return done("deleted", 0, json);
            }
            let what = format!("delete {count} dead letters");
            if !chosen.careful.confirm(&what, json)? {
                return Ok(());
            }
            let accepts = these(chosen_letters);
            done("deleted", look.dead_letters().purge(accepts).await?, json)
        }
        Command::Cancel { ids, careful } => {
            if !careful.confirm(&format!("cancel {} jobs", ids.len()), json)? {
                return Ok(());
            }
            cancel(&queue, &ids, json).await
        }
        Command::RunNow { ids } => {
            let mut done = Vec::new();
            for id in ids {
                done.push((id, look.run_now(id).await?));
            }
            by_hand("ready", "not delayed", &done, json)
        }
        Command::Delete { ids, careful } => {
            if !careful.confirm(&format!("delete {} jobs", ids.len()), json)? {
                return Ok(());
            }
            let mut done = Vec::new();
            for id in ids {
                done.push((id, look.delete(id).await?));
            }
            by_hand("deleted", "running, or not found", &done, json)
        }
        Command::Add { kind, payload } => add(&queue, &kind, &payload, json).await,
        Command::Pause => {
            queue.pause().await?;
            done("paused", 1, json)
        }
        Command::Resume => {
            queue.resume().await?;
            done("resumed", 1, json)
        }
        Command::Drain { careful } => drain(&look, &careful, json).await,
        Command::Stats { watch, every } => stats(&look, watch, every, json).await,
        Command::Cron { action } => cron(&queue, action, json).await,
        Command::Export => transfer::export(&store, &look).await,
        Command::Import { file, dry_run } => {
            transfer::import(&store, &queue, &file, dry_run, json).await
        }
    }
}

/// Says how many things were done.
fn done(what: &str, count: u64, json: bool) -> Result<(), Failure> {
    if json {
        say!("{}", serde_json::json!({ "done": what, "count": count }));
    } else {
        say!("{what}: {count}");
    }
    Ok(())
}

/// The states of jobs that are not over.
const OPEN: [JobState; 5] = [
    JobState::Running,
    JobState::Ready,
    JobState::Delayed,
    JobState::Waiting,
    JobState::Parked,
];

async fn list(
    look: &QueueInspector,
    state: Option<&str>,
    limit: usize,
    json: bool,
) -> Result<(), Failure> {
    let states = match state {
        None => OPEN.to_vec(),
        Some(name) => vec![show::state(name).ok_or_else(|| {
            Failure::Usage(format!(
                "unknown state {name:?}; one of {}",
                show::STATES.map(|(name, _)| name).join(", ")
            ))
        })?],
    };
    let mut jobs = Vec::new();
    for state in states {
        let left = limit - jobs.len();
        jobs.extend(look.search(state, "", left).await?);
        if jobs.len() >= limit {
            break;
        }
    }
    show::jobs(&jobs, json);
    Ok(())
}

/// The dead letters that are chosen.
async fn letters(
    look: &QueueInspector,
    accepts: &impl Fn(&DeadLetter) -> bool,
) -> Result<Vec<DeadLetter>, Failure> {
    let (mut chosen, mut after) = (Vec::new(), None);
    loop {
        let page = look.dead_letters().list(after.as_deref()).await?;
        let Some(last) = page.last() else {
            return Ok(chosen);
        };
        after = Some(last.letter.clone());
        chosen.extend(page.into_iter().filter(|letter| accepts(letter)));
    }
}

/// Chooses the letters that were counted, and none that died since.
fn these(letters: Vec<DeadLetter>) -> impl Fn(&DeadLetter) -> bool + Clone {
    let names: HashSet<String> = letters.into_iter().map(|letter| letter.letter).collect();
    move |letter| names.contains(&letter.letter)
}

async fn dead(
    look: &QueueInspector,
    each: bool,
    error: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    if each {
        let accepts =
            |letter: &DeadLetter| error.is_none_or(|error| glob::matches(error, &letter.reason));
        show::letters(&letters(look, &accepts).await?, json);
        return Ok(());
    }
    let mut groups = look.dead_letters().groups().await?;
    groups.retain(|group| error.is_none_or(|error| glob::matches(error, &group.example)));
    show::groups(&groups, json);
    Ok(())
}

async fn cancel(queue: &Queue, ids: &[JobId], json: bool) -> Result<(), Failure> {
    let mut missing = 0;
    for id in ids {
        let what = match queue.cancel(*id).await? {
            Cancelled::Ended => "cancelled",
            Cancelled::Told => "told to stop",
            Cancelled::NotFound => {
                missing += 1;
                "not found, or over"
            }
        };
        if json {
            say!(
                "{}",
                serde_json::json!({ "id": id.to_string(), "outcome": what })
            );
        } else {
            say!("{id}  {what}");
        }
    }
    match missing {
        0 => Ok(()),
        _ => Err(Failure::Claim),
    }
}

/// What was done with each job; a failure if one was left alone.
fn by_hand(done: &str, otherwise: &str, jobs: &[(JobId, bool)], json: bool) -> Result<(), Failure> {
    for (id, changed) in jobs {
        let what = if *changed { done } else { otherwise };
        match json {
            true => say!(
                "{}",
                serde_json::json!({ "id": id.to_string(), "outcome": what })
            ),
            false => say!("{id}  {what}"),
        }
    }
    match jobs.iter().all(|(_, changed)| *changed) {
        true => Ok(()),
        false => Err(Failure::Claim),
    }
}

async fn add(queue: &Queue, kind: &str, payload: &str, json: bool) -> Result<(), Failure> {
    let id = match queue.enqueue_raw(kind, payload.as_bytes()).await? {
        Enqueued::New(id) | Enqueued::Duplicate(id) => id,
        Enqueued::Full => return Err(Failure::Other("the queue is full".to_owned())),
    };
    match json {
        true => say!("{}", serde_json::json!({ "id": id.to_string() })),
        false => say!("{id}"),
    }
    Ok(())
}

async fn drain(look: &QueueInspector, careful: &Careful, json: bool) -> Result<(), Failure> {
    let counts = look.counts().await?;
    let waiting = counts.unfinished() - counts.running;
    if waiting == 0 {
        return done("deleted", 0, json);
    }
    if !careful.confirm(&format!("delete {waiting} jobs that wait"), json)? {
        return Ok(());
    }
    let mut deleted = delete_parents(look).await?;
    for state in [JobState::Delayed, JobState::Parked, JobState::Ready] {
        loop {
            let gone = delete_all(look, state, |_| true).await?;
            deleted += gone;
            // What came meanwhile may lie behind the pages that were read.
            if gone == 0 {
                break;
            }
        }
    }
    done("deleted", deleted, json)
}

/// Deletes the jobs that wait for others, each before its children: a child that goes would make its parent run or fail.
async fn delete_parents(look: &QueueInspector) -> Result<u64, Failure> {
    let mut deleted = 0;
    loop {
        let (mut waiting, mut from) = (HashSet::new(), None);
        loop {
            let (jobs, next) = look.list(JobState::Waiting, from).await?;
            waiting.extend(jobs.into_iter().map(|job| job.id));
            match next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
        let is_first = |job: &JobInfo| job.parent.is_none_or(|parent| !waiting.contains(&parent));
        let gone = delete_all(look, JobState::Waiting, is_first).await?;
        deleted += gone;
        if gone == 0 {
            return Ok(deleted);
        }
    }
}

/// Deletes jobs of a state, page by page: what was deleted before is not read again.
async fn delete_all(
    look: &QueueInspector,
    state: JobState,
    chosen: impl Fn(&JobInfo) -> bool,
) -> Result<u64, Failure> {
    let (mut gone, mut from) = (0, None);
    loop {
        let (deleted, next) = look.delete_page(state, from, &chosen).await?;
        gone += deleted;
        match next {
            Some(next) => from = Some(next),
            None => return Ok(gone),
        }
    }
}

/// How much of the history is shown.
const SHOWN: Duration = Duration::from_secs(3600);

async fn stats(look: &QueueInspector, watch: bool, every: f64, json: bool) -> Result<(), Failure> {
    let every = Duration::try_from_secs_f64(every.max(0.1))
        .map_err(|_| Failure::Usage("--every must be a number of seconds".to_owned()))?;
    loop {
        let (counts, history) = (look.counts().await?, look.recent_history(SHOWN).await?);
        // At a terminal the table is drawn in the same place.
        if watch && !json && std::io::stdout().is_terminal() {
            crate::output::note(write!(anstream::stdout(), "\x1b[2J\x1b[H"));
        }
        show::stats(&counts, &history, json);
        if !watch {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

async fn cron(queue: &Queue, action: Option<CronAction>, json: bool) -> Result<(), Failure> {
    let unknown = |id: &str| Failure::Usage(format!("there is no schedule {id:?} in this queue"));
    match action {
        None => {
            show::schedules(&queue.cron_entries().await?, json);
            Ok(())
        }
        Some(CronAction::Pause { id }) => match queue.pause_cron(&id).await? {
            true => done("paused", 1, json),
            false => Err(unknown(&id)),
        },
        Some(CronAction::Resume { id }) => match queue.resume_cron(&id).await? {
            true => done("resumed", 1, json),
            false => Err(unknown(&id)),
        },
        Some(CronAction::Run { id }) => match queue.run_cron(&id).await? {
            Some(enqueued) => done("enqueued", u64::from(enqueued.is_new()), json),
            None => Err(unknown(&id)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redstart::{
        Store,
        messaging::{Job, JobContext, Verdict},
    };

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Mail(u64);

    impl Job for Mail {
        const NAME: &'static str = "mail";
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn letters_that_died_since_they_were_counted_are_left() -> anyhow::Result<()> {
        let store = Store::connect("memory://").await?;
        let queue = Queue::new(&store, "shop", "mail")?;
        let handler = |_: Mail, _: JobContext| async { Verdict::dead("no such address") };
        let worker = queue.worker(handler).start().await?;
        let look = queue.inspect();
        let counted = async |wanted: usize| -> anyhow::Result<Vec<DeadLetter>> {
            let ends = tokio::time::Instant::now() + Duration::from_secs(60);
            loop {
                let letters = letters(&look, &|_| true)
                    .await
                    .map_err(|_| anyhow::anyhow!("no list"))?;
                if letters.len() == wanted {
                    return Ok(letters);
                }
                anyhow::ensure!(tokio::time::Instant::now() < ends, "{letters:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let none = counted(0).await?;
        queue.enqueue(&Mail(1)).await?;
        let one = counted(1).await?;
        queue.enqueue(&Mail(2)).await?;
        counted(2).await?;
        assert_eq!(look.dead_letters().purge(these(none)).await?, 0);
        assert_eq!(look.dead_letters().purge(these(one)).await?, 1);
        let left = counted(1).await?;
        let job = left[0].job.as_ref().map(|job| job.payload.to_vec());
        assert_eq!(job.as_deref(), Some(&b"2"[..]));
        worker.shutdown(Duration::from_secs(5)).await?;
        Ok(())
    }
}
