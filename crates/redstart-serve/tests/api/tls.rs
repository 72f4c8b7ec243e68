//! TLS: real clients, certificates that change while the service runs, and clients that do not speak it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use redstart::Store;
use redstart_serve::{Config, Service, hash_token};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{Served, client::PATIENCE, program::Program};

/// A folder with a certificate for `localhost`, which clients trust by itself.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Result<Self> {
        let files = Self {
            folder: tempfile::tempdir()?,
        };
        files.write()?;
        Ok(files)
    }

    /// Another certificate with another key in the same files.
    fn write(&self) -> Result<()> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        std::fs::write(self.certificate(), made.cert.pem())?;
        std::fs::write(self.key(), made.signing_key.serialize_pem())?;
        Ok(())
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    fn config(&self) -> String {
        let text = |path: &Path| path.display().to_string();
        format!(
            "[limiter.fixed]\nquota = \"5/h\"\n[[domain]]\nname = \"edge\"\n[[domain.descriptor]]\nkey = \"k\"\nlimiter = \"fixed\"\n\
             [tls]\ncertificate = {:?}\nkey = {:?}\n",
            text(&self.certificate()),
            text(&self.key())
        )
    }
}

async fn served(files: &Files) -> Result<Served> {
    let store = Store::connect("memory://").await?;
    Served::on(&store, "tls", &files.config()).await
}

