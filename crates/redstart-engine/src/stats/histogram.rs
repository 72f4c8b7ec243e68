//! How long a command took, in buckets of two significant digits.
//!
//! Values are nanoseconds up to a second. A bucket is exact below 256; above that its width is a
//! 128th of the power of two below its values, so that a value is off by less than one percent.

const HALF: usize = 128;
const LONGEST: u64 = 1_000_000_000;

#[derive(Default)]
pub(crate) struct Histogram {
    /// As many as were needed so far.
    counts: Vec<u32>,
    pub(crate) total: u64,
}

/// The bucket's place, and how far its values are shifted.
fn place(value: u64) -> (usize, u32) {
    let shift = (64 - (value | 255).leading_zeros()) - 8;
    let index = shift as usize * HALF + (value >> shift) as usize;
    (index, shift)
}

/// The largest value that falls into the same bucket.
fn largest_like(value: u64) -> u64 {
    let (_, shift) = place(value);
    (((value >> shift) + 1) << shift) - 1
}

fn largest_at(index: usize) -> u64 {
    let shift = if index < 2 * HALF {
        0
    } else {
        index / HALF - 1
    };
    let within = index - shift * HALF;
    ((within as u64 + 1) << shift) - 1
}

impl Histogram {
    pub(crate) fn record(&mut self, nanos: u64, count: u64) {
        let (index, _) = place(nanos.clamp(1, LONGEST));
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] = self.counts[index].saturating_add(count as u32);
        self.total += count;
    }

    /// The time in nanoseconds that this many percent of the calls did not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let wanted = ((percent / 100.0 * self.total as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                return largest_at(index);
            }
        }
        0
    }

    /// Pairs of a time in microseconds and how many calls took no longer, doubling from one to the
    /// next; those that add nothing are left out.
    pub(crate) fn doubling(&self) -> Vec<(u64, u64)> {
        let mut pairs = Vec::new();
        let (mut level, mut seen, mut index) = (1024, 0u64, 0);
        while seen < self.total {
            let bound = largest_like(level);
            let before = seen;
            while index < self.counts.len() && largest_at(index) <= bound {
                seen += u64::from(self.counts[index]);
                index += 1;
            }
            if seen > before {
                pairs.push((bound / 1000, seen));
            }
            if index >= self.counts.len() {
                break;
            }
            level *= 2;
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in (1..2000).chain([65_535, 65_536, 123_456_789, LONGEST]) {
            let (index, _) = place(value);
            let largest = largest_at(index);
            assert_eq!(largest, largest_like(value), "{value}");
            assert!(
                largest >= value && largest - value <= value / 128,
                "{value}"
            );
            assert!(index == 0 || largest_at(index - 1) < value, "{value}");
        }
    }

    #[test]
    fn percentiles_and_levels_are_those_of_the_server() {
        let mut histogram = Histogram::default();
        histogram.record(3_000, 1);
        histogram.record(9_000, 1);
        // As redis-server 7.0 prints 3.007 and 9.023 for calls of 3 and 9 microseconds.
        assert_eq!(histogram.percentile(50.0), 3_007);
        assert_eq!(histogram.percentile(99.0), 9_023);
        assert_eq!(histogram.doubling(), [(4, 1), (16, 2)]);
        histogram.record(39_000, 3);
        assert_eq!(histogram.doubling(), [(4, 1), (16, 2), (66, 5)]);
    }
}
