//! Bloom filters that grow, as Redis 8's built-in ones: the same sizes, hashes and dumps.
//!
//! A filter is a chain of links. When the last one holds as many items as it was made for, a
//! larger one with half its error rate is added, so the rate of the whole stays within what was
//! asked for.

use std::f64::consts::LN_2;

use crate::murmur::murmur_64a;

/// How much stricter each link is than the one before.
const TIGHTENING: f64 = 0.5;
/// What one link may take.
const MAX_BYTES: u64 = 4 << 30;

/// How many links a filter that is loaded may have: each is looked at for every item.
const MAX_LINKS: usize = 4096;

const NO_ROUND: u32 = 1;
const FORCE_64: u32 = 4;
const NO_SCALING: u32 = 8;

const HEADER: usize = 20;
const LINK_HEADER: usize = 53;

/// The size of the structures beside the bits in Redis, which BF.INFO counts.
const CHAIN_OVERHEAD: u64 = 32;
const LINK_OVERHEAD: u64 = 64;

/// Why an item was not added.
pub(crate) enum Refused {
    Full,
    TooLarge,
}

/// A chain of filters.
#[derive(Clone, Default)]
pub(crate) struct Bloom {
    links: Vec<Link>,
    items: u64,
    expansion: u32,
    fixed: bool,
}

#[derive(Clone)]
struct Link {
    bits: Vec<u8>,
    hashes: u32,
    /// How many items it is made for.
    capacity: u64,
    error: f64,
    bits_per_item: f64,
    items: u64,
}

struct Hash {
    a: u64,
    b: u64,
}

impl Hash {
    fn of(item: &[u8]) -> Hash {
        let a = murmur_64a(item, 0xC6A4_A793_5BD1_E995);
        Hash {
            a,
            b: murmur_64a(item, a),
        }
    }
}

impl Link {
    fn new(capacity: u64, error: f64) -> Option<Link> {
        if capacity == 0 || error <= 0.0 || error >= 1.0 {
            return None;
        }
        let bits_per_item = (error.ln() / 0.480_453_013_918_201).abs();
        let bits = ((capacity as f64 * bits_per_item) as u64).max(1);
        let bytes = bits.div_ceil(64).checked_mul(8)?;
        if bytes > MAX_BYTES {
            return None;
        }
        Some(Link {
            bits: vec![0; bytes as usize],
            hashes: (LN_2 * bits_per_item).ceil() as u32,
            capacity,
            error,
            bits_per_item,
            items: 0,
        })
    }

    /// The places of an item's bits.
    fn places(&self, hash: &Hash) -> impl Iterator<Item = (usize, u8)> + use<> {
        let size = self.bits.len() as u64 * 8;
        let (a, b) = (hash.a, hash.b);
        (0..u64::from(self.hashes)).map(move |round| {
            let bit = a.wrapping_add(round.wrapping_mul(b)) % size;
            ((bit >> 3) as usize, 1 << (bit & 7))
        })
    }

    fn contains(&self, hash: &Hash) -> bool {
        self.places(hash)
            .all(|(byte, mask)| self.bits[byte] & mask != 0)
    }

    fn add(&mut self, hash: &Hash) {
        for (byte, mask) in self.places(hash) {
            self.bits[byte] |= mask;
        }
        self.items += 1;
    }
}

impl Bloom {
    /// An empty filter; `None` if it would be too large. An expansion of 0 makes it a fixed one.
    pub(crate) fn new(capacity: u64, error: f64, expansion: u32, fixed: bool) -> Option<Bloom> {
        let fixed = fixed || expansion == 0;
        let first = if fixed { error } else { error * TIGHTENING };
        Some(Bloom {
            links: vec![Link::new(capacity, first)?],
            items: 0,
            expansion,
            fixed,
        })
    }

    pub(crate) fn contains(&self, item: &[u8]) -> bool {
        let hash = Hash::of(item);
        self.links.iter().rev().any(|link| link.contains(&hash))
    }

    /// Adds an item; whether it was not there, as far as one can tell.
    pub(crate) fn add(&mut self, item: &[u8]) -> Result<bool, Refused> {
        let hash = Hash::of(item);
        if self.links.iter().rev().any(|link| link.contains(&hash)) {
            return Ok(false);
        }
        let last = self.links.last().ok_or(Refused::TooLarge)?;
        if last.items >= last.capacity {
            if self.fixed {
                return Err(Refused::Full);
            }
            let capacity = last.capacity.checked_mul(u64::from(self.expansion));
            let next = capacity
                .and_then(|capacity| Link::new(capacity, last.error * TIGHTENING))
                .ok_or(Refused::TooLarge)?;
            self.links.push(next);
        }
        if let Some(last) = self.links.last_mut() {
            last.add(&hash);
        }
        self.items += 1;
        Ok(true)
    }

    pub(crate) fn items(&self) -> u64 {
        self.items
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.links.iter().map(|link| link.capacity).sum()
    }

    pub(crate) fn links(&self) -> usize {
        self.links.len()
    }

    /// By how much each link is larger than the one before; `None` if no more are made.
    pub(crate) fn expansion(&self) -> Option<u32> {
        (!self.fixed).then_some(self.expansion)
    }

    /// The bytes that BF.INFO and MEMORY USAGE speak of.
    pub(crate) fn size(&self) -> u64 {
        let links = self.links.iter();
        CHAIN_OVERHEAD
            + links
                .map(|link| LINK_OVERHEAD + link.bits.len() as u64)
                .sum::<u64>()
    }

