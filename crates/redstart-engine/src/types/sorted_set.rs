//! Sorted sets.

use std::{cmp::Ordering, ops::Range};

use super::{
    blob::Blob,
    dict::{Dict, Slot},
};
use crate::{
    config::Config,
    random::{Draw, Random},
};

/// Members with scores, in order of score and then of bytes.
///
/// The dictionary holds each member once, with its score; [`Order`] holds the members' slots in
/// order. About 60 bytes for a short member, where a skiplist with its hash table takes over 100.
#[derive(Default)]
pub(crate) struct SortedSet {
    scores: Dict<f64>,
    order: Order,
    /// Whether Redis would have made a skiplist of it by now.
    large: bool,
}

impl Clone for SortedSet {
    fn clone(&self) -> SortedSet {
        let mut copy = SortedSet {
            scores: Dict::with_capacity(self.len()),
            order: Order::default(),
            large: self.large,
        };
        // In order, so that each insertion is an append.
        self.each(0, self.len(), false, |member, score| {
            copy.insert_new(member, score);
        });
        copy
    }
}

impl SortedSet {
    /// About how many bytes are held on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        // The order holds a score and a slot for each member, in blocks that are not all full.
        let order = self.len() * (size_of::<f64>() + size_of::<Slot>()) * 4 / 3;
        size_of::<SortedSet>() + self.scores.heap_size(|_| 0) + order
    }
}

/// A bound of a range of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScoreRange {
    pub(crate) min: f64,
    pub(crate) min_exclusive: bool,
    pub(crate) max: f64,
    pub(crate) max_exclusive: bool,
}

impl ScoreRange {
    pub(crate) fn is_below(&self, score: f64) -> bool {
        if self.min_exclusive {
            score <= self.min
        } else {
            score < self.min
        }
    }

    pub(crate) fn is_not_above(&self, score: f64) -> bool {
        if self.max_exclusive {
            score < self.max
        } else {
            score <= self.max
        }
    }
}

/// A bound of a range of members.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LexBound {
    /// `-`
    Lowest,
    /// `+`
    Highest,
    /// `[member`
    Inclusive(Blob),
    /// `(member`
    Exclusive(Blob),
}

/// A range of members, which all have the same score.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LexRange {
    pub(crate) min: LexBound,
    pub(crate) max: LexBound,
}

impl LexRange {
    fn is_empty(&self) -> bool {
        match (&self.min, &self.max) {
            (LexBound::Highest, LexBound::Highest) | (LexBound::Lowest, LexBound::Lowest) => false,
            (LexBound::Highest, _) | (_, LexBound::Lowest) => true,
            (LexBound::Inclusive(min), LexBound::Inclusive(max)) => min > max,
            (
                LexBound::Inclusive(min) | LexBound::Exclusive(min),
                LexBound::Inclusive(max) | LexBound::Exclusive(max),
            ) => min >= max,
            _ => false,
        }
    }

    fn is_below(&self, member: &[u8]) -> bool {
        match &self.min {
            LexBound::Lowest => false,
            LexBound::Highest => true,
            LexBound::Inclusive(bound) => member < bound.as_slice(),
            LexBound::Exclusive(bound) => member <= bound.as_slice(),
        }
    }

    fn is_not_above(&self, member: &[u8]) -> bool {
        match &self.max {
            LexBound::Lowest => false,
            LexBound::Highest => true,
            LexBound::Inclusive(bound) => member <= bound.as_slice(),
            LexBound::Exclusive(bound) => member < bound.as_slice(),
        }
    }
}

