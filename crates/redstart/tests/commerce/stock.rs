//! Stock, through races, lost answers and killed processes.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use rand::RngExt as _;
use redstart::{
    Store,
    commerce::{
        Extension, Prewarm, Request, ReservationState as State, Reserve, Restock, Stock, Transition,
    },
};
use redstart_testkit::{
    Backend, Child, Kind, MonitorTap, Proxy, Server, child, eventually, figure, matrix, scale,
    wait_until,
};

const HOUR: Duration = Duration::from_secs(3600);
const HOLD: Duration = Duration::from_secs(300);
const SHOPPING: Duration = Duration::from_secs(600);

/// All entries of streams.
async fn entries(
    store: &Store,
    streams: Vec<redstart::key::Key>,
) -> anyhow::Result<Vec<redis::streams::StreamId>> {
    let mut found = Vec::new();
    for stream in streams {
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(&stream).arg("-").arg("+");
        let entries: redis::streams::StreamRangeReply = store.query(&cmd).await?;
        found.extend(entries.ids);
    }
    Ok(found)
}

fn field(entry: &redis::streams::StreamId, name: &str) -> String {
    entry.get(name).unwrap_or_default()
}

/// All orders of a SKU: user, request, quantity.
async fn orders(
    store: &Store,
    stock: &Stock,
    sku: &str,
) -> anyhow::Result<Vec<(String, String, u64)>> {
    let mut found = Vec::new();
    for entry in entries(store, stock.orders(sku)?).await? {
        assert_eq!(field(&entry, "sku"), sku);
        let (user, request) = (field(&entry, "user"), field(&entry, "request"));
        found.push((user, request, field(&entry, "qty").parse()?));
    }
    Ok(found)
}

/// All reservations of a SKU that expired: user, request, quantity, and the microsecond at which the hold ended.
async fn expirations(
    store: &Store,
    stock: &Stock,
    sku: &str,
) -> anyhow::Result<Vec<(String, String, u64, u64)>> {
    let mut found = Vec::new();
    for entry in entries(store, stock.expirations(sku)?).await? {
        let (user, request) = (field(&entry, "user"), field(&entry, "request"));
        let (qty, ended) = (field(&entry, "qty"), field(&entry, "ended"));
        found.push((user, request, qty.parse()?, ended.parse()?));
    }
    Ok(found)
}

/// The sale of a SKU is over. Where the clock cannot be advanced, the keys that say when are removed.
async fn end_sale(backend: &Backend, store: &Store, sku: &str, shards: u32) -> anyhow::Result<()> {
    if backend.is_embedded() {
        // A key is there until its last millisecond is over.
        store.advance(HOUR + Duration::from_millis(1))?;
        return Ok(());
    }
    for shard in 0..shards {
        let (pattern, id) = match shards {
            1 => ("stock", sku.to_owned()),
            _ => ("stock_shard", format!("{shard}.{shards}/{sku}")),
        };
        let keys = redstart::key::Keys::named(backend.namespace(), pattern, "sale")?;
        let mut cmd = redis::cmd("DEL");
        store.query::<()>(cmd.arg(keys.entity(&id)?.key())).await?;
    }
    Ok(())
}

fn held(answer: Reserve) -> bool {
    matches!(answer, Reserve::Held { .. })
}

