//! The keys of a run: how much memory they take, which slots they are in, and their removal.

use std::time::Duration;

use redstart::{Store, key::slot, redis};

use crate::error::{Error, Result};

/// Keys whose memory is asked for, at most.
const SAMPLE: usize = 1000;
/// Keys that one command removes.
const CHUNK: usize = 200;

/// What the keys of a run take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    pub(crate) keys: u64,
    pub(crate) bytes: Option<f64>,
    /// The largest key of the sample and its bytes.
    pub(crate) largest: Option<(String, u64)>,
    /// Slots that have keys, and the slot with most of them.
    pub(crate) slots: u64,
    pub(crate) fullest_slot: Option<(u16, u64)>,
    /// The shortest key with the mark that was asked for.
    pub(crate) marked: Option<String>,
}

/// The keys of a namespace.
async fn keys(store: &Store, namespace: &str) -> Result<Vec<String>> {
    let mut keys = store.scan(&format!("*{namespace}*")).await?;
    // The name has 64 random bits: nobody else's key contains it.
    keys.retain(|key| key.contains(namespace));
    Ok(keys)
}

/// Measures the keys of a namespace. `mark` is the tag of a key that is wanted, as in `{e7}`, or its end.
pub(crate) async fn measure(
    store: &Store,
    namespace: &str,
    mark: Option<&str>,
) -> Result<Footprint> {
    let keys = keys(store, namespace).await?;
    let mut found = Footprint {
        keys: keys.len() as u64,
        ..Footprint::default()
    };
    if let Some(mark) = mark {
        let has = |key: &&String| match mark.starts_with('{') {
            true => key.contains(mark),
            false => key.ends_with(mark),
        };
        let shortest = keys.iter().filter(has).min_by_key(|key| (key.len(), *key));
        found.marked = shortest.cloned();
    }
    let mut slots = std::collections::HashMap::<u16, u64>::new();
    for key in &keys {
        *slots.entry(slot(key.as_bytes())).or_default() += 1;
    }
    found.slots = slots.len() as u64;
    found.fullest_slot = slots.into_iter().max_by_key(|(slot, keys)| (*keys, *slot));
    let step = keys.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<&String> = keys.iter().step_by(step).collect();
    let mut bytes = 0u64;
    for chunk in sample.chunks(CHUNK) {
        let mut pipeline = redis::pipe();
        for key in chunk {
            pipeline
                .cmd("MEMORY")
                .arg("USAGE")
                .arg(*key)
                .arg("SAMPLES")
                .arg(50);
        }
        // A server may not let this user ask.
        let Ok(sizes) = store.pipeline::<Vec<Option<u64>>>(&pipeline).await else {
            return Ok(found);
        };
        for (key, size) in chunk.iter().zip(sizes) {
            let size = size.unwrap_or(0);
            bytes += size;
            if found
                .largest
                .as_ref()
                .is_none_or(|(_, largest)| size > *largest)
            {
                found.largest = Some(((*key).clone(), size));
            }
        }
    }
    if !sample.is_empty() {
        found.bytes = Some(bytes as f64 * keys.len() as f64 / sample.len() as f64);
    }
    Ok(found)
}

/// Removes every key of a namespace, and nothing else: SCAN and UNLINK in small steps.
///
/// # Errors
///
/// Those of the store, and if keys keep appearing.
pub async fn sweep(store: &Store, namespace: &str) -> Result<()> {
    // Requests of a run that was stopped may still be under way.
    for round in 0..20 {
        store.settle().await;
        let keys = keys(store, namespace).await?;
        if keys.is_empty() && round > 0 {
            return Ok(());
        }
        for chunk in keys.chunks(CHUNK) {
            let mut pipeline = redis::pipe();
            for key in chunk {
                pipeline.cmd("UNLINK").arg(key).ignore();
            }
            store.pipeline::<()>(pipeline.ignore_errors()).await?;
        }
        // What a pattern does in the background may write once more.
        if !keys.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Err(Error::config(format!(
        "keys of {namespace} keep appearing and could not be removed"
    )))
}
