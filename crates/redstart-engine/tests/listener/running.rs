//! A listener in the process of the test.

use std::net::SocketAddr;

use redstart_engine::{
    Engine,
    server::{Server, ServerConfig},
};
use tokio::sync::oneshot;

/// A server on a free port, stopped with the value.
pub(crate) struct Running {
    _runtime: tokio::runtime::Runtime,
    pub(crate) addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
}

impl Running {
    /// With these settings, besides the address.
    pub(crate) fn start(engine: Engine, config: ServerConfig) -> Running {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let config = config.listen("127.0.0.1:0".parse().unwrap());
        let server = runtime.block_on(Server::bind(engine, config)).unwrap();
        let addr = server.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        runtime.spawn(server.run(async {
            let _ = stopped.await;
        }));
        Running {
            _runtime: runtime,
            addr,
            stop: Some(stop),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}