matrix! {
    async fn a_reservation_is_settled_once(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").per_user(3).build()?;
        let request = |user: &str, id: &str| Request::new("tea", user, id);
        let counts = async || -> anyhow::Result<(u64, u64, u64)> {
            let report = stock.report("tea").await?.expect("on sale");
            assert_eq!(report.total(), 10);
            Ok((report.free, report.held, report.sold))
        };
        // Missing stock is not zero stock.
        assert_eq!(stock.reserve(&request("ann", "1"), 1, HOLD).await?, Reserve::NotWarmed);
        assert!(stock.report("tea").await?.is_none());
        assert_eq!(stock.prewarm("tea", 10, HOUR).await?, Prewarm::Warmed);
        assert_eq!(stock.prewarm("tea", 99, HOUR).await?, Prewarm::Running);
        assert_eq!(counts().await?, (10, 0, 0));

        assert!(held(stock.reserve(&request("ann", "1"), 2, HOLD).await?));
        // The same request again is the same reservation; another quantity is a mistake.
        let Reserve::Replayed(State::Held { left }) = stock.reserve(&request("ann", "1"), 2, HOLD).await? else { panic!() };
        assert!(left <= HOLD && !left.is_zero());
        assert_eq!(stock.reserve(&request("ann", "1"), 3, HOLD).await?, Reserve::Conflict);
        assert_eq!(counts().await?, (8, 2, 0));
        assert_eq!(stock.reserve(&request("ann", "2"), 2, HOLD).await?, Reserve::UserCap { left: 1 });
        // Another user's request of the same id is another request.
        assert!(held(stock.reserve(&request("bob", "1"), 3, HOLD).await?));
        assert!(held(stock.reserve(&request("cid", "1"), 3, HOLD).await?));
        assert_eq!(stock.reserve(&request("dan", "1"), 3, HOLD).await?, Reserve::SoldOut { free: 2 });
        assert_eq!(counts().await?, (2, 8, 0));

        assert_eq!(stock.confirm(&request("ann", "1")).await?, Transition::Done);
        assert_eq!(stock.confirm(&request("ann", "1")).await?, Transition::Repeated);
        assert_eq!(stock.cancel(&request("ann", "1")).await?, Transition::Refused(State::Sold));
        assert_eq!(stock.reserve(&request("ann", "1"), 2, HOLD).await?, Reserve::Replayed(State::Sold));
        assert_eq!(stock.cancel(&request("bob", "1")).await?, Transition::Done);
        assert_eq!(stock.cancel(&request("bob", "1")).await?, Transition::Repeated);
        assert_eq!(stock.confirm(&request("bob", "1")).await?, Transition::Refused(State::Cancelled));
        assert_eq!(stock.confirm(&request("eve", "1")).await?, Transition::Unknown);
        assert_eq!(counts().await?, (5, 3, 2));
        // The cancelled units are free, and so is the buyer's allowance; the bought ones are not.
        assert!(held(stock.reserve(&request("bob", "2"), 3, HOLD).await?));
        assert_eq!(stock.reserve(&request("ann", "3"), 2, HOLD).await?, Reserve::UserCap { left: 1 });
        // One order for each reservation, none for what was refused.
        let orders = orders(&store, &stock, "tea").await?;
        let names: Vec<_> = orders.iter().map(|(user, id, qty)| (user.as_str(), id.as_str(), *qty)).collect();
        assert_eq!(names, [("ann", "1", 2), ("bob", "1", 3), ("cid", "1", 3), ("bob", "2", 3)]);
        // All but the orders end with the sale.
        for key in store.scan(&format!("{}:*", backend.namespace())).await? {
            let ttl: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
            assert_eq!(ttl > 0, !key.ends_with(":orders"), "{key}");
        }
        Ok(())
    }

    async fn a_hold_that_is_over_comes_back_with_the_buyers_allowance(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").per_user(2).build()?;
        let _ = stock.prewarm("tea", 2, HOUR).await?;
        let short = Duration::from_millis(100);
        let first = Request::new("tea", "ann", "1");
        assert!(held(stock.reserve(&first, 2, short).await?));
        match backend.is_embedded() {
            true => store.advance(short)?,
            false => tokio::time::sleep(short).await,
        }
        // Too late to confirm, whether or not anybody has noticed yet.
        assert_eq!(stock.confirm(&first).await?, Transition::Refused(State::Expired));
        assert_eq!(stock.cancel(&first).await?, Transition::Refused(State::Expired));
        assert_eq!(stock.reserve(&first, 2, HOLD).await?, Reserve::Replayed(State::Expired));
        let report = stock.report("tea").await?.unwrap();
        assert_eq!((report.free, report.held, report.sold), (2, 0, 0));
        let second = Request::new("tea", "ann", "2");
        assert!(held(stock.reserve(&second, 2, short).await?));
        match backend.is_embedded() {
            true => store.advance(short)?,
            false => tokio::time::sleep(short).await,
        }
        // A buyer who finds nothing left looks for holds that are over.
        let third = Request::new("tea", "bob", "1");
        assert!(held(stock.reserve(&third, 2, HOLD).await?));
        assert_eq!(stock.report("tea").await?.unwrap().total(), 2);
        Ok(())
    }

    async fn a_report_tells_whether_as_many_units_are_there_as_were_put_on_sale(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").shards(4).build()?;
        let _ = stock.prewarm("tea", 22, HOUR).await?;
        for id in ["truck-1", "truck-2", "truck-1"] {
            let _ = stock.restock("tea", 5, id).await?;
        }
        for n in 0..9 {
            let request = Request::new("tea", "ann", &n.to_string());
            assert!(held(stock.reserve(&request, 3, HOLD).await?));
            if n % 2 == 0 { let _ = stock.confirm(&request).await?; }
            if n % 3 == 0 { let _ = stock.cancel(&request).await?; }
        }
        let report = stock.report("tea").await?.unwrap();
        assert_eq!((report.put_on_sale, report.total()), (Some(32), 32));
        assert_eq!(report.is_conserved(), Some(true));
        // Somebody changes a key by hand.
        for key in store.scan(&format!("{}:*", backend.namespace())).await? {
            let is_sale: redstart::Result<bool> = store.query(redis::cmd("HEXISTS").arg(&key).arg("free")).await;
            if is_sale.unwrap_or(false) {
                store.query::<i64>(redis::cmd("HINCRBY").arg(&key).arg("free").arg(1)).await?;
                break;
            }
        }
        let report = stock.report("tea").await?.unwrap();
        assert_eq!((report.put_on_sale, report.total()), (Some(32), 33));
        assert_eq!(report.is_conserved(), Some(false));
        Ok(())
    }

    async fn what_was_put_on_sale_is_not_known_after_a_part_of_the_sale_was_lost(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for (shards, lost) in [(1, 0), (4, 0), (4, 2)] {
            let stock = Stock::builder(&store, backend.namespace(), "sale").shards(shards).build()?;
            let sku = format!("tea-{shards}-{lost}");
            let _ = stock.prewarm(&sku, 40, HOUR).await?;
            for n in 0..16 {
                let request = Request::new(&sku, &format!("u{n}"), "1");
                assert!(held(stock.reserve(&request, 1, HOLD).await?));
                let _ = stock.confirm(&request).await?;
            }
            // Nothing is lost by a prewarm that is repeated.
            assert_eq!(stock.prewarm(&sku, 40, HOUR).await?, Prewarm::Running);
            assert_eq!(stock.report(&sku).await?.unwrap().is_conserved(), Some(true));
            let (kind, entity) = match shards {
                1 => ("stock", sku.clone()),
                _ => ("stock_shard", format!("{lost}.{shards}/{sku}")),
            };
            let shard = redstart::key::Keys::named(backend.namespace(), kind, "sale")?.entity(&entity)?;
            store.query::<()>(redis::cmd("DEL").arg(shard.key())).await?;
            if shards > 1 {
                // All of it.
                for part in ["requests", "holds", "users", "loans"] {
                    store.query::<()>(redis::cmd("DEL").arg(shard.part(part))).await?;
                }
            }
            assert_eq!(stock.prewarm(&sku, 40, HOUR).await?, Prewarm::Warmed);
            let report = stock.report(&sku).await?.unwrap();
            assert_eq!((report.put_on_sale, report.is_conserved()), (None, None), "{sku}");
        }
        Ok(())
    }

    async fn what_was_put_on_sale_is_not_known_of_a_sale_that_does_not_count_it(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").build()?;
        let _ = stock.prewarm("tea", 10, HOUR).await?;
        let sale = redstart::key::Keys::named(backend.namespace(), "stock", "sale")?.entity("tea")?;
        // As an earlier version opens and restocks a sale.
        store.query::<()>(redis::cmd("HDEL").arg(sale.key()).arg("added")).await?;
        store.query::<()>(redis::cmd("HINCRBY").arg(sale.key()).arg("free").arg(5)).await?;
        assert_eq!(stock.report("tea").await?.unwrap().is_conserved(), None);
        assert_eq!(stock.restock("tea", 5, "truck").await?, Restock::Added);
        let report = stock.report("tea").await?.unwrap();
        assert_eq!((report.put_on_sale, report.total()), (None, 20));
        Ok(())
    }

    async fn a_shard_that_runs_out_borrows_before_it_says_sold_out(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").shards(4).build()?;
        assert_eq!(stock.prewarm("tea", 22, HOUR).await?, Prewarm::Warmed);
        assert_eq!(stock.report("tea").await?.unwrap().total(), 22);
        // One user has one shard of about five units, and gets all there are.
        for n in 0..7 {
            let request = Request::new("tea", "ann", &n.to_string());
            assert!(held(stock.reserve(&request, 3, HOLD).await?), "{n}");
            assert_eq!(stock.report("tea").await?.unwrap().total(), 22);
        }
        let last = Request::new("tea", "ann", "last");
        let Reserve::SoldOut { free } = stock.reserve(&last, 3, HOLD).await? else { panic!() };
        assert!(free <= 1);
        // A buyer of any other shard gets the last one.
        for user in ["bob", "cid", "dan", "eve", "fay"] {
            let request = Request::new("tea", user, "1");
            let answer = stock.reserve(&request, 1, HOLD).await?;
            if user == "bob" {
                assert!(held(answer), "{answer:?}");
            } else {
                assert_eq!(answer, Reserve::SoldOut { free: 0 });
            }
        }
        let report = stock.report("tea").await?.unwrap();
        assert_eq!((report.free, report.held, report.sold), (0, 22, 0));
        assert_eq!(orders(&store, &stock, "tea").await?.len(), 8);
        Ok(())
    }

    async fn buyers_at_once_never_get_more_than_there_is(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for shards in [1, 3] {
            let stock = Stock::builder(&store, backend.namespace(), "sale")
                .per_user(2)
                .shards(shards)
                .build()?;
            let _ = stock.prewarm("tea", 30, HOUR).await?;
            let buyers: Vec<_> = (0..60)
                .map(|n| {
                    let stock = stock.clone();
                    tokio::spawn(async move {
                        let mut got = 0;
                        for id in 0..3 {
                            let request = Request::new("tea", &format!("u{n}"), &id.to_string());
                            if held(stock.reserve(&request, 1, HOLD).await?) {
                                got += 1;
                                match (n + id) % 3 {
                                    0 => assert_eq!(stock.confirm(&request).await?, Transition::Done),
                                    1 => {
                                        assert_eq!(stock.cancel(&request).await?, Transition::Done);
                                        got -= 1;
                                    }
                                    _ => {}
                                }
                            }
                            assert_eq!(stock.report("tea").await?.unwrap().total(), 30);
                        }
                        Ok::<_, redstart::Error>(got)
                    })
                })
                .collect();
            let mut got = 0;
            for buyer in buyers {
                let units = buyer.await??;
                assert!(units <= 2);
                got += units;
            }
            let report = stock.report("tea").await?.unwrap();
            assert_eq!(report.held + report.sold, got, "{shards} shards");
            assert_eq!(report.total(), 30);
        }
        Ok(())
    }

}

