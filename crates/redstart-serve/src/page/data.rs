//! The screens of the other patterns.

use std::time::Duration;

use jiff::{ToSpan as _, civil::Date};
use maud::{Markup, html};
use redstart::{
    commerce::Stock,
    counting::{Activity, CheckIns, Counter, DaySpan, Keep, Uniques},
    location::{Area, Origin, Places},
    membership::Bloom,
    messaging::EventStream,
    ranking::Leaderboard,
    redis::cmd,
    resilience::CircuitState,
    sessions::Sessions,
};
use serde_json::Value;

use super::{
    Shell,
    layout::{covered, curl, empty, encode, live, moment, tile},
};
use crate::{
    api::{breaker, circuit_name, json_cache},
    call::Call,
    chart::{bars, calendar, map, shares, short},
    pretty::brief,
    problem::Problem,
    reply::Reply,
};

/// A field that chooses one of the names of a pattern.
fn choose(shell: &Shell, path: &str, names: &[String], chosen: &str, more: Markup) -> Markup {
    html! {
        form.row method="get" action=(format!("{}{path}", shell.base)) {
            input type="hidden" name="namespace" value=(shell.namespace);
            label { "Name" select name="name" { @for name in names { option value=(name) selected[name == chosen] { (name) } } } }
            (more)
            button type="submit" { "Show" }
        }
    }
}

/// The names of patterns in this namespace, and the chosen one.
pub(super) fn names(call: &Call, shell: &Shell, patterns: &[&str]) -> (Vec<String>, String) {
    let names: Vec<String> = patterns
        .iter()
        .flat_map(|pattern| shell.inventory.names(&shell.namespace, pattern))
        .map(str::to_owned)
        .collect();
    let chosen = call
        .query
        .given("name")
        .map(str::to_owned)
        .or_else(|| names.first().cloned())
        .unwrap_or_default();
    (names, chosen)
}

pub(super) async fn caches(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (names, _) = names(&call, &shell, &["cache"]);
    let body = html! {
        section.card {
            @if names.is_empty() { (empty("No cache in this namespace.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Cache" } th.num { "Keys in the sample" } th.num { "Hits here" } th.num { "Misses" } th.num { "Hit rate" } th.num title="They waited for a load of another caller" { "Loads spared" } th { "Invalidate" } } }
                tbody { @for name in &names {
                    @let stats = json_cache(&call.app, &shell.namespace, name)?.stats();
                    @let keys = shell.inventory.found.get(&(shell.namespace.clone(), "cache".to_owned(), name.clone()));
                    tr {
                        td { strong { (name) } } td.num { (keys.copied().unwrap_or(0)) } td.num { (stats.hits + stats.l1_hits) } td.num { (stats.misses) } td.num { (rate(stats.hits + stats.l1_hits, stats.misses)) } td.num { (stats.waits) }
                        td { @if shell.may_act() {
                            form.row method="get" action=(format!("{}/act/cache.invalidate", shell.base)) {
                                input type="hidden" name="namespace" value=(shell.namespace); input type="hidden" name="name" value=(name);
                                label { "Key" input name="key" size="12"; } label { "or tag" input name="tag" size="12"; }
                                button.small type="submit" { "Invalidate" }
                            }
                        } }
                    }
                } }
            } } }
            p.muted { "Hits and misses are those through this service; a load is spared when a caller waits for that of another. Programs count their own as " code { "redstart_events_total" } "." }
        }
        (curl(&shell, "POST", "/v1/caches/product/42:lease", Some(r#"{"lease": 10}"#)))
    };
    Ok(shell.page(
        "/caches",
        "Caches",
        html! { "What is kept, and how to drop it" },
        body,
    ))
}

/// The share of hits.
fn rate(hits: u64, misses: u64) -> String {
    match hits + misses {
        0 => "–".to_owned(),
        all => format!("{:.1} %", 100.0 * hits as f64 / all as f64),
    }
}

pub(super) async fn breakers(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (names, _) = names(&call, &shell, &["breaker"]);
    let mut rows = Vec::new();
    for name in names.iter().take(100) {
        // A breaker whose part of the store is down does not hide the others.
        let opened = breaker(&call.app, &shell.namespace, name).await;
        let state = opened.map_or("unknown", |breaker| circuit_name(breaker.state()));
        rows.push((name, state));
    }
    let body = html! {
        section.card {
            @if rows.is_empty() { (empty("No breaker has counted anything yet.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Breaker" } th { "State" } th { "Changes" } th { span.muted { "Time closed, half open, open" } } th { "Actions" } } }
                tbody { @for (name, state) in &rows { tr {
                    @let history = call.app.sampler.breaker(&shell.namespace, name);
                    td { strong { (name) } }
                    td { span class=(match *state { "closed" => "tag good", "open" => "tag bad", _ => "tag warn" }) { (state) } }
                    td.wide { (lately(&history)) }
                    td { (time_in(name, &history)) }
                    td.acts { (shell.act("breaker.force-open", "Force open for 60 s", &[("name", name)])) (shell.act("breaker.reset", "Reset", &[("name", name)])) }
                } } }
            } } }
        }
        (curl(&shell, "POST", "/v1/breakers/payments:admit", None))
    };
    Ok(shell.page(
        "/breakers",
        "Breakers",
        html! { "Which services are called, and which are left alone" },
        live(&call, body),
    ))
}

