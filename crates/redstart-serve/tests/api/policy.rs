//! How a job is run, as far as the library can say it, over HTTP; flows and what their workers see.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use redstart::messaging::{Backoff, JobId, JobPolicy, JobState, Queue, UniqueUntil};
use redstart_testkit::{Backend, eventually, matrix};
use serde_json::{Value, json};

use crate::{
    Served,
    client::{Client, PATIENCE},
};

fn id_of(reply: &Value) -> Result<JobId> {
    Ok(reply["id"].as_str().context("no id")?.parse()?)
}

/// Takes one job of a kind.
async fn take(client: &mut Client, queue: &str, kind: &str) -> Result<Value> {
    let lease = json!({"kinds": [kind], "wait": 30});
    let leased = client
        .post(&format!("/v1/queues/{queue}:lease"), lease)
        .await?;
    let job = leased.json()["jobs"][0].clone();
    ensure!(job.is_object(), "no {kind}: {}", leased.text());
    Ok(job)
}

async fn settle(client: &mut Client, queue: &str, verb: &str, body: Value) -> Result<()> {
    let answer = client
        .post(&format!("/v1/queues/{queue}:{verb}"), body)
        .await?;
    ensure!(answer.status == 200, "{verb}: {}", answer.text());
    Ok(())
}

