//! The rules: all of them as a list, and one explained.

use anstyle::Style;
use redstart_doctor::{RULES, rule};

use super::terminal::{colour, wrap};
use crate::Failure;

pub(super) fn list(json: bool) {
    if json {
        for rule in RULES {
            say!(
                "{}",
                serde_json::json!({
                    "rule": rule.id, "title": rule.title, "family": rule.family, "stage": rule.stage,
                    "severity": rule.severity, "pattern": rule.pattern,
                })
            );
        }
        return;
    }
    let mut table = crate::guide::table(&["rule", "severity", "stage", "finds"]);
    for rule in RULES {
        table.add_row([rule.id, rule.severity.name(), rule.stage.name(), rule.title]);
    }
    say!("{table}\n\n`redstart doctor explain RULE` teaches one.");
}

pub(super) fn explain(id: &str) -> Result<(), Failure> {
    let Some(rule) = rule(id) else {
        return Err(Failure::Usage(format!(
            "there is no rule {id:?}; `redstart doctor rules` lists them"
        )));
    };
    let (bold, faint) = (Style::new().bold(), Style::new().dimmed());
    let width = usize::from(crate::guide::width());
    let style = colour(rule.severity);
    say!(
        "{bold}{}{bold:#} {faint}{} · {} · seen by the {} stage{faint:#}  {style}{}{style:#}\n",
        rule.title,
        rule.id,
        rule.family,
        rule.stage.name(),
        rule.severity
    );
    for line in wrap(rule.about, width - 2) {
        say!("{line}");
    }
    say!("\n{bold}How it happens{bold:#}");
    for (i, event) in rule.timeline.iter().enumerate() {
        for (j, line) in wrap(event, width - 8).iter().enumerate() {
            match j {
                0 => say!("  {}. {line}", i + 1),
                _ => say!("     {line}"),
            }
        }
    }
    for (name, text) in [
        ("Effect", rule.effect),
        ("Fix", rule.fix),
        ("Pattern", rule.pattern),
    ] {
        say!("\n{bold}{name}{bold:#}");
        for line in wrap(text, width - 4) {
            say!("  {line}");
        }
    }
    Ok(())
}
