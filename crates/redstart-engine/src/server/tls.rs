//! TLS for the listener, by rustls.

use std::{path::Path, sync::Arc};

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    server::WebPkiClientVerifier,
};
use tokio_rustls::TlsAcceptor;

use super::ServerError;

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    Ignored,
    /// One that is shown must be signed by the authority.
    Optional,
    /// Each client must show one that is signed by the authority.
    Required,
}

/// The certificate and the key of a [`super::Server`]: every TCP connection is encrypted. Unix sockets
/// are not.
#[derive(Clone)]
pub struct Tls {
    config: Arc<rustls::ServerConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

fn failed(what: &str, path: &Path, error: impl std::fmt::Display) -> ServerError {
    ServerError::Tls(format!("{what} {}: {error}", path.display()))
}

/// What is wrong with a PEM file, in fixed words: the parser's own message has the line that it did not
/// understand, and a key whose line breaks were lost is such a line.
pub(crate) fn wrong(error: &pem::Error) -> String {
    let words = match error {
        pem::Error::Io(error) => return error.to_string(),
        pem::Error::NoItemsFound => "there is none in it",
        pem::Error::MissingSectionEnd { .. } | pem::Error::IllegalSectionStart { .. } => {
            "a section has no beginning or no end on a line of its own"
        }
        pem::Error::Base64Decode(_) => "a section is not base64",
        _ => "it is not in PEM format",
    };
    words.to_owned()
}

fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerError> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| failed(what, path, wrong(&error)))?
        .collect();
    let list = list.map_err(|error| failed(what, path, wrong(&error)))?;
    match list.is_empty() {
        true => Err(failed(what, path, "there is no certificate in it")),
        false => Ok(list),
    }
}

impl Tls {
    /// Reads a certificate chain and its key, both in PEM form; clients show no certificate.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or the key is not that of the certificate.
    pub fn read(cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Tls, ServerError> {
        Tls::make(cert.as_ref(), key.as_ref(), None)
    }

    /// As [`Tls::read`], for clients with certificates that an authority in the file `ca` has signed.
    ///
    /// # Errors
    ///
    /// As [`Tls::read`].
    pub fn read_with_clients(
        cert: impl AsRef<Path>,
        key: impl AsRef<Path>,
        ca: impl AsRef<Path>,
        clients: ClientCertificates,
    ) -> Result<Tls, ServerError> {
        Tls::make(cert.as_ref(), key.as_ref(), Some((ca.as_ref(), clients)))
    }

    fn make(
        cert: &Path,
        key: &Path,
        clients: Option<(&Path, ClientCertificates)>,
    ) -> Result<Tls, ServerError> {
        let chain = certificates("certificate", cert)?;
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|error| failed("key", key, wrong(&error)))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| ServerError::Tls(error.to_string()))?;
        let builder = match clients {
            None | Some((_, ClientCertificates::Ignored)) => builder.with_no_client_auth(),
            Some((ca, wanted)) => {
                let mut roots = RootCertStore::empty();
                for root in certificates("authority", ca)? {
                    roots
                        .add(root)
                        .map_err(|error| failed("authority", ca, error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match wanted {
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                    _ => verifier,
                };
                let verifier = verifier
                    .build()
                    .map_err(|error| failed("authority", ca, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder
            .with_single_cert(chain, private)
            .map_err(|error| failed("certificate", cert, error))?;
        Ok(Tls {
            config: Arc::new(config),
        })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.clone())
    }
}
