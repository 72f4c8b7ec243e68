//! The libraries that redstart-adopt works beside, and the clients of redstart-serve, in the versions that the tests pin.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Error, Result, ensure};
use redstart_testkit::find;

use super::{has_venv, logged};

const PACKAGE: &str = include_str!("../../../crates/redstart-adopt/tests/libraries/package.json");
const LOCK: &str = include_str!("../../../crates/redstart-adopt/tests/libraries/package-lock.json");
const REQUIREMENTS: &str =
    include_str!("../../../crates/redstart-adopt/tests/libraries/requirements.txt");
const GATEWAY: &str = include_str!("../../../crates/redstart-serve/tests/client/gateway.txt");
const COLLECTOR: &str = include_str!("../../../crates/redstart-serve/tests/client/collector.txt");
const OPENAPI: &str = include_str!("../../../crates/redstart-serve/tests/client/openapi.txt");

/// Installs what is missing or of another version; all at the same time, since each waits for the network.
pub(super) fn install() -> Vec<Error> {
    std::thread::scope(|scope| {
        let all = [
            scope.spawn(install_node),
            scope.spawn(|| install_python("libraries/python", REQUIREMENTS, "Celery")),
            scope.spawn(|| install_python("clients/gateway", GATEWAY, "grpcio")),
            scope.spawn(|| install_python("clients/collector", COLLECTOR, "opentelemetry-proto")),
            scope.spawn(|| install_python("clients/openapi", OPENAPI, "openapi-spec-validator")),
        ];
        all.into_iter()
            .filter_map(|thread| match thread.join() {
                Ok(result) => result.err(),
                Err(_) => Some(Error::msg("the installation of a library panicked")),
            })
            .collect()
    })
}

pub(super) fn has_python() -> bool {
    let all = [
        ("libraries/python", REQUIREMENTS),
        ("clients/gateway", GATEWAY),
        ("clients/collector", COLLECTOR),
        ("clients/openapi", OPENAPI),
    ];
    all.iter()
        .all(|(folder, what)| is_complete(&find::cache_dir().join(folder), what))
}

/// The file that is written last says what was installed.
fn is_complete(folder: &Path, what: &str) -> bool {
    std::fs::read_to_string(folder.join("complete")).is_ok_and(|installed| installed == what)
}

fn install_node() -> Result<()> {
    let folder = find::cache_dir().join("libraries/node");
    if is_complete(&folder, LOCK) {
        return Ok(());
    }
    let npm = find::on_path("npm").context("npm is needed to install BullMQ: install npm")?;
    println!("installing BullMQ and other libraries of npm");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("package.json"), PACKAGE)?;
    std::fs::write(folder.join("package-lock.json"), LOCK)?;
    // Not `npm ci`: it insists on optional programs for other systems, which a mirror may not have. The lock decides the
    // versions either way.
    logged(
        Command::new(npm)
            .args(["install", "--silent", "--no-fund", "--no-audit"])
            .args(["--ignore-scripts", "--omit=optional", "--prefix"])
            .arg(&folder),
    )?;
    Ok(std::fs::write(folder.join("complete"), LOCK)?)
}

fn install_python(folder: &str, requirements: &str, first: &str) -> Result<()> {
    let folder = find::cache_dir().join(folder);
    if is_complete(&folder, requirements) {
        return Ok(());
    }
    ensure!(
        has_venv(),
        "python3 with venv is needed to install {first}: install python3-venv"
    );
    println!("installing {first} and other libraries of PyPI");
    logged(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&folder),
    )?;
    let list = folder.join("requirements.txt");
    std::fs::write(&list, requirements)?;
    logged(
        Command::new(folder.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet"])
            .args(["--disable-pip-version-check", "--no-deps", "--requirement"])
            .arg(&list),
    )?;
    Ok(std::fs::write(folder.join("complete"), requirements)?)
}