/// How much of the time a breaker was in each state.
fn time_in(name: &str, history: &[CircuitState]) -> Markup {
    let of = |state| history.iter().filter(|known| **known == state).count() as u64;
    let (closed, open) = (of(CircuitState::Closed), of(CircuitState::Open));
    let half_open = of(CircuitState::HalfOpen);
    shares(
        &format!("Time of {name}"),
        &[("closed", closed), ("half open", half_open), ("open", open)],
    )
}

/// The newest changes of a state, the newest first.
fn lately(history: &[CircuitState]) -> Markup {
    let changes: Vec<(usize, CircuitState)> = history
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair[0] != pair[1])
        .map(|(at, pair)| (history.len() - 2 - at, pair[1]))
        .collect();
    html! {
        @if changes.is_empty() { span.muted { "no change" @if history.len() > 1 { " in " (covered(history.len())) } } }
        @for (back, state) in changes.iter().rev().take(3) {
            span.tag { (circuit_name(*state)) " " @if *back == 0 { "just now" } @else { (covered(back + 1)) " ago" } } " "
        }
    }
}

pub(super) async fn stock(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (names, chosen) = names(&call, &shell, &["stock"]);
    let item = call.query.given("item").unwrap_or("lamp").to_owned();
    let report = match chosen.is_empty() {
        true => None,
        false => {
            Stock::builder(&call.app.store, &shell.namespace, &chosen)
                .build()?
                .report(&item)
                .await?
        }
    };
    let shown = match &report {
        None => html! { (empty("This item is not on sale.")) },
        Some(report) => html! {
            div.tiles { (tile("Free", report.free, "")) (tile("Held", report.held, "by orders")) (tile("Sold", report.sold, "")) (tile("Total", report.total(), "free + held + sold")) }
            (shares("Stock", &[("sold", report.sold), ("held", report.held), ("free", report.free)]))
            @match report.put_on_sale {
                Some(units) if report.is_conserved() == Some(true) => { p { span.tag.good { "conserved" } " " (units) " units were put on sale, and as many are free, held or sold." } }
                Some(units) => { p.note.bad { (units) " units were put on sale, and " (report.total()) " are free, held or sold: somebody has changed the keys of this sale by hand, or a part of them was lost." } }
                None => { p.muted { "How many units were put on sale is not known: a part of this sale was lost and put on sale again, or an earlier version opened it." } }
            }
        },
    };
    let body = html! {
        (choose(&shell, "/stock", &names, &chosen, html! { label { "Item" input name="item" value=(item); } }))
        (live(&call, html! { section.card { h2 { (item) } (shown) } }))
        (curl(&shell, "POST", "/v1/stock/sale/lamp:hold", Some(r#"{"user": "ann", "order": "5001"}"#)))
    };
    Ok(shell.page("/stock", "Stock", html! { "Free, held and sold" }, body))
}

pub(super) async fn boards(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (names, chosen) = names(&call, &shell, &["leaderboard"]);
    let (top, len) = match chosen.is_empty() {
        true => (Vec::new(), 0),
        false => {
            let board = Leaderboard::new(&call.app.store, &shell.namespace, &chosen)?;
            (board.top(20).await?, board.len().await?)
        }
    };
    let most = top.first().map_or(1.0, |entry| entry.score.max(1.0));
    let table = html! {
        section.card {
            h2 { (chosen) " " span.muted { (len) " members" } }
            @if top.is_empty() { (empty("Nobody is on this board.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th.num { "Rank" } th { "Member" } th.num { "Score" } th { span.muted { "Of the best" } } } }
                tbody { @for entry in &top { tr {
                    td.num { (entry.rank) } td { strong { (entry.member) } } td.num { (short(entry.score)) }
                    td { (shares(&entry.member, &[("score", (entry.score.max(0.0) / most * 100.0) as u64), ("", 0), ("", 0), ("rest", 0)])) }
                } } }
            } } }
        }
    };
    let body = html! {
        (choose(&shell, "/boards", &names, &chosen, html! {}))
        (live(&call, table))
        (curl(&shell, "GET", &format!("/v1/boards/{}?count=10", encode(&chosen)), None))
    };
    Ok(shell.page(
        "/boards",
        "Leaderboards",
        html! { "The best, in order" },
        body,
    ))
}

pub(super) async fn sessions(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (names, chosen) = names(&call, &shell, &["session"]);
    let user = call.query.given("user").unwrap_or_default().to_owned();
    let list = match user.is_empty() || chosen.is_empty() {
        true => Vec::new(),
        false => {
            Sessions::new(&call.app.store, &shell.namespace, &chosen)?
                .list(&user)
                .await?
        }
    };
    let body = html! {
        (choose(&shell, "/sessions", &names, &chosen, html! { label { "User" input name="user" value=(user) required; } }))
        section.card {
            h2 { "Devices" @if !user.is_empty() { " of " (user) } }
            @if list.is_empty() { (empty(if user.is_empty() { "Choose a user." } else { "This user has no session." })) }
            @else {
                div.scroll tabindex="0" { table {
                    thead { tr { th { "Device" } th { "Handle" } th { "Created" } th { "Seen" } th { "Actions" } } }
                    tbody { @for one in &list { tr {
                        td { (one.label.as_deref().unwrap_or("unnamed")) @if one.remembered { " " span.tag { "remembered" } } }
                        td.mono { (one.handle.chars().take(12).collect::<String>()) } td { (moment(one.created)) } td { (moment(one.seen)) }
                        td.acts { (shell.act("session.revoke", "End", &[("name", &chosen), ("user", &user), ("handle", &one.handle)])) }
                    } } }
                } }
                p { (shell.act("session.revoke-all", "End all", &[("name", &chosen), ("user", &user)])) }
            }
        }
    };
    Ok(shell.page(
        "/sessions",
        "Sessions",
        html! { "Who is logged in, and where" },
        body,
    ))
}

pub(super) async fn streams(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (names, chosen) = names(&call, &shell, &["stream"]);
    let shown = match chosen.is_empty() {
        true => empty("No event stream in this namespace."),
        false => stream(&call, &shell, &chosen).await?,
    };
    let body = html! {
        (choose(&shell, "/streams", &names, &chosen, html! {}))
        (live(&call, shown))
        (curl(&shell, "POST", &format!("/v1/streams/{}", encode(&chosen)), Some(r#"{"event": {"order": 5001}}"#)))
    };
    Ok(shell.page(
        "/streams",
        "Streams",
        html! { "Events, groups and what is pending" },
        body,
    ))
}

async fn stream(call: &Call, shell: &Shell, name: &str) -> Result<Markup, Problem> {
    let store = &call.app.store;
    let stream = EventStream::<Value>::new(store, &shell.namespace, name)?;
    let entity = redstart::key::Keys::new(&shell.namespace, "stream")?.entity(name)?;
    let mut ask = cmd("XINFO");
    ask.arg("GROUPS").arg(entity.key());
    let groups: Vec<std::collections::HashMap<String, redstart::redis::Value>> =
        store.query(&ask).await.unwrap_or_default();
    let events = stream.newest(20).await?;
    let field = |group: &std::collections::HashMap<String, redstart::redis::Value>, name: &str| {
        let value = group
            .get(name)
            .cloned()
            .unwrap_or(redstart::redis::Value::Nil);
        redstart::redis::from_redis_value::<String>(value).unwrap_or_else(|_| "–".to_owned())
    };
    Ok(html! {
        section.card {
            h2 { "Groups " span.muted { (stream.len().await?) " events in all" } }
            @if groups.is_empty() { (empty("No groups.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Group" } th.num { "Consumers" } th.num { "Pending" } th.num { "Lag" } th { "Delivered up to" } } }
                tbody { @for group in &groups { tr {
                    td { strong { (field(group, "name")) } } td.num { (field(group, "consumers")) } td.num { (field(group, "pending")) }
                    td.num { (field(group, "lag")) } td.mono { (field(group, "last-delivered-id")) }
                } } }
            } } }
        }
        section.card {
            h2 { "Newest events" }
            @if events.is_empty() { (empty("None.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Id" } th { "Event" } } }
                tbody { @for event in &events { tr { td.mono { (event.id) } td.wide.mono { (brief(&event.event.to_string(), &call.config.redact, 160)) } } } }
            } } }
        }
    })
}

