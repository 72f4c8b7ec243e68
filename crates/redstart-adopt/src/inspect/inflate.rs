//! zlib streams (RFC 1950 and 1951), as far as an error message needs them: the output is bounded, and what is broken is `None`.

/// The longest code of a symbol.
const LONGEST: usize = 15;

/// The lengths of copies: what each symbol from 257 on begins with, and its extra bits.
const LENGTHS: [(u16, u8); 29] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
];

/// The order in which a block gives the lengths of the codes for lengths.
const ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

/// At most `most` bytes of what a zlib stream contains; `None` if it is not one, or broken before that.
pub(super) fn inflate(stream: &[u8], most: usize) -> Option<Vec<u8>> {
    let (header, deflated) = stream.split_at_checked(2)?;
    let check = u16::from_be_bytes([header[0], header[1]]);
    // The method is deflate, and there is no dictionary.
    if header[0] & 0x0f != 8 || header[1] & 0x20 != 0 || !check.is_multiple_of(31) {
        return None;
    }
    let mut bits = Bits {
        bytes: deflated,
        at: 0,
    };
    let mut out = Vec::new();
    loop {
        let last = bits.take(1)? == 1;
        match bits.take(2)? {
            0 => stored(&mut bits, &mut out, most)?,
            1 => compressed(&mut bits, &mut out, most, &Codes::fixed())?,
            2 => {
                let codes = Codes::read(&mut bits)?;
                compressed(&mut bits, &mut out, most, &codes)?;
            }
            _ => return None,
        }
        if last || out.len() >= most {
            out.truncate(most);
            return Some(out);
        }
    }
}

struct Bits<'a> {
    bytes: &'a [u8],
    /// In bits.
    at: usize,
}

impl Bits<'_> {
    /// The next bits, the lowest first.
    fn take(&mut self, count: usize) -> Option<usize> {
        let mut value = 0;
        for n in 0..count {
            let byte = *self.bytes.get(self.at / 8)?;
            value |= usize::from(byte >> (self.at % 8) & 1) << n;
            self.at += 1;
        }
        Some(value)
    }
}

fn stored(bits: &mut Bits<'_>, out: &mut Vec<u8>, most: usize) -> Option<()> {
    bits.at = bits.at.next_multiple_of(8);
    let (len, complement) = (bits.take(16)?, bits.take(16)?);
    if len ^ complement != 0xffff {
        return None;
    }
    let from = bits.at / 8;
    let block = bits.bytes.get(from..from + len)?;
    let room = most.saturating_sub(out.len()).min(len);
    out.extend(&block[..room]);
    bits.at += len * 8;
    Some(())
}

/// Canonical codes: how many there are of each length, and their symbols in order.
struct Code {
    counts: [usize; LONGEST + 1],
    symbols: Vec<usize>,
}

impl Code {
    fn of(lengths: &[usize]) -> Option<Self> {
        let mut counts = [0; LONGEST + 1];
        for &len in lengths {
            counts[len] += 1;
        }
        counts[0] = 0;
        // More codes than there is room for would be read as others.
        let mut room = 1_usize;
        for count in &counts[1..] {
            room = (room * 2).checked_sub(*count)?;
        }
        let mut symbols: Vec<usize> = (0..lengths.len()).filter(|&n| lengths[n] > 0).collect();
        symbols.sort_by_key(|&symbol| lengths[symbol]);
        Some(Self { counts, symbols })
    }

    fn read(&self, bits: &mut Bits<'_>) -> Option<usize> {
        // The codes of each length follow those of the one before, one bit longer.
        let (mut code, mut first, mut index) = (0, 0, 0);
        for count in &self.counts[1..] {
            code |= bits.take(1)?;
            if code < first + count {
                return self.symbols.get(index + code - first).copied();
            }
            index += count;
            first = (first + count) * 2;
            code *= 2;
        }
        None
    }
}

struct Codes {
    literals: Code,
    distances: Code,
}

impl Codes {
    fn fixed() -> Self {
        let lengths: Vec<usize> = (0..288)
            .map(|symbol| match symbol {
                144..=255 => 9,
                256..=279 => 7,
                _ => 8,
            })
            .collect();
        let code = |lengths: &[usize]| Code::of(lengths).expect("the fixed codes fit");
        Self {
            literals: code(&lengths),
            distances: code(&[5; 30]),
        }
    }

