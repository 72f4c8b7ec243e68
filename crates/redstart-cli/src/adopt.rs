//! `redstart adopt`: what other libraries keep on a server, and what to do about it.

use redstart::Store;
use redstart_adopt::{Budget, Plan, Recognition, printable, recognise};
use serde_json::json;

use crate::Failure;

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
    Plan(Look),
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
        let store = Store::connect(&self.url).await?;
        let keys = usize::try_from(self.keys).unwrap_or(usize::MAX);
        let budget = Budget::default().keys(keys).matching(&self.matching);
        Ok(recognise(&store, &budget).await?)
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
        Action::Plan(look) => plan(&look).await,
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

async fn plan(look: &Look) -> Result<(), Failure> {
    let plan = Plan::of(&look.recognise().await?);
    if look.json {
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
