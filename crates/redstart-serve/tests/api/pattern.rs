//! What the API adds to the patterns: statuses, fences, repeats, long polls, events.

use anyhow::{Context as _, Result, ensure};
use redstart::Store;
use redstart_testkit::{Backend, Kind, MonitorTap, Server, eventually, matrix};
use serde_json::{Value, json};

use crate::{Served, client::PATIENCE};

matrix! {
    async fn a_limiter_answers_200_or_enforces_with_429(backend: &Backend) -> Result<()> {
        let config = "[limiter.api]\nalgorithm = \"sliding-window\"\nquota = \"2/h\"\nrefundable = true\ntiers = { pro = \"50/h\" }\n\
            [limiter.trial]\nquota = \"1/h\"\nshadow = true";
        let served = Served::start(backend, config).await?;
        let mut client = served.client();
        let check = json!({"subject": "ann"});
        let first = client.post("/v1/limiters/api:check", check.clone()).await?;
        assert_eq!((first.status, &first.json()["allowed"], &first.json()["remaining"]), (200, &json!(true), &json!(1)));
        assert!(first.header("ratelimit").is_some_and(|v| v.contains("r=1")), "{first:?}");
        client.post("/v1/limiters/api:check", check.clone()).await?;
        let refused = client.post("/v1/limiters/api:check", check.clone()).await?;
        assert_eq!((refused.status, &refused.json()["allowed"]), (200, &json!(false)));
        assert!(refused.json()["retry_after"].as_f64().context("no time")? > 1000.0);
        let enforced = client.post("/v1/limiters/api:check?enforce=1", check.clone()).await?;
        assert_eq!((enforced.status, enforced.problem().as_str()), (429, "limited"));
        let after: u64 = enforced.header("retry-after").context("no Retry-After")?.parse()?;
        assert!((1000..=3600).contains(&after), "{after}");
        assert!(enforced.header("ratelimit-policy").is_some_and(|v| v.contains("q=2")), "{enforced:?}");

        let grant = first.json()["grant"].clone();
        let refund = client.post("/v1/limiters/api:refund", json!({"grant": grant})).await?;
        assert_eq!(refund.json()["refunded"], 1);
        assert_eq!(client.post("/v1/limiters/api:refund", json!({"grant": grant})).await?.status, 410, "once");
        let again = client.post("/v1/limiters/api:check?enforce=1", check).await?;
        assert_eq!(again.status, 200, "what was refunded can be taken");

        let pro = client.post("/v1/limiters/api:check", json!({"subject": "bob", "tier": "pro"})).await?;
        assert!(pro.json()["limit"].as_u64() >= Some(50), "{}", pro.text());
        for _ in 0..3 {
            let trial = client.post("/v1/limiters/trial:check?enforce=1", json!({"subject": "eve"})).await?;
            assert_eq!((trial.status, &trial.json()["shadow"]), (200, &json!(true)), "a shadow lets all pass");
        }
        let unknown = client.post("/v1/limiters/none:check", json!({"subject": "ann"})).await?;
        assert_eq!((unknown.status, unknown.problem().as_str()), (404, "not-found"));
        let many = json!({"checks": [{"subject": "x"}, {"subject": "x"}, {"subject": "x"}]});
        let many = client.post("/v1/limiters/api:check-many", many).await?.json();
        let allowed: Vec<bool> = many["results"].as_array().context("no results")?.iter()
            .filter_map(|one| one["allowed"].as_bool()).collect();
        assert_eq!(allowed, [true, true, false]);

        // The file changes while the service runs.
        let text = format!("namespace = {:?}\n[limiter.none]\nquota = \"9/s\"", backend.namespace());
        served.service.reload(redstart_serve::Config::parse(&text)?)?;
        assert_eq!(client.post("/v1/limiters/none:check", json!({"subject": "ann"})).await?.status, 200);
        served.stop().await
    }

    async fn a_subject_of_a_tier_is_checked_with_others_looked_at_and_forgotten(backend: &Backend) -> Result<()> {
        let config = "[limiter.api]\nalgorithm = \"fixed-window\"\nquota = \"2/366d\"\ntiers = { pro = \"5/366d\", gold = \"9/366d\" }";
        let served = Served::start(backend, config).await?;
        let mut client = served.client();
        let pro = client.post("/v1/limiters/api:check", json!({"subject": "ann", "tier": "pro"})).await?;
        assert!(pro.header("ratelimit-policy").is_some_and(|v| v.contains("q=5")), "{pro:?}");
        let many = json!({"checks": [
            {"subject": "ann", "cost": 4, "tier": "pro"}, {"subject": "ann", "cost": 2}, {"subject": "ann", "cost": 1, "tier": "pro"},
            {"subject": "ann", "cost": 9, "tier": "gold"}, {"subject": "ann", "cost": 1},
        ]});
        let many = client.post("/v1/limiters/api:check-many", many).await?.json();
        let allowed: Vec<bool> = many["results"].as_array().context("no results")?.iter()
            .filter_map(|one| one["allowed"].as_bool()).collect();
        assert_eq!(allowed, [true, true, false, true, false]);
        let unknown = client.post("/v1/limiters/api:check-many", json!({"checks": [{"subject": "ann", "tier": "lead"}]})).await?;
        assert_eq!((unknown.status, unknown.problem().as_str()), (404, "not-found"));
        for (tier, whole) in [(None, 2), (Some("pro"), 5), (Some("gold"), 9)] {
            let look = json!({"subject": "ann", "tier": tier});
            let seen = client.post("/v1/limiters/api:peek", look).await?.json();
            assert_eq!((&seen["limit"], &seen["remaining"]), (&json!(whole), &json!(0)), "{tier:?}");
        }
        // By an instance that has not used the tiers. Another one would have another engine.
        let other = match backend.is_embedded() {
            true => None,
            false => Some(Served::start(backend, config).await?),
        };
        let mut resetting = other.as_ref().map_or_else(|| served.client(), Served::client);
        let done = resetting.post("/v1/limiters/api:reset", json!({"subject": "ann"})).await?;
        assert_eq!(done.status, 200);
        for (tier, whole) in [(None, 2), (Some("pro"), 5), (Some("gold"), 9)] {
            let look = json!({"subject": "ann", "tier": tier});
            let seen = client.post("/v1/limiters/api:peek", look).await?.json();
            assert_eq!(seen["remaining"], whole, "{tier:?}");
        }
        if let Some(other) = other {
            other.stop().await?;
        }
        served.stop().await
    }

    async fn a_lock_is_held_by_one_and_says_who_and_for_how_long(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let (mut one, mut two) = (served.client(), served.client());
        let held = one.post("/v1/locks/a%2Fb:acquire", json!({"ttl": 60, "owner": "one"})).await?;
        assert_eq!(held.status, 201);
        let (lease, fence) = (held.json()["lease"].clone(), held.json()["fence"].as_u64().context("no fence")?);
        let busy = two.post("/v1/locks/a%2Fb:acquire", json!({"wait": 0.1})).await?;
        assert_eq!((busy.status, busy.problem().as_str()), (409, "held"));
        assert_eq!(busy.json()["owner"], "one");
        let left = busy.json()["remaining"].as_f64().context("no time")?;
        assert!((1.0..=60.0).contains(&left), "{left}");
        assert_eq!(one.post("/v1/locks/a%2Fb:renew", json!({"lease": lease, "ttl": 90})).await?.status, 200);
        let waiting = tokio::spawn(async move {
            two.post("/v1/locks/a%2Fb:acquire", json!({"wait": 50, "owner": "two"})).await
        });
        let mut look = served.client();
        assert!(eventually(PATIENCE, async || {
            matches!(look.get("/v1/locks/a%2Fb").await, Ok(state) if state.json()["waiting"] == 1)
        }).await);
        assert_eq!(one.post("/v1/locks/a%2Fb:release", json!({"lease": lease})).await?.status, 200);
        let next = waiting.await??;
        assert_eq!(next.status, 201);
        assert!(next.json()["fence"].as_u64() > Some(fence), "fences rise");
        for verb in ["renew", "release"] {
            let lost = one.post(&format!("/v1/locks/a%2Fb:{verb}"), json!({"lease": lease})).await?;
            assert_eq!((lost.status, lost.problem().as_str()), (410, "lost"), "{verb}");
        }
        let stale = one.json("PUT", "/v1/fenced/x/y", json!({"fence": next.json()["fence"], "value": 1})).await?;
        assert_eq!(stale.status, 200);
        let stale = one.json("PUT", "/v1/fenced/x/y", json!({"fence": fence, "value": 2})).await?;
        assert_eq!((stale.status, stale.problem().as_str()), (409, "stale-fence"));
        assert_eq!(one.get("/v1/fenced/x/y").await?.json()["value"], 1);
        served.stop().await
    }

    async fn jobs_are_leased_settled_once_and_kept_exactly(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let (mut client, mut worker) = (served.client(), served.client());
        let waiting = tokio::spawn(async move {
            let answer = worker.post("/v1/queues/q:lease", json!({"kinds": ["mail"], "max": 5, "wait": 50})).await;
            answer.map(|answer| (answer, worker))
        });
        let body = br#"{"kind":"mail","payload":{"n":12345678901234567890.5,"big":9007199254740993}}"#;
        let kind = [("content-type", "application/json")];
        let added = client.send("POST", "/v1/queues/q/jobs", &kind, body).await?;
        assert_eq!(added.status, 201);
        let (leased, mut worker) = waiting.await??;
        assert!(leased.text().contains(r#""payload":{"n":12345678901234567890.5,"big":9007199254740993}"#), "{}", leased.text());
        let fence = leased.json()["jobs"][0]["fence"].clone();
        assert_eq!(leased.json()["jobs"][0]["id"], added.json()["id"]);
        assert_eq!(worker.post("/v1/queues/q:extend", json!({"fence": fence, "lease": 60})).await?.status, 200);
        assert_eq!(worker.post("/v1/queues/q:progress", json!({"fence": fence, "progress": 0.25})).await?.status, 200);
        let running = client.get("/v1/queues/q/jobs?state=running").await?.json();
        assert_eq!(running["jobs"][0]["progress"], 0.25);
        let (mut asker, id) = (served.client(), added.json()["id"].as_str().context("no id")?.to_owned());
        let path = format!("/v1/queues/q/jobs/{id}");
        let asking = tokio::spawn({
            let path = format!("{path}:result?wait=50");
            async move { asker.get(&path).await }
        });
        let ack = json!({"fence": fence, "result": {"sent": true}});
        assert_eq!(worker.post("/v1/queues/q:ack", ack).await?.status, 200);
        let result = asking.await??.json();
        assert_eq!((&result["outcome"], &result["result"]["sent"]), (&json!("done"), &json!(true)));
        let details = client.get(&path).await?.json();
        assert_eq!((&details["job"]["state"], &details["result"]["sent"]), (&json!("done"), &json!(true)));
        for verb in ["ack", "fail", "extend", "progress"] {
            let body = json!({"fence": fence, "error": "x", "progress": 0.1});
            let fields = match verb { "ack" | "extend" => vec!["fence"], "fail" => vec!["fence", "error"], _ => vec!["fence", "progress"] };
            let body: Value = fields.iter().map(|name| ((*name).to_owned(), body[*name].clone())).collect::<serde_json::Map<_, _>>().into();
            let stale = worker.post(&format!("/v1/queues/q:{verb}"), body).await?;
            // Extending is by worker, and the worker may not have unregistered yet.
            ensure!(stale.status == 409 && stale.problem() == "stale-fence" || verb == "extend", "{verb}: {}", stale.text());
        }
        served.store.settle().await;
        assert_eq!(client.get("/v1/queues/q").await?.json()["running"], 0);
        served.stop().await
    }

    async fn a_repeat_with_the_same_key_is_answered_and_not_carried_out(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let headers = [("content-type", "application/json"), ("idempotency-key", "k-1")];
        let first = client.send("POST", "/v1/counters/c/x:add", &headers, br#"{"by":5}"#).await?;
        let again = client.send("POST", "/v1/counters/c/x:add", &headers, br#"{"by":5}"#).await?;
        assert_eq!((first.json(), again.json()), (json!({"value": 5}), json!({"value": 5})));
        assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), (None, Some("true")));
        assert_eq!(client.get("/v1/counters/c/x").await?.json()["value"], 5, "once");
        let other = client.send("POST", "/v1/counters/c/x:add", &headers, br#"{"by":6}"#).await?;
        assert_eq!((other.status, other.problem().as_str()), (422, "key-reused"));
        let refused = client.send("POST", "/v1/locks/l:renew", &headers[..1], br#"{"lease":"rs-1"}"#).await?;
        assert_eq!(refused.status, 410);
        // A refusal is an answer too.
        let headers = [("content-type", "application/json"), ("idempotency-key", "k-2")];
        for _ in 0..2 {
            let refused = client.send("POST", "/v1/locks/l:renew", &headers, br#"{"lease":"rs-1"}"#).await?;
            assert_eq!((refused.status, refused.problem().as_str()), (410, "lost"));
        }
        served.stop().await
    }

    async fn one_client_loads_a_value_and_the_others_wait_for_it(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        assert_eq!(client.get("/v1/caches/p/1").await?.status, 404);
        let miss = client.post("/v1/caches/p/1:lease", json!({"lease": 50})).await?;
        assert_eq!(miss.status, 201);
        let mut other = served.client();
        let waiting = tokio::spawn(async move { other.post("/v1/caches/p/1:lease", json!({"lease": 50})).await });
        let put = json!({"lease": miss.json()["lease"], "value": {"name": "Lamp"}, "tags": ["lamps"]});
        let stored = client.json("PUT", "/v1/caches/p/1", put.clone()).await?;
        assert_eq!(stored.status, 200, "{}", stored.text());
        let hit = waiting.await??;
        assert_eq!((hit.status, &hit.json()["value"]["name"]), (200, &json!("Lamp")));
        assert_eq!(client.get("/v1/caches/p/1").await?.json()["value"]["name"], "Lamp");
        assert_eq!(client.json("PUT", "/v1/caches/p/1", put).await?.status, 410, "a lease is used once");
        assert_eq!(client.post("/v1/caches/p/tags/lamps:invalidate", json!({})).await?.status, 200);
        assert_eq!(client.get("/v1/caches/p/1").await?.status, 404);
        served.stop().await
    }

    async fn messages_are_heard_as_events(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let mut events = client.events("/v1/topics/t/events").await?;
        ensure!(events.line().await?.as_deref() == Some("event: listening"));
        events.line().await?;
        let mut heard = false;
        for _ in 0..50 {
            client.post("/v1/topics/t:publish", json!({"message": {"n": 1}})).await?;
            match tokio::time::timeout(std::time::Duration::from_secs(1), events.line()).await {
                Ok(line) => {
                    heard = line?.as_deref() == Some("event: message") && events.line().await?.as_deref() == Some("data: {\"n\":1}");
                    break;
                }
                Err(_) => continue,
            }
        }
        assert!(heard);
        // The end of the service ends the stream and does not wait for it.
        served.stop().await?;
        while events.line().await?.is_some() {}
        Ok(())
    }

    async fn work_elsewhere_is_done_once_for_each_key(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let begin = json!({"fingerprint": "pay 5"});
        let begun = client.post("/v1/idempotency/p/k:begin", begin.clone()).await?;
        assert_eq!(begun.status, 201);
        let busy = client.post("/v1/idempotency/p/k:begin", begin.clone()).await?;
        assert_eq!((busy.status, busy.problem().as_str()), (409, "request-in-progress"));
        let finish = json!({"claim": begun.json()["claim"], "result": {"receipt": 17}});
        assert_eq!(client.post("/v1/idempotency/p/k:finish", finish.clone()).await?.status, 200);
        let replayed = client.post("/v1/idempotency/p/k:begin", begin).await?;
        assert_eq!((replayed.status, &replayed.json()["result"]["receipt"]), (200, &json!(17)));
        let other = client.post("/v1/idempotency/p/k:begin", json!({"fingerprint": "pay 6"})).await?;
        assert_eq!(other.status, 422);
        assert_eq!(client.post("/v1/idempotency/p/k:finish", finish).await?.status, 410);
        served.stop().await
    }
}

/// Blocks live for a tenth of a second: a busy machine may need several tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_subject_of_a_limiter_that_leases_costs_few_round_trips() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let config = "[limiter.api]\nquota = \"100000/s\"\nlease_blocks = 1000\n[limiter.plain]\nquota = \"100000/s\"";
    let served = Served::on(&store, "n", config).await?;
    let mut client = served.client();
    let mut asked = async |name: &str| {
        let tap = MonitorTap::start(&server).await?;
        for _ in 0..50 {
            let path = format!("/v1/limiters/{name}:check");
            let checked = client.post(&path, json!({"subject": "ann"})).await?;
            ensure!(checked.json()["allowed"] == true, "{}", checked.text());
        }
        Ok(tap.round_trips("n:limiter.").await?.len())
    };
    ensure!(asked("plain").await? >= 50);
    let spared = eventually(PATIENCE, async || matches!(asked("api").await, Ok(0..=10)));
    ensure!(spared.await, "each check asks the store");
    served.stop().await
}

/// A topic keeps nothing: who listens must be told when messages may have passed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_listens_to_a_topic_is_told_of_a_gap() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let served = Served::on(&store, "n", "").await?;
    let mut events = served.client().events("/v1/topics/t/events").await?;
    ensure!(events.line().await?.as_deref() == Some("event: listening"));
    events.line().await?;
    let killed: u64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).await?;
    ensure!(killed > 0, "nobody listens");
    ensure!(events.line().await?.as_deref() == Some("event: gap"));
    events.line().await?;
    // It goes on with what is published from now on.
    let publish = json!({"message": {"n": 7}});
    let path = "/v1/topics/t:publish";
    ensure!(served.client().post(path, publish).await?.status == 200);
    ensure!(events.line().await?.as_deref() == Some("event: message"));
    ensure!(events.line().await?.as_deref() == Some("data: {\"n\":7}"));
    served.stop().await
}
