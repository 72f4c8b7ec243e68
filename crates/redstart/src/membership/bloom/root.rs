//! The root of a filter: which generation is current, and what this process knows of it.

use std::sync::Arc;

use super::{config::Config, generation::Generation};
use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    script::Script,
    store::Store,
};

pub(in crate::membership) static ROOT: Script = Script::new("bloom.root", include_str!("root.lua"));

/// The root as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root {
    /// `creating`, `ready`, `building` or `sealing`.
    pub(super) phase: String,
    pub(super) current: String,
    pub(super) next: String,
}

pub(super) async fn read_root(store: &Store, root: &Entity) -> Result<Root> {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(root.part("root"))
        .arg(&["phase", "current", "next"]);
    let (phase, current, next): (Option<String>, Option<String>, Option<String>) =
        store.query(&cmd).await?;
    Ok(Root {
        phase: phase.unwrap_or_default(),
        current: current.unwrap_or_default(),
        next: next.unwrap_or_default(),
    })
}

/// Replaces the root if it is as expected; returns it as it is afterwards.
pub(super) async fn swap_root(
    store: &Store,
    root: &Entity,
    expected: &Root,
    new: &Root,
) -> Result<Root> {
    let mut call = ROOT.on(root).part("root");
    for row in [expected, new] {
        call = call.arg(&row.phase).arg(&row.current).arg(&row.next);
    }
    // Sent twice, it finds what it wrote; the caller compares.
    let (phase, current, next) = call.idempotent().run(store).await?;
    Ok(Root {
        phase,
        current,
        next,
    })
}

pub(super) fn missing() -> Error {
    Error::config(
        "there is no such filter: it was never created, was deleted or was evicted; create it and add its elements",
    )
}

/// What this process knows of the root.
#[derive(Debug)]
pub(super) struct State {
    pub(super) current: Arc<Generation>,
    pub(super) next: Option<Arc<Generation>>,
}

impl State {
    /// Keeps known generations, with what was learned about their layers.
    pub(super) fn new(keys: &Keys, name: &str, row: &Root, known: Option<&State>) -> Result<Self> {
        let find = |text: &str| {
            let config = Config::parse(text)?;
            let known = known.and_then(|state| {
                [Some(&state.current), state.next.as_ref()]
                    .into_iter()
                    .flatten()
                    .find(|generation| generation.config == config)
            });
            match known {
                Some(generation) => Ok(generation.clone()),
                None => Generation::new(keys, name, config).map(Arc::new),
            }
        };
        if row.current.is_empty() {
            return Err(missing());
        }
        Ok(Self {
            current: find(&row.current)?,
            next: match row.next.as_str() {
                "" => None,
                text => Some(find(text)?),
            },
        })
    }

    pub(super) fn find(&self, number: u32) -> Option<Arc<Generation>> {
        [Some(&self.current), self.next.as_ref()]
            .into_iter()
            .flatten()
            .find(|generation| generation.number() == number)
            .cloned()
    }
}
