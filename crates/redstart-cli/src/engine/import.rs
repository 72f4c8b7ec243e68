//! `redstart engine import`: takes over a file, or what a server holds.

use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use redstart_engine::{Compat, Engine, EngineError, Fsync, Reply, Summary};

use super::summary::{bar, is_url, joined, json, master, print, show_progress};
use crate::Failure;

/// Arguments of `redstart engine import`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// An RDB file, or the URL of a running Redis or Valkey: redis[s]://[user:password@]host[:port][?ca=FILE]
    #[arg(value_name = "FILE|URL")]
    source: String,
    /// The folder for the data; start an engine on it with `redstart engine --data DIR`
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Replace the data that the folder holds
    #[arg(long)]
    replace: bool,
    /// How many databases there are
    #[arg(long, value_name = "NUMBER", default_value_t = 16)]
    databases: usize,
    /// The server whose commands the engine will have: fields of hashes expire from 7.4 on
    #[arg(long, value_name = "VERSION", default_value_t = Compat::default())]
    compat: Compat,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let as_json = args.json;
    let data = args.data.clone();
    let summary = joined(tokio::task::spawn_blocking(move || import(&args)).await)?;
    if as_json {
        say!("{}", json(&summary));
    } else {
        print(&summary);
        say!(
            "start an engine on it with: redstart engine --data {}",
            data.display()
        );
    }
    Ok(())
}

fn import(args: &Args) -> Result<Summary, Failure> {
    let failed = |error: EngineError| Failure::Other(error.to_string());
    // Before anything is written.
    let from = match is_url(&args.source) {
        true => Source::Server(master(&args.source)?),
        false => {
            let named = |error| Failure::Usage(format!("{}: {error}", args.source));
            let file = File::open(Path::new(&args.source)).map_err(named)?;
            let len = file.metadata().map_err(named)?.len();
            Source::File(file, len)
        }
    };
    std::fs::create_dir_all(&args.data)?;
    let engine = Engine::builder()
        .databases(args.databases)
        .compat(args.compat)
        .append_only(&args.data, Fsync::EverySec)
        .build()
        .map_err(failed)?;
    if !args.replace && has_keys(&engine) {
        return Err(Failure::Usage(format!(
            "{} holds data: --replace puts the new data in its place",
            args.data.display()
        )));
    }
    match from {
        Source::Server(master) => {
            let bar = bar(None, args.json);
            let copied = engine.copy_from(&master, |so_far| show_progress(&bar, so_far));
            bar.finish_and_clear();
            copied.map_err(|error| Failure::Unavailable(error.to_string()))
        }
        Source::File(file, len) => {
            let bar = bar(Some(len), args.json);
            let file = BufReader::with_capacity(1024 * 1024, file);
            let loaded = engine.load_rdb(file, |so_far| show_progress(&bar, so_far));
            bar.finish_and_clear();
            loaded.map_err(|error| Failure::Other(format!("{}: {error}", args.source)))
        }
    }
}

enum Source {
    File(File, u64),
    Server(redstart_engine::Master),
}

fn has_keys(engine: &Engine) -> bool {
    let reply = engine
        .session()
        .execute(&["INFO".into(), "keyspace".into()]);
    match reply.into_reply() {
        Some(Reply::Bulk(text) | Reply::Verbatim { text, .. }) => {
            text.windows(5).any(|part| part == b"keys=")
        }
        _ => true,
    }
}
