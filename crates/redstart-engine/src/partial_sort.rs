//! Sorting of which only a part is wanted, with Redis's order among equals.
//!
//! Redis sorts with a quicksort by Bentley and McIlroy ("Engineering a Sort Function", 1993) that
//! skips the partitions outside the wanted range. It is not stable, so to leave equal items where
//! Redis leaves them takes the same steps: the same pivots, the same exchanges. Nothing is left to an insertion sort because
//! a partition exchanged nothing: Redis's later versions do not, since that takes quadratic time for some orders.

use std::cmp::Ordering;

/// Puts the items of the ranks `wanted` into their places; the others end up anywhere.
pub(crate) fn partial_sort<T>(
    items: &mut [T],
    wanted: std::ops::Range<usize>,
    compare: &mut impl FnMut(&T, &T) -> Ordering,
) {
    if !wanted.is_empty() {
        sort(items, 0, wanted.start, wanted.end - 1, compare);
    }
}

/// Sorts `items`, which start at rank `base`, as far as ranks `from..=to` are concerned.
fn sort<T>(
    mut items: &mut [T],
    mut base: usize,
    from: usize,
    to: usize,
    compare: &mut impl FnMut(&T, &T) -> Ordering,
) {
    loop {
        let len = items.len();
        if len < 7 {
            insertion_sort(items, compare);
            return;
        }
        let pivot = pivot(items, compare);
        items.swap(0, pivot);
        // Items equal to the pivot gather at both ends: 0..left, then less ones up to `low`;
        // greater ones from `high` on, then equal ones after `right`.
        let (mut left, mut low) = (1, 1);
        let (mut high, mut right) = (len - 1, len - 1);
        loop {
            while low <= high {
                match compare(&items[low], &items[0]) {
                    Ordering::Greater => break,
                    Ordering::Equal => {
                        items.swap(left, low);
                        left += 1;
                    }
                    Ordering::Less => {}
                }
                low += 1;
            }
            while low <= high {
                match compare(&items[high], &items[0]) {
                    Ordering::Less => break,
                    Ordering::Equal => {
                        items.swap(high, right);
                        right -= 1;
                    }
                    Ordering::Greater => {}
                }
                high -= 1;
            }
            if low > high {
                break;
            }
            items.swap(low, high);
            low += 1;
            high -= 1;
        }
        let less = low - left;
        let greater = right - high;
        swap_blocks(items, 0, low - left.min(less), left.min(less));
        let count = greater.min(len - right - 1);
        swap_blocks(items, low, len - count, count);

        let touches = |start: usize, count: usize| count > 1 && from < start + count && to >= start;
        if touches(base, less) {
            sort(&mut items[..less], base, from, to, compare);
        }
        let start = base + len - greater;
        if !touches(start, greater) {
            return;
        }
        items = &mut items[len - greater..];
        base = start;
    }
}

fn swap_blocks<T>(items: &mut [T], a: usize, b: usize, count: usize) {
    for at in 0..count {
        items.swap(a + at, b + at);
    }
}

fn insertion_sort<T>(items: &mut [T], compare: &mut impl FnMut(&T, &T) -> Ordering) {
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 && compare(&items[at - 1], &items[at]) == Ordering::Greater {
            items.swap(at, at - 1);
            at -= 1;
        }
    }
}

/// The middle item; of more than 7 the median of three, of more than 40 of nine.
fn pivot<T>(items: &[T], compare: &mut impl FnMut(&T, &T) -> Ordering) -> usize {
    let len = items.len();
    let mut middle = len / 2;
    if len > 7 {
        let (mut low, mut high) = (0, len - 1);
        if len > 40 {
            let step = len / 8;
            low = median(items, low, low + step, low + 2 * step, compare);
            middle = median(items, middle - step, middle, middle + step, compare);
            high = median(items, high - 2 * step, high - step, high, compare);
        }
        middle = median(items, low, middle, high, compare);
    }
    middle
}

fn median<T>(
    items: &[T],
    a: usize,
    b: usize,
    c: usize,
    compare: &mut impl FnMut(&T, &T) -> Ordering,
) -> usize {
    let mut order = |x: usize, y: usize| compare(&items[x], &items[y]);
    if order(a, b) == Ordering::Less {
        if order(b, c) == Ordering::Less {
            b
        } else if order(a, c) == Ordering::Less {
            c
        } else {
            a
        }
    } else if order(b, c) == Ordering::Greater {
        b
    } else if order(a, c) == Ordering::Less {
        a
    } else {
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_ranks_are_sorted() {
        let mut random = crate::random::Random::new();
        for len in 0..200 {
            let items: Vec<usize> = (0..len).map(|_| random.below(len / 2 + 1)).collect();
            let mut sorted = items.clone();
            sorted.sort_unstable();
            let from = random.below(len + 1);
            let to = from + random.below(len - from + 1);
            let mut ours = items;
            partial_sort(&mut ours, from..to, &mut usize::cmp);
            assert_eq!(ours[from..to], sorted[from..to]);
            ours.sort_unstable();
            assert_eq!(ours, sorted);
        }
    }
}
