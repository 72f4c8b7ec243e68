//! `redstart adopt`: what other libraries keep on a server, and what to do about it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use redstart::Store;
use redstart_adopt::{
    Budget, Declared, Library, Migration, Outcome, Plan, Progress, Recognition, StepReport, lock,
    printable, recognise,
};
use serde_json::json;

use crate::{Failure, careful::Careful, doctor::time};

/// Arguments of `redstart adopt`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Say which library keeps what; only reads
    List(Look),
    /// Write a plan: what was found, what is at risk, the steps and their ways back; only reads
    Plan(Planned),
    /// Carry out the next step for a subject of the plan
    Step(Walk),
    /// Take the last step for a subject back
    Back(Walk),
    /// Say who holds a lock, whatever library took it; only reads
    Lock(Held),
}

#[derive(clap::Args)]
struct Planned {
    /// Write a script for each step of each subject into this folder, which tries the step on a copy of the data: success, failure and race
    #[arg(long, value_name = "FOLDER")]
    scenarios: Option<PathBuf>,
    #[command(flatten)]
    look: Look,
}

#[derive(clap::Args)]
struct Walk {
    /// The subject as the plan names it: `bull:mail`, `sess:*`; or a pattern of keys with --as
    subject: String,
    /// What the keys are, if no library was recognised in them
    #[arg(long = "as", value_name = "WHAT")]
    declared: Option<What>,
    /// The TTL that entries of a cache without one are given
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1h")]
    ttl: Duration,
    /// How long to wait for others, such as workers that are being stopped
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1m")]
    wait: Duration,
    #[command(flatten)]
    careful: Careful,
    #[command(flatten)]
    look: Look,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// Entries of a cache
    Cache,
    /// Locks: each is held while its key exists
    Lock,
}

#[derive(clap::Args)]
struct Held {
    /// The key of the lock
    key: String,
    /// The server: redis://host, redis+sentinel://…, redis+cluster://…
    #[arg(long, env = "REDSTART_URL", hide_env_values = true)]
    url: String,
    /// One JSON object, for programs
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Look {
    /// The server: redis://host, redis+sentinel://…, redis+cluster://…
    #[arg(long, env = "REDSTART_URL", hide_env_values = true)]
    url: String,
    /// The keys to sample on each node
    #[arg(long, value_name = "COUNT", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Sample only keys that match this glob pattern
    #[arg(long, value_name = "GLOB", default_value = "*")]
    matching: String,
    /// One JSON object per line, for programs
    #[arg(long)]
    json: bool,
}

impl Look {
    async fn recognise(&self) -> Result<Recognition, Failure> {
        self.recognise_on(&Store::connect(&self.url).await?).await
    }

    async fn recognise_on(&self, store: &Store) -> Result<Recognition, Failure> {
        let keys = usize::try_from(self.keys).unwrap_or(usize::MAX);
        let budget = Budget::default().keys(keys).matching(&self.matching);
        Ok(recognise(store, &budget).await?)
    }
}

impl From<redstart_adopt::Error> for Failure {
    fn from(error: redstart_adopt::Error) -> Self {
        match error.into_store() {
            Ok(error) => error.into(),
            Err(error) => Self::Usage(error.to_string()),
        }
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::List(look) => list(&look).await,
        Action::Plan(planned) => plan(&planned).await,
        Action::Step(walk) => walk.step().await,
        Action::Back(walk) => walk.back().await,
        Action::Lock(held) => held.show().await,
    }
}

/// Where a walk goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    On,
    Back,
}

impl Walk {
    fn unknown(&self, plan: &Plan) -> Failure {
        let known = plan.items.iter().map(|item| item.subject.as_str());
        let known: Vec<&str> = known.take(10).collect();
        Failure::Usage(format!(
            "the plan has no {}; it has: {}",
            printable(&self.subject),
            known.join(", ")
        ))
    }

    fn undeclared(&self, what: &str) -> Failure {
        Failure::Usage(format!(
            "no library was recognised in {} for sure; if you know that it is a {what}, say --as {what}",
            printable(&self.subject)
        ))
    }

    async fn migration(&self, way: Way) -> Result<Migration, Failure> {
        let store = Store::connect(&self.look.url).await?;
        let declared = self.declared.map(|what| match what {
            What::Cache => Declared::Cache,
            What::Lock => Declared::Locks,
        });
        let begun = Migration::begun(&store, &self.subject).await?;
        let migration = match (declared, begun) {
            (Some(what), _) => Migration::declared(&store, &self.subject, what)?,
            // The way back is what was done, whatever is there now.
            (None, Some(begun)) if way == Way::Back => begun,
            (None, begun) => {
                let plan = Plan::of(&self.look.recognise_on(&store).await?);
                let item = plan.items.iter().find(|item| item.subject == self.subject);
                let purpose = item.and_then(|item| item.library).map(Library::purpose);
                match (item, begun) {
                    // The plan of today: a queue may have lost its schedulers since, and then has more steps.
                    (Some(item), None) => match item.declare {
                        Some(what) => return Err(self.undeclared(what)),
                        None => Migration::of(&store, item)?,
                    },
                    (Some(item), Some(begun)) if purpose == Some(begun.purpose()) => {
                        Migration::of(&store, item)?
                    }
                    // Locks that are free and queues that are empty are not in the plan.
                    (_, Some(begun)) => begun,
                    (None, None) => return Err(self.unknown(&plan)),
                }
            }
        };
        Ok(migration.ttl(self.ttl).wait(self.wait))
    }

