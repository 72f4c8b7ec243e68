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
    for report in reports {
        let number =
            |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1}"));
        let (class, word) = match (report.held, &report.broken) {
            (true, _) => ("held", "held"),
            (false, Some(_)) => ("broken", "broken"),
            (false, None) => ("broken", "not checked"),
        };
        let _ = write!(
            table,
            "<tr><td>{}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{}<td>{}<td>{}<td class=\"{class}\">{word}",
            escape(&report.pattern),
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
    section.push_str("</p>");
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

    #[test]
    fn a_page_has_every_pattern_and_escapes_what_it_shows() {
        let report = Report {
            pattern: "mutex".to_owned(),
            invariant: "a < b".to_owned(),
            broken: Some("2 > 1 & more".to_owned()),
            ops_per_second: 1234.0,
            quantiles: vec![(0.0, 1.0), (0.5, 10.0), (0.99, 100.0), (1.0, 1000.0)],
            slices: vec![1.0, 2.0, 3.0],
            ..Report::default()
        };
        let page = html("a & b", &[report]);
        assert!(page.contains("a &lt; b") && page.contains("2 &gt; 1 &amp; more"));
        assert!(page.contains("1234") && page.matches("<svg").count() == 3);
        assert!(!page.contains("<script"));
    }
}
