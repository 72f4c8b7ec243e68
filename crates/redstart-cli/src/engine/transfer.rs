//! `redstart engine import` and `export`: data of servers into a folder, and out of it.

use std::{
    fs::File,
    io::{BufReader, BufWriter, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};
use indicatif::{ProgressBar, ProgressDrawTarget};
use redstart::redis::{ConnectionAddr, IntoConnectionInfo as _};
use redstart_engine::{Engine, Fsync, Master, Summary};

use crate::Failure;

/// What can be done with a folder while no engine runs on it.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Fill a data folder from an RDB file, or from a running Redis or Valkey
    Import(Import),
    /// Write an RDB file that Redis 7.0 and Valkey load
    Export(Export),
}

#[derive(clap::Args)]
pub(crate) struct Import {
    /// An RDB file (dump.rdb), or redis://[user:password@]host[:port]
    #[arg(value_name = "FILE|URL")]
    source: String,
    /// The folder that the data goes to
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Replace what the folder holds
    #[arg(long)]
    replace: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct Export {
    /// The file to write; one that exists is replaced when the new one is whole
    file: PathBuf,
    /// The folder of an engine that is not running, or of a server
    #[arg(long, value_name = "DIR", required_unless_present = "url")]
    data: Option<PathBuf>,
    /// A running Redis or Valkey instead
    #[arg(long, conflicts_with = "data")]
    url: Option<String>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    let work = move || match command {
        Command::Import(args) => import(&args),
        Command::Export(args) => export(&args),
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Failure::Other(error.to_string())),
    }
}

fn import(args: &Import) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.data)?;
    let engine = open(&args.data)?;
    if !args.replace && holds_data(&engine) {
        return Err(Failure::Usage(format!(
            "{} holds data already; --replace replaces it",
            args.data.display()
        )));
    }
    let bar = progress(args.json);
    let summary = if args.source.contains("://") {
        copy(&engine, &args.source, &bar)?
    } else {
        let file = File::open(&args.source)
            .map_err(|error| Failure::Usage(format!("{}: {error}", args.source)))?;
        engine
            .load_rdb(BufReader::with_capacity(1 << 20, file), |s| show(&bar, s))
            .map_err(other)?
    };
    bar.finish_and_clear();
    drop(engine);
    report(&summary, "imported", args.json);
    Ok(())
}

fn export(args: &Export) -> Result<(), Failure> {
    let bar = progress(args.json);
    let engine = match (&args.data, &args.url) {
        (Some(data), _) if !data.is_dir() => {
            return Err(Failure::Usage(format!(
                "there is no folder {}",
                data.display()
            )));
        }
        (Some(data), _) => open(data)?,
        (None, Some(url)) => {
            let engine = Engine::new();
            copy(&engine, url, &bar)?;
            engine
        }
        (None, None) => return Err(Failure::Usage("--data or --url is needed".into())),
    };
    let temporary = temporary(&args.file);
    let written = File::create(&temporary)
        .map_err(Failure::from)
        .and_then(|file| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let summary = engine
                .save_rdb(&mut out, |s| show(&bar, s))
                .map_err(other)?;
            out.flush()?;
            out.get_ref().sync_all()?;
            std::fs::rename(&temporary, &args.file)?;
            Ok(summary)
        });
    bar.finish_and_clear();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    report(&written?, "exported", args.json);
    Ok(())
}

/// A name beside the file, so that it can be renamed to it.
fn temporary(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    file.with_file_name(name)
}

fn open(dir: &Path) -> Result<Engine, Failure> {
    let engine = Engine::builder().append_only(dir, Fsync::EverySec);
    engine.build().map_err(other)
}

fn holds_data(engine: &Engine) -> bool {
    let mut found = false;
    // Cheap: it stops nowhere, but writes to nothing.
    if let Ok(summary) = engine.save_rdb(std::io::sink(), |_| ()) {
        found = summary.total() > 0 || !summary.left_out.is_empty() || summary.libraries > 0;
    }
    found
}

fn copy(engine: &Engine, url: &str, bar: &ProgressBar) -> Result<Summary, Failure> {
    bar.set_message("waiting for the server's copy");
    let master = master(url)?;
    engine
        .copy_from(&master, |summary| show(bar, summary))
        .map_err(|error| Failure::Unavailable(error.to_string()))
}

/// The server that a URL names.
fn master(url: &str) -> Result<Master, Failure> {
    let info = url
        .into_connection_info()
        .map_err(|_| Failure::Usage("this is no URL of a Redis or Valkey".into()))?;
    let ConnectionAddr::Tcp(host, port) = info.addr() else {
        return Err(Failure::Usage(
            "a copy comes over plain TCP only: redis://[user:password@]host[:port]".into(),
        ));
    };
    let settings = info.redis_settings();
    let text = |text: Option<&str>| text.map(str::to_owned);
    let (user, password) = (text(settings.username()), text(settings.password()));
    Ok(Master::new(host, *port).credentials(user, password))
}

fn other(error: redstart_engine::EngineError) -> Failure {
    Failure::Other(error.to_string())
}

fn progress(quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if quiet || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn show(bar: &ProgressBar, summary: &Summary) {
    let megabytes = summary.bytes as f64 / (1 << 20) as f64;
    bar.set_message(format!("{} keys, {megabytes:.1} MiB", summary.total()));
}

fn report(summary: &Summary, verb: &str, json: bool) {
    if json {
        let value = serde_json::json!({
            "keys": summary.keys,
            "volatile": summary.volatile,
            "expired": summary.expired,
            "left_out": summary.left_out,
            "libraries": summary.libraries,
            "bytes": summary.bytes,
            "version": summary.version,
            "checksum": format!("{:016x}", summary.checksum),
        });
        say!("{value}");
        return;
    }
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["type", "keys"]);
    for (kind, count) in &summary.keys {
        table.add_row([kind.clone(), count.to_string()]);
    }
    table.add_row(["all".to_owned(), summary.total().to_string()]);
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    say!("{table}");
    say!(
        "{verb}: {} bytes, version {}, checksum {:016x}",
        summary.bytes,
        summary.version,
        summary.checksum
    );
    say!(
        "with a deadline: {}, libraries of functions: {}",
        summary.volatile,
        summary.libraries
    );
    if summary.expired > 0 {
        say!("left out, since their time was over: {}", summary.expired);
    }
    for (kind, count) in &summary.left_out {
        say!("left out, since nothing there can hold them: {count} of type {kind}");
    }
}
