//! The embedded engine behind its listener, for tests of several processes.

use anyhow::Context as _;
use redstart_engine::{
    Engine,
    server::{Server, ServerConfig},
};

/// Starts it on a thread of its own, where it lives as long as the process; gives its URL.
pub(crate) fn engine() -> anyhow::Result<String> {
    let (ready, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let engine = Engine::builder().cluster_strict(true).build()?;
            let listen = ServerConfig::new().listen(([127, 0, 0, 1], 0).into());
            let server = Server::bind(engine, listen).await?;
            ready.send(server.local_addr().context("it has an address")?)?;
            server.run(std::future::pending()).await;
            Ok(())
        })
    });
    let address = started.recv().context("the engine did not start")?;
    Ok(format!("redis://{address}"))
}
