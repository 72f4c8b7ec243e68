//! A cached SORT: a list, set or sorted set, ordered by other keys, kept for a while.

use std::{cmp::Ordering, ops::Range, time::Duration};

use tokio::time::Instant;

use super::cache::lease::WakeListener;
use crate::{
    duration::millis,
    error::{Error, Result},
    key::{Channel, Entity, Key, Keys, Layout, slot},
    observe,
    script::Script,
    store::Store,
    token::token,
};

pub(crate) static LEASE: Script =
    Script::new("sorted_view.lease", include_str!("sorted_view/lease.lua"));
pub(crate) static SORT: Script =
    Script::new("sorted_view.sort", include_str!("sorted_view/sort.lua"));
pub(crate) static KEEP: Script =
    Script::new("sorted_view.keep", include_str!("sorted_view/keep.lua"));
pub(crate) static DROP: Script =
    Script::new("sorted_view.drop", include_str!("sorted_view/drop.lua"));

/// Sets up a [`SortedView`].
#[must_use = "a builder does nothing until it builds"]
#[derive(Clone, Debug)]
pub struct SortedViewBuilder {
    store: Store,
    namespace: String,
    name: String,
    source: String,
    layout: Option<Layout>,
    ttl: Duration,
    by: Option<String>,
    get: Vec<String>,
    descending: bool,
    alphabetic: bool,
    limit: Option<(usize, usize)>,
}

impl SortedViewBuilder {
    /// How long a view is kept (default one minute).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Uses keys that the application already has: the layout gives the key of the source, and patterns are whole keys.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Orders by other keys: a [part](SortedView::part) with `*` for the element, as in `price:*`, or a field of a hash,
    /// as in `product:*->price`. Without it the elements themselves are ordered.
    pub fn by(mut self, pattern: &str) -> Self {
        self.by = Some(pattern.to_owned());
        self
    }

    /// Adds a column: a pattern as for [`by`](Self::by), or `#` for the element itself. Without any, rows have only the
    /// element.
    pub fn get(mut self, pattern: &str) -> Self {
        self.get.push(pattern.to_owned());
        self
    }

    /// Greatest first.
    pub fn descending(mut self) -> Self {
        self.descending = true;
        self
    }

    /// Orders by bytes instead of numbers.
    pub fn alphabetic(mut self) -> Self {
        self.alphabetic = true;
        self
    }

    /// Keeps only `count` rows, after the first `skip`.
    pub fn limit(mut self, skip: usize, count: usize) -> Self {
        self.limit = Some((skip, count));
        self
    }

    /// Makes the view. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the TTL is under a millisecond, a pattern does not have exactly one `*`, or,
    /// on a Cluster with a layout, a pattern is not in the slot of the source.
    pub fn build(mut self) -> Result<SortedView> {
        if self.ttl < Duration::from_millis(1) {
            return Err(Error::config("the TTL must be at least 1 ms"));
        }
        let mut keys = Keys::named(&self.namespace, "view", &self.name)?;
        let adopted = self.layout.is_some();
        if let Some(layout) = self.layout.take() {
            keys = keys.layout(layout);
        }
        let entity = keys.entity(&self.source)?;
        let columns = self.get.iter_mut().filter(|pattern| *pattern != "#");
        for pattern in self.by.iter_mut().chain(columns) {
            if pattern.matches('*').count() != 1 {
                return Err(Error::config("a pattern must have one * for the element"));
            }
            if !adopted {
                *pattern = match pattern.split_once("->") {
                    Some((part, field)) => format!("{}->{field}", entity.part(part)),
                    None => entity.part(pattern).to_string(),
                };
            } else if self.store.is_cluster() && !in_slot(pattern, entity.slot()) {
                return Err(Error::config(
                    "on a cluster the patterns of a sorted view must share the slot of its source: \
                     give all of them one hash tag, as in {shop}:price:*",
                ));
            }
        }
        let definition = format!(
            "{:?} {:?} {} {} {:?}",
            self.by, self.get, self.descending, self.alphabetic, self.limit
        );
        let hash = xxhash_rust::xxh3::xxh3_64(definition.as_bytes());
        Ok(SortedView {
            part: format!("view:{hash:016x}"),
            entity,
            settings: self,
        })
    }
}

