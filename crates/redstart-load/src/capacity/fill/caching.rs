//! Rows of caches.

use redstart::{
    Error,
    caching::{
        Cache, Changes, Load, Loaded, Put as Write, Sink, SinkClaim, SinkError, SortedView,
        WriteBehind,
    },
    redis,
};

use super::{Fill, Filling, LONG, MANY, PAYLOADS, body, user};

/// A database that never answers: what is written behind stays in the log.
#[derive(Clone)]
struct NoSink;

impl Sink<Vec<u8>> for NoSink {
    async fn claim(&self, _: &str, _: u32) -> Result<SinkClaim, SinkError> {
        Err(SinkError::Fenced)
    }

    async fn apply(&self, _: &Changes<Vec<u8>>) -> Result<(), SinkError> {
        Err(SinkError::Fenced)
    }

    async fn load(&self, _: &str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(None)
    }
}

/// A table with one entry per kind.
pub(super) fn fillings() -> Vec<Filling> {
    vec![
        filling!(
            "cache_aside",
            "row",
            Some("bytes of the row"),
            PAYLOADS,
            MANY,
            |store, ns, value| (
                Cache::<str, Vec<u8>>::builder(&store, &ns, "row")
                    .ttl(LONG)
                    .build()?,
                body(value)
            ),
            |it, n| {
                let row = it.1.clone();
                it.0.get_or_load(&*user(n), move |_| async move {
                    Ok::<_, Error>(Loaded::Found(row))
                })
                .await?;
            }
        ),
        filling!(
            "cache_tags",
            "row with a tag",
            Some("bytes of the row"),
            PAYLOADS,
            MANY,
            |store, ns, value| (
                Cache::<str, Vec<u8>>::builder(&store, &ns, "row")
                    .ttl(LONG)
                    .build()?,
                body(value)
            ),
            |it, n| {
                let row = it.1.clone();
                it.0.get_or_load(&*user(n), move |load: Load| async move {
                    load.tag(format!("tag-{}", n % 16))?;
                    Ok::<_, Error>(Loaded::Found(row))
                })
                .await?;
            }
        ),
        filling!(
            "negative_cache",
            "missing row",
            None,
            &[0],
            MANY,
            |store, ns, value| Cache::<str, Vec<u8>>::builder(&store, &ns, "row")
                .ttl(LONG)
                .negative_ttl(LONG)
                .build()?,
            |it, n| {
                it.get_or_load(&*user(n), |_| async { Ok::<_, Error>(Loaded::Absent) })
                    .await?;
            }
        ),
        filling!(
            "write_behind",
            "row whose write waits",
            Some("bytes of the row"),
            PAYLOADS,
            MANY,
            |store, ns, value| (
                WriteBehind::<str, Vec<u8>>::builder(&store, &ns, "row", NoSink)
                    .max_lag(1 << 40)
                    .build()?,
                body(value)
            ),
            |it, n| {
                let _: Write = it.0.put(&user(n), &it.1).await?;
            }
        ),
        filling!(
            "sorted_view",
            "view",
            Some("rows"),
            &[100, 1000],
            512,
            |store, ns, value| (store, ns, value),
            // The members that are sorted belong to the application: they are removed again.
            |it, n| {
                let view = SortedView::builder(
                    &it.0,
                    &it.1,
                    &format!("view-{n:08}"),
                    &format!("source-{n}"),
                )
                .ttl(LONG)
                .build()?;
                let mut add = redis::cmd("SADD");
                add.arg(view.source());
                for member in 0..it.2 {
                    add.arg(1_000_000 + member);
                }
                it.0.query::<()>(&add).await?;
                let _ = view.page(0..1).await?;
                let mut remove = redis::cmd("UNLINK");
                it.0.query::<()>(remove.arg(view.source())).await?;
            }
        ),
    ]
}