matrix! {
    async fn a_job_has_the_policy_that_it_was_added_with(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let queue = Queue::new(&served.store, backend.namespace(), "q")?;
        let far = 4_102_444_800_u64;
        let added = client.post("/v1/queues/q/jobs", json!({
            "kind": "report", "payload": {"n": 9007199254740993_u64}, "at": far, "attempts": 4, "priority": -7, "timeout": 1.5,
            "backoff": {"exponential": {"first": 2, "most": 90}}, "keep": 60, "expires": 3_000_000_000_u64, "unique": {"key": "may", "until": "started"},
        })).await?;
        ensure!(added.status == 201, "{}", added.text());
        let found = queue.job(id_of(&added.json())?).await?.context("not there")?;
        let expected = JobPolicy::new()
            .attempts(4)
            .priority(-7)
            .timeout(Duration::from_millis(1500))
            .backoff(Backoff::exponential(Duration::from_secs(2), Duration::from_secs(90)))
            .keep(Duration::from_secs(60))
            .expires_after(Duration::from_secs(3_000_000_000));
        assert_eq!(found.job.policy, expected);
        assert_eq!((found.job.state, found.job.due), (JobState::Delayed, Duration::from_secs(far)));
        assert_eq!(queue.inspect().unique_until(&found.job).await?, Some(UniqueUntil::Started));
        let shown = client.get(&format!("/v1/queues/q/jobs/{}", found.job.id)).await?.json();
        assert_eq!((&shown["job"]["unique"], &shown["job"]["max_attempts"]), (&json!("may"), &json!(4)));
        ensure!(shown["job"]["expires"].as_f64() > shown["job"]["created"].as_f64(), "{shown}");

        // A group, a backoff by name, one wait.
        for (backoff, expected) in [
            (json!({"named": "slow"}), JobPolicy::new().backoff_named("slow")),
            (json!({"fixed": 5}), JobPolicy::new().backoff(Backoff::fixed(Duration::from_secs(5)))),
        ] {
            let added = client.post("/v1/queues/q/jobs", json!({"kind": "k", "payload": 1, "group": "acme", "backoff": backoff})).await?;
            let found = queue.job(id_of(&added.json())?).await?.context("not there")?;
            assert_eq!((found.job.policy, found.job.group.as_deref()), (expected, Some("acme")));
        }
        served.stop().await
    }

    async fn attempts_and_waits_of_a_job_bind_workers_over_http(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let queue = Queue::new(&served.store, backend.namespace(), "q")?;
        let job = json!({"kind": "k", "payload": 1, "attempts": 2, "backoff": {"fixed": 3600}});
        let id = id_of(&client.post("/v1/queues/q/jobs", job).await?.json())?;
        let taken = take(&mut client, "q", "k").await?;
        assert_eq!(taken["max_attempts"], 2);
        settle(&mut client, "q", "fail", json!({"fence": taken["fence"], "error": "no"})).await?;
        let found = queue.job(id).await?.context("not there")?.job;
        assert_eq!(found.state, JobState::Delayed);
        let wait = found.due - served.store.time().await?;
        ensure!(wait > Duration::from_secs(3000), "the job's own wait is not obeyed: {wait:?}");
        ensure!(client.post(&format!("/v1/queues/q/jobs/{id}:run-now"), json!({})).await?.status == 200);
        let taken = take(&mut client, "q", "k").await?;
        settle(&mut client, "q", "fail", json!({"fence": taken["fence"], "error": "no"})).await?;
        assert_eq!(queue.job(id).await?.context("not there")?.job.state, JobState::Dead);
        served.stop().await
    }

    async fn keys_hold_replace_restart_and_throttle(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let queue = Queue::new(&served.store, backend.namespace(), "q")?;
        let mut add = async |more: Value| -> Result<(JobId, bool)> {
            let mut job = json!({"kind": "k"});
            job.as_object_mut().context("no object")?.extend(more.as_object().context("no object")?.clone());
            let added = client.post("/v1/queues/q/jobs", job).await?;
            ensure!(matches!(added.status, 200 | 201), "{}", added.text());
            let added = added.json();
            Ok((id_of(&added)?, added["new"] == true))
        };
        let payload = async |id: JobId| -> Result<String> {
            let found = queue.job(id).await?.context("not there")?;
            Ok(String::from_utf8(found.job.payload)?)
        };
        // The first is kept, unless the second replaces it.
        let (first, _) = add(json!({"payload": 1, "delay": 3600, "unique": {"key": "u"}})).await?;
        assert_eq!(add(json!({"payload": 2, "unique": {"key": "u"}})).await?, (first, false));
        assert_eq!(payload(first).await?, "1");
        assert_eq!(add(json!({"payload": 3, "unique": {"key": "u", "replace": true}})).await?, (first, false));
        assert_eq!(payload(first).await?, "3");
        // Debounced: one job, later each time, with the last payload.
        let (first, _) = add(json!({"payload": 1, "debounce": {"key": "d", "period": 1000}})).await?;
        let due = queue.job(first).await?.context("not there")?.job.due;
        assert_eq!(add(json!({"payload": 2, "debounce": {"key": "d", "period": 2000}})).await?, (first, false));
        assert_eq!(payload(first).await?, "2");
        ensure!(queue.job(first).await?.context("not there")?.job.due > due + Duration::from_secs(900));
        // Throttled: the key is held for a time, whatever becomes of the job.
        for more in [json!({"throttle": {"key": "t", "period": 3600}}), json!({"unique": {"key": "f", "for": 3600}})] {
            let with = |payload: u8| {
                let mut job = more.clone();
                job["payload"] = payload.into();
                job
            };
            let (first, is_new) = add(with(1)).await?;
            ensure!(is_new && queue.inspect().delete(first).await?);
            assert_eq!(add(with(2)).await?, (first, false), "{more}");
        }
        for bad in [
            json!({"payload": 1, "delay": 1, "at": 5}), json!({"payload": 1, "delay": 1, "debounce": {"key": "d", "period": 1}}),
            json!({"payload": 1, "unique": {"key": "u"}, "throttle": {"key": "t", "period": 1}}),
            json!({"payload": 1, "unique": {"key": "u", "until": "done", "for": 5}}), json!({"payload": 1, "backoff": {"fixed": -1}}),
            json!({"payload": 1, "backoff": {"exponential": {"first": 1}}}), json!({"payload": 1, "backoff": {"wild": 1}}), json!({"payload": 1, "at": 1e300}),
        ] {
            let mut job = json!({"kind": "k"});
            job.as_object_mut().context("no object")?.extend(bad.as_object().context("no object")?.clone());
            let refused = client.post("/v1/queues/q/jobs", job).await?;
            assert_eq!((refused.status, refused.problem().as_str()), (400, "invalid-request"), "{bad}");
        }
        served.stop().await
    }

    async fn a_flow_runs_over_http_and_its_jobs_see_their_children(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let added = client.post("/v1/queues/pages/flows", json!({
            "job": {"kind": "build", "payload": {"page": 7}, "children": [
                {"kind": "resize", "payload": 320, "queue": "images", "attempts": 1, "on_failure": "continue"},
                {"kind": "title", "payload": "x", "on_failure": "ignore"},
                {"kind": "check", "payload": null, "attempts": 1, "on_failure": "continue"},
            ]},
            "then": [{"kind": "publish", "payload": 1, "priority": 5}, {"kind": "tell", "payload": 2}],
        })).await?;
        assert_eq!((added.status, &added.json()["jobs"]), (201, &json!(6)), "{}", added.text());
        let root = id_of(&added.json())?;
        let counts = client.get("/v1/queues/pages").await?.json();
        assert_eq!(counts["ready"], 2, "{counts}");
        let taken = take(&mut client, "images", "resize").await?;
        settle(&mut client, "images", "ack", json!({"fence": taken["fence"], "result": {"width": 320}})).await?;
        let taken = take(&mut client, "pages", "title").await?;
        settle(&mut client, "pages", "ack", json!({"fence": taken["fence"], "result": 9007199254740993_u64})).await?;
        let taken = take(&mut client, "pages", "check").await?;
        settle(&mut client, "pages", "fail", json!({"fence": taken["fence"], "error": "broken", "dead": true})).await?;
        // A worker of the other queue's tells this queue: the dispatcher of the lease does.
        let build = take(&mut client, "pages", "build").await?;
        let id = build["id"].as_str().context("no id")?.to_owned();
        let children = client.get(&format!("/v1/queues/pages/jobs/{id}/children")).await?;
        let seen = children.json();
        assert_eq!(seen["failed"], 1, "{seen}");
        assert_eq!(seen["results"][0], json!({"outcome": "done", "result": {"width": 320}, "reason": null}));
        ensure!(children.text().contains("9007199254740993"), "numbers are kept: {}", children.text());
        assert_eq!(seen["results"][2]["outcome"], "failed");
        ensure!(seen["results"][2]["reason"].as_str().is_some_and(|reason| reason.contains("broken")), "{seen}");
        settle(&mut client, "pages", "ack", json!({"fence": build["fence"], "result": "built"})).await?;
        // What comes then sees what came before.
        let publish = take(&mut client, "pages", "publish").await?;
        let id = publish["id"].as_str().context("no id")?;
        let before = client.get(&format!("/v1/queues/pages/jobs/{id}/children")).await?.json();
        assert_eq!(before["results"], json!([{"outcome": "done", "result": "built", "reason": null}]));
        settle(&mut client, "pages", "ack", json!({"fence": publish["fence"]})).await?;
        let tell = take(&mut client, "pages", "tell").await?;
        assert_eq!(id_of(&tell)?, root);
        settle(&mut client, "pages", "ack", json!({"fence": tell["fence"], "result": "told"})).await?;
        let ended = client.get(&format!("/v1/queues/pages/jobs/{root}:result?wait=30")).await?.json();
        assert_eq!((&ended["outcome"], &ended["result"]), (&json!("done"), &json!("told")));
        let over = client.get(&format!("/v1/queues/pages/jobs/{root}/children")).await?;
        assert_eq!(over.status, 404);
        served.stop().await
    }

    async fn a_batch_calls_its_parent_once_with_the_number_of_failures(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let mails: Vec<Value> = (0..5).map(|n| json!({"kind": "mail", "payload": n, "on_failure": "count", "attempts": 1})).collect();
        let flow = json!({"job": {"kind": "all_sent", "payload": 0, "children": mails}});
        let added = client.post("/v1/queues/q/flows", flow).await?;
        ensure!(added.status == 201, "{}", added.text());
        for n in 0..5 {
            let mail = take(&mut client, "q", "mail").await?;
            let (verb, body) = match n {
                1 | 3 => ("fail", json!({"fence": mail["fence"], "error": "no", "dead": true})),
                _ => ("ack", json!({"fence": mail["fence"]})),
            };
            settle(&mut client, "q", verb, body).await?;
        }
        let parent = take(&mut client, "q", "all_sent").await?;
        let id = parent["id"].as_str().context("no id")?;
        let children = client.get(&format!("/v1/queues/q/jobs/{id}/children")).await?.json();
        assert_eq!((&children["failed"], &children["results"]), (&json!(2), &json!([])));
        // A child that fails its parent does so over HTTP too.
        let flow = json!({"job": {"kind": "sum", "payload": 0, "children": [{"kind": "part", "payload": 1, "attempts": 1}]}});
        let root = id_of(&client.post("/v1/queues/q/flows", flow).await?.json())?;
        let part = take(&mut client, "q", "part").await?;
        settle(&mut client, "q", "fail", json!({"fence": part["fence"], "error": "no"})).await?;
        let queue = Queue::new(&served.store, backend.namespace(), "q")?;
        ensure!(eventually(PATIENCE, async || {
            matches!(queue.job(root).await, Ok(Some(found)) if found.job.state == JobState::Dead)
        }).await);
        served.stop().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_that_cannot_be_is_refused_with_nothing_added() -> Result<()> {
    let store = redstart::Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "[limits]\nbody = 4000000").await?;
    let mut client = served.client();
    let chain: Vec<Value> = (0..100_000)
        .map(|_| json!({"kind": "k", "payload": 1}))
        .collect();
    let mut deep = json!({"kind": "k", "payload": 1});
    for _ in 0..200 {
        deep = json!({"kind": "k", "payload": 1, "children": [deep]});
    }
    let mut levels = json!({"kind": "k", "payload": 1});
    for _ in 0..60 {
        levels = json!({"kind": "k", "payload": 1, "children": [levels]});
    }
    let job = json!({"kind": "k", "payload": 1});
    for bad in [
        json!({"job": job, "then": chain}),
        json!({"job": deep}),
        json!({"job": levels, "then": [job, job, job, job, job]}),
        json!({"job": {"kind": "", "payload": 1}}),
        json!({"job": {"kind": "k", "payload": 1, "queue": "a\u{0}b"}}),
        json!({"job": {"kind": "k", "payload": 1, "queue": ""}}),
        json!({"job": {"kind": "k", "payload": 1, "children": [{"kind": "k", "payload": 1, "queue": "other", "on_failure": "count"}]}}),
        json!({"job": {"kind": "k", "payload": 1, "delay": 5}}),
        json!({}),
    ] {
        let refused = client.post("/v1/queues/q/flows", bad.clone()).await?;
        let shown: String = bad.to_string().chars().take(80).collect();
        assert_eq!(refused.status, 400, "{shown}: {}", refused.text());
    }
    assert_eq!(client.get("/v1/queues/q").await?.json()["ready"], 0);
    served.stop().await
}
