//! Stock: what was put on sale is free, held or sold; nothing is sold twice; every answer is repeated as it was.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    commerce::{Request, ReservationState, Reserve, Stock, Transition},
};

use super::{Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

const SKU: &str = "console";
const CAP: u64 = 3;
const HOUR: Duration = Duration::from_secs(3600);

pub(super) struct Selling {
    units: u64,
    shards: u32,
    sales: Mutex<BTreeMap<String, Sale>>,
}

/// What is known of one request.
#[derive(Clone, Debug, Default)]
struct Sale {
    user: String,
    qty: u64,
    /// It was answered with Held.
    held: bool,
    sold: bool,
    /// It may have been confirmed.
    perhaps: bool,
    ended: bool,
}

impl Selling {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[12]);
        Self {
            units: dice.between(2, 12),
            shards: *dice.pick(&[1, 1, 2, 3]),
            sales: Mutex::default(),
        }
    }

    fn stock(&self, store: &Store) -> Stock {
        let builder = Stock::builder(store, "sim", "sale");
        match builder.per_user(CAP).shards(self.shards).build() {
            Ok(stock) => stock,
            Err(error) => panic!("a stock cannot be made: {error}"),
        }
    }

    async fn prewarm(&self, client: &Client, stock: &Stock) {
        while stock.prewarm(SKU, self.units, HOUR).await.is_err() {
            if client.world.now() > Duration::from_secs(100) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn buy(&self, client: &mut Client, stock: &Stock, number: usize) {
        let world = client.world.clone();
        let user = format!("user{}", client.dice.below(3));
        let id = format!("request-{}-{number}", client.index);
        let request = Request::new(SKU, &user, &id);
        let qty = client.dice.between(1, 2);
        let hold = client.dice.millis(300, 4000);
        {
            let mut sales = self.sales.lock();
            let sale = sales.entry(id.clone()).or_default();
            if sale.qty != 0 {
                // An earlier incarnation asked for it.
                return;
            }
            (sale.user, sale.qty) = (user, qty);
        }
        let mut answered = None;
        for _ in 0..client.dice.between(1, 4) {
            let begun = world.now();
            let call = client
                .perhaps_dropped(100, stock.reserve(&request, qty, hold))
                .await;
            let Some(Ok(answer)) = call else {
                client.rest(10, 300).await;
                continue;
            };
            client.note(format_args!("{id}: {answer:?}"));
            let lost = world.may_have_lost(Duration::ZERO, world.now());
            match answer {
                Reserve::Held { .. } if answered.is_some() && !lost => {
                    world.breach(format!("{id} was held twice"));
                }
                Reserve::Conflict => world.breach(format!("{id} conflicts with itself")),
                Reserve::NotWarmed if !lost && begun < HOUR => {
                    world.breach("the sale is not warmed".to_owned());
                }
                _ => {}
            }
            if matches!(
                answer,
                Reserve::Held { .. } | Reserve::Replayed(ReservationState::Held { .. })
            ) {
                answered = Some(answer);
                if let Some(sale) = self.sales.lock().get_mut(&id) {
                    sale.held = true;
                }
                // Sometimes it is asked for again.
                if client.dice.per_mille(200) {
                    continue;
                }
            }
            break;
        }
        if answered.is_none() {
            return;
        }
        client.rest(0, 3000).await;
        let sells = client.dice.per_mille(600);
        let change = |change: &dyn Fn(&mut Sale)| {
            if let Some(sale) = self.sales.lock().get_mut(&id) {
                change(sale);
            }
        };
        for _ in 0..client.dice.between(1, 3) {
            if sells {
                change(&|sale| sale.perhaps = true);
            }
            let call = async {
                match sells {
                    true => stock.confirm(&request).await,
                    false => stock.cancel(&request).await,
                }
            };
            let call = client.perhaps_dropped(100, call).await;
            let Some(Ok(transition)) = call else {
                client.rest(10, 300).await;
                continue;
            };
            client.note(format_args!("{id}: {transition:?}"));
            match transition {
                Transition::Done | Transition::Repeated if sells => {
                    change(&|sale| sale.sold = true)
                }
                Transition::Refused(_) => change(&|sale| {
                    sale.perhaps = sale.sold;
                    sale.ended = true;
                }),
                _ => change(&|sale| sale.ended = true),
            }
            break;
        }
    }

    async fn look(&self, client: &Client, stock: &Stock) {
        let world = &client.world;
        let Ok(Some(report)) = stock.report(SKU).await else {
            return;
        };
        let total = report.free + report.held + report.sold;
        let lost = world.may_have_lost(Duration::ZERO, world.now());
        // Shards may lose different parts of their past.
        if total != self.units && !(lost && self.shards > 1) {
            world.breach(format!(
                "{} units were put on sale, and {total} are there: {report:?}",
                self.units
            ));
        }
    }
}

impl Workload for Selling {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let stock = self.stock(&store);
            self.prewarm(&client, &stock).await;
            let mut number = 0;
            while client.next_operation() {
                client.rest(0, 700).await;
                number += 1;
                self.buy(&mut client, &stock, number).await;
                if client.dice.per_mille(200) {
                    self.look(&client, &stock).await;
                }
            }
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            // All holds have ended by then.
            tokio::time::sleep(Duration::from_secs(6)).await;
            let world = client.world.clone();
            let store = client.store().await;
            let stock = self.stock(&store);
            self.look(&client, &stock).await;
            if world.may_have_lost(Duration::ZERO, world.now()) {
                return;
            }
            let report = match stock.report(SKU).await {
                Ok(Some(report)) => report,
                other => return world.breach(format!("there is no report: {other:?}")),
            };
            let sales = self.sales.lock();
            let sure: u64 = sales
                .values()
                .filter(|sale| sale.sold)
                .map(|sale| sale.qty)
                .sum();
            let most = sales.values().filter(|sale| sale.sold || sale.perhaps);
            let most: u64 = most.map(|sale| sale.qty).sum();
            if report.held != 0 || report.sold < sure || report.sold > most {
                world.breach(format!(
                    "{sure} to {most} units are sold, and the report says {report:?}"
                ));
            }
            for user in 0..3 {
                let user = format!("user{user}");
                let bought = sales.values().filter(|sale| sale.sold && sale.user == user);
                let bought: u64 = bought.map(|sale| sale.qty).sum();
                if bought > CAP {
                    world.breach(format!(
                        "{user} bought {bought} units, and {CAP} is the most"
                    ));
                }
            }
            for (key, ttl) in world.keys() {
                if ttl < 0 && !key.ends_with(":orders") {
                    world.breach(format!("{key} never expires"));
                }
            }
        })
    }
}
