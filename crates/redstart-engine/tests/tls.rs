//! TLS on the listener, with redis-cli, and from a replica to its server.

#![allow(clippy::unwrap_used)]

use std::{
    io::{Read as _, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use redstart_engine::{
    Engine, Master, MasterTls, Reply, Session,
    server::{ClientCertificates, ServerConfig, ServerError, Tls},
};
use redstart_testkit::{Kind, Server, block_until, redis_cli, tls::Authority};

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

/// Line breaks get lost between a secret manager and a file. The line that remains is the key.
#[test]
fn a_malformed_key_file_is_refused_without_a_byte_of_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path()).unwrap();
    let key = std::fs::read_to_string(authority.key_file()).unwrap();
    let file = dir.path().join("broken.pem");
    for broken in [
        key.trim_end().replace('\n', ""),
        key.trim_end().replace('\n', "\\n"),
        key.replace('\n', "\\n"),
        key.replace('\n', " "),
    ] {
        std::fs::write(&file, &broken).unwrap();
        for refused in [
            Tls::read(authority.cert_file(), &file),
            Tls::read(&file, authority.key_file()),
        ] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("broken.pem"), "{said}");
            for window in broken.as_bytes().windows(8) {
                let text = String::from_utf8_lossy(window);
                let numbers = format!("{window:?}");
                let numbers = numbers.trim_matches(['[', ']']);
                assert!(!said.contains(&*text) && !said.contains(numbers), "{said}");
            }
        }
    }
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

const PATIENCE: Duration = Duration::from_secs(60);

fn call(session: &mut Session, words: &[&str]) -> Reply {
    let args: Vec<Bytes> = words
        .iter()
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    session.execute(&args).into_reply().unwrap()
}

fn set(session: &mut Session, name: &str, value: &str) {
    assert_eq!(
        call(session, &["CONFIG", "SET", name, value]),
        Reply::OK,
        "{name}"
    );
}

fn until_connected(engine: &Engine) {
    let connected = || engine.following().filter(|of| of.connected);
    let connected = block_until("the link", PATIENCE, connected);
    assert!(connected.is_ok(), "{:?}", engine.following());
}

/// Waits until the reason why the server is not followed is such a one.
fn error_is(engine: &Engine, such: impl Fn(&str) -> bool) {
    let is = || {
        let error = engine.following()?.error?;
        such(&error).then_some(())
    };
    let found = block_until("the reason", PATIENCE, is);
    assert!(found.is_ok(), "{:?}", engine.following());
}

fn get(session: &mut Session, key: &str, value: &str) {
    let there = || (call(session, &["GET", key]) == Reply::bulk(value)).then_some(());
    block_until("the change", PATIENCE, there).unwrap();
}

#[test]
fn a_replica_follows_its_server_over_tls_as_a_user() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::builder(Kind::Redis)
        .tls()
        .acl("ann", "pw")
        .config("tls-auth-clients", "yes");
    let server = runtime.block_on(server.start()).unwrap();
    let tell = |words: &[&str]| runtime.block_on(server.command(words)).unwrap();
    // More than one record, and more than one read.
    let large = "x".repeat(1_000_000);
    tell(&["SET", "before", &large]);
    let authority = server.authority().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Authority::create(elsewhere.path()).unwrap();

    let engine = Engine::new();
    let mut session = engine.session();
    set(&mut session, "tls-replication", "yes");
    set(&mut session, "tls-ca-cert-file", text(other.ca_file()));
    let port = server.port().to_string();
    assert_eq!(
        call(&mut session, &["REPLICAOF", "127.0.0.1", &port]),
        Reply::OK
    );
    // Each thing that is missing is named, and what is mended is used by the next attempt.
    error_is(&engine, |error| error.contains("invalid peer certificate"));
    set(&mut session, "tls-ca-cert-file", text(authority.ca_file()));
    error_is(&engine, |error| !error.contains("invalid peer certificate"));
    set(
        &mut session,
        "tls-client-cert-file",
        text(authority.cert_file()),
    );
    set(
        &mut session,
        "tls-client-key-file",
        text(authority.key_file()),
    );
    error_is(&engine, |error| error.contains("NOAUTH"));
    set(&mut session, "masteruser", "ann");
    set(&mut session, "masterauth", "wrong");
    error_is(&engine, |error| error.contains("WRONGPASS"));
    set(&mut session, "masterauth", "pw");
    until_connected(&engine);
    assert_eq!(engine.following().unwrap().error, None);
    get(&mut session, "before", &large);
    tell(&["SET", "after", &large]);
    get(&mut session, "after", &large);
    // A link that is cut goes on where it was.
    tell(&["CLIENT", "KILL", "TYPE", "replica"]);
    tell(&["SET", "later", "1"]);
    get(&mut session, "later", "1");
    let partial = runtime.block_on(server.info("sync_partial_ok")).unwrap();
    assert_eq!(partial, "1");
    // And one that ends does so at once.
    assert_eq!(call(&mut session, &["REPLICAOF", "NO", "ONE"]), Reply::OK);
    assert_eq!(call(&mut session, &["SET", "own", "1"]), Reply::OK);

    let copied = |tls: MasterTls| {
        let master = Master::new("127.0.0.1", server.port())
            .credentials(Some("ann".into()), Some("pw".into()))
            .tls(tls);
        Engine::new().copy_from(&master, |_| ())
    };
    let known = MasterTls::new()
        .ca(authority.ca_file())
        .client(authority.cert_file(), authority.key_file());
    assert_eq!(copied(known).unwrap().total(), 3);
    // The system does not know this authority.
    assert!(copied(MasterTls::new()).is_err());
    let nowhere = copied(MasterTls::new().ca(elsewhere.path().join("nothing.pem")));
    let nowhere = nowhere.expect_err("there is no such file").to_string();
    assert!(nowhere.contains("nothing.pem"), "{nowhere}");
}

#[test]
fn an_engine_follows_another_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path()).unwrap();
    let tls = Tls::read(authority.cert_file(), authority.key_file()).unwrap();
    let master = Engine::new();
    let server = Running::start(master.clone(), ServerConfig::new().tls(tls));
    let mut there = master.session();
    call(&mut there, &["SET", "before", "1"]);
    let engine = Engine::new();
    let mut session = engine.session();
    let plain = Master::new("localhost", server.addr.port());
    engine
        .follow(plain.tls(MasterTls::new().ca(authority.ca_file())))
        .unwrap();
    until_connected(&engine);
    get(&mut session, "before", "1");
    call(&mut there, &["SET", "after", "2"]);
    get(&mut session, "after", "2");
}