    async fn step(&self) -> Result<(), Failure> {
        let migration = self.migration(Way::On).await?;
        let Some(next) = migration.next().await? else {
            let why = match migration.left_out()[..] {
                [] => "all steps are done".to_owned(),
                ref left => format!(
                    "all steps of the plan are done; {} left out while the queue has job schedulers: move them, and run this again",
                    match left {
                        [one] => format!("{one} is"),
                        more => format!("{} are", more.join(" and ")),
                    }
                ),
            };
            return self.nothing(&why);
        };
        if !self.look.json {
            show(&next, "");
        }
        let what = format!("do the step {} for {}", next.step, printable(&self.subject));
        if !self.careful.confirm(&what, self.look.json)? {
            return Ok(());
        }
        let bar = Bar::new();
        let migration = migration.expecting(next.step);
        let outcome = migration.step(&mut |progress| bar.show(progress)).await?;
        bar.0.finish_and_clear();
        self.report(outcome, "done: ")
    }

    async fn back(&self) -> Result<(), Failure> {
        let migration = self.migration(Way::Back).await?;
        let done = migration.done().await?;
        let Some(last) = done.last() else {
            return self.nothing("no step was done");
        };
        let what = format!("take the step {last} for {} back", printable(&self.subject));
        if !self.careful.confirm(&what, self.look.json)? {
            return Ok(());
        }
        let bar = Bar::new();
        let migration = migration.expecting(last);
        let outcome = migration.back(&mut |progress| bar.show(progress)).await?;
        bar.0.finish_and_clear();
        self.report(outcome, "taken back: ")
    }

    fn nothing(&self, why: &str) -> Result<(), Failure> {
        match self.look.json {
            true => say!("{}", json!({"outcome": "nothing", "why": why})),
            false => say!("{why}"),
        }
        Ok(())
    }

    fn report(&self, outcome: Outcome, title: &str) -> Result<(), Failure> {
        let (name, report) = match &outcome {
            Outcome::Done(report) => ("done", report),
            Outcome::Blocked(report) => ("blocked", report),
            Outcome::Nothing => return self.nothing("nothing to do"),
        };
        if self.look.json {
            say!(
                "{}",
                json!({
                    "outcome": name, "step": report.step, "found": report.found, "changes": report.changes,
                    "blocked": report.blocked,
                })
            );
        } else if name == "done" {
            show(report, title);
        }
        match &report.blocked {
            Some(why) => Err(Failure::Other(format!("{} is blocked: {why}", report.step))),
            None => Ok(()),
        }
    }
}

fn show(report: &StepReport, title: &str) {
    say!("{title}{}", report.step);
    for line in &report.found {
        say!("  {line}");
    }
    for line in &report.changes {
        say!("  change: {line}");
    }
    if let Some(why) = &report.blocked {
        say!("  blocked: {why}");
    }
}

/// How far a step is, at a terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let style = ProgressStyle::with_template("[{bar:24}] {pos}/{len} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::new(0).with_style(style.progress_chars("=> ")))
    }

    fn show(&self, progress: Progress) {
        self.0.set_length(progress.total);
        self.0.set_message(progress.what);
        self.0.set_position(progress.done);
    }
}

impl Held {
    async fn show(&self) -> Result<(), Failure> {
        let store = Store::connect(&self.url).await?;
        let blocker = lock::who_holds(&store, &self.key).await?;
        match (&blocker, self.json) {
            (None, true) => say!("{}", json!({"held": false})),
            (Some(blocker), true) => say!(
                "{}",
                json!({
                    "held": true, "by": blocker.by, "host": blocker.host,
                    "age_ms": blocker.age.map(|age| age.as_millis()),
                    "remaining_ms": blocker.remaining.map(|left| left.as_millis()),
                })
            ),
            (Some(blocker), false) => say!("{blocker}"),
            (None, false) => say!("free"),
        }
        Ok(())
    }
}

async fn list(look: &Look) -> Result<(), Failure> {
    let recognition = look.recognise().await?;
    if look.json {
        for one in &recognition.found {
            say!(
                "{}",
                json!({
                    "library": one.library, "version": one.version, "confidence": one.confidence,
                    "subject": one.subject, "evidence": one.evidence,
                })
            );
        }
        return Ok(());
    }
    let header = ["library", "version", "sure", "subject", "evidence"];
    let mut table = crate::guide::table(&header);
    for one in &recognition.found {
        table.add_row([
            one.library.to_string(),
            one.version.clone().unwrap_or_default(),
            format!("{:.2}", one.confidence),
            one.subject.clone(),
            one.evidence.join("; "),
        ]);
    }
    say!("{table}");
    let part = if recognition.complete {
        "all of them"
    } else {
        "a sample"
    };
    say!("{} keys looked at, {part}", recognition.sampled);
    for group in recognition.unowned.iter().take(10) {
        say!(
            "  no library: {} ({})",
            printable(&group.pattern),
            group.count
        );
    }
    Ok(())
}

/// Writes a script for each step, which may be run.
fn write_scenarios(plan: &Plan, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for scenario in plan.scenarios() {
        let path = folder.join(&scenario.file);
        std::fs::write(&path, scenario.script)?;
        #[cfg(unix)]
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    Ok(())
}

async fn plan(planned: &Planned) -> Result<(), Failure> {
    let plan = Plan::of(&planned.look.recognise().await?);
    if let Some(folder) = &planned.scenarios {
        write_scenarios(&plan, folder).map_err(|error| {
            Failure::Other(format!(
                "cannot write scenarios to {}: {error}",
                folder.display()
            ))
        })?;
    }
    if planned.look.json {
        for item in &plan.items {
            let line =
                serde_json::to_string(item).map_err(|error| Failure::Other(error.to_string()))?;
            say!("{line}");
        }
    } else {
        say!("{}", plan.markdown().trim_end());
    }
    Ok(())
}
