//! Circuit breaker and flash-sale stock.

use std::time::Duration;

use redstart::{
    commerce::{Prewarm, Request, Reserve, Stock, Transition},
    resilience::{Admitted, Breaker, CallError, CallWindow, CircuitState},
};

use super::{Family, Stage, Step};

pub(crate) const FAMILY: Family = Family {
    name: "resilience and commerce",
    steps: &[
        Step {
            pattern: "circuit_breaker",
            run: |stage| Box::pin(circuit_breaker(stage)),
        },
        Step {
            pattern: "stock",
            run: |stage| Box::pin(stock(stage)),
        },
    ],
};

async fn circuit_breaker(stage: &mut Stage) -> anyhow::Result<()> {
    let instance = |name: &str| {
        Breaker::builder(stage.store(), stage.namespace(), "payments")
            .window(CallWindow::Count(20))
            .failure_rate(0.5)
            .min_calls(6)
            .distinct_instances(2)
            .open_for(Duration::from_millis(400))
            .probes(2)
            .instance(name)
            .open()
    };
    let (one, two) = (instance("one").await?, instance("two").await?);
    let fail = async |breaker: &Breaker| {
        for _ in 0..6 {
            let _ = breaker.call(async || Err::<(), _>("down")).await;
        }
        breaker.flush().await
    };
    fail(&one).await?;
    stage.claim(
        one.state() == CircuitState::Closed,
        "one bad machine does not open the circuit",
    )?;
    fail(&two).await?;
    let refused = two.call(async || Ok::<_, &str>(())).await;
    stage.claim(
        matches!(refused, Err(CallError::Open { .. })),
        "failures of two machines do",
    )?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    if stage.store().is_embedded() {
        stage.store().advance(Duration::from_millis(500))?;
    }
    let mut probes = Vec::new();
    for _ in 0..10 {
        if let Admitted::Yes(admission) = two.try_admit().await {
            probes.push(admission);
        }
    }
    stage.claim(
        probes.len() == 2,
        "while half-open, two probes go through across the whole fleet",
    )?;
    for probe in probes {
        probe.succeeded().await;
    }
    two.flush().await?;
    stage.claim(
        two.call(async || Ok::<_, &str>(())).await.is_ok(),
        "their success closes it",
    )?;
    stage.did(24);
    stage.show("failures of two machines opened the circuit for all; two probes closed it again");
    Ok(())
}

/// Three reservations of one buyer: the first is confirmed, the others are cancelled. Returns how many were granted, and far more
/// if a repeated or settled one was not answered as it must be.
async fn buy(stock: &Stock, buyer: u32) -> redstart::Result<u64> {
    let mut held = 0u64;
    for n in 0..3 {
        let request = Request::new("console", &format!("user-{buyer}"), &format!("{buyer}-{n}"));
        if matches!(
            stock.reserve(&request, 1, Duration::from_secs(60)).await?,
            Reserve::Held { .. }
        ) {
            held += 1;
            // A lost reply is asked for again with the same id.
            let replay = stock.reserve(&request, 1, Duration::from_secs(60)).await?;
            if !matches!(replay, Reserve::Replayed(_)) {
                held += 1000;
            }
            let transition = match n {
                0 => stock.confirm(&request).await?,
                _ => stock.cancel(&request).await?,
            };
            if transition != Transition::Done {
                held += 1000;
            }
        }
    }
    Ok(held)
}

async fn stock(stage: &mut Stage) -> anyhow::Result<()> {
    let stock = Stock::builder(stage.store(), stage.namespace(), "sale")
        .per_user(2)
        .build()?;
    let early = stock
        .reserve(
            &Request::new("console", "eve", "r"),
            1,
            Duration::from_secs(60),
        )
        .await?;
    stage.claim(
        early == Reserve::NotWarmed,
        "missing stock is not zero stock",
    )?;
    let _ = stock
        .prewarm("console", 50, Duration::from_secs(600))
        .await?;
    let again = stock
        .prewarm("console", 50, Duration::from_secs(600))
        .await?;
    stage.claim(
        again == Prewarm::Running,
        "a running sale is not overwritten",
    )?;
    let mut tasks = tokio::task::JoinSet::new();
    for buyer in 0..100 {
        let stock = stock.clone();
        tasks.spawn(async move { buy(&stock, buyer).await });
    }
    let mut most = 0;
    while let Some(ended) = tasks.join_next().await {
        most = most.max(ended??);
    }
    stage.claim(
        most <= 3,
        "each request is settled once, and repeats change nothing",
    )?;
    let report = stock.report("console").await?.unwrap_or_default();
    stage.claim(
        report.total() == 50,
        "free, held and sold units add up to the stock",
    )?;
    stage.claim(
        report.held == 0 && report.sold <= 50,
        "nothing was sold twice",
    )?;
    let mut orders = 0u64;
    for key in stock.orders("console")? {
        orders += stage
            .store()
            .query::<u64>(redstart::redis::cmd("XLEN").arg(key))
            .await?;
    }
    stage.claim(
        orders >= report.sold,
        "every unit that was sold has its order in the stream",
    )?;
    stage.did(300);
    stage.show(format!(
        "100 buyers, 50 units: {} sold, {} free, nothing twice, nothing lost",
        report.sold, report.free
    ));
    Ok(())
}
