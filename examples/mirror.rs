//! A copy of the server in the process: a page reads a leaderboard without the network, while others write to it.
//!
//! Run it with `cargo run -p redstart-examples --example mirror`, or with the address of a Redis or Valkey as its argument:
//! `-- mirror+redis://127.0.0.1:6379`. Without one, it starts an engine behind a listener in place of a server.

use std::time::{Duration, Instant};

use redstart::{
    Store,
    ranking::{Leaderboard, Policy},
};
use redstart_engine::{
    Engine,
    server::{Server, ServerConfig},
};

const READS: u32 = 1000;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = match std::env::args().nth(1) {
        Some(url) => url,
        None => format!("mirror+redis://{}", serve().await?),
    };
    // An answer may be two seconds old.
    let store = Store::connect(&format!("{url}?max_age=2s")).await?;
    let board = Leaderboard::new(&store, "game", "weekly")?;
    for (player, points) in [("ann", 70.0), ("bob", 40.0), ("cid", 90.0)] {
        board.submit(player, points, Policy::Best).await?;
    }
    // The server answers until the copy is complete, so nobody has to wait for it.
    println!("top from the server: {:?}", names(&board).await?);
    while !store.mirror().is_some_and(|mirror| mirror.answers) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let begun = Instant::now();
    for _ in 0..READS {
        board.top(3).await?;
    }
    let each = begun.elapsed() / READS;
    println!(
        "top from the copy:   {:?}, {each:?} each",
        names(&board).await?
    );
    if let Some(mirror) = store.mirror() {
        println!(
            "its age: {:?}, behind by {} bytes",
            mirror.age, mirror.behind
        );
    }
    Ok(())
}

async fn names(board: &Leaderboard) -> redstart::Result<Vec<String>> {
    let top = board.top(3).await?.into_iter();
    Ok(top.map(|entry| entry.member).collect())
}

/// An engine behind a listener; its address.
async fn serve() -> anyhow::Result<std::net::SocketAddr> {
    let config = ServerConfig::new().listen("127.0.0.1:0".parse()?);
    let server = Server::bind(Engine::new(), config).await?;
    let address = server.local_addr();
    tokio::spawn(server.run(std::future::pending()));
    address.ok_or_else(|| anyhow::anyhow!("no TCP address"))
}
