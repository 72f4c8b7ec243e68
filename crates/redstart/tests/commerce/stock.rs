//! Stock, through races, lost answers and killed processes.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use rand::RngExt as _;
use redstart::{
    Store,
    commerce::stock::{Prewarm, Request, Reserve, State, Stock, Transition},
};
use redstart_testkit::{
    Backend, Child, Kind, Proxy, Server, child, eventually, figure, matrix, scale, wait_until,
};

const HOUR: Duration = Duration::from_secs(3600);
const HOLD: Duration = Duration::from_secs(300);
const SHOPPING: Duration = Duration::from_secs(600);

/// All orders of a SKU: user, request, quantity.
async fn orders(
    store: &Store,
    stock: &Stock,
    sku: &str,
) -> anyhow::Result<Vec<(String, String, u64)>> {
    let mut found = Vec::new();
    for stream in stock.orders(sku)? {
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(&stream).arg("-").arg("+");
        let entries: redis::streams::StreamRangeReply = store.query(&cmd).await?;
        for entry in entries.ids {
            let field = |name: &str| entry.get::<String>(name).unwrap_or_default();
            assert_eq!(field("sku"), sku);
            found.push((field("user"), field("request"), field("qty").parse()?));
        }
    }
    Ok(found)
}

fn held(answer: Reserve) -> bool {
    matches!(answer, Reserve::Held { .. })
}

matrix! {
    async fn a_reservation_is_settled_once(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::new(&store, backend.namespace()).per_user(3).build()?;
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
        let stock = Stock::new(&store, backend.namespace()).per_user(2).build()?;
        stock.prewarm("tea", 2, HOUR).await?;
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

    async fn a_bucket_that_runs_out_borrows_before_it_says_sold_out(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stock = Stock::new(&store, backend.namespace()).buckets(4).build()?;
        assert_eq!(stock.prewarm("tea", 22, HOUR).await?, Prewarm::Warmed);
        assert_eq!(stock.report("tea").await?.unwrap().total(), 22);
        // One user has one bucket of about five units, and gets all there are.
        for n in 0..7 {
            let request = Request::new("tea", "ann", &n.to_string());
            assert!(held(stock.reserve(&request, 3, HOLD).await?), "{n}");
            assert_eq!(stock.report("tea").await?.unwrap().total(), 22);
        }
        let last = Request::new("tea", "ann", "last");
        let Reserve::SoldOut { free } = stock.reserve(&last, 3, HOLD).await? else { panic!() };
        assert!(free <= 1);
        // A buyer of any other bucket gets the last one.
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
        for buckets in [1, 3] {
            let stock = Stock::new(&store, &format!("{}:{buckets}", backend.namespace()))
                .per_user(2)
                .buckets(buckets)
                .build()?;
            stock.prewarm("tea", 30, HOUR).await?;
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
            assert_eq!(report.held + report.sold, got, "{buckets} buckets");
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
            Stock::new(store, backend.namespace()).per_user(CAP).buckets(if backend.is_cluster() { 3 } else { 1 }).build()
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
        stock.prewarm("tea", units, HOUR).await?;
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
        // Every hold ends: confirmed, cancelled, or by itself.
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
        for (user, id, qty) in &orders {
            assert!(seen.insert((user.clone(), id.clone())), "two orders for {user} {id}");
            let request = Request::new("tea", user, id);
            // Settled: confirming now says how.
            match stock.confirm(&request).await? {
                Transition::Repeated => {
                    sold += qty;
                    *users.entry(user.clone()).or_default() += qty;
                }
                Transition::Refused(State::Cancelled | State::Expired) => {}
                other => panic!("{user} {id} is {other:?}"),
            }
        }
        assert_eq!(sold, report.sold);
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
    let stock = Stock::new(&store, "shop").build()?;
    stock.prewarm("tea", 5, HOUR).await?;
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
    let new = |namespace| Stock::new(&store, namespace);
    assert!(new("").build().unwrap_err().is_config());
    assert!(new("a").per_user(0).build().unwrap_err().is_config());
    assert!(new("a").buckets(0).build().unwrap_err().is_config());
    assert!(new("a").buckets(1000).build().unwrap_err().is_config());
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
