//! HyperLogLog: how many different things were seen, estimated, in Redis's own byte layout.
//!
//! A string of a 16-byte header (`HYLL`, encoding, cached estimate) and 16384 registers, either
//! packed in 6 bits each, or as runs: `00llllll` is up to 64 zeros, `01llllll llllllll` up to 16384,
//! `1vvvvvll` up to 4 registers of the same value. Edits of the runs follow Redis's steps, so that
//! the bytes are the same, too.

use crate::murmur::murmur_64a;

/// Of the hash.
const SEED: u64 = 0xADC8_3B19;
const HEADER: usize = 16;
const INDEX_BITS: u32 = 14;
const REGISTERS: usize = 1 << INDEX_BITS;
/// The most zeros that a hash can start with, less the bits of the index.
const RANKS: usize = 64 - INDEX_BITS as usize;
const BITS: usize = 6;
const DENSE_SIZE: usize = HEADER + REGISTERS * BITS / 8;
const MAX_ZERO: usize = 64;
const MAX_RUN_VALUE: u8 = 32;
const MAX_RUN: usize = 4;

const DENSE: u8 = 0;
const SPARSE: u8 = 1;

/// The runs do not add up to all registers.
pub(crate) struct Corrupt;

/// One byte per register.
pub(crate) type Registers = [u8; REGISTERS];

pub(crate) const EMPTY: Registers = [0; REGISTERS];

/// An empty estimate.
pub(crate) fn new() -> Vec<u8> {
    let mut data = vec![0; HEADER];
    data[..4].copy_from_slice(b"HYLL");
    data[4] = SPARSE;
    Run::Zero(REGISTERS).write(&mut data);
    data
}

/// Whether a string can be one.
pub(crate) fn is_valid(data: &[u8]) -> bool {
    data.len() >= HEADER
        && data.starts_with(b"HYLL")
        && match data[4] {
            DENSE => data.len() == DENSE_SIZE,
            SPARSE => true,
            _ => false,
        }
}

pub(crate) fn is_dense(data: &[u8]) -> bool {
    data[4] == DENSE
}

/// The estimate that was made last, unless something was added since then.
pub(crate) fn cached(data: &[u8]) -> Option<u64> {
    let card: [u8; 8] = data[8..16].try_into().unwrap_or_default();
    let card = u64::from_le_bytes(card);
    (card >> 63 == 0).then_some(card)
}

pub(crate) fn set_cached(data: &mut [u8], count: u64) {
    data[8..16].copy_from_slice(&count.to_le_bytes());
}

pub(crate) fn invalidate(data: &mut [u8]) {
    data[15] |= 0x80;
}

/// A stretch of registers of the same value.
#[derive(Clone, Copy)]
enum Run {
    Zero(usize),
    Value(u8, usize),
}

impl Run {
    /// The run at the start of these bytes, and how many bytes it takes.
    fn read(data: &[u8]) -> Result<(Run, usize), Corrupt> {
        let first = *data.first().ok_or(Corrupt)?;
        if first & 0x80 != 0 {
            let value = ((first >> 2) & 0x1F) + 1;
            Ok((Run::Value(value, usize::from(first & 3) + 1), 1))
        } else if first & 0x40 != 0 {
            // Any client can store bytes that end here.
            let second = *data.get(1).ok_or(Corrupt)?;
            let len = (usize::from(first & 0x3F) << 8 | usize::from(second)) + 1;
            Ok((Run::Zero(len), 2))
        } else {
            Ok((Run::Zero(usize::from(first) + 1), 1))
        }
    }

    fn len(self) -> usize {
        match self {
            Run::Zero(len) | Run::Value(_, len) => len,
        }
    }

    fn write(self, out: &mut Vec<u8>) {
        match self {
            Run::Zero(len) if len <= MAX_ZERO => out.push((len - 1) as u8),
            Run::Zero(len) => {
                let len = len - 1;
                out.extend([0x40 | (len >> 8) as u8, len as u8]);
            }
            Run::Value(value, len) => out.push(0x80 | (value - 1) << 2 | (len - 1) as u8),
        }
    }
}

/// Visits the runs in order with the register each starts at.
fn each_run(data: &[u8], mut visit: impl FnMut(usize, Run)) -> Result<(), Corrupt> {
    let mut at = HEADER;
    let mut register = 0;
    while at < data.len() {
        let (run, size) = Run::read(&data[at..])?;
        if register + run.len() > REGISTERS {
            return Err(Corrupt);
        }
        visit(register, run);
        register += run.len();
        at += size;
    }
    if register == REGISTERS {
        Ok(())
    } else {
        Err(Corrupt)
    }
}

fn dense_get(data: &[u8], register: usize) -> u8 {
    let bit = register * BITS;
    let at = HEADER + bit / 8;
    let low = u16::from(data[at]);
    let high = u16::from(data.get(at + 1).copied().unwrap_or(0));
    (((high << 8 | low) >> (bit % 8)) & 0x3F) as u8
}

fn dense_set(data: &mut [u8], register: usize, value: u8) -> bool {
    if dense_get(data, register) >= value {
        return false;
    }
    let bit = register * BITS;
    let at = HEADER + bit / 8;
    let shift = bit % 8;
    let mask = 0x3F_u16 << shift;
    let bits = u16::from(value) << shift;
    data[at] = data[at] & !(mask as u8) | bits as u8;
    if mask > 0xFF {
        data[at + 1] = data[at + 1] & !((mask >> 8) as u8) | (bits >> 8) as u8;
    }
    true
}

