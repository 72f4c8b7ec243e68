//! TLS for the wire, by rustls.

use std::{io, path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::target::Access;

/// Shakes hands. The server has to prove that it is `host`.
pub(crate) async fn connect(
    tcp: TcpStream,
    host: &str,
    access: &Access,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| io::Error::other("the host is not a valid name for a certificate"))?;
    TlsConnector::from(Arc::new(config(access)?))
        .connect(name, tcp)
        .await
}

fn config(access: &Access) -> io::Result<ClientConfig> {
    // Another crate of the program may have chosen a provider already; then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    match &access.ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(io::Error::other)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    match (&access.cert, &access.key) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(&std::fs::read(key)?)
                .map_err(|_| io::Error::other("the key file contains no private key"))?;
            builder
                .with_client_auth_cert(certificates(cert)?, key)
                .map_err(io::Error::other)
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(&std::fs::read(path)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| io::Error::other("the certificate file is not in PEM format"))
}
