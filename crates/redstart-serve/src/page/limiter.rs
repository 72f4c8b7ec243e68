//! Limiters: their subjects, the hottest of them, and refusals over time.

use maud::{Markup, html};

use super::{
    Shell,
    data::names,
    layout::{curl, empty, encode, live, span, tile},
};
use crate::{
    api::limiter_of,
    call::Call,
    chart::{lines, shares},
    hot::{EVERY, Hottest},
    problem::Problem,
    reply::Reply,
};

/// Subjects in each list.
const SHOWN: usize = 20;

pub(super) async fn page(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (names, _) = names(&call, &shell, &["limiter"]);
    let tried = match (call.query.given("name"), call.query.given("subject")) {
        (Some(name), Some(subject)) => {
            let chosen = limiter_of(&call.app, &call.config, &shell.namespace, name)?;
            Some((name, subject, chosen.limiter.peek_all(subject).await?))
        }
        _ => None,
    };
    let body = html! {
        section.card {
            h2 { "Configured" }
            @if call.config.limiter.is_empty() { (empty("The configuration names no limiters.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Limiter" } th { "Algorithm" } th { "Quota" } th { "Tiers" } th { "Mode" } } }
                tbody { @for (name, limiter) in &call.config.limiter { tr {
                    td { strong { (name) } } td { (format!("{:?}", limiter.algorithm)) } td.mono { (limiter.quota.to_string()) }
                    td { (limiter.tiers.keys().cloned().collect::<Vec<_>>().join(", ")) }
                    td { @if limiter.shadow { span.tag.warn { "shadow" } } @else { span.tag.good { "enforcing" } } }
                } } }
            } } }
        }
        (live(&call, hottest(&call, &shell)))
        section.card {
            h2 { "Look at a subject" }
            @if call.config.limiter.is_empty() { (empty("Only configured limiters can be looked at here; the API takes any.")) } @else {
            form.row method="get" action=(format!("{}/limiters", shell.base)) {
                input type="hidden" name="namespace" value=(shell.namespace);
                label { "Limiter" select name="name" { @for name in call.config.limiter.keys() { option value=(name) { (name) } } } }
                label { "Subject" input name="subject" required; }
                button type="submit" { "Look" }
            } }
            @if let Some((name, subject, snapshots)) = &tried {
                @match call.query.given("allowed") {
                    Some("1") => { p.note role="status" { "The check was allowed." } }
                    Some("0") => { p.note.bad role="status" { "The check was refused." } }
                    _ => {}
                }
                p { (shell.act("limiter.check", "Try a check", &[("name", name), ("subject", subject)])) }
                @for one in snapshots {
                div.tiles { (tile("Remaining", one.remaining, &format!("of {}", one.limit))) (tile("Whole again in", span(one.reset_after), "")) }
                (shares("Taken", &[("taken", one.limit - one.remaining.min(one.limit)), ("", 0), ("left", one.remaining)]))
                p { (shell.act("limiter.reset", "Forget what it took", &[("name", name), ("subject", subject)])) }
            } }
        }
        section.card {
            h2 { "Limiters with subjects now" }
            @if names.is_empty() { (empty("No limiter keeps anything in this namespace.")) }
            @else { ul { @for name in &names { @let keys = shell.inventory.found.get(&(shell.namespace.clone(), "limiter".to_owned(), name.clone())); li { (name) " " span.muted { (keys.copied().unwrap_or(0)) " keys" } } } } }
        }
        (curl(&shell, "POST", "/v1/limiters/api:check?enforce=1", Some(r#"{"subject": "user:7", "limit": {"quota": "100/m"}}"#)))
    };
    Ok(shell.page(
        "/limiters",
        "Limiters",
        html! { "Rates, their subjects, and who is refused" },
        body,
    ))
}

/// The limiters that this instance was asked for, each with its hottest subjects.
fn hottest(call: &Call, shell: &Shell) -> Markup {
    let asked = call.app.hot.names(&shell.namespace);
    html! {
        @if asked.is_empty() { section.card { h2 { "Hot subjects" } (empty("This instance has checked nothing in this namespace yet.")) } }
        @for name in asked.iter().take(8) {
            @let lately = call.app.hot.lately(&shell.namespace, name, SHOWN);
            @let rate = |count: u64| count as f64 / EVERY.as_secs_f64();
            // The newest point is not over yet.
            @let past = &lately.history[..lately.history.len().saturating_sub(1)];
            section.card {
                h2 { (name) " " span.muted { "through this instance" } }
                (lines(
                    &format!("Checks per second of {name}"),
                    &[
                        ("allowed", past.iter().map(|(allowed, _)| rate(*allowed)).collect()),
                        ("refused", past.iter().map(|(_, refused)| rate(*refused)).collect()),
                    ],
                    &span(EVERY * u32::try_from(past.len()).unwrap_or(0)),
                ))
                div.grid {
                    div { h3 { "Refused the most" } (list(call, shell, name, &lately.refused, "Nobody was refused.")) }
                    div { h3 { "Checked the most" } (list(call, shell, name, &lately.checked, "Nobody was checked.")) }
                }
            }
        }
        @if !asked.is_empty() {
            p.muted { "Counts are of the last five to ten minutes, from a sketch of bounded memory in this instance: a range where it is not exact. Programs that use the library count for themselves." }
            (curl(shell, "GET", &format!("/v1/limiters/{}/hot", encode(&asked[0])), None))
        }
    }
}

fn list(call: &Call, shell: &Shell, name: &str, subjects: &[Hottest], none: &str) -> Markup {
    // Only a configured limiter can be looked at and reset by its name.
    let known = call.config.limiter.contains_key(name);
    html! {
        @if subjects.is_empty() { (empty(none)) }
        @else { div.scroll tabindex="0" { table {
            thead { tr { th { "Subject" } th.num { "Times" } @if known { th { "Actions" } } } }
            tbody { @for one in subjects { tr {
                td.wide {
                    @if known && one.is_whole() {
                        a href=(shell.link(&format!("/limiters?name={}&subject={}", encode(name), encode(&one.subject)))) { (one.subject) }
                    } @else { (one.subject) }
                }
                td.num { (one.at_least) @if one.at_most > one.at_least { "–" (one.at_most) } }
                @if known { td.acts { @if one.is_whole() {
                    (shell.act("limiter.reset", "Forget what it took", &[("name", name), ("subject", &one.subject)]))
                } } }
            } } }
        } } }
    }
}
