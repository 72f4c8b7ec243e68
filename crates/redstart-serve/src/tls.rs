//! TLS of the listener, by rustls.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
};
use serde::Deserialize;

use crate::config::ConfigError;

/// Where the certificate and its key are: PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsConfig {
    /// The certificate, and those that lead to its authority.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// HTTP/2 first: gRPC needs it.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Reads the files. The messages name a file, never what is in it.
pub(crate) fn load(config: &TlsConfig) -> Result<Arc<ServerConfig>, ConfigError> {
    let (certificate, key) = (&config.certificate, &config.key);
    let unreadable = |path: &PathBuf, what: &str, error: &dyn std::fmt::Display| {
        ConfigError::new(&format!(
            "cannot read {what} in {}: {error}",
            path.display()
        ))
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(certificate, "the certificate", &wrong(&error)))?;
    if chain.is_empty() {
        return Err(unreadable(certificate, "the certificate", &"there is none"));
    }
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| unreadable(key, "the private key", &wrong(&error)))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let made = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            // It also checks that the key is the certificate's.
            builder
                .with_no_client_auth()
                .with_single_cert(chain, secret)
        });
    let mut made = made.map_err(|error| {
        ConfigError::new(&format!(
            "the certificate in {} and the key in {} cannot be used: {error}",
            certificate.display(),
            key.display()
        ))
    })?;
    made.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Arc::new(made))
}

/// What is wrong with a PEM file, in fixed words: the parser's own message has the line that it did not understand, and a
/// key whose line breaks were lost is such a line.
fn wrong(error: &pem::Error) -> String {
    let words = match error {
        pem::Error::Io(error) => return error.to_string(),
        pem::Error::NoItemsFound => "there is none",
        pem::Error::MissingSectionEnd { .. } | pem::Error::IllegalSectionStart { .. } => {
            "a section has no beginning or no end on a line of its own"
        }
        pem::Error::Base64Decode(_) => "a section is not base64",
        _ => "it is not in PEM format",
    };
    words.to_owned()
}
