//! Locks that are forced open.

use redstart::locking::Mutex;

use super::{HOLDER, Plan, given, one};
use crate::{
    call::{Call, Query},
    page::{Shell, layout::encode},
    problem::Problem,
};

pub(super) async fn plan(
    call: &Call,
    shell: &Shell,
    action: &str,
    form: &Query,
) -> Result<Plan, Problem> {
    let ns = &shell.namespace;
    if action != "force-release" {
        return Err(Problem::not_found("action"));
    }
    let name = given(form, "name")?;
    let holder = Mutex::new(&call.app.store, ns, name)?.holder().await?;
    let id = holder.as_ref().map(|holder| holder.id());
    let who = holder
        .and_then(|holder| holder.label)
        .unwrap_or("unnamed".to_owned());
    let body = id
        .as_ref()
        .map(|id| serde_json::json!({"holder": id}).to_string());
    let mut plan = Plan::new(
        "Force the lock open",
        format!(
            "The lock {name} of {who} ends now. Its holder learns of it when it renews, and may still work until then: only fenced writes are safe."
        ),
        1,
        "/locks".into(),
        Some((
            "POST",
            format!("/v1/locks/{}:force-release", encode(name)),
            body,
        )),
    );
    plan.holder = id;
    Ok(plan)
}

pub(super) async fn perform(
    call: &Call,
    shell: &Shell,
    action: &str,
    form: &Query,
) -> Result<u64, Problem> {
    let (store, ns) = (&call.app.store, &shell.namespace);
    if action != "force-release" {
        return Err(Problem::not_found("action"));
    }
    let mutex = Mutex::new(store, ns, given(form, "name")?)?;
    // The lease that the page named, and no later one: its holder may be healthy.
    match (mutex.holder().await?, form.given(HOLDER)) {
        (Some(holder), Some(named)) if holder.id() == named => {
            one(mutex.force_release(&holder).await?)
        }
        _ => one(false),
    }
}
