//! Counts a minute, an hour or a day, for dashboards.
//!
//! # Promise
//!
//! - A count goes into the window of the *server's* time; clients' clocks decide nothing.
//! - State is bounded: windows older than the retention are removed by the step that begins a new one, and
//!   the whole expires when nothing is counted any more.
//! - [`series`](Windowed::series) gives every window, with zeros where nothing happened.
//!
//! # Keys and cost
//!
//! `<ns>:windowed:{<name>}`, a hash of window → count. `add` is one round trip and O(1) but for the first count
//! of a window, which looks at all windows once. While the store is down every call fails.
//!
//! Operations: `windowed.add`, `windowed.series`.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;

use crate::{
    error::{Error, Result},
    key::Keys,
    observe,
    script::Script,
    store::Store,
};

static ADD: Script = Script::new("windowed.add", include_str!("windowed/add.lua"));
static SERIES: Script = Script::new("windowed.series", include_str!("windowed/series.lua"));

/// The length of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day of UTC.
    Day,
}

impl Window {
    /// Its length in seconds.
    pub fn seconds(self) -> u32 {
        match self {
            Window::Second => 1,
            Window::Minute => 60,
            Window::Hour => 3600,
            Window::Day => 86400,
        }
    }
}

/// One window of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Point {
    /// When the window began, by the server's clock.
    pub start: Timestamp,
    /// What was counted in it.
    pub count: i64,
}

/// Windowed counters of one namespace. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, counting::{Windowed, windowed::Window}};
/// let store = Store::connect("memory://").await?;
/// let hits = Windowed::new(&store, "hits", Window::Minute, 60)?;
///
/// hits.add("/home", 2).await?;
/// store.advance(Duration::from_secs(120))?;
/// hits.add("/home", 5).await?;
///
/// let counts: Vec<i64> = hits.series("/home", 4).await?.iter().map(|point| point.count).collect();
/// assert_eq!(counts, [0, 2, 0, 5]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Windowed {
    store: Store,
    keys: Keys,
    window: Window,
    retain: u32,
}

impl Windowed {
    /// The most windows that may be kept.
    pub const MAX_WINDOWS: u32 = 10_000;

    /// Counters with windows of the given length, of which the last `retain` are kept.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace, or if `retain` is 0 or over
    /// [`MAX_WINDOWS`](Self::MAX_WINDOWS).
    pub fn new(store: &Store, namespace: &str, window: Window, retain: u32) -> Result<Self> {
        if !(1..=Self::MAX_WINDOWS).contains(&retain) {
            return Err(Error::config(format!(
                "between 1 and {} windows can be kept, not {retain}",
                Self::MAX_WINDOWS
            )));
        }
        Ok(Self {
            store: store.clone(),
            keys: Keys::new(namespace, "windowed")?,
            window,
            retain,
        })
    }

    /// Adds to the window that the server's clock is in, and returns its count.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it may or may not have counted.
    pub async fn add(&self, name: &str, n: i64) -> Result<i64> {
        let entity = self.keys.entity(name)?;
        observe::operation("windowed.add", self.keys.namespace(), async {
            let call = ADD
                .on(&entity)
                .key()
                .arg(n)
                .arg(self.window.seconds())
                .arg(self.retain);
            call.run(&self.store).await
        })
        .await
    }

    /// The last `windows` windows, the oldest first, the one that is running last.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query), and [`is_config`](Error::is_config) if more windows are asked for
    /// than are kept.
    pub async fn series(&self, name: &str, windows: u32) -> Result<Vec<Point>> {
        if !(1..=self.retain).contains(&windows) {
            return Err(Error::config(format!(
                "{windows} windows were asked for, {} are kept",
                self.retain
            )));
        }
        let entity = self.keys.entity(name)?;
        observe::operation("windowed.series", self.keys.namespace(), async {
            let (now, counts): (i64, HashMap<i64, i64>) =
                SERIES.on(&entity).key().run(&self.store).await?;
            let length = i64::from(self.window.seconds());
            let current = now - now.rem_euclid(length);
            (0..i64::from(windows))
                .rev()
                .map(|back| {
                    let start = current - back * length;
                    let count = counts.get(&start).copied().unwrap_or(0);
                    let start = Timestamp::from_second(start).map_err(|e| {
                        Error::codec("the server's time is out of range").with_source(e)
                    })?;
                    Ok(Point { start, count })
                })
                .collect()
        })
        .await
    }

    /// How long a counter lives on after its last count.
    pub fn retention(&self) -> Duration {
        Duration::from_secs(u64::from(self.retain) * u64::from(self.window.seconds()))
    }
}
