//! Which library keeps what.
//!
//! A sample of the keys gives hypotheses; directed looks at the keys that a library would have confirm or discard them.
//! A name alone is never evidence: what decides is the type, the names of fields, the shape of values, and whether the
//! server has the library's own scripts cached.

use redstart::Store;

use crate::{
    budget::Budget,
    catalogue,
    error::{Error, Result},
    found::{Found, Recognition},
    guess,
    look::Look,
    pattern,
    source::Source,
};

/// Says which libraries keep data in a store, what each of them keeps, and why we think so.
///
/// # Promises
///
/// Only commands that read are sent, and no large value is read whole. The [`Budget`] bounds how many keys are
/// looked at. On a Cluster every master is sampled.
///
/// # Limits
///
/// A library that keeps few keys among millions can be missed: raise [`Budget::keys`], or name its keys by
/// [`Budget::matching`], which are then looked for during half of [`Budget::time`]; [`Recognition::complete`] tells whether that was enough. Locks and counters have little shape of their own: their confidence stays at 0.7 or below unless the server
/// has the library's script and the keys have a name that goes with it. A script alone does not say which keys it was for.
///
/// # Round trips
///
/// One per 500 sampled keys of a node (with a pattern, per 1,000 keys that the node has), and about six per 256 keys that are looked at closer.
///
/// # Errors
///
/// Those of the store. A command that the server's rules forbid is not an error: there is less evidence.
///
/// # Cancel safety
///
/// Nothing is written, so it can be dropped at any time.
pub async fn recognise(store: &Store, budget: &Budget) -> Result<Recognition> {
    let mut source = store;
    recognise_from(&mut source, budget).await
}

/// As [`recognise`], over anything that answers.
///
/// # Errors
///
/// Those of the source.
///
/// # Cancel safety
///
/// Nothing is written, so it can be dropped at any time.
pub async fn recognise_from(source: &mut dyn Source, budget: &Budget) -> Result<Recognition> {
    if budget.keys == 0 || budget.looks == 0 {
        return Err(Error::invalid(
            "recognition needs a budget of at least one key and one look",
        ));
    }
    let mut look = Look::begin(source, budget, &catalogue::scripts()).await?;
    let groups = pattern::group(look.keys.iter().map(Vec::as_slice));
    // Half of the looks are for the sample, the other half for what follows from it. Rare patterns count as much as
    // frequent ones: most libraries have a few keys that index the others.
    let mut first = look.hints();
    for round in 0..budget.each {
        for group in &groups {
            first.extend(group.examples.get(round).cloned());
        }
    }
    first.truncate(budget.looks.div_ceil(2));
    look.at(first).await?;

    let mut found: Vec<Found> = Vec::new();
    catalogue::all(&mut look, &mut found).await?;
    found.retain(|one| one.confidence > 0.0);
    found.iter_mut().for_each(Found::make_printable);
    found.sort_by(|a, b| {
        b.confidence
            .total_cmp(&a.confidence)
            .then(a.library.cmp(&b.library))
            .then(a.subject.cmp(&b.subject))
    });
    let mut recognition = Recognition {
        found,
        sampled: look.keys.len(),
        ..Recognition::default()
    };
    let keys = look.keys.iter().map(Vec::as_slice);
    let unowned = keys.filter(|key| recognition.owner(key).is_none());
    recognition.unowned = pattern::group(unowned);
    recognition.guessed = guess::all(&look, &recognition.unowned);
    recognition.complete = look.is_complete;
    Ok(recognition)
}
