//! The one source of chance, so that a simulation can seed it.

use rand::distr::{
    Distribution, StandardUniform,
    uniform::{SampleRange, SampleUniform},
};

/// A random value of the whole type.
pub(crate) fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    #[cfg(feature = "sim")]
    if let Some(value) = crate::sim::draw(|rng| StandardUniform.sample(rng)) {
        return value;
    }
    rand::random()
}

/// A random value of a range, which must not be empty.
pub(crate) fn range<T, R>(range: R) -> T
where
    T: SampleUniform,
    R: SampleRange<T>,
{
    #[cfg(feature = "sim")]
    if crate::sim::is_here() {
        return crate::sim::draw_range(range);
    }
    rand::random_range(range)
}

/// The system's clock. For people who read lists of ids; no decision may depend on it.
#[cfg(feature = "messaging")]
pub(crate) fn unix_millis() -> u64 {
    #[cfg(feature = "sim")]
    if let Some(millis) = crate::sim::unix_millis() {
        return millis;
    }
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
