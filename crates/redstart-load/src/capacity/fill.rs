//! Filling a store with entities, to weigh them: one table per family in `fill/`.

use std::{pin::Pin, sync::Arc, time::Duration};

use redstart::{Result, Store};

type Future<T> = Pin<Box<dyn std::future::Future<Output = Result<T>> + Send>>;

/// How a store is filled with entities of one kind.
#[derive(Clone)]
pub(super) struct Fill {
    /// Puts one entity, by its number.
    pub(super) put: Arc<dyn Fn(u64) -> Future<()> + Send + Sync>,
    /// Waits until so many entities are as they will stay.
    pub(super) end: Arc<dyn Fn(u64) -> Future<()> + Send + Sync>,
}

/// A kind of entity that can be weighed.
pub struct Filling {
    kind: &'static str,
    entity: &'static str,
    parameter: Option<&'static str>,
    values: &'static [u64],
    /// How many entities are enough, for the first value; fewer of larger ones.
    count: u64,
    open: fn(Store, String, u64) -> Future<Fill>,
}

impl std::fmt::Debug for Filling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filling").field("kind", &self.kind).finish()
    }
}

impl Filling {
    /// The kind: a pattern, or an alternative to one.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// What one entity is.
    pub fn entity(&self) -> &'static str {
        self.entity
    }

    /// What its parameter is.
    pub fn parameter(&self) -> Option<&'static str> {
        self.parameter
    }

    /// The values of the parameter that are measured.
    pub fn values(&self) -> &'static [u64] {
        self.values
    }

    /// How many entities are filled in to measure them at a value of the parameter. Larger entities need fewer of them, but
    /// not so few that the server's own buffers weigh.
    pub fn count(&self, value: u64) -> u64 {
        let first = self.values.first().copied().unwrap_or(0).max(1);
        let larger = (value / first).clamp(1, 4);
        (self.count / larger).max(self.count.min(8))
    }

    pub(super) async fn open(&self, store: &Store, namespace: &str, value: u64) -> Result<Fill> {
        (self.open)(store.clone(), namespace.to_owned(), value).await
    }
}

/// 1.5 × 2^14: tables of servers, whose sizes are powers of two, are then three quarters full, which is their average.
const MANY: u64 = 24_576;
const LONG: Duration = Duration::from_secs(30 * 86_400);
const PAYLOADS: &[u64] = &[100, 1000];

fn user(n: u64) -> String {
    format!("user:{n:08}")
}

fn body(bytes: u64) -> Vec<u8> {
    vec![b'x'; bytes as usize]
}

/// A filling: what is made once, then what is done for entity `n`, and what is waited for at the end.
macro_rules! filling {
    ($kind:literal, $entity:literal, $parameter:expr, $values:expr, $count:expr,
     |$store:ident, $namespace:ident, $value:ident| $open:expr, |$one:ident, $n:ident| $put:expr) => {
        filling!(
            $kind,
            $entity,
            $parameter,
            $values,
            $count,
            |$store, $namespace, $value| $open,
            |$one, $n| $put,
            |_made, _all| {}
        )
    };
    ($kind:literal, $entity:literal, $parameter:expr, $values:expr, $count:expr,
     |$store:ident, $namespace:ident, $value:ident| $open:expr, |$one:ident, $n:ident| $put:expr,
     |$made:ident, $all:ident| $end:expr) => {
        {
            // A function of its own: the compiler looks at a function with all of its closures at once, and takes many
            // times as long for one that has those of all kinds.
            fn filling() -> Filling {
                Filling {
                    kind: $kind,
                    entity: $entity,
                    parameter: $parameter,
                    values: $values,
                    count: $count,
                    open: |$store, $namespace, $value| {
                        Box::pin(async move {
                            let _ = $value;
                            let made = std::sync::Arc::new($open);
                            let ended = made.clone();
                            Ok(Fill {
                                put: std::sync::Arc::new(move |$n: u64| {
                                    let $one = made.clone();
                                    Box::pin(async move {
                                        $put;
                                        Ok(())
                                    })
                                }),
                                end: std::sync::Arc::new(move |$all: u64| {
                                    let $made = ended.clone();
                                    Box::pin(async move {
                                        $end;
                                        Ok(())
                                    })
                                }),
                            })
                        })
                    },
                }
            }
            filling()
        }
    };
}

// Behind the macro that they use.
mod caching;
mod coordination;
mod data;
mod messaging;
mod shop;

/// Every kind of entity that can be weighed.
pub fn fillings() -> Vec<Filling> {
    let families = [
        coordination::fillings(),
        caching::fillings(),
        data::fillings(),
        messaging::fillings(),
        shop::fillings(),
    ];
    families.into_iter().flatten().collect()
}

/// Patterns of which no entity is weighed, and why.
pub(super) const NOT_WEIGHED: &[(&str, &str)] = &[
    (
        "stampede_lease",
        "the rows are those of `cache_aside`; a lease exists only during a load",
    ),
    ("early_refresh", "the rows are those of `cache_aside`"),
    (
        "cache_invalidation",
        "the rows are those of `cache_aside`; messages are not kept",
    ),
    (
        "write_through",
        "the rows are those of `cache_aside`; a fence exists only during a write",
    ),
    ("redlock", "the key is that of `mutex`, on every server"),
    ("topic", "messages are not kept"),
];

/// Patterns whose entities are those of another kind.
pub(super) const SAME: &[(&str, &str)] = &[
    ("stampede_lease", "cache_aside"),
    ("early_refresh", "cache_aside"),
    ("cache_invalidation", "cache_aside"),
    ("write_through", "cache_aside"),
    ("redlock", "mutex"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_weighed_or_has_a_reason() {
        for pattern in crate::all() {
            let weighed = fillings().iter().any(|of| of.kind() == pattern.name());
            let reason = NOT_WEIGHED.iter().any(|(name, _)| *name == pattern.name());
            assert!(weighed != reason, "{}", pattern.name());
        }
    }
}
