//! The dashboard in a real Chromium: every screen in both themes and two widths, without violations of axe-core; actions,
//! live parts, and reading without JavaScript. Screenshots go to `REDSTART_SCREENSHOTS`, or to the target folder.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "the client has more than this test needs")]

#[path = "../api/client.rs"]
mod client;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use client::Client;
use redstart::{
    Store,
    locking::Mutex,
    messaging::{JobState, Queue},
    sessions::{Login, Sessions},
};
use redstart_adopt::bullmq::{BullQueue, NewJob};
use redstart_serve::{Config, Demo, Service, hash_token};
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
    ("bulk", "/queues/payments/bulk?namespace=shop&state=dead"),
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
    ("findings", "/findings?namespace=shop"),
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
    // A queue of another library, which is recognised when a page first asks.
    let bull = BullQueue::new(&store, "letters")?;
    let _ = bull
        .add(NewJob::new("welcome", &json!({"to": "ann"}))?)
        .await?;
    let (jobs, _) = payments.inspect().list(JobState::Running, None).await?;
    let job = match jobs.first() {
        Some(job) => job.id,
        None => payments
            .enqueue_raw("charge", b"1")
            .await?
            .id()
            .context("full")?,
    };
    let library = redstart_adopt::Library::BullMq;
    let mut screens: Vec<(&str, String)> = SCREENS
        .iter()
        .map(|(name, path)| (*name, (*path).to_owned()))
        .collect();
    screens.push((
        "foreign",
        format!("/foreign?namespace=shop&library={library}&subject=bull%3Aletters"),
    ));
    screens.push(("job", format!("/queues/payments/jobs/{job}?namespace=shop")));

    let shots = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    let browser = Browser::start(shots).await?;

    // Hot subjects, some of which are refused.
    let mut api = Client::new(base.trim_start_matches("http://").parse()?);
    let recognised = eventually(PATIENCE, async || {
        let page = api.get("/queues?namespace=shop").await;
        matches!(page, Ok(page) if page.text().contains("bull:letters"))
    });
    ensure!(
        recognised.await,
        "the queue of another library is not shown"
    );
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
        let screens = screens.iter().enumerate();
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

    // The same moment in the reader's own zone: these two are a day apart.
    let mut shown = Vec::new();
    for zone in ["Pacific/Kiritimati", "Pacific/Pago_Pago"] {
        let zone = json!({"timezoneId": zone});
        browser.tool("Emulation.setTimezoneOverride", zone).await?;
        browser
            .open(&format!("{base}/audit?namespace=shop"))
            .await?;
        let read = "const all = document.querySelectorAll('time[datetime]'); const time = all[all.length - 1]; \
            return [time.getAttribute('datetime'), time.textContent]";
        shown.push(browser.run(read).await?);
    }
    ensure!(
        shown[0][0] == shown[1][0] && shown[0][1] != shown[1][1],
        "{shown:?}"
    );
    let utc = json!({"timezoneId": "UTC"});
    browser.tool("Emulation.setTimezoneOverride", utc).await?;

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
        screens.len(),
        if every { 2 } else { 1 }
    ));
    demo.stop().await;
    serving.abort();
    Ok(())
}

/// What can be changed on the dashboard, read from the code: the actions that ask on a page of their own, and the other
/// forms.
fn changes() -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let code = include_str!("../../src/page/action.rs");
    let plan = code.split("async fn plan(").nth(1).context("no plan")?;
    let plan = plan.split("\nasync fn ").next().unwrap_or_default();
    let arms = plan
        .lines()
        .filter_map(|line| line.strip_prefix("        \"")?.strip_suffix(" => {"));
    let names = arms.flat_map(|arm| {
        arm.trim_end_matches('"')
            .split("\" | \"")
            .map(str::to_owned)
    });
    let code = include_str!("../../src/page.rs");
    let posts = code.split("Route::post(").skip(1);
    let posts = posts.filter_map(|rest| {
        Some(
            rest.trim_start()
                .strip_prefix('"')?
                .split('"')
                .next()?
                .to_owned(),
        )
    });
    let (actions, forms): (BTreeSet<_>, BTreeSet<_>) = (names.collect(), posts.collect());
    ensure!(
        actions.len() >= 15 && forms.len() >= 5,
        "{actions:?} {forms:?}"
    );
    Ok((actions, forms))
}

