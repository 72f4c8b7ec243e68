//! One setting: its name, what its values look like, and where the value lives.

use bytes::Bytes;

use super::Config;
use crate::{compat::versions, number::parse_int};

/// What a setting's values look like.
pub(crate) enum Kind {
    Bool,
    /// One of these words.
    Enum(&'static [&'static str]),
    /// A number from one to another.
    Int(i64, i64),
    /// A number of bytes from this on, below 2^63.
    Memory(i64),
    /// A number of bytes below 2^64.
    Unsigned,
    /// A number of bytes, or a percentage, which is kept as a negative number.
    MemoryOrPercent,
    /// File permissions.
    Octal,
    Text,
    /// Text with a rule.
    Checked(fn(&[u8]) -> Result<(), String>),
    /// Several words; the first argument has the values of now.
    Words(fn(&Config, &[Bytes]) -> Result<String, String>),
}

/// A value that has passed the checks of its [`Kind`].
pub(crate) struct Given {
    /// As CONFIG GET shows it.
    pub(crate) text: Bytes,
    /// Of a number; 1 for `yes`; the place of a word.
    pub(crate) number: i64,
}

/// A setting that the engine acts on.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub(crate) get: fn(&Config) -> String,
    pub(crate) set: fn(&mut Config, &Given) -> Result<(), String>,
}

pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) alias: Option<&'static str>,
    pub(crate) kind: Kind,
    pub(crate) default: &'static str,
    /// Only a configuration file may set it.
    pub(crate) immutable: bool,
    /// Only with `enable-protected-configs`.
    pub(crate) protected: bool,
    /// Without one, the value is remembered.
    pub(crate) field: Option<Field>,
    /// Which servers have it: a set of [`versions`].
    pub(crate) versions: u8,
}

/// A setting by one of its names.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// The name that was asked for, which may be an alias.
    pub(crate) name: &'static str,
    pub(crate) parameter: &'static Parameter,
}

impl Parameter {
    pub(super) const fn new(name: &'static str, kind: Kind, default: &'static str) -> Parameter {
        Parameter {
            name,
            alias: None,
            kind,
            default,
            immutable: false,
            protected: false,
            field: None,
            versions: versions::ALL,
        }
    }

    /// A setting that only these [`versions`] have.
    pub(super) const fn only(mut self, versions: u8) -> Parameter {
        self.versions = versions;
        self
    }

    pub(super) const fn alias(mut self, alias: &'static str) -> Parameter {
        self.alias = Some(alias);
        self
    }

    pub(super) const fn immutable(mut self) -> Parameter {
        self.immutable = true;
        self
    }

    pub(super) const fn protected(mut self) -> Parameter {
        self.protected = true;
        self
    }

    pub(super) const fn acts(
        mut self,
        get: fn(&Config) -> String,
        set: fn(&mut Config, &Given) -> Result<(), String>,
    ) -> Parameter {
        self.field = Some(Field { get, set });
        self
    }

    /// The value as CONFIG GET shows it.
    pub(crate) fn get(&self, config: &Config) -> Bytes {
        match self.field {
            Some(field) => (field.get)(config).into(),
            None => match config.remembered.get(self.name) {
                Some(text) => text.clone(),
                None => Bytes::from_static(self.default.as_bytes()),
            },
        }
    }

    /// Whether a value may consist of several words.
    pub(crate) fn takes_words(&self) -> bool {
        matches!(self.kind, Kind::Words(_))
    }

    /// Changes the value, or says what is wrong with it.
    pub(crate) fn set(&self, config: &mut Config, words: &[Bytes]) -> Result<(), String> {
        let given = self.check(config, words)?;
        match self.field {
            Some(field) => (field.set)(config, &given),
            None => {
                if given.text.as_ref() == self.default.as_bytes() {
                    config.remembered.remove(self.name);
                } else {
                    config.remembered.insert(self.name, given.text);
                }
                Ok(())
            }
        }
    }

