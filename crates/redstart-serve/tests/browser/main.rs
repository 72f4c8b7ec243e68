//! The dashboard in a real Chromium: every screen in both themes and two widths, without violations of axe-core; actions,
//! live parts, and reading without JavaScript. Screenshots go to `REDSTART_SCREENSHOTS`, or to the target folder.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "the client has more than this test needs")]

#[path = "../api/client.rs"]
mod client;

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use client::Client;
use redstart::{Store, messaging::Queue};
use redstart_serve::{Config, Demo, Service};
use redstart_testkit::{Browser, eventually, figure, scale};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(90);

const SCREENS: &[(&str, &str)] = &[
    ("overview", "/?namespace=shop"),
    ("queues", "/queues?namespace=shop"),
    ("queue", "/queues/payments?namespace=shop"),
    ("dead", "/queues/payments/dead?namespace=shop"),
    (
        "search",
        "/queues/images/search?namespace=shop&state=delayed&text=lamp",
    ),
    ("action", "/act/queue.pause?queue=mail&namespace=shop"),
    ("locks", "/locks?namespace=shop"),
    ("limiters", "/limiters?namespace=shop&name=api&subject=ann"),
    ("caches", "/caches?namespace=shop"),
    ("breakers", "/breakers?namespace=shop"),
    ("stock", "/stock?namespace=shop&item=lamp"),
    ("boards", "/boards?namespace=shop"),
    ("sessions", "/sessions?namespace=shop&user=ann"),
    ("streams", "/streams?namespace=shop&name=orders"),
    ("counting", "/counting?namespace=shop"),
    ("filters", "/filters?namespace=shop"),
    ("places", "/places?namespace=shop"),
    ("audit", "/audit?namespace=shop"),
    ("api", "/api?namespace=shop"),
    ("login", "/login"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "slow, and it needs Chromium and axe-core from `cargo xtask servers`"]
async fn every_screen_is_accessible_live_and_steerable_in_a_browser() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let config = Config::parse(
        "namespace = \"shop\"\n[limiter.api]\nquota = \"60/m\"\nburst = 20\ntiers = { pro = \"600/m\" }",
    )?;
    let service = Service::new(&store, config)?;
    let listener = service.bind("127.0.0.1:0".parse()?).await?;
    let base = format!("http://{}", listener.local_addr()?);
    let serving = tokio::spawn(async move { service.run(listener, std::future::pending()).await });
    let demo = Demo::start(&store).await?;
    let payments = Queue::new(&store, "shop", "payments")?;
    // There must be something to see in every screen, dead letters too.
    ensure!(
        eventually(
            PATIENCE,
            async || matches!(payments.inspect().counts().await, Ok(counts) if counts.dead > 0)
        )
        .await
    );
    let shots = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    let browser = Browser::start(shots).await?;

    // Hot subjects, some of which are refused.
    let mut api = Client::new(base.trim_start_matches("http://").parse()?);
    for n in 0..60 {
        let check = json!({"subject": format!("user-{}", n % 2)});
        let checked = api.post("/v1/limiters/api:check?namespace=shop", check);
        ensure!(checked.await?.status == 200);
    }
    let mut faults = Vec::new();
    // In the ordinary run every second screen is looked at in the one way, the others in the other.
    let every = scale(1, "BROWSER_LOOKS") > 1;
    for (turn, (width, theme)) in [(1440, "light"), (375, "dark")].into_iter().enumerate() {
        browser.look(width, theme).await?;
        let screens = SCREENS.iter().enumerate();
        for (_, (name, path)) in screens.filter(|(at, _)| every || at % 2 == turn) {
            browser.open(&format!("{base}{path}")).await?;
            for fault in browser.faults().await? {
                faults.push(format!("{name} {width} {theme}: {fault}"));
            }
            browser.shoot(&format!("{name}-{width}-{theme}")).await?;
        }
    }
    ensure!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );

    browser.look(1920, "dark").await?;
    browser.open(&format!("{base}/?namespace=shop")).await?;
    browser.shoot("overview-1920-dark").await?;
    browser.look(1280, "light").await?;

    // Live: the page's own numbers change without a reload.
    browser
        .open(&format!("{base}/queues?namespace=shop"))
        .await?;
    browser.run("window.same = true").await?;
    let mut seen = std::collections::HashSet::new();
    let ends = tokio::time::Instant::now() + PATIENCE;
    while seen.len() < 3 {
        ensure!(
            tokio::time::Instant::now() < ends,
            "the page does not change: {seen:?}"
        );
        seen.insert(
            browser
                .run("return document.querySelector('#live table').innerText")
                .await?
                .to_string(),
        );
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    ensure!(browser.run("return window.same === true && document.getElementById('beat').dataset.state === 'on'").await? == true);

    // Whoever is in the table with the keyboard keeps the focus.
    browser
        .run("window.here = document.querySelector('#live a'); window.here.focus()")
        .await?;
    let held = eventually(PATIENCE, async || {
        let text = browser.run("return document.getElementById('pulse').textContent");
        matches!(text.await, Ok(text) if text.to_string().contains("waits"))
    });
    ensure!(held.await, "the page does not say that it waits");
    ensure!(
        browser
            .run("return window.here.isConnected && document.activeElement === window.here")
            .await?
            == true
    );
    browser.run("window.here.blur()").await?;
    let on = eventually(
        PATIENCE,
        async || matches!(browser.run("return window.here.isConnected").await, Ok(connected) if connected == false),
    );
    ensure!(on.await, "the page does not go on");

    // An action: asked for, said, confirmed, done, written down.
    browser
        .open(&format!("{base}/queues/mail?namespace=shop"))
        .await?;
    browser.click("a[href*='act/queue.pause']").await?;
    browser.until("Running jobs finish").await?;
    browser.click("button.primary").await?;
    browser.until("paused").await?;
    browser.click("a[href*='act/queue.resume']").await?;
    browser.until("get jobs again").await?;
    browser.click("button.primary").await?;
    browser.until("Pause").await?;
    browser
        .open(&format!("{base}/audit?namespace=shop"))
        .await?;
    browser.until("queue.resume").await?;

    // Trying the API, the theme switch and the keyboard.
    browser.open(&format!("{base}/api?namespace=shop")).await?;
    browser
        .run("document.querySelector('details').open = true")
        .await?;
    browser.click("form[data-try] button").await?;
    ensure!(eventually(PATIENCE, async || {
        matches!(browser.run("return document.querySelector('form[data-try] output').textContent").await, Ok(text) if text.to_string().contains("200 in"))
    }).await);
    browser.click("#theme").await?;
    ensure!(
        browser
            .run("return document.documentElement.dataset.theme")
            .await?
            == "dark"
    );
    browser.run("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'g', bubbles: true})); document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'q', bubbles: true}))").await?;
    ensure!(
        eventually(PATIENCE, async || {
            matches!(browser.run("return location.pathname").await, Ok(path) if path == "/queues")
        })
        .await
    );

    // Without JavaScript everything can still be read.
    browser
        .tool(
            "Emulation.setScriptExecutionDisabled",
            json!({"value": true}),
        )
        .await?;
    for (name, path) in &SCREENS[..4] {
        browser.open(&format!("{base}{path}")).await?;
        let source = browser.source().await?;
        ensure!(source.contains("<h1>"), "{name}");
    }
    browser.close().await?;
    figure(format!(
        "{} screens in {} of 2 widths and themes, 0 violations of axe-core",
        SCREENS.len(),
        if every { 2 } else { 1 }
    ));
    demo.stop().await;
    serving.abort();
    Ok(())
}
