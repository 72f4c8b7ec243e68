//! The shop of `examples/shop`, with a clock that the tests move.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../shop/browser.rs"]
mod browser;
#[path = "../shop/service.rs"]
mod service;

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use axum::Router;
use redstart::Store;

use browser::Browser;
use service::{BANK_PAUSE, HOLD, Mood, Shop};

async fn open(tea: u64) -> Result<(Store, Arc<Shop>, Router)> {
    let store = Store::connect("memory://").await?;
    let shop = Shop::open(&store, "shop").await?;
    let _ = shop
        .stock
        .prewarm("tea", tea, Duration::from_secs(86_400))
        .await?;
    let routes = shop.routes(&store, "shop")?;
    Ok((store, shop, routes))
}

impl Shop {
    async fn units(&self) -> (u64, u64, u64) {
        let report = self.stock.report("tea").await.unwrap().unwrap();
        (report.free, report.held, report.sold)
    }

    async fn orders(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT COUNT(*) FROM orders");
        count.fetch_one(&self.orders).await.unwrap()
    }
}

#[tokio::test]
async fn an_order_that_is_sent_twice_is_paid_once_and_counted_once() -> Result<()> {
    let (_store, shop, routes) = open(3).await?;
    let worker = shop.worker().await?;
    let ann = Browser::login(&routes, "ann").await?;
    let first = ann.buy("tea", "a").await?;
    assert_eq!(first, (201, "order a".to_owned()));
    assert_eq!(ann.buy("tea", "a").await?, first);
    assert_eq!(
        ann.buy("coffee", "a").await?.0,
        422,
        "the key belongs to another order"
    );
    assert_eq!((shop.bank.charged().len(), shop.orders().await), (1, 1));
    assert_eq!(shop.units().await, (2, 0, 1));
    while shop.unfinished().await? > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let top = shop.board.top(1).await?;
    assert_eq!((top[0].member.as_str(), top[0].score), ("ann", 1.0));
    let _ = worker.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

#[tokio::test]
async fn a_declined_payment_frees_the_hold_at_once() -> Result<()> {
    let (_store, shop, routes) = open(1).await?;
    shop.bank.set(Mood::Declines);
    let ann = Browser::login(&routes, "ann").await?;
    assert_eq!(ann.buy("tea", "a").await?.0, 402);
    assert_eq!(shop.units().await, (1, 0, 0));
    shop.bank.set(Mood::Pays);
    assert_eq!(
        ann.buy("tea", "a").await?.0,
        402,
        "the answer to this order is kept"
    );
    assert_eq!(ann.buy("tea", "b").await?.0, 201);
    assert_eq!(ann.buy("tea", "c").await?, (409, "sold out".to_owned()));
    Ok(())
}

#[tokio::test]
async fn a_hold_whose_payment_is_unknown_waits_for_the_repeat_and_ends_without_one() -> Result<()> {
    let (store, shop, routes) = open(2).await?;
    let ann = Browser::login(&routes, "ann").await?;
    shop.bank.set(Mood::LosesAnswers);
    assert_eq!(ann.buy("tea", "a").await?.0, 503);
    assert_eq!(ann.buy("tea", "b").await?.0, 503);
    assert_eq!(shop.units().await, (0, 2, 0));
    // One customer comes back, the other does not.
    shop.bank.set(Mood::Pays);
    assert_eq!(ann.buy("tea", "a").await?.0, 201);
    assert_eq!(
        shop.bank.charged(),
        ["a", "b"],
        "the bank charged each order once"
    );
    store.advance(HOLD + Duration::from_secs(1))?;
    assert_eq!(shop.units().await, (1, 0, 1));
    Ok(())
}

#[tokio::test]
async fn the_circuit_to_a_bank_that_fails_opens_and_closes_again() -> Result<()> {
    let (store, shop, routes) = open(100).await?;
    let buy = async |user: &str| -> Result<u16> {
        let browser = Browser::login(&routes, user).await?;
        Ok(browser.buy("tea", user).await?.0)
    };
    shop.bank.set(Mood::LosesAnswers);
    // Outcomes are reported in the background, so the circuit opens soon after enough failures, not at once.
    let mut asked = 0;
    for n in 0..90 {
        assert_eq!(buy(&format!("user-{n}")).await?, 503);
        if shop.bank.charged().len() == asked {
            break;
        }
        asked = shop.bank.charged().len();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(asked < 90, "the circuit did not open");
    shop.bank.set(Mood::Pays);
    assert_eq!(
        buy("ann").await?,
        503,
        "nothing is asked while the circuit is open"
    );
    assert_eq!(shop.bank.charged().len(), asked);
    store.advance(BANK_PAUSE + Duration::from_secs(1))?;
    assert_eq!(buy("bob").await?, 201);
    Ok(())
}

#[tokio::test]
async fn buyers_are_limited_and_logged_out_by_the_clock() -> Result<()> {
    let (store, _shop, routes) = open(100).await?;
    let ann = Browser::login(&routes, "ann").await?;
    for n in 0..5 {
        assert_eq!(ann.buy("tea", &format!("a{n}")).await?.0, 201);
    }
    assert_eq!(ann.buy("tea", "a5").await?.0, 429);
    let bob = Browser::login(&routes, "bob").await?;
    assert_eq!(
        bob.buy("tea", "b").await?.0,
        201,
        "another user has a limit of their own"
    );
    store.advance(Duration::from_secs(60))?;
    assert_eq!(ann.buy("tea", "a5").await?.0, 201);
    store.advance(Duration::from_secs(31 * 60))?;
    assert_eq!(
        ann.buy("tea", "a6").await?.0,
        401,
        "the session was idle for too long"
    );
    Ok(())
}
