//! One HTML file with SVG charts. No script, and nothing is loaded from outside.

use std::fmt::Write as _;

use super::Report;
use crate::{
    finding::{Finding, SURE, Severity},
    rules::rule,
    text,
};

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Colours with a contrast of at least 4.5 on their background, in the light and in the dark theme.
const STYLE: &str = "
:root{--page:#fbfaf8;--card:#fff;--text:#1f1d1a;--faint:#5c5750;--line:#ddd8d0;--high:#a3210f;--medium:#8a5200;--low:#2b5d86;--bar:#b5432f;--ok:#2d6a4f}
@media(prefers-color-scheme:dark){:root{--page:#181715;--card:#211f1d;--text:#efebe4;--faint:#b5aea4;--line:#3b3733;--high:#ff9c8a;--medium:#f2b866;--low:#93c4ec;--bar:#e07a63;--ok:#7fd1a6}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:1.25rem 1rem 3rem}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2rem 0 .75rem}
h3{font-size:1rem;margin:0;overflow-wrap:anywhere}
p{margin:.4rem 0}
.faint{color:var(--faint)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:.75rem;margin:1rem 0;padding:0;list-style:none}
.tiles li{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.75rem 1rem}
.tiles b{display:block;font-size:1.6rem;line-height:1.2}
.high{color:var(--high)}.medium{color:var(--medium)}.low{color:var(--low)}.ok{color:var(--ok)}
article{background:var(--card);border:1px solid var(--line);border-left:5px solid currentColor;border-radius:8px;padding:.8rem 1rem;margin:.75rem 0}
article>*{color:var(--text)}
article .tag{font-weight:600}
article .tag.high{color:var(--high)}article .tag.medium{color:var(--medium)}article .tag.low{color:var(--low)}
dl{display:grid;grid-template-columns:6.5rem 1fr;gap:.25rem .75rem;margin:.6rem 0 0}
dt{color:var(--faint)}
dd{margin:0;overflow-wrap:anywhere}
code{font:.9em ui-monospace,monospace;overflow-wrap:anywhere}
details{margin:.5rem 0 0}
summary{cursor:pointer}
ol{margin:.4rem 0;padding-left:1.4rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:1rem}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem 1rem}
figcaption{font-weight:600;margin-bottom:.5rem}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--text);font:13px system-ui,sans-serif}
svg .bar{fill:var(--bar)}svg .rest{fill:var(--line)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;background:var(--card)}
th,td{text-align:left;padding:.4rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td:last-child{overflow-wrap:anywhere}
@media(max-width:560px){dl{grid-template-columns:1fr}dt{margin-top:.35rem}body{font-size:15px}}
";

pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(report, &mut out);
    out
}

fn write(report: &Report, out: &mut String) -> std::fmt::Result {
    let target = escape(&report.target);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>Redstart doctor: {target}</title><style>{STYLE}</style></head><body><main>\
         <h1>Redstart doctor: {target}</h1>"
    )?;
    let servers: Vec<String> = report
        .servers
        .iter()
        .take(12)
        .map(|server| {
            escape(&format!(
                "{} ({}, {})",
                server.address, server.role, server.version
            ))
        })
        .collect();
    if !servers.is_empty() {
        writeln!(out, "<p class=\"faint\">{}</p>", servers.join(" · "))?;
    }
    if report.interrupted {
        writeln!(
            out,
            "<p><strong>Ended early.</strong> This is what was known by then.</p>"
        )?;
    }
    out.push_str("<ul class=\"tiles\">");
    for (severity, count) in report.counts() {
        write!(
            out,
            "<li><b class=\"{severity}\">{count}</b> {severity}</li>"
        )?;
    }
    let cost = &report.cost;
    write!(
        out,
        "<li><b>{}</b> commands asked</li><li><b>{:.1} ms</b> longest round trip</li><li><b>{}</b> read</li></ul>",
        text::count(cost.commands),
        cost.slowest.as_secs_f64() * 1000.0,
        text::bytes(cost.bytes_read)
    )?;
    findings(report, out)?;
    charts(report, out)?;
    looked_at(report, out)?;
    out.push_str("</main></body></html>\n");
    Ok(())
}

fn findings(report: &Report, out: &mut String) -> std::fmt::Result {
    out.push_str("<h2>Findings</h2>");
    if report.sure().next().is_none() {
        out.push_str("<p class=\"ok\">Nothing was found that is sure enough to report.</p>");
    }
    for finding in report.sure() {
        article(finding, out)?;
    }
    let unsure: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|finding| finding.confidence < SURE)
        .collect();
    if !unsure.is_empty() {
        write!(
            out,
            "<h2>Less sure</h2><details><summary>{} possible findings</summary>",
            unsure.len()
        )?;
        for finding in unsure {
            article(finding, out)?;
        }
        out.push_str("</details>");
    }
    if !report.suppressed.is_empty() {
        out.push_str("<h2>Suppressed</h2><ul>");
        for (finding, reason) in &report.suppressed {
            write!(
                out,
                "<li>{}: <code>{}</code> — {}</li>",
                finding.rule,
                escape(&finding.subject),
                escape(reason)
            )?;
        }
        out.push_str("</ul>");
    }
    Ok(())
}

