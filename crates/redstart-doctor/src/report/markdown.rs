//! Markdown.

use std::fmt::Write as _;

use super::Report;
use crate::text;

/// Text that cannot start a link, a table cell, code or HTML.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '[' | ']' | '<' | '>' | '`' | '*' | '_' | '#' | '!' => {
                out.push('\\');
                out.push(c);
            }
            '\n' | '\r' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(report, &mut out);
    out
}

fn write(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out, "# Redstart doctor: {}\n", plain(&report.target))?;
    let counts = report
        .counts()
        .map(|(severity, count)| format!("{count} {severity}"));
    writeln!(out, "Findings: {}.\n", counts.join(", "))?;
    if report.interrupted {
        writeln!(
            out,
            "The examination was ended early; this is what was known by then.\n"
        )?;
    }
    if !report.findings.is_empty() {
        writeln!(
            out,
            "| severity | confidence | rule | subject | evidence |\n|---|---|---|---|---|"
        )?;
        for finding in &report.findings {
            writeln!(
                out,
                "| {} | {:.2} | {} | {} | {} |",
                finding.severity,
                finding.confidence,
                finding.rule,
                plain(&finding.subject),
                plain(&finding.evidence)
            )?;
        }
        writeln!(out)?;
    }
    for finding in report.sure() {
        writeln!(out, "## {}: {}\n", finding.rule, plain(&finding.subject))?;
        writeln!(out, "- **Evidence**: {}", plain(&finding.evidence))?;
        writeln!(out, "- **Effect**: {}", plain(&finding.effect))?;
        writeln!(out, "- **Fix**: {}", plain(&finding.fix))?;
        writeln!(out, "- **Pattern**: {}\n", plain(&finding.pattern))?;
    }
    writeln!(
        out,
        "## What was looked at\n\n| stage | ran | |\n|---|---|---|"
    )?;
    for stage in &report.stages {
        writeln!(
            out,
            "| {} | {} | {} |",
            stage.stage.name(),
            if stage.ran { "yes" } else { "no" },
            plain(&stage.account())
        )?;
    }
    if !report.blinds.is_empty() {
        writeln!(out, "\n## What could not be seen\n")?;
        for blind in &report.blinds {
            writeln!(out, "- {}: {}", plain(&blind.what), plain(&blind.why))?;
        }
    }
    let cost = &report.cost;
    writeln!(
        out,
        "\nCost: {} commands, {} read, the longest round trip {:.1} ms ({}), {:.1} s altogether.",
        text::count(cost.commands),
        text::bytes(cost.bytes_read),
        cost.slowest.as_secs_f64() * 1000.0,
        cost.slowest_command,
        report.took.as_secs_f64()
    )
}
