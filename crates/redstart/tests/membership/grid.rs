//! The error of a filter, measured over sizes and rates, on the bits that the server holds.
//!
//! A rate of 10⁻⁵ takes hundreds of millions of questions to measure. So the bits are read from the server, and the
//! questions are answered here, by the format that the module documents for other languages. That both give the same
//! answers is checked on some thousands of elements in each filter.

use std::time::Duration;

use redstart::{
    Store,
    membership::{Bloom, BloomMode},
};
use redstart_testkit::{Backend, matrix, scale};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// A filter as another program would read it.
struct Copy {
    partitions: Vec<Vec<u8>>,
    seed: u64,
    hashes: u64,
    bits: u64,
}

impl Copy {
    async fn read(store: &Store, namespace: &str, name: &str) -> anyhow::Result<Self> {
        let keys = store
            .scan(&format!("{namespace}:bloom:{{{name}/*}}:0"))
            .await?;
        let mut partitions = vec![Vec::new(); keys.len()];
        for key in keys {
            let bytes: Vec<u8> = store.query(redis::cmd("GET").arg(key)).await?;
            assert_eq!(&bytes[..4], b"RSB\x01");
            let number = u16::from_le_bytes(bytes[6..8].try_into()?);
            partitions[usize::from(number)] = bytes;
        }
        let head = &partitions[0];
        Ok(Self {
            seed: u64::from_le_bytes(head[20..28].try_into()?),
            hashes: u64::from(head[4]),
            bits: u64::from(u32::from_le_bytes(head[8..12].try_into()?)),
            partitions,
        })
    }

    fn contains(&self, element: &[u8]) -> bool {
        let of = xxh3_64_with_seed(element, !self.seed);
        let partition =
            &self.partitions[((u128::from(of) * self.partitions.len() as u128) >> 64) as usize];
        let hash = xxh3_128_with_seed(element, self.seed);
        let (mut x, mut y) = (hash as u64, (hash >> 64) as u64);
        for i in 0..self.hashes {
            let mut mixed = x;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            let bit = 368 + ((u128::from(mixed) * u128::from(self.bits)) >> 64) as u64;
            if partition[(bit / 8) as usize] & (0x80 >> (bit % 8)) == 0 {
                return false;
            }
            x = x.wrapping_add(y);
            y = y.wrapping_add(i + 1);
        }
        true
    }

    /// How many of these elements, none of which was added, are said to be in it.
    fn wrong(&self, strangers: std::ops::Range<u64>) -> u64 {
        let middle = strangers.start.midpoint(strangers.end);
        let count = |range: std::ops::Range<u64>| {
            range.filter(|n| self.contains(&n.to_le_bytes())).count() as u64
        };
        std::thread::scope(|scope| {
            let half = scope.spawn(|| count(strangers.start..middle));
            count(middle..strangers.end) + half.join().expect("no panic")
        })
    }
}

/// Members are below, strangers above.
const STRANGERS: u64 = 1 << 40;

matrix! {
    async fn the_observed_error_is_within_a_tenth_of_the_configured_one(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(30)).connect().await?;
        let largest = scale(1000, "BLOOM_GRID_SIZE");
        // How many wrong answers are expected in each cell of the grid, and how many small filters share them.
        let (expected, most) = (scale(20, "BLOOM_GRID_WRONG") as f64, scale(2, "BLOOM_GRID_FILTERS"));
        for n in [1_000u64, 10_000, 100_000, 1_000_000].into_iter().filter(|n| *n <= largest) {
            for p in [1e-2, 1e-3, 1e-4, 1e-5] {
                let filters = (30_000 / n).clamp(1, most);
                let questions = (expected / p / filters as f64) as u64;
                let (mut wrong, mut spread) = (0, 0.0);
                for number in 0..filters {
                    let name = format!("{n}-{p}-{number}");
                    let filter = Bloom::builder(&store, backend.namespace(), &name)
                        .capacity(n).error_rate(p).mode(BloomMode::Bitmap).create().await?;
                    let members: Vec<[u8; 8]> = (0..n).map(u64::to_le_bytes).collect();
                    for chunk in members.chunks(5000) {
                        filter.add_many(chunk).await?;
                    }
                    let copy = Copy::read(&store, backend.namespace(), &name).await?;
                    assert!(members.iter().all(|member| copy.contains(member)), "{name}: a member is missing");
                    // The server says the same as the copy.
                    let members: Vec<[u8; 8]> = members.into_iter().take(2000).collect();
                    assert!(filter.contains_many(&members).await?.into_iter().all(|found| found));
                    let some: Vec<[u8; 8]> = (STRANGERS..STRANGERS + 2000).map(u64::to_le_bytes).collect();
                    let here: Vec<bool> = some.iter().map(|one| copy.contains(one)).collect();
                    assert_eq!(filter.contains_many(&some).await?, here, "{name}");

                    let bytes: usize = copy.partitions.iter().map(Vec::len).sum();
                    let theory = n as f64 * (1.0 / p).ln() / std::f64::consts::LN_2.powi(2);
                    let ratio = bytes as f64 * 8.0 / theory;
                    assert!(ratio <= 1.05, "{name}: {ratio:.4} times the bits of theory");
                    // How full a filter becomes is chance too: its error scatters by so much around the configured one.
                    let bits = copy.bits as f64 * copy.partitions.len() as f64;
                    spread = copy.hashes as f64 * 2.0 * (0.0767 / bits).sqrt() / (filters as f64).sqrt();
                    let begin = STRANGERS + number * questions;
                    wrong += tokio::task::spawn_blocking(move || copy.wrong(begin..begin + questions)).await?;
                    filter.delete().await?;
                }
                let asked = questions * filters;
                let factor = wrong as f64 / (asked as f64 * p);
                // The test's own doubt. With 2,500 wrong answers expected, a tenth more is over four deviations in every
                // cell: a right filter fails one whole grid in some 10,000. With fewer it is five deviations instead.
                let doubt = (1.0 / (asked as f64 * p) + spread * spread).sqrt();
                let bound = if 4.0 * doubt <= 0.1 { 1.1 } else { 1.0 + 5.0 * doubt };
                println!("n {n}, p {p}: {wrong} wrong of {asked} in {filters} filters, {factor:.3} of the configured error (bound {bound:.3})");
                assert!(factor <= bound, "n {n}, p {p}: {factor:.3} of the configured error, bound {bound:.3}");
            }
        }
        Ok(())
    }
}