impl SortedSet {
    pub(crate) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    pub(crate) fn encoding(&self) -> &'static str {
        if self.large { "skiplist" } else { "listpack" }
    }

    /// A sorted set of these members; counts as a skiplist until it is packed.
    pub(crate) fn from_scores(scores: Dict<f64>) -> SortedSet {
        let mut entries: Vec<(f64, Slot)> = (0..scores.slots() as Slot)
            .filter_map(|slot| scores.at(slot).map(|(_, score)| (*score, slot)))
            .collect();
        entries.sort_unstable_by(|a, b| Order::compare(&scores, a.0, || a.1, b.0, scores.key(b.1)));
        let mut order = Order::default();
        for chunk in entries.chunks(BLOCK / 4 * 3) {
            let (scores, slots) = chunk.iter().copied().unzip();
            order.add_block(order.blocks.len(), Block { scores, slots });
        }
        SortedSet {
            scores,
            order,
            large: true,
        }
    }

    /// Counts as a listpack again if it is small enough, as what a STORE form stores does.
    pub(crate) fn pack(&mut self, config: &Config) {
        self.large = self.len() > config.zset_max_listpack_entries
            || self
                .scores
                .keys()
                .any(|member| member.len() > config.zset_max_listpack_value);
        if self.large {
            return;
        }
        // No negative zeros; the order does not change by that.
        let unsigned = |score: &mut f64| {
            if *score == 0.0 {
                *score = 0.0;
            }
        };
        for block in &mut self.order.blocks {
            block.scores.iter_mut().for_each(unsigned);
            for &slot in &block.slots {
                unsigned(self.scores.value_mut(slot));
            }
        }
    }

    /// Whether Redis would keep it as a listpack.
    pub(crate) fn is_packed(&self) -> bool {
        !self.large
    }

    /// Counts as a skiplist from now on, as after SORT.
    pub(crate) fn unpack(&mut self) {
        self.large = true;
    }

    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    pub(crate) fn contains(&self, member: &[u8]) -> bool {
        self.scores.contains(member)
    }

    /// Sets a member's score, which must not be NaN; the score before.
    pub(crate) fn insert(&mut self, member: &[u8], score: f64, config: &Config) -> Option<f64> {
        let slot = self.scores.find(member);
        if !self.large {
            self.large = slot.is_none()
                && (self.len() >= config.zset_max_listpack_entries
                    || member.len() > config.zset_max_listpack_value);
        }
        // A listpack keeps whole numbers as integers, which have no negative zero.
        let score = if score == 0.0 && !self.large {
            0.0
        } else {
            score
        };
        let Some(slot) = slot else {
            self.insert_new(member, score);
            return None;
        };
        let old = *self.scores.value(slot);
        if old != score {
            self.order.remove(&self.scores, slot);
            *self.scores.value_mut(slot) = score;
            self.order.insert(&self.scores, score, slot);
        }
        Some(old)
    }

    fn insert_new(&mut self, member: &[u8], score: f64) {
        let slot = self.scores.insert_new(member, score);
        self.order.insert(&self.scores, score, slot);
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let slot = self.scores.find(member)?;
        self.order.remove(&self.scores, slot);
        let score = self.scores.remove(member);
        // The order is by slots: it is made again only if they changed.
        if self.scores.is_sparse() && self.scores.compact() {
            *self = SortedSet {
                large: self.large,
                ..SortedSet::from_scores(std::mem::take(&mut self.scores))
            };
        }
        score
    }

    /// How many members come before this one.
    pub(crate) fn rank(&self, member: &[u8]) -> Option<usize> {
        let slot = self.scores.find(member)?;
        Some(self.order.rank(&self.scores, slot))
    }

    /// The member at a rank.
    #[cfg(test)]
    fn at(&self, rank: usize) -> Option<(&Blob, f64)> {
        let (block, at) = self.order.locate(rank)?;
        let block = &self.order.blocks[block];
        Some((self.scores.key(block.slots[at]), block.scores[at]))
    }

    /// Visits the members of ranks `from..to`, backwards if `reverse`.
    pub(crate) fn each(
        &self,
        from: usize,
        to: usize,
        reverse: bool,
        mut visit: impl FnMut(&Blob, f64),
    ) {
        let to = to.min(self.len());
        if from >= to {
            return;
        }
        let mut left = to - from;
        let start = if reverse { to - 1 } else { from };
        let Some((mut block, mut at)) = self.order.locate(start) else {
            return;
        };
        loop {
            let current = &self.order.blocks[block];
            visit(self.scores.key(current.slots[at]), current.scores[at]);
            left -= 1;
            if left == 0 {
                return;
            }
            if reverse {
                if at > 0 {
                    at -= 1;
                } else {
                    block -= 1;
                    at = self.order.blocks[block].scores.len() - 1;
                }
            } else {
                at += 1;
                if at == current.scores.len() {
                    block += 1;
                    at = 0;
                }
            }
        }
    }

    /// All members in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Blob, f64)> {
        self.order.blocks.iter().flat_map(|block| {
            block
                .scores
                .iter()
                .zip(&block.slots)
                .map(|(&score, &slot)| (self.scores.key(slot), score))
        })
    }

    /// The ranks that a range of scores covers.
    pub(crate) fn score_ranks(&self, range: &ScoreRange) -> Range<usize> {
        let from = self.order.partition(|score, _| range.is_below(score));
        let to = self.order.partition(|score, _| range.is_not_above(score));
        from..to.max(from)
    }

    /// The ranks that a range of members covers, seen from its lower or its upper end.
    ///
    /// That is well defined for equal scores only. For others Redis's answer is what its search
    /// stumbles on; for listpacks, where that is a walk from one end, the same is found here.
    pub(crate) fn lex_ranks(&self, range: &LexRange, from_above: bool) -> Range<usize> {
        if self.large {
            let from = self
                .order
                .partition(|_, slot| range.is_below(self.scores.key(slot())));
            let to = self
                .order
                .partition(|_, slot| range.is_not_above(self.scores.key(slot())));
            return from..to.max(from);
        }
        let members: Vec<&Blob> = self.iter().map(|(member, _)| member).collect();
        let (Some(first), Some(last)) = (members.first(), members.last()) else {
            return 0..0;
        };
        if range.is_empty() || range.is_below(last) || !range.is_not_above(first) {
            return 0..0;
        }
        if from_above {
            let end = members
                .iter()
                .rposition(|member| range.is_not_above(member));
            let end = end.map_or(0, |at| at + 1);
            let below = members[..end]
                .iter()
                .rposition(|member| range.is_below(member));
            below.map_or(0, |at| at + 1)..end
        } else {
            let start = members.iter().position(|member| !range.is_below(member));
            let start = start.unwrap_or(members.len());
            let len = members[start..]
                .iter()
                .position(|member| !range.is_not_above(member));
            start..len.map_or(members.len(), |len| start + len)
        }
    }

    /// Removes the members of these ranks; how many there were.
    pub(crate) fn remove_ranks(&mut self, ranks: Range<usize>) -> usize {
        let mut doomed = Vec::with_capacity(ranks.len());
        self.each(ranks.start, ranks.end, false, |member, _| {
            doomed.push(member.clone())
        });
        for member in &doomed {
            self.remove(member);
        }
        doomed.len()
    }

    /// What is at a place that [`Draw`] gave.
    pub(crate) fn by_slot(&self, slot: Slot) -> Option<(&Blob, f64)> {
        self.scores.at(slot).map(|(member, score)| (member, *score))
    }

    /// ZSCAN's step: a listpack comes whole and in order.
    pub(crate) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&Blob, f64)) -> u64 {
        if !self.large {
            self.each(0, self.len(), false, visit);
            return 0;
        }
        self.scores
            .scan(cursor, count, |member, score| visit(member, *score))
    }
}

