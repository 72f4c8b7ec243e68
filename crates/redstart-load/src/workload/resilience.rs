//! Circuit breaker and stock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use redstart::{
    Result, Store,
    commerce::{Request, Reserve, Stock, Transition},
    resilience::{Breaker, CallError, CallWindow, CircuitState},
};

use super::{Bed, Claims, DAY, Op, Tally, Workload, until};

super::patterns! { "resilience and commerce":
    "circuit_breaker", "circuit", 0.1,
    "a healthy dependency is never cut off, and a failing one is", Circuits::open;
    "stock", "reservation", 0.5,
    "free, held and sold units add up to the stock, and not one more can be reserved", Sale::open;
}

/// The write share is the share of calls that fail, below the rate at which a circuit opens.
struct Circuits {
    breakers: Vec<Breaker>,
    claims: Claims,
}

impl Circuits {
    async fn open(bed: &Bed) -> Result<Self> {
        let mut breakers = Vec::new();
        for n in 0..bed.entities(16) {
            bed.gate.pass(0).await;
            let breaker = Breaker::builder(&bed.store, &bed.namespace, &format!("e{n}"))
                .window(CallWindow::Count(100))
                .failure_rate(0.8)
                .min_calls(50)
                .open_for(Duration::from_secs(3600))
                .open()
                .await?;
            breakers.push(breaker);
        }
        Ok(Self {
            breakers,
            claims: Claims::default(),
        })
    }
}

impl Workload for Circuits {
    async fn operate(&self, op: Op) -> Result<()> {
        let breaker = &self.breakers[op.index(self.breakers.len())];
        // Failures beyond half of the calls would be a reason to open.
        let fails = op.write && op.random.is_multiple_of(2);
        let called = breaker
            .call(async || {
                tokio::task::yield_now().await;
                if fails { Err("down") } else { Ok(()) }
            })
            .await;
        self.claims
            .hold(!matches!(called, Err(CallError::Open { .. })), || {
                "a circuit opened although most calls succeeded".to_owned()
            });
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        let breaker = &self.breakers[0];
        let opened = until(|| async {
            for _ in 0..100 {
                let _ = breaker.call(async || Err::<(), _>("down")).await;
            }
            breaker.flush().await?;
            Ok(breaker.state() == CircuitState::Open)
        })
        .await?;
        let refused = breaker.call(async || Ok::<_, &str>(())).await;
        let refused = matches!(refused, Err(CallError::Open { .. }));
        self.claims.hold(opened && refused, || {
            "a circuit stayed closed although every call failed".to_owned()
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.breakers.len() as u64
    }
}

/// Items on sale; the write share is the share of reservations that are cancelled again.
struct Sale {
    stock: Stock,
    store: Store,
    items: Vec<(String, AtomicU64)>,
    sold: Vec<Tally>,
    reservations: AtomicU64,
    claims: Claims,
}

/// Few enough that items sell out under load.
const UNITS: u64 = 200;

impl Sale {
    async fn open(bed: &Bed) -> Result<Self> {
        let stock = Stock::builder(&bed.store, &bed.namespace, "sale")
            .sold_out_memory(Duration::ZERO)
            .build()?;
        let items: Vec<_> = (0..bed.entities(100))
            .map(|n| (format!("e{n}"), AtomicU64::new(0)))
            .collect();
        for (item, _) in &items {
            bed.gate.pass(0).await;
            let _ = stock.prewarm(item, UNITS, DAY).await?;
        }
        Ok(Self {
            stock,
            store: bed.store.clone(),
            sold: items.iter().map(|_| Tally::default()).collect(),
            items,
            reservations: AtomicU64::new(0),
            claims: Claims::default(),
        })
    }
}

impl Sale {
    /// Reserves what is left of the first item: exactly that many units, and no more.
    async fn sell_out(&self) -> Result<()> {
        let item = &self.items[0].0;
        let free = self.stock.report(item).await?.unwrap_or_default().free;
        let mut held = 0;
        for n in 0..=free {
            let id = format!("last{n}");
            let request = Request::new(item, "the-last-user", &id);
            let reserved = self.stock.reserve(&request, 1, DAY).await?;
            held += u64::from(matches!(reserved, Reserve::Held { .. }));
        }
        self.claims.hold(held == free, || {
            format!("{held} units of {item} were reserved of {free} that were free")
        });
        Ok(())
    }
}

impl Workload for Sale {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.items.len());
        let (item, held) = &self.items[index];
        let (user, id) = (format!("user-{}", op.client), format!("r{}", op.number));
        let request = Request::new(item, &user, &id);
        let reserved = self.stock.reserve(&request, 1, DAY).await?;
        if !matches!(reserved, Reserve::Held { .. }) {
            return Ok(());
        }
        held.fetch_add(1, Ordering::Relaxed);
        self.reservations.fetch_add(1, Ordering::Relaxed);
        let transition = if op.write {
            self.stock.cancel(&request).await?
        } else {
            let confirmed = self.stock.confirm(&request).await;
            self.sold[index].add(1, &confirmed);
            confirmed?
        };
        self.claims.hold(
            matches!(transition, Transition::Done | Transition::Repeated),
            || format!("a reservation that was held could not be settled: {transition:?}"),
        );
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        self.sell_out().await?;
        for ((item, _), sold) in self.items.iter().zip(&self.sold) {
            let report = self.stock.report(item).await?.unwrap_or_default();
            self.claims.hold(report.total() == UNITS, || {
                format!("{item} has {} units, it began with {UNITS}", report.total())
            });
            self.claims.hold(sold.explains(report.sold), || {
                format!(
                    "{} of {item} are sold, buyers confirmed {}",
                    report.sold,
                    sold.text()
                )
            });
            let mut orders = 0u64;
            for key in self.stock.orders(item)? {
                let mut len = redstart::redis::cmd("XLEN");
                orders += self.store.query::<u64>(len.arg(key)).await?;
            }
            self.claims.hold(orders >= report.sold, || {
                format!("{item} has {orders} orders for {} sold units", report.sold)
            });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.reservations.load(Ordering::Relaxed)
    }
}
