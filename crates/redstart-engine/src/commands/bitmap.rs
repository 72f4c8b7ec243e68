//! Strings as arrays of bits.

use std::borrow::Cow;

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    keyspace::NEVER,
    notify::class,
    number::{int_arg, parse_int},
    registry::{Spec, flag::*},
    reply::Reply,
    types::{Typed, Value, string::Str},
};

const OFFSET: &str = "ERR bit offset is not an integer or out of range";

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("setbit", 4, WRITE | DENYOOM, (1, 1, 1), setbit),
    Spec::new("getbit", 3, READONLY | FAST, (1, 1, 1), getbit),
    Spec::new("bitcount", -2, READONLY, (1, 1, 1), bitcount),
    Spec::new("bitpos", -3, READONLY, (1, 1, 1), bitpos),
    Spec::new("bitop", -4, WRITE | DENYOOM, (2, -1, 1), bitop),
    Spec::new("bitfield", -2, WRITE | DENYOOM, (1, 1, 1), bitfield),
    Spec::new("bitfield_ro", -2, READONLY | FAST, (1, 1, 1), bitfield_ro),
];

/// An offset in bits; `#n` counts in units of `bits`.
fn offset_arg(cx: &Ctx<'_>, text: &[u8], bits: Option<u32>) -> Result<u64, Stop> {
    let (digits, unit) = match (text.strip_prefix(b"#"), bits) {
        (Some(digits), Some(bits)) => (digits, i64::from(bits)),
        _ => (text, 1),
    };
    // What is in the log was allowed when it was written.
    let limit = match cx.state.loading {
        true => i64::MAX,
        false => cx.state.config.proto_max_bulk_len as i64,
    };
    parse_int(digits)
        .and_then(|offset| offset.checked_mul(unit))
        .filter(|offset| *offset >= 0 && (offset >> 3) < limit)
        .map(|offset| offset as u64)
        .ok_or(OFFSET.into())
}

fn is_set(data: &[u8], offset: u64) -> bool {
    data.get((offset >> 3) as usize)
        .is_some_and(|byte| byte & (0x80 >> (offset & 7)) != 0)
}

fn set(data: &mut [u8], offset: u64, on: bool) {
    let mask = 0x80 >> (offset & 7);
    let byte = &mut data[(offset >> 3) as usize];
    if on {
        *byte |= mask;
    } else {
        *byte &= !mask;
    }
}

/// The string for writing bits up to `last`, made or lengthened if need be; whether it was.
fn grown<'a>(cx: &'a mut Ctx<'_>, key: &[u8], last: u64) -> Result<(&'a mut Vec<u8>, bool), Stop> {
    let size = (last >> 3) as usize + 1;
    let known = cx.get_mut::<Str>(key)?.is_some();
    if !known {
        cx.add(key, Value::Str(Str::Raw(Box::default())), NEVER);
    }
    match cx.get_mut::<Str>(key)? {
        Some(value) => {
            let data = value.make_raw();
            let grew = !known || data.len() < size;
            if data.len() < size {
                data.resize(size, 0);
            }
            Ok((data, grew))
        }
        None => unreachable!("made just above"),
    }
}

fn setbit(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let offset = offset_arg(cx, &args[2], None)?;
    let on = match parse_int(&args[3]) {
        Some(bit @ (0 | 1)) => bit == 1,
        _ => return Err("ERR bit is not an integer or out of range".into()),
    };
    let (data, grew) = grown(cx, key, offset)?;
    let old = is_set(data, offset);
    if grew || old != on {
        set(data, offset, on);
        cx.changed(key, class::STRING, "setbit");
    }
    Ok(old.into())
}

fn getbit(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let offset = offset_arg(cx, &args[2], None)?;
    let Some(value) = cx.get::<Str>(&args[1])? else {
        return Ok(Reply::ZERO);
    };
    Ok(is_set(&value.as_cow(), offset).into())
}

/// Whether a range counts in bits.
fn unit_arg(text: &[u8]) -> Result<bool, Stop> {
    if text.eq_ignore_ascii_case(b"bit") {
        Ok(true)
    } else if text.eq_ignore_ascii_case(b"byte") {
        Ok(false)
    } else {
        Err(SYNTAX.into())
    }
}

