//! An order and its confirmation mail: both, or neither.
//!
//! The order is a row of SQLite; the mail is a job that the same transaction adds. An order that is rolled back sends no
//! mail. A relay moves jobs to the queue after the commit, however often it is killed.
//!
//! ```text
//! cargo run -p redstart-examples --example outbox [redis://localhost]
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use redstart::messaging::{Job, JobContext, Outbox, Queue};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Confirm {
    order: i64,
}

impl Job for Confirm {
    const NAME: &'static str = "confirm";
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = redstart_examples::store().await?;
    let queue = Queue::new(&store, "example", "orders")?;
    let pool = sqlx::sqlite::SqlitePoolOptions::new()
        .max_connections(1)
        .connect("sqlite::memory:")
        .await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, cents BIGINT NOT NULL)")
        .execute(&pool)
        .await?;
    let outbox = Outbox::<sqlx::Sqlite>::new(&queue, "outbox")?;
    outbox.create_table(&pool).await?;
    let relay = outbox.start_relay(&pool);

    let confirmed = Arc::new(AtomicU64::new(0));
    let count = confirmed.clone();
    let worker = queue
        .worker(move |job: Confirm, _: JobContext| {
            let count = count.clone();
            async move {
                println!("  order {} is confirmed", job.order);
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
        .start()
        .await?;

    for order in 1..=4 {
        let mut tx = pool.begin().await?;
        sqlx::query("INSERT INTO orders (id, cents) VALUES ($1, $2)")
            .bind(order)
            .bind(order * 100)
            .execute(&mut *tx)
            .await?;
        outbox.enqueue(&mut tx, &Confirm { order }).await?;
        if order == 3 {
            println!("order 3 is rolled back");
            tx.rollback().await?;
        } else {
            tx.commit().await?;
            relay.notify();
        }
    }
    for _ in 0..500 {
        if confirmed.load(Ordering::SeqCst) == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(confirmed.load(Ordering::SeqCst) == 3);
    relay.shutdown().await;
    worker.shutdown(Duration::from_secs(5)).await?;
    println!("3 orders, 3 confirmations");
    Ok(())
}
