//! What was imported or exported: progress while it goes on, a table at the end.

use std::{io::IsTerminal as _, time::Duration};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};
use indicatif::{ProgressBar, ProgressStyle};
use redstart::redis::{ConnectionAddr, IntoConnectionInfo as _, parse_redis_url};
use redstart_engine::{Master, MasterTls, Summary};

use crate::Failure;

/// A bar on the terminal, if there is one; its length is known for files only.
pub(super) fn bar(bytes: Option<u64>, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match bytes {
        Some(bytes) => (
            ProgressBar::new(bytes),
            "{wide_bar} {bytes} of {total_bytes}, {msg}",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {msg}"),
    };
    bar.enable_steady_tick(Duration::from_millis(200));
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Shows how far it is.
pub(super) fn show_progress(bar: &ProgressBar, so_far: &Summary) {
    bar.set_position(so_far.bytes);
    bar.set_message(format!("{} keys", so_far.total()));
}

/// The outcome for a program.
pub(super) fn json(summary: &Summary) -> serde_json::Value {
    serde_json::json!({
        "keys": summary.total(),
        "types": summary.keys,
        "volatile": summary.volatile,
        "expired": summary.expired,
        "left_out": summary.left_out,
        "libraries": summary.libraries,
        "bytes": summary.bytes,
        "rdb_version": summary.version,
        "crc64": format!("{:016x}", summary.checksum),
    })
}

/// The outcome for a person.
pub(super) fn print(summary: &Summary) {
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["type", "keys"]);
    for (kind, keys) in &summary.keys {
        table.add_row([kind.clone(), keys.to_string()]);
    }
    table.add_row(["all".to_owned(), summary.total().to_string()]);
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    say!("{table}");
    say!("keys with a deadline  {}", summary.volatile);
    say!("libraries             {}", summary.libraries);
    say!("bytes                 {}", summary.bytes);
    match summary.checksum {
        0 => say!("CRC-64                none: the file was written without a checksum"),
        checksum => say!("CRC-64                {checksum:016x}"),
    }
    if summary.expired > 0 {
        say!("left out: {} keys that had expired", summary.expired);
    }
    for (kind, keys) in &summary.left_out {
        say!("left out: {keys} keys of type {kind}");
    }
}

/// The server that a URL names, as a store's URL would: with `ca=`, `cert=` and `key=` for TLS.
pub(super) fn master(url: &str) -> Result<Master, Failure> {
    let usage = |text: String| Failure::Usage(text);
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let tls = match scheme {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => {
            let text = "copies of a server come over TCP: give a redis:// or rediss:// URL";
            return Err(usage(text.into()));
        }
    };
    // The client reads the rest, which says no more about TLS.
    let plain = format!("redis://{rest}");
    let wrong = |error| usage(format!("invalid URL: {error}"));
    let info = plain.as_str().into_connection_info().map_err(wrong)?;
    let ConnectionAddr::Tcp(host, port) = info.addr() else {
        return Err(usage("invalid URL: no host".into()));
    };
    let settings = info.redis_settings();
    let user = settings.username().map(str::to_owned);
    let password = settings.password().map(str::to_owned);
    let master = Master::new(host.clone(), *port).credentials(user, password);
    let mut files = Files::default();
    let parsed = parse_redis_url(&plain);
    for (name, value) in parsed.iter().flat_map(|url| url.query_pairs()) {
        files.set(&name, &value).map_err(usage)?;
    }
    match (tls, files.tls().map_err(usage)?) {
        (true, tls) => Ok(master.tls(tls.unwrap_or_default())),
        (false, None) => Ok(master),
        (false, Some(_)) => Err(usage(
            "ca, cert and key need a TLS scheme such as rediss://".into(),
        )),
    }
}

/// The files that a URL names.
#[derive(Default)]
struct Files {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Files {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let file = match name {
            "ca" => &mut self.ca,
            "cert" => &mut self.cert,
            "key" => &mut self.key,
            _ => return Err(format!("unknown parameter {name:?} in the URL")),
        };
        *file = Some(value.to_owned());
        Ok(())
    }

    /// What they mean, if there are any.
    fn tls(self) -> Result<Option<MasterTls>, String> {
        let tls = match &self.ca {
            Some(ca) => MasterTls::new().ca(ca),
            None => MasterTls::new(),
        };
        match (self.ca, self.cert, self.key) {
            (None, None, None) => Ok(None),
            (_, Some(cert), Some(key)) => Ok(Some(tls.client(cert, key))),
            (_, None, None) => Ok(Some(tls)),
            _ => Err("cert and key must be given together".into()),
        }
    }
}

/// Whether something that is to be read is a URL and no file.
pub(super) fn is_url(source: &str) -> bool {
    source.contains("://")
}

/// What went wrong on a thread that may block.
pub(super) fn joined<T>(
    result: Result<Result<T, Failure>, tokio::task::JoinError>,
) -> Result<T, Failure> {
    result.unwrap_or_else(|error| Err(Failure::Other(error.to_string())))
}