matrix! {
    processes:
    async fn killed_processes_lose_no_unit_and_sell_none_twice(backend: &Backend) -> anyhow::Result<()> {
        let units = scale(40, "STOCK_UNITS");
        let buyers = scale(240, "STOCK_BUYERS");
        let kills = scale(4, "STOCK_KILLS");
        const CAP: u64 = 2;
        let short = Duration::from_millis(1500);
        let stock_on = |store: &Store| {
            Stock::builder(store, backend.namespace(), "sale").per_user(CAP).shards(if backend.is_cluster() { 3 } else { 1 }).build()
        };
        if let Some(role) = child::role() {
            let store = Store::connect(backend.url()).await?;
            let stock = stock_on(&store)?;
            child::say("ready");
            shop(&stock, role.parse()?, buyers, short).await?;
            child::say("done");
            return Ok(());
        }
        let store = Store::connect(backend.url()).await?;
        let stock = stock_on(&store)?;
        let _ = stock.prewarm("tea", units, HOUR).await?;
        let spawn = |part: u64| Child::of(backend.test()).role(&part.to_string()).namespace(backend.namespace()).spawn();
        let mut children = Vec::new();
        for part in 0..3 {
            let mut child = spawn(part)?;
            assert_eq!(child.line().await?, "ready");
            children.push(child);
        }
        // Somebody looks all the time.
        let looking = {
            let stock = stock.clone();
            tokio::spawn(async move {
                for looks in 0u64.. {
                    let report = stock.report("tea").await?.expect("on sale");
                    assert_eq!(report.total(), units, "{report:?}");
                    if report.held == 0 && report.free == 0 && looks > 1000 { return Ok(looks); }
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
                Ok::<u64, redstart::Error>(0)
            })
        };
        for kill in 0..kills {
            let wait = rand::rng().random_range(5..60);
            tokio::time::sleep(Duration::from_millis(wait)).await;
            assert_eq!(stock.report("tea").await?.unwrap().total(), units);
            // A new process begins with the same requests: those that were made are replayed.
            let part = (kill % 3) as usize;
            children[part].kill9();
            children[part] = spawn(kill % 3)?;
            assert_eq!(children[part].line().await?, "ready");
            assert_eq!(stock.report("tea").await?.unwrap().total(), units);
        }
        for child in &mut children {
            // The soak's buyers take longer than a line's patience.
            while wait_until("buyers to end", SHOPPING, async || child.line().await.ok()).await? != "done" {}
        }
        if looking.is_finished() {
            looking.await??;
        } else {
            looking.abort();
        }
        // Every hold ends: confirmed, cancelled or expired.
        let settled = eventually(Duration::from_secs(60), async || {
            let report = stock.report("tea").await.unwrap().unwrap();
            assert_eq!(report.total(), units);
            report.held == 0
        });
        assert!(settled.await);
        let report = stock.report("tea").await?.unwrap();
        assert!(report.sold > 0, "{report:?}");
        // Each request has one order at most, and what is sold is what orders say.
        let orders = orders(&store, &stock, "tea").await?;
        let mut seen = HashSet::new();
        let (mut sold, mut users) = (0, HashMap::<String, u64>::new());
        let mut expired = HashMap::new();
        for (user, id, qty, _) in expirations(&store, &stock, "tea").await? {
            assert!(expired.insert((user.clone(), id.clone()), qty).is_none(), "{user} {id} expired twice");
        }
        for (user, id, qty) in &orders {
            assert!(seen.insert((user.clone(), id.clone())), "two orders for {user} {id}");
            let request = Request::new("tea", user, id);
            // Settled: confirming now says how.
            match stock.confirm(&request).await? {
                Transition::Repeated => {
                    sold += qty;
                    *users.entry(user.clone()).or_default() += qty;
                }
                Transition::Refused(State::Cancelled) => {}
                Transition::Refused(State::Expired) => {
                    let told = expired.remove(&(user.clone(), id.clone()));
                    assert_eq!(told, Some(*qty), "{user} {id} expired");
                }
                other => panic!("{user} {id} is {other:?}"),
            }
        }
        assert_eq!(sold, report.sold);
        assert!(expired.is_empty(), "they did not expire: {expired:?}");
        for (user, units) in users {
            assert!(units <= CAP, "{user} has {units}");
        }
        figure(format!(
            "{}: {units} units, {buyers} buyers, {kills} kills: {} sold, {} free, {} orders, each request settled once",
            backend.test(), report.sold, report.free, orders.len()
        ));
        Ok(())
    }
}

/// A third of the buyers come one after the other, several at a time; what they do depends on who they are.
async fn shop(stock: &Stock, part: u64, buyers: u64, hold: Duration) -> anyhow::Result<()> {
    let buyer = async |n: u64| -> anyhow::Result<()> {
        let user = format!("u{}", n / 2);
        let request = Request::new("tea", &user, &n.to_string());
        let qty = n % 2 + 1;
        match stock.reserve(&request, qty, hold).await? {
            Reserve::Held { .. } | Reserve::Replayed(State::Held { .. }) => match n % 5 {
                0..=2 => drop(stock.confirm(&request).await?),
                3 => drop(stock.cancel(&request).await?),
                _ => {}
            },
            Reserve::Conflict | Reserve::NotWarmed => anyhow::bail!("a buyer was confused"),
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(())
    };
    let mine: Vec<u64> = (0..buyers).filter(|n| n % 3 == part).collect();
    for group in mine.chunks(4) {
        futures_util::future::try_join_all(group.iter().map(|n| buyer(*n))).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_and_found() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(5))
        .connect()
        .await?;
    let stock = Stock::builder(&store, "shop", "sale").build()?;
    let _ = stock.prewarm("tea", 5, HOUR).await?;
    let warm = Request::new("tea", "ann", "0");
    assert!(held(stock.reserve(&warm, 1, HOLD).await?));
    let request = Request::new("tea", "ann", "1");
    // Once done and its reply thrown away; the store repeats it, and it is not done twice.
    proxy.drop_reply_to("3:ann1");
    let answer = stock.reserve(&request, 2, HOLD).await?;
    assert!(
        matches!(answer, Reserve::Replayed(State::Held { .. })),
        "{answer:?}"
    );
    let report = stock.report("tea").await?.unwrap();
    assert_eq!((report.free, report.held), (2, 3));
    assert_eq!(orders(&store, &stock, "tea").await?.len(), 2);
    Ok(())
}

#[tokio::test]
async fn bad_input_is_refused_before_the_network() {
    let store = Store::builder("redis://127.0.0.1:1")
        .lazy()
        .connect()
        .await
        .unwrap();
    let new = |namespace| Stock::builder(&store, namespace, "sale");
    assert!(new("").build().unwrap_err().is_config());
    assert!(new("a").per_user(0).build().unwrap_err().is_config());
    assert!(new("a").shards(0).build().unwrap_err().is_config());
    assert!(new("a").shards(1000).build().unwrap_err().is_config());
    let stock = new("a").build().unwrap();
    assert!(stock.prewarm("tea", 0, HOUR).await.unwrap_err().is_config());
    assert!(
        stock
            .prewarm("tea", u64::MAX, HOUR)
            .await
            .unwrap_err()
            .is_config()
    );
    assert!(
        stock
            .prewarm("tea", 1, Duration::ZERO)
            .await
            .unwrap_err()
            .is_config()
    );
    assert!(stock.prewarm("", 1, HOUR).await.unwrap_err().is_config());
    let request = |sku, user, id| Request::new(sku, user, id);
    let reserve =
        async |request: Request, qty, hold| stock.reserve(&request, qty, hold).await.unwrap_err();
    assert!(reserve(request("", "u", "1"), 1, HOLD).await.is_config());
    assert!(reserve(request("tea", "", "1"), 1, HOLD).await.is_config());
    assert!(reserve(request("tea", "u", ""), 1, HOLD).await.is_config());
    assert!(reserve(request("tea", "u", "1"), 0, HOLD).await.is_config());
    assert!(
        reserve(request("tea", "u", "1"), 1, Duration::ZERO)
            .await
            .is_config()
    );
    assert!(
        stock
            .confirm(&request("tea", "u", ""))
            .await
            .unwrap_err()
            .is_config()
    );
}

matrix! {
    async fn a_sale_is_restocked_closed_extended_and_taken_back(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for shards in [1, 3] {
            let stock = Stock::builder(&store, backend.namespace(), "sale").per_user(4).shards(shards).build()?;
            assert_eq!(stock.restock("tea", 5, "r1").await?, Restock::NotWarmed);
            assert!(!stock.close("tea").await?);
            let _ = stock.prewarm("tea", 4, HOUR).await?;
            let request = |id: &str| Request::new("tea", "ann", id);
            assert!(held(stock.reserve(&request("1"), 4, HOLD).await?));
            let other = Request::new("tea", "bob", "1");
            assert!(matches!(stock.reserve(&other, 1, HOLD).await?, Reserve::SoldOut { free: 0 }));
            // Once for each id; and what was remembered as sold out is forgotten.
            assert_eq!(stock.restock("tea", 5, "r1").await?, Restock::Added);
            assert_eq!(stock.restock("tea", 5, "r1").await?, Restock::Repeated);
            assert_eq!(stock.report("tea").await?.unwrap().total(), 9);
            assert!(held(stock.reserve(&other, 3, HOLD).await?));
            // The hold is longer now, and never shorter.
            let Extension::Held { left } = stock.extend(&other, HOLD * 2).await? else { panic!() };
            assert!(left > HOLD);
            let Extension::Held { left } = stock.extend(&other, Duration::from_secs(1)).await? else { panic!() };
            assert!(left > HOLD);
            assert_eq!(stock.extend(&request("9"), HOLD).await?, Extension::Unknown);
            // Sold units come back, and so does the allowance.
            assert!(matches!(stock.take_back(&request("1")).await?, Transition::Refused(State::Held { .. })));
            assert_eq!(stock.confirm(&request("1")).await?, Transition::Done);
            assert_eq!(stock.extend(&request("1"), HOLD).await?, Extension::Refused(State::Sold));
            assert_eq!(stock.reserve(&request("2"), 1, HOLD).await?, Reserve::UserCap { left: 0 });
            assert_eq!(stock.take_back(&request("1")).await?, Transition::Done);
            assert_eq!(stock.take_back(&request("1")).await?, Transition::Repeated);
            assert_eq!(stock.confirm(&request("1")).await?, Transition::Refused(State::Returned));
            let report = stock.report("tea").await?.unwrap();
            assert_eq!((report.free, report.held, report.sold), (6, 3, 0));
            assert!(held(stock.reserve(&request("3"), 4, HOLD).await?));
            // A closed sale is settled, and sells nothing new.
            assert!(stock.close("tea").await?);
            assert_eq!(stock.reserve(&Request::new("tea", "cid", "1"), 1, HOLD).await?, Reserve::Closed);
            assert!(matches!(stock.reserve(&other, 3, HOLD).await?, Reserve::Replayed(State::Held { .. })));
            assert_eq!(stock.confirm(&other).await?, Transition::Done);
            assert!(stock.reopen("tea").await?);
            assert!(held(stock.reserve(&Request::new("tea", "cid", "1"), 1, HOLD).await?));
            assert_eq!(stock.report("tea").await?.unwrap().total(), 9);
        }
        Ok(())
    }

    async fn a_hold_ends_with_its_sale_and_says_so(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").build()?;
        let sale = Duration::from_secs(60);
        let _ = stock.prewarm("tea", 2, sale).await?;
        let request = Request::new("tea", "ann", "1");
        let Reserve::Held { left } = stock.reserve(&request, 1, HOUR).await? else { panic!() };
        assert!(left <= sale, "held for {left:?} in a sale of {sale:?}");
        let Extension::Held { left } = stock.extend(&request, HOUR).await? else { panic!() };
        assert!(left <= sale, "{left:?}");
        Ok(())
    }

    async fn each_reservation_that_expires_has_one_entry(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for shards in [1, 3] {
            let stock = Stock::builder(&store, backend.namespace(), "sale").shards(shards).build()?;
            let _ = stock.prewarm("tea", 300, HOUR).await?;
            let short = Duration::from_millis(100);
            let wait = async |time: Duration| -> anyhow::Result<()> {
                match backend.is_embedded() {
                    true => store.advance(time)?,
                    false => tokio::time::sleep(time).await,
                }
                Ok(())
            };
            // A user's name may look like the name of another's request.
            let users = ["ann", "3:ann", "", "b:", "ann\0x", "\u{e9} x"].map(|user| format!("{user}{shards}"));
            for (n, user) in users.iter().enumerate() {
                let qty = n as u64 + 1;
                assert!(held(stock.reserve(&Request::new("tea", user, "1:2"), qty, short).await?));
                assert!(held(stock.reserve(&Request::new("tea", user, "sold"), 1, HOLD).await?));
                assert_eq!(stock.confirm(&Request::new("tea", user, "sold")).await?, Transition::Done);
            }
            let cancelled = Request::new("tea", "cid", "1");
            assert!(held(stock.reserve(&cancelled, 1, HOLD).await?));
            assert_eq!(stock.cancel(&cancelled).await?, Transition::Done);
            wait(short).await?;
            // Found by its own request, and by a report: once each.
            let met = Request::new("tea", &users[0], "1:2");
            assert_eq!(stock.confirm(&met).await?, Transition::Refused(State::Expired));
            assert_eq!(expirations(&store, &stock, "tea").await?.len(), 1);
            for _ in 0..2 {
                let report = stock.report("tea").await?.unwrap();
                assert_eq!((report.free, report.held, report.sold), (294, 0, 6));
            }
            assert_eq!(stock.extend(&met, HOLD).await?, Extension::Refused(State::Expired));
            let mut found = expirations(&store, &stock, "tea").await?;
            found.sort_by_key(|entry| entry.2);
            let told: Vec<_> = found.iter().map(|(user, id, qty, _)| (user.clone(), &**id, *qty)).collect();
            let expected: Vec<_> = users.iter().zip(1..).map(|(user, qty)| (user.clone(), "1:2", qty)).collect();
            assert_eq!(told, expected);
            // Not before its end, and not for ever: a day longer than the sale.
            for stream in stock.expirations("tea")? {
                let left: i64 = store.query(redis::cmd("PTTL").arg(&stream)).await?;
                let most = (HOUR + Duration::from_secs(86_400)).as_millis() as i64;
                assert!(left == -2 || (HOUR.as_millis() as i64 * 23..=most).contains(&left), "{left}");
            }
            let (seconds, micros): (u64, u64) = store.query(&redis::cmd("TIME")).await?;
            for (user, _, _, ended) in &found {
                assert!(*ended <= seconds * 1_000_000 + micros, "{user} ended at {ended}");
            }
        }
        Ok(())
    }

    async fn a_request_that_is_cancelled_before_it_arrives_is_never_held(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for shards in [1, 3] {
            let stock = Stock::builder(&store, backend.namespace(), "sale").per_user(2).shards(shards).build()?;
            let request = |user: &str, id: &str| Request::new("tea", user, id);
            // Without a sale nothing is written.
            let before = store.scan(&format!("{}:*", backend.namespace())).await?.len();
            assert_eq!(stock.cancel(&request("ann", "1")).await?, Transition::Unknown);
            assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), before);
            let _ = stock.prewarm("tea", 10, HOUR).await?;
            for _ in 0..2 {
                assert_eq!(stock.cancel(&request("ann", "1")).await?, Transition::Unknown);
            }
            // The request arrives after that, whatever it asked for.
            for qty in [2, 1] {
                let answer = stock.reserve(&request("ann", "1"), qty, HOLD).await?;
                assert_eq!(answer, Reserve::Replayed(State::Cancelled));
            }
            assert_eq!(stock.confirm(&request("ann", "1")).await?, Transition::Refused(State::Cancelled));
            assert_eq!(stock.take_back(&request("ann", "1")).await?, Transition::Refused(State::Cancelled));
            assert_eq!(stock.extend(&request("ann", "1"), HOLD).await?, Extension::Refused(State::Cancelled));
            assert_eq!(stock.cancel(&request("ann", "1")).await?, Transition::Unknown);
            let report = stock.report("tea").await?.expect("on sale");
            assert_eq!((report.free, report.held, report.sold), (10, 0, 0));
            assert!(orders(&store, &stock, "tea").await?.is_empty());
            // Another user's request of the same id is another request, and the allowance is whole.
            assert!(held(stock.reserve(&request("bob", "1"), 2, HOLD).await?));
            assert!(held(stock.reserve(&request("ann", "2"), 2, HOLD).await?));
            for key in store.scan(&format!("{}:*", backend.namespace())).await? {
                let ttl: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
                assert_eq!(ttl > 0, !key.ends_with(":orders"), "{key}");
            }
        }
        Ok(())
    }

    async fn a_loan_that_the_sale_before_refused_is_not_accepted_later(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let (stock, shards, qty, (sale, ends)) = lent(&store, backend.namespace()).await?;
        let receive = async |token: &str, ends: u64| -> anyhow::Result<u64> {
            let receive = script("stock.receive").on(&shards[0]).key();
            let receive = receive.part("decisions").arg(token).arg(qty);
            Ok(receive.arg(&sale).arg(ends).run(&store).await?)
        };
        let call_it = async |id: &str| -> redstart::Result<()> {
            let mut cmd = redis::cmd("HSET");
            store.query(cmd.arg(shards[0].key()).arg("id").arg(id)).await
        };
        // The borrower's clock is behind: it still has the sale before.
        call_it("before").await?;
        assert_eq!(receive("token", ends).await?, 0);
        assert_eq!(settle_loan(&store, &shards[1], 0).await?, 1);
        call_it(&sale).await?;
        // A copy of the request.
        assert_eq!(receive("token", ends).await?, 0);
        let report = stock.report("tea").await?.expect("on sale");
        assert_eq!(report.total(), 10, "{report:?}");
        // Decisions are kept until the last of their sales ends.
        let kept = async || -> anyhow::Result<()> {
            let decisions = shards[0].part("decisions");
            let left: i64 = store.query(redis::cmd("PTTL").arg(&decisions)).await?;
            assert!(left > HOUR.as_millis() as i64 / 2, "{left}");
            Ok(())
        };
        kept().await?;
        let soon = ends - HOUR.as_millis() as u64 / 2 - 60_000;
        call_it("after").await?;
        assert_eq!(receive("shorter", soon).await?, 0);
        kept().await?;
        store.query::<()>(redis::cmd("DEL").arg(shards[0].key())).await?;
        assert_eq!(receive("gone", soon).await?, 0);
        kept().await?;
        Ok(())
    }

    async fn a_restock_of_one_sale_adds_nothing_to_the_next(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for shards in [1, 3] {
            let stock = Stock::builder(&store, backend.namespace(), "sale").shards(shards).build()?;
            let _ = stock.prewarm("tea", 10, HOUR).await?;
            assert_eq!(stock.restock("tea", 5, "r").await?, Restock::Added);
            end_sale(backend, &store, "tea", shards).await?;
            assert_eq!(stock.restock("tea", 5, "r").await?, Restock::NotWarmed);
            let _ = stock.prewarm("tea", 10, Duration::from_secs(60)).await?;
            assert_eq!(stock.restock("tea", 5, "r").await?, Restock::Repeated);
            assert_eq!(stock.report("tea").await?.expect("on sale").total(), 10);
            assert_eq!(stock.restock("tea", 5, "r2").await?, Restock::Added);
            assert_eq!(stock.report("tea").await?.expect("on sale").total(), 15);
            // A day longer than its sale, also if the next one is short; not for ever.
            let mut seen = 0;
            for key in store.scan(&format!("{}:*:restocks", backend.namespace())).await? {
                let left: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
                let hour = HOUR.as_millis() as i64;
                assert!((23 * hour..=25 * hour).contains(&left), "{left}");
                seen += 1;
            }
            assert!(seen > 0);
        }
        Ok(())
    }

    async fn a_copy_of_a_reservation_from_the_last_sale_takes_nothing_of_the_next(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").build()?;
        let other = Stock::builder(&store, backend.namespace(), "sale").build()?;
        let keys = redstart::key::Keys::named(backend.namespace(), "stock", "sale")?;
        let shard = keys.entity("tea")?;
        let _ = stock.prewarm("tea", 10, HOUR).await?;
        for stock in [&stock, &other] {
            let request = Request::new("tea", "ann", "1");
            let _ = stock.reserve(&request, 1, HOLD).await?;
        }
        let id: String = store.query(redis::cmd("HGET").arg(shard.key()).arg("id")).await?;
        end_sale(backend, &store, "tea", 1).await?;
        let _ = stock.prewarm("tea", 10, HOUR).await?;
        let late = script("stock.reserve").on(&shard).key().part("requests");
        let late = late.part("holds").part("users").part("expired").part("orders");
        let late = late.arg("3:ann2").arg("ann").arg(1).arg(1_000_000).arg(0).arg("tea").arg("2");
        let answer: Vec<String> = late.arg(&id).run(&store).await?;
        let now: String = store.query(redis::cmd("HGET").arg(shard.key()).arg("id")).await?;
        assert_eq!(answer, ["other".to_owned(), now]);
        assert_eq!(orders(&store, &stock, "tea").await?.len(), 1, "of the last sale");
        let report = stock.report("tea").await?.expect("on sale");
        assert_eq!((report.free, report.held), (10, 0));
        // Processes that knew the last sale buy in this one.
        for (n, stock) in [&stock, &other].into_iter().enumerate() {
            let request = Request::new("tea", "ann", &format!("new{n}"));
            assert!(held(stock.reserve(&request, 1, HOLD).await?));
        }
        Ok(())
    }

    async fn a_copy_of_a_close_from_the_last_sale_does_not_close_the_next(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").build()?;
        let other = Stock::builder(&store, backend.namespace(), "sale").build()?;
        let shard = redstart::key::Keys::named(backend.namespace(), "stock", "sale")?.entity("tea")?;
        let _ = stock.prewarm("tea", 10, HOUR).await?;
        let id: String = store.query(redis::cmd("HGET").arg(shard.key()).arg("id")).await?;
        end_sale(backend, &store, "tea", 1).await?;
        let _ = other.prewarm("tea", 10, HOUR).await?;
        let late = script("stock.close").on(&shard).key().arg(1).arg(&id);
        assert_eq!(late.run::<(i32, String)>(&store).await?.0, -1);
        let buy = async |request: &str| stock.reserve(&Request::new("tea", "ann", request), 1, HOLD).await;
        assert!(held(buy("1").await?));
        // A process that only knew the last sale closes this one.
        let third = Stock::builder(&store, backend.namespace(), "sale").build()?;
        for stock in [&third, &other] {
            assert!(stock.close("tea").await?);
            assert_eq!(buy("2").await?, Reserve::Closed);
            assert!(stock.reopen("tea").await?);
        }
        end_sale(backend, &store, "tea", 1).await?;
        let _ = other.prewarm("tea", 10, HOUR).await?;
        assert!(third.close("tea").await? && stock.close("tea").await?);
        Ok(())
    }

    async fn a_sale_that_is_closed_while_it_is_warm_in_part_stays_closed(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").shards(4).build()?;
        let keys = redstart::key::Keys::named(backend.namespace(), "stock_shard", "sale")?;
        for (sku, lost) in [("tea", [2, 3]), ("milk", [0, 1])] {
            let _ = stock.prewarm(sku, 40, HOUR).await?;
            for shard in lost {
                let shard = keys.entity(&format!("{shard}.4/{sku}"))?;
                store.query::<()>(redis::cmd("DEL").arg(shard.key())).await?;
            }
            let error = stock.close(sku).await.unwrap_err();
            assert!(error.is_unavailable(), "{error}");
            assert_eq!(stock.prewarm(sku, 40, HOUR).await?, Prewarm::Warmed);
            let reserve = async |user: u32| {
                let request = Request::new(sku, &format!("u{user}"), "1");
                stock.reserve(&request, 1, HOLD).await
            };
            for user in 0..16 {
                assert_eq!(reserve(user).await?, Reserve::Closed, "{sku}");
            }
            assert!(stock.close(sku).await?);
            assert!(stock.reopen(sku).await?);
            for user in 0..16 {
                assert!(held(reserve(user).await?));
            }
        }
        Ok(())
    }

    async fn stock_with_another_number_of_shards_does_not_see_the_sale(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = |shards| Stock::builder(&store, backend.namespace(), "sale").shards(shards).build();
        let _ = stock(3)?.prewarm("tea", 9, HOUR).await?;
        for shards in [1, 2, 4] {
            let request = Request::new("tea", "ann", "1");
            assert_eq!(stock(shards)?.reserve(&request, 1, HOLD).await?, Reserve::NotWarmed);
        }
        Ok(())
    }

    async fn many_holds_that_are_over_are_ended_in_bounded_steps(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(30)).connect().await?;
        let stock = Stock::builder(&store, backend.namespace(), "sale").per_user(1).build()?;
        let _ = stock.prewarm("tea", 500, HOUR).await?;
        let hold = Duration::from_millis(1);
        let buyers = (0..500).map(|n| {
            let stock = &stock;
            async move { stock.reserve(&Request::new("tea", &format!("u{n}"), "1"), 1, hold).await }
        });
        for answer in futures_util::future::join_all(buyers).await { let _ = answer?; }
        match backend.is_embedded() {
            true => store.advance(hold * 2)?,
            false => tokio::time::sleep(hold * 2).await,
        }
        // The last buyer's hold is over as well, and is found behind the 499 others.
        let again = Request::new("tea", "u499", "2");
        assert!(held(stock.reserve(&again, 1, HOLD).await?));
        let report = stock.report("tea").await?.unwrap();
        assert_eq!((report.free, report.held, report.sold), (499, 1, 0));
        Ok(())
    }
}

