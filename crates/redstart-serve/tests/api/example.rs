//! Each example of the document, executed: what the document shows is what happens.

use std::{collections::HashMap, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use redstart_testkit::{Backend, find, matrix};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::Served;

/// Fields of a reply that later examples on the same resource use.
const CAPTURED: &[&str] = &[
    "lease",
    "fence",
    "grant",
    "claim",
    "admission",
    "token",
    "id",
];

matrix! {
    async fn every_example_of_the_document_does_what_it_says(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let document = client.get("/v1/openapi.json").await?.json();
        let paths = document["paths"].as_object().context("no paths")?;
        ensure!(paths.len() > 80, "only {} paths", paths.len());
        let mut run = 0;
        let mut known: HashMap<(String, &str), Value> = HashMap::new();
        // The document keeps the order of the routes within its paths only by name, so the order is given here.
        for (path, method) in order(&document) {
            let operation = &document["paths"][&path][&method];
            // `/v1/locks`: what one operation on locks returns, another one takes.
            let family = path.split('/').take(3).collect::<Vec<_>>().join("/");
            let family = family.split(':').next().unwrap_or_default().to_owned();
            prepare(&mut client, &path, &mut known).await?;
            let mut target = path.clone();
            let mut query = Vec::new();
            for parameter in operation["parameters"].as_array().context("no parameters")? {
                let name = parameter["name"].as_str().context("no name")?;
                let example = &parameter["example"];
                let example = match example {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                match parameter["in"].as_str() {
                    Some("path") => {
                        let given = match name {
                            "id" => known.get(&(family.clone(), "id")).and_then(Value::as_str).unwrap_or(&example).to_owned(),
                            _ => example,
                        };
                        let given = given.replace(':', "%3A").replace('/', "%2F");
                        target = target.replace(&format!("{{{name}}}"), &given);
                    }
                    Some("query") if !parameter["example"].is_null() && !example.is_empty() => {
                        query.push(format!("{name}={example}"));
                    }
                    _ => {}
                }
            }
            if !query.is_empty() {
                target = format!("{target}?{}", query.join("&"));
            }
            let mut body = operation["requestBody"]["content"]["application/json"]["example"].clone();
            for name in CAPTURED {
                if body.get(*name).is_some_and(Value::is_string)
                    && let Some(value) = known.get(&(family.clone(), *name)) {
                    body[*name] = value.clone();
                }
            }
            let responses = operation["responses"].as_object().context("no responses")?;
            let expected: Vec<u16> = responses.keys().filter_map(|status| status.parse().ok()).collect();
            if path.ends_with("/events") || path.ends_with(":search") {
                let mut events = client.events(&target).await?;
                let first = if path.ends_with(":search") { "event: progress" } else { "event: listening" };
                ensure!(events.line().await?.as_deref() == Some(first));
                run += 1;
                continue;
            }
            let answer = match body.is_null() {
                true => client.send(&method.to_uppercase(), &target, &[], b"").await?,
                false => client.json(&method.to_uppercase(), &target, body.clone()).await?,
            };
            ensure!(
                answer.status < 300 && expected.contains(&answer.status),
                "{method} {target} {body}: {} {}, documented: {expected:?}", answer.status, answer.text()
            );
            let reply = answer.json();
            conforms(&document, &responses[&answer.status.to_string()], &reply)
                .with_context(|| format!("the reply of {method} {target}: {reply}"))?;
            capture(&family, &reply, &mut known);
            run += 1;
        }
        ensure!(run > 90, "only {run} examples");
        served.stop().await
    }
}

/// The operations in an order in which each finds what it needs.
fn order(document: &Value) -> Vec<(String, String)> {
    let rank = |path: &str, method: &str| {
        let last = [
            "release",
            "resign",
            "force-release",
            "ack",
            "run-now",
            "revoke",
            "revoke-all",
            "cancel",
            "return",
            "abandon",
            "unfollow",
            "block",
            "unblock",
            "fail",
            "invalidate",
            "clear",
            "reset",
            "force-open",
        ];
        let verb = path.rsplit(':').next().unwrap_or_default();
        match (verb, method) {
            (
                "open" | "acquire" | "campaign" | "begin" | "check" | "admit" | "submit" | "follow",
                _,
            ) => 0,
            (_, "post") if !path.contains("}:") => 0,
            ("lease", _) => 1,
            (_, "put") => 2,
            ("hold" | "mark" | "add", _) => 2,
            ("extend", _) => 3,
            ("rotate" | "confirm" | "finish", _) => 5,
            (verb, _) if last.contains(&verb) => {
                6 + last.iter().position(|l| *l == verb).unwrap_or(0)
            }
            (_, "delete") => 40,
            _ => 4,
        }
    };
    let mut all: Vec<(usize, String, String)> = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            all.push((rank(path, method), path.clone(), method.clone()));
        }
    }
    all.sort();
    all.into_iter()
        .map(|(_, path, method)| (path, method))
        .collect()
}