/// The last 14 days, with what a chart calls them.
fn last_days(today: Date) -> impl Iterator<Item = (String, Date)> {
    (0..14_i64).rev().map(move |back| {
        let day = today.checked_sub(back.days()).unwrap_or(today);
        (day.strftime("%d").to_string(), day)
    })
}

pub(super) async fn counting(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (store, namespace) = (&call.app.store, &shell.namespace);
    let of = |pattern: &'static str| {
        shell
            .inventory
            .names(namespace, pattern)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (counters, uniques, check_ins, activities) = (
        of("counter"),
        of("uniques"),
        of("check_ins"),
        of("activity"),
    );
    let entity = call.query.given("entity").unwrap_or("home").to_owned();
    let user = call.query.given("user").unwrap_or("ann").to_owned();
    let keep = Keep::For(Duration::from_secs(400 * 86_400));
    let mut totals = Vec::new();
    for name in &counters {
        totals.push((
            name,
            Counter::new(store, namespace, name, Keep::Forever)?
                .get(&entity)
                .await?,
        ));
    }
    let mut charts = Vec::new();
    for name in &uniques {
        let pattern = Uniques::new(store, namespace, name, keep)?;
        let mut days = Vec::new();
        for (label, day) in last_days(pattern.today().await?) {
            let count = pattern.count(&entity, &DaySpan::Day(day)).await?;
            days.push((label, count.count as f64));
        }
        charts.push((format!("{name}: different visitors of {entity}"), days));
    }
    for name in &activities {
        let pattern = Activity::new(store, namespace, name, 1 << 20, keep)?;
        let mut days = Vec::new();
        for (label, day) in last_days(pattern.today().await?) {
            days.push((label, pattern.daily(&entity, day).await? as f64));
        }
        charts.push((format!("{name}: active members of {entity}"), days));
    }
    let mut months = Vec::new();
    for name in &check_ins {
        let pattern = CheckIns::new(store, namespace, name, Keep::Forever)?;
        let today = pattern.today(&jiff::tz::TimeZone::UTC).await?;
        let month = pattern.month(&user, today).await?;
        months.push((
            name,
            month.first().weekday().to_monday_zero_offset() as usize,
            month,
            pattern.streaks(&user, today).await?,
        ));
    }
    let body = html! {
        form.row method="get" action=(format!("{}/counting", shell.base)) {
            input type="hidden" name="namespace" value=(shell.namespace);
            label { "Entity" input name="entity" value=(entity); } label { "User" input name="user" value=(user); }
            button type="submit" { "Show" }
        }
        @if counters.is_empty() && uniques.is_empty() && check_ins.is_empty() && activities.is_empty() { section.card { (empty("Nothing is counted in this namespace.")) } }
        @if !totals.is_empty() { div.tiles { @for (name, value) in &totals { (tile(name, value, &entity)) } } }
        div.grid {
            @for (title, days) in &charts { section.card { h2 { (title) } (bars(title, days)) p.muted { "The last 14 days" } } }
            @for (name, first, month, streaks) in &months { section.card {
                h2 { (name) ": check-ins of " (user) }
                (calendar("Check-ins", *first, month.days()))
                p.muted { (month.count()) " days this month; streak " (streaks.current) ", longest " (streaks.longest) }
            } }
        }
    };
    Ok(shell.page(
        "/counting",
        "Counting",
        html! { "Counters, visitors, check-ins, activity" },
        body,
    ))
}

