//! `redstart cache`: dropping what a cache holds, by hand.

use redstart::{caching::Cache, codec::Json};
use serde_json::Value;

use crate::{Failure, careful::Careful, target::ByHand};

/// Arguments of `redstart cache`.
pub(crate) type Args = ByHand<Command>;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Drop a key, or everything with a tag, in the store and in the memory of all processes
    Invalidate {
        /// The key; may be given several times
        #[arg(long, required_unless_present = "tag")]
        key: Vec<String>,
        /// The tag; may be given several times
        #[arg(long)]
        tag: Vec<String>,
        #[command(flatten)]
        careful: Careful,
    },
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let target = &args.target;
    let (store, namespace, name) = target.open("cache").await?;
    // Values are not read, so their type does not matter.
    let cache = Cache::<str, Value>::builder(&store, namespace, name)
        .codec(Json)
        .build()?;
    let Command::Invalidate { key, tag, careful } = args.command;
    // A tag may be on every entry, and then all of them are loaded at once.
    let asks = !tag.is_empty() || careful.dry_run;
    let what = format!("drop {} keys and {} tags", key.len(), tag.len());
    if asks && !careful.confirm(&what, args.target.json)? {
        return Ok(());
    }
    cache
        .invalidate_many(key.iter().map(String::as_str))
        .await?;
    for tag in &tag {
        cache.invalidate_tag(tag).await?;
    }
    target.done("invalidated", (key.len() + tag.len()) as u64)
}