#[tokio::test]
async fn no_script_ends_more_than_a_bounded_number_of_holds() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let stock = Stock::builder(&store, "bound", "sale").build()?;
    let _ = stock.prewarm("tea", 1000, HOUR).await?;
    let hold = Duration::from_millis(1);
    let buyers = (0..1000).map(|n| {
        let stock = &stock;
        async move {
            let request = Request::new("tea", &format!("u{n}"), "1");
            stock.reserve(&request, 1, hold).await
        }
    });
    for answer in futures_util::future::join_all(buyers).await {
        let _ = answer?;
    }
    tokio::time::sleep(hold * 2).await;
    let tap = MonitorTap::start(&server).await?;
    let last = Request::new("tea", "late", "1");
    assert!(held(stock.reserve(&last, 900, HOLD).await?));
    assert_eq!(stock.report("tea").await?.unwrap().free, 100);
    // Elements that each call handled: the holds that it ended.
    let (mut ended, mut most, mut all) = (0, 0, 0);
    for seen in tap.commands().await? {
        if !seen.is_from_script() {
            ended = 0;
        } else if seen.name() == "ZREM" {
            ended += 1;
            all += 1;
            most = most.max(ended);
        }
    }
    assert!((1..=64).contains(&most), "{most} holds in one call");
    assert!(all >= 900, "{all}");
    Ok(())
}

