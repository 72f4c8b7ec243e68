//! TLS from a replica to its server, by rustls.

use std::{
    io,
    net::TcpStream,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};

use super::link::MasterTls;
use crate::server::tls::wrong;

/// An encrypted connection to a server.
pub(super) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Shakes hands. The server has to prove that it is `host`. The files are read each time, so that
/// renewed certificates are used.
pub(super) fn connect(mut tcp: TcpStream, host: &str, tls: &MasterTls) -> io::Result<TlsStream> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| failed("the host is not a valid name for a certificate"))?;
    let mut session =
        ClientConnection::new(Arc::new(config(tls)?), name).map_err(|error| failed(&error))?;
    while session.is_handshaking() {
        session.complete_io(&mut tcp)?;
    }
    Ok(StreamOwned::new(session, tcp))
}

fn config(tls: &MasterTls) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_root_certificates(roots(tls)?);
    match &tls.client {
        None => Ok(builder.with_no_client_auth()),
        Some((cert, key)) => {
            let chain = certificates(cert)?;
            let key =
                PrivateKeyDer::from_pem_file(key).map_err(|error| in_file(key, &wrong(&error)))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| in_file(cert, &error))
        }
    }
}

/// The trusted authorities: the named ones, otherwise those of the system.
fn roots(tls: &MasterTls) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let mut add = |path: &Path| -> io::Result<()> {
        for root in certificates(path)? {
            roots.add(root).map_err(|error| in_file(path, &error))?;
        }
        Ok(())
    };
    if let Some(path) = &tls.ca {
        add(path)?;
    }
    if let Some(dir) = &tls.ca_dir {
        for path in files(dir)? {
            add(&path)?;
        }
    }
    if tls.ca.is_none() && tls.ca_dir.is_none() {
        // One that cannot be used does not keep the others from being so.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    Ok(roots)
}

fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let list = std::fs::read_dir(dir).map_err(|error| in_file(dir, &error))?;
    let mut paths = Vec::new();
    for entry in list {
        let path = entry?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| in_file(path, &wrong(&error)))?
        .collect();
    list.map_err(|error| in_file(path, &wrong(&error)))
}

fn in_file(path: &Path, why: &dyn std::fmt::Display) -> io::Error {
    failed(format!("{}: {why}", path.display()))
}

fn failed(why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("TLS: {why}"))
}
