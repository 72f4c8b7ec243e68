//! Counts per second, minute, hour or day, for dashboards.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;

use crate::{
    error::{Error, Result},
    key::{Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

pub(super) static ADD: Script = Script::new("windowed.add", include_str!("windowed/add.lua"));
pub(super) static SERIES: Script =
    Script::new("windowed.series", include_str!("windowed/series.lua"));

/// The length of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowSize {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day of UTC.
    Day,
}

impl WindowSize {
    fn seconds(self) -> u32 {
        match self {
            WindowSize::Second => 1,
            WindowSize::Minute => 60,
            WindowSize::Hour => 3600,
            WindowSize::Day => 86400,
        }
    }
}

/// One window of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowCount {
    /// When the window began, by the server's clock.
    pub start: Timestamp,
    /// What was counted in it.
    pub count: i64,
}

/// Counters by window of time.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, counting::{WindowSize, Windowed}};
/// let store = Store::connect("memory://").await?;
/// let hits = Windowed::new(&store, "site", "hits", WindowSize::Minute, 60)?;
///
/// hits.add("/home", 2).await?;
/// store.advance(Duration::from_secs(120))?;
/// hits.add("/home", 5).await?;
///
/// let counts: Vec<i64> = hits.series("/home", 4).await?.iter().map(|window| window.count).collect();
/// assert_eq!(counts, [0, 2, 0, 5]);
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - A count goes into the window of the *server's* time. No client's clock decides anything.
/// - State is bounded: the first count of a window removes the windows that are no longer kept, and the whole
///   counter expires when nothing is counted any more.
/// - [`series`](Self::series) returns every window, with zeros where nothing was counted.
/// - Each counter stores the length of its windows. An instance with another length gets an error and writes
///   nothing. If instances keep different numbers of windows, the largest number applies.
///
/// # Keys
///
/// `<ns>:windowed.<name>:{<counter>}`, a hash of window → count.
///
/// # Round trips
///
/// One per call. `add` is O(1), except for the first count of a window, which scans all windows once, about 0.3 µs of
/// the server's time for each; `series` reads all of them, about as long. With 10,000 windows that is 3 ms.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `windowed.add`, `windowed.series`.
#[derive(Clone, Debug)]
pub struct Windowed {
    store: Store,
    keys: Keys,
    size: WindowSize,
    retain: u32,
}

/// Settings of [`Windowed`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct WindowedBuilder {
    store: Store,
    namespace: String,
    name: String,
    size: WindowSize,
    retain: u32,
    layout: Option<Layout>,
}

impl WindowedBuilder {
    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Builds the counters.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, or if the number of windows to keep is 0 or
    /// over [`Windowed::MAX_WINDOWS`].
    pub fn build(self) -> Result<Windowed> {
        if !(1..=Windowed::MAX_WINDOWS).contains(&self.retain) {
            return Err(Error::config(format!(
                "between 1 and {} windows can be kept, not {}",
                Windowed::MAX_WINDOWS,
                self.retain
            )));
        }
        let mut keys = Keys::named(&self.namespace, "windowed", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Windowed {
            store: self.store,
            keys,
            size: self.size,
            retain: self.retain,
        })
    }
}

impl Windowed {
    /// The largest number of windows to keep.
    pub const MAX_WINDOWS: u32 = 10_000;

    /// Builds the counters `name` with windows of the given size, of which the last `retain` are kept.
    pub fn builder(
        store: &Store,
        namespace: &str,
        name: &str,
        size: WindowSize,
        retain: u32,
    ) -> WindowedBuilder {
        WindowedBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            size,
            retain,
            layout: None,
        }
    }

    /// The counters `name` with default settings.
    ///
    /// # Errors
    ///
    /// As [`WindowedBuilder::build`].
    pub fn new(
        store: &Store,
        namespace: &str,
        name: &str,
        size: WindowSize,
        retain: u32,
    ) -> Result<Self> {
        Self::builder(store, namespace, name, size, retain).build()
    }

    /// Adds to the window that the server's clock is in, and returns its count.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the counter has windows of another length; otherwise those of the
    /// [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `n` may or may not have been added.
    pub async fn add(&self, counter: &str, n: i64) -> Result<i64> {
        let entity = self.keys.entity(counter)?;
        observe::operation("windowed.add", self.keys.namespace(), async {
            let call = ADD
                .on(&entity)
                .key()
                .arg(n)
                .arg(self.size.seconds())
                .arg(self.retain);
            let (count, length): (i64, u32) = call.run(&self.store).await?;
            self.check_length(length)?;
            Ok(count)
        })
        .await
    }

    /// The last `windows` windows, the oldest first, the current one last.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if more windows are asked for than are kept, or if the counter has windows of
    /// another length; otherwise those of the [store](Store::query).
    pub async fn series(&self, counter: &str, windows: u32) -> Result<Vec<WindowCount>> {
        if !(1..=self.retain).contains(&windows) {
            return Err(Error::config(format!(
                "{windows} windows were requested, but only {} are kept",
                self.retain
            )));
        }
        let entity = self.keys.entity(counter)?;
        observe::operation("windowed.series", self.keys.namespace(), async {
            let call = SERIES.on(&entity).key().idempotent();
            let (now, counts): (i64, HashMap<String, i64>) = call.run(&self.store).await?;
            let length = i64::from(self.size.seconds());
            if let Some(stored) = counts.get("window") {
                self.check_length(u32::try_from(*stored).unwrap_or(0))?;
            }
            let current = now - now.rem_euclid(length);
            (0..i64::from(windows))
                .rev()
                .map(|back| {
                    let start = current - back * length;
                    let count = counts.get(&start.to_string()).copied().unwrap_or(0);
                    let start = Timestamp::from_second(start)
                        .map_err(|e| Error::codec("server time out of range").with_source(e))?;
                    Ok(WindowCount { start, count })
                })
                .collect()
        })
        .await
    }

    fn check_length(&self, stored: u32) -> Result<()> {
        if stored == self.size.seconds() {
            return Ok(());
        }
        Err(Error::config(format!(
            "the counter has windows of {stored} s, not of {} s",
            self.size.seconds()
        )))
    }

    /// How long a counter lives after its last count.
    pub fn retention(&self) -> Duration {
        Duration::from_secs(u64::from(self.retain) * u64::from(self.size.seconds()))
    }
}
