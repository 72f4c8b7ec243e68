//! What a filter is made of, how it is written down, and where the bits of an element are.

use std::fmt::Write as _;

use super::{BloomMode, BloomScaling};
use crate::error::{Error, Result};

/// The version of the format: the header, the hash and the order of the bits.
const VERSION: u8 = 1;
/// Bytes of configuration at the start of every partition.
pub(super) const CONFIG_BYTES: usize = 36;
/// Bytes before the first bit: the configuration, the state, layers, elements added, the next generation.
pub(super) const HEADER_BYTES: u64 = 46;
pub(super) const MAX_LAYERS: u8 = 32;

/// The size of one bitmap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) capacity: u64,
    pub(super) error_rate: f64,
    pub(super) bits: u64,
    pub(super) hashes: u32,
}

impl Shape {
    /// The fewest bits, and the number of hashes for them, with which `capacity` elements give the error rate.
    pub(super) fn new(capacity: u64, error_rate: f64) -> Self {
        let best = (1.0 / error_rate).log2().round().max(1.0) as u32;
        // The number of hashes is whole, so the bits are more than n·ln(1/p)/ln²2, by less than 3 % for an
        // error rate of 0.1 or less.
        let bits = |hashes: u32| {
            let k = f64::from(hashes);
            let free = 1.0 - error_rate.powf(1.0 / k);
            (k * capacity as f64 / -free.ln()).ceil() as u64
        };
        let (bits, hashes) = (best.saturating_sub(1).max(1)..=best + 1)
            .map(|hashes| (bits(hashes), hashes))
            .min()
            .unwrap_or((1, 1));
        Self {
            capacity,
            error_rate,
            bits: bits.max(1),
            hashes,
        }
    }

    /// The offset of the last bit in the stored string.
    pub(super) fn last_bit(&self) -> u64 {
        HEADER_BYTES * 8 + self.bits - 1
    }

    /// The offsets of an element's bits in the stored string.
    pub(super) fn offsets(&self, element: &[u8], seed: u64) -> impl Iterator<Item = u64> {
        let hash = xxhash_rust::xxh3::xxh3_128_with_seed(element, seed);
        let (mut x, mut y) = (hash as u64, (hash >> 64) as u64);
        let bits = u128::from(self.bits);
        (0..u64::from(self.hashes)).map(move |i| {
            let offset = (u128::from(mix(x)) * bits) >> 64;
            x = x.wrapping_add(y);
            y = y.wrapping_add(i + 1);
            HEADER_BYTES * 8 + offset as u64
        })
    }
}

/// SplitMix64's finaliser. Without it, elements whose hashes are near each other would share most of their bits,
/// which at small error rates is seen: at 1,000 elements and 10⁻⁵ every sixth wrong "yes" would come from that.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What one generation of a filter is made of. All partitions have the same settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub(super) mode: BloomMode,
    pub(super) scaling: BloomScaling,
    pub(super) capacity: u64,
    pub(super) error_rate: f64,
    pub(super) key_bytes: u64,
    pub(super) partitions: u32,
    pub(super) seed: u64,
    pub(super) generation: u32,
}

impl Config {
    pub(super) fn new(
        mode: BloomMode,
        scaling: BloomScaling,
        capacity: u64,
        error_rate: f64,
        key_bytes: u64,
    ) -> Self {
        let whole = Shape::new(capacity, first_rate(scaling, error_rate)).bits;
        let most = (key_bytes - HEADER_BYTES) * 8;
        Self {
            mode,
            scaling,
            capacity,
            error_rate,
            key_bytes,
            partitions: u32::try_from(whole.div_ceil(most)).unwrap_or(u32::MAX),
            seed: crate::chance::random(),
            // Never used twice, so that nobody takes an abandoned generation for a later one. 0 means none.
            generation: crate::chance::random::<u32>().max(1),
        }
    }