/// What an example needs that no other example leaves behind.
async fn prepare(
    client: &mut crate::Client,
    path: &str,
    known: &mut HashMap<(String, &'static str), Value>,
) -> Result<()> {
    let mut remember = |family: &str, name: &'static str, value: Value| {
        known.insert((family.to_owned(), name), value);
    };
    match path {
        "/v1/queues/{name}:fail" => {
            client
                .post(
                    "/v1/queues/failing/jobs",
                    json!({"kind": "send_mail", "payload": 1}),
                )
                .await?;
            let leased = client
                .post(
                    "/v1/queues/failing:lease",
                    json!({"kinds": ["send_mail"], "wait": 30}),
                )
                .await?;
            remember(
                "/v1/queues",
                "fence",
                leased.json()["jobs"][0]["fence"].clone(),
            );
        }
        "/v1/queues/{name}/jobs/{id}/children" => {
            let flow = json!({"job": {"kind": "sum", "payload": 1, "children": [{"kind": "part", "payload": 2}]}});
            let added = client.post("/v1/queues/pages/flows", flow).await?;
            remember("/v1/queues", "id", added.json()["id"].clone());
        }
        "/v1/queues/{name}/bulk/{id}" | "/v1/queues/{name}/bulk/{id}:confirm" => {
            let bulk = json!({"action": "promote", "state": "delayed", "kind": "none"});
            let begun = client.post("/v1/queues/mail/bulk", bulk).await?.json();
            let id = begun["id"].as_str().context("no id")?;
            let counted = client
                .get(&format!("/v1/queues/mail/bulk/{id}?wait=30"))
                .await?
                .json();
            ensure!(counted["stage"] == "counted", "{counted}");
            remember("/v1/queues", "id", begun["id"].clone());
        }
        "/v1/queues/{name}/jobs/{id}"
        | "/v1/queues/{name}/jobs/{id}:run-now"
        | "/v1/queues/{name}/jobs/{id}:result"
        | "/v1/queues/{name}/jobs/{id}:cancel" => {
            let job = json!({"kind": "later", "payload": 1, "delay": 3600});
            let added = client.post("/v1/queues/mail/jobs", job).await?;
            remember("/v1/queues", "id", added.json()["id"].clone());
        }
        "/v1/idempotency/{name}/{key}:abandon" => {
            let begun = client
                .post(
                    "/v1/idempotency/payments/8d2e:begin",
                    json!({"fingerprint": "x"}),
                )
                .await?;
            remember("/v1/idempotency", "claim", begun.json()["claim"].clone());
        }
        "/v1/stock/{name}/{item}:cancel" => {
            client
                .post(
                    "/v1/stock/sale/lamp:hold",
                    json!({"user": "bob", "order": "5002"}),
                )
                .await?;
        }
        _ => {}
    }
    Ok(())
}