fn article(finding: &Finding, out: &mut String) -> std::fmt::Result {
    let severity = finding.severity;
    let title = rule(&finding.rule).map_or("", |rule| rule.title);
    write!(
        out,
        "<article class=\"{severity}\"><h3>{} — <code>{}</code></h3><p><span class=\"tag {severity}\">{severity}</span> \
         <span class=\"faint\">confidence {:.2} · {}</span></p><dl>",
        escape(title),
        escape(&finding.subject),
        finding.confidence,
        escape(&finding.rule)
    )?;
    for (name, value) in [
        ("Evidence", &finding.evidence),
        ("Effect", &finding.effect),
        ("Fix", &finding.fix),
        ("Pattern", &finding.pattern),
    ] {
        write!(out, "<dt>{name}</dt><dd>{}</dd>", escape(value))?;
    }
    out.push_str("</dl>");
    if let Some(rule) = rule(&finding.rule) {
        out.push_str("<details><summary>How it happens</summary><ol>");
        for event in rule.timeline {
            write!(out, "<li>{}</li>", escape(event))?;
        }
        out.push_str("</ol></details>");
    }
    out.push_str("</article>");
    Ok(())
}

fn charts(report: &Report, out: &mut String) -> std::fmt::Result {
    let bars: Vec<(String, f64, String)> = [Severity::High, Severity::Medium, Severity::Low]
        .iter()
        .map(|severity| {
            let count = report
                .findings
                .iter()
                .filter(|finding| finding.severity == *severity)
                .count();
            (severity.name().to_owned(), count as f64, count.to_string())
        })
        .collect();
    out.push_str("<h2>Charts</h2><div class=\"charts\">");
    chart("Findings by severity, sure and less sure", &bars, out)?;
    let largest = report.patterns.iter().take(12);
    let seen: Vec<(String, f64, String)> = largest
        .clone()
        .map(|summary| {
            (
                summary.pattern.clone(),
                summary.seen as f64,
                text::count(summary.seen),
            )
        })
        .collect();
    let ttl: Vec<(String, f64, String)> = largest
        .map(|summary| {
            (
                summary.pattern.clone(),
                summary.without_ttl,
                text::percent(summary.without_ttl),
            )
        })
        .collect();
    if !seen.is_empty() {
        chart("Keys per pattern, of those seen", &seen, out)?;
        chart("Share of keys without TTL", &ttl, out)?;
    }
    out.push_str("</div>");
    Ok(())
}

/// Horizontal bars with their names above them, so that long names fit a narrow screen.
fn chart(title: &str, bars: &[(String, f64, String)], out: &mut String) -> std::fmt::Result {
    let most = bars.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
    let height = bars.len() * 36 + 4;
    let words: Vec<String> = bars
        .iter()
        .map(|(name, _, label)| format!("{name}: {label}"))
        .collect();
    write!(
        out,
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 400 {height}\" role=\"img\" aria-label=\"{}\">",
        escape(title),
        escape(&words.join("; "))
    )?;
    for (i, (name, value, label)) in bars.iter().enumerate() {
        let y = i * 36;
        let width = if most > 0.0 {
            (value / most * 400.0).max(1.0)
        } else {
            1.0
        };
        let short: String = if name.chars().count() > 38 {
            name.chars().take(37).chain(['…']).collect()
        } else {
            name.clone()
        };
        write!(
            out,
            "<text x=\"0\" y=\"{}\">{}</text><text x=\"400\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect class=\"rest\" x=\"0\" y=\"{}\" width=\"400\" height=\"10\" rx=\"3\"/><rect class=\"bar\" x=\"0\" y=\"{}\" width=\"{width:.1}\" height=\"10\" rx=\"3\"/>",
            y + 14,
            escape(&short),
            y + 14,
            escape(label),
            y + 20,
            y + 20
        )?;
    }
    out.push_str("</svg></figure>");
    Ok(())
}

fn looked_at(report: &Report, out: &mut String) -> std::fmt::Result {
    out.push_str("<h2>What was looked at</h2><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Stages\"><table><thead><tr><th scope=\"col\">Stage</th><th scope=\"col\">Ran</th><th scope=\"col\">What it sees</th></tr></thead><tbody>");
    for stage in &report.stages {
        write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
            stage.stage.name(),
            if stage.ran { "yes" } else { "no" },
            escape(&stage.account())
        )?;
    }
    out.push_str("</tbody></table></div>");
    if !report.libraries.is_empty() {
        write!(
            out,
            "<p>Libraries recognised: {}.</p>",
            escape(&report.libraries.join(", "))
        )?;
    }
    if !report.blinds.is_empty() {
        out.push_str("<h2>What could not be seen</h2><ul>");
        for blind in &report.blinds {
            write!(
                out,
                "<li>{}: {}</li>",
                escape(&blind.what),
                escape(&blind.why)
            )?;
        }
        out.push_str("</ul>");
    }
    Ok(())
}
