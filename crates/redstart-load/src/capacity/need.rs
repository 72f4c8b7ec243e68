//! What is wanted: numbers with units, flags and TOML become needs.

use serde::{Deserialize, Serialize};

use super::{character, cost::ServerCosts};
use crate::error::{Error, Result};

/// So much of one pattern.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// The pattern.
    pub pattern: String,
    /// How many entities: sessions, users, members.
    #[serde(default)]
    pub entities: f64,
    /// Operations per second at the peak.
    #[serde(default)]
    pub ops: f64,
    /// The parameter of an entity: bytes of data, days, visitors. Its meaning is in the table of costs.
    #[serde(default)]
    pub parameter: Option<f64>,
    /// Whether all operations go to one of the entities, as with a count per day: that of today.
    #[serde(default)]
    pub one_key: bool,
    /// What was assumed.
    #[serde(default)]
    pub assumed: Option<String>,
}

/// What is wanted in an application's own terms. Every field may be missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Wanted {
    /// Users, as in `100M`.
    pub users: Option<String>,
    /// Days of check-ins of every user, as in `31d`.
    pub checkins: Option<String>,
    /// Unique visitors, as in `daily:90d`: one count per day, kept for this long.
    pub uniques: Option<String>,
    /// Exact daily active users, as in `90d`.
    pub activity: Option<String>,
    /// Sessions, as in `20M` or `20M@50k/s`.
    pub sessions: Option<String>,
    /// Checks of a rate limiter, as in `50k/s`.
    pub limiter: Option<String>,
    /// Rows of a cache, as in `5M@100k/s`.
    pub cache: Option<String>,
    /// Members of a leaderboard.
    pub leaderboard: Option<String>,
    /// Jobs of a queue per second; a minute of them waits.
    pub queue: Option<String>,
    /// Elements of a Bloom filter at 1 %.
    pub bloom: Option<String>,
    /// Members of a map of places.
    pub places: Option<String>,
    /// Edges of the social graph.
    pub edges: Option<String>,
    /// Bytes of a session, a row or a job.
    pub payload: Option<u64>,
    /// Needs by pattern.
    pub need: Vec<Need>,
}

/// A number with a unit of thousands: `100M`, `50k`, `1.5G`, `1_000`.
///
/// # Errors
///
/// If it is not a positive number.
///
/// ```
/// assert_eq!(redstart_load::capacity::quantity("1.5M").ok(), Some(1_500_000.0));
/// ```
pub fn quantity(text: &str) -> Result<f64> {
    let bad = || {
        Error::config(format!(
            "{text:?} is not a number such as 100M, 50k or 1.5G"
        ))
    };
    let clean = text.trim().replace(['_', ','], "");
    let (digits, factor) = match clean.char_indices().last() {
        Some((at, 'k' | 'K')) => (&clean[..at], 1e3),
        Some((at, 'm' | 'M')) => (&clean[..at], 1e6),
        Some((at, 'g' | 'G' | 'b' | 'B')) => (&clean[..at], 1e9),
        _ => (&clean[..], 1.0),
    };
    let number = digits.parse::<f64>().map_err(|_| bad())? * factor;
    match number.is_finite() && (0.0..=1e15).contains(&number) {
        true => Ok(number),
        false => Err(bad()),
    }
}

/// `50k/s`.
fn rate(text: &str) -> Result<f64> {
    let number = text
        .trim()
        .strip_suffix("/s")
        .ok_or_else(|| Error::config(format!("{text:?} is not a rate such as 50k/s")))?;
    quantity(number)
}

/// `20M` or `20M@50k/s`.
fn count_and_rate(text: &str) -> Result<(f64, Option<f64>)> {
    match text.split_once('@') {
        Some((count, per_second)) => Ok((quantity(count)?, Some(rate(per_second)?))),
        None => Ok((quantity(text)?, None)),
    }
}

/// The rate that was given, or once per period for each of them, and that this was assumed.
fn each(count: f64, given: Option<f64>, what: &str, period: Period) -> (f64, Option<String>) {
    match given {
        Some(ops) => (ops, None),
        None => {
            let (seconds, period) = match period {
                Period::Minute => (60.0, "a minute"),
                Period::Hour => (3600.0, "an hour"),
            };
            (count / seconds, Some(format!("every {what} once {period}")))
        }
    }
}

/// How often each entity is taken to be used.
enum Period {
    Minute,
    Hour,
}

/// `31d`.
fn days(text: &str) -> Result<f64> {
    let bad = || Error::config(format!("{text:?} is not a number of days such as 31d"));
    let number = text.trim().strip_suffix('d').ok_or_else(bad)?;
    let days = number.parse::<u32>().map_err(|_| bad())?;
    match (1..=3660).contains(&days) {
        true => Ok(f64::from(days)),
        false => Err(bad()),
    }
}

/// Traffic at the peak, relative to the mean of the day.
const PEAK: f64 = 3.0;