/// The first and the last bit of a range, whose ends may count from the end.
fn bit_range(start: i64, end: i64, size: usize, bits: bool) -> Option<(u64, u64)> {
    let total = if bits { size as i64 * 8 } else { size as i64 };
    let place = |at: i64| if at < 0 { (total + at).max(0) } else { at };
    // Far below zero must not wrap around.
    let start = place(start.max(-total - 1));
    let end = place(end.max(-total - 1)).min(total - 1);
    if start > end {
        return None;
    }
    if bits {
        Some((start as u64, end as u64))
    } else {
        Some((start as u64 * 8, end as u64 * 8 + 7))
    }
}

fn bitcount(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(value) = cx.get::<Str>(&args[1])? else {
        return Ok(Reply::ZERO);
    };
    let data = value.as_cow();
    let range = match args.len() {
        2 => bit_range(0, -1, data.len(), false),
        4 | 5 => {
            let (start, end) = (int_arg(&args[2])?, int_arg(&args[3])?);
            if start < 0 && end < 0 && start > end {
                return Ok(Reply::ZERO);
            }
            let bits = args.get(4).map_or(Ok(false), |unit| unit_arg(unit))?;
            bit_range(start, end, data.len(), bits)
        }
        _ => return Err(SYNTAX.into()),
    };
    let Some((first, last)) = range else {
        return Ok(Reply::ZERO);
    };
    let bytes = &data[(first >> 3) as usize..=(last >> 3) as usize];
    let mut count: u64 = 0;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
        count += u64::from(word.count_ones());
    }
    for byte in words.remainder() {
        count += u64::from(byte.count_ones());
    }
    // The bits of the outer bytes that are not in the range.
    let before = bytes[0] & !(0xFF >> (first & 7)) as u8;
    let after = bytes[bytes.len() - 1] & ((1u16 << (7 - (last & 7))) - 1) as u8;
    count -= u64::from(before.count_ones() + after.count_ones());
    Ok(Reply::Int(count as i64))
}

fn bitpos(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let bit = match int_arg(&args[2])? {
        bit @ (0 | 1) => bit == 1,
        _ => return Err("ERR The bit argument must be 1 or 0.".into()),
    };
    let Some(value) = cx.get::<Str>(&args[1])? else {
        return Ok(Reply::Int(if bit { -1 } else { 0 }));
    };
    let data = value.as_cow();
    let range = match args.len() {
        3 => bit_range(0, -1, data.len(), false),
        4..=6 => {
            let start = int_arg(&args[3])?;
            let bits = args.get(5).map_or(Ok(false), |unit| unit_arg(unit))?;
            let end = args.get(4).map_or(Ok(-1), |end| int_arg(end))?;
            bit_range(start, end, data.len(), bits)
        }
        _ => return Err(SYNTAX.into()),
    };
    let Some((first, last)) = range else {
        return Ok(Reply::Int(-1));
    };
    if let Some(at) = find_bit(&data, bit, first, last) {
        return Ok(Reply::Int(at as i64));
    }
    // Without an explicit end the string goes on with zeros.
    if !bit && args.len() <= 4 {
        return Ok(Reply::Int((last + 1) as i64));
    }
    Ok(Reply::Int(-1))
}

/// The first bit of this value from `first` to `last`, both of which the data has.
fn find_bit(data: &[u8], bit: bool, first: u64, last: u64) -> Option<u64> {
    // Looked for as a one.
    let flip = if bit { 0 } else { 0xFF };
    let mut byte = (first >> 3) as usize;
    let end = (last >> 3) as usize;
    let mut held = (data[byte] ^ flip) & (0xFF >> (first & 7)) as u8;
    while held == 0 {
        byte += 1;
        let rest = data.get(byte..=end)?;
        // Eight bytes at a time.
        let dull = u64::from_ne_bytes([flip; 8]);
        let words = rest.chunks_exact(8);
        let skipped = words
            .take_while(|word| u64::from_ne_bytes((*word).try_into().unwrap_or_default()) == dull)
            .count();
        let rest = &rest[skipped * 8..];
        let bytes = rest.iter().take_while(|&&byte| byte == flip).count();
        byte += skipped * 8 + bytes;
        held = data.get(byte..=end)?.first()? ^ flip;
    }
    let at = byte as u64 * 8 + u64::from(held.leading_zeros());
    (at <= last).then_some(at)
}

