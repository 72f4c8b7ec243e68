//! TLS on the listener, with redis-cli.

#![allow(clippy::unwrap_used)]

use std::{
    io::{Read as _, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use redstart_engine::{
    Engine, Reply, Session,
    server::{ClientCertificates, ServerConfig, ServerError, Tls},
};
use redstart_testkit::{redis_cli, tls::Authority};

#[path = "listener/running.rs"]
mod running;

use running::Running;

fn start(tls: Tls) -> Running {
    Running::start(Engine::new(), ServerConfig::new().tls(tls))
}

/// What redis-cli prints; an error is printed, too.
fn cli(running: &Running, args: &[&str]) -> String {
    let port = running.addr.port().to_string();
    let mut all = vec!["-h", "127.0.0.1", "-p", &port];
    all.extend(args);
    match redis_cli(&all, "") {
        Ok(text) => text,
        Err(error) => format!("{error:#}"),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn redis_cli_speaks_tls_and_others_are_not_understood() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path()).unwrap();
    let server = start(Tls::read(authority.cert_file(), authority.key_file()).unwrap());
    let ca = text(authority.ca_file());
    let tls = ["--tls", "--cacert", ca];
    assert_eq!(
        cli(&server, &[&tls[..], &["SET", "k", "v"]].concat()),
        "OK\n"
    );
    assert_eq!(cli(&server, &[&tls[..], &["GET", "k"]].concat()), "v\n");
    let large = "x".repeat(100_000);
    assert_eq!(
        cli(&server, &[&tls[..], &["SET", "large", &large]].concat()),
        "OK\n"
    );
    assert_eq!(
        cli(&server, &[&tls[..], &["GET", "large"]].concat()).trim(),
        large
    );
    assert_ne!(cli(&server, &["GET", "k"]), "v\n");
    // A certificate of another authority is not trusted.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Authority::create(elsewhere.path()).unwrap();
    assert_ne!(
        cli(
            &server,
            &["--tls", "--cacert", text(other.ca_file()), "GET", "k"]
        ),
        "v\n"
    );
}

#[test]
fn clients_show_certificates_where_they_are_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path()).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Authority::create(elsewhere.path()).unwrap();
    let start = |clients| {
        let (cert, key, ca) = (
            authority.cert_file(),
            authority.key_file(),
            authority.ca_file(),
        );
        start(Tls::read_with_clients(cert, key, ca, clients).unwrap())
    };
    let ca = text(authority.ca_file());
    let none = vec!["--tls", "--cacert", ca, "PING"];
    let with = |whose: &Authority| -> Vec<String> {
        let (cert, key) = (text(whose.cert_file()), text(whose.key_file()));
        [
            "--tls", "--cacert", ca, "--cert", cert, "--key", key, "PING",
        ]
        .map(str::to_owned)
        .into()
    };
    let (known, foreign) = (with(&authority), with(&other));
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let foreign: Vec<&str> = foreign.iter().map(String::as_str).collect();

    let required = start(ClientCertificates::Required);
    assert_eq!(cli(&required, &known), "PONG\n");
    assert_ne!(cli(&required, &none), "PONG\n");
    assert_ne!(cli(&required, &foreign), "PONG\n");

    let optional = start(ClientCertificates::Optional);
    assert_eq!(cli(&optional, &known), "PONG\n");
    assert_eq!(cli(&optional, &none), "PONG\n");
    assert_ne!(cli(&optional, &foreign), "PONG\n");

    let ignored = start(ClientCertificates::Ignored);
    assert_eq!(cli(&ignored, &none), "PONG\n");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path()).unwrap();
    let nowhere = dir.path().join("nothing.pem");
    let refused = Tls::read(&nowhere, authority.key_file());
    assert!(matches!(refused, Err(ServerError::Tls(text)) if text.contains("nothing.pem")));
    let refused = Tls::read(authority.ca_file(), authority.key_file());
    assert!(matches!(refused, Err(ServerError::Tls(_))));
}

/// A client whose side of the connection holds little.
fn connect_with_a_small_buffer(
    server: &Running,
    authority: &Authority,
) -> rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(authority.ca_file()).unwrap())
        .unwrap();
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let socket = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(server.addr).await.unwrap();
        stream.into_std().unwrap()
    });
    socket.set_nonblocking(false).unwrap();
    let patience = Some(Duration::from_secs(60));
    socket.set_read_timeout(patience).unwrap();
    rustls::StreamOwned::new(client, socket)
}

/// How many bytes the listener has taken on for its clients.
fn taken_on(session: &mut Session) -> usize {
    let args = ["INFO", "stats"].map(Bytes::from);
    let text = match session.execute(&args).into_reply() {
        Some(Reply::Bulk(text) | Reply::Verbatim { text, .. }) => text,
        other => panic!("{other:?}"),
    };
    let text = String::from_utf8(text.to_vec()).unwrap();
    let mut lines = text.lines();
    let bytes = lines.find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    bytes.unwrap().parse().unwrap()
}

#[test]
fn a_client_that_reads_late_gets_the_whole_of_a_reply() {
    const STEP: usize = 24 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path()).unwrap();
    let engine = Engine::new();
    let tls = Tls::read(authority.cert_file(), authority.key_file()).unwrap();
    let server = Running::start(engine.clone(), ServerConfig::new().tls(tls));
    let mut session = engine.session();
    // TLS holds up to 64 KB that the kernel has no room for: one of these lengths ends there.
    let mut beyond = 0;
    for len in (1..200).map(|steps| steps * STEP) {
        let set = [Bytes::from("SET"), Bytes::from("k"), vec![b'x'; len].into()];
        assert_eq!(session.execute(&set).into_reply(), Some(Reply::OK));
        let mut client = connect_with_a_small_buffer(&server, &authority);
        let mut reply = vec![0; format!("${len}\r\n\r\n").len() + len];
        let before = taken_on(&mut session);
        client.write_all(b"GET k\r\n").unwrap();
        client.flush().unwrap();
        let done = || (taken_on(&mut session) >= before + reply.len()).then_some(());
        let done = redstart_testkit::block_until("the reply", Duration::from_millis(500), done);
        client.read_exact(&mut reply).expect("the whole reply");
        beyond += usize::from(done.is_err());
        if beyond == 3 {
            return;
        }
    }
}
