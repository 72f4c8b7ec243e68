//! Trimming: what XADD and XTRIM cut off.

use super::{Stream, id::Id, node::DELETED};

/// What XADD and XTRIM may be told to cut off.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    MaxLen(u64),
    MinId(Id),
}

/// How to trim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trim {
    pub(crate) limit: Limit,
    /// Whole nodes only.
    pub(crate) approximate: bool,
    /// How many entries to remove at most; 0 is no limit.
    pub(crate) at_most: u64,
}

impl Stream {
    /// Cuts off old entries; how many.
    pub(crate) fn trim(&mut self, trim: Trim) -> u64 {
        let mut removed = 0;
        while let Some(mut first) = self.nodes.first_entry() {
            if matches!(trim.limit, Limit::MaxLen(max) if self.len <= max) {
                break;
            }
            let node_id = *first.key();
            let node = first.get_mut();
            let live = u64::from(node.live);
            if trim.at_most > 0 && removed + live > trim.at_most {
                break;
            }
            let whole = match trim.limit {
                Limit::MaxLen(max) => self.len - live >= max,
                Limit::MinId(min) => node.last_id(node_id) < min,
            };
            if whole {
                self.remove_node(node_id);
                self.len -= live;
                removed += live;
                continue;
            }
            if trim.approximate {
                break;
            }
            let mut surplus = match trim.limit {
                Limit::MaxLen(max) => self.len - max,
                Limit::MinId(_) => u64::MAX,
            };
            let mut marked = Vec::new();
            for (at, id, deleted, _) in node.entries(node_id) {
                if surplus == 0 || matches!(trim.limit, Limit::MinId(min) if id >= min) {
                    break;
                }
                if !deleted {
                    marked.push(at);
                    surplus -= 1;
                }
            }
            for &at in &marked {
                node.data[at] |= DELETED;
            }
            node.live -= marked.len() as u32;
            node.dead += marked.len() as u32;
            self.len -= marked.len() as u64;
            removed += marked.len() as u64;
            break;
        }
        removed
    }
}
