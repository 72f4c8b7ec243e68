//! What the library adds to a service: CPU time of a release build from nothing, and bytes of the stripped program.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

use crate::step::{cargo, root};

/// A small HTTP service without the library.
const BASE: &str = r#"
use axum::{Router, routing::get};

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().json().init();
    let app = Router::new().route("/", get(async || axum::Json(serde_json::json!({ "ok": true }))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
"#;

/// The same service with a limit and a cache before its handler.
const TWO_FAMILIES: &str = r#"
use axum::{Router, routing::get};
use redstart::{Store, caching::Cache, limiting::{Limiter, Quota}};

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().json().init();
    let store = Store::connect("redis://127.0.0.1/").await.unwrap();
    let limiter = Limiter::token_bucket(&store, "shop", "api", Quota::per_second(10)).build().unwrap();
    let cache = Cache::<u64, String>::builder(&store, "shop", "row").build().unwrap();
    let app = Router::new().route("/", get(async move || {
        let decision = limiter.check("all", 1).await.unwrap();
        let load = |_| async { Ok::<_, redstart::Error>(Some("row".to_owned())) };
        let hit = cache.get_or_load(&1, load).await.unwrap();
        axum::Json(serde_json::json!({ "ok": decision.is_allowed(), "row": hit.value.as_deref() }))
    }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
"#;

/// With a lock and a queue too, and every default feature.
const DEFAULTS: &str = r#"
use axum::{Router, routing::get};
use redstart::{Store, caching::Cache, limiting::{Limiter, Quota}, locking::Mutex, messaging::Queue};

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().json().init();
    let store = Store::connect("memory://").await.unwrap();
    let limiter = Limiter::token_bucket(&store, "shop", "api", Quota::per_second(10)).build().unwrap();
    let cache = Cache::<u64, String>::builder(&store, "shop", "row").build().unwrap();
    let mutex = Mutex::new(&store, "shop", "row").unwrap();
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    let app = Router::new().route("/", get(async move || {
        let decision = limiter.check("all", 1).await.unwrap();
        let load = |_| async { Ok::<_, redstart::Error>(Some("row".to_owned())) };
        let hit = cache.get_or_load(&1, load).await.unwrap();
        let held = mutex.try_lock().await.unwrap().is_some();
        queue.enqueue_raw("mail", b"{}").await.unwrap();
        axum::Json(serde_json::json!({ "ok": decision.is_allowed() && held, "row": hit.value.as_deref() }))
    }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
"#;

/// The services: name, source, dependency on the library, the most CPU time and bytes that it may add: a factor of the
/// first service's, and a number.
const SERVICES: [(&str, &str, &str, f64, u64); 3] = [
    ("without", BASE, "", 1.0, 0),
    (
        "two families",
        TWO_FAMILIES,
        "default-features = false, features = [\"caching\", \"limiting\"]",
        1.2,
        8_000_000,
    ),
    (
        "all defaults",
        DEFAULTS,
        "default-features = true",
        1.6,
        8_000_000,
    ),
];

struct Weight {
    cpu: f64,
    bytes: u64,
}

/// Builds the services and prints what they weigh; `false` if one is too heavy.
pub(crate) fn run() -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let mut base: Option<Weight> = None;
    let mut light = true;
    println!("service       CPU s   factor  at most      MB  more MB  at most");
    for (name, source, library, most_cpu, most_bytes) in SERVICES {
        let weight = build(folder.path(), name, source, library)?;
        let first = base.get_or_insert(Weight { ..weight });
        let factor = weight.cpu / first.cpu;
        let more = weight.bytes.saturating_sub(first.bytes);
        println!(
            "{name:12}  {:5.1}  {factor:7.2}  {most_cpu:7.2}  {:6.2}  {:7.2}  {:7.2}",
            weight.cpu,
            weight.bytes as f64 / 1e6,
            more as f64 / 1e6,
            most_bytes as f64 / 1e6,
        );
        light &= factor <= most_cpu && more <= most_bytes;
    }
    Ok(light)
}

fn build(folder: &Path, name: &str, source: &str, library: &str) -> Result<Weight> {
    let place = folder.join(name.replace(' ', "-"));
    fs::create_dir_all(place.join("src"))?;
    fs::write(place.join("src/main.rs"), source)?;
    let library = match library {
        "" => String::new(),
        features => format!(
            "redstart = {{ path = {:?}, {features} }}\n",
            root().join("crates/redstart")
        ),
    };
    let manifest = format!(
        "[package]\nname = \"service\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         axum = \"0.8\"\ntokio = {{ version = \"1\", features = [\"full\"] }}\nserde_json = \"1\"\n\
         tracing-subscriber = {{ version = \"0.3\", features = [\"json\"] }}\n{library}\n\
         [profile.release]\nstrip = true\n"
    );
    fs::write(place.join("Cargo.toml"), manifest)?;
    // The versions of the workspace, as far as they are the same crates.
    fs::copy(root().join("Cargo.lock"), place.join("Cargo.lock"))?;
    let before = children()?;
    let output = cargo(&["build", "--release", "--quiet"])
        .current_dir(&place)
        .env_remove("CARGO_TARGET_DIR")
        .output()?;
    ensure!(
        output.status.success(),
        "the service {name:?} does not build: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let program = place.join("target/release/service");
    let bytes = fs::metadata(&program).with_context(|| format!("{}", program.display()))?;
    Ok(Weight {
        cpu: children()? - before,
        bytes: bytes.len(),
    })
}

/// CPU seconds of all child processes that have ended.
fn children() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}
