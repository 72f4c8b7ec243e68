//! Which key an operation goes to: uniform, Zipf or one hot key.

use std::{fmt, str::FromStr};

use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};

/// How operations are spread over the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Spread {
    /// Every key is as likely as any other.
    Uniform,
    /// Key *n* is chosen with a weight of 1/*n*^s, as in most real traffic; s is from 0.1 to 5, and 1 by default.
    Zipf(f64),
    /// This share of the operations goes to one key, the rest is uniform.
    Hot(f64),
}

impl FromStr for Spread {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => {
                let number = number
                    .parse::<f64>()
                    .map_err(|_| format!("{number:?} is not a number"))?;
                (name, Some(number))
            }
            None => (text, None),
        };
        match (name, number) {
            ("uniform", None) => Ok(Self::Uniform),
            ("zipf", s) if (0.1..=5.0).contains(&s.unwrap_or(1.0)) => {
                Ok(Self::Zipf(s.unwrap_or(1.0)))
            }
            ("hot", share) if (0.0..=1.0).contains(&share.unwrap_or(0.9)) => {
                Ok(Self::Hot(share.unwrap_or(0.9)))
            }
            _ => Err(
                "expected uniform, zipf, zipf:<exponent 0.1 to 5>, hot or hot:<share 0 to 1>"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(s) => write!(f, "zipf:{s}"),
            Self::Hot(share) => write!(f, "hot:{share}"),
        }
    }
}

/// Draws keys for one client.
#[derive(Clone, Debug)]
pub struct KeyChoice {
    keys: u64,
    spread: Spread,
    rng: SmallRng,
}

impl KeyChoice {
    /// A chooser of keys below `keys`; the same seed draws the same keys.
    pub fn new(keys: u64, spread: Spread, seed: u64) -> Self {
        Self {
            keys: keys.max(1),
            spread,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// The next key.
    pub fn key(&mut self) -> u64 {
        match self.spread {
            Spread::Uniform => self.rng.random_range(0..self.keys),
            Spread::Hot(share) => {
                if self.rng.random_bool(share) {
                    0
                } else {
                    self.rng.random_range(0..self.keys)
                }
            }
            Spread::Zipf(s) => self.zipf(s),
        }
    }

    /// A number from 0 to 1, for the choice between a read and a write.
    pub fn fraction(&mut self) -> f64 {
        self.rng.random()
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.rng.random()
    }

    /// Zipf by rejection (Devroye): constant time for any number of keys, so a billion keys need no table.
    fn zipf(&mut self, s: f64) -> u64 {
        let n = self.keys as f64;
        let harmonic = |x: f64| {
            if (s - 1.0).abs() < 1e-9 {
                x.ln()
            } else {
                (x.powf(1.0 - s) - 1.0) / (1.0 - s)
            }
        };
        let inverse = |y: f64| {
            if (s - 1.0).abs() < 1e-9 {
                y.exp()
            } else {
                (1.0 + y * (1.0 - s)).powf(1.0 / (1.0 - s))
            }
        };
        // The density x^-s over [1, n + 1), drawn by inversion, is above the wanted weight of every key.
        let total = harmonic(n + 1.0);
        loop {
            let x = inverse(self.rng.random::<f64>() * total);
            let key = x.floor().clamp(1.0, n);
            let weight = key.powf(-s);
            // What inversion gives key: the integral of x^-s from key to key + 1, which is below key^-s.
            let given = harmonic(key + 1.0) - harmonic(key);
            // given / weight is smallest for the first key, so its ratio scales the acceptance.
            let first = harmonic(2.0) - harmonic(1.0);
            if self.rng.random::<f64>() * given <= weight * first {
                return key as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_draws_each_key_by_its_weight() {
        for s in [0.5, 1.0, 1.5] {
            let keys = 50;
            let mut choice = KeyChoice::new(keys, Spread::Zipf(s), 7);
            let mut drawn = vec![0u32; keys as usize];
            let draws = 400_000;
            for _ in 0..draws {
                drawn[choice.key() as usize] += 1;
            }
            let total: f64 = (1..=keys).map(|n| (n as f64).powf(-s)).sum();
            for (index, count) in drawn.iter().enumerate() {
                let expected = draws as f64 * ((index + 1) as f64).powf(-s) / total;
                // Six standard deviations.
                let reach = 6.0 * expected.sqrt();
                assert!(
                    (f64::from(*count) - expected).abs() < reach,
                    "s {s}, key {index}: {count}, expected {expected:.0}"
                );
            }
        }
    }

    #[test]
    fn a_hot_key_gets_its_share() {
        let mut choice = KeyChoice::new(1000, Spread::Hot(0.8), 7);
        let hot = (0..100_000).filter(|_| choice.key() == 0).count();
        assert!((79_000..81_500).contains(&hot), "{hot}");
    }

    #[test]
    fn spreads_are_read_as_they_are_written() {
        for text in ["uniform", "zipf:1.2", "hot:0.5"] {
            assert_eq!(text.parse::<Spread>().unwrap().to_string(), text);
        }
        assert_eq!("zipf".parse(), Ok(Spread::Zipf(1.0)));
        assert!("zipf:9".parse::<Spread>().is_err());
        assert!("hot:2".parse::<Spread>().is_err());
        assert!("cold".parse::<Spread>().is_err());
    }
}