impl Draw for SortedSet {
    fn len(&self) -> usize {
        self.scores.len()
    }

    fn places(&self) -> usize {
        self.scores.slots()
    }

    fn is_taken(&self, place: Slot) -> bool {
        self.by_slot(place).is_some()
    }

    fn draw(&self, random: &mut Random) -> Option<Slot> {
        self.scores.random(random)
    }
}

/// The most entries of a block: few enough to shift on an insertion and to search in few cache
/// lines, many enough that a million members make some thousand blocks.
const BLOCK: usize = 256;

/// How many blocks are counted together, so that a rank is the sum of a few numbers.
const GROUP: usize = 64;

/// Slots in order of score and member, in blocks, with what a search reads kept together.
#[derive(Default)]
struct Order {
    blocks: Vec<Block>,
    /// The first score of each block.
    heads: Vec<f64>,
    /// The length of each block.
    lens: Vec<u32>,
    /// The sum of the lengths of each [`GROUP`] of blocks.
    groups: Vec<u32>,
    /// The first score of each group.
    tops: Vec<f64>,
}

#[derive(Default)]
struct Block {
    scores: Vec<f64>,
    slots: Vec<Slot>,
}

impl Block {
    /// The place of a slot that is in the block.
    ///
    /// A look at all of them is faster than a search by score: the processor fetches the cache lines
    /// ahead, where each step of a search waits for one.
    fn position(&self, slot: Slot) -> usize {
        const LANES: usize = 16;
        let (chunks, rest) = self.slots.as_chunks::<LANES>();
        for (at, chunk) in chunks.iter().enumerate() {
            let mut found = 0;
            for (lane, &held) in chunk.iter().enumerate() {
                found |= u32::from(held == slot) << lane;
            }
            if found != 0 {
                return at * LANES + found.trailing_zeros() as usize;
            }
        }
        let at = rest.iter().position(|&held| held == slot);
        chunks.len() * LANES + at.expect("the block holds the slot")
    }
}