impl Wanted {
    /// Reads a TOML file.
    ///
    /// # Errors
    ///
    /// If it is not TOML or has unknown fields.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| Error::config(error.to_string()))
    }

    /// The needs that follow. Traffic that is not given is assumed, and says so.
    ///
    /// # Errors
    ///
    /// If a number cannot be read, something needs a number of users that is not given, or a pattern does not exist.
    pub fn needs(&self, costs: &ServerCosts) -> Result<Vec<Need>> {
        let mut needs = self.of_flags()?;
        needs.extend(self.need.iter().cloned());
        if needs.is_empty() {
            return Err(Error::config(
                "nothing is wanted: give --sessions 20M, --users 100M --checkins 31d, or a file",
            ));
        }
        for need in &needs {
            need.check(costs)?;
        }
        Ok(needs)
    }

    /// What the flags ask for: a table in the form of one paragraph per flag.
    fn of_flags(&self) -> Result<Vec<Need>> {
        let users = self.users.as_deref().map(quantity).transpose()?;
        let of_users = |flag: &str| {
            users.ok_or_else(|| Error::config(format!("{flag} needs the number of users")))
        };
        let daily = |users: f64| users / 86_400.0 * PEAK;
        let once = || Some("every user once a day, with a peak of three times the mean".to_owned());
        let payload = self.payload.map_or(200.0, |bytes| bytes as f64);
        let mut needs = Vec::new();
        let mut add = |pattern: &str, entities, ops, parameter, assumed| {
            needs.push(Need {
                pattern: pattern.to_owned(),
                entities,
                ops,
                parameter,
                // Only the count of today is written.
                one_key: pattern == "unique_visitors",
                assumed,
            });
        };
        if let Some(text) = &self.checkins {
            let users = of_users("--checkins")?;
            add("check_ins", users, daily(users), Some(days(text)?), once());
        }
        if let Some(text) = &self.uniques {
            let users = of_users("--uniques")?;
            let kept = text
                .strip_prefix("daily:")
                .ok_or_else(|| Error::config(format!("{text:?} is not of the form daily:90d")))?;
            add(
                "unique_visitors",
                days(kept)?,
                daily(users),
                Some(users),
                once(),
            );
        }
        if let Some(text) = &self.activity {
            let users = of_users("--activity")?;
            add("activity", days(text)?, daily(users), Some(users), once());
        }
        if let Some(text) = &self.sessions {
            let (sessions, ops) = count_and_rate(text)?;
            let (ops, assumed) = each(sessions, ops, "session", Period::Minute);
            add("session", sessions, ops, Some(payload), assumed);
        }
        if let Some(text) = &self.limiter {
            let ops = rate(text)?;
            let assumed = users
                .is_none()
                .then(|| "a subject for every call of an hour".to_owned());
            add(
                "token_bucket",
                users.unwrap_or(ops * 3600.0),
                ops,
                None,
                assumed,
            );
        }
        if let Some(text) = &self.cache {
            let (rows, ops) = count_and_rate(text)?;
            let (ops, assumed) = each(rows, ops, "row", Period::Minute);
            add("cache_aside", rows, ops, Some(payload), assumed);
        }
        if let Some(text) = &self.leaderboard {
            let (members, ops) = count_and_rate(text)?;
            let (ops, assumed) = each(members, ops, "member", Period::Hour);
            add("leaderboard", members, ops, None, assumed);
        }
        if let Some(text) = &self.queue {
            let ops = rate(text)?;
            add(
                "job_queue",
                ops * 60.0,
                ops,
                Some(payload),
                Some("a minute of jobs waits".to_owned()),
            );
        }
        if let Some(text) = &self.bloom {
            let (elements, ops) = count_and_rate(text)?;
            add("bloom", 1.0, ops.unwrap_or(0.0), Some(elements), None);
        }
        if let Some(text) = &self.places {
            let (members, ops) = count_and_rate(text)?;
            let (ops, assumed) = each(members, ops, "member", Period::Minute);
            add("places", members, ops, None, assumed);
        }
        if let Some(text) = &self.edges {
            let (edges, ops) = count_and_rate(text)?;
            add("graph", edges, ops.unwrap_or(0.0), None, None);
        }
        Ok(needs)
    }
}

impl Need {
    /// That the pattern exists, and has the costs that are asked about.
    fn check(&self, costs: &ServerCosts) -> Result<()> {
        let Need {
            pattern,
            entities,
            ops,
            parameter,
            ..
        } = self;
        if character(pattern).is_none() {
            return Err(Error::config(format!("there is no pattern {pattern:?}")));
        }
        if *entities > 0.0 && costs.entity_of(pattern).is_none() {
            return Err(Error::config(format!(
                "{pattern} keeps nothing per entity that was measured; give only its ops"
            )));
        }
        if *ops > 0.0 && costs.pattern(pattern).is_none() {
            return Err(Error::config(format!(
                "the table has no cost of {pattern} on {}: measure it",
                costs.server
            )));
        }
        if !(*entities >= 0.0 && *ops >= 0.0 && parameter.unwrap_or(0.0) >= 0.0) {
            return Err(Error::config(format!("{pattern} has a negative number")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_nonsense_is_refused() {
        assert_eq!(quantity("100M").unwrap(), 1e8);
        assert_eq!(quantity("1_000").unwrap(), 1000.0);
        assert_eq!(rate("50k/s").unwrap(), 50_000.0);
        assert_eq!(count_and_rate("20M@5k/s").unwrap(), (2e7, Some(5000.0)));
        assert_eq!(days("31d").unwrap(), 31.0);
        for bad in ["", "k", "-5", "1e99", "lots"] {
            assert!(quantity(bad).is_err(), "{bad}");
        }
        assert!(rate("50k").is_err() && days("31").is_err() && days("0d").is_err());
    }

    #[test]
    fn a_file_says_the_same_as_flags() {
        let wanted = Wanted::parse(
            "users = '100M'\nsessions = '20M'\n[[need]]\npattern = 'mutex'\nentities = 10\nops = 5\n",
        )
        .unwrap();
        assert_eq!(wanted.users.as_deref(), Some("100M"));
        assert_eq!(wanted.need[0].ops, 5.0);
        assert!(Wanted::parse("user = 5").is_err());
    }
}