#[tokio::test]
async fn sold_out_takes_two_round_trips_whatever_the_shards_and_then_one() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let stock = Stock::builder(&store, "out", "sale")
        .shards(16)
        .sold_out_memory(Duration::from_secs(60))
        .build()?;
    let _ = stock.prewarm("tea", 16, HOUR).await?;
    let request = |user: &str, id: u64| Request::new("tea", user, &id.to_string());
    for n in 0..16 {
        assert!(held(stock.reserve(&request("ann", n), 1, HOLD).await?));
    }
    let sold_out = async |user: &str| -> anyhow::Result<()> {
        let answer = stock.reserve(&request(user, 99), 1, HOLD).await?;
        assert_eq!(answer, Reserve::SoldOut { free: 0 });
        Ok(())
    };
    // The first pass over the shards: one call at home, and one to each of them, sent together.
    let tap = MonitorTap::start(&server).await?;
    sold_out("bob").await?;
    let first = tap.round_trips("out").await?;
    assert!(first.len() <= 17, "{} calls", first.len());
    tap.clear().await?;
    // Remembered: only the own shard is asked, which also finds repeats.
    for user in ["bob", "cid", "dan", "eve"] {
        sold_out(user).await?;
    }
    assert_eq!(tap.round_trips("out").await?.len(), 4);
    let repeat = stock.reserve(&request("ann", 3), 1, HOLD).await?;
    assert!(matches!(repeat, Reserve::Replayed(_)), "{repeat:?}");
    // What comes back in this process is found at once.
    assert_eq!(stock.cancel(&request("ann", 3)).await?, Transition::Done);
    assert!(held(stock.reserve(&request("bob", 100), 1, HOLD).await?));

    // In time: two trips over a slow line, not one for each shard.
    let proxy = Proxy::start(&server).await?;
    let slow = Store::builder(proxy.url())
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    let stock = Stock::builder(&slow, "out", "sale")
        .shards(16)
        .sold_out_memory(Duration::ZERO)
        .build()?;
    let warm = stock.reserve(&request("fay", 1), 1, HOLD).await?;
    assert_eq!(warm, Reserve::SoldOut { free: 0 });
    let trip = Duration::from_millis(400);
    proxy.delay_replies(trip);
    let began = tokio::time::Instant::now();
    let answer = stock.reserve(&request("fay", 2), 1, HOLD).await?;
    assert_eq!(answer, Reserve::SoldOut { free: 0 });
    // Fifteen shards one after the other would take six seconds more.
    assert!(began.elapsed() < trip * 8, "{:?}", began.elapsed());
    Ok(())
}

