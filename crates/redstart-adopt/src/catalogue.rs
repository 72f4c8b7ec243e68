//! What each library leaves behind, one file per library.
//!
//! Each file has `find`, which adds what it found. The order matters only where shapes are weak: locks and counters come
//! last and leave alone what a library with a stronger shape owns.

mod asynq;
mod bull;
mod bullmq;
mod celery;
mod connect_redis;
mod django_cache;
mod dramatiq;
mod express_rate_limit;
mod limits;
mod rails_cache;
mod rate_limiter_flexible;
mod redis_py_lock;
mod redisson;
mod redlock;
mod redstart_keys;
mod rq;
mod sidekiq;
mod spring_session;

use std::collections::BTreeMap;

pub use redis_py_lock::made_at as lock_token_made_at;

use crate::{error::Result, found::Found, glimpse::Glimpse, look::Look, pattern};

/// Runs all of them.
pub(crate) async fn all(look: &mut Look<'_>, found: &mut Vec<Found>) -> Result<()> {
    bullmq::find(look, found).await?;
    bull::find(look, found).await?;
    sidekiq::find(look, found).await?;
    celery::find(look, found).await?;
    rq::find(look, found).await?;
    asynq::find(look, found).await?;
    dramatiq::find(look, found).await?;
    redstart_keys::find(look, found);
    spring_session::find(look, found);
    redisson::find(look, found);
    connect_redis::find(look, found);
    rails_cache::find(look, found);
    django_cache::find(look, found);
    limits::find(look, found);
    redis_py_lock::find(look, found);
    redlock::find(look, found);
    express_rate_limit::find(look, found);
    rate_limiter_flexible::find(look, found);
    Ok(())
}

/// The digests of the libraries' own scripts, whose presence on a server is evidence.
pub(crate) fn scripts() -> Vec<&'static str> {
    [
        redis_py_lock::SCRIPTS,
        redlock::SCRIPTS,
        rate_limiter_flexible::SCRIPTS,
        express_rate_limit::SCRIPTS,
        limits::SCRIPTS,
        &redstart_keys::scripts(),
    ]
    .concat()
}

/// Whether any script of a library is loaded on the server.
fn has_script(look: &Look<'_>, scripts: &[&'static str]) -> bool {
    scripts.iter().any(|digest| look.scripts.contains(digest))
}

/// Whether the name of a key says that it is a lock.
fn names_a_lock(pattern: &str) -> bool {
    let pattern = pattern.to_ascii_lowercase();
    pattern.contains("lock") || pattern.contains("mutex")
}

/// Whether something that was found before owns the key.
fn is_owned(found: &[Found], key: &[u8]) -> bool {
    found
        .iter()
        .any(|one| one.confidence >= 0.7 && one.owns(key))
}

/// Keys for which `wanted` holds and that nothing else owns, by their patterns.
fn by_pattern(
    look: &Look<'_>,
    found: &[Found],
    wanted: impl Fn(&Glimpse) -> bool,
) -> BTreeMap<String, Vec<Glimpse>> {
    let groups = pattern::group(look.keys.iter().map(Vec::as_slice));
    let mut matching: BTreeMap<String, Vec<Glimpse>> = BTreeMap::new();
    for glimpse in look.seen() {
        if is_owned(found, &glimpse.key) || !wanted(glimpse) {
            continue;
        }
        // The pattern that comparing the sampled keys gave, if the key's own is not among them; the most specific.
        let own = pattern::of(&glimpse.key);
        let merged = groups
            .iter()
            .filter(|group| pattern::matches(group.pattern.as_bytes(), &glimpse.key))
            .max_by_key(|group| (group.pattern == own, group.pattern.len()));
        let name = merged.map_or(own, |group| group.pattern.clone());
        matching.entry(name).or_default().push(glimpse.clone());
    }
    matching
}
