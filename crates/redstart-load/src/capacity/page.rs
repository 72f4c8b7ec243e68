//! The page "Scale" of the documentation, made from what was measured.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{
    character::character,
    cost::{CostTable, PatternCost, ServerCosts},
    fill::NOT_WEIGHED,
    simulate,
};
use crate::{
    Report,
    error::{Error, Result},
};

/// What people quote, and what was measured: kind, value of its parameter, what is quoted, in bytes.
const QUOTED: &[(&str, f64, &str, f64)] = &[
    (
        "unique_visitors",
        50_000.0,
        "12 KB for a HyperLogLog, whatever it counts",
        12_288.0,
    ),
    (
        "unique_visitors",
        100.0,
        "12 KB for a HyperLogLog of 100 visitors",
        12_288.0,
    ),
    (
        "check_ins",
        31.0,
        "4 bytes per user and month of check-ins",
        4.0,
    ),
    (
        "bloom",
        1_000_000.0,
        "1.2 MB per million Bloom elements at 1 %",
        1_200_000.0,
    ),
    (
        "activity",
        1_000_000.0,
        "125 KB per day for a million users in a bitmap",
        125_000.0,
    ),
];

/// What the forms that people write by hand did when this version was measured, by `redstart bench --naive --json`.
///
/// # Errors
///
/// Never in a release; a test reads it.
pub fn naive_reports() -> Result<Vec<Report>> {
    let lines = include_str!("../../data/naive.jsonl").lines();
    let report = |line| {
        serde_json::from_str(line).map_err(|error| Error::config(format!("naive.jsonl: {error}")))
    };
    lines.map(report).collect()
}

/// The page. `naive` are reports of the forms that people write by hand.
///
/// # Errors
///
/// If the table lacks a server.
pub fn page(table: &CostTable, naive: &[Report]) -> Result<String> {
    let mut page = String::from(
        "# Scale\n\nWhat the patterns cost, measured, and what follows for the size of a deployment. `redstart capacity` \
         plans with these figures; `redstart bench` measures them on your own server.\n\n\
         This page is made by `redstart capacity --page docs/scale.md` from `crates/redstart-load/data`, which \
         `redstart capacity --measure` and `redstart bench --naive --json` write. No figure is typed in.\n\n",
    );
    for costs in &table.servers {
        let load = costs
            .load
            .map_or(String::new(), |load| format!(", load average {load:.1}"));
        let _ = writeln!(
            page,
            "- {}: measured on {} with redstart {}, built {} ({}{load})",
            costs.server, costs.measured, costs.redstart, costs.build, costs.machine
        );
    }
    page.push_str(
        "\nCPU figures are those of the measured machine, with the mix of reads and writes of each workload and one key in \
         a thousand; memory hardly depends on the machine. CPU of the embedded engine includes its caller; \
         built without optimisation it is several times that of a release.\n",
    );
    quoted(&mut page, table)?;
    entities(&mut page, table);
    operations(&mut page, table);
    by_hand(&mut page, naive);
    balance(&mut page);
    Ok(page)
}

fn bytes(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} MB", value / 1e6),
        value if value >= 10_000.0 => format!("{:.1} KB", value / 1e3),
        value if value >= 100.0 => format!("{value:.0} B"),
        value => format!("{value:.1} B"),
    }
}

fn quoted(page: &mut String, table: &CostTable) -> Result<()> {
    let (redis, valkey) = (table.server("redis")?, table.server("valkey")?);
    page.push_str(
        "\n## Memory against what people quote\n\nQuoted figures are those of the data alone. A key has a name, an \
         entry in the table of keys, and often a TTL: for small entities these are most of it.\n\n\
         | quoted | Redis | Valkey | Redis / quoted |\n|---|---|---|---|\n",
    );
    for (kind, at, text, figure) in QUOTED {
        let of = |costs: &ServerCosts| costs.entity(kind).map_or(0.0, |cost| cost.bytes(*at));
        let _ = writeln!(
            page,
            "| {text} | {} | {} | {:.1} |",
            bytes(of(redis)),
            bytes(of(valkey)),
            of(redis) / figure
        );
    }
    Ok(())
}

fn entities(page: &mut String, table: &CostTable) {
    page.push_str(
        "\n## Memory per entity\n\nNames of keys are part of it: here a namespace has 22 characters and an entity 13. In small \
         entities a longer name is noticeable.\n\n| pattern | entity | at |",
    );
    for costs in &table.servers {
        let _ = write!(page, " {} |", costs.server);
    }
    page.push_str("\n|---|---|---|");
    page.push_str(&"---|".repeat(table.servers.len()));
    page.push('\n');
    let Some(first) = table.servers.first() else {
        return;
    };
    for cost in &first.entities {
        for point in &cost.points {
            let at = match &cost.parameter {
                Some(parameter) => format!("{:.0} {parameter}", point.at),
                None => String::new(),
            };
            let _ = write!(page, "| `{}` | {} | {at} |", cost.kind, cost.entity);
            for costs in &table.servers {
                let value = costs
                    .entity(&cost.kind)
                    .map_or(0.0, |cost| cost.bytes(point.at));
                let _ = write!(page, " {} |", bytes(value));
            }
            page.push('\n');
        }
    }
    page.push_str("\nNot in the table:\n\n");
    for (pattern, why) in NOT_WEIGHED {
        let _ = writeln!(page, "- `{pattern}`: {why}.");
    }
}