impl Order {
    /// Compares an entry with a key. The slot is looked up for equal scores only: it is one more
    /// cache miss, and so is the member behind it.
    #[inline]
    fn compare(
        members: &Dict<f64>,
        score: f64,
        slot: impl FnOnce() -> Slot,
        key_score: f64,
        key: &[u8],
    ) -> Ordering {
        match score.partial_cmp(&key_score) {
            Some(Ordering::Equal) | None => members.key(slot()).as_slice().cmp(key),
            Some(order) => order,
        }
    }

    /// The block that holds or would hold a key: the last one whose first entry is not greater.
    fn block_of(&self, members: &Dict<f64>, score: f64, key: &[u8]) -> usize {
        let end = self.heads_up_to(score);
        let mut low = end;
        // Members decide only among blocks that begin with the same score.
        if end > 0 && self.heads[end - 1] == score {
            low = self.heads[..end].partition_point(|&head| head < score);
            let equal = &self.blocks[low..end];
            low += equal.partition_point(|block| members.key(block.slots[0]).as_slice() <= key);
        }
        low.saturating_sub(1)
    }

    /// How many blocks begin with a score that is not greater.
    ///
    /// Counted, in two steps: a count reads its cache lines at once, a binary search one after the other.
    fn heads_up_to(&self, score: f64) -> usize {
        let count = |scores: &[f64]| {
            let not_greater = scores.iter().map(|&first| u64::from(first <= score));
            not_greater.sum::<u64>() as usize
        };
        let Some(group) = count(&self.tops).checked_sub(1) else {
            return 0;
        };
        let start = group * GROUP;
        let end = (start + GROUP).min(self.heads.len());
        start + count(&self.heads[start..end])
    }

    /// The block that holds a slot, and its place there.
    fn find(&self, members: &Dict<f64>, slot: Slot) -> (usize, usize) {
        let block = self.block_of(members, *members.value(slot), members.key(slot));
        (block, self.blocks[block].position(slot))
    }

