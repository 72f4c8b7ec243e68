//! Twenty consoles, sixty concurrent buyers, and a worker that confirms the orders from their stream.
//!
//! ```text
//! cargo run -p redstart-examples --example flash_sale
//! cargo run -p redstart-examples --example flash_sale redis://localhost
//! ```

use std::time::Duration;

use redstart::commerce::{Request, Reserve, Stock, Transition};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    let stock = Stock::builder(&store, "example", "console")
        .per_user(2)
        .build()?;
    // A new sale for each run.
    let sku = format!("console-{:x}", rand::random::<u32>());
    let _ = stock.prewarm(&sku, 20, Duration::from_secs(3600)).await?;

    let mut buyers = tokio::task::JoinSet::new();
    for n in 0..60 {
        let (stock, sku) = (stock.clone(), sku.clone());
        buyers.spawn(async move {
            // Every buyer clicks twice, and the second click is the same request.
            let request = Request::new(&sku, &format!("user-{}", n % 40), &format!("click-{n}"));
            let hold = Duration::from_secs(300);
            let first = stock.reserve(&request, 1, hold).await?;
            let second = stock.reserve(&request, 1, hold).await?;
            if let Reserve::Held { .. } = first {
                assert!(matches!(second, Reserve::Replayed(_)));
            }
            Ok::<_, redstart::Error>(first)
        });
    }
    let (mut held, mut sold_out, mut capped) = (0, 0, 0);
    while let Some(answer) = buyers.join_next().await {
        match answer?? {
            Reserve::Held { .. } => held += 1,
            Reserve::SoldOut { .. } => sold_out += 1,
            Reserve::UserCap { .. } => capped += 1,
            other => anyhow::bail!("unexpected: {other:?}"),
        }
    }
    println!("{held} reservations, {sold_out} sold out, {capped} over the cap of two per user");
    println!("  {:?}", stock.report(&sku).await?);

    // One script holds the units and adds the order to the stream, so neither exists without the other.
    let (mut confirmed, mut cancelled) = (0, 0);
    for stream in stock.orders(&sku)? {
        let mut read = redis::cmd("XRANGE");
        read.arg(&stream).arg("-").arg("+");
        let orders: redis::streams::StreamRangeReply = store.query(&read).await?;
        for order in orders.ids {
            let field = |name: &str| order.get::<String>(name).unwrap_or_default();
            let request = Request::new(&field("sku"), &field("user"), &field("request"));
            // Some cards are refused.
            if rand::random_ratio(1, 5) {
                assert_eq!(stock.cancel(&request).await?, Transition::Done);
                cancelled += 1;
            } else {
                assert_eq!(stock.confirm(&request).await?, Transition::Done);
                confirmed += 1;
            }
        }
    }
    println!("{confirmed} confirmed, {cancelled} cancelled");
    let report = stock.report(&sku).await?.expect("the sale is running");
    println!("  {report:?}");
    assert_eq!(report.total(), 20);
    Ok(())
}
