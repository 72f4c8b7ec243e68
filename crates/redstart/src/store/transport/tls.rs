//! TLS for the wire, by rustls.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
    sync::Arc,
};

use parking_lot::Mutex;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{
    error::{Error, Result},
    store::location::Settings,
};

/// What is encrypted at a time.
const CHUNK: usize = 64 * 1024;

/// An encrypted stream that several tasks may read from and write to without waiting.
pub(crate) struct TlsStream {
    tcp: TcpStream,
    session: Mutex<ClientConnection>,
}

impl TlsStream {
    /// Shakes hands. The server has to prove that it is `host`.
    pub(super) async fn connect(tcp: TcpStream, host: &str, settings: &Settings) -> Result<Self> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Error::config("the host is not a valid name for a certificate"))?;
        let connector = TlsConnector::from(Arc::new(config(settings)?));
        let stream = connector
            .connect(name, tcp)
            .await
            .map_err(redis::RedisError::from)?;
        let (tcp, session) = stream.into_inner();
        Ok(Self {
            tcp,
            session: Mutex::new(session),
        })
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Takes bytes and hands them on as far as the system takes them; the rest is kept for [`Self::try_flush`].
    ///
    /// What was taken counts as sent, also if handing it on fails: it may be several records, and the first of them
    /// may have left. The failure comes again with the next call.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.session.lock();
        self.flush(&mut session)?;
        let taken = session.writer().write(&bytes[..bytes.len().min(CHUNK)])?;
        let _ = self.flush(&mut session);
        Ok(taken)
    }

    pub(super) fn try_flush(&self) -> io::Result<()> {
        self.flush(&mut self.session.lock())
    }

    fn flush(&self, session: &mut ClientConnection) -> io::Result<()> {
        while session.wants_write() {
            session.write_tls(&mut Socket(&self.tcp))?;
        }
        Ok(())
    }

    /// What was decrypted comes first, so that nothing is left behind when the system has no more.
    pub(super) fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        let mut session = self.session.lock();
        loop {
            match session.reader().read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if session.read_tls(&mut Socket(&self.tcp))? == 0 {
                return Ok(0);
            }
            session
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            match self.flush(&mut session) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }
}

/// The socket as rustls wants it.
struct Socket<'a>(&'a TcpStream);

impl io::Read for Socket<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(room)
    }
}

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Read for each connection, so that renewed certificates are used.
fn config(settings: &Settings) -> Result<ClientConfig> {
    // Another crate of the application may have chosen a provider already; then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let unusable =
        |error: rustls::Error| Error::config("the TLS settings cannot be used").with_source(error);
    let mut roots = RootCertStore::empty();
    match &settings.ca {
        Some(path) => {
            for certificate in certificates(path, "the CA file")? {
                roots.add(certificate).map_err(unusable)?;
            }
        }
        // One that cannot be used does not keep the others from being so.
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    match (&settings.client_cert, &settings.client_key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, "the certificate")?;
            let key = PrivateKeyDer::from_pem_slice(&read(key, "the key file")?)
                .map_err(|_| Error::config("the key file contains no private key"))?;
            builder.with_client_auth_cert(chain, key).map_err(unusable)
        }
        (None, None) => Ok(builder.with_no_client_auth()),
        _ => Err(Error::config("cert and key must be given together")),
    }
}

fn certificates(path: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(&read(path, what)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| Error::config(format!("{what} {} is not in PEM format", path.display())))
}

fn read(path: &Path, what: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        Error::config(format!("{what} {} cannot be read", path.display())).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use redstart_testkit::{Kind, Server};
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::store::location::Location;

    #[tokio::test]
    async fn what_was_taken_counts_as_sent_and_the_failure_comes_with_the_next_call()
    -> anyhow::Result<()> {
        let server = Server::builder(Kind::Redis).tls().start().await?;
        let ca = server.authority().expect("it has TLS").ca_file();
        let location = Location::parse(&format!("{}?ca={}", server.url(), ca.display()))?;
        let tcp = TcpStream::connect(server.addr()).await?;
        let mut stream = TlsStream::connect(tcp, "127.0.0.1", &location.settings).await?;
        let ping = b"*1\r\n$4\r\nPING\r\n";
        assert_eq!(stream.try_write(ping)?, ping.len());
        // The system refuses all that is sent from here on.
        stream.tcp.shutdown().await?;
        assert_eq!(stream.try_write(ping)?, ping.len());
        for failure in [stream.try_write(ping).map(drop), stream.try_flush()] {
            assert_eq!(failure.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        }
        Ok(())
    }
}
