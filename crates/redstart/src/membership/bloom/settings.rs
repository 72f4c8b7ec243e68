//! How a filter is stored, and how full it is.

/// Who stores the bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BloomMode {
    /// As the stored filter does; for a new one the server's own filters if it has them, bitmaps otherwise.
    #[default]
    Auto,
    /// The server's own filters, `BF.*`.
    Native,
    /// Bitmaps, on every server.
    Bitmap,
}

impl BloomMode {
    pub(super) fn name(self) -> &'static str {
        match self {
            BloomMode::Native => "native",
            BloomMode::Auto | BloomMode::Bitmap => "bitmap",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        [BloomMode::Native, BloomMode::Bitmap]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

/// What happens beyond the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BloomScaling {
    /// The size stays and the error grows.
    #[default]
    Fixed,
    /// The filter grows and the error stays, at the cost of 1.44 bits more per element and a look at each layer.
    Grow,
}

impl BloomScaling {
    pub(super) fn name(self) -> &'static str {
        match self {
            BloomScaling::Fixed => "fixed",
            BloomScaling::Grow => "grow",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        [BloomScaling::Fixed, BloomScaling::Grow]
            .into_iter()
            .find(|scaling| scaling.name() == name)
    }
}

/// How full a filter is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BloomStats {
    /// Elements that were new when they were added. Those wrongly taken for known are missing.
    pub elements: u64,
    /// Bits of memory.
    pub bits: u64,
    /// The share of bits that are set.
    pub fill: f64,
    /// The current probability of "probably yes" for an element that was never added.
    pub estimated_error: f64,
    /// Bits of memory per element; infinite for an empty filter.
    pub bits_per_element: f64,
    /// Partitions, each with its own hash tag.
    pub partitions: u32,
    /// Who stores the bits.
    pub mode: BloomMode,
}
