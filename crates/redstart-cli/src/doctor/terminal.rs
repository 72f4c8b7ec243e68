//! A report at a terminal.

use std::path::Path;

use anstyle::{AnsiColor, Style};
use redstart_doctor::{Comparison, Finding, Report, SURE, Severity, rule};

pub(super) fn colour(severity: Severity) -> Style {
    let colour = match severity {
        Severity::High => AnsiColor::Red,
        Severity::Medium => AnsiColor::Yellow,
        Severity::Low => AnsiColor::Blue,
    };
    colour.on_default().bold()
}

/// A report for people.
pub(super) fn terminal(report: &Report, comparison: Option<&Comparison>, html: Option<&Path>) {
    let bold = Style::new().bold();
    let width = usize::from(crate::guide::width());
    target(report);
    for finding in report.sure() {
        show(finding, width);
    }
    less_sure(report, width);
    accepted(report, comparison);
    looked_at(report, width);
    let counts = report
        .counts()
        .map(|(severity, count)| format!("{count} {severity}"))
        .join(", ");
    say!("\n{bold}{counts}{bold:#}. `redstart doctor explain RULE` teaches a rule.");
    if report.interrupted {
        say!("Ended early; this is what was known by then.");
    }
    if let Some(path) = html {
        say!("The report with charts is in {}.", path.display());
    }
}

/// What was examined.
fn target(report: &Report) {
    let (bold, faint) = (Style::new().bold(), Style::new().dimmed());
    say!("{bold}{}{bold:#}", report.target);
    for server in &report.servers {
        say!(
            "  {faint}{} {} {}{faint:#}",
            server.address,
            server.role,
            server.version
        );
    }
    if !report.libraries.is_empty() {
        say!(
            "  {faint}libraries: {}{faint:#}",
            report.libraries.join(", ")
        );
    }
    say!();
}

/// Findings that may be none, on a line each.
fn less_sure(report: &Report, width: usize) {
    let (bold, faint) = (Style::new().bold(), Style::new().dimmed());
    let unsure: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|finding| finding.confidence < SURE)
        .collect();
    if unsure.is_empty() {
        return;
    }
    say!("{bold}Less sure{bold:#}");
    for finding in unsure {
        let text = format!(
            "{} {:.2} {} — {}",
            finding.rule, finding.confidence, finding.subject, finding.evidence
        );
        for line in hanging(&text, width - 4, "", "  ") {
            say!("  {faint}{line}{faint:#}");
        }
    }
    say!();
}

/// What is not new: findings that somebody accepted, and those of an earlier report.
fn accepted(report: &Report, comparison: Option<&Comparison>) {
    let faint = Style::new().dimmed();
    for (finding, reason) in &report.suppressed {
        say!(
            "{faint}suppressed: {} {} ({reason}){faint:#}",
            finding.rule,
            finding.subject
        );
    }
    let Some(comparison) = comparison else {
        return;
    };
    say!(
        "Since the baseline: {} new, {} known, {} gone",
        comparison.new,
        comparison.known,
        comparison.gone.len()
    );
    for finding in &comparison.gone {
        say!(
            "  {faint}gone: {} {}{faint:#}",
            finding.rule,
            finding.subject
        );
    }
}

/// The stages, what none of them saw, and what they cost.
fn looked_at(report: &Report, width: usize) {
    let (bold, faint) = (Style::new().bold(), Style::new().dimmed());
    say!("{bold}What was looked at{bold:#}");
    for stage in &report.stages {
        let mark = if stage.ran { "✓ " } else { "· " };
        let cost = stage
            .cost()
            .map_or(String::new(), |cost| format!(" ({cost})"));
        let text = format!("{:<9} {}{cost}", stage.stage.name(), stage.note);
        for line in hanging(&text, width - 4, mark, "            ") {
            say!("  {line}");
        }
    }
    for blind in &report.blinds {
        let text = format!("not seen: {}: {}", blind.what, blind.why);
        for line in hanging(&text, width - 6, "  ", "    ") {
            say!("  {faint}{line}{faint:#}");
        }
    }
    let cost = &report.cost;
    say!(
        "  {faint}cost: {} commands, {} bytes read, longest round trip {:.1} ms{}, {:.1} s{faint:#}",
        cost.commands,
        cost.bytes_read,
        cost.slowest.as_secs_f64() * 1000.0,
        if cost.slowest_command.is_empty() {
            String::new()
        } else {
            format!(" ({})", cost.slowest_command)
        },
        report.took.as_secs_f64()
    );
}

fn show(finding: &Finding, width: usize) {
    let (bold, faint) = (Style::new().bold(), Style::new().dimmed());
    let style = colour(finding.severity);
    let title = rule(&finding.rule).map_or("", |rule| rule.title);
    say!(
        "{style}{:<6}{style:#} {bold}{title}{bold:#} {faint}{} {:.2}{faint:#}",
        finding.severity.name(),
        finding.rule,
        finding.confidence
    );
    for (name, text) in [
        ("where", &finding.subject),
        ("seen", &finding.evidence),
        ("effect", &finding.effect),
        ("fix", &finding.fix),
        ("use", &finding.pattern),
    ] {
        for (i, line) in wrap(text, width.saturating_sub(16)).iter().enumerate() {
            say!(
                "       {faint}{:<7}{faint:#} {line}",
                if i == 0 { name } else { "" }
            );
        }
    }
    say!();
}

/// The lines of a text, with what stands before the first and before the others.
fn hanging(text: &str, width: usize, first: &str, others: &str) -> impl Iterator<Item = String> {
    let lines = wrap(text, width).into_iter().enumerate();
    lines.map(move |(i, line)| format!("{}{line}", if i == 0 { first } else { others }))
}

/// Breaks a text at spaces; a word that is too long is broken where the line ends.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(20);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut rest: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("there is always a line");
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + rest.len() <= width {
                if gap > 0 {
                    line.push(' ');
                }
                line.extend(&rest);
                break;
            }
            if used > 0 {
                lines.push(String::new());
                continue;
            }
            line.extend(rest.drain(..width));
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let long = "a".repeat(300);
        for line in wrap(&format!("some words and {long} and more"), 40) {
            assert!(line.chars().count() <= 40, "{line}");
        }
    }
}
