//! `redstart engine backup`: a copy of a running engine's data.

use std::{path::PathBuf, time::Duration};

use redstart::Store;

use crate::Failure;

/// How long a copy may take.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Arguments of `redstart engine backup`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder that does not exist or is empty, on the engine's machine
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where the engine listens: its address must be on this machine
    #[arg(
        long,
        env = "REDSTART_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:6380"
    )]
    url: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let dir = std::path::absolute(&args.dir)?;
    let Some(text) = dir.to_str() else {
        return Err(Failure::Usage("the folder's name is not UTF-8".into()));
    };
    let store = Store::connect(&args.url).await?;
    let mut command = redstart::redis::cmd("REDSTART");
    command.arg("BACKUP").arg(text);
    let (files, bytes): (u64, u64) = store.within(LONGEST).query(&command).await?;
    if args.json {
        say!(
            "{}",
            serde_json::json!({ "folder": text, "files": files, "bytes": bytes })
        );
    } else {
        say!("{bytes} bytes in {files} files: {text}");
        say!("start an engine on it with: redstart engine --data {text}");
    }
    Ok(())
}