    fn check(&self, config: &Config, words: &[Bytes]) -> Result<Given, String> {
        if let Kind::Words(parse) = self.kind {
            let text = parse(config, words)?;
            return Ok(Given {
                text: text.into(),
                number: 0,
            });
        }
        let [word] = words else {
            return Err("wrong number of arguments".into());
        };
        let numeric = |number: i64| Given {
            text: number.to_string().into(),
            number,
        };
        let word_given = |text: &'static str, number: usize| Given {
            text: text.into(),
            number: number as i64,
        };
        match &self.kind {
            Kind::Bool => match word.to_ascii_lowercase().as_slice() {
                b"yes" => Ok(word_given("yes", 1)),
                b"no" => Ok(word_given("no", 0)),
                _ => Err("argument must be 'yes' or 'no'".into()),
            },
            Kind::Enum(names) => one_of(names, word)
                .map(|at| word_given(names[at], at))
                .ok_or_else(|| not_one_of(names)),
            Kind::Int(min, max) => {
                let number =
                    parse_int(word).ok_or("argument couldn't be parsed into an integer")?;
                in_range(number, *min, *max).map(numeric)
            }
            Kind::Memory(min) => {
                let bytes = memory(word).ok_or("argument must be a memory value")?;
                match i64::try_from(bytes) {
                    Ok(bytes) => in_range(bytes, *min, i64::MAX).map(numeric),
                    Err(_) => Err(out_of_range(*min, i64::MAX)),
                }
            }
            Kind::Unsigned => {
                let bytes = memory(word).ok_or("argument must be a memory value")?;
                Ok(Given {
                    text: bytes.to_string().into(),
                    number: bytes as i64,
                })
            }
            Kind::MemoryOrPercent => memory_or_percent(word),
            Kind::Octal => {
                let text = std::str::from_utf8(word).unwrap_or_default();
                let number = i64::from_str_radix(text, 8)
                    .map_err(|_| "argument couldn't be parsed as an octal number")?;
                in_range(number, 0, 0o777).map(|number| Given {
                    text: format!("{number:o}").into(),
                    number,
                })
            }
            Kind::Checked(check) => check(word).map(|()| Given {
                text: word.clone(),
                number: 0,
            }),
            Kind::Text | Kind::Words(_) => Ok(Given {
                text: word.clone(),
                number: 0,
            }),
        }
    }
}

pub(super) fn one_of(names: &[&str], word: &[u8]) -> Option<usize> {
    names
        .iter()
        .position(|name| name.as_bytes().eq_ignore_ascii_case(word))
}

pub(super) fn not_one_of(names: &[&str]) -> String {
    format!(
        "argument(s) must be one of the following: {}",
        names.join(", ")
    )
}

fn out_of_range(min: i64, max: i64) -> String {
    format!("argument must be between {min} and {max} inclusive")
}

fn in_range(number: i64, min: i64, max: i64) -> Result<i64, String> {
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(out_of_range(min, max))
    }
}

fn memory_or_percent(word: &[u8]) -> Result<Given, String> {
    const WRONG: &str = "argument must be a memory or percent value";
    let number = match word.strip_suffix(b"%") {
        Some(digits) => {
            let percent = std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse::<u32>().ok())
                .ok_or(WRONG)?;
            if percent > 100 {
                return Err("percentage argument must be less or equal to 100".into());
            }
            -i64::from(percent)
        }
        None => memory(word).ok_or(WRONG)? as i64,
    };
    let text = match number {
        ..0 => format!("{}%", number.unsigned_abs()),
        _ => number.to_string(),
    };
    Ok(Given {
        text: text.into(),
        number,
    })
}

/// A number of bytes with an optional unit: `k` is a thousand, `kb` is 1024, and so on. As in
/// Redis, nothing is zero, and what is too large wraps around.
pub(crate) fn memory(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let factor: u64 = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    let number = match &text[..digits] {
        "" => 0,
        digits => digits.parse().unwrap_or(u64::MAX),
    };
    Some(number.wrapping_mul(factor))
}

/// A number of bytes with the largest unit that divides it, as CONFIG REWRITE writes it.
pub(super) fn memory_text(bytes: u64) -> String {
    for (unit, size) in [("gb", 1u64 << 30), ("mb", 1 << 20), ("kb", 1 << 10)] {
        if bytes > 0 && bytes.is_multiple_of(size) {
            return format!("{}{unit}", bytes / size);
        }
    }
    bytes.to_string()
}