    fn read(bits: &mut Bits<'_>) -> Option<Self> {
        let (literals, distances) = (bits.take(5)? + 257, bits.take(5)? + 1);
        let given = bits.take(4)? + 4;
        let mut lengths = [0; ORDER.len()];
        for place in &ORDER[..given] {
            lengths[*place] = bits.take(3)?;
        }
        let code = Code::of(&lengths)?;
        let mut lengths: Vec<usize> = Vec::new();
        while lengths.len() < literals + distances {
            let (value, times) = match code.read(bits)? {
                16 => (*lengths.last()?, bits.take(2)? + 3),
                17 => (0, bits.take(3)? + 3),
                18 => (0, bits.take(7)? + 11),
                len => (len, 1),
            };
            lengths.extend(std::iter::repeat_n(value, times));
        }
        if lengths.len() > literals + distances {
            return None;
        }
        Some(Self {
            literals: Code::of(&lengths[..literals])?,
            distances: Code::of(&lengths[literals..])?,
        })
    }
}

fn compressed(bits: &mut Bits<'_>, out: &mut Vec<u8>, most: usize, codes: &Codes) -> Option<()> {
    while out.len() < most {
        let symbol = codes.literals.read(bits)?;
        if let Ok(byte) = u8::try_from(symbol) {
            out.push(byte);
            continue;
        }
        if symbol == 256 {
            return Some(());
        }
        let (base, extra) = *LENGTHS.get(symbol - 257)?;
        let len = usize::from(base) + bits.take(usize::from(extra))?;
        let symbol = codes.distances.read(bits)?;
        // Two symbols for each number of extra bits.
        let distance = match symbol {
            0..=1 => symbol + 1,
            2..=29 => {
                let extra = symbol / 2 - 1;
                ((2 + symbol % 2) << extra) + 1 + bits.take(extra)?
            }
            _ => return None,
        };
        let from = out.len().checked_sub(distance)?;
        for n in from..from + len {
            out.push(out[n]);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let pairs = (0..hex.len()).step_by(2);
        pairs
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn the_three_kinds_of_blocks_are_read() {
        // Made by Python's zlib.compress: of level 0, of a short text, and of the squares of 0 to 199 with spaces between them.
        let stored = bytes("7801010700f8ff6e6f206c75636b0a8302ad");
        assert_eq!(inflate(&stored, 100).unwrap(), b"no luck");
        let fixed = bytes("789ccbcb57c8294dce56c843a50162ab0845");
        assert_eq!(inflate(&fixed, 100).unwrap(), b"no luck no luck no luck");
        let dynamic = bytes(concat!(
            "789c2593d901042108435bb1043904e9bfb179717e7658e50849dccb56ae5956cbcf8a5a39ab725d5bb6f732e79bc92d19430a397ef8de59e1493ed5",
            "e465f2bdb98ecf3a5dabc82bbecdffe6fc723fe44da92f85b6e960462b534f739a5b684a6adcd1dc128012920691dd140610fa160a1362dfb33c762e",
            "cf6d20a3c24b51ebecea76c80b5504fd051ae441bf483a876644332d2e736340901b2c295419e0cb04691698b3b5add6389b7d8e69e1d0c6dcaca39d",
            "4f2b1ace6a734b95c1261575a8ada64b5dfaf53e22878a66e6eac3dc6e10f480e58afaebe0bb292d0accf7827eb4071944a0844db69cbb9f56226bfb",
            "8b738be022039a4936539d9987e2148f56a2d4aed8f55fe910e77e44bfb794f079a23c7d22cf1348aac548c0b47ade502d2815df2be9a8e33720c21e",
            "2776aee27ae715caa9975fa2d2faf5e954cf7efd7b34ebbeb988aef8e1992d6cf370ce33c7083f3bb38b6fede5bb6510fb1d12b2888907573176113f",
            "fedbc4c59b87e93cf2f9a8959faf36437d52cce318f53fd203efabf64825475dce4bda39c0c97f8a7a1fbd9096cece1632a2d4e7cda876e4099f030f",
            "100c2798b3655171157b149b5c057a72c2e5356c2ba3ba1c18617a79215f46d01a2b6b2e128d6279384ec8cee739bba42f967f7ebfb27ebf57d0a507",
            "71dfdbe0812ad68b41defd9ec2b60f116bc625"
        ));
        let squares: Vec<String> = (0..200).map(|n| (n * n).to_string()).collect();
        let squares = squares.join(" ");
        assert_eq!(inflate(&dynamic, 10_000).unwrap(), squares.as_bytes());
        assert_eq!(inflate(&dynamic, 10).unwrap(), &squares.as_bytes()[..10]);
        for cut in 0..dynamic.len() - 4 {
            assert!(inflate(&dynamic[..cut], 10_000).is_none_or(|out| out.len() >= squares.len()));
        }
    }

    proptest! {
        #[test]
        fn what_is_broken_does_no_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let [first, second, ..] = &mut bytes[..] {
                (*first, *second) = (0x78, 0x9c);
            }
            prop_assert!(inflate(&bytes, 1000).is_none_or(|out| out.len() <= 1000));
        }
    }
}
