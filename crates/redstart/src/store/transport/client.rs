//! Connections by the `redis` crate: for pushes of the server, and from a client that the application made.

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, PushInfo, RedisConnectionInfo, aio::MultiplexedConnection,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    error::{Error, Result},
    store::location::{Address, Settings},
};

pub(super) async fn open(
    client: &Client,
    pushes: Option<UnboundedSender<PushInfo>>,
) -> Result<MultiplexedConnection> {
    // Deadlines are kept one level up, over reconnects too; the client's own would only double the timers.
    let mut config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None);
    if let Some(pushes) = pushes {
        config = config.set_push_sender(pushes);
    }
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

pub(super) fn client(
    address: &Address,
    settings: &Settings,
    protocol: ProtocolVersion,
) -> Result<Client> {
    let mut redis = RedisConnectionInfo::default()
        .set_db(settings.db)
        .set_protocol(protocol)
        .set_lib_name("redstart", env!("CARGO_PKG_VERSION"));
    if let Some(username) = &settings.username {
        redis = redis.set_username(username);
    }
    if let Some(password) = &settings.password {
        redis = redis.set_password(password);
    }
    let addr = match address {
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        Address::Tcp { host, port } if settings.tls => ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: false,
            tls_params: None,
        },
        Address::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
    };
    let info: ConnectionInfo = addr.into_connection_info()?.set_redis_settings(redis);
    if settings.tls {
        tls_client(info, settings)
    } else {
        Ok(Client::open(info)?)
    }
}

#[cfg(feature = "tls")]
fn tls_client(info: ConnectionInfo, settings: &Settings) -> Result<Client> {
    // Another crate of the application may have chosen a provider already; then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |path: &std::path::PathBuf, what: &str| {
        std::fs::read(path).map_err(|error| {
            Error::config(format!("{what} {} cannot be read", path.display())).with_source(error)
        })
    };
    let root_cert = settings
        .ca
        .as_ref()
        .map(|path| read(path, "the CA file"))
        .transpose()?;
    let client_tls = match (&settings.client_cert, &settings.client_key) {
        (Some(cert), Some(key)) => Some(redis::ClientTlsConfig {
            client_cert: read(cert, "the certificate")?,
            client_key: read(key, "the key file")?,
        }),
        (None, None) => None,
        _ => return Err(Error::config("cert and key must be given together")),
    };
    Client::build_with_tls(
        info,
        redis::TlsCertificates {
            client_tls,
            root_cert,
        },
    )
    .map_err(|error| Error::config("the TLS settings cannot be used").with_source(error))
}

#[cfg(not(feature = "tls"))]
fn tls_client(_: ConnectionInfo, _: &Settings) -> Result<Client> {
    Err(Error::config("TLS needs the cargo feature `tls`"))
}