fn capture(family: &str, reply: &Value, known: &mut HashMap<(String, &'static str), Value>) {
    for name in CAPTURED {
        let found = [reply.get(*name), reply["jobs"][0].get(*name)];
        if let Some(value) = found.into_iter().flatten().find(|value| value.is_string()) {
            known.insert((family.to_owned(), *name), value.clone());
        }
    }
}

/// Checks a reply against the schema of the document, as far as the document uses it.
fn conforms(document: &Value, response: &Value, reply: &Value) -> Result<()> {
    let schema = &response["content"]["application/json"]["schema"];
    ensure!(!schema.is_null(), "the reply has no schema");
    check(document, schema, reply, "reply")
}

fn check(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<()> {
    if let Some(target) = schema["$ref"].as_str() {
        let pointer = target.trim_start_matches('#');
        let target = document
            .pointer(pointer)
            .with_context(|| format!("{target} is not there"))?;
        return check(document, target, value, at);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let fits = any
            .iter()
            .any(|one| check(document, one, value, at).is_ok());
        ensure!(fits, "{at}: {value} fits none of {any:?}");
        return Ok(());
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return Ok(()),
    };
    let fits = kinds.iter().any(|kind| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        _ => false,
    });
    ensure!(fits, "{at}: {value} is not {kinds:?}");
    if let (Some(properties), Some(fields)) = (schema["properties"].as_object(), value.as_object())
    {
        for (name, field) in fields {
            let schema = properties
                .get(name)
                .with_context(|| format!("{at}: {name} is not documented"))?;
            check(document, schema, field, &format!("{at}.{name}"))?;
        }
        for name in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            ensure!(fields.contains_key(name), "{at}: {name} is missing");
        }
    }
    if let Some(items) = value.as_array() {
        for item in items {
            check(document, &schema["items"], item, at)?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_is_well_formed() -> Result<()> {
    let store = redstart::Store::connect("memory://").await?;
    let served = Served::on(&store, "doc", "").await?;
    let document = served.client().get("/v1/openapi.json").await?.json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = std::collections::HashSet::new();
    for (path, methods) in document["paths"].as_object().context("no paths")? {
        for (method, operation) in methods.as_object().context("no methods")? {
            let id = operation["operationId"].as_str().context("no id")?;
            assert!(ids.insert(id.to_owned()), "{id} names two operations");
            assert!(
                operation["responses"]
                    .as_object()
                    .is_some_and(|all| all.len() > 1),
                "{method} {path}"
            );
            for name in path.split(['{', '}']).skip(1).step_by(2) {
                let named = operation["parameters"]
                    .as_array()
                    .context("no parameters")?
                    .iter();
                let found = named
                    .filter(|p| p["name"] == name && p["in"] == "path" && p["required"] == true);
                assert_eq!(found.count(), 1, "{method} {path}: {name}");
            }
        }
    }
    // Every reference leads somewhere.
    let text = document.to_string();
    for target in text
        .split("\"$ref\":\"#")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
    {
        assert!(document.pointer(target).is_some(), "{target}");
    }
    served.stop().await
}

/// What the validator says of a document: nothing if it is valid.
async fn complaint(document: &Value) -> Result<Option<String>> {
    const PROGRAM: &str = "import json, sys; from openapi_spec_validator import validate; validate(json.load(sys.stdin))";
    let mut validator = tokio::process::Command::new(find::openapi_validator()?)
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut input = validator.stdin.take().context("no input")?;
    input.write_all(document.to_string().as_bytes()).await?;
    drop(input);
    let output = validator.wait_with_output().await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((!output.status.success()).then_some(said))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_validator_of_others_accepts_the_document() -> Result<()> {
    let store = redstart::Store::connect("memory://").await?;
    let served = Served::on(&store, "doc", "").await?;
    let mut document = served.client().get("/v1/openapi.json").await?.json();
    assert_eq!(complaint(&document).await?, None);
    // It looks at schemas and at parameters, and not only at the outermost fields.
    let valid = document.clone();
    let (path, method) = ("/v1/locks/{name}:acquire", "post");
    document["paths"][path][method]["parameters"][0]["in"] = "nowhere".into();
    let said = complaint(&document).await?.context("it accepts anything")?;
    ensure!(said.contains("ValidationError"), "{said}");
    let mut document = valid;
    let (_, schema) = document["components"]["schemas"]
        .as_object_mut()
        .and_then(|schemas| schemas.iter_mut().next())
        .context("no schemas")?;
    *schema = json!({"type": "nothing"});
    ensure!(complaint(&document).await?.is_some());
    served.stop().await
}
