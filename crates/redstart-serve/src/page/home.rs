//! The overview: the server, what is in use, what other libraries keep here; and the audit log.

use maud::{Markup, html};
use redstart_doctor::Finding;

use super::{
    Shell,
    layout::{copyable, covered, empty, encode, live, moment, span, tile},
};
use crate::{
    call::Call,
    chart::{lines, short},
    checkup::class,
    problem::{Kind, Problem},
    reply::Reply,
    sampler::{ADDRESS, Servers},
};

pub(super) async fn page(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let store = &call.app.store;
    let (servers, health) = tokio::join!(Servers::read(store), store.health());
    // Where a part of a Cluster is down, the rest is shown. Where all of it is, there is nothing to show.
    let servers = servers?;
    let sampler = &call.app.sampler;
    let unknown = || "–".to_owned();
    let memory = servers.sum("used_memory");
    let memory = memory.map_or_else(unknown, |bytes| format!("{:.1} MiB", bytes / 1048576.0));
    let uptime = servers.least("uptime_in_seconds");
    let uptime = uptime.map(|seconds| span(std::time::Duration::from_secs(seconds as u64)));
    let clients = servers.sum("connected_clients");
    let kind = if store.is_cluster() {
        "Cluster"
    } else {
        "one server"
    };
    let body = html! {
        div.tiles {
            @match &health {
                Ok(health) => {
                    @let (major, minor, patch) = health.version;
                    (tile(&format!("{:?}", health.server), format!("{major}.{minor}.{patch}"), kind))
                    (tile("Answered in", format!("{:.2} ms", health.round_trip.as_secs_f64() * 1e3), "one round trip"))
                }
                Err(_) => {
                    (tile("Server", unknown(), kind))
                    (tile("Answered in", unknown(), "not all answer"))
                }
            }
            (tile("Commands", sampler.ops().last().map_or("…".to_owned(), |ops| short(*ops)), "per second"))
            (tile("Memory", memory, &policy(&servers)))
            (tile("Clients", clients.map_or("–".to_owned(), |n| n.to_string()), "connected"))
            (tile("Up for", uptime.unwrap_or_else(unknown), ""))
        }
        (noticed(&servers))
        (examined(&call, &shell))
        div.grid {
            section.card { h2 { "Commands per second" } (over_time("Commands per second", "commands", sampler.ops())) }
            section.card { h2 { "Memory, MiB" } (over_time("Memory in MiB", "used", sampler.memory())) }
            section.card { h2 { "Round trip, ms" } (over_time("Round trip in milliseconds", "INFO", sampler.latency())) }
        }
        (in_use(&shell))
        @if call.app.store.is_cluster() { (nodes(&call, &servers).await) }
    };
    Ok(shell.page(
        "/",
        "Overview",
        html! { "Everything on this store" },
        live(&call, body),
    ))
}

fn over_time(title: &str, name: &str, values: Vec<f64>) -> Markup {
    let covered = covered(values.len());
    lines(title, &[(name, values)], &covered)
}

fn policy(servers: &Servers) -> String {
    match servers.sum("maxmemory") {
        Some(most) if most > 0.0 => format!("of {:.0} MiB", most / 1048576.0),
        _ => "no limit".to_owned(),
    }
}

/// What an operator should know without being asked.
fn noticed(servers: &Servers) -> Markup {
    let mut found: Vec<String> = Vec::new();
    for (address, error) in &servers.silent {
        found.push(match address.as_str() {
            "" => format!("The server does not answer: {error}."),
            address => {
                format!("The master {address} does not answer: {error}. Its keys cannot be used.")
            }
        });
    }
    for server in &servers.all {
        // On a Cluster each node has its own.
        let whose = match server.text(ADDRESS) {
            Some(address) if !address.is_empty() => format!("Node {address}: "),
            _ => String::new(),
        };
        let mut add = |text: String| found.push(format!("{whose}{text}"));
        let limit = server.number("maxmemory").unwrap_or(0.0);
        let used = server.number("used_memory").unwrap_or(0.0);
        if limit > 0.0 && used > 0.9 * limit {
            add(format!("Memory is {:.0} % full.", 100.0 * used / limit));
        }
        let evicts = server
            .text("maxmemory_policy")
            .is_some_and(|policy| policy != "noeviction");
        if limit > 0.0 && evicts {
            add("The server may evict keys: locks, queues and fences can disappear. Use noeviction for them.".to_owned());
        }
        if server.number("rejected_connections").unwrap_or(0.0) > 0.0 {
            add(
                "Connections were rejected: raise maxclients or close what is not used.".to_owned(),
            );
        }
        if server.text("master_link_status") == Some("down") {
            add("The link to the master is down.".to_owned());
        }
        if server.text("rdb_last_bgsave_status") == Some("err")
            || server.text("aof_last_write_status") == Some("err")
        {
            add("The last save to disk failed.".to_owned());
        }
    }
    html! { @for text in &found { p.note.bad { (text) } } }
}

