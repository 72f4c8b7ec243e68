//! Everything about one pattern.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use redstart_load::Report;

use super::figure::{micros, thousands};

/// Everything about one pattern.
pub(super) fn details(report: &Report) {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    let width = table.width().unwrap_or(100);
    table.set_width(width.clamp(40, 120));
    for (name, value) in outcome(report)
        .into_iter()
        .chain(cost(report))
        .chain(load(report))
    {
        table.add_row([name, value]);
    }
    say!("\n{table}");
}

type Rows = Vec<(String, String)>;

/// What was done, and how it went.
fn outcome(report: &Report) -> Rows {
    let mut rows = Rows::new();
    let mut add = |name: &str, value: String| rows.push((name.to_owned(), value));
    let held = match (&report.broken, &report.unchecked) {
        (Some(_), _) => "BROKEN",
        (None, Some(_)) => "NOT CHECKED",
        (None, None) => "held",
    };
    add("invariant", format!("{}: {held}", report.invariant));
    if let Some(figure) = &report.figure {
        add("figure", figure.clone());
    }
    add(
        "operations",
        format!("{} in {:.2} s", report.operations, report.seconds),
    );
    if let Some(wanted) = report.keys_wanted {
        let text = match report.keys {
            1 => "all operations go to the same".to_owned(),
            keys => {
                format!("{keys}, not {wanted}: it keeps a model of each and has no more of them")
            }
        };
        add("entities", text);
    }
    if let Some([low, high]) = report.interval {
        let text = format!("{} to {} per second", thousands(low), thousands(high));
        add("95 % interval", text);
    }
    add("slowest", micros(report.max_us));
    if let Some(late) = report.timer_p99_us {
        let text = format!(
            "{} late at the 99th percentile, which is counted",
            micros(late)
        );
        add("own timer", text);
    }
    if let (Some(p50), Some(p99)) = (report.failed_p50_us, report.failed_p99_us) {
        add(
            "failures",
            format!("p50 {}, p99 {}", micros(p50), micros(p99)),
        );
    }
    for (kind, count) in &report.errors {
        add("errors", format!("{count} {kind}"));
    }
    if report.dropped > 0 {
        add(
            "never begun",
            format!(
                "{} operations were due and found no free client",
                report.dropped
            ),
        );
    }
    if let Some(stopped) = &report.stopped {
        add("ended early", stopped.clone());
    }
    add(
        "limited by",
        match &*report.limited_by {
            "cap" => "the highest rate that is allowed (--max-rate)".to_owned(),
            other => other.to_owned(),
        },
    );
    rows
}

/// What it took.
fn cost(report: &Report) -> Rows {
    let mut rows = Rows::new();
    let mut add = |name: &str, value: String| rows.push((name.to_owned(), value));
    for (name, busy) in [
        ("busiest thread", report.client_busy),
        ("busiest server", report.server_busy),
    ] {
        if let Some(busy) = busy {
            add(name, format!("{:.0} % of a core", busy * 100.0));
        }
    }
    if let Some(trips) = report.round_trips_per_op {
        add("round trips", format!("{trips:.2} per operation"));
    }
    if let Some(bytes) = report.network_bytes_per_op {
        add("network", format!("{bytes:.0} bytes per operation"));
    }
    for cost in &report.commands {
        let text = format!(
            "{:.2} per operation, {:.2} µs each",
            cost.calls_per_op, cost.us_per_call
        );
        add(&format!("  {}", cost.command), text);
    }
    if let Some(bytes) = report.bytes_per_entity {
        add("memory", format!("{bytes:.0} bytes per {}", report.entity));
    }
    rows
}

/// Where the load went, and how much of it there can be.
fn load(report: &Report) -> Rows {
    let mut rows = Rows::new();
    let mut add = |name: &str, value: String| rows.push((name.to_owned(), value));
    if let Some(hottest) = &report.hottest {
        let key = match (&hottest.key, hottest.slot) {
            (Some(key), Some(slot)) => format!("{key} in slot {slot}"),
            _ => format!("entity {}", hottest.entity),
        };
        let share = hottest.share * 100.0;
        add(
            "hottest",
            format!("{key} with {share:.1} % of the operations"),
        );
    }
    if let Some(largest) = &report.largest_key {
        add(
            "largest key",
            format!(
                "{}: {} bytes in slot {}",
                largest.key, largest.bytes, largest.slot
            ),
        );
    }
    for step in &report.ramp {
        let text = format!(
            "{} per second, p99 {}",
            thousands(step.ops_per_second),
            micros(step.p99_us)
        );
        add(&format!("at {:.0}", step.load), text);
    }
    if let Some(knee) = &report.knee {
        add(
            "knee",
            format!("at {:.0}: more load brings little more", knee.load),
        );
    }
    rows
}