    /// All but the bits, as BF.SCANDUMP gives it first.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + LINK_HEADER * self.links.len());
        let options = NO_ROUND | FORCE_64 | if self.fixed { NO_SCALING } else { 0 };
        out.extend(self.items.to_le_bytes());
        out.extend((self.links.len() as u32).to_le_bytes());
        out.extend(options.to_le_bytes());
        out.extend(self.expansion.to_le_bytes());
        for link in &self.links {
            let bytes = link.bits.len() as u64;
            out.extend(bytes.to_le_bytes());
            out.extend((bytes * 8).to_le_bytes());
            out.extend(link.items.to_le_bytes());
            out.extend(link.error.to_le_bytes());
            out.extend(link.bits_per_item.to_le_bytes());
            out.extend(link.hashes.to_le_bytes());
            out.extend(link.capacity.to_le_bytes());
            out.push(0);
        }
        out
    }

    /// A filter without any bits set, from what [`Bloom::header`] gave.
    pub(crate) fn from_header(data: &[u8]) -> Option<Bloom> {
        let mut reader = Reader(data);
        let items = reader.u64()?;
        let count = reader.u32()? as usize;
        let options = reader.u32()?;
        let expansion = reader.u32()?;
        if count == 0
            || count > MAX_LINKS
            || data.len() != HEADER + LINK_HEADER * count
            || options & !NO_SCALING != NO_ROUND | FORCE_64
        {
            return None;
        }
        let mut links = Vec::with_capacity(count);
        let mut total = 0u64;
        for _ in 0..count {
            let bytes = reader.u64()?;
            let bits = reader.u64()?;
            let items = reader.u64()?;
            let error = f64::from_bits(reader.u64()?);
            let bits_per_item = f64::from_bits(reader.u64()?);
            let hashes = reader.u32()?;
            let capacity = reader.u64()?;
            let rounded = reader.byte()?;
            let wanted = (error.ln() / 0.480_453_013_918_201).abs();
            let consistent = error > 0.0
                && (bits_per_item - wanted).abs() <= wanted * 1e-6
                && error < 1.0
                && bytes > 0
                && bytes <= MAX_BYTES
                && bits == bytes * 8
                && rounded == 0
                && hashes == (LN_2 * bits_per_item).ceil() as u32;
            if !consistent {
                return None;
            }
            total = total.checked_add(items)?;
            links.push(Link {
                bits: vec![0; bytes as usize],
                hashes,
                capacity,
                error,
                bits_per_item,
                items,
            });
        }
        (total == items).then_some(Bloom {
            links,
            items,
            expansion,
            fixed: options & NO_SCALING != 0,
        })
    }

    /// The link and the place in it at a distance from the start of all bits.
    fn locate(&self, mut at: u64) -> Option<(usize, usize)> {
        for (number, link) in self.links.iter().enumerate() {
            let size = link.bits.len() as u64;
            if at < size {
                return Some((number, at as usize));
            }
            at -= size;
        }
        None
    }

    /// The bits from a distance on, up to `max` bytes of one link; `None` at the end.
    pub(crate) fn chunk(&self, at: u64, max: usize) -> Option<&[u8]> {
        let (link, from) = self.locate(at)?;
        let bits = &self.links[link].bits;
        Some(&bits[from..bits.len().min(from + max)])
    }

    /// Overwrites the bits from a distance on.
    pub(crate) fn load(&mut self, at: u64, data: &[u8]) -> Result<(), &'static str> {
        let (link, from) = self
            .locate(at)
            .ok_or("ERR invalid offset - no link found")?;
        let bits = &mut self.links[link].bits;
        if data.len() > bits.len() - from {
            return Err("ERR invalid chunk - Too big for current filter");
        }
        bits[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_redis() {
        // What BF.INFO says of a filter that BF.ADD made.
        let mut bloom = Bloom::new(100, 0.01, 2, false).unwrap();
        assert_eq!(
            (bloom.capacity(), bloom.size(), bloom.links()),
            (100, 240, 1)
        );
        assert_eq!(bloom.links[0].hashes, 8);
        for item in 0..101 {
            assert!(bloom.add(format!("item {item}").as_bytes()).is_ok());
        }
        while bloom.items() < 101 {
            let item = bloom.items() * 1000;
            assert!(bloom.add(format!("more {item}").as_bytes()).is_ok());
        }
        assert_eq!((bloom.capacity(), bloom.links()), (300, 2));
        assert_eq!(bloom.links[1].error, 0.0025);
        let fixed = Bloom::new(100, 0.01, 2, true).unwrap();
        assert_eq!((fixed.links[0].bits.len(), fixed.links[0].hashes), (120, 7));
    }

    #[test]
    fn errors_stay_below_the_rate_while_the_filter_grows() {
        let mut bloom = Bloom::new(100, 0.01, 2, false).unwrap();
        for item in 0..20_000 {
            let _ = bloom.add(format!("in {item}").as_bytes());
        }
        assert!((0..20_000).all(|item| bloom.contains(format!("in {item}").as_bytes())));
        let wrong = (0..20_000)
            .filter(|item| bloom.contains(format!("out {item}").as_bytes()))
            .count();
        assert!(wrong < 20_000 / 100, "{wrong}");
    }

    #[test]
    fn dumps_are_read_back() {
        let mut bloom = Bloom::new(10, 0.01, 2, false).unwrap();
        for item in 0..100u32 {
            let _ = bloom.add(&item.to_le_bytes());
        }
        let mut copy = Bloom::from_header(&bloom.header()).unwrap();
        let mut at = 0;
        while let Some(chunk) = bloom.chunk(at, 16) {
            assert!(copy.load(at, chunk).is_ok());
            at += chunk.len() as u64;
        }
        assert_eq!(copy.header(), bloom.header());
        assert!((0..100u32).all(|item| copy.contains(&item.to_le_bytes())));
        assert!(Bloom::from_header(&bloom.header()[1..]).is_none());
        assert!(Bloom::from_header(b"").is_none());
    }
}
