//! Dead letters, by their errors.

use std::{collections::BTreeMap, time::Duration};

use maud::html;
use redstart::messaging::{DeadLetter, DeadLetters, normalized_error};

use super::{crumb, grouped, queue_of};
use crate::{
    call::Call,
    page::{
        Shell,
        layout::{curl, empty, encode, live, moment},
    },
    pretty::brief,
    problem::Problem,
    reply::Reply,
};

/// How many dead letters are grouped by their error: the newest.
const GROUPED: usize = 2000;

/// The newest dead letters.
struct Read {
    read: usize,
    /// Errors, with how many letters have each and when the newest died; the most frequent first.
    groups: Vec<(String, (u64, Duration))>,
    newest: Vec<DeadLetter>,
}

async fn read(letters: &DeadLetters) -> Result<Read, Problem> {
    let mut groups: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
    let mut newest: Vec<DeadLetter> = Vec::new();
    let mut read = 0;
    while read < GROUPED {
        let page = letters.newest(read).await?;
        if page.is_empty() {
            break;
        }
        read += page.len();
        for letter in page {
            let group = groups.entry(normalized_error(&letter.reason)).or_default();
            group.0 += 1;
            group.1 = group.1.max(letter.at);
            if newest.len() < 50 {
                newest.push(letter);
            }
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
    Ok(Read {
        read,
        groups,
        newest,
    })
}

pub(in crate::page) async fn dead(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let inspect = queue_of(&call, &shell, &name)?.inspect();
    let total = inspect.counts().await?.dead;
    let letters = inspect.dead_letters();
    let Read {
        read,
        groups,
        newest,
    } = read(&letters).await?;
    // What one request can change is changed by one; the rest by a change of many jobs.
    let is_partial = total > read as u64;
    let at = encode(&name);
    let bulk = |action: &str, title: &str, group: &str| {
        html! {
            @if shell.may_act() {
                a class=(if action == "delete" { "button small danger" } else { "button small" })
                    href=(shell.link(&format!("/queues/{at}/bulk?state=dead&action={action}&group={}", encode(group)))) { (title) } " "
            }
        }
    };
    let body = html! {
        section.card {
            h2 { "By error" }
            @if is_partial { p.muted { "Of the newest " (grouped(read as u64)) " of " (grouped(total)) " dead letters." } }
            @if groups.is_empty() { (empty("No dead letters.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Error, with numbers and names replaced" } th.num { "Letters" } th { "Newest" } th { "Actions" } } }
                tbody { @for (group, (count, at)) in &groups { tr {
                    td.wide { code { (group) } } td.num { (count) } td { (moment(*at)) }
                    td.acts { @if is_partial {
                        (bulk("retry", "Retry all", group)) (bulk("delete", "Delete all", group))
                    } @else {
                        (shell.act("queue.replay", "Retry all", &[("queue", &name), ("group", group)]))
                        (shell.act("queue.purge", "Delete all", &[("queue", &name), ("group", group)]))
                    } }
                } } }
            } } }
        }
        section.card {
            h2 { "Newest" }
            @if shell.may_act() && !newest.is_empty() { p { a.button.small href=(shell.link(&format!("/queues/{at}/bulk?state=dead"))) { "Change many dead letters" } } }
            @if newest.is_empty() { (empty("Nothing here.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "When" } th { "Kind" } th { "Error" } th { "Payload" } th { "Actions" } } }
                tbody { @for letter in &newest { tr {
                    td { (moment(letter.at)) }
                    td { (letter.job.as_ref().map_or("unknown", |job| job.name.as_str())) }
                    td.wide { (letter.reason) }
                    td.wide.mono { @if let Some(job) = &letter.job { (brief(&String::from_utf8_lossy(&job.payload), &call.config.redact, 70)) } }
                    td.acts {
                        (shell.act("queue.replay", "Retry", &[("queue", &name), ("letter", &letter.letter)]))
                        (shell.act("queue.purge", "Delete", &[("queue", &name), ("letter", &letter.letter)]))
                    }
                } } }
            } } }
        }
        (curl(&shell, "POST", &format!("/v1/queues/{}/dead:replay", encode(&name)), Some(r#"{"error": "timeout", "dry_run": true}"#)))
    };
    Ok(shell.page(
        "/queues",
        "Dead letters",
        crumb(&shell, &name),
        live(&call, body),
    ))
}
