//! A shop's products: SQLite (or Postgres) behind a cache, and everything that keeps the two consistent.
//!
//! ```text
//! cargo run -p redstart-examples --example products                          # all in this process
//! cargo run -p redstart-examples --example products -- redis://localhost     # the cache on a server
//! PRODUCTS_DB=postgres://me@localhost/shop cargo run … --example products    # the rows on Postgres
//! ```
//!
//! It needs no input: it prints where each answer comes from.

use std::time::Duration;

use anyhow::Context;
use redstart::{
    Down, Store,
    caching::{
        Cache, Hit, HitSource, L1, Load, Loaded, Put, SortedView, SqlSink, WriteBehind,
        WriteThrough, Written, XFetch,
    },
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Product {
    name: String,
    brand: String,
    cents: i64,
}

/// The rows. What differs between the two databases is hidden here.
#[derive(Clone)]
enum Db {
    Sqlite(sqlx::SqlitePool),
    Postgres(sqlx::PgPool),
}

/// Runs a statement on either database.
macro_rules! sql {
    ($db:expr, $sql:expr, $($bind:expr),* ; $fetch:ident) => {
        match $db {
            Db::Sqlite(pool) => sqlx::query_as($sql)$(.bind($bind))*.$fetch(pool).await,
            Db::Postgres(pool) => sqlx::query_as($sql)$(.bind($bind))*.$fetch(pool).await,
        }
    };
}

impl Db {
    async fn open(url: &str) -> anyhow::Result<Self> {
        let db = if url.starts_with("postgres") {
            Self::Postgres(sqlx::PgPool::connect(url).await?)
        } else {
            // In memory each connection would be a database of its own.
            let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
            Self::Sqlite(options.connect(url).await?)
        };
        for statement in [
            "CREATE TABLE IF NOT EXISTS products (id BIGINT PRIMARY KEY, name TEXT NOT NULL, brand TEXT NOT NULL, cents BIGINT NOT NULL, version BIGINT NOT NULL)",
            "DELETE FROM products",
            "INSERT INTO products VALUES (1, 'anvil', 'acme', 2000, 1), (2, 'rope', 'acme', 550, 1), (3, 'paint', 'dulux', 899, 1)",
        ] {
            let _: Vec<(i64,)> = sql!(&db, statement, ; fetch_all)?;
        }
        Ok(db)
    }

    /// The slow query that the cache is for.
    async fn product(&self, id: u64) -> sqlx::Result<Option<(Product, u64)>> {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let row: Option<(String, String, i64, i64)> = sql!(
            self,
            "SELECT name, brand, cents, version FROM products WHERE id = $1",
            id as i64 ; fetch_optional
        )?;
        Ok(row
            .map(|(name, brand, cents, version)| (Product { name, brand, cents }, version as u64)))
    }

    async fn set_price(&self, id: u64, cents: i64) -> sqlx::Result<(Product, u64)> {
        let (name, brand, version): (String, String, i64) = sql!(
            self,
            "UPDATE products SET cents = $1, version = version + 1 WHERE id = $2 RETURNING name, brand, version",
            cents, id as i64 ; fetch_one
        )?;
        Ok((Product { name, brand, cents }, version as u64))
    }

    async fn reprice_brand(&self, brand: &str, percent: i64) -> sqlx::Result<()> {
        let _: Vec<(i64,)> = sql!(
            self,
            "UPDATE products SET cents = cents * $1 / 100, version = version + 1 WHERE brand = $2 RETURNING id",
            percent, brand ; fetch_all
        )?;
        Ok(())
    }
}

/// Loads a product, with its tag and its version.
async fn load(db: Db, id: u64, load: Load) -> anyhow::Result<Loaded<Product>> {
    let Some((product, version)) = db.product(id).await? else {
        return Ok(Loaded::Absent);
    };
    load.tag(format!("brand:{}", product.brand))?;
    load.version(version);
    Ok(Loaded::Found(product))
}

struct Shop {
    db: Db,
    cache: Cache<u64, Product>,
}

impl Shop {
    async fn product(&self, id: u64) -> redstart::Result<Hit<Product>> {
        let db = self.db.clone();
        self.cache
            .get_or_load(&id, move |cx| load(db, id, cx))
            .await
    }

    async fn show(&self, id: u64) -> redstart::Result<()> {
        let begun = std::time::Instant::now();
        let hit = self.product(id).await?;
        let what = match &hit.value {
            Some(product) => format!(
                "{} by {} for {} cents",
                product.name, product.brand, product.cents
            ),
            None => "no such product".to_owned(),
        };
        let from = match hit.source {
            HitSource::L1 => "this process",
            HitSource::Store => "the store",
            _ => "the database",
        };
        println!(
            "  product {id}: {what:<36} from {from} in {:?}",
            begun.elapsed()
        );
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    let url = std::env::var("PRODUCTS_DB").unwrap_or_else(|_| "sqlite::memory:".to_owned());
    let db = Db::open(&url)
        .await
        .context("the database cannot be opened")?;
    // A namespace of its own, so that a second run begins cold.
    let namespace = format!("products-{:08x}", rand::random::<u32>());
    let cache = Cache::builder(&store, &namespace, "product")
        .ttl(Duration::from_secs(60))
        .negative_ttl(Duration::from_secs(5))
        .early(XFetch::default())
        .stale_for(Duration::from_secs(600))
        .l1(L1::pubsub(10_000).max_bytes(16 << 20))
        .on_store_down(Down::Allow) // the database is asked directly, with a bounded number of loads
        .build()?;
    while !cache.l1_is_up() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let shop = Shop {
        db: db.clone(),
        cache: cache.clone(),
    };

    println!(
        "A cold read loads; the next ones do not. The cache also remembers that product 9 does not exist."
    );
    for id in [1, 1, 1, 9, 9] {
        shop.show(id).await?;
    }

    println!("\nA hundred readers of a cold product: one of them loads.");
    let before = cache.stats().loads;
    let readers = (0..100).map(|_| shop.product(2));
    futures_util::future::try_join_all(readers).await?;
    println!("  {} load", cache.stats().loads - before);

    println!("\nWrite-through: the row first, then the cache, with a fence around both.");
    let write = WriteThrough::new(&cache);
    let settled = write
        .put(&1, async {
            let (product, version) = db.set_price(1, 2100).await?;
            let tag = format!("brand:{}", product.brand);
            anyhow::Ok(Written::row(product, version).tag(tag)?)
        })
        .await?;
    println!("  {settled:?}");
    shop.show(1).await?;

    println!("\nTags: acme raises its prices; one command makes all of its products misses.");
    shop.show(3).await?;
    db.reprice_brand("acme", 110).await?;
    cache.invalidate_tag("brand:acme").await?;
    for id in [1, 2, 3] {
        shop.show(id).await?;
    }

    println!("\nMany at once: each step is one round trip for all of them.");
    let ids: Vec<u64> = (1..=5).collect();
    let many = db.clone();
    let hits = cache
        .get_or_load_many(&ids, move |cx, ids| {
            let db = many.clone();
            async move {
                let mut found = Vec::new();
                for id in ids {
                    if let Some((product, version)) = db.product(id).await? {
                        cx.tag(&id, format!("brand:{}", product.brand))?;
                        cx.version(&id, version);
                        found.push((id, product));
                    }
                }
                anyhow::Ok(found)
            }
        })
        .await?;
    println!(
        "  {} asked, {} found",
        ids.len(),
        hits.iter().filter(|hit| hit.value.is_some()).count()
    );

    println!("\nWrite-behind: views are counted in the store, and reach the database in batches.");
    views(&store, &namespace, &url).await?;

    println!("\nA sorted view: the products by price, sorted once and kept until its TTL ends.");
    by_price(&store, &namespace, &hits).await?;

    println!("\n{:#?}", cache.stats());
    Ok(())
}

async fn views(store: &Store, namespace: &str, url: &str) -> anyhow::Result<()> {
    let sink = SqlSink::connect(url, "views")
        .await?
        .column("count", |n: &u64| (*n).into())
        .reads(|row| row.integer(0).and_then(|n| u64::try_from(n).ok()));
    sink.create_tables().await?;
    let views = WriteBehind::<u64, u64>::builder(store, namespace, "views", sink).build()?;
    let worker = views.work()?;
    let begun = std::time::Instant::now();
    for n in 1..=500u64 {
        match views.put(&(n % 3), &n).await? {
            Put::Accepted(_) => {}
            Put::Backpressure { waiting } => println!("  the database is behind by {waiting}"),
        }
    }
    println!(
        "  500 writes in {:?}; page 0 has {:?} views",
        begun.elapsed(),
        views.get(&0).await?
    );
    println!("  behind by {} writes", views.lag().await?.total());
    views.flush(Duration::from_secs(30)).await?;
    println!("  after a flush by {}", views.lag().await?.total());
    worker.stop().await;
    Ok(())
}

async fn by_price(store: &Store, namespace: &str, hits: &[Hit<Product>]) -> anyhow::Result<()> {
    let view = SortedView::builder(store, namespace, "by-price", "products")
        .ttl(Duration::from_secs(30))
        .by("info:*->cents")
        .get("info:*->name")
        .get("info:*->cents")
        .build()?;
    let mut pipe = redstart::redis::pipe();
    for (id, product) in hits
        .iter()
        .enumerate()
        .filter_map(|(n, hit)| Some((n + 1, hit.value.as_ref()?)))
    {
        pipe.cmd("SADD").arg(view.source()).arg(id).ignore();
        pipe.cmd("HSET")
            .arg(view.part(&format!("info:{id}")))
            .arg("cents")
            .arg(product.cents)
            .arg("name")
            .arg(&product.name)
            .ignore();
    }
    store.pipeline::<()>(&pipe).await?;
    for row in view.page(0..10).await? {
        println!("  {} for {} cents", row[0], row[1]);
    }
    Ok(())
}