    /// The shape of a layer: the first has a partition's share of the capacity, each further one twice as
    /// much for half the error, as far as a key may grow.
    pub(super) fn layer(&self, layer: u8) -> Shape {
        let share = self.capacity.div_ceil(u64::from(self.partitions)).max(1);
        let rate = first_rate(self.scaling, self.error_rate);
        if self.scaling == BloomScaling::Fixed || layer == 0 {
            return Shape::new(share, rate);
        }
        let rate = rate / 2f64.powi(i32::from(layer));
        let most = (self.key_bytes - HEADER_BYTES) * 8;
        let shape = Shape::new(share << layer.min(20), rate);
        if shape.bits <= most {
            return shape;
        }
        let fits = most as f64 / (shape.bits as f64 / shape.capacity as f64);
        Shape::new((fits * 0.999) as u64, rate)
    }

    /// Which partition an element belongs to.
    pub(super) fn partition(&self, element: &[u8]) -> usize {
        // Another hash than that of the bits: the elements of one partition must not have related bits.
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(element, !self.seed);
        ((u128::from(hash) * u128::from(self.partitions)) >> 64) as usize
    }

    /// The seed of a layer's bits.
    pub(super) fn layer_seed(&self, layer: u8) -> u64 {
        self.seed.wrapping_add(u64::from(layer))
    }

    /// The bytes that every script compares before it looks at a bit.
    pub(super) fn header(&self, partition: usize, layer: u8) -> [u8; CONFIG_BYTES] {
        let shape = self.layer(layer);
        let mut header = [0; CONFIG_BYTES];
        header[..3].copy_from_slice(b"RSB");
        header[3] = VERSION;
        header[4] = shape.hashes as u8;
        header[5] = layer;
        header[6..8].copy_from_slice(&(partition as u16).to_le_bytes());
        header[8..12].copy_from_slice(&(shape.bits as u32).to_le_bytes());
        header[12..16].copy_from_slice(&(shape.capacity as u32).to_le_bytes());
        header[16..20].copy_from_slice(&self.generation.to_le_bytes());
        header[20..28].copy_from_slice(&self.seed.to_le_bytes());
        header[28..36].copy_from_slice(&shape.error_rate.to_le_bytes());
        header
    }

