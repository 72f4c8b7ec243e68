//! Sorted views: nothing that was sorted before an invalidation is read after it, one client builds a view at a time,
//! and no view is older than its TTL.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{Error, Store, caching::SortedView};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{History, overlapping},
    plan::Shape,
    world::World,
};

/// What is known of the price of a product. It only ever rises.
#[derive(Clone, Debug, Default)]
struct Price {
    /// How often it may have been raised.
    raised: u64,
    /// Prices that were acknowledged: when that was sent, and when the answer came.
    known: Vec<(u64, Duration, Duration)>,
    /// The highest that was announced by an invalidation, and when it was sent.
    announced: (u64, Duration),
}

pub(super) struct Sorting {
    ttl: Duration,
    prices: Vec<Mutex<Price>>,
    /// When the view was read.
    reads: History<()>,
}

/// A call takes up to eight deadlines while others build, and then as many as building and reading take.
const REQUESTS: u32 = 18;

impl Sorting {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[50]);
        let prices = (0..dice.between(1, 3)).map(|_| Mutex::default());
        Self {
            prices: prices.collect(),
            ttl: dice.millis(1000, 6000),
            reads: History::default(),
        }
    }

    fn view(&self, client: &Client, store: &Store, source: &str) -> SortedView {
        // Two programs share a view and keep it for other times.
        let ttl = match client.has_other_settings() {
            true => self.ttl / 2,
            false => self.ttl,
        };
        let view = SortedView::builder(store, "sim", "by-price", source)
            .by("price:*")
            .get("#")
            .get("price:*")
            .ttl(ttl);
        match view.build() {
            Ok(view) => view,
            Err(error) => panic!("a view cannot be made: {error}"),
        }
    }

    /// Raises a price and says so until that is heard.
    async fn write(&self, client: &mut Client, store: &Store, view: &SortedView, product: usize) {
        let world = client.world.clone();
        let sent = world.now();
        let mut add = redis::cmd("SADD");
        add.arg(view.source()).arg(product);
        let added = client.call("add", 1, store.query::<u64>(&add)).await;
        if !matches!(added, Some(Ok(_))) {
            return;
        }
        let price = &self.prices[product];
        price.lock().raised += 1;
        let mut raise = redis::cmd("INCR");
        raise.arg(view.part(&format!("price:{product}")));
        let Some(Ok(value)) = client.call("raise", 1, store.query::<u64>(&raise)).await else {
            return;
        };
        client.note(format_args!("product {product} costs {value}"));
        price.lock().known.push((value, sent, world.now()));
        for _ in 0..client.dice.between(1, 4) {
            let told = client.call("invalidate", 1, view.invalidate()).await;
            if let Some(Ok(())) = told {
                client.note(format_args!("{value} of {product} is announced"));
                let mut price = price.lock();
                // What was announced before a loss may be lower and count no more.
                let (known, since) = price.announced;
                if value > known || world.may_have_lost(since, world.now()) {
                    price.announced = (value, sent);
                }
                return;
            }
            client.rest(10, 300).await;
        }
    }

    async fn read(&self, client: &mut Client, view: &SortedView) -> Option<Result<(), Error>> {
        let world = client.world.clone();
        let before: Vec<Price> = self
            .prices
            .iter()
            .map(|price| price.lock().clone())
            .collect();
        let from = world.now();
        let limit = world.plan.deadline * REQUESTS;
        let number = self.reads.begin((), from);
        let page = client
            .call_within(100, "page", limit, view.page(0..10))
            .await?;
        self.reads.end(number, (), world.now());
        let rows = match page {
            Ok(rows) => rows,
            Err(error) => return Some(Err(error)),
        };
        client.note(format_args!("reads {rows:?}"));
        let row = |row: &Vec<String>| {
            // A product that has no price yet.
            let price = row.get(1).filter(|price| !price.is_empty());
            let price = price.map_or(Some(0), |price| price.parse().ok());
            Some((row.first()?.parse().ok()?, price?))
        };
        let read: Vec<(usize, u64)> = rows.iter().filter_map(row).collect();
        // A client that sorts itself does not look at all keys at one moment.
        let at_once = world.plan.shape != Shape::Cluster;
        if at_once && (read.len() < rows.len() || !read.is_sorted_by_key(|(_, price)| *price)) {
            world.breach(format!("a view is not sorted: {rows:?}"));
        }
        for (product, before) in before.iter().enumerate() {
            let shown = read.iter().find(|(other, _)| *other == product);
            let shown = shown.map_or(0, |(_, price)| *price);
            if shown > self.prices[product].lock().raised {
                world.breach(format!("product {product} never cost {shown}"));
            }
            let (least, since) = before.announced;
            if shown < least && !world.may_have_lost(since, world.now()) {
                world.breach(format!(
                    "client {} reads {shown} for product {product} after {least} was announced",
                    client.index
                ));
            }
            // What the client sorts itself was read under a lease of two deadlines.
            let old = self.ttl + world.plan.deadline * 2 + Duration::from_millis(5);
            let known = before.known.iter().filter(|(_, sent, to)| {
                *to + old < from && !world.may_have_lost(*sent, world.now())
            });
            let least = known.map(|(price, ..)| *price).max().unwrap_or(0);
            if shown < least && !world.plan.clocks_differ {
                world.breach(format!(
                    "client {} reads {shown} for product {product}, which has cost {least} for longer than the TTL",
                    client.index
                ));
            }
        }
        Some(Ok(()))
    }
}

impl Workload for Sorting {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let view = self.view(&client, &store, "products");
            while client.next_operation() {
                client.rest(0, 500).await;
                let product = client.dice.below(self.prices.len() as u64) as usize;
                match client.dice.per_mille(350) {
                    true => self.write(&mut client, &store, &view, product).await,
                    false => drop(self.read(&mut client, &view).await),
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let view = self.view(client, store, &format!("works{}", client.index));
        let store = store.clone();
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            let mut add = redis::cmd("SADD");
            store
                .query::<u64>(add.arg(view.source()).arg(1))
                .await
                .map_err(failed)?;
            view.invalidate().await.map_err(failed)?;
            match view.page(0..1).await.map_err(failed)?.len() {
                1 => Ok(()),
                count => Err(format!("{count} rows instead of one")),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let view = self.view(&client, &store, "products");
            for product in 0..self.prices.len() {
                self.write(&mut client, &store, &view, product).await;
                if let Some(Err(error)) = self.read(&mut client, &view).await {
                    world.breach(format!("the view cannot be read: {error}"));
                }
            }
            let met = overlapping(&self.reads.events());
            world.count(|tally| tally.contended += met);
            for (from, to, text) in world.seen.views.oddities() {
                if !world.may_have_lost(from, to) && !world.clock_jumped(from, to) {
                    world.breach(text);
                }
            }
            for (key, ttl) in world.keys() {
                if ttl < 0 && key.contains(":view:") {
                    world.breach(format!("{key} never expires"));
                }
            }
        })
    }
}
