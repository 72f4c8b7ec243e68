//! Domains and descriptors of the configuration: which limiter a gateway's descriptor is counted by.
//!
//! ```toml
//! [[domain]]
//! name = "edge"
//!
//! [[domain.descriptor]]             # each address has the limit of [limiter.per-address]
//! key = "remote_address"
//! limiter = "per-address"
//!
//! [[domain.descriptor]]
//! key = "path"
//! value = "/login*"                 # paths that begin with /login
//!
//! [[domain.descriptor.descriptor]]  # … and then an address
//! key = "remote_address"
//! limiter = "login"
//! ```

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use toml::Spanned;

use super::message::Entry;
use crate::{
    call::OWN_NAMESPACE,
    config::{LimiterConfig, Name},
};

/// The most bytes of a domain's name.
const MAX_NAME: usize = 128;

/// The descriptors of one gateway, or of one part of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainConfig {
    pub(crate) name: Spanned<String>,
    /// The namespace in which it counts, in place of the configuration's.
    pub(crate) namespace: Option<Name>,
    /// Decides, and lets everything pass.
    #[serde(default)]
    pub(crate) shadow: bool,
    #[serde(default)]
    descriptor: Vec<DescriptorConfig>,
}

/// One key, or one key with one value, and what follows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DescriptorConfig {
    key: Spanned<String>,
    /// Missing: any value, each counted for itself. With a `*` at its end: any that begins so.
    value: Option<String>,
    limiter: Option<Spanned<String>>,
    #[serde(default)]
    unlimited: bool,
    #[serde(default)]
    pub(crate) shadow: bool,
    #[serde(default)]
    descriptor: Vec<DescriptorConfig>,
}

/// What holds for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule<'c> {
    /// It is counted by this limiter of the configuration.
    Limiter { name: &'c str, shadow: bool },
    /// It always passes.
    Unlimited,
}

impl DomainConfig {
    /// What holds for these entries: the rule of the descriptor that matches all of them, and no fewer. Of several
    /// descriptors for one key, an exact value comes first, then the first prefix that fits, then the one without a value.
    pub(crate) fn find(&self, entries: &[Entry]) -> Option<Rule<'_>> {
        let (last, first) = entries.split_last()?;
        let mut level = &self.descriptor;
        for entry in first {
            level = &closest(level, entry)?.descriptor;
        }
        closest(level, last)?.rule()
    }
}

fn closest<'c>(level: &'c [DescriptorConfig], entry: &Entry) -> Option<&'c DescriptorConfig> {
    let of_key = || {
        level
            .iter()
            .filter(|known| *known.key.get_ref() == entry.key)
    };
    let exact = of_key().find(|known| known.value.as_deref() == Some(&entry.value));
    let prefix = || of_key().find(|known| known.has_prefix_of(&entry.value));
    exact
        .or_else(prefix)
        .or_else(|| of_key().find(|known| known.value.is_none()))
}

impl DescriptorConfig {
    fn has_prefix_of(&self, value: &str) -> bool {
        let prefix = self.value.as_deref().and_then(|v| v.strip_suffix('*'));
        prefix.is_some_and(|prefix| value.starts_with(prefix))
    }

    fn rule(&self) -> Option<Rule<'_>> {
        match &self.limiter {
            Some(name) => Some(Rule::Limiter {
                name: name.get_ref(),
                shadow: self.shadow,
            }),
            None => self.unlimited.then_some(Rule::Unlimited),
        }
    }

    fn check(&self, limiters: &BTreeMap<String, LimiterConfig>) -> Result<(), Fault> {
        let fault = |what: &str| Err((self.key.span().start, what.to_owned()));
        if self.key.get_ref().is_empty() {
            return fault("the key of a descriptor must not be empty");
        }
        if self.value.as_deref() == Some("") {
            return fault(
                "the value of a descriptor must not be empty; leave it out for any value",
            );
        }
        if self.limiter.is_some() && self.unlimited {
            return fault("a descriptor has a limiter or is unlimited, not both");
        }
        if let Some(name) = &self.limiter
            && !limiters.contains_key(name.get_ref())
        {
            let what = format!("there is no [limiter.{}]", name.get_ref());
            return Err((name.span().start, what));
        }
        if self.rule().is_none() && self.descriptor.is_empty() {
            return fault(
                "a descriptor needs a limiter, unlimited = true, or descriptors below it",
            );
        }
        check_level(&self.descriptor, limiters)
    }
}

/// Where in the file, and what is wrong there.
type Fault = (usize, String);