/// Replies of the server wait in the proxy while this process frees units: what the shards said before is not remembered.
#[tokio::test]
async fn units_that_this_process_freed_while_it_asked_are_found_at_once() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(SHOPPING)
        .connect()
        .await?;
    let stock = Stock::builder(&store, "freed", "sale")
        .shards(2)
        .sold_out_memory(Duration::from_secs(60))
        .build()?;
    let _ = stock.prewarm("tea", 2, HOUR).await?;
    let request = |user: &str, id: &str| Request::new("tea", user, id);
    for id in ["1", "2"] {
        assert!(held(stock.reserve(&request("ann", id), 1, HOLD).await?));
    }
    let tap = MonitorTap::start(&server).await?;
    let ran = async |name: &str| {
        let digest = script(name).digest();
        wait_until("a script to be run", SHOPPING, async || {
            let seen = tap.commands().await.ok()?;
            let ran = |seen: &redstart_testkit::monitor::Seen| {
                !seen.is_from_script() && seen.mentions(digest)
            };
            seen.iter().any(ran).then_some(())
        })
        .await
    };
    // Long enough to notice that the shards were asked, before their answers arrive.
    proxy.delay_replies(Duration::from_secs(2));
    let asking = {
        let (stock, request) = (stock.clone(), request("bob", "1"));
        tokio::spawn(async move { stock.reserve(&request, 1, HOLD).await })
    };
    ran("stock.offer").await?;
    proxy.delay_replies(HOUR);
    let freeing = {
        let (stock, request) = (stock.clone(), request("ann", "1"));
        tokio::spawn(async move { stock.cancel(&request).await })
    };
    ran("stock.settle").await?;
    proxy.pass().await;
    assert_eq!(freeing.await??, Transition::Done);
    let _ = asking.await??;
    // Whichever shard they are of.
    for user in ["bob", "cid", "dan", "eve", "fay"] {
        let next = request(user, "next");
        assert!(held(stock.reserve(&next, 1, HOLD).await?), "{user}");
        assert_eq!(stock.cancel(&next).await?, Transition::Done);
    }
    Ok(())
}

/// The request is on its way when its caller gives up, and arrives when the next sale has begun.
#[tokio::test]
async fn a_reservation_that_arrives_in_the_next_sale_is_not_made() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let direct = Store::connect(&server.url()).await?;
    let direct = Stock::builder(&direct, "late", "sale").build()?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_millis(500))
        .connect()
        .await?;
    let stock = Stock::builder(&store, "late", "sale").build()?;
    let _ = direct
        .prewarm("tea", 5, Duration::from_millis(2500))
        .await?;
    assert!(held(
        stock
            .reserve(&Request::new("tea", "ann", "1"), 1, HOLD)
            .await?
    ));
    proxy.stall();
    let late = Request::new("tea", "ann", "late");
    assert!(stock.reserve(&late, 1, HOLD).await.is_err());
    wait_until("the sale to end", SHOPPING, async || {
        direct.report("tea").await.ok()?.is_none().then_some(())
    })
    .await?;
    assert_eq!(direct.prewarm("tea", 5, HOUR).await?, Prewarm::Warmed);
    let tap = MonitorTap::start(&server).await?;
    proxy.pass().await;
    wait_until("the request to arrive", SHOPPING, async || {
        let seen = tap.commands().await.ok()?;
        seen.iter()
            .any(|seen| seen.mentions("3:annlate"))
            .then_some(())
    })
    .await?;
    let report = direct.report("tea").await?.expect("on sale");
    assert_eq!((report.free, report.held), (5, 0), "{report:?}");
    Ok(())
}

/// A copy of a prewarm that arrives after the end of its sale must not start another one.
#[tokio::test]
async fn a_prewarm_says_when_its_sale_ends() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    for shards in [1, 2] {
        let stock = Stock::builder(&store, "copy", "sale")
            .shards(shards)
            .build()?;
        let tap = MonitorTap::start(&server).await?;
        let _ = stock.prewarm("tea", 5, HOUR).await?;
        let digest = script("stock.prewarm").digest();
        let mut ends = HashSet::new();
        for seen in tap.commands().await? {
            if seen.name() == "EVALSHA" && seen.mentions(digest) {
                let numbers = seen.words[3..].iter();
                ends.extend(numbers.filter_map(|word| word.parse::<u64>().ok()).max());
            }
        }
        assert_eq!(ends.len(), 1, "one end for all shards: {ends:?}");
        let (seconds, _): (u64, u64) = store.query(&redis::cmd("TIME")).await?;
        assert!(ends.iter().all(|ends| *ends > seconds * 1000));
    }
    Ok(())
}

/// The script of this name.
fn script(name: &str) -> &'static redstart::script::Script {
    let mut all = redstart::script::all().into_iter();
    all.find(|script| script.name() == name)
        .expect("a script of this name")
}

/// A sale of two shards whose user has the other shard's units on loan, and what is needed to accept the loan by hand.
async fn lent(
    store: &Store,
    namespace: &str,
) -> anyhow::Result<(Stock, [redstart::key::Entity; 2], u64, (String, u64))> {
    let stock = Stock::builder(store, namespace, "sale").shards(2).build()?;
    let _ = stock.prewarm("tea", 10, HOUR).await?;
    let keys = redstart::key::Keys::named(namespace, "stock_shard", "sale")?;
    let shards = [keys.entity("0.2/tea")?, keys.entity("1.2/tea")?];
    let (qty, sale, ends) = lend(store, &shards[1], 0).await?;
    assert_eq!(qty, 3);
    Ok((stock, shards, qty, (sale, ends)))
}

