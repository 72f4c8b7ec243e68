//! The embedded engine behind a listener of its own, as a program of another language reaches it.

use anyhow::{Context as _, Result};
use redstart_engine::{
    Engine,
    server::{Server, ServerConfig},
};

/// Starts it on a thread, where it lives as long as the process; gives its port. It does not refuse what a Cluster would:
/// most libraries do not run on one.
pub(crate) fn open() -> Result<u16> {
    let (ready, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let engine = Engine::builder().build()?;
            let listen = ServerConfig::new().listen(([127, 0, 0, 1], 0).into());
            let server = Server::bind(engine, listen).await?;
            ready.send(server.local_addr().context("it has an address")?)?;
            server.run(std::future::pending()).await;
            Ok(())
        })
    });
    let address = started.recv().context("the engine did not start")?;
    Ok(address.port())
}
