//! The page to try the API.

use maud::html;
use percent_encoding::utf8_percent_encode;

use super::{Shell, layout::curl};
use crate::{call::Call, problem::Problem, reply::Reply};

pub(super) async fn page(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let mut families: Vec<&str> = Vec::new();
    for doc in call
        .app
        .routes
        .iter()
        .filter_map(|route| route.doc.as_ref())
    {
        if !families.contains(&doc.family) {
            families.push(doc.family);
        }
    }
    let body = html! {
        p { "The document: " a href=(format!("{}/v1/openapi.json", shell.base)) { "openapi.json" } " (OpenAPI 3.1). Changes take an "
            code { "Idempotency-Key" } "; errors are problems by RFC 9457. Requests that are sent from here act on the namespace "
            strong { (shell.namespace) } "." }
        @for family in families {
            section.card.ops {
                h2 { (family) }
                @for found in call.app.routes.iter() {
                    @if let Some(doc) = found.doc.as_ref().filter(|doc| doc.family == family) {
                        @let path = filled(found.path, &doc.params);
                        @let target = shell.link(&path);
                        @let body = doc.body.as_ref().map(|(_, example)| serde_json::to_string_pretty(example).unwrap_or_default());
                        details {
                            summary { span.verb { (found.method.as_str()) } code { (found.path) } " " span.muted { (doc.summary) } }
                            form data-try=(found.method.as_str()) {
                                p { label { "Path" input name="path" value=(target) size="70"; } }
                                @if let Some(body) = &body { p { label { "Body" textarea name="body" rows=(body.lines().count().max(3)) { (body) } } } }
                                p { button.primary type="submit" { "Send" } }
                                output { }
                            }
                            p.muted { @for (status, meaning, _) in &doc.replies { code { (status) } " " (meaning) ". " } "Role: " (found.role.to_string()) "." }
                            (curl(&shell, found.method.as_str(), &path, body.as_deref()))
                        }
                    }
                }
            }
        }
    };
    Ok(shell.page(
        "/api",
        "API",
        html! { "The patterns over HTTP, for every language" },
        body,
    ))
}

/// The path with its examples.
fn filled(path: &str, params: &[(&str, &str)]) -> String {
    let mut path = path.to_owned();
    for (name, example) in params {
        let example = utf8_percent_encode(example, percent_encoding::NON_ALPHANUMERIC).to_string();
        path = path.replace(&format!("{{{name}}}"), &example);
    }
    path
}
