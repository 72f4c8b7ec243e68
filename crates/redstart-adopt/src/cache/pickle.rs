//! Python's pickles, as far as they are plain data: `None`, booleans, numbers, texts, lists, tuples and dictionaries with texts as keys.
//!
//! A pickle is a program for a stack machine that may call any function of Python. Here only the instructions that
//! build plain data are known; any other one makes the value unreadable, and nothing is ever called.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

/// Deeper values are refused: taking them apart again would need as much stack.
const DEEPEST: usize = 64;

/// A text can be referred to again and again in two bytes, so a small pickle could need any amount of memory. References may make a value
/// this many times as long as its pickle, and some more.
const LONGER: usize = 64;
const SOME_MORE: usize = 1 << 20;

/// A value, and how many lists and dictionaries are in each other.
struct Nested {
    value: Value,
    depth: usize,
}

enum Item {
    Nested(Nested),
    Mark,
}

/// The value of a pickle; `None` if it is not plain data.
pub(super) fn read(bytes: &[u8]) -> Option<Value> {
    let mut machine = Machine {
        rest: bytes,
        stack: Vec::new(),
        memo: HashMap::new(),
        budget: bytes.len().saturating_mul(LONGER).saturating_add(SOME_MORE),
    };
    machine.run()
}

struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Item>,
    /// `None` for what may still change: a reference to it would have to see what comes later.
    memo: HashMap<u32, Option<Value>>,
    /// The bytes of texts that may still be copied.
    budget: usize,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Option<Value> {
        loop {
            let instruction = self.take(1)?[0];
            match instruction {
                // PROTO, FRAME: their contents say nothing about the value.
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                // STOP
                b'.' => return self.end(),
                // MARK
                b'(' => self.stack.push(Item::Mark),
                // MEMOIZE, BINPUT, LONG_BINPUT
                0x94 => self.remember(u32::try_from(self.memo.len()).ok()?)?,
                b'q' | b'r' => {
                    let at = self.number(if instruction == b'q' { 1 } else { 4 })?;
                    self.remember(at)?;
                }
                // BINGET, LONG_BINGET
                b'h' | b'j' => {
                    let at = self.number(if instruction == b'h' { 1 } else { 4 })?;
                    let value = copy(self.memo.get(&at)?.as_ref()?, &mut self.budget)?;
                    self.push(value, 0)?;
                }
                // APPEND, APPENDS, SETITEM, SETITEMS
                b'a' => {
                    let value = self.pop()?;
                    self.extend(vec![value])?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.extend(vec![key, value])?;
                }
                b'e' | b'u' => {
                    let values = self.above_mark()?;
                    self.extend(values)?;
                }
                // TUPLE1, TUPLE2, TUPLE3, TUPLE
                0x85..=0x87 => {
                    let first = self
                        .stack
                        .len()
                        .checked_sub(usize::from(instruction - 0x84))?;
                    let values = nested(self.stack.split_off(first))?;
                    self.push_list(values)?;
                }
                b't' => {
                    let values = self.above_mark()?;
                    self.push_list(values)?;
                }
                other => {
                    let value = self.leaf(other)?;
                    let depth = usize::from(value.is_array() || value.is_object());
                    self.push(value, depth)?;
                }
            }
        }
    }

    /// An instruction that makes a value from what follows it.
    fn leaf(&mut self, instruction: u8) -> Option<Value> {
        Some(match instruction {
            b'N' => Value::Null,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            // BININT, BININT1, BININT2, LONG1
            b'J' => Value::from(i32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            b'K' => Value::from(self.number(1)?),
            b'M' => Value::from(self.number(2)?),
            0x8a => {
                let length = self.number(1)?;
                Value::Number(long(self.take(length as usize)?)?)
            }
            // BINFLOAT
            b'G' => {
                let bits = self.take(8)?.try_into().ok()?;
                Value::Number(Number::from_f64(f64::from_be_bytes(bits))?)
            }
            // SHORT_BINUNICODE, BINUNICODE
            0x8c => self.text(1)?,
            b'X' => self.text(4)?,
            // EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE
            b'}' => Value::Object(Map::new()),
            b']' | b')' => Value::Array(Vec::new()),
            _ => return None,
        })
    }

    fn end(&mut self) -> Option<Value> {
        let last = self.pop()?;
        (self.stack.is_empty() && self.rest.is_empty()).then_some(last.value)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// A number of up to four bytes, the lowest first.
    fn number(&mut self, bytes: usize) -> Option<u32> {
        let taken = self.take(bytes)?.iter().rev();
        Some(taken.fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    }

    fn text(&mut self, bytes: usize) -> Option<Value> {
        let length = self.number(bytes)?;
        let text = self.take(length as usize)?;
        Some(Value::from(std::str::from_utf8(text).ok()?))
    }

    fn push(&mut self, value: Value, depth: usize) -> Option<()> {
        self.stack.push(Item::Nested(Nested { value, depth }));
        (depth <= DEEPEST).then_some(())
    }

    fn push_list(&mut self, values: Vec<Nested>) -> Option<()> {
        let depth = values.iter().map(|one| one.depth).max().unwrap_or(0) + 1;
        let values = values.into_iter().map(|one| one.value).collect();
        self.push(Value::Array(values), depth)
    }

    fn pop(&mut self) -> Option<Nested> {
        match self.stack.pop()? {
            Item::Nested(nested) => Some(nested),
            Item::Mark => None,
        }
    }

    fn above_mark(&mut self) -> Option<Vec<Nested>> {
        let is_mark = |item: &Item| matches!(item, Item::Mark);
        let at = self.stack.iter().rposition(is_mark)?;
        let above = self.stack.split_off(at + 1);
        self.stack.pop();
        nested(above)
    }

    fn remember(&mut self, at: u32) -> Option<()> {
        let Item::Nested(last) = self.stack.last()? else {
            return None;
        };
        let settled = !last.value.is_array() && !last.value.is_object();
        let kept = match settled {
            true => Some(copy(&last.value, &mut self.budget)?),
            false => None,
        };
        self.memo.insert(at, kept);
        Some(())
    }

    /// Adds to the list on the stack, or keys and values to the dictionary.
    fn extend(&mut self, values: Vec<Nested>) -> Option<()> {
        let Item::Nested(last) = self.stack.last_mut()? else {
            return None;
        };
        let deepest = values.iter().map(|one| one.depth).max().unwrap_or(0);
        last.depth = last.depth.max(deepest + 1);
        let mut values = values.into_iter().map(|one| one.value);
        match &mut last.value {
            Value::Array(list) => list.extend(values),
            Value::Object(map) => {
                while let Some(key) = values.next() {
                    let Value::String(key) = key else { return None };
                    map.insert(key, values.next()?);
                }
            }
            _ => return None,
        }
        (last.depth <= DEEPEST).then_some(())
    }
}

/// A copy of a text or of something small, if the budget allows it.
fn copy(value: &Value, budget: &mut usize) -> Option<Value> {
    let length = value.as_str().map_or(0, str::len);
    *budget = budget.checked_sub(length)?;
    Some(value.clone())
}

fn nested(items: Vec<Item>) -> Option<Vec<Nested>> {
    let nested = |item| match item {
        Item::Nested(nested) => Some(nested),
        Item::Mark => None,
    };
    items.into_iter().map(nested).collect()
}

/// A whole number in two's complement, the lowest byte first.
fn long(bytes: &[u8]) -> Option<Number> {
    if bytes.len() > 9 {
        return None;
    }
    let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
    let start: i128 = if negative { -1 } else { 0 };
    let value = bytes
        .iter()
        .rev()
        .fold(start, |sum, byte| sum << 8 | i128::from(*byte));
    let signed = i64::try_from(value).map(Number::from);
    signed
        .or_else(|_| u64::try_from(value).map(Number::from))
        .ok()
}

/// A pickle of protocol 2, which every Python reads.
pub(super) fn write(value: &Value) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    append(value, &mut out);
    out.push(b'.');
    out
}

fn append(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(b'N'),
        Value::Bool(true) => out.push(0x88),
        Value::Bool(false) => out.push(0x89),
        Value::Number(number) => append_number(number, out),
        Value::String(text) => append_text(text, out),
        Value::Array(values) => {
            out.extend(b"](");
            values.iter().for_each(|value| append(value, out));
            out.push(b'e');
        }
        Value::Object(map) => {
            out.extend(b"}(");
            for (key, value) in map {
                append_text(key, out);
                append(value, out);
            }
            out.push(b'u');
        }
    }
}

