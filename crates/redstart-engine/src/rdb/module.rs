//! Values and settings of modules: Bloom filters are known, all others are passed over.

use std::io::Read;

use super::{Fault, source::Source, write::Writer};
use crate::types::bloom::Bloom;

/// The name and the version of Bloom filters, as Redis 8 writes them.
const BLOOM: &str = "MBbloom--";
const BLOOM_VERSION: u64 = 4;

const END: u64 = 0;
const SIGNED: u64 = 1;
const UNSIGNED: u64 = 2;
const FLOAT: u64 = 3;
const DOUBLE: u64 = 4;
const STRING: u64 = 5;

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The name of the type or module behind an id: nine letters above ten bits of a version.
fn name_of(id: u64) -> String {
    (0..9)
        .map(|at| char::from(LETTERS[(id >> (10 + 6 * (8 - at)) & 63) as usize]))
        .collect()
}

fn id_of(name: &str, version: u64) -> u64 {
    let id = name.bytes().fold(0u64, |id, byte| {
        let place = LETTERS.iter().position(|&letter| letter == byte);
        id << 6 | place.unwrap_or(0) as u64
    });
    id << 10 | version
}

/// A value of a module's type.
pub(super) enum Stored {
    Bloom(Bloom),
    /// A value of a type that is not known, passed over.
    Unknown(String),
}

pub(super) fn read<R: Read>(source: &mut Source<R>) -> Result<Stored, Fault> {
    let id = source.length()?;
    let name = name_of(id);
    if name == BLOOM && id & 0x3FF == BLOOM_VERSION {
        return read_bloom(source).map(Stored::Bloom);
    }
    skip(source)?;
    Ok(Stored::Unknown(name))
}

/// Settings that a module keeps beside its values; its name.
pub(super) fn read_aux<R: Read>(source: &mut Source<R>) -> Result<String, Fault> {
    let id = source.length()?;
    if source.length()? != UNSIGNED {
        return Err(Fault::Damaged("a module's settings"));
    }
    source.length()?;
    skip(source)?;
    Ok(name_of(id))
}

fn skip<R: Read>(source: &mut Source<R>) -> Result<(), Fault> {
    loop {
        match source.length()? {
            END => return Ok(()),
            SIGNED | UNSIGNED => drop(source.length()?),
            FLOAT => drop(source.array::<4>()?),
            DOUBLE => drop(source.double()?),
            STRING => drop(source.string()?),
            _ => return Err(Fault::Damaged("a module's value")),
        }
    }
}

fn read_bloom<R: Read>(source: &mut Source<R>) -> Result<Bloom, Fault> {
    const DAMAGED: Fault = Fault::Damaged("a Bloom filter");
    fn expect<R: Read>(source: &mut Source<R>, kind: u64) -> Result<(), Fault> {
        if source.length()? == kind {
            Ok(())
        } else {
            Err(DAMAGED)
        }
    }
    fn unsigned<R: Read>(source: &mut Source<R>) -> Result<u64, Fault> {
        expect(source, UNSIGNED)?;
        source.length()
    }
    fn double<R: Read>(source: &mut Source<R>) -> Result<f64, Fault> {
        expect(source, DOUBLE)?;
        source.double()
    }
    let narrow = |value: u64| u32::try_from(value).map_err(|_| DAMAGED);
    let items = unsigned(source)?;
    let links = narrow(unsigned(source)?)?;
    let options = narrow(unsigned(source)?)?;
    let growth = narrow(unsigned(source)?)?;
    // What BF.SCANDUMP gives first, and the bits.
    let mut header = Vec::new();
    header.extend(items.to_le_bytes());
    header.extend(links.to_le_bytes());
    header.extend(options.to_le_bytes());
    header.extend(growth.to_le_bytes());
    let mut filters = Vec::new();
    for _ in 0..links {
        let capacity = unsigned(source)?;
        let error = double(source)?;
        let hashes = narrow(unsigned(source)?)?;
        let bits_per_item = double(source)?;
        let bits = unsigned(source)?;
        let rounded = u8::try_from(unsigned(source)?).map_err(|_| DAMAGED)?;
        expect(source, STRING)?;
        let data = source.string()?;
        let items = unsigned(source)?;
        header.extend((data.len() as u64).to_le_bytes());
        header.extend(bits.to_le_bytes());
        header.extend(items.to_le_bytes());
        header.extend(error.to_le_bytes());
        header.extend(bits_per_item.to_le_bytes());
        header.extend(hashes.to_le_bytes());
        header.extend(capacity.to_le_bytes());
        header.push(rounded);
        filters.push(data);
    }
    expect(source, END)?;
    let mut bloom = Bloom::from_header(&header).ok_or(DAMAGED)?;
    let mut at = 0;
    for data in filters {
        bloom.load(at, &data).map_err(|_| DAMAGED)?;
        at += data.len() as u64;
    }
    Ok(bloom)
}

pub(super) fn write_bloom(writer: &mut Writer, bloom: &Bloom) {
    let header = bloom.header();
    let u64_at = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let u32_at = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&header[at..at + 4]);
        u64::from(u32::from_le_bytes(bytes))
    };
    let unsigned = |writer: &mut Writer, value: u64| {
        writer.length(UNSIGNED);
        writer.length(value);
    };
    let double = |writer: &mut Writer, bits: u64| {
        writer.length(DOUBLE);
        writer.raw(&bits.to_le_bytes());
    };
    writer.length(id_of(BLOOM, BLOOM_VERSION));
    unsigned(writer, u64_at(0));
    unsigned(writer, u32_at(8));
    unsigned(writer, u32_at(12));
    unsigned(writer, u32_at(16));
    let mut at = 0;
    for link in 0..bloom.links() {
        let from = 20 + 53 * link;
        let bytes = u64_at(from);
        unsigned(writer, u64_at(from + 44));
        double(writer, u64_at(from + 24));
        unsigned(writer, u32_at(from + 40));
        double(writer, u64_at(from + 32));
        unsigned(writer, u64_at(from + 8));
        unsigned(writer, header[from + 52].into());
        writer.length(STRING);
        // A chunk never goes beyond its link.
        writer.string(bloom.chunk(at, bytes as usize).unwrap_or_default());
        unsigned(writer, u64_at(from + 16));
        at += bytes;
    }
    writer.length(END);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_are_the_same_thing() {
        assert_eq!(name_of(id_of("MBbloom--", 4)), "MBbloom--");
        assert_eq!(id_of("MBbloom--", 4) & 0x3FF, 4);
    }
}
