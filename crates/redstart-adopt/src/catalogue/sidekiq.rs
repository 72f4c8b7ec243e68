//! Sidekiq: `queues`, `queue:<name>`, `schedule`, `retry`, `dead`, `processes`, `stat:*`, all of them behind a namespace where
//! redis-namespace is used.
//!
//! Jobs are JSON: `class`, `args`, `jid` (24 hexadecimal digits), `queue`, `retry`, `created_at`. Up to version 7 times are seconds with a
//! fraction, from version 8 on milliseconds.

use std::collections::BTreeSet;

use crate::{
    error::Result,
    found::{Found, KeySet},
    glimpse::{json_has, json_value},
    library::Library,
    look::Look,
};

pub(super) async fn find(look: &mut Look<'_>, found: &mut Vec<Found>) -> Result<()> {
    for namespace in namespaces(look) {
        let at = |part: &str| format!("{namespace}{part}");
        let queues = look.one(at("queues")).await?;
        let mut names: BTreeSet<String> = queues
            .members()
            .iter()
            .filter_map(|name| String::from_utf8(name.clone()).ok())
            .collect();
        let prefix = at("queue:");
        let sampled = look
            .keys
            .iter()
            .filter_map(|key| std::str::from_utf8(key).ok());
        names.extend(
            sampled
                .filter_map(|key| key.strip_prefix(&prefix))
                .map(str::to_owned),
        );

        let mut version = None;
        let mut shared = Vec::new();
        for part in ["schedule", "retry", "dead"] {
            let set = look.one(at(part)).await?;
            if let Some(job) = set.first().filter(|job| is_job(job)) {
                version = version.or(major(job));
                shared.push(format!("{} holds jobs with class, args and jid", at(part)));
            }
        }
        let processes = look.one(at("processes")).await?;
        if let Some(process) = processes.members().first() {
            let beat = look.one([namespace.as_bytes(), process].concat()).await?;
            if beat.has_fields(&["info", "beat", "busy"]) {
                let info = beat.field("info").unwrap_or_default().as_bytes();
                let exact = json_value(info, "version").map(text);
                version = exact.or(version);
                shared.push(format!(
                    "{} names a process with its heartbeat",
                    at("processes")
                ));
            }
        }
        for name in names.into_iter().take(50) {
            let key = at(&format!("queue:{name}"));
            let list = look.one(&key).await?;
            let job = list.first().filter(|job| is_job(job));
            let listed = queues
                .members()
                .iter()
                .any(|member| *member == name.as_bytes());
            let confidence = match (job.is_some(), listed, shared.is_empty()) {
                (true, true, _) => 0.97,
                (true, false, false) => 0.93,
                (true, false, true) => 0.85,
                (false, true, false) if !list.exists() => 0.9,
                _ => continue,
            };
            let mut one = Found::new(Library::Sidekiq, &key, confidence)
                .version(version.clone().or_else(|| job.and_then(major)))
                .keys(keys(&namespace));
            if job.is_some() {
                one = one.because(format!("{key} holds jobs with class, args and jid"));
            }
            if listed {
                one = one.because(format!("{} lists the queue", at("queues")));
            }
            one.evidence.extend(shared.iter().cloned());
            found.push(one);
        }
    }
    Ok(())
}

/// `""`, and what stands before `queues` or `queue:` in sampled keys.
fn namespaces(look: &Look<'_>) -> BTreeSet<String> {
    let mut namespaces = BTreeSet::from([String::new()]);
    for key in look
        .keys
        .iter()
        .filter_map(|key| std::str::from_utf8(key).ok())
    {
        if let Some(before) = key.strip_suffix(":queues") {
            namespaces.insert(format!("{before}:"));
        }
        if let Some((before, _)) = key.split_once(":queue:") {
            namespaces.insert(format!("{before}:"));
        }
    }
    namespaces.into_iter().take(20).collect()
}

fn keys(namespace: &str) -> KeySet {
    let mut keys = KeySet::default();
    for key in ["queues", "schedule", "retry", "dead", "processes"] {
        keys = keys.key(format!("{namespace}{key}"));
    }
    keys.prefix(format!("{namespace}queue:"))
        .prefix(format!("{namespace}stat:"))
}

fn is_job(job: &[u8]) -> bool {
    let id = json_value(job, "jid").map(text).unwrap_or_default();
    json_has(job, &["class", "args", "jid"])
        && id.len() == 24
        && id.bytes().all(|b| b.is_ascii_hexdigit())
}

/// What the format of the time says.
fn major(job: &[u8]) -> Option<String> {
    let at = json_value(job, "created_at").map(text)?;
    let version = if at.contains('.') {
        "<8"
    } else if at.len() == 13 {
        "8"
    } else {
        return None;
    };
    Some(version.to_owned())
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_matches('"').to_owned()
}
