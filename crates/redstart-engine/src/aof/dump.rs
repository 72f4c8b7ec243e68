//! All data as the commands that make it.

use std::io::{self, BufWriter, Write};

use bytes::Bytes;

use super::{file::LogFile, folder::Folder};
use crate::{
    commands::{hash::expire_effect, stream::claim_effect},
    engine::State,
    keyspace::NEVER,
    number::{double_text, int_bytes},
    resp,
    types::{
        Value,
        hash::Hash,
        stream::{Id, Stream},
    },
};

/// The maximum number of elements per command, as in Redis.
const AT_ONCE: usize = 64;
/// How many bytes of a Bloom filter go into one command.
const CHUNK: usize = 1 << 20;

struct Writer<'a> {
    out: &'a mut dyn Write,
    len: u64,
    scratch: Vec<u8>,
}

impl Writer<'_> {
    fn command(&mut self, args: &[Bytes]) -> io::Result<()> {
        self.scratch.clear();
        resp::encode_command(args, &mut self.scratch);
        self.len += self.scratch.len() as u64;
        self.out.write_all(&self.scratch)
    }

    /// `NAME key element …`, as often as needed.
    fn elements(
        &mut self,
        name: &'static str,
        key: &Bytes,
        per_element: usize,
        elements: impl Iterator<Item = Bytes>,
    ) -> io::Result<()> {
        let mut args = vec![word(name), key.clone()];
        for element in elements {
            args.push(element);
            if args.len() == 2 + AT_ONCE * per_element {
                self.command(&args)?;
                args.truncate(2);
            }
        }
        if args.len() > 2 {
            self.command(&args)?;
        }
        Ok(())
    }
}

fn word(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// Writes the whole keyspace to a file and syncs it; the file's length.
pub(super) fn write(state: &State, folder: &dyn Folder, name: &str) -> io::Result<u64> {
    // A file whose sync has failed is not to be used again.
    let _ = folder.remove(name);
    let file = LogFile::new(folder.create(name)?);
    let mut out = BufWriter::with_capacity(1024 * 1024, &file);
    let len = write_all(state, &mut out)?;
    out.flush()?;
    drop(out);
    file.sync()?;
    Ok(len)
}

/// Writes the whole keyspace; the length.
pub(crate) fn write_all(state: &State, out: &mut dyn Write) -> io::Result<u64> {
    let mut writer = Writer {
        out,
        len: 0,
        scratch: Vec::new(),
    };
    for library in state.scripts.functions.libraries() {
        writer.command(&[word("FUNCTION"), word("LOAD"), library.code.clone()])?;
    }
    for (number, db) in state.dbs.iter().enumerate() {
        if db.len() == 0 {
            continue;
        }
        writer.command(&[word("SELECT"), Bytes::from(number.to_string())])?;
        for (key, entry) in db.iter() {
            let key = key.to_bytes();
            write_value(&mut writer, &key, &entry.value)?;
            if entry.deadline != NEVER {
                writer.command(&[word("PEXPIREAT"), key, int_bytes(entry.deadline)])?;
            }
        }
    }
    Ok(writer.len)
}

fn write_value(writer: &mut Writer<'_>, key: &Bytes, value: &Value) -> io::Result<()> {
    match value {
        Value::Str(value) => writer.command(&[word("SET"), key.clone(), value.to_bytes()]),
        Value::List(list) => {
            writer.elements("RPUSH", key, 1, list.iter().map(|item| item.to_bytes()))
        }
        Value::Set(set) => writer.elements("SADD", key, 1, set.iter().map(|item| item.to_bytes())),
        Value::Hash(hash) => {
            let pairs = hash
                .iter()
                .flat_map(|(field, value)| [field.to_bytes(), value.to_bytes()]);
            writer.elements("HSET", key, 2, pairs)?;
            write_deadlines(writer, key, hash)
        }
        Value::SortedSet(set) => {
            let pairs = set
                .iter()
                .flat_map(|(member, score)| [Bytes::from(double_text(score)), member.to_bytes()]);
            writer.elements("ZADD", key, 2, pairs)
        }
        Value::Stream(stream) => write_stream(writer, key, stream),
        Value::Bloom(bloom) => {
            let load = |at: u64, data: &[u8]| {
                [
                    word("BF.LOADCHUNK"),
                    key.clone(),
                    int_bytes(at as i64),
                    Bytes::copy_from_slice(data),
                ]
            };
            writer.command(&load(1, &bloom.header()))?;
            let mut at = 0;
            while let Some(chunk) = bloom.chunk(at, CHUNK) {
                at += chunk.len() as u64;
                // The iterator that follows the chunk, as BF.SCANDUMP would have given it.
                writer.command(&load(at + 1, chunk))?;
            }
            Ok(())
        }
    }
}

/// The deadlines of a hash's fields; those with the same one share commands.
fn write_deadlines(writer: &mut Writer<'_>, key: &Bytes, hash: &Hash) -> io::Result<()> {
    let mut same: Vec<Bytes> = Vec::new();
    let mut deadlines = hash.deadlines().peekable();
    while let Some((deadline, field)) = deadlines.next() {
        same.push(field.to_bytes());
        let goes_on = deadlines.peek().is_some_and(|(next, _)| *next == deadline);
        if !goes_on || same.len() == AT_ONCE {
            writer.command(&expire_effect(key, deadline, &same))?;
            same.clear();
        }
    }
    Ok(())
}

fn write_stream(writer: &mut Writer<'_>, key: &Bytes, stream: &Stream) -> io::Result<()> {
    let mut result = Ok(());
    stream.range(Id::ZERO, Id::MAX, |id, entry| {
        let mut args = vec![word("XADD"), key.clone(), id.to_bytes()];
        entry.each(|field, value| {
            args.push(Bytes::copy_from_slice(field));
            args.push(Bytes::copy_from_slice(value));
        });
        result = writer.command(&args);
        result.is_ok()
    });
    result?;
    if stream.len() == 0 {
        // An entry that is gone at once leaves an empty stream behind.
        let id = if stream.last_id == Id::ZERO {
            Id { ms: 0, seq: 1 }
        } else {
            stream.last_id
        };
        writer.command(&[
            word("XADD"),
            key.clone(),
            word("MAXLEN"),
            word("0"),
            id.to_bytes(),
            word("x"),
            word("y"),
        ])?;
    }
    writer.command(&[
        word("XSETID"),
        key.clone(),
        stream.last_id.to_bytes(),
        word("ENTRIESADDED"),
        int_bytes(i64::try_from(stream.entries_added).unwrap_or(i64::MAX)),
        word("MAXDELETEDID"),
        stream.max_deleted_id.to_bytes(),
    ])?;
    for (name, group) in &stream.groups {
        let name = name.to_bytes();
        writer.command(&[
            word("XGROUP"),
            word("CREATE"),
            key.clone(),
            name.clone(),
            group.last_id.to_bytes(),
            word("ENTRIESREAD"),
            int_bytes(group.entries_read_arg()),
        ])?;
        for consumer in group.consumers() {
            writer.command(&[
                word("XGROUP"),
                word("CREATECONSUMER"),
                key.clone(),
                name.clone(),
                consumer.name.to_bytes(),
            ])?;
        }
        for (&id, &pending) in &group.pending {
            writer.command(&claim_effect(key, &name, group, id, pending))?;
        }
    }
    Ok(())
}
