//! What patterns are in use, by namespace: read from a sample of the keys.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redstart::Store;

use crate::call::OWN_NAMESPACE;

/// Keys that one look reads on each node at most.
const SAMPLE: usize = 20_000;
/// How long a look is good for.
const FRESH: Duration = Duration::from_secs(5);

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// By namespace, pattern and name: how many keys of the sample belong to it.
    pub(crate) found: BTreeMap<(String, String, String), u64>,
    pub(crate) keys: usize,
    /// Whether there may be more keys than were looked at.
    pub(crate) partial: bool,
    /// Keys that are not of this library's form.
    pub(crate) foreign: u64,
}

impl Inventory {
    pub(crate) fn namespaces(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.found.keys().map(|(name, ..)| name.as_str()).collect();
        names.dedup();
        names
    }

    /// The names of one pattern in one namespace.
    pub(crate) fn names<'a>(
        &'a self,
        namespace: &'a str,
        pattern: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        self.found
            .keys()
            .filter(move |(ns, kind, _)| ns == namespace && kind == pattern)
            .map(|(_, _, name)| name.as_str())
    }

    pub(crate) fn count(&self, namespace: &str, patterns: &[&str]) -> usize {
        let of = |(ns, kind, _): &&(String, String, String)| {
            ns == namespace && patterns.contains(&kind.as_str())
        };
        self.found.keys().filter(of).count()
    }
}

/// The newest look, shared by all pages.
#[derive(Default)]
pub(crate) struct Looks {
    last: Mutex<Option<(Instant, Arc<Inventory>)>>,
    looking: tokio::sync::Mutex<()>,
}

impl Looks {
    pub(crate) async fn get(&self, store: &Store) -> redstart::Result<Arc<Inventory>> {
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        // One look serves all that wait for it.
        let _looking = self.looking.lock().await;
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        let keys = store.sample("*", SAMPLE).await?;
        let mut inventory = Inventory {
            keys: keys.len(),
            partial: keys.len() >= SAMPLE,
            ..Inventory::default()
        };
        for key in &keys {
            match std::str::from_utf8(key).ok().and_then(parse) {
                Some((namespace, ..)) if namespace == OWN_NAMESPACE => {}
                Some((namespace, pattern, name)) => {
                    let key = (namespace.to_owned(), pattern.to_owned(), name.to_owned());
                    *inventory.found.entry(key).or_default() += 1;
                }
                None => inventory.foreign += 1,
            }
        }
        let inventory = Arc::new(inventory);
        *self.last.lock() = Some((Instant::now(), inventory.clone()));
        Ok(inventory)
    }

    /// The newest look, however old; the first one is made.
    pub(crate) async fn any(&self, store: &Store) -> redstart::Result<Arc<Inventory>> {
        let last = self
            .last
            .lock()
            .as_ref()
            .map(|(_, inventory)| inventory.clone());
        match last {
            Some(last) => Ok(last),
            None => self.get(store).await,
        }
    }

    fn fresh(&self) -> Option<Arc<Inventory>> {
        let last = self.last.lock();
        let (at, inventory) = last.as_ref()?;
        (at.elapsed() < FRESH).then(|| inventory.clone())
    }
}

/// `shop:cache.product:{42}:lease` is the cache `product` of `shop`; `shop:queue:{mail}:ready` is the queue `mail`.
fn parse(key: &str) -> Option<(&str, &str, &str)> {
    let (head, rest) = key.split_once(":{")?;
    let (entity, _) = rest.split_once('}')?;
    let (namespace, pattern) = head.rsplit_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if namespace.is_empty() || pattern.is_empty() || !pattern.chars().all(plain) {
        return None;
    }
    Some(match pattern.split_once('.') {
        Some((pattern, name)) => (namespace, pattern, name),
        None => (namespace, pattern, entity),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_their_pattern_and_name() {
        assert_eq!(
            parse("shop:cache.product:{42}:lease"),
            Some(("shop", "cache", "product"))
        );
        assert_eq!(
            parse("a:b:queue:{mail}:ready"),
            Some(("a:b", "queue", "mail"))
        );
        for foreign in ["x", "bull:mail:1", "{a}", "sess:{a", ":queue:{a}"] {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }
}
