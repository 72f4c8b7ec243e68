//! Which server the engine emulates.

use std::{fmt, str::FromStr};

use crate::error::EngineError;

/// The server, by its version, whose commands the engine has and whose version it tells.
///
/// Replies of commands that all of them have are those of Redis 7.0. What came later is compared with Valkey 9.1; where
/// Redis words an error of its own for it, the text differs. Bloom filters (`BF.*`) are always there, as if by a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compat {
    /// Redis 7.0.
    #[default]
    Redis70,
    /// Redis 7.4: fields of hashes that expire, CLIENT SETINFO and NO-TOUCH, ZRANK WITHSCORE.
    Redis74,
    /// Redis 8.0: HGETEX, HSETEX and HGETDEL as well.
    Redis80,
    /// Redis 8.2: XACKDEL and XDELEX as well.
    Redis82,
    /// Valkey 9: what Redis 8.0 has, DELIFEQ, SET IFEQ, MSETEX, GEOSEARCH BYPOLYGON, CLIENT CAPA and the filters of CLIENT LIST
    /// and KILL, and SCRIPT SHOW.
    Valkey9,
}

/// Sets of versions: where a command exists.
pub(crate) mod versions {
    use super::Compat;

    pub(crate) const ALL: u8 = !0;
    pub(crate) const FROM_7_2: u8 = FROM_7_4;
    pub(crate) const FROM_7_4: u8 = Compat::Redis74.bit() | FROM_8_0;
    pub(crate) const FROM_8_0: u8 = Compat::Redis80.bit() | FROM_8_2 | VALKEY;
    pub(crate) const FROM_8_2: u8 = Compat::Redis82.bit();
    pub(crate) const VALKEY: u8 = Compat::Valkey9.bit();
}

impl Compat {
    /// All of them, oldest first.
    pub const ALL: [Compat; 5] = [
        Compat::Redis70,
        Compat::Redis74,
        Compat::Redis80,
        Compat::Redis82,
        Compat::Valkey9,
    ];

    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Whether this is one of a set of [`versions`].
    pub(crate) const fn is_in(self, versions: u8) -> bool {
        versions & self.bit() != 0
    }

    /// As it is written in settings.
    pub fn name(self) -> &'static str {
        match self {
            Compat::Redis70 => "7.0",
            Compat::Redis74 => "7.4",
            Compat::Redis80 => "8.0",
            Compat::Redis82 => "8.2",
            Compat::Valkey9 => "valkey-9",
        }
    }

    /// What HELLO calls the server.
    pub(crate) fn server(self) -> &'static str {
        match self {
            Compat::Valkey9 => "valkey",
            _ => "redis",
        }
    }

    /// The version that HELLO tells.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Compat::Valkey9 => "9.1.2",
            other => other.redis_version(),
        }
    }

    /// The version of Redis that INFO and scripts tell; Valkey tells the one that it came from.
    pub(crate) fn redis_version(self) -> &'static str {
        match self {
            Compat::Redis70 => "7.0.15",
            Compat::Redis74 => "7.4.0",
            Compat::Redis80 => "8.0.0",
            Compat::Redis82 => "8.2.0",
            Compat::Valkey9 => "7.2.4",
        }
    }

    /// [`Compat::redis_version`] as a number.
    pub(crate) fn redis_version_number(self) -> i64 {
        number(self.redis_version())
    }

    /// [`Compat::version`] as a number.
    pub(crate) fn version_number(self) -> i64 {
        number(self.version())
    }
}

/// A version with a byte for each part.
fn number(version: &str) -> i64 {
    let parts = version.split('.');
    parts.fold(0, |number, part| (number << 8) + part.parse().unwrap_or(0))
}

impl fmt::Display for Compat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compat {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Compat, EngineError> {
        Compat::ALL
            .into_iter()
            .find(|compat| compat.name() == text)
            .ok_or(EngineError::Setting(
                "compat must be 7.0, 7.4, 8.0, 8.2 or valkey-9",
            ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for compat in Compat::ALL {
            assert_eq!(compat.name().parse::<Compat>().unwrap(), compat);
        }
        assert!("6.2".parse::<Compat>().is_err());
    }

    #[test]
    fn versions_are_numbers_too() {
        assert_eq!(Compat::Redis70.redis_version_number(), 0x0007_000F);
    }
}
