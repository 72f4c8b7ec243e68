//! Sessions that end.

use redstart::sessions::Sessions;

use super::{Plan, given, one};
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
    Ok(match action {
        "revoke" | "revoke-all" => {
            let (name, user) = (given(form, "name")?, given(form, "user")?);
            let sessions = Sessions::new(&call.app.store, ns, name)?
                .list(user)
                .await?
                .len() as u64;
            let (count, text, api) = match action {
                // The API ends one session by its token, which nobody else has.
                "revoke" => (
                    1,
                    format!("One session of {user} ends; the device must log in again."),
                    None,
                ),
                _ => (
                    sessions,
                    format!("{sessions} sessions of {user} end; all devices must log in again."),
                    Some((
                        "POST",
                        format!("/v1/sessions/{}:revoke-all", encode(name)),
                        Some(serde_json::json!({"user": user}).to_string()),
                    )),
                ),
            };
            Plan::new(
                "End sessions",
                text,
                count,
                format!("/sessions?name={}&user={}", encode(name), encode(user)),
                api,
            )
        }
        _ => return Err(Problem::not_found("action")),
    })
}

pub(super) async fn perform(
    call: &Call,
    shell: &Shell,
    action: &str,
    form: &Query,
) -> Result<u64, Problem> {
    let (store, ns) = (&call.app.store, &shell.namespace);
    match action {
        "revoke" => {
            let sessions = Sessions::new(store, ns, given(form, "name")?)?;
            one(sessions
                .revoke_one(given(form, "user")?, given(form, "handle")?)
                .await?)
        }
        "revoke-all" => Ok(Sessions::new(store, ns, given(form, "name")?)?
            .revoke_all(given(form, "user")?)
            .await?),
        _ => Err(Problem::not_found("action")),
    }
}
