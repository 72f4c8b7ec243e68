//! LZF, the compression of strings in RDB files.
//!
//! The compressor makes the same choices as the servers' (hash of three bytes, the last place of
//! each hash, no look-ahead), so that a dump has the same bytes here and there.

/// The longest run of literal bytes.
const LITERALS: usize = 32;
/// How far back a match may be.
const DISTANCE: usize = 1 << 13;
/// The longest match.
const MATCH: usize = (1 << 8) + (1 << 3);
const HASH_BITS: u32 = 16;

/// A compressor; keeps its table from call to call.
pub(super) struct Compressor {
    /// By hash: the place of three bytes, above `base`.
    places: Vec<u32>,
    /// Smaller places are from previous inputs.
    base: u32,
}

impl Default for Compressor {
    fn default() -> Compressor {
        Compressor {
            places: vec![0; 1 << HASH_BITS],
            base: 1,
        }
    }
}

fn slot(input: &[u8], at: usize) -> usize {
    let three =
        u32::from(input[at]) << 16 | u32::from(input[at + 1]) << 8 | u32::from(input[at + 2]);
    let hash = (three >> (24 - HASH_BITS)).wrapping_sub(three.wrapping_mul(5));
    (hash & ((1 << HASH_BITS) - 1)) as usize
}

impl Compressor {
    /// Puts a place under the hash of its bytes; the place that was there, if it is of this input.
    fn enter(&mut self, input: &[u8], at: usize) -> Option<usize> {
        let place = &mut self.places[slot(input, at)];
        let before = std::mem::replace(place, self.base + at as u32);
        before.checked_sub(self.base).map(|before| before as usize)
    }

    /// The compressed bytes; `None` if they would be more than `limit`.
    pub(super) fn compress(&mut self, input: &[u8], limit: usize) -> Option<Vec<u8>> {
        let len = u32::try_from(input.len()).ok()?;
        if input.is_empty() || limit == 0 {
            return None;
        }
        if self.base.checked_add(len).is_none() {
            self.places.fill(0);
            self.base = 1;
            self.base.checked_add(len)?;
        }
        let out = self.run(input, limit);
        self.base += len;
        out
    }

    fn run(&mut self, input: &[u8], limit: usize) -> Option<Vec<u8>> {
        // Each run of literals has its length before it; that byte is reserved when a run may begin.
        let mut out = Vec::with_capacity(limit + 4);
        out.push(0);
        let mut literals = 0;
        let end = input.len();
        let mut at = 0;
        while at + 2 < end {
            let place = self.enter(input, at);
            let matching = place.filter(|&place| {
                place > 0
                    && at - place - 1 < DISTANCE
                    && input[place..place + 3] == input[at..at + 3]
            });
            let Some(place) = matching else {
                if out.len() >= limit {
                    return None;
                }
                literal(&mut out, &mut literals, input[at]);
                at += 1;
                continue;
            };
            if out.len() + 4 >= limit && out.len() - usize::from(literals == 0) + 4 >= limit {
                return None;
            }
            end_run(&mut out, literals);
            let longer = match_len(input, place, at) - 2;
            let distance = at - place - 1;
            if longer < 7 {
                out.push((distance >> 8) as u8 + ((longer as u8) << 5));
            } else {
                out.push((distance >> 8) as u8 + (7 << 5));
                out.push((longer - 7) as u8);
            }
            out.push(distance as u8);
            out.push(0);
            literals = 0;
            at += longer + 2;
            if at + 2 >= end {
                break;
            }
            // The last two places within the match can be found again.
            self.enter(input, at - 2);
            self.enter(input, at - 1);
        }
        if out.len() + 3 > limit {
            return None;
        }
        for &byte in &input[at..] {
            literal(&mut out, &mut literals, byte);
        }
        end_run(&mut out, literals);
        Some(out)
    }
}

