//! Rows that are loaded again.

use super::{Plan, given};
use crate::{
    api::json_cache,
    call::{Call, Query},
    page::{Shell, layout::encode},
    problem::Problem,
};

pub(super) fn plan(action: &str, form: &Query) -> Result<Plan, Problem> {
    if action != "invalidate" {
        return Err(Problem::not_found("action"));
    }
    let name = given(form, "name")?;
    Ok(match (form.given("key"), form.given("tag")) {
        (Some(key), None) => Plan::new(
            "Invalidate the key",
            format!("The next request for {key} of the cache {name} loads it again."),
            1,
            "/caches".into(),
            Some((
                "POST",
                format!("/v1/caches/{}/{}:invalidate", encode(name), encode(key)),
                None,
            )),
        ),
        (None, Some(tag)) => Plan::new(
            "Invalidate the tag",
            format!(
                "Entries of the cache {name} with the tag {tag} are loaded again when they are next requested."
            ),
            1,
            "/caches".into(),
            Some((
                "POST",
                format!(
                    "/v1/caches/{}/tags/{}:invalidate",
                    encode(name),
                    encode(tag)
                ),
                None,
            )),
        ),
        _ => return Err(Problem::invalid("give a key or a tag")),
    })
}

pub(super) async fn perform(
    call: &Call,
    shell: &Shell,
    action: &str,
    form: &Query,
) -> Result<u64, Problem> {
    let ns = &shell.namespace;
    if action != "invalidate" {
        return Err(Problem::not_found("action"));
    }
    let cache = json_cache(&call.app, ns, given(form, "name")?)?;
    match form.given("key") {
        Some(key) => cache.invalidate(key).await?,
        None => cache.invalidate_tag(given(form, "tag")?).await?,
    }
    Ok(1)
}
