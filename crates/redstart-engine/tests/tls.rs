//! TLS on the listener, with redis-cli.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use redstart_engine::{
    Engine,
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
