//! How many nodes Redis's radix tree over the ids has, which XINFO STREAM tells.
//!
//! Nobody keeps such a tree here. Its size is counted along: what an id adds depends on its neighbours
//! only. A node of the tree is a branch, a leaf, or a run of bytes that several ids share before a
//! branch or that one id has alone before its leaf.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use super::Id;

/// How many bytes an id has as a key of the tree.
const BYTES: usize = 16;

fn bits(id: Id) -> u128 {
    u128::from(id.ms) << 64 | u128::from(id.seq)
}

fn id(bits: u128) -> Id {
    Id {
        ms: (bits >> 64) as u64,
        seq: bits as u64,
    }
}

/// How many bytes two ids have in common at their beginning.
fn common(a: Id, b: Id) -> usize {
    (bits(a) ^ bits(b)).leading_zeros() as usize / 8
}

/// How many nodes the tree over these ids gains by one that it does not have.
pub(super) fn gained<V>(ids: &BTreeMap<Id, V>, new: Id) -> usize {
    let before = ids.range(..new).next_back();
    let after = ids.range(new..).next();
    let nearest = [before, after].into_iter().flatten();
    let Some(shared) = nearest.map(|(other, _)| common(*other, new)).max() else {
        // The root is there without ids; a single one is a run and a leaf.
        return 1;
    };
    let leaf = usize::from(shared + 1 < BYTES) + 1;
    // The ids that share this many bytes with the new one.
    let free = u128::MAX.checked_shr(8 * shared as u32).unwrap_or(0);
    let group = id(bits(new) & !free)..=id(bits(new) | free);
    let mut inside = ids.range(group).map(|(id, _)| *id);
    let Some(first) = inside.next() else {
        return leaf;
    };
    let last = inside.next_back().unwrap_or(first);
    let run_ends = common(first, last);
    if run_ends == shared {
        // They branch where the new one leaves them.
        return leaf;
    }
    // A run is split by a branch. It began behind the branch that leads to the group.
    let before = ids.range(..first).next_back();
    let after = ids.range((Excluded(last), Unbounded)).next();
    let branches = [
        before.map(|(other, _)| common(*other, first) + 1),
        after.map(|(other, _)| common(last, *other) + 1),
    ];
    let run_begins = branches.into_iter().flatten().max().unwrap_or(0);
    leaf + usize::from(shared > run_begins) + usize::from(run_ends > shared + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Counts the nodes of the whole tree.
    fn count(keys: &[[u8; BYTES]], depth: usize) -> usize {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else {
            return 1;
        };
        if keys.len() == 1 {
            // The run of what is left of the key, and the leaf.
            return usize::from(depth < BYTES) + 1;
        }
        let common = (depth..BYTES)
            .take_while(|&at| first[at] == last[at])
            .count();
        let depth = depth + common;
        let mut nodes = usize::from(common > 0) + 1;
        for group in keys.chunk_by(|a, b| a[depth] == b[depth]) {
            nodes += count(group, depth + 1);
        }
        nodes
    }

    proptest! {
        #[test]
        fn the_count_along_the_way_is_that_of_the_whole_tree(
            changes in prop::collection::vec(
                (prop::array::uniform16(prop_oneof![4 => Just(0u8), 1 => 0..3u8]), any::<bool>()),
                1..80,
            )
        ) {
            let mut ids = BTreeMap::new();
            let mut nodes = 1;
            for (key, adds) in changes {
                let new = id(u128::from_be_bytes(key));
                if adds && !ids.contains_key(&new) {
                    nodes += gained(&ids, new);
                    ids.insert(new, ());
                } else if ids.remove(&new).is_some() {
                    nodes -= gained(&ids, new);
                }
                let keys: Vec<_> = ids.keys().map(|id| bits(*id).to_be_bytes()).collect();
                prop_assert_eq!(nodes, count(&keys, 0));
            }
        }
    }
}
