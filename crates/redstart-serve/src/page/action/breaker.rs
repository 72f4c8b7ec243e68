//! Circuit breakers that are forced open, or reset.

use std::time::Duration;

use super::{Plan, given};
use crate::{
    api::breaker,
    call::{Call, Query},
    page::{Shell, layout::encode},
    problem::Problem,
};

pub(super) fn plan(action: &str, form: &Query) -> Result<Plan, Problem> {
    Ok(match action {
        "force-open" => {
            let name = given(form, "name")?;
            Plan::new(
                "Force the breaker open",
                format!("All calls through {name} are refused for 60 s."),
                1,
                "/breakers".into(),
                Some((
                    "POST",
                    format!("/v1/breakers/{}:force-open", encode(name)),
                    Some(r#"{"for": 60}"#.into()),
                )),
            )
        }
        "reset" => {
            let name = given(form, "name")?;
            Plan::new(
                "Reset the breaker",
                format!("{name} is closed, and what it counted is forgotten."),
                1,
                "/breakers".into(),
                Some(("POST", format!("/v1/breakers/{}:reset", encode(name)), None)),
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
        "force-open" => {
            breaker(&call.app, ns, given(form, "name")?)
                .await?
                .force_open(Duration::from_secs(60))
                .await?
        }
        "reset" => {
            breaker(&call.app, ns, given(form, "name")?)
                .await?
                .reset()
                .await?
        }
        _ => return Err(Problem::not_found("action")),
    }
    Ok(1)
}
