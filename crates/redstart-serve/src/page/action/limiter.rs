//! Limiters: one check as a trial, or a subject that begins anew.

use super::{Plan, given};
use crate::{
    api::{forget, limiter_of},
    call::{Call, Query},
    page::{Shell, layout::encode},
    problem::Problem,
};

pub(super) fn plan(action: &str, form: &Query) -> Result<Plan, Problem> {
    Ok(match action {
        "check" => {
            let (name, subject) = (given(form, "name")?, given(form, "subject")?);
            Plan::new(
                "Try a check",
                format!(
                    "{subject} is checked against {name} as by a request: if it is allowed, it takes one of the limit."
                ),
                1,
                format!(
                    "/limiters?name={}&subject={}",
                    encode(name),
                    encode(subject)
                ),
                Some((
                    "POST",
                    format!("/v1/limiters/{}:check", encode(name)),
                    Some(serde_json::json!({"subject": subject}).to_string()),
                )),
            )
        }
        "reset" => {
            let (name, subject) = (given(form, "name")?, given(form, "subject")?);
            Plan::new(
                "Forget what was taken",
                format!("{subject} has the whole limit of {name} again."),
                1,
                "/limiters".into(),
                Some((
                    "POST",
                    format!("/v1/limiters/{}:reset", encode(name)),
                    Some(serde_json::json!({"subject": subject}).to_string()),
                )),
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
    let ns = &shell.namespace;
    match action {
        "check" => {
            let (name, subject) = (given(form, "name")?, given(form, "subject")?);
            let limiter = limiter_of(&call.app, &call.config, ns, name)?.limiter;
            let allowed = limiter.check(subject, 1).await?.is_allowed();
            call.app.hot.note(ns, name, subject, allowed);
            // What a refusal took: nothing.
            return Ok(u64::from(allowed));
        }
        "reset" => {
            let (name, subject) = (given(form, "name")?, given(form, "subject")?);
            forget(&call.app, &call.config, ns, name, subject).await?;
        }
        _ => return Err(Problem::not_found("action")),
    }
    Ok(1)
}