/// Combines a result with a source of at most its length, which zeros follow.
#[inline]
fn combine(result: &mut [u8], source: &[u8], operation: impl Fn(u8, u8) -> u8) {
    let (covered, rest) = result.split_at_mut(source.len());
    for (byte, other) in covered.iter_mut().zip(source) {
        *byte = operation(*byte, *other);
    }
    for byte in rest {
        *byte = operation(*byte, 0);
    }
}

#[derive(Clone, Copy)]
enum BitOperation {
    And,
    Or,
    Xor,
    Not,
}

impl BitOperation {
    fn parse(word: &[u8]) -> Result<BitOperation, Stop> {
        match word.to_ascii_lowercase().as_slice() {
            b"and" => Ok(BitOperation::And),
            b"or" => Ok(BitOperation::Or),
            b"xor" => Ok(BitOperation::Xor),
            b"not" => Ok(BitOperation::Not),
            _ => Err(SYNTAX.into()),
        }
    }

    fn apply(self, result: &mut [u8], source: &[u8]) {
        // One loop per operation, so that each is compiled into wide instructions.
        match self {
            BitOperation::And => combine(result, source, |a, b| a & b),
            BitOperation::Or => combine(result, source, |a, b| a | b),
            BitOperation::Xor => combine(result, source, |a, b| a ^ b),
            BitOperation::Not => result.iter_mut().for_each(|byte| *byte = !*byte),
        }
    }
}

fn bitop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let operation = BitOperation::parse(&args[1])?;
    let not = matches!(operation, BitOperation::Not);
    if not && args.len() != 4 {
        return Err("ERR BITOP NOT must be called with a single source key.".into());
    }
    let target = &args[2];
    let mut places = Vec::with_capacity(args.len() - 3);
    for key in &args[3..] {
        cx.get::<Str>(key)?;
        places.push(cx.peek(key));
    }
    let db = &cx.state.dbs[cx.client.db];
    // Strings are read where they are.
    let sources: Vec<Cow<'_, [u8]>> = places
        .into_iter()
        .map(
            |place| match place.and_then(|place| Str::of(&db.entry(place).value)) {
                Some(value) => value.as_cow(),
                None => Cow::Borrowed(&[][..]),
            },
        )
        .collect();
    let size = sources.iter().map(|source| source.len()).max().unwrap_or(0);
    let mut result = Vec::with_capacity(size);
    result.extend_from_slice(&sources[0]);
    result.resize(size, 0);
    if not {
        operation.apply(&mut result, &[]);
    }
    for source in &sources[1..] {
        operation.apply(&mut result, source);
    }
    if size == 0 {
        if cx.delete(target) {
            cx.notify(class::GENERIC, "del", target);
            cx.dirty(1);
        }
        return Ok(Reply::ZERO);
    }
    cx.put(target, Value::Str(Str::Raw(Box::new(result))));
    cx.notify(class::STRING, "set", target);
    cx.dirty(1);
    Ok(size.into())
}

#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// An integer type of 1 to 64 bits.
#[derive(Clone, Copy)]
struct Type {
    signed: bool,
    bits: u32,
}

impl Type {
    fn parse(text: &[u8]) -> Result<Type, Stop> {
        let (signed, max) = match text.first() {
            Some(b'i') => (true, 64),
            Some(b'u') => (false, 63),
            _ => (false, 0),
        };
        match text.get(1..).and_then(parse_int) {
            Some(bits) if (1..=max).contains(&bits) => Ok(Type {
                signed,
                bits: bits as u32,
            }),
            _ => Err(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is \
                      not supported but i64 is."
                    .into(),
            ),
        }
    }

    fn read(self, data: &[u8], offset: u64) -> i128 {
        let mut value: u64 = 0;
        for at in 0..u64::from(self.bits) {
            value = (value << 1) | u64::from(is_set(data, offset + at));
        }
        self.shape(i128::from(value))
    }

    fn write(self, data: &mut [u8], offset: u64, value: i128) {
        for at in 0..self.bits {
            let on = (value >> (self.bits - 1 - at)) & 1 == 1;
            set(data, offset + u64::from(at), on);
        }
    }

    /// What the lowest bits of a value mean in this type.
    fn shape(self, value: i128) -> i128 {
        let unused = 128 - self.bits;
        if self.signed {
            (value << unused) >> unused
        } else {
            ((value << unused) as u128 >> unused) as i128
        }
    }