fn check_level(
    level: &[DescriptorConfig],
    limiters: &BTreeMap<String, LimiterConfig>,
) -> Result<(), Fault> {
    let mut seen = HashSet::new();
    for descriptor in level {
        if !seen.insert((descriptor.key.get_ref(), &descriptor.value)) {
            let what = "two descriptors have the same key and value".to_owned();
            return Err((descriptor.key.span().start, what));
        }
        descriptor.check(limiters)?;
    }
    Ok(())
}

/// Checks what the types of the file cannot say.
pub(crate) fn check(
    domains: &[DomainConfig],
    limiters: &BTreeMap<String, LimiterConfig>,
) -> Result<(), Fault> {
    let mut seen = HashSet::new();
    for domain in domains {
        let (name, at) = (domain.name.get_ref(), domain.name.span().start);
        if name.is_empty() || name.len() > MAX_NAME || !seen.insert(name) {
            let what = format!("the names of domains must have 1 to {MAX_NAME} bytes and differ");
            return Err((at, what));
        }
        if domain
            .namespace
            .as_ref()
            .is_some_and(|own| own.0 == OWN_NAMESPACE)
        {
            return Err((at, "this namespace is the service's own".to_owned()));
        }
        check_level(&domain.descriptor, limiters)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    const FILE: &str = r#"
[limiter.a]
quota = "1/m"
[limiter.b]
quota = "2/m"
[limiter.c]
quota = "3/m"
[limiter.d]
quota = "4/m"

[[domain]]
name = "edge"
[[domain.descriptor]]
key = "path"
value = "/login"
limiter = "a"
[[domain.descriptor]]
key = "path"
value = "/log*"
limiter = "b"
[[domain.descriptor]]
key = "path"
limiter = "c"
[[domain.descriptor]]
key = "user"
[[domain.descriptor.descriptor]]
key = "path"
value = "/free"
unlimited = true
[[domain.descriptor.descriptor]]
key = "path"
limiter = "d"
shadow = true
"#;

    fn entries(pairs: &[(&str, &str)]) -> Vec<Entry> {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        pairs.iter().map(entry).collect()
    }

    #[test]
    fn the_closest_descriptor_of_the_same_depth_decides() {
        let config = Config::parse(FILE).unwrap();
        let find = |pairs: &[(&str, &str)]| config.domain[0].find(&entries(pairs));
        let limiter = |name| {
            Some(Rule::Limiter {
                name,
                shadow: false,
            })
        };
        assert_eq!(find(&[("path", "/login")]), limiter("a"));
        assert_eq!(find(&[("path", "/logout")]), limiter("b"));
        assert_eq!(find(&[("path", "/cart")]), limiter("c"));
        assert_eq!(
            find(&[("user", "7"), ("path", "/free")]),
            Some(Rule::Unlimited)
        );
        let shadow = Rule::Limiter {
            name: "d",
            shadow: true,
        };
        assert_eq!(find(&[("user", "7"), ("path", "/cart")]), Some(shadow));
        assert_eq!(find(&[("user", "7")]), None, "less than the descriptor has");
        assert_eq!(
            find(&[("path", "/login"), ("user", "7")]),
            None,
            "more than the descriptor has"
        );
        assert_eq!(find(&[("method", "GET")]), None);
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn errors_in_descriptors_name_the_line() {
        let head = "[limiter.a]\nquota = \"1/m\"\n[[domain]]\nname = \"edge\"\n";
        for (rest, line, word) in [
            (
                "[[domain.descriptor]]\nkey = \"k\"\nlimiter = \"b\"",
                7,
                "limiter.b",
            ),
            (
                "[[domain.descriptor]]\nkey = \"\"\nlimiter = \"a\"",
                6,
                "empty",
            ),
            ("[[domain.descriptor]]\nkey = \"k\"", 6, "needs"),
            (
                "[[domain.descriptor]]\nkey = \"k\"\nvalue = \"\"\nlimiter = \"a\"",
                6,
                "empty",
            ),
            (
                "[[domain.descriptor]]\nkey = \"k\"\nlimiter = \"a\"\nunlimited = true",
                6,
                "both",
            ),
            (
                "[[domain.descriptor]]\nkey = \"k\"\nlimiter = \"a\"\n[[domain.descriptor]]\nkey = \"k\"\nlimiter = \"a\"",
                9,
                "same",
            ),
            (
                "[[domain.descriptor]]\nkey = \"k\"\n[[domain.descriptor.descriptor]]\nkey = \"l\"\nlimiter = \"x\"",
                9,
                "limiter.x",
            ),
            ("[[domain]]\nname = \"edge\"", 6, "differ"),
            ("namespace = \"redstart-serve\"", 4, "own"),
            ("colour = 1", 5, "colour"),
        ] {
            let error = Config::parse(&format!("{head}{rest}"))
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("line {line}: ")),
                "{rest:?}: {error}"
            );
            assert!(error.contains(word), "{rest:?}: {error}");
        }
    }
}