/// What the doctor found: findings speak of all namespaces, so a token of some of them does not see them.
fn examined(call: &Call, shell: &Shell) -> Markup {
    let examined = match call.app.checkup.last() {
        Some(examined) if call.identity.namespaces().is_empty() => examined,
        _ => return html! {},
    };
    html! {
        section.card {
            h2 { "What is wrong" }
            @if examined.findings.is_empty() { (empty("The doctor found nothing that is sure to be wrong.")) }
            @else { ul { @for finding in examined.findings.iter().take(8) { li {
                span class=(class(finding.severity)) { (finding.severity) } " "
                a href=(shell.link(&format!("/findings?rule={}", encode(&finding.rule)))) { (title(finding)) }
                " " span.muted { (finding.subject) }
            } } } }
            p.muted {
                a href=(shell.link("/findings")) { "All findings" } ", examined " (span(examined.at.elapsed())) " ago without looking at keys. "
                code { "redstart doctor --all" } " sees more."
            }
        }
    }
}

fn title(finding: &Finding) -> &str {
    redstart_doctor::rule(&finding.rule).map_or(&finding.rule, |rule| rule.title)
}

/// All findings, or those of one rule with what the rule teaches.
pub(super) async fn findings(call: Call) -> Result<Reply, Problem> {
    if !call.identity.namespaces().is_empty() {
        return Err(Problem::new(Kind::Forbidden)
            .detail("a token of some namespaces does not see what is about all of them"));
    }
    let shell = Shell::new(&call).await?;
    let rule = call.query.given("rule").and_then(redstart_doctor::rule);
    let examined = call.app.checkup.last();
    let all = examined.iter().flat_map(|examined| &examined.findings);
    let wanted = |finding: &&Finding| rule.is_none_or(|rule| rule.id == finding.rule);
    let some: Vec<&Finding> = all.filter(wanted).collect();
    let body = html! {
        @if let Some(rule) = rule {
            section.card {
                h2 { (rule.title) }
                p { (rule.about) }
                @if !rule.timeline.is_empty() { ol { @for step in rule.timeline { li { (step) } } } }
                p { strong { "Effect: " } (rule.effect) }
                p { strong { "Way out: " } (rule.fix) }
                p { strong { "With Redstart: " } (rule.pattern) }
                (copyable("As a redstart command", &format!("redstart doctor explain {}", rule.id)))
            }
        }
        section.card {
            h2 { "Findings" }
            @if some.is_empty() { (empty(if examined.is_some() { "None." } else { "The server has not been examined." })) }
            @for finding in &some {
                article {
                    h3 { span class=(class(finding.severity)) { (finding.severity) } " " (title(finding)) }
                    p { strong { (finding.subject) } " " (finding.evidence) }
                    p { (finding.effect) }
                    p { strong { "Way out: " } (finding.fix) }
                    @if rule.is_none() { p { a href=(shell.link(&format!("/findings?rule={}", encode(&finding.rule)))) { "How this comes about" } } }
                }
            }
            @if let Some(examined) = &examined && examined.blinds > 0 {
                p.muted { (examined.blinds) " things could not be seen." }
            }
        }
        (copyable("As a redstart command", "redstart doctor --url \"$REDSTART_URL\" --all"))
    };
    let crumb = html! { a href=(shell.link("/")) { "Overview" } " / Findings" };
    Ok(shell.page("/", "What the doctor found", crumb, body))
}

