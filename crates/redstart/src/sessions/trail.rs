//! The last pages of a visit.
//!
//! A visit lasts as long as each page comes within the gap (a minute by default) of the last. The trail keeps
//! its last pages; when the visit is over, the trail is gone.
//!
//! **Keys**: `<namespace>:trail:{<visitor>}`, a list with a TTL. **Round trips**: one for each operation.
//! **While the store is down** both operations fail; a trail is worth no page, so log the error and go on.
//! **Names**: operations `trail.visit`, `trail.pages`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! # use std::time::Duration;
//! # use redstart::{Store, sessions::Trail};
//! let store = Store::connect("memory://").await?;
//! let trail = Trail::new(&store, "shop", 3)?;
//! for page in ["/", "/tea", "/tea/green", "/cart"] {
//!     trail.visit("ann", page).await?;
//! }
//! assert_eq!(trail.pages("ann").await?, ["/tea", "/tea/green", "/cart"]);
//! store.advance(Duration::from_secs(61))?;
//! assert!(trail.pages("ann").await?.is_empty());
//! # Ok(()) }
//! ```

use std::time::Duration;

use crate::{
    error::{Error, Result},
    key::{Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

static VISIT: Script = Script::new("trail.visit", include_str!("trail/visit.lua"));

const MAX_PAGE: usize = 8192;

/// The trails of an application's visitors. See the [module](self).
#[derive(Clone, Debug)]
pub struct Trail {
    store: Store,
    keys: Keys,
    pages: usize,
    gap: Duration,
}

impl Trail {
    /// Trails of the last `pages` pages, each within a minute of the last.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace that cannot be used, or no pages or more than 10,000.
    pub fn new(store: &Store, namespace: &str, pages: usize) -> Result<Self> {
        if !(1..=10_000).contains(&pages) {
            return Err(Error::config("a trail has 1 to 10000 pages"));
        }
        Ok(Self {
            store: store.clone(),
            keys: Keys::new(namespace, "trail")?,
            pages,
            gap: Duration::from_secs(60),
        })
    }

    /// Another gap than a minute.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for less than a millisecond.
    pub fn gap(mut self, gap: Duration) -> Result<Self> {
        if gap < Duration::from_millis(1) {
            return Err(Error::config("the gap of a trail is at least 1 ms"));
        }
        self.gap = gap;
        Ok(self)
    }

    /// Other keys than the [usual ones](crate::key).
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.keys = self.keys.layout(layout);
        self
    }

    /// Notes a page; how many pages the trail has now.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty visitor or a page of more than 8 KiB; otherwise those of the
    /// store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the page may or may not have been noted.
    pub async fn visit(&self, visitor: &str, page: &str) -> Result<usize> {
        observe::operation("trail.visit", self.keys.namespace(), async {
            let entity = self.keys.entity(visitor)?;
            if page.len() > MAX_PAGE {
                return Err(Error::config(format!(
                    "a page has at most {MAX_PAGE} bytes"
                )));
            }
            VISIT
                .on(&entity)
                .key()
                .arg(self.pages)
                .arg(self.gap.as_millis() as u64)
                .arg(page)
                .run(&self.store)
                .await
        })
        .await
    }

    /// The pages, oldest first; none when the visit is over.
    ///
    /// # Errors
    ///
    /// As for [`visit`](Self::visit).
    pub async fn pages(&self, visitor: &str) -> Result<Vec<String>> {
        observe::operation("trail.pages", self.keys.namespace(), async {
            let entity = self.keys.entity(visitor)?;
            let range = redis::cmd("LRANGE")
                .arg(entity.key())
                .arg(0)
                .arg(-1)
                .to_owned();
            self.store.query(&range).await
        })
        .await
    }
}