    /// The place in a block of the first entry that is not less than the key.
    fn place_in(&self, members: &Dict<f64>, block: usize, score: f64, key: &[u8]) -> usize {
        let block = &self.blocks[block];
        let mut low = 0;
        let mut high = block.scores.len();
        while low < high {
            let middle = (low + high) / 2;
            let slot = || block.slots[middle];
            let order = Order::compare(members, block.scores[middle], slot, score, key);
            if order == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn insert(&mut self, members: &Dict<f64>, score: f64, slot: Slot) {
        if self.blocks.is_empty() {
            self.blocks.push(Block {
                scores: vec![score],
                slots: vec![slot],
            });
            self.heads.push(score);
            self.lens.push(1);
            self.groups.push(1);
            self.tops.push(score);
            return;
        }
        let key = members.key(slot).as_slice();
        let mut at_block = self.block_of(members, score, key);
        let mut at = self.place_in(members, at_block, score, key);
        if self.blocks[at_block].scores.len() >= BLOCK {
            if at_block + 1 == self.blocks.len() && at == BLOCK {
                // Growing at the end leaves full blocks behind.
                self.add_block(at_block + 1, Block::default());
            } else {
                let full = &mut self.blocks[at_block];
                let tail = Block {
                    scores: full.scores.split_off(BLOCK / 2),
                    slots: full.slots.split_off(BLOCK / 2),
                };
                full.scores.shrink_to(BLOCK / 2 + BLOCK / 4);
                full.slots.shrink_to(BLOCK / 2 + BLOCK / 4);
                self.lens[at_block] = (BLOCK / 2) as u32;
                self.add_block(at_block + 1, tail);
            }
            if at > self.blocks[at_block].scores.len()
                || (at == BLOCK && self.blocks[at_block + 1].scores.is_empty())
            {
                at -= self.blocks[at_block].scores.len();
                at_block += 1;
            }
        }
        let block = &mut self.blocks[at_block];
        block.scores.insert(at, score);
        block.slots.insert(at, slot);
        self.lens[at_block] += 1;
        self.groups[at_block / GROUP] += 1;
        if at == 0 {
            self.set_head(at_block, score);
        }
    }

    fn set_head(&mut self, block: usize, score: f64) {
        self.heads[block] = score;
        if block.is_multiple_of(GROUP) {
            self.tops[block / GROUP] = score;
        }
    }

    fn add_block(&mut self, at: usize, block: Block) {
        self.heads
            .insert(at, block.scores.first().copied().unwrap_or(0.0));
        self.lens.insert(at, block.scores.len() as u32);
        self.blocks.insert(at, block);
        // From the block before on, which a split has shortened.
        self.regroup(at.saturating_sub(1));
    }

    /// Removes a member that is there, while the dictionary still has it.
    fn remove(&mut self, members: &Dict<f64>, slot: Slot) {
        let (at_block, at) = self.find(members, slot);
        let block = &mut self.blocks[at_block];
        block.scores.remove(at);
        block.slots.remove(at);
        self.lens[at_block] -= 1;
        self.groups[at_block / GROUP] -= 1;
        if block.scores.is_empty() {
            self.drop_block(at_block);
            return;
        }
        let (head, len) = (block.scores[0], block.scores.len());
        if at == 0 {
            self.set_head(at_block, head);
        }
        if let Some(next) = self.blocks.get(at_block + 1)
            && len + next.scores.len() <= BLOCK / 2
        {
            let next = self.blocks.remove(at_block + 1);
            self.heads.remove(at_block + 1);
            self.lens.remove(at_block + 1);
            self.lens[at_block] += next.scores.len() as u32;
            self.blocks[at_block].scores.extend(next.scores);
            self.blocks[at_block].slots.extend(next.slots);
            self.regroup(at_block);
        }
    }

    fn drop_block(&mut self, at: usize) {
        self.blocks.remove(at);
        self.heads.remove(at);
        self.lens.remove(at);
        self.regroup(at);
    }

    /// Recounts the groups from a block on.
    fn regroup(&mut self, from: usize) {
        let group = from / GROUP;
        self.groups.truncate(group);
        let groups = self.lens[group * GROUP..].chunks(GROUP);
        self.groups
            .extend(groups.map(|lens| lens.iter().sum::<u32>()));
        self.tops.truncate(group);
        let tops = self.heads[group * GROUP..].iter().step_by(GROUP);
        self.tops.extend(tops);
    }

    /// How many entries there are before a block.
    fn before(&self, block: usize) -> usize {
        let group = block / GROUP;
        let whole = self.groups[..group].iter().sum::<u32>();
        (whole + self.lens[group * GROUP..block].iter().sum::<u32>()) as usize
    }

    fn rank(&self, members: &Dict<f64>, slot: Slot) -> usize {
        let (block, at) = self.find(members, slot);
        self.before(block) + at
    }

    fn locate(&self, mut rank: usize) -> Option<(usize, usize)> {
        let mut group = 0;
        while rank >= *self.groups.get(group)? as usize {
            rank -= self.groups[group] as usize;
            group += 1;
        }
        let mut block = group * GROUP;
        while rank >= self.lens[block] as usize {
            rank -= self.lens[block] as usize;
            block += 1;
        }
        Some((block, rank))
    }

    /// How many entries come before the first one for which `before` is false; it must be true
    /// for a prefix only. It is given the score, and a way to the slot.
    fn partition(&self, before: impl Fn(f64, &dyn Fn() -> Slot) -> bool) -> usize {
        let mut low = 0;
        let mut high = self.blocks.len();
        while low < high {
            let middle = (low + high) / 2;
            if before(self.heads[middle], &|| self.blocks[middle].slots[0]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(at) = low.checked_sub(1) else {
            return 0;
        };
        let block = &self.blocks[at];
        let (mut low, mut high) = (0, block.scores.len());
        while low < high {
            let middle = (low + high) / 2;
            if before(block.scores[middle], &|| block.slots[middle]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.before(at) + low
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_holds_over_many_blocks() {
        let config = Config::default();
        let mut set = SortedSet::default();
        let mut model = BTreeSet::new();
        let mut random = Random::new();
        for _ in 0..40_000 {
            let member = format!("m{:05}", random.below(15_000));
            if random.below(4) == 0 {
                if let Some(score) = set.remove(member.as_bytes()) {
                    assert!(model.remove(&(score as i64, member)));
                }
            } else {
                let score = random.below(3000) as i64;
                if let Some(old) = set.insert(member.as_bytes(), score as f64, &config) {
                    model.remove(&(old as i64, member.clone()));
                }
                model.insert((score, member));
            }
        }
        assert_eq!(set.len(), model.len());
        for (rank, (score, member)) in model.iter().enumerate() {
            assert_eq!(set.rank(member.as_bytes()), Some(rank));
            let (held, held_score) = set.at(rank).unwrap();
            assert_eq!(
                (held.as_slice(), held_score),
                (member.as_bytes(), *score as f64)
            );
        }
    }

    /// A queue that drains: the removal of a few costs what they are, however many there were.
    #[test]
    fn the_last_members_of_a_large_set_go_as_fast_as_the_first() {
        const MANY: usize = 200_000;
        let config = Config::default();
        let mut set = SortedSet::default();
        for i in 0..MANY {
            set.insert(format!("m{i:06}").as_bytes(), 1.0, &config);
        }
        let mut take = |members: usize| {
            let began = std::time::Instant::now();
            assert_eq!(set.remove_ranks(0..members), members);
            began.elapsed().as_secs_f64() / members as f64
        };
        let first = take(MANY / 2);
        take(MANY / 2 - MANY / 8);
        // Most of the slots are free now.
        let last = take(1000);
        assert!(last < 50.0 * first, "{:.0} times as long", last / first);
        take(MANY / 8 - 1000);
    }

    proptest! {
        #[test]
        fn ranges_are_those_of_a_sorted_list(
            entries in proptest::collection::vec((0u8..40, -5i32..5), 0..80),
            min in -6i32..6,
            max in -6i32..6,
            min_exclusive: bool,
            max_exclusive: bool,
        ) {
            let config = Config::default();
            let mut set = SortedSet::default();
            for (member, score) in &entries {
                set.insert(&[*member], f64::from(*score), &config);
            }
            let range = ScoreRange {
                min: f64::from(min),
                min_exclusive,
                max: f64::from(max),
                max_exclusive,
            };
            let ranks = set.score_ranks(&range);
            let expected: Vec<_> = set
                .iter()
                .filter(|(_, score)| !range.is_below(*score) && range.is_not_above(*score))
                .map(|(member, _)| member.clone())
                .collect();
            let mut found = Vec::new();
            set.each(ranks.start, ranks.end, false, |member, _| found.push(member.clone()));
            prop_assert_eq!(found, expected);
        }
    }
}