pub(super) async fn filters(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (mut names, _) = names(&call, &shell, &["bloom"]);
    // Partitions and generations are keys of the same filter.
    for name in &mut names {
        name.truncate(name.find(['/', '#', '@', ':']).unwrap_or(name.len()));
    }
    names.dedup();
    let mut rows = Vec::new();
    for name in names.iter().take(100) {
        if let Ok(filter) = Bloom::builder(&call.app.store, &shell.namespace, name)
            .open()
            .await
        {
            rows.push((name, filter.stats().await?));
        }
    }
    let body = html! {
        section.card {
            @if rows.is_empty() { (empty("No filter in this namespace.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Filter" } th.num { "Elements" } th.num { "Bits" } th { "Fill" } th.num { "Estimated error" } } }
                tbody { @for (name, stats) in &rows { tr {
                    td { strong { (name) } } td.num { (stats.elements) } td.num { (short(stats.bits as f64)) }
                    td { (format!("{:.1} %", stats.fill * 100.0)) (shares(name, &[("set", (stats.fill * 1000.0) as u64), ("", 0), ("", 0), ("free", 0)])) }
                    td.num { (format!("{:.4} %", stats.estimated_error * 100.0)) }
                } } }
            } } }
        }
        (curl(&shell, "POST", "/v1/blooms/sent:contains", Some(r#"{"elements": ["ann@example.com"]}"#)))
    };
    Ok(shell.page(
        "/filters",
        "Bloom filters",
        html! { "How full they are, and how often they err" },
        live(&call, body),
    ))
}

pub(super) async fn places(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (names, chosen) = names(&call, &shell, &["places"]);
    let mut points = Vec::new();
    if !chosen.is_empty() {
        let places = Places::new(&call.app.store, &shell.namespace, &chosen)?;
        // Around whoever comes first: a map needs a middle.
        let entity = redstart::key::Keys::new(&shell.namespace, "places")?.entity(&chosen)?;
        let mut some = cmd("ZRANDMEMBER");
        some.arg(entity.key());
        let member: Option<String> = call.app.store.query(&some).await.unwrap_or(None);
        if let Some(member) = member {
            let near = places
                .nearby(Origin::Member(member), Area::Radius(50_000.0))
                .limit(100)
                .find()
                .await?;
            points.extend(near.into_iter().map(|near| {
                (
                    near.member,
                    near.position.longitude(),
                    near.position.latitude(),
                )
            }));
            points.sort_by(|a, b| a.0.cmp(&b.0));
        }
    }
    let body = html! {
        (choose(&shell, "/places", &names, &chosen, html! {}))
        (live(&call, html! {
            section.card { h2 { (chosen) " " span.muted { (points.len()) " within 50 km of one of them" } } (map(&chosen, &points)) }
        }))
        (curl(&shell, "POST", "/v1/places/riders:nearby", Some(r#"{"point": {"longitude": 13.41, "latitude": 52.52}, "radius": 5000}"#)))
    };
    Ok(shell.page("/places", "Places", html! { "Who is where" }, body))
}
