//! The frame of every page: navigation, namespace, and the small parts that screens share.

use std::{sync::Arc, time::Duration};

use maud::{DOCTYPE, Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::command::quoted;
use crate::{
    auth::Role, call::Call, chart, config::Config, inventory::Inventory, problem::Problem,
    reply::Reply, sampler,
};

const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A name within a path or a query.
pub(crate) fn encode(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

/// The screens: path, title, key, and the patterns that they show.
const SCREENS: &[(&str, &str, &str, &[&str])] = &[
    ("/queues", "Queues", "q", &["queue"]),
    (
        "/locks",
        "Locks",
        "l",
        &["mutex", "semaphore", "leader", "rw", "fair"],
    ),
    ("/limiters", "Limiters", "r", &["limiter"]),
    ("/caches", "Caches", "c", &["cache"]),
    ("/breakers", "Breakers", "b", &["breaker"]),
    ("/stock", "Stock", "s", &["stock"]),
    ("/boards", "Leaderboards", "w", &["leaderboard", "sharded"]),
    ("/sessions", "Sessions", "u", &["session"]),
    ("/streams", "Streams", "e", &["stream"]),
    (
        "/counting",
        "Counting",
        "n",
        &["counter", "uniques", "check_ins", "activity", "windowed"],
    ),
    ("/filters", "Bloom filters", "f", &["bloom"]),
    ("/places", "Places", "p", &["places"]),
];

/// What every page of a request needs.
pub(super) struct Shell {
    pub(super) base: String,
    pub(super) namespace: String,
    pub(super) inventory: Arc<Inventory>,
    may_act: bool,
    read_only: bool,
    who: String,
    namespaces: Vec<String>,
    /// How the reader reached the service.
    origin: String,
}

impl Shell {
    pub(super) async fn new(call: &Call) -> Result<Self, Problem> {
        let inventory = call.app.looks.get(&call.app.store).await?;
        let allowed = call.identity.namespaces();
        let mut namespaces: Vec<String> = inventory
            .namespaces()
            .into_iter()
            .filter(|name| allowed.is_empty() || allowed.iter().any(|known| known == name))
            .map(str::to_owned)
            .collect();
        // Without a choice, the first one that has something.
        let namespace = match call.query.given("namespace") {
            Some(_) => call.namespace()?,
            None if namespaces.contains(&call.config.namespace.0) => {
                call.config.namespace.0.clone()
            }
            None => match namespaces.first() {
                Some(first) => first.clone(),
                None => call.namespace()?,
            },
        };
        if !namespaces.contains(&namespace) {
            namespaces.push(namespace.clone());
        }
        Ok(Self {
            base: call.config.base_path.0.clone(),
            namespace,
            inventory,
            may_act: call.identity.role >= Role::Admin && !call.config.read_only,
            read_only: call.config.read_only,
            who: call.identity.name.clone(),
            namespaces,
            origin: call.origin(),
        })
    }

    /// A link to a page in this namespace. `path` is encoded already.
    pub(super) fn link(&self, path: &str) -> String {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let more = if query.is_empty() {
            String::new()
        } else {
            format!("&{query}")
        };
        format!(
            "{}{path}?namespace={}{more}",
            self.base,
            encode(&self.namespace)
        )
    }

    /// A link that asks for a change; nothing for those who may not make it.
    pub(super) fn act(&self, action: &str, title: &str, params: &[(&str, &str)]) -> Markup {
        if !self.may_act {
            return html! {};
        }
        let params: Vec<String> = params
            .iter()
            .map(|(name, value)| format!("{name}={}", encode(value)))
            .collect();
        let danger = ["delete", "purge", "force", "revoke"]
            .iter()
            .any(|word| action.contains(word));
        html! {
            a class=(if danger { "button small danger" } else { "button small" })
                href=(self.link(&format!("/act/{action}?{}", params.join("&")))) { (title) } " "
        }
    }

    /// The namespaces that the caller may see.
    pub(super) fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    pub(super) fn may_act(&self) -> bool {
        self.may_act
    }

    /// A whole page.
    pub(super) fn page(&self, at: &str, title: &str, crumb: Markup, body: Markup) -> Reply {
        let current =
            |path: &str| (at == path || path != "/" && at.starts_with(path)).then_some("page");
        Reply::html(html! {
            (DOCTYPE)
            html lang="en" data-base=(self.base) {
                (head(&self.base, title))
                body {
                    a.skip href="#main" { "Skip to the content" }
                    div.shell {
                        header.side {
                            a.brand href=(self.link("/")) { (chart::logo()) span { "Redstart" } }
                            nav aria-label="Screens" {
                                ul {
                                    li { a.item data-key="o" href=(self.link("/")) aria-current=[(at == "/").then_some("page")] { "Overview" } }
                                    @for (path, name, key, patterns) in SCREENS {
                                        @let count = self.inventory.count(&self.namespace, patterns);
                                        li { a.item data-key=(key) href=(self.link(path)) aria-current=[current(path)] {
                                            (name) @if count > 0 { span.n { (count) } }
                                        } }
                                    }
                                }
                                h2 { "Service" }
                                ul {
                                    li { a.item data-key="a" href=(self.link("/api")) aria-current=[current("/api")] { "API" } }
                                    li { a.item href=(self.link("/audit")) aria-current=[current("/audit")] { "Audit log" } }
                                    li { a.item href=(format!("{}/metrics", self.base)) { "Metrics" } }
                                }
                            }
                        }
                        main id="main" tabindex="-1" {
                            div.top {
                                div.crumb { (crumb) }
                                h1 { (title) }
                                div.right {
                                    (self.chooser(at))
                                    span.muted { span id="beat" {} " " span id="pulse" role="status" {} }
                                    button.small type="button" id="theme" { "Theme" }
                                }
                            }
                            @if self.read_only { p.note { "This service is read-only." } }
                            @if self.inventory.partial { p.note { (self.inventory.keys) " keys were read so far, and more with each look; some names may be missing." } }
                            @if self.inventory.unread { p.note.bad { "Some keys cannot be read now: a part of the store does not answer. Names are those that were found before." } }
                            @if self.inventory.cut { p.note { "There are more names than are kept here; some are missing." } }
                            (body)
                            footer {
                                p { "You are " strong { (self.who) } ". " span id="status" role="status" {} }
                            }
                        }
                    }
                }
            }
        })
    }

    fn chooser(&self, at: &str) -> Markup {
        // A deep link to one thing has no meaning in another namespace.
        let at: String = at.split('/').take(2).collect::<Vec<_>>().join("/");
        let at = if at.is_empty() { "/".to_owned() } else { at };
        html! {
            form.inline method="get" action=(format!("{}{at}", self.base)) {
                label { span.muted { "Namespace" }
                    span {
                        select name="namespace" {
                            @for name in &self.namespaces {
                                option value=(name) selected[*name == self.namespace] { (name) }
                            }
                        }
                        " " button.small type="submit" { "Go" }
                    }
                }
            }
        }
    }
}

/// A part that is fetched again while the page is open.
pub(super) fn live(call: &Call, body: Markup) -> Markup {
    let query = call.query.text();
    let path = format!(
        "{}{}{}{query}",
        call.config.base_path.0,
        call.path,
        if query.is_empty() { "" } else { "?" }
    );
    html! {
        div id="live" hx-get=(path) hx-trigger="tick from:body" hx-select="#live" hx-swap="outerHTML" { (body) }
    }
}

fn head(base: &str, title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="htmx-config" content=r#"{"includeIndicatorStyles":false,"allowEval":false,"selfRequestsOnly":true,"historyEnabled":false}"#;
            title { (title) " · Redstart" }
            link rel="icon" href=(format!("{base}/assets/icon.svg"));
            link rel="stylesheet" href=(format!("{base}/assets/style.css"));
            script src=(format!("{base}/assets/app.js")) {}
            script src=(format!("{base}/assets/htmx.js")) defer {}
        }
    }
}