/// How many bytes are equal from both places on, as far as the servers look.
fn match_len(input: &[u8], place: usize, at: usize) -> usize {
    let max = (input.len() - at - 2).min(MATCH);
    let equal = |len: usize| input[place + len] == input[at + len];
    let mut len = 2;
    if max > 16 {
        // The first sixteen are compared without a look at the limit.
        for _ in 0..16 {
            len += 1;
            if !equal(len) {
                return len;
            }
        }
    }
    loop {
        len += 1;
        if len >= max || !equal(len) {
            return len;
        }
    }
}

fn literal(out: &mut Vec<u8>, literals: &mut usize, byte: u8) {
    out.push(byte);
    *literals += 1;
    if *literals == LITERALS {
        end_run(out, *literals);
        out.push(0);
        *literals = 0;
    }
}

/// Writes the length of a run before it; takes the reserved byte back if there is none.
fn end_run(out: &mut Vec<u8>, literals: usize) {
    if literals == 0 {
        out.pop();
    } else {
        let at = out.len() - literals - 1;
        out[at] = (literals - 1) as u8;
    }
}

/// The bytes that were compressed, `len` of them; `None` if the input is damaged.
pub(super) fn decompress(input: &[u8], len: usize) -> Option<Vec<u8>> {
    // Three bytes hold no more than a match of the greatest length: a false length is not believed,
    // and memory is taken as bytes come.
    const AT_ONCE: usize = 1 << 20;
    if len / MATCH > input.len() / 3 {
        return None;
    }
    let mut out = Vec::with_capacity(len.min(AT_ONCE));
    let mut rest = input;
    while let Some((&control, after)) = rest.split_first() {
        rest = after;
        let control = usize::from(control);
        if control < LITERALS {
            let (run, after) = rest.split_at_checked(control + 1)?;
            out.extend_from_slice(run);
            rest = after;
        } else {
            let mut count = control >> 5;
            if count == 7 {
                let (&more, after) = rest.split_first()?;
                count += usize::from(more);
                rest = after;
            }
            let (&low, after) = rest.split_first()?;
            rest = after;
            let distance = ((control & 0x1F) << 8) + usize::from(low) + 1;
            let from = out.len().checked_sub(distance)?;
            if out.len() + count + 2 > len {
                return None;
            }
            for at in from..from + count + 2 {
                out.push(out[at]);
            }
        }
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_compressed_comes_back(
            words in prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 1..40),
                Just(b"again and again ".to_vec()),
                (any::<u8>(), 1usize..600).prop_map(|(byte, len)| vec![byte; len]),
            ], 1..30)
        ) {
            let input = words.concat();
            let mut compressor = Compressor::default();
            for _ in 0..2 {
                if let Some(packed) = compressor.compress(&input, input.len().saturating_sub(4)) {
                    prop_assert!(packed.len() <= input.len());
                    let back = decompress(&packed, input.len());
                    prop_assert_eq!(back.as_deref(), Some(&input[..]));
                    prop_assert_eq!(decompress(&packed, input.len() + 1), None);
                }
            }
        }

        #[test]
        fn damaged_input_is_refused_without_a_panic(
            input in prop::collection::vec(any::<u8>(), 0..200), len in 0usize..100_000
        ) {
            let _ = decompress(&input, len);
        }
    }

    #[test]
    fn a_false_length_takes_no_memory() {
        assert_eq!(decompress(b"\0a", usize::MAX), None);
        // A length that this number of bytes could have, of bytes without a meaning.
        let rubbish = vec![0xFF; 24 << 20];
        let before = virtual_peak();
        assert_eq!(decompress(&rubbish, (rubbish.len() / 3) * MATCH), None);
        // A third of the bytes are a match at most.
        assert_eq!(decompress(&rubbish, rubbish.len() * MATCH), None);
        let grown = virtual_peak() - before;
        assert!(grown < 1 << 30, "{grown} bytes were asked for");
    }

    /// The most address space that the process had, in bytes.
    fn virtual_peak() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmPeak"));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
        kilobytes.unwrap().parse::<u64>().unwrap() * 1024
    }
}