/// Turns runs into packed registers.
pub(crate) fn make_dense(data: &mut Vec<u8>) -> Result<(), Corrupt> {
    if is_dense(data) {
        return Ok(());
    }
    let mut dense = vec![0; DENSE_SIZE];
    dense[..HEADER].copy_from_slice(&data[..HEADER]);
    dense[4] = DENSE;
    each_run(data, |first, run| {
        if let Run::Value(value, len) = run {
            for register in first..first + len {
                dense_set(&mut dense, register, value);
            }
        }
    })?;
    *data = dense;
    Ok(())
}

/// Raises a register to a value; whether it was lower.
pub(crate) fn raise(
    data: &mut Vec<u8>,
    register: usize,
    value: u8,
    sparse_max: usize,
) -> Result<bool, Corrupt> {
    if is_dense(data) {
        return Ok(dense_set(data, register, value));
    }
    if value > MAX_RUN_VALUE {
        make_dense(data)?;
        return Ok(dense_set(data, register, value));
    }
    // Find the run that holds the register, and the one before.
    let mut at = HEADER;
    let mut before = HEADER;
    let mut first = 0;
    let (run, size) = loop {
        let (run, size) = Run::read(&data[at..])?;
        if register < first + run.len() {
            break (run, size);
        }
        before = at;
        at += size;
        first += run.len();
    };
    let mut parts = Vec::with_capacity(5);
    let (ahead, behind) = (register - first, first + run.len() - 1 - register);
    match run {
        Run::Value(old, _) if old >= value => return Ok(false),
        Run::Value(old, _) => {
            if ahead > 0 {
                Run::Value(old, ahead).write(&mut parts);
            }
            Run::Value(value, 1).write(&mut parts);
            if behind > 0 {
                Run::Value(old, behind).write(&mut parts);
            }
        }
        Run::Zero(_) => {
            if ahead > 0 {
                Run::Zero(ahead).write(&mut parts);
            }
            Run::Value(value, 1).write(&mut parts);
            if behind > 0 {
                Run::Zero(behind).write(&mut parts);
            }
        }
    }
    if parts.len() > size && data.len() + parts.len() - size > sparse_max {
        make_dense(data)?;
        return Ok(dense_set(data, register, value));
    }
    data.splice(at..at + size, parts);
    merge_runs(data, before);
    invalidate(data);
    Ok(true)
}

/// Joins neighbouring runs of the same value among the five from `at` on.
fn merge_runs(data: &mut Vec<u8>, mut at: usize) {
    for _ in 0..5 {
        let Ok((run, size)) = Run::read(&data[at..]) else {
            return;
        };
        if let Run::Value(value, len) = run
            && let Ok((Run::Value(next, more), _)) = Run::read(&data[at + 1..])
            && next == value
            && len + more <= MAX_RUN
        {
            data.remove(at);
            data[at] = 0x80 | (value - 1) << 2 | (len + more - 1) as u8;
            continue;
        }
        at += size;
    }
}

/// Counts an element; whether that changed a register.
pub(crate) fn add(data: &mut Vec<u8>, element: &[u8], sparse_max: usize) -> Result<bool, Corrupt> {
    let hash = murmur_64a(element, SEED);
    let register = hash as usize & (REGISTERS - 1);
    let rest = (hash >> INDEX_BITS) | 1 << RANKS;
    raise(data, register, rest.trailing_zeros() as u8 + 1, sparse_max)
}

/// Raises each of the registers to what these have.
pub(crate) fn merge_into(registers: &mut Registers, data: &[u8]) -> Result<(), Corrupt> {
    if is_dense(data) {
        for (at, register) in registers.iter_mut().enumerate() {
            *register = (*register).max(dense_get(data, at));
        }
        return Ok(());
    }
    each_run(data, |first, run| {
        if let Run::Value(value, len) = run {
            for register in &mut registers[first..first + len] {
                *register = (*register).max(value);
            }
        }
    })
}

/// The estimate.
pub(crate) fn count(data: &[u8]) -> Result<u64, Corrupt> {
    let mut histogram = [0u32; 64];
    if is_dense(data) {
        for at in 0..REGISTERS {
            histogram[usize::from(dense_get(data, at))] += 1;
        }
    } else {
        each_run(data, |_, run| {
            let value = match run {
                Run::Zero(_) => 0,
                Run::Value(value, _) => value,
            };
            histogram[usize::from(value)] += run.len() as u32;
        })?;
    }
    Ok(estimate(&histogram))
}

/// The estimate of merged registers.
pub(crate) fn count_registers(registers: &Registers) -> u64 {
    let mut histogram = [0u32; 64];
    for register in registers {
        histogram[usize::from(*register & 63)] += 1;
    }
    estimate(&histogram)
}

/// Ertl's improved estimator, from "New cardinality estimation algorithms for HyperLogLog
/// sketches" (arXiv:1702.01284).
fn estimate(histogram: &[u32; 64]) -> u64 {
    const ALPHA: f64 = 0.721_347_520_444_481_7;
    let m = REGISTERS as f64;
    let mut z = m * tau((m - f64::from(histogram[RANKS + 1])) / m);
    for at in (1..=RANKS).rev() {
        z += f64::from(histogram[at]);
        z *= 0.5;
    }
    z += m * sigma(f64::from(histogram[0]) / m);
    (ALPHA * m * m / z).round() as u64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let mut y = 1.0;
    let mut z = x;
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if before == z {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let mut y = 1.0;
    let mut z = 1.0 - x;
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x).powi(2) * y;
        if before == z {
            return z / 3.0;
        }
    }
}
