//! Where the servers and the clients of other languages are.
//!
//! Each is looked for in this order: its environment variable, the `PATH`, the cache folder that
//! `cargo xtask servers` fills, and (Postgres) the folders where Debian puts it.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

use crate::Kind;

/// The program that runs a server of this kind.
///
/// # Errors
///
/// If it is not found; the message names the command that installs it.
pub fn server(kind: Kind) -> Result<PathBuf> {
    let (name, variable) = match kind {
        Kind::Redis => ("redis-server", "REDSTART_REDIS_SERVER"),
        Kind::Valkey => ("valkey-server", "REDSTART_VALKEY_SERVER"),
    };
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return match is_program(&path) {
            true => Ok(path),
            false => Err(anyhow!(
                "{variable} names {}, which is not a program",
                path.display()
            )),
        };
    }
    let cached = match kind {
        Kind::Redis => cache_dir().join("redis/redis-server"),
        Kind::Valkey => cache_dir().join("valkey/valkey-server"),
    };
    on_path(name)
        .or_else(|| is_program(&cached).then_some(cached))
        .ok_or_else(|| missing(name))
}

/// The folder of Postgres's programs (`initdb`, `postgres`, `psql`).
///
/// # Errors
///
/// If it is not found; the message names the command that installs it.
pub fn postgres_bin() -> Result<PathBuf> {
    let complete = |dir: &Path| {
        ["initdb", "postgres", "psql"]
            .iter()
            .all(|name| is_program(&dir.join(name)))
    };
    if let Some(dir) = std::env::var_os("REDSTART_POSTGRES_BIN").map(PathBuf::from) {
        return match complete(&dir) {
            true => Ok(dir),
            false => Err(anyhow!(
                "REDSTART_POSTGRES_BIN names {}, which lacks initdb, postgres or psql",
                dir.display()
            )),
        };
    }
    // The program on the `PATH` may be a link into a folder that has them all.
    let on_path = on_path("initdb")
        .and_then(|path| path.canonicalize().ok())
        .and_then(|path| path.parent().map(Path::to_owned));
    let mut debian: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    // The newest first.
    debian.sort_by(|a, b| b.cmp(a));
    on_path
        .into_iter()
        .chain(debian.into_iter().map(|(_, dir)| dir))
        .find(|dir| complete(dir))
        .ok_or_else(|| missing("Postgres"))
}

/// redis-cli, which comes with redis-server.
///
/// # Errors
///
/// If it is not found; the message names the command that installs it.
pub fn redis_cli() -> Result<PathBuf> {
    on_path("redis-cli").ok_or_else(|| missing("redis-cli"))
}

/// A Python that has redis-py.
///
/// # Errors
///
/// If it is not found; the message names the command that installs it.
pub fn redis_py() -> Result<PathBuf> {
    let folder = cache_dir().join("clients/python");
    let python = folder.join("bin/python");
    // Written last, when redis-py is complete.
    let complete = folder.join("redis-py").is_file() && is_program(&python);
    complete
        .then_some(python)
        .ok_or_else(|| missing("redis-py"))
}

/// Node.js, and the folder of modules that has ioredis.
///
/// # Errors
///
/// If one is missing; the message names the command that installs it.
pub fn ioredis() -> Result<(PathBuf, PathBuf)> {
    let node = on_path("node").ok_or_else(|| missing("Node.js"))?;
    let modules = cache_dir().join("clients/node/node_modules");
    let complete = modules.join("ioredis/package.json").is_file();
    complete
        .then_some((node, modules))
        .ok_or_else(|| missing("ioredis"))
}

/// Node.js, and the folder of modules that has the libraries that redstart-adopt works beside (BullMQ and others).
///
/// # Errors
///
/// If one is missing; the message names the command that installs it.
pub fn node_libraries() -> Result<(PathBuf, PathBuf)> {
    let node = on_path("node").ok_or_else(|| missing("Node.js"))?;
    let folder = cache_dir().join("libraries/node");
    // Written last, when all of them are complete.
    let complete = folder.join("complete").is_file();
    complete
        .then(|| (node, folder.join("node_modules")))
        .ok_or_else(|| missing("BullMQ"))
}

/// A Python that has the libraries that redstart-adopt works beside (Celery and others).
///
/// # Errors
///
/// If it is not found; the message names the command that installs it.
pub fn python_libraries() -> Result<PathBuf> {
    let folder = cache_dir().join("libraries/python");
    let python = folder.join("bin/python");
    let complete = folder.join("complete").is_file() && is_program(&python);
    complete.then_some(python).ok_or_else(|| missing("Celery"))
}

/// A Python that has gRPC and the messages of Envoy.
///
/// # Errors
///
/// If it is not found; the message names the command that installs it.
pub fn gateway() -> Result<PathBuf> {
    client_python("gateway", "grpcio")
}

/// A Python that has the messages of OpenTelemetry.
///
/// # Errors
///
/// If it is not found; the message names the command that installs it.
pub fn collector() -> Result<PathBuf> {
    client_python("collector", "opentelemetry-proto")
}

/// A Python that has openapi-spec-validator.
///
/// # Errors
///
/// If it is not found; the message names the command that installs it.
pub fn openapi_validator() -> Result<PathBuf> {
    client_python("openapi", "openapi-spec-validator")
}

fn client_python(name: &str, first: &str) -> Result<PathBuf> {
    let folder = cache_dir().join("clients").join(name);
    let python = folder.join("bin/python");
    let complete = folder.join("complete").is_file() && is_program(&python);
    complete.then_some(python).ok_or_else(|| missing(first))
}

/// A Ruby that has Sidekiq and the cache of Rails.
///
/// # Errors
///
/// If it is not found; the message names the command that installs it.
pub fn ruby_libraries() -> Result<PathBuf> {
    let ruby = on_path("ruby").ok_or_else(|| missing("Ruby"))?;
    // Debian's packages.
    let gems = Path::new("/usr/share/rubygems-integration/all/specifications");
    let names: Vec<String> = std::fs::read_dir(gems)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    for (gem, title) in [
        ("sidekiq-", "Sidekiq"),
        ("redis-namespace-", "redis-namespace"),
        ("activesupport-", "ActiveSupport"),
    ] {
        if !names.iter().any(|name| name.starts_with(gem)) {
            return Err(missing(title));
        }
    }
    Ok(ruby)
}

/// chromedriver, and the script of axe-core, for tests in a real browser.
///
/// # Errors
///
/// If one is missing; the message names the command that installs it.
pub fn browser() -> Result<(PathBuf, PathBuf)> {
    let driver = on_path("chromedriver").ok_or_else(|| missing("chromedriver"))?;
    on_path("chromium").ok_or_else(|| missing("chromium"))?;
    let axe = cache_dir().join("clients/browser/node_modules/axe-core/axe.min.js");
    let complete = axe.is_file();
    complete
        .then_some((driver, axe))
        .ok_or_else(|| missing("axe-core"))
}

/// The folder into which `cargo xtask servers` puts what the system has no package for.
pub fn cache_dir() -> PathBuf {
    let from_env = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    from_env("XDG_CACHE_HOME")
        .or_else(|| from_env("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("redstart")
}

/// The first program of this name on the `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn missing(what: &str) -> anyhow::Error {
    anyhow!("{what} was not found on this machine: run `cargo xtask servers`, which installs it")
}
