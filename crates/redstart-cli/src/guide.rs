//! `redstart guide`: which pattern for which need.

use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};

use crate::Failure;

mod anti;
mod entries;
// Printed as it stands.
#[cfg(test)]
#[rustfmt::skip]
mod snippets;

use anti::ANTI_PATTERNS;
use entries::{ENTRIES, Entry};

/// Arguments of `redstart guide`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What you need, in your own words: limit api calls, only one worker, count visitors
    words: Vec<String>,
    /// Print the anti-patterns instead: what people write by hand, how it breaks, and what to use
    #[arg(long, conflicts_with = "words")]
    anti: bool,
    /// One JSON object per line, for programs
    #[arg(long)]
    json: bool,
}

const SNIPPETS: &str = include_str!("guide/snippets.rs");

const MATCHES: usize = 3;

/// Where the width of the terminal is unknown.
const WIDTH: u16 = 100;

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    if args.anti {
        anti_patterns(args.json);
        return Ok(());
    }
    let question = args.words.join(" ");
    let everything = question.trim().is_empty();
    let chosen: Vec<&Entry> = if everything {
        ENTRIES.iter().collect()
    } else {
        best(&question)
    };
    if args.json {
        for entry in chosen {
            say!(
                "{}",
                serde_json::json!({
                    "pattern": entry.pattern, "need": entry.need, "feature": entry.feature, "cost": entry.cost,
                    "not_promised": entry.not_promised, "replaces": entry.replaces, "snippet": snippet(entry.pattern),
                })
            );
        }
        return Ok(());
    }
    if everything {
        list(&chosen);
        return Ok(());
    }
    if chosen.is_empty() {
        return Err(Failure::Usage(format!(
            "no pattern fits {question:?}; `redstart guide` without words lists them all"
        )));
    }
    for entry in chosen {
        show(entry);
    }
    Ok(())
}

/// A table that fits the terminal.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    let width = table.width().unwrap_or(WIDTH);
    table.set_width(width.clamp(40, 160));
    table
}

/// How wide a line may be.
pub(crate) fn width() -> u16 {
    table(&[""]).width().unwrap_or(WIDTH)
}

fn list(entries: &[&Entry]) {
    let mut table = table(&["you need", "pattern", "costs", "does not promise"]);
    for entry in entries {
        table.add_row([entry.need, entry.pattern, entry.cost, entry.not_promised]);
    }
    say!("{table}\n\n`redstart guide limit api calls` shows the best matches with code.");
}

fn anti_patterns(json: bool) {
    if json {
        for anti in ANTI_PATTERNS {
            say!(
                "{}",
                serde_json::json!({ "written": anti.written, "breaks": anti.breaks, "pattern": anti.pattern })
            );
        }
        return;
    }
    let mut table = table(&["people write", "it breaks because", "use"]);
    for anti in ANTI_PATTERNS {
        table.add_row([anti.written, anti.breaks, anti.pattern]);
    }
    say!("{table}\n\n`redstart guide mutex` shows a pattern with code.");
}

