//! `redstart serve` as a process: its configuration is read again while it runs, and a signal ends it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::pki_types::{CertificateDer, pem::PemObject as _};

const PATIENCE: Duration = Duration::from_secs(60);
/// The token `test-token-of-16-and-more`.
const TOKEN: &str = "test-token-of-16-and-more";

struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    fn start(config: &Path) -> Self {
        Self::start_on(config, "memory://")
    }

    fn start_on(config: &Path, url: &str) -> Self {
        Self::with_log(config, url, Stdio::inherit())
    }

    fn with_log(config: &Path, url: &str, log: Stdio) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_redstart"))
            .args(["serve", "--listen", "127.0.0.1:0", "--url", url, "--config"])
            .arg(config)
            .env_remove("REDSTART_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = process.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let (_, address) = line.trim().split_once("://").unwrap();
        Self {
            address: address.to_owned(),
            process,
        }
    }

    /// The status and the text of an answer.
    fn get(&self, path: &str, token: Option<&str>) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let token = token.map_or(String::new(), |token| {
            format!("authorization: Bearer {token}\r\n")
        });
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    /// The text of the answer to a change, which must succeed.
    fn post(&self, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 2"), "{path}: {answer}");
        answer
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let kill = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(kill.success());
    }

    /// Waits until the configuration has this limiter; nobody gets in without a token meanwhile.
    fn until_limiter(&self, name: &str) {
        let ends = Instant::now() + PATIENCE;
        loop {
            assert_eq!(self.get("/v1/limiters", None).0, 401);
            let (status, text) = self.get("/v1/limiters", Some(TOKEN));
            if status == 200 && text.contains(name) {
                return;
            }
            assert!(Instant::now() < ends, "{name} is not in {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn hash() -> String {
    let mut process = Command::new(env!("CARGO_BIN_EXE_redstart"))
        .args(["serve", "--hash-token"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    writeln!(input, "{TOKEN}").unwrap();
    drop(input);
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_configuration_is_read_again_and_never_switches_authentication_off() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redstart.toml");
    let hash = hash();
    let write = |limiter: &str| {
        let text = format!(
            "[limiter.{limiter}]\nquota = \"1/s\"\n[[token]]\nname = \"t\"\nsha256 = \"{hash}\"\nrole = \"read\"\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    write("first");
    let mut serving = Serving::start(&file);
    serving.until_limiter("first");
    // By looking at the file, and by a signal.
    write("second");
    serving.until_limiter("second");
    write("third");
    serving.signal("-HUP");
    serving.until_limiter("third");
    // A file that is cut short, or broken, changes nothing.
    for broken in ["", "[limiter.third]\nquota = \"1/s\"\n", "[[token]\n"] {
        std::fs::write(&file, broken).unwrap();
        serving.signal("-HUP");
        for _ in 0..10 {
            serving.until_limiter("third");
        }
    }
    write("fourth");
    serving.until_limiter("fourth");
    serving.signal("-TERM");
    assert!(serving.process.wait().unwrap().success());
}

/// A store may take its time to answer. A token that is revoked meanwhile, or a new certificate, must not wait for the next
/// change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_while_the_service_starts_is_taken() -> anyhow::Result<()> {
    let server = redstart_testkit::Server::builder(redstart_testkit::Kind::Redis)
        .start()
        .await?;
    let proxy = redstart_testkit::Proxy::start(&server).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("redstart.toml");
    let hash = hash();
    let write = |limiter: &str| {
        let text = format!(
            "[limiter.{limiter}]\nquota = \"1/s\"\n[[token]]\nname = \"t\"\nsha256 = \"{hash}\"\nrole = \"read\"\n"
        );
        std::fs::write(&file, text)
    };
    write("first")?;
    proxy.stall();
    let (config, url) = (file.clone(), format!("{}?timeout=60s", proxy.url()));
    let serving = tokio::task::spawn_blocking(move || Serving::start_on(&config, &url));
    // Whoever asks the store has read the file.
    let asks = redstart_testkit::eventually(PATIENCE, async || proxy.stats().connections > 0);
    assert!(asks.await, "it does not ask the store");
    write("second")?;
    proxy.pass().await;
    let serving = serving.await?;
    tokio::task::block_in_place(|| serving.until_limiter("second"));
    Ok(())
}

/// The text of a page as a browser shows it.
fn unescaped(text: &str) -> String {
    text.replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}

/// Runs the command that the page of an action shows, as it is, in a shell.
fn run_shown(serving: &Serving, url: &str, action: &str) -> String {
    let (status, page) = serving.get(&format!("/act/{action}&namespace=n"), None);
    assert_eq!(status, 200, "{action}: {page}");
    let command = page
        .split("<pre>redstart ")
        .nth(1)
        .unwrap_or_else(|| panic!("{action} has no command: {page}"));
    let command = unescaped(command.split("</pre>").next().unwrap());
    let program = Path::new(env!("CARGO_BIN_EXE_redstart"));
    let output = Command::new("sh")
        .args(["-c", &format!("redstart {command}")])
        .env("REDSTART_URL", url)
        .env(
            "PATH",
            format!("{}:/usr/bin:/bin", program.parent().unwrap().display()),
        )
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command}: {text}{errors}");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_tell_of_the_connection_that_was_made_at_the_start() -> anyhow::Result<()> {
    let server = redstart_testkit::Server::builder(redstart_testkit::Kind::Redis)
        .start()
        .await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("redstart.toml");
    std::fs::write(&file, "namespace = \"n\"")?;
    let serving = Serving::start_on(&file, &server.url());
    let wanted = [
        "redstart_store_in_flight{node=",
        "redstart_store_request_seconds_count{node=",
    ];
    // Of eight requests one is timed.
    let told = redstart_testkit::eventually(PATIENCE, async || {
        serving.get("/readyz", None);
        let (_, metrics) = serving.get("/metrics", None);
        wanted.iter().all(|line| metrics.contains(line))
    });
    anyhow::ensure!(told.await, "{}", serving.get("/metrics", None).1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_that_a_page_shows_does_what_its_button_does() -> anyhow::Result<()> {
    use redstart::{
        Store,
        caching::{Cache, Loaded},
        locking::Mutex,
        messaging::Queue,
        resilience::{Breaker, CircuitState},
        sessions::{Login, Sessions},
    };
    let server = redstart_testkit::Server::builder(redstart_testkit::Kind::Redis)
        .start()
        .await?;
    let url = server.url();
    let store = Store::connect(&url).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("redstart.toml");
    std::fs::write(
        &file,
        "namespace = \"n\"\n[limiter.api]\nalgorithm = \"sliding-window\"\nquota = \"1/5400s\"\n[limiter.big]\nquota = \"2/90m\"\nburst = 3\nrefundable = true",
    )?;
    let serving = Serving::start_on(&file, &url);
    let run = |action: &str| run_shown(&serving, &url, action);

    // Names that a shell, a URL or an option parser would take apart.
    let queue = Queue::new(&store, "n", "it's")?;
    let at = "queue=it%27s";
    run(&format!("queue.pause?{at}"));
    assert!(queue.inspect().counts().await?.paused);
    run(&format!("queue.resume?{at}"));
    assert!(!queue.inspect().counts().await?.paused);
    run(&format!("queue.add?{at}"));
    assert_eq!(queue.inspect().counts().await?.ready, 1);
    let hour = Duration::from_secs(3600);
    let later = async || -> anyhow::Result<_> {
        let added = queue
            .enqueue_raw("mail", b"{\"to\":\"it's\"}")
            .delay(hour)
            .await?;
        Ok(added.id().unwrap())
    };
    let (one, two, three) = (later().await?, later().await?, later().await?);
    run(&format!("queue.run-now?{at}&job={one}"));
    assert_eq!(queue.inspect().counts().await?.ready, 2);
    run(&format!("queue.add?{at}&job={one}"));
    assert_eq!(
        queue.inspect().counts().await?.ready,
        3,
        "a copy of the job"
    );
    run(&format!("queue.delete?{at}&job={two}"));
    run(&format!("queue.cancel?{at}&job={three}"));
    let counts = queue.inspect().counts().await?;
    assert_eq!((counts.delayed, counts.ready), (0, 3));

    let dead = Queue::new(&store, "n", "dead")?;
    for error in ["code 1 for 'x'", "code 2 for 'y'", "-other", "-other"] {
        dead.enqueue_raw("bad", b"1").await?;
        let leased = serving.post(
            "/v1/queues/dead:lease?namespace=n",
            r#"{"kinds": ["bad"], "wait": 30}"#,
        );
        let fence = leased
            .split("\"fence\":\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .to_owned();
        let body = serde_json::json!({"fence": fence, "error": error, "dead": true}).to_string();
        serving.post("/v1/queues/dead:fail?namespace=n", &body);
    }
    let letters = dead.inspect().dead_letters();
    let encoded = |text: &str| {
        text.bytes()
            .map(|b| format!("%{b:02X}"))
            .collect::<String>()
    };
    let group = encoded(&redstart::messaging::normalized_error("code 1 for 'x'"));
    assert!(run(&format!("queue.replay?queue=dead&group={group}")).contains("retried: 2"));
    assert_eq!(letters.list(None).await?.len(), 2);
    let letter = letters.list(None).await?[0].letter.clone();
    assert!(run(&format!("queue.purge?queue=dead&letter={letter}")).contains("deleted: 1"));
    assert!(
        run(&format!(
            "queue.purge?queue=dead&group={}",
            encoded("-other")
        ))
        .contains("deleted: 1")
    );
    assert!(letters.list(None).await?.is_empty());

    let mutex = Mutex::builder(&store, "n", "-m 1")
        .label("stuck")
        .without_renewal()
        .build()?;
    let ticket = mutex.try_lock().await?.unwrap().into_ticket()?;
    run("lock.force-release?name=-m%201");
    assert!(!mutex.extend_held(&ticket, Duration::from_secs(1)).await?);

    let breaker = Breaker::builder(&store, "n", "b").open().await?;
    run("breaker.force-open?name=b");
    let is = async |state| {
        redstart_testkit::eventually(PATIENCE, async || breaker.state() == state).await
    };
    assert!(is(CircuitState::Open).await);
    run("breaker.reset?name=b");
    assert!(is(CircuitState::Closed).await);

    let cache = Cache::<str, String>::builder(&store, "n", "c").build()?;
    let keep = async || -> redstart::Result<()> {
        for key in ["k &", "other"] {
            let load = |load: redstart::caching::Load| async move {
                load.tag("t")?;
                Ok::<_, redstart::Error>(Loaded::Found("v".to_owned()))
            };
            cache.get_or_load(key, load).await?;
        }
        Ok(())
    };
    keep().await?;
    run("cache.invalidate?name=c&key=k%20%26");
    let kept = async |key| cache.get(key).await.map(|hit| hit.is_some());
    assert_eq!((kept("k &").await?, kept("other").await?), (false, true));
    keep().await?;
    run("cache.invalidate?name=c&tag=t");
    assert_eq!((kept("k &").await?, kept("other").await?), (false, false));

    let sessions = Sessions::new(&store, "n", "web")?;
    for _ in 0..3 {
        sessions
            .login(Login::new("ann"), &serde_json::json!({}))
            .await?;
    }
    let handle = sessions.list("ann").await?[0].handle.clone();
    run(&format!("session.revoke?name=web&user=ann&handle={handle}"));
    assert_eq!(sessions.list("ann").await?.len(), 2);
    run("session.revoke-all?name=web&user=ann");
    assert!(sessions.list("ann").await?.is_empty());

    // Each with settings that are part of its keys.
    for (name, whole) in [("api", 1), ("big", 3)] {
        let check = || {
            let path = format!("/v1/limiters/{name}:check?namespace=n");
            serving.post(&path, r#"{"subject": "-ann"}"#)
        };
        for _ in 0..whole {
            assert!(check().contains("\"allowed\":true"));
        }
        assert!(check().contains("\"allowed\":false"));
        run(&format!("limiter.reset?name={name}&subject=-ann"));
        assert!(check().contains("\"allowed\":true"), "{name}");
    }
    Ok(())
}

/// Certificates for `localhost`: the files of one, which need not exist yet.
struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificate {
    fn new(folder: &Path, name: &str) -> Self {
        Self {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        }
    }

    fn write(&self) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&self.key, made.signing_key.serialize_pem()).unwrap();
        std::fs::write(&self.certificate, made.cert.pem()).unwrap();
    }

    fn config(&self) -> String {
        let text = |path: &Path| path.display().to_string();
        let (certificate, key) = (text(&self.certificate), text(&self.key));
        format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n")
    }

    /// Whether the service has this certificate now.
    fn is_served(&self, serving: &Serving) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(&self.certificate).unwrap();
        roots.add(certificate).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(&serving.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let mut answer = [0; 12];
        let asked = stream.write_all(request);
        asked.and_then(|()| stream.read_exact(&mut answer)).is_ok() && answer == *b"HTTP/1.1 200"
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let ends = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < ends, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_certificate_that_comes_after_its_configuration_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redstart.toml");
    let log = folder.path().join("log");
    let (old, new) = (
        Certificate::new(folder.path(), "old"),
        Certificate::new(folder.path(), "new"),
    );
    old.write();
    std::fs::write(&file, old.config()).unwrap();
    let serving = Serving::with_log(
        &file,
        "memory://",
        std::fs::File::create(&log).unwrap().into(),
    );
    assert!(old.is_served(&serving));
    std::fs::write(&file, new.config()).unwrap();
    until("the configuration is refused", || {
        let log = std::fs::read_to_string(&log).unwrap();
        log.contains("the configuration is unchanged") && log.contains("new.crt")
    });
    assert!(old.is_served(&serving));
    new.write();
    until("the new certificate is served", || new.is_served(&serving));
    // From now on it is the one that is looked at.
    new.write();
    until("its successor is served", || new.is_served(&serving));
}

#[test]
fn a_configuration_is_checked_without_serving() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redstart.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Command::new(env!("CARGO_BIN_EXE_redstart"))
            .args(["serve", "--check", "--config"])
            .arg(&file)
            .env_remove("REDSTART_URL")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let good = check("namespace = \"shop\"\n[limiter.api]\nquota = \"100/m\"\nlease_blocks = 10\n");
    assert!(good.status.success(), "{good:?}");
    for (text, line) in [
        (
            "namespace = \"shop\"\n[limiter.api]\nquota = \"100/fortnight\"\n",
            "line 3",
        ),
        ("namespace = \"shop\"\nnonsense = 1\n", "line 2"),
        (
            "[limiter.api]\nquota = \"100/m\"\nlease_blocks = 1000\n",
            "line 3",
        ),
    ] {
        let bad = check(text);
        assert_eq!(bad.status.code(), Some(2), "{bad:?}");
        let told = String::from_utf8_lossy(&bad.stderr);
        assert!(told.contains(line), "{text}: {told}");
    }
}

#[test]
fn the_demo_is_there_after_one_command() {
    let mut process = Command::new(env!("CARGO_BIN_EXE_redstart"))
        .args(["serve", "--demo", "--listen", "127.0.0.1:0"])
        .env_remove("REDSTART_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(process.stdout.take().unwrap());
    let (mut line, mut address) = (String::new(), None);
    // Both lines are printed before anything is served: the address, and where the shop is.
    for _ in 0..10 {
        line.clear();
        out.read_line(&mut line).unwrap();
        if let Some((_, rest)) = line.split_once("://")
            && line.contains("namespace=shop")
        {
            address = rest.split('/').next().map(str::to_owned);
            break;
        }
    }
    let serving = Serving {
        process,
        address: address.unwrap(),
    };
    let ends = Instant::now() + PATIENCE;
    loop {
        let (status, page) = serving.get("/queues?namespace=shop", None);
        assert_eq!(status, 200, "{page}");
        if page.contains("/queues/mail?") && page.contains("/queues/payments?") {
            break;
        }
        assert!(Instant::now() < ends, "the shop has no queues: {page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
