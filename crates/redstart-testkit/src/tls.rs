//! A certificate authority for one test, and a server certificate signed by it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// The files of one authority: what a server and its clients need for TLS.
#[derive(Debug, Clone)]
pub struct Authority {
    ca: PathBuf,
    ca_pem: String,
    cert: PathBuf,
    key: PathBuf,
}

impl Authority {
    /// Makes an authority and a certificate for `localhost`, `127.0.0.1` and `::1` in `dir`.
    ///
    /// # Errors
    ///
    /// If the files cannot be written.
    pub fn create(dir: &Path) -> Result<Self> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        ca.distinguished_name
            .push(DnType::CommonName, "redstart test authority");
        let ca_cert = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);

        let server_key = KeyPair::generate()?;
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let mut server = CertificateParams::new(names)?;
        server
            .distinguished_name
            .push(DnType::CommonName, "localhost");
        let server_cert = server.signed_by(&server_key, &issuer)?;

        let authority = Self {
            ca: dir.join("ca.pem"),
            ca_pem: ca_cert.pem(),
            cert: dir.join("server.pem"),
            key: dir.join("server.key"),
        };
        std::fs::write(&authority.ca, &authority.ca_pem)?;
        std::fs::write(&authority.cert, server_cert.pem())?;
        std::fs::write(&authority.key, server_key.serialize_pem())?;
        Ok(authority)
    }

    /// The authority's certificate, as a file.
    pub fn ca_file(&self) -> &Path {
        &self.ca
    }

    /// The authority's certificate, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The server's certificate, as a file.
    pub fn cert_file(&self) -> &Path {
        &self.cert
    }

    /// The server's private key, as a file.
    pub fn key_file(&self) -> &Path {
        &self.key
    }
}
