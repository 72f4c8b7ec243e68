use std::time::Duration;

use crate::{
    duration::millis,
    error::{Error, Result},
    key::{Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

pub(super) static VISIT: Script = Script::new("trail.visit", include_str!("trail/visit.lua"));

const MAX_PAGES: usize = 10_000;
const MAX_PAGE: usize = 8192;

/// Settings of a [`Trail`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct TrailBuilder {
    store: Store,
    namespace: String,
    name: String,
    pages: usize,
    gap: Duration,
    layout: Option<Layout>,
}

impl TrailBuilder {
    /// How many pages are kept, up to 10,000 (default: 10).
    pub fn pages(mut self, pages: usize) -> Self {
        self.pages = pages;
        self
    }

    /// A visit is over when the next page takes longer than this (default: a minute).
    pub fn gap(mut self, gap: Duration) -> Self {
        self.gap = gap;
        self
    }

    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Checks the settings. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, no pages or more than 10,000, or a gap below a
    /// millisecond.
    pub fn build(self) -> Result<Trail> {
        if !(1..=MAX_PAGES).contains(&self.pages) {
            return Err(Error::config(format!(
                "a trail must have 1 to {MAX_PAGES} pages, not {}",
                self.pages
            )));
        }
        if self.gap < Duration::from_millis(1) {
            return Err(Error::config("the gap of a trail must be at least 1 ms"));
        }
        let mut keys = Keys::named(&self.namespace, "trail", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Trail {
            store: self.store,
            keys,
            pages: self.pages,
            gap: self.gap,
        })
    }
}

/// The last pages of each visitor's visit.
///
/// # Promises
///
/// A visit lasts while each page follows the last within the gap (a minute by default). The trail has its last pages;
/// when the visit is over, the trail is gone. Adding a page, trimming and the new end of the visit are one step.
///
/// # Keys
///
/// `<namespace>:trail.<name>:{<visitor>}`, a list with a TTL.
///
/// # Round trips
///
/// One for each operation.
///
/// # While the store is down
///
/// Both operations fail. A trail is rarely worth failing a request for: log the error and go on.
///
/// # Metrics
///
/// Operations `trail.visit`, `trail.pages`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use std::time::Duration;
/// # use redstart::{Store, sessions::Trail};
/// let store = Store::connect("memory://").await?;
/// let trail = Trail::builder(&store, "shop", "pages").pages(3).build()?;
/// for page in ["/", "/tea", "/tea/green", "/cart"] {
///     trail.visit("ann", page).await?;
/// }
/// assert_eq!(trail.pages("ann").await?, ["/tea", "/tea/green", "/cart"]);
/// store.advance(Duration::from_secs(61))?;
/// assert!(trail.pages("ann").await?.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Trail {
    store: Store,
    keys: Keys,
    pages: usize,
    gap: Duration,
}

impl Trail {
    /// Starts with the usual settings: ten pages, each within a minute of the last.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> TrailBuilder {
        TrailBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            pages: 10,
            gap: Duration::from_secs(60),
            layout: None,
        }
    }

    /// Trails with the usual settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Adds a page and returns how many pages the trail has now.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty visitor or a page of more than 8 KiB; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// If dropped before completion, the page may or may not have been added.
    pub async fn visit(&self, visitor: &str, page: &str) -> Result<usize> {
        observe::operation("trail.visit", self.keys.namespace(), async {
            let entity = self.keys.entity(visitor)?;
            if page.len() > MAX_PAGE {
                return Err(Error::config(format!(
                    "a page must have at most {MAX_PAGE} bytes"
                )));
            }
            VISIT
                .on(&entity)
                .key()
                .arg(self.pages)
                .arg(millis(self.gap))
                .arg(page)
                .run(&self.store)
                .await
        })
        .await
    }

    /// The pages, oldest first; empty when the visit is over.
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
