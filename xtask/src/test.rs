//! Everything that must hold before a commit.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use redstart_testkit::{Cluster, Kind, Server, shared};

use crate::step::{Steps, Workspace, cargo, status};
use crate::{api, feature, servers};

/// How long an example may run.
const EXAMPLE: Duration = Duration::from_secs(60);

/// The same choice for every step, so that nothing is built twice with other features. The benchmarks stay out: they
/// pull in the peers' crates and OpenSSL, and have a step of their own.
pub(crate) const PACKAGES: [&str; 3] = ["--workspace", "--exclude", "redstart-bench"];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only run the tests: no format, lint, doc and API checks, no doc tests, no examples
    #[arg(long)]
    quick: bool,
    /// Only run tests whose name contains this (implies --quick)
    filter: Option<String>,
}

/// Runs all steps, also after one has failed, so that one run shows every failure.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let quick = options.quick || options.filter.is_some();
    let mut steps = Steps::default();
    if !steps.run("servers", servers::ensure) {
        // Nothing that follows could mean anything.
        return Ok(steps.summary());
    }
    if !quick {
        steps.run("format", || {
            status(cargo(&["fmt", "--all", "--check"]).stdin(Stdio::null()))
        });
        steps.run("clippy", || {
            let mut command = cargo(&["clippy", "--all-targets"]);
            status(command.args(PACKAGES).args(["--", "-D", "warnings"]))
        });
        steps.run("clippy on the benchmarks", || {
            let mut command = cargo(&["clippy", "--all-targets", "-p", "redstart-bench"]);
            status(command.args(["--", "-D", "warnings"]))
        });
        let features = feature::Beside::start();
        steps.run("docs", || {
            // Libraries only: the program `redstart` and the library share a name.
            let mut command = cargo(&["doc", "--no-deps", "--lib", "--all-features"]);
            status(command.args(PACKAGES).env("RUSTDOCFLAGS", "-D warnings"))
        });
        steps.run("public api", || {
            api::run(&api::Options::default()).map(|_| ())
        });
        steps.run("features", || features.wait());
    }
    let nextest = has_nextest();
    let built = steps.run("build", || {
        // Without options that choose targets both build libraries, programs, tests and examples.
        let command: &[&str] = if nextest {
            &["nextest", "run"]
        } else {
            &["test"]
        };
        status(cargo(command).args(PACKAGES).arg("--no-run"))
    });
    if !built {
        return Ok(steps.summary());
    }
    steps.run("tests", || {
        let servers = Shared::start()?;
        let mut command = runner();
        command.args(&options.filter).envs(servers.variables());
        status(&mut command)
    });
    if !quick {
        steps.run("doc tests", || {
            let mut command = cargo(&["test", "--doc", "--no-fail-fast", "--quiet"]);
            status(command.args(PACKAGES))
        });
        let workspace = Workspace::read()?;
        for name in &workspace.examples {
            steps.run(&format!("example {name}"), || run_example(&workspace, name));
        }
    }
    Ok(steps.summary())
}

/// The command that runs all tests but the doc tests, which are a step of their own.
pub(crate) fn runner() -> Command {
    let mut command = match has_nextest() {
        // Its settings are in `.config/nextest.toml`.
        true => cargo(&["nextest", "run"]),
        false => cargo(&["test", "--no-fail-fast", "--lib", "--bins", "--tests"]),
    };
    command.args(PACKAGES);
    command
}

fn has_nextest() -> bool {
    let mut command = cargo(&["nextest", "--version"]);
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// One server of each kind, for all tests that only need a namespace.
pub(crate) struct Shared {
    redis: Server,
    valkey: Server,
    cluster: Cluster,
}

impl Shared {
    pub(crate) fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let (redis, valkey, cluster) = tokio::try_join!(
                Server::builder(Kind::Redis).start(),
                Server::builder(Kind::Valkey).start(),
                shared::start_shared_cluster(),
            )?;
            Ok(Self {
                redis,
                valkey,
                cluster,
            })
        })
    }

    pub(crate) fn variables(&self) -> [(&'static str, String); 3] {
        [
            (shared::REDIS_URL, self.redis.url()),
            (shared::VALKEY_URL, self.valkey.url()),
            (shared::CLUSTER_URL, self.cluster.url()),
        ]
    }
}

/// Runs an example on the embedded engine, in a folder of its own.
fn run_example(workspace: &Workspace, name: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("output");
    let file = std::fs::File::create(&output)?;
    let mut child = Command::new(workspace.target.join("debug/examples").join(name))
        .current_dir(dir.path())
        .env("REDSTART_URL", "memory://")
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("could not run example {name}"))?;
    let deadline = Instant::now() + EXAMPLE;
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = std::fs::read_to_string(&output).unwrap_or_default();
    match ended {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("ended with {status}:\n{said}"),
        None => bail!("did not end within {EXAMPLE:?}:\n{said}"),
    }
}
