//! The compiled scripts, and which of them are dropped.

use std::collections::VecDeque;

use bytes::Bytes;
use hashbrown::HashMap;
use mlua::{Function, Table, Value};

use super::{digest::Digest, flags::Flags};

/// A script that was compiled.
pub(super) struct Compiled {
    /// Where its function is in the Lua table of functions.
    pub(super) index: usize,
    pub(super) text: Bytes,
    pub(super) flags: Flags,
    /// SCRIPT LOAD asked for it: it stays until SCRIPT FLUSH.
    pub(super) pinned: bool,
    /// It ran at all.
    pub(super) ran: bool,
    /// It ran again since the cache last looked for one to drop.
    pub(super) recent: bool,
}

/// How many scripts are kept that only EVAL brought, as in Redis 7.4.
const EVAL_SCRIPTS: usize = 500;

/// The compiled scripts. Their functions are in one Lua table: a Rust handle for each would use up
/// the few thousand references that Lua 5.1 allows.
pub(super) struct Cache {
    pub(super) scripts: HashMap<Digest, Compiled, ahash::RandomState>,
    pub(super) functions: Table,
    /// Indices of `functions` that were used and are free.
    pub(super) free: Vec<usize>,
    /// Scripts that only EVAL brought, next to be dropped first; those that ran meanwhile get a
    /// second chance. Pinned ones are removed when they come up.
    evals: VecDeque<Digest>,
}

impl Cache {
    pub(super) fn new(functions: Table) -> Cache {
        Cache {
            scripts: HashMap::default(),
            functions,
            free: Vec::new(),
            evals: VecDeque::new(),
        }
    }

    pub(super) fn insert(
        &mut self,
        digest: Digest,
        function: Function,
        text: Bytes,
        flags: Flags,
        pinned: bool,
    ) -> mlua::Result<()> {
        if !pinned {
            while self.evals.len() >= EVAL_SCRIPTS {
                self.drop_one()?;
            }
            self.evals.push_back(digest);
        }
        let index = self.free.pop().unwrap_or(self.scripts.len() + 1);
        self.functions.raw_set(index, function)?;
        let script = Compiled {
            index,
            text,
            flags,
            pinned,
            ran: false,
            recent: false,
        };
        self.scripts.insert(digest, script);
        Ok(())
    }

    fn drop_one(&mut self) -> mlua::Result<()> {
        while let Some(digest) = self.evals.pop_front() {
            let Some(script) = self.scripts.get_mut(&digest) else {
                return Ok(());
            };
            if script.pinned {
                return Ok(());
            }
            if std::mem::take(&mut script.recent) {
                self.evals.push_back(digest);
                continue;
            }
            let index = script.index;
            self.scripts.remove(&digest);
            self.functions.raw_set(index, Value::Nil)?;
            self.free.push(index);
            return Ok(());
        }
        Ok(())
    }

    pub(super) fn clear(&mut self) -> mlua::Result<()> {
        self.scripts.clear();
        self.free.clear();
        self.evals.clear();
        self.functions.clear()
    }
}