/// A page without navigation: to log in, or to say what went wrong.
pub(super) fn plain(config: &Config, title: &str, body: Markup) -> Markup {
    let base = &config.base_path.0;
    html! {
        (DOCTYPE)
        html lang="en" data-base=(base) {
            (head(base, title))
            body { main id="main" {
                div.top { a.brand href=(format!("{base}/")) { (chart::logo()) span { "Redstart" } } }
                h1 { (title) }
                (body)
            } }
        }
    }
}

pub(super) fn tile(name: &str, value: impl std::fmt::Display, more: &str) -> Markup {
    html! { div.tile { div.k { (name) } div.v { (value) } @if !more.is_empty() { div.s { (more) } } } }
}

pub(super) fn empty(text: &str) -> Markup {
    html! { p.empty { (text) } }
}

/// A moment since 1970, which the browser shows in the reader's zone.
pub(super) fn moment(at: Duration) -> Markup {
    let time = jiff::Timestamp::new(
        at.as_secs().min(253_402_300_799) as i64,
        at.subsec_nanos() as i32,
    );
    match time {
        Ok(time) => {
            let exact = time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            html! { time datetime=(exact) { (time.strftime("%Y-%m-%d %H:%M:%S UTC")) } }
        }
        Err(_) => html! { "unknown" },
    }
}

/// A duration for people.
pub(super) fn span(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        s @ 1..=119 => format!("{s} s"),
        s @ 120..=7199 => format!("{} min", s / 60),
        s @ 7200..=172_799 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

/// The time that this many samples cover.
pub(super) fn covered(samples: usize) -> String {
    span(sampler::EVERY * u32::try_from(samples.saturating_sub(1)).unwrap_or(0))
}

/// A command to copy.
pub(super) fn copyable(title: &str, command: &str) -> Markup {
    html! {
        details {
            summary { (title) }
            pre { (command) }
            button.small type="button" data-copy=(command) { "Copy" }
        }
    }
}

/// The API's request for the same thing.
pub(super) fn curl(shell: &Shell, method: &str, path: &str, body: Option<&str>) -> Markup {
    let url = format!("{}{}", shell.origin, shell.link(path));
    let command = || {
        let mut command = format!("curl -X {method} {}", quoted(&url)?);
        if let Some(body) = body {
            let body = quoted(body)?;
            command += &format!(" -H 'content-type: application/json' -d {body}");
        }
        Some(command)
    };
    match command() {
        Some(command) => copyable("As curl", &command),
        None => html! {},
    }
}