/// A reader who clicks: what was done, by the names that the code has for it.
struct Hand<'a> {
    browser: &'a Browser,
    base: &'a str,
    actions: BTreeSet<String>,
    forms: BTreeSet<String>,
}

impl Hand<'_> {
    async fn open(&self, path: &str) -> Result<()> {
        self.browser.open(&format!("{}{path}", self.base)).await
    }

    /// Clicks on a link of a page that leads to the action, reads what it says, and confirms.
    async fn act(&mut self, page: &str, action: &str, says: &str) -> Result<()> {
        self.open(page).await?;
        self.follow(action, says).await
    }

    async fn follow(&mut self, action: &str, says: &str) -> Result<()> {
        self.click(&format!("a[href*='act/{action}?']")).await?;
        self.confirm(action, says).await
    }

    /// Clicks on what may not be there yet: a live part shows what was there up to two seconds ago.
    async fn click(&self, css: &str) -> Result<()> {
        let clicked = eventually(PATIENCE, async || self.browser.click(css).await.is_ok());
        ensure!(clicked.await, "no {css} in {}", self.browser.text().await?);
        Ok(())
    }

    /// On the page of the action: nothing is done before it is confirmed.
    async fn confirm(&mut self, action: &str, says: &str) -> Result<()> {
        self.browser
            .until(says)
            .await
            .with_context(|| action.to_owned())?;
        let at = self.path().await?;
        ensure!(at == format!("/act/{action}"), "{action} asks at {at}");
        self.browser.click("button.primary").await?;
        let left = eventually(
            PATIENCE,
            async || matches!(self.path().await, Ok(path) if !path.starts_with("/act/")),
        );
        ensure!(left.await, "{action}: {}", self.browser.text().await?);
        self.actions.insert(action.to_owned());
        self.forms.insert("/act/{action}".to_owned());
        Ok(())
    }

    async fn path(&self) -> Result<String> {
        let path = self.browser.run("return location.pathname").await?;
        Ok(path.as_str().unwrap_or_default().to_owned())
    }

    async fn fill(&self, field: &str, value: &str) -> Result<()> {
        let script = format!(
            "document.querySelector({}).value = {}",
            json!(field),
            json!(value)
        );
        self.browser.run(&script).await.map(drop)
    }
}

/// Six jobs become dead letters of one group.
async fn die(api: &mut Client) -> Result<()> {
    for n in 0..6 {
        let lease = json!({"kinds": ["bad"], "wait": 30});
        let leased = api.post("/v1/queues/q:lease", lease).await?.json();
        let fence = &leased["jobs"][0]["fence"];
        let failed = json!({"fence": fence, "error": format!("code {n}"), "dead": true});
        ensure!(api.post("/v1/queues/q:fail", failed).await?.status == 200);
    }
    Ok(())
}

