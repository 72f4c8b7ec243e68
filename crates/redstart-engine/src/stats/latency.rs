//! LATENCY: events that took longer than `latency-monitor-threshold`.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
};

/// How many samples of an event are kept.
const KEPT: usize = 160;

#[derive(Default)]
pub(crate) struct Latency {
    pub(crate) events: BTreeMap<&'static str, Series>,
}

#[derive(Default)]
pub(crate) struct Series {
    /// Unix seconds and milliseconds, the oldest first.
    pub(crate) samples: VecDeque<(i64, u64)>,
    pub(crate) worst: u64,
}

impl Latency {
    /// Keeps an event; of several in one second, the longest.
    pub(crate) fn add(&mut self, event: &'static str, seconds: i64, millis: u64) {
        let series = self.events.entry(event).or_default();
        series.worst = series.worst.max(millis);
        match series.samples.back_mut() {
            Some((last, longest)) if *last == seconds => *longest = (*longest).max(millis),
            _ => {
                if series.samples.len() == KEPT {
                    series.samples.pop_front();
                }
                series.samples.push_back((seconds, millis));
            }
        }
    }

    /// A report for people.
    pub(crate) fn doctor(&self, threshold: u64, slowlog_slower_than: i64) -> String {
        if threshold == 0 {
            return "Latency monitoring is off. CONFIG SET latency-monitor-threshold <milliseconds> \
                    turns it on.\n"
                .into();
        }
        if self.events.is_empty() {
            return format!("No event took {threshold} ms or longer since monitoring began.\n");
        }
        let mut text = String::from("Events that took long:\n\n");
        for (number, (event, series)) in self.events.iter().enumerate() {
            let count = series.samples.len() as u64;
            let sum: u64 = series.samples.iter().map(|(_, millis)| millis).sum();
            let mean = sum / count.max(1);
            let spread: u64 = series
                .samples
                .iter()
                .map(|(_, millis)| millis.abs_diff(mean))
                .sum::<u64>()
                / count.max(1);
            let _ = writeln!(
                text,
                "{}. {event}: {count} samples, mean {mean} ms, mean deviation {spread} ms, worst {} ms",
                number + 1,
                series.worst
            );
        }
        text.push_str("\nWhat may help:\n\n");
        if self.events.keys().any(|event| event.ends_with("command")) {
            let micros = threshold * 1000;
            if slowlog_slower_than < 0 || slowlog_slower_than as u64 > micros {
                let _ = writeln!(
                    text,
                    "- SLOWLOG keeps only commands slower than those counted here: CONFIG SET \
                     slowlog-log-slower-than {micros}"
                );
            }
            text.push_str(
                "- SLOWLOG GET names the commands; split those that touch many elements\n",
            );
        }
        if self.events.contains_key("expire-cycle") {
            text.push_str("- Many keys expire at one moment: spread their deadlines\n");
        }
        text
    }
}

impl Series {
    /// The samples as columns of characters, the newest on the right, with their ages below.
    pub(crate) fn graph(&self, event: &str, now_seconds: i64) -> String {
        const ROWS: u64 = 4;
        let columns: Vec<(i64, u64)> = self.samples.iter().rev().take(80).rev().copied().collect();
        let high = columns.iter().map(|(_, millis)| *millis).max().unwrap_or(0);
        let low = columns.iter().map(|(_, millis)| *millis).min().unwrap_or(0);
        let mut text = format!(
            "{event} - high {high} ms, low {low} ms (all time high {} ms)\n{}\n",
            self.worst,
            "-".repeat(80)
        );
        for row in (0..ROWS).rev() {
            for (_, millis) in &columns {
                // Four levels within each row.
                let level = (millis - low) * (ROWS * 4 - 1) / (high - low).max(1);
                text.push(match level.checked_sub(row * 4) {
                    None => ' ',
                    Some(0) => '_',
                    Some(1) => 'o',
                    Some(2) => '#',
                    Some(_) => '|',
                });
            }
            text.push('\n');
        }
        text.push('\n');
        let ages: Vec<Vec<char>> = columns
            .iter()
            .map(|(seconds, _)| age(now_seconds - seconds).chars().collect())
            .collect();
        let tallest = ages.iter().map(Vec::len).max().unwrap_or(0);
        for row in 0..tallest {
            text.extend(ages.iter().map(|age| age.get(row).copied().unwrap_or(' ')));
            text.push('\n');
        }
        text
    }
}

fn age(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{}s", seconds.max(0)),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_second_has_one_sample_and_old_ones_go() {
        let mut latency = Latency::default();
        latency.add("command", 5, 3);
        latency.add("command", 5, 9);
        latency.add("command", 5, 4);
        let series = &latency.events["command"];
        assert_eq!(series.samples, [(5, 9)]);
        for second in 6..200 {
            latency.add("command", second, 1);
        }
        let series = &latency.events["command"];
        assert_eq!((series.samples.len(), series.worst), (KEPT, 9));
        let graph = series.graph("command", 200);
        assert!(
            graph.lines().all(|line| line.chars().count() <= 80),
            "{graph}"
        );
    }
}
