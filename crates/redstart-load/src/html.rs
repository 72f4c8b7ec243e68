//! Reports as one HTML file with SVG charts: no scripts, nothing to download.

use std::fmt::Write as _;

use crate::Report;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#222}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;width:100%}\
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}\
.held{color:#17692f}.broken{color:#b3261e}svg{width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#444}\
@media(prefers-color-scheme:dark){body{background:#16181b;color:#ddd}th,td{border-color:#333}text{fill:#aaa}}";

/// The page. `title` says what was measured, as in "redis 7.0.15, 64 clients".
pub fn html(title: &str, reports: &[Report]) -> String {
    let mut page = String::new();
    let title = escape(title);
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    );
    page.push_str(&rates(reports));
    page.push_str(&table(reports));
    for report in reports {
        page.push_str(&pattern(report));
    }
    page.push_str("</html>\n");
    page
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A bar for each pattern.
fn rates(reports: &[Report]) -> String {
    let most = reports
        .iter()
        .map(|report| report.ops_per_second)
        .fold(1.0, f64::max);
    let height = 22 * reports.len() + 10;
    let mut svg = format!(
        "<h2>Operations per second</h2><svg viewBox=\"0 0 800 {height}\" role=\"img\" aria-label=\"operations per second\">"
    );
    for (index, report) in reports.iter().enumerate() {
        let (y, width) = (22 * index + 4, 480.0 * report.ops_per_second / most);
        let colour = if report.held { "#3a7d5c" } else { "#b3261e" };
        let _ = write!(
            svg,
            "<text x=\"170\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"180\" y=\"{y}\" width=\"{width:.1}\" height=\"16\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{:.0}</text>",
            y + 13,
            escape(&report.pattern),
            186.0 + width,
            y + 13,
            report.ops_per_second
        );
    }
    svg.push_str("</svg>");
    svg
}

fn table(reports: &[Report]) -> String {
    let mut table = "<table><tr><th>pattern<th>op/s<th>p50 µs<th>p99 µs<th>p99.9 µs<th>max µs<th>server µs/op<th>bytes/entity<th>errors<th>invariant".to_owned();
    // The same on another store follows it.
    let rows = reports.iter().flat_map(|report| {
        let against = report.against.as_deref().map(|other| (other, true));
        std::iter::once((report, false)).chain(against)
    });
    for (report, is_other) in rows {
        let number =
            |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1}"));
        let name = match is_other {
            true => format!("… on {}", report.server),
            false => report.pattern.clone(),
        };
        let (class, word) = match (report.held, &report.broken) {
            (true, _) => ("held", "held"),
            (false, Some(_)) => ("broken", "broken"),
            (false, None) => ("broken", "not checked"),
        };
        let _ = write!(
            table,
            "<tr><td>{}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{}<td>{}<td>{}<td class=\"{class}\">{word}",
            escape(&name),
            report.ops_per_second,
            report.p50_us,
            report.p99_us,
            report.p999_us,
            report.max_us,
            number(report.server_us_per_op),
            number(report.bytes_per_entity),
            report.errors.values().sum::<u64>(),
        );
    }
    table.push_str("</table>");
    table
}

/// Latency by quantile and rate over time.
fn pattern(report: &Report) -> String {
    let mut section = format!(
        "<h2>{}</h2><p>{}: ",
        escape(&report.pattern),
        escape(&report.invariant)
    );
    match (&report.broken, &report.unchecked) {
        (None, None) => section.push_str("<b class=\"held\">held</b>"),
        (None, Some(why)) => {
            let _ = write!(
                section,
                "<b class=\"broken\">not checked</b>: {}",
                escape(why)
            );
        }
        (Some(broken), _) => {
            let _ = write!(
                section,
                "<b class=\"broken\">broken</b>: {}",
                escape(broken)
            );
        }
    }
    if let Some(figure) = &report.figure {
        let _ = write!(section, ". {}", escape(figure));
    }
    if let Some(naive) = &report.naive {
        let _ = write!(
            section,
            "<br>By hand ({}): <b class=\"broken\">{}</b>",
            escape(&naive.form),
            escape(&naive.harm)
        );
    }
    if let Some(hottest) = &report.hottest {
        let key = match (&hottest.key, hottest.slot) {
            (Some(key), Some(slot)) => format!("{key} in slot {slot}"),
            _ => format!("entity {}", hottest.entity),
        };
        let _ = write!(
            section,
            "<br>Hottest: {} with {:.1} % of the operations",
            escape(&key),
            hottest.share * 100.0
        );
    }
    if !report.limited_by.is_empty() {
        let _ = write!(section, "<br>Limited by: {}", escape(&report.limited_by));
    }
    section.push_str("</p>");
    section.push_str(&commands(report));
    section.push_str(&ramp(report));
    // Each further nine of the quantile is one step to the right.
    let quantiles = report
        .quantiles
        .iter()
        .filter(|(quantile, _)| *quantile < 1.0);
    let points: Vec<(f64, f64)> = quantiles
        .map(|(quantile, micros)| (-(1.0 - quantile).log10(), micros.max(0.1).log10()))
        .collect();
    section.push_str(&line(
        "latency in µs by quantile: 0, 90 %, 99 %, 99.9 %, 99.99 %",
        &points,
        |y| format!("{:.0}", 10f64.powf(y)),
    ));
    let slices = report.slices.iter().enumerate();
    let points: Vec<(f64, f64)> = slices.map(|(index, rate)| (index as f64, *rate)).collect();
    section.push_str(&line("operations per second over the run", &points, |y| {
        format!("{y:.0}")
    }));
    section
}

/// What the server spent on each command.
fn commands(report: &Report) -> String {
    if report.commands.is_empty() {
        return String::new();
    }
    let mut table = "<table><tr><th>command<th>per operation<th>µs each".to_owned();
    for cost in &report.commands {
        let _ = write!(
            table,
            "<tr><td>{}<td>{:.2}<td>{:.2}",
            escape(&cost.command),
            cost.calls_per_op,
            cost.us_per_call
        );
    }
    table.push_str("</table>");
    table
}

/// The steps of a ramp, with its knee.
fn ramp(report: &Report) -> String {
    if report.ramp.is_empty() {
        return String::new();
    }
    let mut table = "<table><tr><th>load<th>op/s<th>p99 µs<th>".to_owned();
    for step in &report.ramp {
        let at_knee = report
            .knee
            .as_ref()
            .is_some_and(|knee| knee.load == step.load);
        let _ = write!(
            table,
            "<tr><td>{:.0}<td>{:.0}<td>{:.0}<td>{}",
            step.load,
            step.ops_per_second,
            step.p99_us,
            if at_knee { "knee" } else { "" }
        );
    }
    table.push_str("</table>");
    let steps = report.ramp.iter();
    let points: Vec<(f64, f64)> = steps
        .map(|step| (step.load.log2(), step.ops_per_second))
        .collect();
    table
        + &line("operations per second by load", &points, |y| {
            format!("{y:.0}")
        })
}

/// A line chart with the lowest and the highest value as its labels.
fn line(title: &str, points: &[(f64, f64)], label: impl Fn(f64) -> String) -> String {
    if points.len() < 2 {
        return String::new();
    }
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    };
    let (left, right) = range(&mut points.iter().map(|point| point.0));
    let (low, high) = range(&mut points.iter().map(|point| point.1));
    let x = |value: f64| 80.0 + 700.0 * (value - left) / (right - left).max(1e-9);
    let y = |value: f64| 120.0 - 100.0 * (value - low) / (high - low).max(1e-9);
    let path: Vec<String> = points
        .iter()
        .map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py)))
        .collect();
    format!(
        "<svg viewBox=\"0 0 800 150\" role=\"img\" aria-label=\"{0}\"><text x=\"80\" y=\"145\">{0}</text>\
         <text x=\"70\" y=\"24\" text-anchor=\"end\">{1}</text><text x=\"70\" y=\"124\" text-anchor=\"end\">{2}</text>\
         <polyline points=\"{3}\" fill=\"none\" stroke=\"#3a7d5c\" stroke-width=\"2\"/></svg>",
        escape(title),
        label(high),
        label(low),
        path.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CommandCost, Hottest, RampStep};

    #[test]
    fn a_page_has_every_pattern_and_escapes_what_it_shows() {
        let report = Report {
            pattern: "mutex".to_owned(),
            invariant: "a < b".to_owned(),
            broken: Some("2 > 1 & more".to_owned()),
            ops_per_second: 1234.0,
            quantiles: vec![(0.0, 1.0), (0.5, 10.0), (0.99, 100.0), (1.0, 1000.0)],
            slices: vec![1.0, 2.0, 3.0],
            commands: vec![CommandCost {
                command: "evalsha".to_owned(),
                calls_per_op: 2.5,
                us_per_call: 7.25,
            }],
            hottest: Some(Hottest {
                entity: 3,
                share: 0.25,
                key: Some("mutex:{e<3>}".to_owned()),
                slot: Some(77),
            }),
            against: Some(Box::new(Report {
                server: "valkey 9".to_owned(),
                ops_per_second: 4321.0,
                ..Report::default()
            })),
            ..Report::default()
        };
        let step = |load, rate| RampStep {
            load,
            ops_per_second: rate,
            p99_us: 12.0,
        };
        let ramped = Report {
            ramp: vec![step(1.0, 100.0), step(2.0, 150.0)],
            knee: Some(step(2.0, 150.0)),
            ..Report::default()
        };
        let page = html("a & b", &[ramped]);
        assert!(
            page.contains("<td>150<td>12<td>knee") && page.contains("by load"),
            "{page}"
        );
        let page = html("a & b", &[report]);
        assert!(page.contains("on valkey 9<td>4321"), "{page}");
        assert!(page.contains("<td>evalsha<td>2.50<td>7.25"), "{page}");
        assert!(
            page.contains("mutex:{e&lt;3&gt;} in slot 77 with 25.0 %"),
            "{page}"
        );
        assert!(page.contains("a &lt; b") && page.contains("2 &gt; 1 &amp; more"));
        assert!(page.contains("1234") && page.matches("<svg").count() == 3);
        assert!(!page.contains("<script"));
    }
}
