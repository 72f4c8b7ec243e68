//! Locks: who holds what, and for how long.

use maud::html;
use redstart::locking::{Leader, Mutex};

use super::{
    Shell,
    layout::{curl, empty, encode, live, span},
};
use crate::{call::Call, problem::Problem, reply::Reply};

pub(super) async fn page(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (store, namespace) = (&call.app.store, &shell.namespace);
    let mut held = Vec::new();
    for name in shell.inventory.names(namespace, "mutex").take(500) {
        if let Some(holder) = Mutex::new(store, namespace, name)?.holder().await? {
            held.push((name.to_owned(), holder));
        }
    }
    let mut offices = Vec::new();
    for name in shell.inventory.names(namespace, "leader").take(200) {
        if let Some(elected) = Leader::new(store, namespace, name)?.leader().await? {
            offices.push((name.to_owned(), elected));
        }
    }
    let mut permits = Vec::new();
    for name in shell.inventory.names(namespace, "semaphore").take(200) {
        let entity = redstart::key::Keys::new(namespace, "semaphore")?.entity(name)?;
        let count: u64 = store
            .query(redstart::redis::cmd("ZCARD").arg(entity.key()))
            .await
            .unwrap_or(0);
        permits.push((name.to_owned(), count));
    }
    let example = held
        .first()
        .map_or("order%3A5001".to_owned(), |(name, _)| encode(name));
    let body = html! {
        section.card {
            h2 { "Held now" }
            @if held.is_empty() { (empty("No mutex is held.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Lock" } th { "Holder" } th { "Lease left" } th.num { "Waiting" } th { "Actions" } } }
                tbody { @for (name, holder) in &held { tr {
                    td.wide { strong { (name) } }
                    td { (holder.label.as_deref().unwrap_or("unnamed")) }
                    td { @match holder.remaining { Some(left) => (span(left)), None => { span.tag.bad { "no end" } } } }
                    td.num { (holder.waiting) }
                    td.acts { (shell.act("lock.force-release", "Force release", &[("name", name)])) }
                } } }
            } } }
        }
        div.grid {
            section.card {
                h2 { "Leaders" }
                @if offices.is_empty() { (empty("Nobody leads.")) }
                @else { div.scroll tabindex="0" { table {
                    thead { tr { th { "Office" } th { "Leader" } th.num { "Term" } } }
                    tbody { @for (name, elected) in &offices { tr { td { (name) } td { (elected.id) } td.num { (elected.term.get()) } } } }
                } } }
            }
            section.card {
                h2 { "Semaphores" }
                @if permits.is_empty() { (empty("None in use.")) }
                @else { div.scroll tabindex="0" { table {
                    thead { tr { th { "Semaphore" } th.num { "Permits held" } } }
                    tbody { @for (name, count) in &permits { tr { td { (name) } td.num { (count) } } } }
                } } }
            }
        }
        (curl(&shell, "POST", &format!("/v1/locks/{example}:acquire"), Some(r#"{"ttl": 30, "wait": 5, "owner": "me"}"#)))
    };
    Ok(shell.page(
        "/locks",
        "Locks",
        html! { "Holders, waiters and time left" },
        live(&call, body),
    ))
}
