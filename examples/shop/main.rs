//! A shop that composes the patterns on axum and SQLite: session user → limit → idempotency key → stock → circuit
//! breaker → queue → leaderboard.
//!
//! ```text
//! cargo run -p redstart-examples --example shop [redis://localhost]
//! ```
//!
//! How the patterns compose:
//!
//! - **Session.** Which of the two routes? The cookie layer of `redstart-tower` for a new service, as here: its user is
//!   the subject of the limit and the owner of the idempotency keys. `SessionStore` for one that uses tower-sessions.
//! - **Limit before idempotency key.** A repeat costs a token like any request; otherwise repeats would be free.
//! - **One name for one order.** The idempotency key names the hold, the charge, the row and the job, so that each step
//!   can be repeated without harm.
//! - **Breaker before stock.** While the bank is known to be down, nothing is held.
//! - **What becomes of the hold when the payment fails?** Declined: cancel it, the units are free at once. No answer from
//!   the bank: keep it, since the customer may have been charged; it ends after ten minutes.
//! - **5xx or not?** An answer of 500 and above frees the idempotency key, and a repeat runs the handler again: right
//!   for "the bank does not answer", because the bank charges an order once. A declined card is an answer that is kept.
//! - **Queue.** What the customer does not wait for is a job. It may run twice, so each effect runs under `cx.once`.
//!
//! `examples/tests/shop.rs` tests all of it with a clock that it moves.

mod browser;
mod service;

use anyhow::{Result, ensure};
use std::time::Duration;

use browser::Browser;
use service::{HOLD, Mood, Shop};

#[tokio::main]
async fn main() -> Result<()> {
    let store = redstart_examples::store().await?;
    let namespace = format!("example-shop-{:08x}", rand::random::<u32>());
    let shop = Shop::open(&store, &namespace).await?;
    let routes = shop.routes(&store, &namespace)?;
    let worker = shop.worker().await?;
    let _ = shop
        .stock
        .prewarm("tea", 3, Duration::from_secs(3600))
        .await?;

    println!("ann buys tea, and her browser sends the order twice");
    let ann = Browser::login(&routes, "ann").await?;
    for _ in 0..2 {
        println!("  {:?}", ann.buy("tea", "order-1").await?);
    }
    ensure!(shop.bank.charged().len() == 1, "she pays once");

    println!("bob's card is declined, and his units are free again");
    let bob = Browser::login(&routes, "bob").await?;
    shop.bank.set(Mood::Declines);
    println!("  {:?}", bob.buy("tea", "order-2").await?);
    println!("  {:?}", shop.stock.report("tea").await?);

    println!("the bank's answer is lost: the hold stays for {HOLD:?}, and a repeat finds out");
    shop.bank.set(Mood::LosesAnswers);
    println!("  {:?}", bob.buy("tea", "order-3").await?);
    println!("  {:?}", shop.stock.report("tea").await?);
    shop.bank.set(Mood::Pays);
    println!("  {:?}", bob.buy("tea", "order-3").await?);
    ensure!(shop.bank.charged().len() == 2, "he pays once");

    while shop.unfinished().await? > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for entry in shop.board.top(3).await? {
        println!("  {} bought {}", entry.member, entry.score);
    }
    let _ = worker.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}