fn browser(served: &Served, files: &Files) -> Result<Program> {
    let (port, authority) = (served.address.port().to_string(), files.certificate());
    let authority = authority.to_str().context("no path")?;
    Program::https(&["localhost", &port, authority])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_clients_are_served_by_tls() -> Result<()> {
    let files = Files::new()?;
    let served = served(&files).await?;
    let mut https = browser(&served, &files)?;
    let reply = https.ask("/readyz").await?;
    ensure!(
        reply["status"] == 200 && reply["version"] == "TLSv1.3",
        "{reply}"
    );
    let reply = https.ask("/v1/locks/x").await?;
    ensure!(reply["status"] == 200, "{reply}");
    let address = format!("localhost:{}", served.address.port());
    let authority = files.certificate();
    let mut gateway = Program::gateway(&[&address, authority.to_str().context("no path")?])?;
    let request = json!({"request": {"domain": "edge", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}});
    let reply = gateway.ask(&request.to_string()).await?;
    ensure!(reply["statuses"][0]["limitRemaining"] == 4, "{reply}");
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_certificate_is_served_after_a_reload_and_a_bad_one_never() -> Result<()> {
    let files = Files::new()?;
    let served = served(&files).await?;
    let reload = || {
        served
            .service
            .reload(Config::parse(&format!(
                "namespace = \"tls\"\n{}",
                files.config()
            ))?)
            .map_err(anyhow::Error::from)
    };
    let mut https = browser(&served, &files)?;
    let first = https.ask("/readyz").await?["certificate"].clone();
    files.write()?;
    reload()?;
    let second = https.ask("/readyz").await?;
    ensure!(second["status"] == 200, "{second}");
    ensure!(second["certificate"] != first, "{second}");
    // A key that is not the certificate's, a file that is cut short, and one that is away.
    let key = std::fs::read(files.key())?;
    let other = Files::new()?;
    std::fs::copy(other.key(), files.key())?;
    let refused = reload()
        .err()
        .context("a foreign key was taken")?
        .to_string();
    ensure!(
        refused.contains("key.pem") && !refused.contains("BEGIN"),
        "{refused}"
    );
    std::fs::write(files.key(), &key[..key.len() / 2])?;
    ensure!(reload().is_err());
    std::fs::remove_file(files.key())?;
    ensure!(reload().is_err());
    let same = https.ask("/readyz").await?;
    ensure!(same["certificate"] == second["certificate"], "{same}");
    // TLS is not switched off while the service runs.
    let plain = Config::parse("namespace = \"tls\"")?;
    ensure!(served.service.reload(plain).is_err());
    ensure!(https.ask("/readyz").await?["status"] == 200);
    let store = Store::connect("memory://").await?;
    ensure!(
        Service::new(&store, Config::parse(&files.config())?).is_err(),
        "the key is away"
    );
    served.stop().await
}

/// Line breaks get lost between a secret manager and a file. The line that remains is the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_key_file_is_refused_without_a_byte_of_the_key() -> Result<()> {
    let files = Files::new()?;
    let served = served(&files).await?;
    let key = std::fs::read_to_string(files.key())?;
    let config = || Config::parse(&format!("namespace = \"tls\"\n{}", files.config()));
    for broken in [
        key.trim_end().replace('\n', ""),
        key.trim_end().replace('\n', "\\n"),
        key.replace('\n', "\\n"),
        key.replace('\n', " "),
    ] {
        for file in [files.key(), files.certificate()] {
            let before = std::fs::read(&file)?;
            std::fs::write(&file, &broken)?;
            let reloaded = served.service.reload(config()?);
            let begun = Service::new(&served.store, config()?).map(|_| ());
            for refused in [reloaded, begun] {
                let said = refused.err().context("it was taken")?.to_string();
                let name = file.file_name().and_then(|name| name.to_str());
                ensure!(said.contains(name.context("no name")?), "{said}");
                for window in broken.as_bytes().windows(8) {
                    let text = String::from_utf8_lossy(window);
                    let numbers = format!("{window:?}");
                    let numbers = numbers.trim_matches(['[', ']']);
                    ensure!(!said.contains(&*text) && !said.contains(numbers), "{said}");
                }
            }
            std::fs::write(&file, before)?;
        }
    }
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_speak_tls_is_refused_and_harms_nobody() -> Result<()> {
    let files = Files::new()?;
    let served = served(&files).await?;
    let mut open = Vec::new();
    for bytes in [
        &b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n"[..],
        b"\x16\x03\x01\xff\xff",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"",
    ] {
        let mut stream = tokio::net::TcpStream::connect(served.address).await?;
        stream.write_all(bytes).await?;
        open.push(stream);
    }
    let mut answer = Vec::new();
    let plain = tokio::time::timeout(PATIENCE, open[0].read_to_end(&mut answer)).await?;
    ensure!(plain.is_err() || !answer.starts_with(b"HTTP"), "{answer:?}");
    let mut https = browser(&served, &files)?;
    ensure!(https.ask("/readyz").await?["status"] == 200);
    let other = Files::new()?;
    let mut distrusts = browser(&served, &other)?;
    let refused = distrusts.ask("/readyz").await?;
    ensure!(refused["error"] == "SSLCertVerificationError", "{refused}");
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_alone_does_not_open_an_address_and_its_cookie_is_secure() -> Result<()> {
    let files = Files::new()?;
    let store = Store::connect("memory://").await?;
    let open = Service::new(&store, Config::parse(&files.config())?)?;
    ensure!(
        open.bind("0.0.0.0:0".parse()?).await.is_err(),
        "TLS is no authentication"
    );
    let hash = hash_token("boss-secret");
    let token = format!("[[token]]\nname = \"boss\"\nsha256 = {hash:?}\nrole = \"admin\"\n");
    let served = Served::on(&store, "tls", &(files.config() + &token)).await?;
    let mut connection = tls_client(&served, &files, &[]).await?;
    let form = "token=boss-secret";
    let request = format!(
        "POST /login HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{form}",
        form.len()
    );
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, connection.read_to_string(&mut answer)).await??;
    ensure!(answer.starts_with("HTTP/1.1 303"), "{answer}");
    let cookie = answer
        .lines()
        .find(|line| line.starts_with("set-cookie"))
        .context("no cookie")?;
    ensure!(
        cookie.contains("Secure") && cookie.contains("HttpOnly"),
        "{cookie}"
    );
    served.stop().await
}

/// By both ways to say nothing: not even the preface, and no request after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_connections_of_http2_do_not_keep_their_places() -> Result<()> {
    let files = Files::new()?;
    let store = Store::connect("memory://").await?;
    let config = format!("{}[limits]\nconnections = 2\n", files.config());
    let served = Served::on(&store, "tls", &config).await?;
    let silent = tls_client(&served, &files, &[b"h2"]).await?;
    ensure!(silent.get_ref().1.alpn_protocol() == Some(&b"h2"[..]));
    // This one answers whatever HTTP/2 asks for.
    let polite = tls_client(&served, &files, &[b"h2"]).await?;
    let polite = hyper_util::rt::TokioIo::new(polite);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (sender, connection) =
        hyper::client::conn::http2::handshake::<_, _, axum::body::Body>(executor, polite).await?;
    let connection = tokio::spawn(connection);
    let mut https = browser(&served, &files)?;
    let reply = https.ask("/healthz").await?;
    ensure!(reply["status"] == 200, "{reply}");
    // The end is an orderly one.
    tokio::time::timeout(PATIENCE, connection).await???;
    drop((silent, sender));
    served.stop().await
}

/// As one on a file system that does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_cannot_be_read_now_holds_up_nobody() -> Result<()> {
    let files = Files::new()?;
    let served = served(&files).await?;
    let mut https = browser(&served, &files)?;
    let before = https.ask("/healthz").await?;
    let pipe = files.folder.path().join("pipe.pem");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status()?;
    ensure!(made.success());
    let name = |path: &Path| format!("{:?}", path.display().to_string());
    let hanging = files
        .config()
        .replace(&name(&files.certificate()), &name(&pipe));
    let hanging = Config::parse(&format!("namespace = \"tls\"\n{hanging}"))?;
    let service = served.service.clone();
    let reload = tokio::task::spawn_blocking(move || service.reload(hanging));
    // Whoever opens a pipe to write waits for a reader: from here on the certificate is being read.
    let writer = tokio::task::spawn_blocking(move || std::fs::File::create(pipe)).await??;
    for _ in 0..2 {
        let reply = https.ask("/healthz").await?;
        ensure!(reply["status"] == 200, "{reply}");
        ensure!(reply["certificate"] == before["certificate"], "{reply}");
    }
    ensure!(!reload.is_finished());
    drop(writer);
    ensure!(reload.await?.is_err(), "nothing was in it");
    ensure!(https.ask("/readyz").await?["status"] == 200);
    served.stop().await
}

async fn tls_client(
    served: &Served,
    files: &Files,
    protocols: &[&[u8]],
) -> Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files.certificate())?)?;
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = tokio::net::TcpStream::connect(served.address).await?;
    Ok(connector.connect("localhost".try_into()?, stream).await?)
}