/// The code of a pattern: what stands between its marks, without the indentation.
fn snippet(pattern: &str) -> String {
    let (start, end) = (
        format!("    // <{pattern}>\n"),
        format!("    // </{pattern}>"),
    );
    let code = SNIPPETS
        .split_once(&start)
        .and_then(|(_, rest)| rest.split_once(&end));
    let lines = code.map_or("", |(code, _)| code).lines();
    lines
        .map(|line| line.strip_prefix("    ").unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n")
}

fn show(entry: &Entry) {
    let (bold, faint) = (anstyle::Style::new().bold(), anstyle::Style::new().dimmed());
    say!("{bold}{}{bold:#} — {}", entry.pattern, entry.need);
    say!("  uses              {}", entry.feature);
    say!("  costs             {}", entry.cost);
    say!("  does not promise  {}", entry.not_promised);
    say!("  instead of        {}\n", entry.replaces);
    for line in snippet(entry.pattern).lines() {
        say!("    {faint}{line}{faint:#}");
    }
    say!();
}

/// The words of a text that carry meaning, in lower case and without their grammatical endings.
fn words(text: &str) -> Vec<String> {
    const EMPTY: &[&str] = &[
        "a", "an", "the", "to", "of", "for", "in", "on", "my", "i", "we", "need", "want", "how",
        "with", "and", "or", "is", "be", "that", "by", "from", "it", "do", "per",
    ];
    text.split(|c: char| !c.is_alphanumeric())
        .map(str::to_lowercase)
        .filter(|word| !word.is_empty() && !EMPTY.contains(&word.as_str()))
        .map(|word| stem(&word).to_owned())
        .collect()
}

fn stem(word: &str) -> &str {
    for end in ["ing", "ers", "er", "ed", "es", "s"] {
        if let Some(stem) = word.strip_suffix(end)
            && stem.len() >= 3
        {
            return stem;
        }
    }
    word
}

/// An entry and the words it is found by: its own, those of its description, and its names in other languages.
struct Indexed {
    entry: &'static Entry,
    own: Vec<String>,
    more: Vec<String>,
    foreign: Vec<String>,
}

impl Indexed {
    fn weight(&self, word: &String) -> f64 {
        match (self.own.contains(word), self.more.contains(word)) {
            (true, _) => 3.0,
            (false, true) => 1.0,
            (false, false) => 0.0,
        }
    }
}

/// What a name in another language weighs. Such names are whole terms, so one of them settles the question.
const FOREIGN: f64 = 4.0;

/// The entries that share most with the question; words that name few entries count for more.
fn best(text: &str) -> Vec<&'static Entry> {
    let question = words(text);
    let text = text.to_lowercase();
    let index: Vec<Indexed> = ENTRIES
        .iter()
        .map(|entry| Indexed {
            entry,
            own: words(&format!("{} {}", entry.pattern, entry.words)),
            more: words(&format!("{} {}", entry.need, entry.feature)),
            foreign: entry.foreign.split(' ').map(str::to_lowercase).collect(),
        })
        .collect();
    let rarity = |word: &String| {
        let known = index
            .iter()
            .filter(|entry| entry.weight(word) > 0.0)
            .count();
        1.0 / (known.max(1) as f64)
    };
    let score = |entry: &Indexed| {
        let scores = question
            .iter()
            .map(|word| entry.weight(word) * (1.0 + rarity(word)));
        // Languages without spaces: a term may stand anywhere in the text. The longest one counts.
        let named = entry
            .foreign
            .iter()
            .filter(|name| text.contains(name.as_str()));
        let longest = named.map(|name| name.chars().count()).max().unwrap_or(0);
        scores.sum::<f64>() + FOREIGN * longest as f64
    };
    let mut scored: Vec<(f64, &'static Entry)> = index
        .iter()
        .map(|entry| (score(entry), entry.entry))
        .filter(|(score, _)| *score > 0.0)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored
        .into_iter()
        .take(MATCHES)
        .map(|(_, entry)| entry)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_help_find_what_they_mean() {
        for (question, pattern) in [
            ("limit api calls", "token_bucket"),
            ("only one worker", "mutex"),
            ("count visitors", "unique_visitors"),
            ("send mails in the background", "job_queue"),
            ("friends near me", "places"),
            ("who is in the lead in my game", "leaderboard"),
            ("log out everywhere", "session"),
            ("thousand requests load the same key", "stampede_lease"),
            ("customers are charged twice", "idempotency"),
            ("idempotency", "idempotency"),
            ("axum middleware", "http_layers"),
            ("test with a fake clock", "manual_clock"),
        ] {
            let found: Vec<_> = best(question).iter().map(|entry| entry.pattern).collect();
            assert!(found.contains(&pattern), "{question}: {found:?}");
        }
        assert!(best("quux").is_empty());
    }

    #[test]
    fn names_in_other_languages_find_their_pattern_first() {
        for (question, pattern) in [
            ("排行榜", "leaderboard"),
            ("限流", "token_bucket"),
            ("分布式锁", "mutex"),
            ("怎么实现分布式锁", "mutex"),
            ("秒杀", "stock"),
            ("布隆过滤器", "bloom"),
            ("ランキング", "leaderboard"),
            ("분산락", "mutex"),
            ("очередь", "job_queue"),
        ] {
            let found = best(question);
            assert_eq!(
                found.first().map(|entry| entry.pattern),
                Some(pattern),
                "{question}"
            );
        }
    }

    #[test]
    fn every_anti_pattern_names_an_entry() {
        for anti in ANTI_PATTERNS {
            let known = ENTRIES.iter().any(|entry| entry.pattern == anti.pattern);
            assert!(known, "{}", anti.pattern);
        }
    }

    #[test]
    fn every_pattern_of_the_tour_is_in_the_guide() {
        let tour: Vec<_> = crate::tour::patterns().collect();
        let guide: Vec<_> = ENTRIES.iter().map(|entry| entry.pattern).collect();
        for pattern in &tour {
            assert!(guide.contains(pattern), "{pattern}");
        }
        let beside = ["idempotency", "http_layers", "manual_clock"];
        for pattern in guide {
            assert!(
                tour.contains(&pattern) || beside.contains(&pattern),
                "{pattern}"
            );
        }
        for entry in ENTRIES {
            let lines = snippet(entry.pattern).lines().count();
            assert!(
                (1..=12).contains(&lines),
                "{}: {lines} lines",
                entry.pattern
            );
        }
    }
}
