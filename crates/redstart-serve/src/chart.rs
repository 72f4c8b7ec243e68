//! Charts as SVG, made on the server. Colours come from the style sheet, so that both themes work.

use maud::{Markup, PreEscaped, html};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 46.0;
const BOTTOM: f64 = 22.0;
const TOP: f64 = 10.0;
const COLOURS: [&str; 3] = ["one", "two", "three"];

/// Lines over time, the newest on the right. `span` says how much time the points cover.
pub(crate) fn lines(title: &str, series: &[(&str, Vec<f64>)], span: &str) -> Markup {
    let most = series.iter().flat_map(|(_, values)| values.iter().copied());
    let most = nice(most.fold(0.0, f64::max));
    let points = series
        .iter()
        .map(|(_, values)| values.len())
        .max()
        .unwrap_or(0);
    let x = |at: usize, of: usize| {
        let from_right = of.saturating_sub(1).saturating_sub(at) as f64;
        WIDTH - from_right * (WIDTH - LEFT) / (points.max(2) - 1) as f64
    };
    let y = |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / most);
    let newest = |values: &[f64]| {
        values
            .last()
            .map_or_else(|| "none".to_owned(), |v| short(*v))
    };
    let spoken: Vec<String> = series
        .iter()
        .map(|(name, values)| format!("{name} {}", newest(values)))
        .collect();
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(format!("{title}: now {}", spoken.join(", "))) {
            @for step in 0..=2 {
                @let value = most * f64::from(step) / 2.0;
                line.grid-line x1=(LEFT) x2=(WIDTH) y1=(number(y(value))) y2=(number(y(value))) {}
                text.label x=(LEFT - 6.0) y=(number(y(value) + 4.0)) text-anchor="end" { (short(value)) }
            }
            text.label x=(LEFT) y=(HEIGHT - 5.0) { (span) " ago" }
            text.label x=(WIDTH) y=(HEIGHT - 5.0) text-anchor="end" { "now" }
            @for (index, (_, values)) in series.iter().enumerate() {
                @if values.len() > 1 {
                    @let line: Vec<String> = values.iter().enumerate()
                        .map(|(at, value)| format!("{},{}", number(x(at, values.len())), number(y(*value)))).collect();
                    @let first = number(x(0, values.len()));
                    @let colour = COLOURS[index % COLOURS.len()];
                    polygon class=(format!("area {colour}")) points=(format!("{first},{0} {1} {WIDTH},{0}", HEIGHT - BOTTOM, line.join(" "))) {}
                    polyline class=(format!("line {colour}")) points=(line.join(" ")) {}
                }
            }
        }
        ul.legend {
            @for (index, (name, values)) in series.iter().enumerate() {
                li {
                    svg viewBox="0 0 12 12" aria-hidden="true" { circle class=(format!("bar {}", COLOURS[index % COLOURS.len()])) cx="6" cy="6" r="5" {} }
                    (name) " " strong { (newest(values)) }
                }
            }
        }
    }
}

/// Bars with their names below.
pub(crate) fn bars(title: &str, values: &[(String, f64)]) -> Markup {
    let most = nice(values.iter().map(|(_, value)| *value).fold(0.0, f64::max));
    let width = (WIDTH - LEFT) / values.len().max(1) as f64;
    let spoken: Vec<String> = values
        .iter()
        .map(|(name, value)| format!("{name} {}", short(*value)))
        .collect();
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(format!("{title}: {}", spoken.join(", "))) {
            @for step in 0..=2 {
                @let value = most * f64::from(step) / 2.0;
                @let y = TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / most);
                line.grid-line x1=(LEFT) x2=(WIDTH) y1=(number(y)) y2=(number(y)) {}
                text.label x=(LEFT - 6.0) y=(number(y + 4.0)) text-anchor="end" { (short(value)) }
            }
            @for (at, (name, value)) in values.iter().enumerate() {
                @let height = (HEIGHT - TOP - BOTTOM) * value / most;
                @let x = LEFT + at as f64 * width;
                rect.bar x=(number(x + width * 0.15)) y=(number(HEIGHT - BOTTOM - height)) width=(number(width * 0.7)) height=(number(height)) rx="2" {}
                @if values.len() <= 16 || at % (values.len() / 8) == 0 {
                    text.label x=(number(x + width / 2.0)) y=(HEIGHT - 6.0) text-anchor="middle" { (name) }
                }
            }
        }
    }
}

/// Shares of a whole, one after another.
pub(crate) fn shares(title: &str, parts: &[(&str, u64)]) -> Markup {
    let total = parts.iter().map(|(_, n)| *n).sum::<u64>().max(1) as f64;
    let mut at = 0.0;
    let pieces: Vec<(f64, f64)> = parts
        .iter()
        .map(|(_, n)| {
            let width = *n as f64 / total * 100.0;
            let from = at;
            at += width;
            (from, width)
        })
        .collect();
    let spoken: Vec<String> = parts
        .iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    html! {
        svg.meter viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=(format!("{title}: {}", spoken.join(", "))) {
            rect.back x="0" y="0" width="100" height="8" {}
            @for (index, (from, width)) in pieces.iter().enumerate() {
                rect class=(format!("fill {}", COLOURS[index % COLOURS.len()])) x=(number(*from)) y="0" width=(number(*width)) height="8" {}
            }
        }
    }
}

