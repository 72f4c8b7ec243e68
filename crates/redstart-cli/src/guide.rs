//! `redstart guide`: which pattern for which need.

use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};

use crate::Failure;

mod entries;

use entries::{ENTRIES, Entry};

/// Arguments of `redstart guide`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What you need, in your own words: limit api calls, only one worker, count visitors
    words: Vec<String>,
    /// One JSON object a line, for programs
    #[arg(long)]
    json: bool,
}

const MATCHES: usize = 3;

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let words = words(&args.words.join(" "));
    let chosen: Vec<&Entry> = if words.is_empty() {
        ENTRIES.iter().collect()
    } else {
        best(&words)
    };
    if args.json {
        for entry in chosen {
            say!(
                "{}",
                serde_json::json!({
                    "pattern": entry.pattern, "need": entry.need, "feature": entry.feature, "cost": entry.cost,
                    "not_promised": entry.not_promised, "replaces": entry.replaces, "snippet": entry.snippet,
                })
            );
        }
        return Ok(());
    }
    if words.is_empty() {
        table(&chosen);
        return Ok(());
    }
    if chosen.is_empty() {
        return Err(Failure::Usage(format!(
            "no pattern fits {:?}; `redstart guide` without words lists them all",
            args.words.join(" ")
        )));
    }
    for entry in chosen {
        show(entry);
    }
    Ok(())
}

fn table(entries: &[&Entry]) {
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header([
            "you need",
            "pattern",
            "stands on",
            "costs",
            "does not promise",
        ]);
    for entry in entries {
        table.add_row([
            entry.need,
            entry.pattern,
            entry.feature,
            entry.cost,
            entry.not_promised,
        ]);
    }
    say!("{table}\n\n`redstart guide limit api calls` shows the best matches with code.");
}

fn show(entry: &Entry) {
    let (bold, faint) = (anstyle::Style::new().bold(), anstyle::Style::new().dimmed());
    say!("{bold}{}{bold:#} — {}", entry.pattern, entry.need);
    say!("  stands on         {}", entry.feature);
    say!("  costs             {}", entry.cost);
    say!("  does not promise  {}", entry.not_promised);
    say!("  instead of        {}\n", entry.replaces);
    for line in entry.snippet.lines() {
        say!("    {faint}{line}{faint:#}");
    }
    say!();
}

/// Words that say something, in lower case, without the ends that grammar gives them.
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

/// An entry and the words it is found by: its own, and those of its description.
struct Indexed {
    entry: &'static Entry,
    own: Vec<String>,
    more: Vec<String>,
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

/// The entries that share most with the question; words that name few entries count for more.
fn best(question: &[String]) -> Vec<&'static Entry> {
    let index: Vec<Indexed> = ENTRIES
        .iter()
        .map(|entry| Indexed {
            entry,
            own: words(&format!("{} {}", entry.pattern, entry.words)),
            more: words(&format!("{} {}", entry.need, entry.feature)),
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
        scores.sum::<f64>()
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
        ] {
            let found: Vec<_> = best(&words(question))
                .iter()
                .map(|entry| entry.pattern)
                .collect();
            assert!(found.contains(&pattern), "{question}: {found:?}");
        }
        assert!(best(&words("quux")).is_empty());
    }

    #[test]
    fn every_pattern_of_the_tour_is_in_the_guide() {
        let tour: Vec<_> = crate::tour::patterns().collect();
        let guide: Vec<_> = ENTRIES.iter().map(|entry| entry.pattern).collect();
        for pattern in &tour {
            assert!(guide.contains(pattern), "{pattern}");
        }
        assert_eq!(tour.len(), guide.len());
        for entry in ENTRIES {
            assert!(entry.snippet.lines().count() <= 12, "{}", entry.pattern);
        }
    }
}