/// Every change that the dashboard can make is made by clicks, with its confirmation, and is in the audit log. One that is
/// added to the code and not here makes this fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "slow, and it needs Chromium from `cargo xtask servers`"]
async fn every_change_is_clicked_confirmed_and_written_down() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let config = Config::parse("namespace = \"n\"\n[limiter.api]\nquota = \"60/m\"")?;
    let service = Service::new(&store, config)?;
    let listener = service.bind("127.0.0.1:0".parse()?).await?;
    let base = format!("http://{}", listener.local_addr()?);
    let serving = tokio::spawn(async move { service.run(listener, std::future::pending()).await });
    let mut api = Client::new(base.trim_start_matches("http://").parse()?);
    let queue = Queue::new(&store, "n", "q")?;
    let counts = async || queue.inspect().counts().await;
    let hour = Duration::from_secs(3600);

    // Something for each of them.
    for n in 0..4 {
        queue
            .enqueue_raw("later", format!("{{\"n\":{n}}}").as_bytes())
            .delay(hour)
            .await?;
    }
    for _ in 0..6 {
        queue.enqueue_raw("bad", b"1").await?;
    }
    die(&mut api).await?;
    let mutex = Mutex::builder(&store, "n", "m")
        .label("stuck")
        .ttl(hour)
        .without_renewal()
        .build()?;
    let _ticket = mutex
        .try_lock()
        .await?
        .context("not granted")?
        .into_ticket()?;
    let sessions = Sessions::new(&store, "n", "web")?;
    for _ in 0..3 {
        sessions.login(Login::new("ann"), &json!({})).await?;
    }
    api.post("/v1/limiters/api:check", json!({"subject": "ann"}))
        .await?;
    api.post("/v1/breakers/b:force-open", json!({"for": 1}))
        .await?;
    api.json("PUT", "/v1/caches/c/k", json!({"value": 1, "ttl": 600}))
        .await?;
    let leased = api
        .post("/v1/caches/c/k:lease", json!({"lease": 10}))
        .await?
        .json();
    api.json(
        "PUT",
        "/v1/caches/c/k",
        json!({"value": 1, "lease": leased["lease"]}),
    )
    .await?;

    let shots = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    let browser = Browser::start(shots).await?;
    browser.look(1280, "light").await?;
    let mut hand = Hand {
        browser: &browser,
        base: &base,
        actions: BTreeSet::new(),
        forms: BTreeSet::new(),
    };
    let page = "/queues/q?namespace=n";
    hand.act(page, "queue.pause", "Running jobs finish").await?;
    ensure!(counts().await?.paused);
    hand.act(page, "queue.resume", "get jobs again").await?;
    ensure!(!counts().await?.paused);
    let delayed = "/queues/q?namespace=n&state=delayed";
    hand.act(delayed, "queue.run-now", "becomes ready now")
        .await?;
    assert_eq!((counts().await?.delayed, counts().await?.ready), (3, 1));
    hand.act(delayed, "queue.delete", "This cannot be undone")
        .await?;
    assert_eq!(counts().await?.delayed, 2);
    // A job's own page.
    hand.open(delayed).await?;
    hand.click("td a.mono").await?;
    browser.until("Timeline").await?;
    hand.follow("queue.cancel", "will not be tried again")
        .await?;
    assert_eq!(counts().await?.delayed, 1);
    hand.open(page).await?;
    hand.click("a[href*='act/queue.add?']").await?;
    browser.until("Payload, JSON").await?;
    hand.fill("input[name=kind]", "mail").await?;
    hand.fill("textarea[name=payload]", "{\"to\": \"ann\"}")
        .await?;
    hand.confirm("queue.add", "A job is added").await?;
    assert_eq!(counts().await?.ready, 2);
    // A group of letters, whose links come first, and then one letter.
    let letters = "/queues/q/dead?namespace=n";
    hand.act(letters, "queue.replay", "enqueued again").await?;
    assert_eq!(counts().await?.dead, 0);
    die(&mut api).await?;
    hand.open(letters).await?;
    hand.click("a[href*='act/queue.purge?'][href*='letter=']")
        .await?;
    hand.confirm("queue.purge", "1 dead letters are deleted")
        .await?;
    assert_eq!(counts().await?.dead, 5);

    // Many jobs: counted, refused by hand, counted again, confirmed.
    for (verb, word) in [
        ("stop", "It was stopped"),
        ("confirm", "It is done: 5 of 5"),
    ] {
        hand.open("/queues/q/bulk?namespace=n&state=dead&action=retry")
            .await?;
        hand.fill("input[name=error]", "code").await?;
        hand.click("form[action$='/queues/q/bulk?namespace=n'] button.primary")
            .await?;
        browser.until("Yes, retry 5").await?;
        let faults = browser.faults().await?;
        ensure!(faults.is_empty(), "{faults:?}");
        hand.forms.insert("/queues/{name}/bulk".to_owned());
        let held = counts().await?.dead;
        assert_eq!(held, 5, "nothing is done before it is confirmed");
        hand.click(&format!("form[action*='/{verb}?'] button"))
            .await?;
        browser.until(word).await?;
        hand.forms
            .insert(format!("/queues/{{name}}/bulk/{{id}}/{verb}"));
    }
    assert_eq!(counts().await?.dead, 0);
    browser.shoot("bulk-1280-light").await?;

    hand.act("/locks?namespace=n", "lock.force-release", "stuck")
        .await?;
    ensure!(mutex.holder().await?.is_none());
    hand.act(
        "/breakers?namespace=n",
        "breaker.force-open",
        "refused for 60 s",
    )
    .await?;
    hand.act("/breakers?namespace=n", "breaker.reset", "is closed")
        .await?;
    hand.open("/caches?namespace=n").await?;
    browser.until("Invalidate").await?;
    hand.fill("input[name=key]", "k").await?;
    hand.click("form[action$='/act/cache.invalidate'] button")
        .await?;
    hand.confirm("cache.invalidate", "loads it again").await?;
    hand.act(
        "/sessions?namespace=n&user=ann",
        "session.revoke",
        "One session of ann ends",
    )
    .await?;
    assert_eq!(sessions.list("ann").await?.len(), 2);
    hand.act(
        "/sessions?namespace=n&user=ann",
        "session.revoke-all",
        "2 sessions of ann end",
    )
    .await?;
    ensure!(sessions.list("ann").await?.is_empty());
    let limiter = "/limiters?namespace=n&name=api&subject=ann";
    hand.act(limiter, "limiter.check", "takes one of the limit")
        .await?;
    browser.until("The check was allowed").await?;
    hand.act(limiter, "limiter.reset", "the whole limit")
        .await?;
    // A service that knows a token.
    let config = "[[token]]\nname = \"ann\"\nrole = \"admin\"\nsha256 = ";
    let config = Config::parse(&format!("{config}{:?}", hash_token("ann-secret")))?;
    let locked = Service::new(&store, config)?;
    let listener = locked.bind("127.0.0.1:0".parse()?).await?;
    let door = format!("http://{}/login", listener.local_addr()?);
    let guarding = tokio::spawn(async move { locked.run(listener, std::future::pending()).await });
    browser.open(&door).await?;
    hand.fill("input[name=token]", "wrong").await?;
    browser.click("button.primary").await?;
    browser.until("This token is not known").await?;
    hand.fill("input[name=token]", "ann-secret").await?;
    browser.click("button.primary").await?;
    browser.until("You are ann").await?;
    hand.forms.insert("/login".to_owned());
    guarding.abort();

    // A search goes on by itself, and can be stopped.
    let many = (0..30_000).map(|n| Thing { n });
    queue.enqueue_many(many).await?;
    hand.open("/queues/q/search?namespace=n&state=ready&text=29999")
        .await?;
    browser.until("of 30,").await?;
    browser.until("1 shown").await?;
    ensure!(
        browser
            .run("return document.querySelectorAll('tr[data-job]').length")
            .await?
            == 1
    );
    hand.open("/queues/q/search?namespace=n&state=ready&text=nobody")
        .await?;
    hand.click("#stop").await?;
    browser.until("Stopped").await?;
    let before = browser.text().await?;
    ensure!(before.contains("Go on from here"), "{before}");
    let faults = browser.faults().await?;
    ensure!(faults.is_empty(), "{faults:?}");
    browser.shoot("searching-1280-light").await?;

    let (actions, forms) = changes()?;
    let missing: Vec<_> = actions
        .difference(&hand.actions)
        .chain(forms.difference(&hand.forms))
        .collect();
    ensure!(missing.is_empty(), "not clicked: {missing:?}");
    let log = api.get("/v1/audit").await?.json();
    let log: BTreeSet<&str> = log["changes"]
        .as_array()
        .context("no log")?
        .iter()
        .filter_map(|change| change["what"].as_str())
        .collect();
    for action in actions
        .iter()
        .map(String::as_str)
        .chain(["queue.bulk-retry"])
    {
        ensure!(
            log.contains(action),
            "{action} is not written down: {log:?}"
        );
    }
    figure(format!(
        "{} actions and {} other forms clicked and confirmed",
        actions.len(),
        forms.len() - 1
    ));
    browser.close().await?;
    serving.abort();
    Ok(())
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Thing {
    n: u64,
}

impl redstart::messaging::Job for Thing {
    const NAME: &'static str = "thing";
}