fn append_number(number: &Number, out: &mut Vec<u8>) {
    let whole = number.as_i64().map(i128::from);
    match whole.or_else(|| number.as_u64().map(i128::from)) {
        Some(whole) => {
            // Nine bytes hold every number of 64 bits with its sign.
            out.extend([0x8a, 9]);
            out.extend(&whole.to_le_bytes()[..9]);
        }
        None => {
            out.push(b'G');
            out.extend(number.as_f64().unwrap_or(0.0).to_be_bytes());
        }
    }
}

fn append_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'X');
    // A value of four gigabytes does not fit into a key either.
    out.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(|number| json!(number)),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..6).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value in values()) {
            prop_assert_eq!(read(&write(&value)), Some(value));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn what_python_writes_is_read() {
        // pickle.dumps({"name": "tea", "tags": ("a", "name"), "price": 7, "far": 10**12}, 5)
        let bytes = b"\x80\x05\x95\x37\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x04name\x94\x8c\x03tea\x94\x8c\x04tags\x94\x8c\x01a\x94h\x01\x86\x94\x8c\x05price\x94K\x07\x8c\x03far\x94\x8a\x06\x00\x10\xa5\xd4\xe8\x00u.";
        let value =
            json!({"name": "tea", "tags": ["a", "name"], "price": 7, "far": 1_000_000_000_000_u64});
        assert_eq!(read(bytes), Some(value));
    }

    #[test]
    fn a_text_that_is_referred_to_without_end_is_not_read() {
        let text = |length: usize| {
            let mut out = Vec::new();
            append_text(&"x".repeat(length), &mut out);
            out
        };
        // 6.4 GB out of 264 KB: by references to it, and by remembering it under other numbers.
        let referred = [b"](".to_vec(), text(1 << 16), b"q\0".to_vec()].concat();
        let referred = [referred, b"h\0".repeat(100_000), b"e.".to_vec()].concat();
        let remembered = [text(1 << 16), vec![0x94; 100_000], b".".to_vec()].concat();
        assert_eq!((read(&referred), read(&remembered)), (None, None));
        // As Python writes rows that have the same names of columns.
        let name = text(40);
        let row = b"}(h\0K\x07u".to_vec();
        let rows = [b"](".to_vec(), name, b"q\0".to_vec(), row.repeat(100_000)].concat();
        let rows = read(&[rows, b"e.".to_vec()].concat()).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 100_001);
    }

    #[test]
    fn a_pickle_that_calls_something_is_not_read() {
        // os.system("true"), as GLOBAL and REDUCE.
        assert_eq!(
            read(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."),
            None
        );
        assert_eq!(read(b""), None);
        assert_eq!(read(b"N"), None);
        assert_eq!(read(b"NN."), None);
        assert_eq!(read(b"N.N"), None);
        let lists = [vec![b']'; 100_000], vec![b'a'; 99_999], vec![b'.']].concat();
        let tuples = [vec![b'N'], vec![0x85; 100_000], vec![b'.']].concat();
        assert_eq!((read(&lists), read(&tuples)), (None, None));
    }
}