/// A month: one square for each day.
pub(crate) fn calendar(title: &str, first_weekday: usize, days: &[bool]) -> Markup {
    let marked = days.iter().filter(|day| **day).count();
    html! {
        svg.chart viewBox="0 0 224 196" role="img" aria-label=(format!("{title}: {marked} of {} days", days.len())) {
            @for (at, name) in ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"].iter().enumerate() {
                text.label x=(at * 32 + 14) y="12" text-anchor="middle" { (name) }
            }
            @for (at, on) in days.iter().enumerate() {
                @let cell = first_weekday + at;
                rect class=(if *on { "day on" } else { "day" }) x=(cell % 7 * 32) y=(cell / 7 * 29 + 18) width="28" height="25" rx="4" {
                    title { (at + 1) }
                }
            }
        }
    }
}

/// Points on a map: longitude and latitude as they are, with a margin.
pub(crate) fn map(title: &str, points: &[(String, f64, f64)]) -> Markup {
    let bounds = |values: Vec<f64>| {
        let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| {
            (low.min(*v), high.max(*v))
        });
        let margin = ((high - low) * 0.1).max(0.005);
        (low - margin, high + margin)
    };
    if points.is_empty() {
        return html! { p.empty { "Nothing is here." } };
    }
    let (west, east) = bounds(points.iter().map(|point| point.1).collect());
    let (south, north) = bounds(points.iter().map(|point| point.2).collect());
    html! {
        svg.chart viewBox="0 0 640 360" role="img" aria-label=(format!("{title}: {} members", points.len())) {
            @for step in 0..=4 {
                @let part = f64::from(step) / 4.0;
                line.grid-line x1=(number(part * 640.0)) x2=(number(part * 640.0)) y1="0" y2="360" {}
                line.grid-line x1="0" x2="640" y1=(number(part * 360.0)) y2=(number(part * 360.0)) {}
                text.label x=(number((part * 640.0).clamp(4.0, 600.0))) y="356" { (format!("{:.3}", west + part * (east - west))) }
            }
            @for (name, longitude, latitude) in points {
                @let x = (longitude - west) / (east - west) * 640.0;
                @let y = (north - latitude) / (north - south) * 360.0;
                circle.dot cx=(number(x)) cy=(number(y)) r="5" { title { (name) } }
                @if points.len() <= 40 {
                    text.label x=(number(x + 8.0)) y=(number(y + 4.0)) { (name) }
                }
            }
        }
    }
}

/// The bird.
pub(crate) fn logo() -> Markup {
    PreEscaped(
        r##"<svg viewBox="0 0 32 32" aria-hidden="true"><circle cx="16" cy="16" r="15" fill="#c2410c"/><path d="M6 20c4-1 6-8 12-9 3 0 5 1 6 3l3 1-3 1c0 6-5 9-10 9-4 0-6-2-8-5z" fill="#fff7ed"/><circle cx="21" cy="14.5" r="1.3" fill="#1b1f24"/><path d="M6 20l-3 5 7-2z" fill="#fdba74"/></svg>"##
            .to_owned(),
    )
}

/// The smallest round number that is not below a value.
fn nice(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let scale = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 10.0];
    steps
        .iter()
        .map(|step| step * scale)
        .find(|round| *round >= value)
        .unwrap_or(value)
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

/// A number in few characters.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e9 => format!("{:.1}G", value / 1e9),
        v if v >= 1e6 => format!("{:.1}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        v if v >= 1e3 => format!("{:.1}k", value / 1e3),
        v if v >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_round_and_not_below_the_value() {
        for (value, round) in [
            (0.0, 1.0),
            (0.7, 1.0),
            (3.0, 4.0),
            (41.0, 50.0),
            (99.0, 100.0),
            (1234.0, 2000.0),
        ] {
            assert_eq!(nice(value), round, "{value}");
        }
    }

    #[test]
    fn charts_of_nothing_and_of_one_point_are_charts() {
        for values in [vec![], vec![1.0], vec![f64::from(u32::MAX); 3]] {
            let svg = lines("x", &[("a", values)], "5 min").into_string();
            assert!(svg.contains("<svg") && !svg.contains("NaN"), "{svg}");
        }
        assert!(!bars("x", &[]).into_string().contains("NaN"));
        assert!(
            !shares("x", &[("a", 0), ("b", 0)])
                .into_string()
                .contains("NaN")
        );
        assert!(
            map("x", &[("a".into(), 1.0, 1.0)])
                .into_string()
                .contains("circle")
        );
    }
}
