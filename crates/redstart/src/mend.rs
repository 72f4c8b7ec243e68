//! Mends that the simulation can take out, to show that its judges notice.

/// Whether this mend is missing. Never, except in a simulated world that wants it so.
#[inline]
pub(crate) fn is_missing(mend: &str) -> bool {
    #[cfg(feature = "sim")]
    return crate::sim::is_broken(mend);
    #[cfg(not(feature = "sim"))]
    {
        let _ = mend;
        false
    }
}
