//! The rows as a table for the terminal, and as a page with a chart.

use std::{fmt::Write as _, path::Path, time::Duration};

use comfy_table::{Cell, CellAlignment, Table};

use crate::measure::{Cpu, Row, Unit};

pub(crate) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.set_header([
        "family",
        "what",
        "peer",
        "unit",
        "ours",
        "peer's",
        "ratio",
        "95 %",
        "client µs",
        "server µs",
        "floor",
        "goal",
        "",
    ]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for row in rows {
        table.add_row([
            Cell::new(&row.family),
            Cell::new(&row.name),
            Cell::new(&row.peer),
            Cell::new(row.unit.as_str()),
            right(figure(row.unit, row.ours)),
            right(figure(row.unit, row.theirs)),
            right(format!("{:.2}", row.ratio)),
            right(interval(row)),
            right(cpu(row, |cpu| cpu.client)),
            right(cpu(row, |cpu| cpu.server)),
            right(format!("{:.2}", row.floor)),
            right(goal(row)),
            Cell::new(row.verdict()),
        ]);
    }
    table
}

fn figure(unit: Unit, value: f64) -> String {
    match unit {
        Unit::PerSecond | Unit::Bytes => format!("{value:.0}"),
        Unit::Micros => format!("{value:.1}"),
    }
}

fn interval(row: &Row) -> String {
    row.interval
        .map_or(String::new(), |(low, high)| format!("{low:.2}–{high:.2}"))
}

/// CPU time per operation, ours and the peer's.
fn cpu(row: &Row, side: impl Fn(&Cpu) -> f64) -> String {
    let Some((ours, theirs)) = &row.cpu else {
        return String::new();
    };
    let figure = |micros: f64| match micros {
        0.0 => "–".to_owned(),
        micros => format!("{micros:.1}"),
    };
    match (side(ours), side(theirs)) {
        (0.0, 0.0) => String::new(),
        (ours, theirs) => format!("{} / {}", figure(ours), figure(theirs)),
    }
}

fn goal(row: &Row) -> String {
    row.goal.map_or(String::new(), |goal| format!("{goal:.2}"))
}

/// Writes the page at `path`, and its chart beside it with the ending `.svg`.
pub(crate) fn write(
    path: &Path,
    rows: &[Row],
    notes: &[String],
    rounds: usize,
    length: Duration,
) -> anyhow::Result<()> {
    let chart = path.with_extension("svg");
    std::fs::write(&chart, svg(rows))?;
    let name = chart.file_name().unwrap_or_default().to_string_lossy();
    let mut page = format!(
        "# Benchmarks\n\nMade by `cargo xtask bench --report`. A ratio above 1 is in our favour. Rows with an interval are the \
         median of paired rounds, in which the contestants take turns to go first: {rounds} rounds of {length:?} where the row \
         is a rate, fewer where one round is a whole job such as a drained backlog or a failover. The interval is the 95 % \
         interval of that median. CPU is the time per operation of the client's process and of the server's, ours and the \
         peer's. A row marked *in process* compares a function call with a round trip. Below its floor a row fails the run; \
         a goal is what we want.\n\n{}\n\n![chart]({name})\n",
        machine()
    );
    let mut family = "";
    for row in rows {
        if row.family != family {
            family = &row.family;
            let _ = write!(
                page,
                "\n## {family}\n\n| what | peer | unit | ours | peer's | ratio | 95 % | client µs | server µs | floor | goal | |\n\
                 |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|\n"
            );
        }
        let verdict = match row.verdict() {
            "held" => "",
            "BELOW" => "**below**",
            verdict => verdict,
        };
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {:.2} | {} | {} | {} | {:.2} | {} | {verdict} |",
            row.name,
            row.peer,
            row.unit.as_str(),
            figure(row.unit, row.ours),
            figure(row.unit, row.theirs),
            row.ratio,
            interval(row),
            cpu(row, |cpu| cpu.client),
            cpu(row, |cpu| cpu.server),
            row.floor,
            goal(row),
        );
    }
    page.push_str("\n## Notes\n\n");
    for note in notes {
        let _ = writeln!(page, "- {note}");
    }
    std::fs::write(path, page)?;
    println!("wrote {} and {}", path.display(), chart.display());
    Ok(())
}

/// The processor and the number of cores.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("Machine: {model}, {cores} cores.")
}

/// Bars of the ratios on a logarithmic scale, with a line at 1.
fn svg(rows: &[Row]) -> String {
    const LEFT: f64 = 460.0;
    const WIDTH: f64 = 980.0;
    const STEP: f64 = 22.0;
    let height = STEP * rows.len() as f64 + 40.0;
    let reach = rows
        .iter()
        .map(|row| row.ratio.ln().abs())
        .fold(1.0_f64, f64::max);
    let half = (WIDTH - LEFT - 60.0) / 2.0;
    let one = LEFT + half;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <line x1=\"{one}\" y1=\"10\" x2=\"{one}\" y2=\"{}\" stroke=\"#888888\"/>\n",
        height - 20.0
    );
    for (n, row) in rows.iter().enumerate() {
        let y = 14.0 + STEP * n as f64;
        let length = row.ratio.ln() / reach * half;
        let (x, width) = if length < 0.0 {
            (one + length, -length)
        } else {
            (one, length)
        };
        let colour = if row.ratio >= 1.0 {
            "#2a7f62"
        } else {
            "#b5533c"
        };
        let label = escape(&format!("{} / {}", row.name, row.peer));
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#222222\">{label}</text>\
             <rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"14\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{}\" fill=\"#222222\">{:.2}</text>",
            LEFT - 8.0,
            y + 11.0,
            (x + width).max(one) + 5.0,
            y + 11.0,
            row.ratio,
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{one}\" y=\"{}\" text-anchor=\"middle\" fill=\"#222222\">ratio to the peer, logarithmic; 1 = equal</text>\n</svg>",
        height - 6.0
    );
    out
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    match text.char_indices().nth(72) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
