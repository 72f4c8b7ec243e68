//! TLS on the listener, with redis-cli.

#![allow(clippy::unwrap_used)]

use std::{net::SocketAddr, path::Path};

use redstart_engine::{
    Engine,
    server::{ClientCertificates, Server, ServerConfig, ServerError, Tls},
};
use redstart_testkit::{redis_cli, tls::Authority};
use tokio::sync::oneshot;

struct Running {
    runtime: tokio::runtime::Runtime,
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
}

impl Running {
    fn start(tls: Tls) -> Running {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let config = ServerConfig::new()
            .listen("127.0.0.1:0".parse().unwrap())
            .tls(tls);
        let bound = Server::bind(Engine::new(), config);
        let server = runtime.block_on(bound).unwrap();
        let addr = server.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        runtime.spawn(server.run(async {
            let _ = stopped.await;
        }));
        Running {
            runtime,
            addr,
            stop: Some(stop),
        }
    }

    /// What redis-cli prints; an error is printed, too.
    fn cli(&self, args: &[&str]) -> String {
        let port = self.addr.port().to_string();
        let mut all = vec!["-h", "127.0.0.1", "-p", &port];
        all.extend(args);
        match redis_cli(&all, "") {
            Ok(text) => text,
            Err(error) => format!("{error:#}"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
        let _ = &self.runtime;
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn redis_cli_speaks_tls_and_others_are_not_understood() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path()).unwrap();
    let server = Running::start(Tls::read(authority.cert_file(), authority.key_file()).unwrap());
    let ca = text(authority.ca_file());
    let tls = ["--tls", "--cacert", ca];
    assert_eq!(server.cli(&[&tls[..], &["SET", "k", "v"]].concat()), "OK\n");
    assert_eq!(server.cli(&[&tls[..], &["GET", "k"]].concat()), "v\n");
    let large = "x".repeat(100_000);
    assert_eq!(
        server.cli(&[&tls[..], &["SET", "large", &large]].concat()),
        "OK\n"
    );
    assert_eq!(
        server.cli(&[&tls[..], &["GET", "large"]].concat()).trim(),
        large
    );
    assert_ne!(server.cli(&["GET", "k"]), "v\n");
    // A certificate of another authority is not trusted.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Authority::create(elsewhere.path()).unwrap();
    assert_ne!(
        server.cli(&["--tls", "--cacert", text(other.ca_file()), "GET", "k"]),
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
        Running::start(Tls::read_with_clients(cert, key, ca, clients).unwrap())
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
    assert_eq!(required.cli(&known), "PONG\n");
    assert_ne!(required.cli(&none), "PONG\n");
    assert_ne!(required.cli(&foreign), "PONG\n");

    let optional = start(ClientCertificates::Optional);
    assert_eq!(optional.cli(&known), "PONG\n");
    assert_eq!(optional.cli(&none), "PONG\n");
    assert_ne!(optional.cli(&foreign), "PONG\n");

    let ignored = start(ClientCertificates::Ignored);
    assert_eq!(ignored.cli(&none), "PONG\n");
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