    /// The value to store for a result, and whether it did not fit.
    fn fit(self, value: i128, overflow: Overflow) -> (i128, bool) {
        let (min, max) = if self.signed {
            (-(1i128 << (self.bits - 1)), (1i128 << (self.bits - 1)) - 1)
        } else {
            (0, (1i128 << self.bits) - 1)
        };
        if (min..=max).contains(&value) {
            return (value, false);
        }
        match overflow {
            Overflow::Wrap | Overflow::Fail => (self.shape(value), true),
            Overflow::Saturate => (value.clamp(min, max), true),
        }
    }
}

enum Action {
    Get,
    Set(i64),
    Add(i64),
}

struct Operation {
    kind: Type,
    offset: u64,
    action: Action,
    overflow: Overflow,
}

fn bitfield(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    fields(cx, args, false)
}

fn bitfield_ro(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    fields(cx, args, true)
}

/// The operations of BITFIELD, and the last bit that they write.
fn parse_operations(cx: &Ctx<'_>, args: &[Bytes]) -> Result<(Vec<Operation>, Option<u64>), Stop> {
    let mut operations = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut last_write = None;
    let mut at = 2;
    while at < args.len() {
        let left = args.len() - at - 1;
        let is = |word: &[u8]| args[at].eq_ignore_ascii_case(word);
        if is(b"overflow") && left >= 1 {
            let how = &args[at + 1];
            overflow = if how.eq_ignore_ascii_case(b"wrap") {
                Overflow::Wrap
            } else if how.eq_ignore_ascii_case(b"sat") {
                Overflow::Saturate
            } else if how.eq_ignore_ascii_case(b"fail") {
                Overflow::Fail
            } else {
                return Err("ERR Invalid OVERFLOW type specified".into());
            };
            at += 2;
            continue;
        }
        let writes = if is(b"get") && left >= 2 {
            false
        } else if (is(b"set") || is(b"incrby")) && left >= 3 {
            true
        } else {
            return Err(SYNTAX.into());
        };
        let kind = Type::parse(&args[at + 1])?;
        let offset = offset_arg(cx, &args[at + 2], Some(kind.bits))?;
        let action = if writes {
            let last = offset + u64::from(kind.bits) - 1;
            last_write = last_write.max(Some(last));
            let value = int_arg(&args[at + 3])?;
            if is(b"set") {
                Action::Set(value)
            } else {
                Action::Add(value)
            }
        } else {
            Action::Get
        };
        operations.push(Operation {
            kind,
            offset,
            action,
            overflow,
        });
        at += if writes { 4 } else { 3 };
    }
    Ok((operations, last_write))
}

fn fields(cx: &mut Ctx<'_>, args: &[Bytes], read_only: bool) -> CommandResult {
    let key = &args[1];
    let (operations, last_write) = parse_operations(cx, args)?;
    let Some(last) = last_write else {
        let data = match cx.get::<Str>(key)? {
            Some(value) => value.as_cow(),
            None => Default::default(),
        };
        let read = |op: &Operation| Reply::Int(op.kind.read(&data, op.offset) as i64);
        return Ok(Reply::Array(operations.iter().map(read).collect()));
    };
    if read_only {
        return Err("ERR BITFIELD_RO only supports the GET subcommand".into());
    }
    let (data, grew) = grown(cx, key, last)?;
    let mut replies = Vec::with_capacity(operations.len());
    let mut changes = 0;
    for operation in &operations {
        let Operation {
            kind,
            offset,
            overflow,
            ..
        } = *operation;
        let old = kind.read(data, offset);
        let wanted = match operation.action {
            Action::Get => {
                replies.push(Reply::Int(old as i64));
                continue;
            }
            Action::Set(value) if kind.signed => i128::from(value),
            Action::Set(value) => i128::from(value as u64),
            Action::Add(by) => old + i128::from(by),
        };
        let (new, overflowed) = kind.fit(wanted, overflow);
        if overflowed && matches!(overflow, Overflow::Fail) {
            replies.push(Reply::Nil);
            continue;
        }
        kind.write(data, offset, new);
        changes += usize::from(grew || old != new);
        replies.push(Reply::Int(match operation.action {
            Action::Add(_) => new as i64,
            _ => old as i64,
        }));
    }
    if changes > 0 {
        cx.modified(key);
        cx.notify(class::STRING, "setbit", key);
        cx.dirty(changes);
    }
    Ok(Reply::Array(replies))
}