/// Whether every key that the pattern can name is in the slot.
fn in_slot(pattern: &str, wanted: u16) -> bool {
    let key = pattern.split("->").next().unwrap_or(pattern);
    let tag = key.find('{').and_then(|open| {
        let close = key[open..].find('}')? + open;
        (close > open + 1).then(|| &key[open + 1..close])
    });
    tag.is_some_and(|tag| !tag.contains('*')) && slot(key.as_bytes()) == wanted
}

/// A cached SORT.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, caching::SortedView, redis};
///
/// let store = Store::connect("memory://").await?;
/// let cheapest = SortedView::builder(&store, "shop", "by-price", "products")
///     .by("price:*")
///     .get("#")
///     .get("price:*")
///     .build()?;
/// for (product, price) in [("anvil", 20), ("rope", 5)] {
///     store.query::<()>(redis::cmd("SADD").arg(cheapest.source()).arg(product)).await?;
///     store.query::<()>(redis::cmd("SET").arg(cheapest.part(&format!("price:{product}"))).arg(price)).await?;
/// }
/// assert_eq!(cheapest.page(0..10).await?, [["rope", "5"], ["anvil", "20"]]);
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - The view and its TTL are written by one script; a view is never half-built and never without a TTL.
/// - It is rebuilt by one client at a time, under a lease; the others wait for it, and are woken.
/// - What was sorted before an [`invalidate`](SortedView::invalidate) is not kept after it.
/// - On a Cluster the source and all patterns share one slot. Without a layout that is so by construction; with a
///   layout [`build`](SortedViewBuilder::build) checks it.
///
/// # Limits
///
/// A view may be as old as its TTL. Servers before Redis 8 and Valkey 8 do not sort by other keys on a
/// Cluster; there the client reads the keys in one pipeline, sorts, and stores the result under the
/// same lease, which is not one atomic look at all of them.
///
/// Sorting holds the server up: about 0.1 µs for each element of the source, and 1 µs if it is sorted by other keys. For
/// more than some thousand elements a [leaderboard](crate::ranking::Leaderboard) is better.
///
/// # Keys
///
/// | key | type | content |
/// |---|---|---|
/// | `<ns>:view.<name>:{<source>}` | list, set or sorted set | the elements; the application writes them |
/// | `<ns>:view.<name>:{<source>}:<pattern>` | string or hash | what the elements are sorted by; the application writes them |
/// | `<ns>:view.<name>:{<source>}:view:<hash>` | list | the rows; the hash is of the view's definition |
/// | `…:built` | string | exists while the view does, also if that is empty |
/// | `…:lease`, `…:wake` | string, sharded channel | which client builds it, and wakes the others |
///
/// With a [`layout`](SortedViewBuilder::layout) the source is a key that the application already has, and patterns are
/// whole keys.
///
/// # Round trips
///
/// One for a page of a built view; three to build it.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `sorted_view.page`, `sorted_view.invalidate`. Events: `sorted_view.built`, `sorted_view.hit`.
#[derive(Clone, Debug)]
pub struct SortedView {
    settings: SortedViewBuilder,
    entity: Entity,
    part: String,
}

