//! `redstart engine export`: all data as an RDB file, which Redis and Valkey load.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::PathBuf,
};

use redstart_engine::{Compat, Engine, EngineError, Fsync, Summary};

use super::summary::{bar, joined, json, master, print, show_progress};
use crate::Failure;

/// Arguments of `redstart engine export`.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("from").required(true))]
pub(crate) struct Args {
    /// The RDB file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Export what this folder holds, which no engine uses meanwhile
    #[arg(long, value_name = "DIR", group = "from")]
    data: Option<PathBuf>,
    /// Export what a running Redis or Valkey holds: redis[s]://[user:password@]host[:port][?ca=FILE]
    #[arg(long, value_name = "URL", group = "from")]
    url: Option<String>,
    /// Replace the file if it exists
    #[arg(long)]
    replace: bool,
    /// How many databases there are
    #[arg(long, value_name = "NUMBER", default_value_t = 16)]
    databases: usize,
    /// The server whose commands the engine has: fields of hashes expire from 7.4 on
    #[arg(long, value_name = "VERSION", default_value_t = Compat::default())]
    compat: Compat,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let (as_json, file) = (args.json, args.file.clone());
    let summary = joined(tokio::task::spawn_blocking(move || export(&args)).await)?;
    if as_json {
        say!("{}", json(&summary));
    } else {
        print(&summary);
        say!("written: {}", file.display());
    }
    Ok(())
}

fn export(args: &Args) -> Result<Summary, Failure> {
    if !args.replace && args.file.exists() {
        let name = args.file.display();
        return Err(Failure::Usage(format!(
            "{name} exists: --replace writes over it"
        )));
    }
    let engine = filled(args)?;
    let bar = bar(None, args.json);
    let written = write(&engine, args, |so_far| show_progress(&bar, so_far));
    bar.finish_and_clear();
    written
}

/// An engine that holds what is to be exported.
fn filled(args: &Args) -> Result<Engine, Failure> {
    let failed = |error: EngineError| Failure::Other(error.to_string());
    let builder = Engine::builder()
        .databases(args.databases)
        .compat(args.compat);
    match (&args.data, &args.url) {
        (Some(dir), _) if dir.is_dir() => {
            let builder = builder.append_only(dir, Fsync::EverySec);
            builder.build().map_err(failed)
        }
        (Some(dir), _) => Err(Failure::Usage(format!("{} is no folder", dir.display()))),
        (None, Some(url)) => {
            let master = master(url)?;
            let engine = builder.build().map_err(failed)?;
            let bar = bar(None, args.json);
            let copied = engine.copy_from(&master, |so_far| show_progress(&bar, so_far));
            bar.finish_and_clear();
            copied.map_err(|error| Failure::Unavailable(error.to_string()))?;
            Ok(engine)
        }
        (None, None) => Err(Failure::Usage("give --data or --url".into())),
    }
}

/// Writes a file beside the target, which gets its name when it is on the disk.
fn write(engine: &Engine, args: &Args, progress: impl FnMut(&Summary)) -> Result<Summary, Failure> {
    let mut name = args.file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".part-{}", std::process::id()));
    let partial = args.file.with_file_name(name);
    let written = File::create(&partial)
        .map_err(|error| Failure::Usage(format!("{}: {error}", partial.display())))
        .and_then(|file| {
            let out = BufWriter::with_capacity(1024 * 1024, &file);
            let summary = engine
                .save_rdb(out, progress)
                .map_err(|error| Failure::Other(error.to_string()))?;
            file.sync_all()?;
            fs::rename(&partial, &args.file)?;
            Ok(summary)
        });
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}