/// A shard borrows three units of another one.
async fn lend(
    store: &Store,
    from: &redstart::key::Entity,
    to: usize,
) -> redstart::Result<(u64, String, u64)> {
    let mut cmd = redis::cmd("HGET");
    let sale: Option<String> = store.query(cmd.arg(from.key()).arg("id")).await?;
    lend_of(store, from, to, &sale.unwrap_or_default()).await
}

async fn lend_of(
    store: &Store,
    from: &redstart::key::Entity,
    to: usize,
    sale: &str,
) -> redstart::Result<(u64, String, u64)> {
    let lend = script("stock.lend").on(from).key().part("requests");
    let lend = lend.part("holds").part("users").part("expired");
    let lend = lend.part("loans").part("ended_loans").arg("token");
    lend.arg(3).arg(to).arg(sale).run(store).await
}

async fn settle_loan(
    store: &Store,
    from: &redstart::key::Entity,
    accepted: u32,
) -> redstart::Result<u32> {
    let close = script("stock.settle_loan").on(from).key().part("loans");
    let close = close.part("ended_loans").arg("token");
    close.arg(accepted).run(store).await
}

#[tokio::test]
async fn a_loan_of_one_sale_is_not_accepted_by_the_next() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let (stock, shards, qty, sale) = lent(&store, "loan").await?;
    let receive = async || -> anyhow::Result<u64> {
        let receive = script("stock.receive")
            .on(&shards[0])
            .key()
            .part("decisions");
        let receive = receive.arg("token").arg(qty).arg(&sale.0).arg(sale.1);
        Ok(receive.run(&store).await?)
    };
    store.advance(HOUR)?;
    // Between the sales, and in the next one.
    assert_eq!(receive().await?, 0);
    assert_eq!(stock.prewarm("tea", 10, HOUR).await?, Prewarm::Warmed);
    assert_eq!(receive().await?, 0);
    let report = stock.report("tea").await?.expect("on sale");
    assert_eq!(report.total(), 10, "{report:?}");
    Ok(())
}

#[tokio::test]
async fn a_loan_that_was_refused_stays_so_when_its_shard_is_made_again() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let (stock, shards, qty, sale) = lent(&store, "again").await?;
    let receive = async |qty: u64| -> anyhow::Result<u64> {
        let receive = script("stock.receive").on(&shards[0]).key();
        let receive = receive.part("decisions").arg("token").arg(qty);
        Ok(receive.arg(&sale.0).arg(sale.1).run(&store).await?)
    };
    store
        .query::<()>(redis::cmd("DEL").arg(shards[0].key()))
        .await?;
    // Somebody settles the loan; the borrower, who stood still, goes on when the shard is back.
    assert_eq!(receive(0).await?, 0);
    assert_eq!(settle_loan(&store, &shards[1], 0).await?, 1);
    assert_eq!(stock.prewarm("tea", 10, HOUR).await?, Prewarm::Warmed);
    assert_eq!(receive(qty).await?, 0);
    let report = stock.report("tea").await?.expect("on sale");
    assert_eq!(report.total(), 10, "{report:?}");
    Ok(())
}

#[tokio::test]
async fn a_loan_whose_request_arrives_once_more_after_its_end_takes_no_units() -> anyhow::Result<()>
{
    let store = Store::connect("memory://").await?;
    let (stock, shards, qty, sale) = lent(&store, "late").await?;
    let receive = script("stock.receive").on(&shards[0]).key();
    let receive = receive.part("decisions").arg("token").arg(qty);
    assert_eq!(
        receive.arg(&sale.0).arg(sale.1).run::<u64>(&store).await?,
        qty
    );
    assert_eq!(settle_loan(&store, &shards[1], 1).await?, 1);
    assert_eq!(lend(&store, &shards[1], 0).await?.0, 0);
    store.advance(Duration::from_secs(10))?;
    let report = stock.report("tea").await?.expect("on sale");
    assert_eq!((report.free, report.total()), (10, 10), "{report:?}");
    Ok(())
}

#[tokio::test]
async fn a_copy_of_a_loans_request_takes_nothing_of_the_next_sale() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let (stock, shards, _, (sale, _)) = lent(&store, "copy").await?;
    store.advance(HOUR + Duration::from_millis(1))?;
    let _ = stock.prewarm("tea", 10, HOUR).await?;
    assert_eq!(lend_of(&store, &shards[1], 0, &sale).await?.0, 0);
    assert_eq!(lend(&store, &shards[1], 0).await?.0, 3);
    Ok(())
}

#[tokio::test]
async fn units_that_a_dead_process_had_lent_from_a_buyers_own_shard_are_sold() -> anyhow::Result<()>
{
    for lender in 0..2 {
        let store = Store::connect("memory://").await?;
        let stock = Stock::builder(&store, "own", "sale").shards(2).build()?;
        let _ = stock.prewarm("tea", 6, HOUR).await?;
        let keys = redstart::key::Keys::named("own", "stock_shard", "sale")?;
        let shards = [keys.entity("0.2/tea")?, keys.entity("1.2/tea")?];
        // All of one shard's units were on their way when a process died; then all of the other's were sold.
        assert_eq!(lend(&store, &shards[lender], 1 - lender).await?.0, 3);
        let reserve = async |buyer: u32| -> anyhow::Result<bool> {
            let request = Request::new("tea", &format!("u{buyer}"), "1");
            Ok(held(stock.reserve(&request, 1, HOLD).await?))
        };
        let mut sold = 0;
        for buyer in 0..20 {
            sold += u32::from(reserve(buyer).await?);
        }
        assert_eq!(sold, 3);
        store.advance(Duration::from_secs(10))?;
        for buyer in 20..23 {
            assert!(reserve(buyer).await?, "shard {lender}, buyer {buyer}");
        }
        assert!(!reserve(23).await?);
    }
    Ok(())
}

#[tokio::test]
async fn a_sale_has_nothing_of_one_whose_key_was_lost() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let stock = Stock::builder(&store, "lost", "sale").per_user(1).build()?;
    let _ = stock.prewarm("tea", 10, HOUR).await?;
    let request = Request::new("tea", "ann", "1");
    assert!(held(stock.reserve(&request, 1, HOLD).await?));
    assert_eq!(stock.restock("tea", 5, "r").await?, Restock::Added);
    let sale = redstart::key::Keys::named("lost", "stock", "sale")?.entity("tea")?;
    store.query::<()>(redis::cmd("DEL").arg(sale.key())).await?;
    assert_eq!(stock.prewarm("tea", 10, HOUR).await?, Prewarm::Warmed);
    assert_eq!(stock.restock("tea", 5, "r").await?, Restock::Repeated);
    assert_eq!(stock.restock("tea", 5, "other").await?, Restock::Added);
    assert!(held(stock.reserve(&request, 1, HOLD).await?), "no replay");
    store.advance(HOLD * 2)?;
    let report = stock.report("tea").await?.expect("on sale");
    assert_eq!((report.free, report.held, report.sold), (15, 0, 0));
    Ok(())
}

/// What comes back to a sale that the server has dropped must not make a sale without an end.
#[tokio::test]
async fn a_loan_that_ends_after_its_sale_was_lost_makes_no_sale() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let sale = redstart::key::Keys::named("gone", "stock", "sale")?.entity("tea")?;
    let mut lent = redis::cmd("HSET");
    lent.arg(sale.part("loans"))
        .arg("loan")
        .arg("5 1 0 4000000000000");
    store.query::<()>(&lent).await?;
    let settle = script("stock.settle_loan").on(&sale).key().part("loans");
    let settle = settle.part("ended_loans").arg("loan").arg(0);
    assert_eq!(settle.run::<u32>(&store).await?, 1);
    let keys = store.scan("gone:*").await?;
    assert_eq!(keys.len(), 1, "only that the loan has ended: {keys:?}");
    let stock = Stock::builder(&store, "gone", "sale").build()?;
    assert!(!stock.close("tea").await?);
    assert_eq!(stock.report("tea").await?, None);
    Ok(())
}