impl SortedView {
    /// Starts to set up a view with this name of a list, a set or a sorted set.
    pub fn builder(store: &Store, namespace: &str, name: &str, source: &str) -> SortedViewBuilder {
        SortedViewBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            source: source.to_owned(),
            layout: None,
            ttl: Duration::from_secs(60),
            by: None,
            get: Vec::new(),
            descending: false,
            alphabetic: false,
            limit: None,
        }
    }

    /// The key of the list, set or sorted set.
    pub fn source(&self) -> &Key {
        self.entity.key()
    }

    /// A key beside the source, in its slot. A pattern such as `price:*` names `part("price:7")` for the element `7`.
    pub fn part(&self, part: &str) -> Key {
        self.entity.part(part)
    }

    fn mark(&self) -> String {
        format!("{}:built", self.part)
    }

    fn lease_part(&self) -> String {
        format!("{}:lease", self.part)
    }

    fn wake(&self) -> Channel {
        self.entity.channel(&format!("{}:wake", self.part))
    }

    fn width(&self) -> usize {
        self.settings.get.len().max(1)
    }

    /// The rows from `rows.start` up to `rows.end`, fewer at the end of the view. The view is built if necessary.
    ///
    /// A column whose key does not exist is an empty text.
    ///
    /// # Errors
    ///
    /// Those of the store, and [`is_timeout`](Error::is_timeout) if another client takes too long to build the view.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it builds, the lease is left to expire, which takes two deadlines of the store.
    pub async fn page(&self, rows: Range<usize>) -> Result<Vec<Vec<String>>> {
        let store = &self.settings.store;
        observe::operation("sorted_view.page", self.entity.namespace(), async {
            let patience = Instant::now() + 8 * store.deadline();
            let mut built = false;
            loop {
                if let Some(page) = self.read(&rows).await? {
                    if !built {
                        observe::event("sorted_view.hit");
                    }
                    return Ok(page);
                }
                self.ensure(patience).await?;
                built = true;
                if Instant::now() >= patience {
                    return Err(Error::timeout(
                        "the view was invalidated as soon as it was built",
                    ));
                }
            }
        })
        .await
    }

    async fn read(&self, rows: &Range<usize>) -> Result<Option<Vec<Vec<String>>>> {
        if rows.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let width = self.width();
        let mut pipeline = redis::Pipeline::with_capacity(2);
        pipeline.atomic();
        pipeline.cmd("EXISTS").arg(self.entity.part(&self.mark()));
        pipeline
            .cmd("LRANGE")
            .arg(self.entity.part(&self.part))
            .arg(rows.start.saturating_mul(width))
            .arg(
                rows.end
                    .saturating_mul(width)
                    .saturating_sub(1)
                    .min(i64::MAX as usize),
            );
        let (built, flat): (u8, Vec<Vec<u8>>) = self.settings.store.pipeline(&pipeline).await?;
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Ok((built == 1).then(|| {
            flat.chunks(width)
                .map(|row| row.iter().map(text).collect())
                .collect()
        }))
    }

    /// Builds the view, or waits for the client that does.
    async fn ensure(&self, patience: Instant) -> Result<()> {
        let store = &self.settings.store;
        let token = token();
        let lasts = 2 * store.deadline();
        let mut listener: Option<WakeListener> = None;
        loop {
            let answer: i64 = LEASE
                .on(&self.entity)
                .part(&self.mark())
                .part(&self.lease_part())
                .arg(&token)
                .arg(millis(lasts))
                .idempotent()
                .run(store)
                .await?;
            match answer {
                -1 => return Ok(()),
                0 => {
                    if self.build_under(&token).await? {
                        observe::event("sorted_view.built");
                        return Ok(());
                    }
                    // The lease was taken away by an invalidation: sort what is there now.
                }
                left => {
                    if Instant::now() >= patience {
                        return Err(Error::timeout(
                            "another client takes too long to build the view",
                        ));
                    }
                    let left = Duration::from_millis(u64::try_from(left).unwrap_or(1) + 1);
                    let until = (Instant::now() + left).min(patience);
                    match &mut listener {
                        None => {
                            let opened = WakeListener::open(store, self.wake(), until);
                            listener = Some(opened.await);
                        }
                        Some(listener) => listener.wait(until).await,
                    }
                }
            }
        }
    }

    async fn build_under(&self, token: &str) -> Result<bool> {
        let settings = &self.settings;
        let mut call = SORT
            .on(&self.entity)
            .key()
            .part(&self.part)
            .part(&self.mark())
            .part(&self.lease_part())
            .arg(token)
            .arg(millis(settings.ttl))
            .arg(self.wake());
        if let Some(by) = &settings.by {
            call = call.arg("BY").arg(by);
        }
        if let Some((skip, count)) = settings.limit {
            call = call.arg("LIMIT").arg(skip).arg(count);
        }
        for pattern in &settings.get {
            call = call.arg("GET").arg(pattern);
        }
        if settings.descending {
            call = call.arg("DESC");
        }
        if settings.alphabetic {
            call = call.arg("ALPHA");
        }
        match call.idempotent().run::<i64>(&settings.store).await {
            Ok(stored) => Ok(stored >= 0),
            Err(error)
                if error
                    .to_string()
                    .to_lowercase()
                    .contains("denied in cluster mode") =>
            {
                self.build_here(token).await
            }
            Err(error) => Err(error),
        }
    }

    /// Sorts in the client, as SORT does.
    async fn build_here(&self, token: &str) -> Result<bool> {
        let settings = &self.settings;
        let store = &settings.store;
        let elements = self.elements().await?;
        let mut columns: Vec<&str> = settings.get.iter().map(String::as_str).collect();
        if columns.is_empty() {
            columns.push("#");
        }
        let weights = match &settings.by {
            Some(by) => self.look_up(by, &elements).await?,
            None => elements.iter().cloned().map(Some).collect(),
        };
        let mut order: Vec<(Option<String>, String)> = weights.into_iter().zip(elements).collect();
        order.sort_by(|(a, x), (b, y)| {
            let (a, b) = (a.as_deref().unwrap_or(""), b.as_deref().unwrap_or(""));
            let first = if settings.alphabetic {
                a.cmp(b)
            } else {
                let number = |text: &str| text.trim().parse::<f64>().unwrap_or(0.0);
                number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal)
            };
            let ordering = first.then_with(|| x.cmp(y));
            if settings.descending {
                ordering.reverse()
            } else {
                ordering
            }
        });
        let (skip, count) = settings.limit.unwrap_or((0, usize::MAX));
        let sorted: Vec<String> = order
            .into_iter()
            .map(|(_, element)| element)
            .skip(skip)
            .take(count)
            .collect();
        let mut table = Vec::with_capacity(columns.len());
        for column in columns {
            table.push(match column {
                "#" => sorted.iter().cloned().map(Some).collect(),
                pattern => self.look_up(pattern, &sorted).await?,
            });
        }
        let mut call = KEEP
            .on(&self.entity)
            .part(&self.part)
            .part(&self.mark())
            .part(&self.lease_part())
            .arg(token)
            .arg(millis(settings.ttl))
            .arg(self.wake());
        for row in 0..sorted.len() {
            for column in &table {
                call = call.arg(column[row].as_deref().unwrap_or(""));
            }
        }
        Ok(call.idempotent().run::<i64>(store).await? >= 0)
    }

    async fn elements(&self) -> Result<Vec<String>> {
        let store = &self.settings.store;
        let key = self.entity.key();
        let kind: String = store.query(redis::cmd("TYPE").arg(key)).await?;
        match kind.as_str() {
            "list" => {
                store
                    .query(redis::cmd("LRANGE").arg(key).arg(0).arg(-1))
                    .await
            }
            "set" => store.query(redis::cmd("SMEMBERS").arg(key)).await,
            "zset" => {
                store
                    .query(redis::cmd("ZRANGE").arg(key).arg(0).arg(-1))
                    .await
            }
            "none" => Ok(Vec::new()),
            _ => Err(Error::config(
                "the source of a sorted view must be a list, a set or a sorted set",
            )),
        }
    }

    async fn look_up(&self, pattern: &str, elements: &[String]) -> Result<Vec<Option<String>>> {
        if elements.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::Pipeline::with_capacity(elements.len());
        for element in elements {
            match pattern.split_once("->") {
                Some((key, field)) => pipeline
                    .cmd("HGET")
                    .arg(key.replacen('*', element, 1))
                    .arg(field),
                None => pipeline.cmd("GET").arg(pattern.replacen('*', element, 1)),
            };
        }
        self.settings.store.pipeline(&pipeline).await
    }

    /// Drops the view; the next reader builds it again.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the view may or may not have been dropped.
    pub async fn invalidate(&self) -> Result<()> {
        observe::operation("sorted_view.invalidate", self.entity.namespace(), async {
            DROP.on(&self.entity)
                .part(&self.part)
                .part(&self.mark())
                .part(&self.lease_part())
                .arg(self.wake())
                .idempotent()
                .run(&self.settings.store)
                .await
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_in_a_slot_only_by_a_whole_tag_without_a_star() {
        let shop = slot(b"{shop}:products");
        assert!(in_slot("{shop}:price:*", shop));
        assert!(in_slot("product:{shop}:*->price", shop));
        for bad in [
            "price:*",
            "{*}:price",
            "{shop*}:price",
            "{}shop:*",
            "{other}:*",
            "*->{shop}",
        ] {
            assert!(!in_slot(bad, shop), "{bad}");
        }
    }
}
