//! SARIF 2.1.0.

use serde_json::{Value, json};

use super::Report;
use crate::{
    finding::{SURE, Severity},
    rules::{RULES, rule},
};

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::High => "error",
        Severity::Medium => "warning",
        Severity::Low => "note",
    }
}

pub(super) fn render(report: &Report) -> String {
    let rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            json!({
                "id": rule.id,
                "shortDescription": { "text": rule.title },
                "fullDescription": { "text": rule.about },
                "help": { "text": rule.fix },
                "defaultConfiguration": { "level": level(rule.severity) },
            })
        })
        .collect();
    let results: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            let index = RULES.iter().position(|rule| rule.id == finding.rule);
            json!({
                "ruleId": finding.rule,
                "ruleIndex": index,
                "level": if finding.confidence >= SURE { level(finding.severity) } else { "note" },
                "rank": finding.confidence * 100.0,
                "message": { "text": format!("{}: {}. {}", rule(&finding.rule).map_or("", |rule| rule.title), finding.evidence, finding.fix) },
                "locations": [{
                    "logicalLocations": [{ "fullyQualifiedName": finding.subject, "kind": "resource" }],
                }],
                "partialFingerprints": { "ruleAndSubject/v1": format!("{}:{}", finding.rule, finding.subject) },
            })
        })
        .collect();
    let missing = report
        .stages
        .iter()
        .filter(|stage| stage.asked && !stage.ran)
        .map(|stage| format!("stage {} {}", stage.stage.name(), stage.note));
    let blinds = report
        .blinds
        .iter()
        .map(|blind| format!("not seen: {}: {}", blind.what, blind.why));
    let notifications: Vec<Value> = missing
        .chain(blinds)
        .map(|text| json!({ "level": "warning", "message": { "text": text } }))
        .collect();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "redstart doctor",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "results": results,
            "invocations": [{
                "executionSuccessful": report.is_complete(),
                "toolExecutionNotifications": notifications,
            }],
        }],
    });
    // Values made by `json!` can always be written.
    serde_json::to_string_pretty(&log).unwrap_or_default()
}
