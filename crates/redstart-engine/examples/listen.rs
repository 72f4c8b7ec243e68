//! The engine on a socket: `cargo run -p redstart-engine --example listen -- 127.0.0.1:6380 [dir]`,
//! then `redis-cli -p 6380`.

use redstart_engine::{
    Engine, Fsync,
    server::{Server, ServerConfig},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let addr = args.next().unwrap_or_else(|| "127.0.0.1:6380".into());
    let mut builder = Engine::builder();
    if let Some(dir) = args.next() {
        builder = builder.append_only(dir, Fsync::EverySec);
    }
    let config = ServerConfig::new().listen(addr.parse()?);
    let server = Server::bind(builder.build()?, config).await?;
    if let Some(addr) = server.local_addr() {
        println!("ready on {addr}");
    }
    let interrupted = async {
        // Without a handler for it, the signal ends the process anyway.
        let _ = tokio::signal::ctrl_c().await;
    };
    server.run(interrupted).await;
    Ok(())
}