fn in_use(shell: &Shell) -> Markup {
    let screen = |pattern: &str| match pattern {
        "queue" => Some("/queues"),
        "mutex" | "semaphore" | "leader" | "rw" | "fair" => Some("/locks"),
        "limiter" => Some("/limiters"),
        "cache" => Some("/caches"),
        "breaker" => Some("/breakers"),
        "stock" => Some("/stock"),
        "leaderboard" | "sharded" => Some("/boards"),
        "session" => Some("/sessions"),
        "stream" => Some("/streams"),
        "counter" | "uniques" | "check_ins" | "activity" | "windowed" => Some("/counting"),
        "bloom" => Some("/filters"),
        "places" => Some("/places"),
        _ => None,
    };
    let mut rows: std::collections::BTreeMap<(&str, &str), (Vec<&str>, u64)> = Default::default();
    let visible = |namespace: &str| shell.namespaces().iter().any(|known| known == namespace);
    for ((namespace, pattern, name), keys) in &shell.inventory.found {
        if !visible(namespace) {
            continue;
        }
        let row = rows.entry((namespace, pattern)).or_default();
        row.0.push(name);
        row.1 += keys;
    }
    html! {
        section.card {
            h2 { "In use" }
            @if rows.is_empty() { (empty("No keys of Redstart's patterns yet. Use the API, or start with --demo.")) }
            @else {
                div.scroll tabindex="0" { table {
                    thead { tr { th { "Namespace" } th { "Pattern" } th { "Names" } th.num { "Keys" } } }
                    tbody {
                        @for ((namespace, pattern), (names, keys)) in &rows {
                            tr {
                                td { a href=(format!("{}/?namespace={}", shell.base, encode(namespace))) { (namespace) } }
                                td { @match screen(pattern) {
                                    Some(path) => { a href=(format!("{}{path}?namespace={}", shell.base, encode(namespace))) { (pattern) } }
                                    None => { (pattern) }
                                } }
                                td.wide { (names.iter().take(8).copied().collect::<Vec<_>>().join(", ")) @if names.len() > 8 { " and " (names.len() - 8) " more" } }
                                td.num { (keys) }
                            }
                        }
                    }
                } }
            }
            @if shell.inventory.foreign > 0 { p.muted { (shell.inventory.foreign) " keys are not of Redstart's form." } }
        }
    }
}

/// Enough of a node's name to tell it from others.
fn brief(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

async fn nodes(call: &Call, servers: &Servers) -> Markup {
    let mut ask = redstart::redis::cmd("CLUSTER");
    ask.arg("NODES");
    let text: String = call.app.store.query(&ask).await.unwrap_or_default();
    html! {
        section.card {
            h2 { "Nodes" }
            div.scroll tabindex="0" { table {
                thead { tr { th { "Address" } th { "Role" } th { "State" } th.num { "Memory" } th.num { "Commands/s" } th { "Slots" } } }
                tbody {
                    @for line in text.lines() {
                        @let fields: Vec<&str> = line.split(' ').collect();
                        @if fields.len() >= 8 {
                            @let address = fields[1].split('@').next().unwrap_or_default();
                            @let server = servers.all.iter().find(|server| server.text(ADDRESS) == Some(address));
                            @let state = match fields[2] {
                                _ if servers.silent.iter().any(|(silent, _)| silent == address) => "does not answer",
                                flags if flags.split(',').any(|flag| flag == "fail") => "failed",
                                _ => fields[7],
                            };
                            @let memory = server.and_then(|server| server.number("used_memory"));
                            @let ops = server.and_then(|server| server.number("instantaneous_ops_per_sec"));
                            tr {
                                td.mono { (address) " " span.muted { (brief(fields[0])) } }
                                td { (if fields[2].contains("master") { "master" } else { "replica" }) }
                                td { span class=(if state == "connected" { "tag good" } else { "tag bad" }) { (state) } }
                                td.num { (memory.map_or("–".to_owned(), |bytes| format!("{:.1} MiB", bytes / 1048576.0))) }
                                td.num { (ops.map_or("–".to_owned(), short)) }
                                td.mono { (fields[8..].join(" ")) }
                            }
                        }
                    }
                }
            } }
        }
    }
}

pub(super) async fn audit(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let changes = call.app.changes(&call.identity).await?;
    let body = html! {
        section.card {
            @if changes.is_empty() { (empty("Nobody has changed anything by hand.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "When" } th { "Who" } th { "What" } th { "On" } th.num { "Changed" } th.num { "Counted before" } } }
                tbody { @for (id, change) in &changes {
                    @let millis = id.split('-').next().and_then(|ms| ms.parse::<u64>().ok()).unwrap_or(0);
                    tr {
                        td { (moment(std::time::Duration::from_millis(millis))) }
                        td { (change.who) } td { code { (change.what) } } td.wide { (change.on) }
                        td.num { (change.count) } td.num { (change.expected.map_or("–".to_owned(), |n| n.to_string())) }
                    }
                } }
            } } }
        }
    };
    Ok(shell.page(
        "/audit",
        "Audit log",
        html! { "Changes that were made by hand, newest first" },
        live(&call, body),
    ))
}
