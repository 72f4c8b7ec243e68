//! Locks: who holds what, and for how long.

use futures_util::{StreamExt as _, stream};
use maud::{Markup, html};
use redstart::locking::{Elected, FairMutex, Leader, LockHolder, Mutex, RwHolders, RwLock};

use super::{
    Shell,
    layout::{curl, empty, encode, live, span},
};
use crate::{call::Call, problem::Problem, reply::Reply};

pub(super) async fn page(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (store, namespace) = (&call.app.store, &shell.namespace);
    let names = |pattern: &'static str| shell.inventory.names(namespace, pattern);
    let wanted = call.query.given("name");
    // One that is looked up need not be among the names that are known.
    let chosen = |pattern: &'static str, most: usize| -> Vec<String> {
        match wanted {
            Some(name) => vec![name.to_owned()],
            None => names(pattern).take(most).map(str::to_owned).collect(),
        }
    };
    let first = |pattern| -> Vec<String> { names(pattern).take(FEW).map(str::to_owned).collect() };
    let mutexes = chosen("mutex", MOST).into_iter().map(async |name| {
        let holder = Mutex::new(store, namespace, &name)?.holder().await?;
        Ok::<_, Problem>(holder.map(|holder| ("mutex", name, holder)))
    });
    let fair = chosen("fair", FEW).into_iter().map(async |name| {
        let holder = FairMutex::new(store, namespace, &name)?.holder().await?;
        Ok::<_, Problem>(holder.map(|holder| ("fair", name, holder)))
    });
    let shared = chosen("rw", FEW).into_iter().map(async |name| {
        let holders = RwLock::new(store, namespace, &name)?.holders().await?;
        Ok::<_, Problem>((name, holders))
    });
    let leaders = first("leader").into_iter().map(async |name| {
        let elected = Leader::new(store, namespace, &name)?.leader().await?;
        Ok::<_, Problem>(elected.map(|elected| (name, elected)))
    });
    let semaphores = first("semaphore").into_iter().map(async |name| {
        let entity = redstart::key::Keys::new(namespace, "semaphore")?.entity(&name)?;
        let mut count = redstart::redis::cmd("ZCARD");
        let count: u64 = store.query(count.arg(entity.key())).await?;
        Ok::<_, Problem>((name, count))
    });
    let mut missed = Missed::default();
    let mut held = missed.all(mutexes).await;
    held.extend(missed.all(fair).await);
    let held: Vec<(&str, String, LockHolder)> = held.into_iter().flatten().collect();
    let mut shared: Vec<(String, RwHolders)> = missed.all(shared).await;
    shared.retain(|(_, held)| held.writer.is_some() || held.readers.count > 0);
    let offices = missed.all(leaders).await;
    let offices: Vec<_> = offices.into_iter().flatten().collect();
    let permits: Vec<(String, u64)> = missed.all(semaphores).await;
    let missed = missed.count()?;
    let many = wanted.is_none() && names("mutex").count() > MOST;
    let example = held
        .first()
        .map_or("order%3A5001".to_owned(), |(_, name, _)| encode(name));
    let body = html! {
        section.card {
            h2 { "Held now" }
            @if missed > 0 { p.note.bad { (missed) " locks are not shown: a part of the store has not answered." } }
            @if many { p.muted { "The first " (MOST) " mutexes by name. Look another one up by its name." } }
            (held_table(&shell, &held))
        }
        div.grid {
            section.card {
                h2 { "Readers and writers" }
                (shared_table(&shared))
            }
            section.card {
                h2 { "Leaders" }
                (leaders_table(&offices))
            }
            section.card {
                h2 { "Semaphores" }
                (semaphores_table(&permits))
            }
        }
        (curl(&shell, "POST", &format!("/v1/locks/{example}:acquire"), Some(r#"{"ttl": 30, "wait": 5, "owner": "me"}"#)))
    };
    let body = html! { (look_up(&shell, wanted)) (live(&call, body)) };
    Ok(shell.page(
        "/locks",
        "Locks",
        html! { "Holders, waiters and time left" },
        body,
    ))
}

fn look_up(shell: &Shell, wanted: Option<&str>) -> Markup {
    html! {
        form.row method="get" action=(format!("{}/locks", shell.base)) {
            input type="hidden" name="namespace" value=(shell.namespace);
            label { "Name" input name="name" value=(wanted.unwrap_or_default()); }
            button type="submit" { "Look up" }
        }
    }
}

fn held_table(shell: &Shell, held: &[(&str, String, LockHolder)]) -> Markup {
    html! {
        @if held.is_empty() { (empty("No mutex is held.")) }
        @else { div.scroll tabindex="0" { table {
            thead { tr { th { "Lock" } th { "Kind" } th { "Holder" } th { "Lease left" } th.num { "Waiting" } th { "Actions" } } }
            tbody { @for (kind, name, holder) in held { tr {
                td.wide { strong { (name) } }
                td { (kind) }
                td { (holder.label.as_deref().unwrap_or("unnamed")) }
                td { (left(holder)) }
                td.num { (holder.waiting) }
                td.acts { @if *kind == "mutex" { (shell.act("lock.force-release", "Force release", &[("name", name)])) } }
            } } }
        } } }
    }
}

fn shared_table(shared: &[(String, RwHolders)]) -> Markup {
    html! {
        @if shared.is_empty() { (empty("None in use.")) }
        @else { div.scroll tabindex="0" { table {
            thead { tr { th { "Lock" } th { "Writer" } th { "Lease left" } th.num { "Readers" } th.num { "Writers waiting" } } }
            tbody { @for (name, holders) in shared { tr {
                td.wide { strong { (name) } }
                @match &holders.writer {
                    Some(writer) => { td { (writer.label.as_deref().unwrap_or("unnamed")) } td { (left(writer)) } }
                    None => { td { "none" } td { @if let Some(reader) = holders.readers.first.last() { (left(reader)) } } }
                }
                td.num { (holders.readers.count) } td.num { (holders.readers.waiting) }
            } } }
        } } }
    }
}

fn leaders_table(offices: &[(String, Elected)]) -> Markup {
    html! {
        @if offices.is_empty() { (empty("Nobody leads.")) }
        @else { div.scroll tabindex="0" { table {
            thead { tr { th { "Office" } th { "Leader" } th.num { "Term" } } }
            tbody { @for (name, elected) in offices { tr { td { (name) } td { (elected.id) } td.num { (elected.term.get()) } } } }
        } } }
    }
}

fn semaphores_table(permits: &[(String, u64)]) -> Markup {
    html! {
        @if permits.is_empty() { (empty("None in use.")) }
        @else { div.scroll tabindex="0" { table {
            thead { tr { th { "Semaphore" } th.num { "Permits held" } } }
            tbody { @for (name, count) in permits { tr { td { (name) } td.num { (count) } } } }
        } } }
    }
}

/// Locks of a kind that are shown.
const MOST: usize = 500;
const FEW: usize = 200;
/// Locks that are asked for at the same time.
const AT_ONCE: usize = 16;

/// Locks that could not be asked for, and others that could.
#[derive(Default)]
struct Missed {
    answered: usize,
    missed: usize,
    problem: Option<Problem>,
}

impl Missed {
    /// What was found. On a Cluster, a node that is down does not hide the locks of the others.
    async fn all<T>(
        &mut self,
        looks: impl Iterator<Item = impl Future<Output = Result<T, Problem>>>,
    ) -> Vec<T> {
        let mut looks = stream::iter(looks).buffered(AT_ONCE);
        let mut found = Vec::new();
        while let Some(look) = looks.next().await {
            match look {
                Ok(one) => found.push(one),
                Err(problem) => {
                    self.missed += 1;
                    self.problem.get_or_insert(problem);
                }
            }
        }
        self.answered += found.len();
        found
    }

    /// How many could not be asked for; the first problem if none could.
    fn count(self) -> Result<usize, Problem> {
        match self.problem {
            Some(problem) if self.answered == 0 => Err(problem),
            _ => Ok(self.missed),
        }
    }
}

fn left(holder: &LockHolder) -> Markup {
    html! { @match holder.remaining { Some(left) => (span(left)), None => { span.tag.bad { "no end" } } } }
}