    /// The text in the root, for people and for other languages.
    pub(super) fn text(&self) -> String {
        let shape = self.layer(0);
        let mut text = format!(
            "version={VERSION} mode={} scaling={}",
            self.mode.name(),
            self.scaling.name()
        );
        let _ = write!(
            text,
            " capacity={} error_rate={:?} key_bytes={} partitions={} bits={} hashes={} seed={} generation={}",
            self.capacity,
            self.error_rate,
            self.key_bytes,
            self.partitions,
            shape.bits,
            shape.hashes,
            self.seed,
            self.generation
        );
        text
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let field = |name: &str| {
            text.split(' ')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let number = |name: &str| field(name)?.parse::<u64>().ok();
        let parsed = (|| {
            let mode = BloomMode::named(field("mode")?)?;
            let scaling = BloomScaling::named(field("scaling")?)?;
            Some(Self {
                mode,
                scaling,
                capacity: number("capacity").filter(|n| *n > 0)?,
                error_rate: field("error_rate")?.parse().ok()?,
                key_bytes: number("key_bytes").filter(|bytes| *bytes > HEADER_BYTES)?,
                partitions: u32::try_from(number("partitions")?)
                    .ok()
                    .filter(|n| *n > 0)?,
                seed: number("seed")?,
                generation: u32::try_from(number("generation")?).ok()?,
            })
        })();
        match parsed {
            // Bits and hashes follow from the rest; if they do not, another program chose them.
            Some(config) if config.text() == text => Ok(config),
            _ => Err(Error::config(
                "the stored filter was created by a different version of this pattern",
            )),
        }
    }
}

/// Layers of a growing filter share the error rate: a half, a quarter, an eighth …
fn first_rate(scaling: BloomScaling, error_rate: f64) -> f64 {
    match scaling {
        BloomScaling::Fixed => error_rate,
        BloomScaling::Grow => error_rate / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use redstart_testkit::scale;

    use super::*;

    #[test]
    fn bits_are_near_the_theoretical_minimum_header_included() {
        for n in [1_000u64, 10_000, 100_000, 1_000_000, 50_000_000] {
            for p in [1e-2, 1e-3, 1e-4, 1e-5] {
                let config = Config::new(BloomMode::Bitmap, BloomScaling::Fixed, n, p, 8 << 20);
                let used = u64::from(config.partitions) * (config.layer(0).bits + HEADER_BYTES * 8);
                let theory = n as f64 * (1.0 / p).ln() / std::f64::consts::LN_2.powi(2);
                let ratio = used as f64 / theory;
                assert!(ratio <= 1.05, "{ratio:.4} for {n} at {p}");
                assert!(config.layer(0).last_bit() < (8 << 20) * 8);
            }
        }
    }

    #[test]
    fn the_observed_error_is_the_configured_one() {
        let bits_of = |config: &Config, element: &[u8]| {
            let offsets: Vec<u64> = config.layer(0).offsets(element, config.seed).collect();
            offsets
        };
        // The larger sizes are for the soak: 10⁶ elements and 10⁷ questions.
        let sizes: Vec<u64> = [1_000, 10_000, 100_000, 1_000_000]
            .into_iter()
            .filter(|n| *n <= scale(10_000, "BLOOM_ELEMENTS"))
            .collect();
        let questions = scale(200_000, "BLOOM_QUESTIONS");
        for n in sizes {
            for p in [1e-2, 1e-3, 1e-4, 1e-5] {
                let config = Config::new(BloomMode::Bitmap, BloomScaling::Fixed, n, p, 8 << 20);
                let mut set = vec![false; config.layer(0).last_bit() as usize + 1];
                for element in 0..n {
                    for bit in bits_of(&config, format!("in-{element}").as_bytes()) {
                        set[bit as usize] = true;
                    }
                }
                let wrong = (0..questions)
                    .filter(|element| {
                        bits_of(&config, format!("out-{element}").as_bytes())
                            .iter()
                            .all(|bit| set[*bit as usize])
                    })
                    .count() as f64;
                // What chance alone may add: four deviations of the count.
                let expected = questions as f64 * p;
                let bound = 1.1 * expected + 4.0 * expected.sqrt() + 1.0;
                assert!(wrong <= bound, "{wrong} wrong of {questions}, n {n}, p {p}");
            }
        }
    }

    #[test]
    fn the_hash_is_fixed() {
        // Another program must find the same bits; a change here is a new version of the format.
        let shape = Shape::new(1_000, 0.01);
        assert_eq!((shape.bits, shape.hashes), (9593, 7));
        let offsets: Vec<u64> = shape.offsets(b"redstart", 7).collect();
        assert_eq!(offsets, [6865, 1396, 5793, 5710, 9888, 3673, 4098]);
    }

    #[test]
    fn a_configuration_is_read_as_it_was_written() {
        let config = Config::new(
            BloomMode::Native,
            BloomScaling::Grow,
            12_345,
            0.003,
            1 << 20,
        );
        assert_eq!(Config::parse(&config.text()).expect("its own text"), config);
        for text in [
            "",
            "version=2",
            &config.text().replace("hashes=", "hashes=1"),
        ] {
            assert!(Config::parse(text).expect_err("not ours").is_config());
        }
    }

    #[test]
    fn layers_grow_until_the_key_is_full() {
        let config = Config::new(BloomMode::Bitmap, BloomScaling::Grow, 1_000, 0.01, 64 << 10);
        let mut sum = 0.0;
        for layer in 0..MAX_LAYERS {
            let shape = config.layer(layer);
            assert!(shape.last_bit() < (64 << 10) * 8, "layer {layer}");
            assert!(shape.capacity >= 1_000);
            sum += shape.error_rate;
        }
        assert!(sum <= 0.01);
    }
}