#[tokio::test]
async fn a_restock_of_one_sale_is_known_until_a_day_after_the_next() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let stock = Stock::builder(&store, "ids", "sale").build()?;
    let _ = stock.prewarm("tea", 10, HOUR).await?;
    assert_eq!(stock.restock("tea", 5, "r").await?, Restock::Added);
    // The next day, an hour before the ids of that sale would go.
    store.advance(24 * HOUR)?;
    let _ = stock.prewarm("tea", 10, 72 * HOUR).await?;
    store.advance(10 * HOUR)?;
    assert_eq!(stock.restock("tea", 5, "r").await?, Restock::Repeated);
    Ok(())
}

#[tokio::test]
async fn the_stream_of_expirations_lives_through_the_next_sale() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let stock = Stock::builder(&store, "days", "sale").build()?;
    let stream = stock.expirations("tea")?.remove(0);
    let _ = stock.prewarm("tea", 10, HOUR).await?;
    assert!(held(
        stock
            .reserve(&Request::new("tea", "ann", "1"), 1, HOLD)
            .await?
    ));
    store.advance(HOLD * 2)?;
    stock.report("tea").await?.expect("on sale");
    // The next day, an hour before the stream would go.
    store.advance(23 * HOUR)?;
    let _ = stock.prewarm("tea", 10, 4 * HOUR).await?;
    store.advance(3 * HOUR)?;
    let entries: u64 = store.query(redis::cmd("XLEN").arg(&stream)).await?;
    assert_eq!(entries, 1);
    Ok(())
}

#[tokio::test]
async fn a_restock_of_a_sale_that_is_warm_in_part_is_an_error_to_repeat() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let stock = Stock::builder(&store, "part", "sale").shards(2).build()?;
    assert_eq!(stock.restock("tea", 4, "r").await?, Restock::NotWarmed);
    let _ = stock.prewarm("tea", 10, HOUR).await?;
    let keys = redstart::key::Keys::named("part", "stock_shard", "sale")?;
    let lost = keys.entity("1.2/tea")?;
    store.query::<()>(redis::cmd("DEL").arg(lost.key())).await?;
    let error = stock.restock("tea", 4, "r").await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let _ = stock.prewarm("tea", 10, HOUR).await?;
    assert_eq!(stock.restock("tea", 4, "r").await?, Restock::Added);
    let report = stock.report("tea").await?.expect("on sale");
    assert_eq!(report.total(), 14, "{report:?}");
    Ok(())
}

/// A user's name is any text: what belongs to one is never taken from another.
#[tokio::test]
async fn a_name_with_a_nul_byte_is_a_name_of_its_own() -> anyhow::Result<()> {
    for url in [None, Some(Kind::Redis), Some(Kind::Valkey)] {
        let server = match url {
            Some(kind) => Some(Server::builder(kind).start().await?),
            None => None,
        };
        let url = server.as_ref().map_or("memory://".to_owned(), Server::url);
        let store = Store::connect(&url).await?;
        let stock = Stock::builder(&store, "nul", "sale").per_user(2).build()?;
        let _ = stock.prewarm("tea", 10, HOUR).await?;
        let request = |user: &str, id: &str| Request::new("tea", user, id);
        assert!(held(stock.reserve(&request("ann", "1"), 2, HOLD).await?));
        let other = request("ann\0x", "1");
        assert!(held(stock.reserve(&other, 2, HOLD).await?));
        assert!(matches!(
            stock.extend(&other, HOLD).await?,
            Extension::Held { .. }
        ));
        assert_eq!(stock.cancel(&other).await?, Transition::Done);
        let more = stock.reserve(&request("ann", "2"), 1, HOLD).await?;
        assert_eq!(more, Reserve::UserCap { left: 0 });
        assert!(held(stock.reserve(&request("ann\0x", "2"), 2, HOLD).await?));
    }
    Ok(())
}

/// A server that evicts takes one key of a sale and leaves the others.
#[tokio::test]
async fn a_hold_whose_sale_is_gone_is_unknown_and_nothing_is_written() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let stock = Stock::builder(&store, "gone", "sale").build()?;
    let _ = stock.prewarm("tea", 10, HOUR).await?;
    let request = Request::new("tea", "ann", "1");
    let hold = Duration::from_secs(60);
    assert!(held(stock.reserve(&request, 1, hold).await?));
    let sale = redstart::key::Keys::named("gone", "stock", "sale")?.entity("tea")?;
    store.query::<()>(redis::cmd("DEL").arg(sale.key())).await?;
    store.advance(hold)?;
    assert_eq!(stock.confirm(&request).await?, Transition::Unknown);
    assert_eq!(stock.extend(&request, hold).await?, Extension::Unknown);
    assert_eq!(stock.reserve(&request, 1, hold).await?, Reserve::NotWarmed);
    let exists: u64 = store.query(redis::cmd("EXISTS").arg(sale.key())).await?;
    assert_eq!(exists, 0, "a sale without an end was made");
    Ok(())
}

/// Each round of a report ends 64 holds. It does not go on beyond the deadline, and the next one goes on from there.
#[tokio::test]
async fn a_report_of_more_holds_than_there_is_time_for_says_so() -> anyhow::Result<()> {
    const HOLDS: usize = 64 * 40;
    let server = Server::builder(Kind::Redis).start().await?;
    let direct = Store::builder(&server.url())
        .deadline(SHOPPING)
        .connect()
        .await?;
    let stock = Stock::builder(&direct, "many", "sale").build()?;
    let _ = stock.prewarm("tea", HOLDS as u64, HOUR).await?;
    let buyers = (0..HOLDS).map(|n| {
        let stock = &stock;
        let request = Request::new("tea", &format!("u{n}"), "1");
        async move { stock.reserve(&request, 1, Duration::from_millis(1)).await }
    });
    for answer in futures_util::future::join_all(buyers).await {
        let _ = answer?;
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
    let proxy = Proxy::start(&server).await?;
    let deadline = Duration::from_secs(2);
    let slow = Store::builder(proxy.url())
        .deadline(deadline)
        .connect()
        .await?;
    proxy.delay_replies(deadline / 10);
    let slow = Stock::builder(&slow, "many", "sale").build()?;
    let error = slow.report("tea").await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    let report = stock.report("tea").await?.expect("on sale");
    assert_eq!((report.free, report.held), (HOLDS as u64, 0));
    Ok(())
}

#[tokio::test]
async fn a_report_has_all_shards_of_a_sale_or_there_is_none() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let stock = Stock::builder(&store, "ends", "sale").shards(4).build()?;
    let _ = stock.prewarm("tea", 10, HOUR).await?;
    let keys = redstart::key::Keys::named("ends", "stock_shard", "sale")?;
    for lost in [2, 0] {
        let shard = keys.entity(&format!("{lost}.4/tea"))?;
        store
            .query::<()>(redis::cmd("DEL").arg(shard.key()))
            .await?;
        assert_eq!(stock.report("tea").await?, None);
        store.advance(Duration::from_secs(60))?;
        // With other units and another end, which are those of the sale that is there.
        assert_eq!(stock.prewarm("tea", 99, HOUR).await?, Prewarm::Warmed);
        let report = stock.report("tea").await?.expect("on sale");
        assert_eq!(report.total(), 10, "{report:?}");
    }
    store.advance(HOUR - Duration::from_secs(240))?;
    let report = stock.report("tea").await?.expect("on sale");
    assert_eq!(report.total(), 10, "{report:?}");
    store.advance(Duration::from_secs(121))?;
    assert_eq!(stock.report("tea").await?, None);
    assert_eq!(stock.prewarm("tea", 99, HOUR).await?, Prewarm::Warmed);
    assert_eq!(stock.report("tea").await?.expect("on sale").total(), 99);
    Ok(())
}

#[tokio::test]
async fn the_age_of_a_loan_is_asked_of_the_shard_that_gave_it() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let (stock, ..) = lent(&store, "age").await?;
    let tap = MonitorTap::start(&server).await?;
    let report = stock.report("tea").await?.expect("on sale");
    assert_eq!(report.total(), 10, "{report:?}");
    let seen = tap.commands().await?;
    let digest = script("stock.time").digest();
    let asked = |command: &&redstart_testkit::monitor::Seen| command.mentions("{1.2/tea}");
    assert!(
        seen.iter().filter(asked).any(|seen| seen.mentions(digest)),
        "the lender is not asked"
    );
    let elsewhere =
        |seen: &&redstart_testkit::monitor::Seen| !seen.is_from_script() && seen.name() == "TIME";
    assert_eq!(
        seen.iter().filter(elsewhere).count(),
        0,
        "any node is asked"
    );
    Ok(())
}