fn operations(page: &mut String, table: &CostTable) {
    page.push_str(
        "\n## Cost per operation, and what limits it\n\nRound trips, network and messages are those on Redis. A message \
         goes to every process that listens. Connections are those beyond the shared ones, of which each process has a few. \
         Of `redlock` it is the cost of each of its five servers; on the embedded engine, of all five.\n\n\
         | pattern |",
    );
    for costs in &table.servers {
        let _ = write!(page, " {} µs |", costs.server);
    }
    page.push_str(
        " round trips | network | messages | connections | hottest key | spread | limited by |\n|---|",
    );
    page.push_str(&"---|".repeat(table.servers.len()));
    page.push_str("---|---|---|---|---|---|---|\n");
    for pattern in crate::all() {
        let _ = write!(page, "| `{}` |", pattern.name());
        for costs in &table.servers {
            let cost = costs.pattern(pattern.name());
            let _ = write!(
                page,
                " {:.1} |",
                cost.map_or(0.0, |cost| cost.server_us_per_op)
            );
        }
        let measured = table
            .server("redis")
            .ok()
            .and_then(|costs| costs.pattern(pattern.name()));
        let of = |value: fn(&PatternCost) -> Option<f64>| measured.and_then(value).unwrap_or(0.0);
        let known = character(pattern.name());
        let _ = writeln!(
            page,
            " {:.1} | {} | {:.1} | {} | {} | {} | {} |",
            of(|cost| cost.round_trips_per_op),
            bytes(of(|cost| cost.network_bytes_per_op)),
            of(|cost| cost.messages_per_op),
            known.map_or("", |known| known.connections),
            known.map_or("", |known| known.hottest),
            known.map_or("", |known| known.spreading.text()),
            known.map_or("", |known| known.limit),
        );
    }
}

fn by_hand(page: &mut String, naive: &[Report]) {
    if naive.is_empty() {
        return;
    }
    page.push_str(
        "\n## What people write by hand, under the same load\n\n| pattern | keys | by hand | what went wrong | ours |\n|---|---|---|---|---|\n",
    );
    for report in naive {
        if let Some(form) = &report.naive {
            let ours = match report.held {
                true => "held",
                false => "broken",
            };
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {ours} |",
                report.pattern, report.keys, form.form, form.harm
            );
        }
    }
    if let Some(report) = naive.first() {
        let _ = writeln!(
            page,
            "\nOn {}, {} clients, {:.1} s each; {}.",
            report.server,
            report.clients,
            report.seconds,
            measured(naive)
        );
    }
}

/// The days and the builds of reports.
fn measured(reports: &[Report]) -> String {
    let all = |of: fn(&Report) -> &str| {
        let found: BTreeSet<&str> = reports.iter().map(of).collect();
        Vec::from_iter(found).join(", ")
    };
    if reports.iter().any(|report| report.measured.is_empty()) {
        return "the day and the build were not recorded".to_owned();
    }
    format!(
        "measured on {}, built {}",
        all(|report| &report.measured),
        all(|report| &report.build)
    )
}

fn balance(page: &mut String) {
    page.push_str(
        "\n## A billion users on a thousand nodes\n\nSimulated by `redstart_load::capacity::simulate`: memory by the \
         spread of the hash, traffic by Zipf's law with the busiest users hashed one by one. Memory is even. Traffic is \
         not: the busiest user stays on one node, however many there are.\n\n\
         | exponent | fullest node | busiest node | busiest slot | busiest user's share | of its node |\n|---|---|---|---|---|---|\n",
    );
    for exponent in [0.0, 0.5, 0.8, 1.0, 1.2] {
        let balance = simulate(1_000_000_000, 1000, exponent, 1);
        let _ = writeln!(
            page,
            "| {exponent} | {:.2}× | {:.2}× | {:.2}× | {:.4} % | {:.1} % |",
            balance.memory,
            balance.traffic,
            balance.slot_traffic,
            balance.hottest_user * 100.0,
            balance.of_its_node * 100.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_brings_its_day_and_its_build() {
        let report = |measured: &str, build: &str| Report {
            measured: measured.to_owned(),
            build: build.to_owned(),
            ..Report::default()
        };
        let same = [
            report("2027-01-01", "optimised"),
            report("2027-01-01", "optimised"),
        ];
        assert_eq!(measured(&same), "measured on 2027-01-01, built optimised");
        let old = [report("2027-01-01", "optimised"), report("", "")];
        assert_eq!(measured(&old), "the day and the build were not recorded");
    }

    #[test]
    fn the_page_of_the_documentation_is_the_one_that_the_command_writes() {
        let page = page(&CostTable::built_in().unwrap(), &naive_reports().unwrap()).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scale.md");
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(
            page, written,
            "run `redstart capacity --page docs/scale.md`"
        );
        for pattern in crate::all() {
            let row = format!("| `{}` |", pattern.name());
            assert!(page.contains(&row), "{row}");
        }
    }
}
