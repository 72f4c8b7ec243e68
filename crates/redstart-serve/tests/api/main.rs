//! The service over real HTTP, on every backend.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod audit;
mod bulk;
mod client;
mod confined;
mod envoy;
mod example;
mod foreign;
mod hostile;
mod large;
mod outage;
mod page;
mod pattern;
mod policy;
mod program;
mod safety;
mod search;
mod tls;
mod trace;
mod watch;

use std::net::SocketAddr;

use anyhow::Result;
use redstart::Store;
use redstart_serve::{Config, Service};
use redstart_testkit::Backend;
use tokio::{sync::oneshot, task::JoinHandle};

use client::Client;

/// A service that runs until it is dropped or stopped.
struct Served {
    address: SocketAddr,
    store: Store,
    service: Service,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Served {
    async fn start(backend: &Backend, config: &str) -> Result<Self> {
        let store = Store::connect(backend.url()).await?;
        Self::on(&store, backend.namespace(), config).await
    }

    async fn on(store: &Store, namespace: &str, config: &str) -> Result<Self> {
        Self::on_server(store, namespace, config, "memory://").await
    }

    /// The same, and the server of this URL is examined.
    async fn on_server(store: &Store, namespace: &str, config: &str, url: &str) -> Result<Self> {
        let config = Config::parse(&format!("namespace = {namespace:?}\n{config}"))?;
        let service = Service::new(store, config)?;
        service.examine(url)?;
        let listener = service.bind("127.0.0.1:0".parse()?).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let running = service.clone();
        let task = tokio::spawn(async move {
            let stopped = async move { drop(stopped.await) };
            running.run(listener, stopped).await;
        });
        Ok(Self {
            address,
            store: store.clone(),
            service,
            stop: Some(stop),
            task,
        })
    }

    fn client(&self) -> Client {
        Client::new(self.address)
    }

    async fn stop(mut self) -> Result<()> {
        drop(self.stop.take());
        (&mut self.task).await?;
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}
