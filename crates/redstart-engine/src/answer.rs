//! Replies that are written to the client's output while the command runs.
//!
//! A [`Reply`] of many strings is many allocations, all of them freed as soon as the reply is
//! encoded. Commands that read much write such a reply through an [`Answer`] instead: as bytes where the
//! client of a listener called the command itself, as a [`Reply`] where anybody else needs the value (a
//! script, a transaction, a caller in this process, a client that gets messages in between).

use crate::{
    reply::{Protocol, Reply},
    resp,
    types::{blob::Blob, string::Str},
};

/// The output of the client whose command runs, lent to the engine's state.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// It is lent.
    open: bool,
    /// The running command has written its reply.
    written: bool,
}

impl Output {
    /// Lends the output for one command.
    #[inline]
    pub(crate) fn lend(&mut self, bytes: &mut Vec<u8>) {
        std::mem::swap(&mut self.bytes, bytes);
        self.open = true;
        self.written = false;
    }

    /// Takes it back.
    #[inline]
    pub(crate) fn take_back(&mut self, bytes: &mut Vec<u8>) {
        std::mem::swap(&mut self.bytes, bytes);
        self.open = false;
    }

    /// Whether the command that has just run wrote its reply.
    #[inline]
    pub(crate) fn take_written(&mut self) -> bool {
        std::mem::take(&mut self.written)
    }

    /// For the reply of the running command; `direct` if nobody but the client needs it.
    #[inline]
    pub(crate) fn answer(&mut self, direct: bool, protocol: Protocol) -> Answer<'_> {
        let open = direct && self.open;
        Answer {
            output: open.then_some(self),
            protocol,
        }
    }
}

/// A reply about to be made; the last that a command does. What it returns is the command's reply.
#[must_use]
pub(crate) struct Answer<'a> {
    output: Option<&'a mut Output>,
    protocol: Protocol,
}

/// Stands for a reply that is written already; nobody sees it.
const WRITTEN: Reply = Reply::Nil;

impl<'a> Answer<'a> {
    /// A string, or nothing.
    #[inline]
    pub(crate) fn string(self, value: Option<&Str>) -> Reply {
        match (self.output, value) {
            (_, None) => Reply::Nil,
            (None, Some(value)) => Reply::Bulk(value.to_bytes()),
            (Some(output), Some(value)) => {
                encode_string(value, &mut output.bytes);
                output.written = true;
                WRITTEN
            }
        }
    }

    /// A string, or nothing.
    #[inline]
    pub(crate) fn blob(self, value: Option<&Blob>) -> Reply {
        match (self.output, value) {
            (_, None) => Reply::Nil,
            (None, Some(value)) => Reply::Bulk(value.to_bytes()),
            (Some(output), Some(value)) => {
                resp::encode_bulk(value, &mut output.bytes);
                output.written = true;
                WRITTEN
            }
        }
    }

    /// An array of exactly this many items.
    pub(crate) fn array(self, len: usize) -> Items<'a> {
        match self.output {
            None => Items::Collected(Vec::with_capacity(len), Reply::Array),
            Some(output) => {
                resp::encode_array(len, &mut output.bytes);
                output.written = true;
                Items::Written(output, self.protocol)
            }
        }
    }

    /// A set of exactly this many members.
    pub(crate) fn set(self, len: usize) -> Items<'a> {
        match self.output {
            None => Items::Collected(Vec::with_capacity(len), Reply::Set),
            Some(output) => {
                resp::encode_set(len, self.protocol, &mut output.bytes);
                output.written = true;
                Items::Written(output, self.protocol)
            }
        }
    }

    /// A map of exactly this many pairs.
    pub(crate) fn map<'b>(
        self,
        len: usize,
        pairs: impl Iterator<Item = (&'b Blob, &'b Blob)>,
    ) -> Reply {
        let Some(output) = self.output else {
            let bulk = |blob: &Blob| Reply::Bulk(blob.to_bytes());
            let mut replies = Vec::with_capacity(len);
            replies.extend(pairs.map(|(key, value)| (bulk(key), bulk(value))));
            return Reply::Map(replies);
        };
        resp::encode_map(len, self.protocol, &mut output.bytes);
        for (key, value) in pairs {
            resp::encode_bulk(key, &mut output.bytes);
            resp::encode_bulk(value, &mut output.bytes);
        }
        output.written = true;
        WRITTEN
    }
}

/// The items of an [`Answer`], one after the other.
#[must_use]
pub(crate) enum Items<'a> {
    Written(&'a mut Output, Protocol),
    Collected(Vec<Reply>, fn(Vec<Reply>) -> Reply),
}

impl Items<'_> {
    #[inline]
    pub(crate) fn blob(&mut self, item: &Blob) {
        match self {
            Items::Written(output, _) => resp::encode_bulk(item, &mut output.bytes),
            Items::Collected(items, _) => items.push(Reply::Bulk(item.to_bytes())),
        }
    }

    #[inline]
    pub(crate) fn string(&mut self, item: &Str) {
        match self {
            Items::Written(output, _) => encode_string(item, &mut output.bytes),
            Items::Collected(items, _) => items.push(Reply::Bulk(item.to_bytes())),
        }
    }

    /// Any other item.
    pub(crate) fn reply(&mut self, item: Reply) {
        match self {
            Items::Written(output, protocol) => resp::encode(&item, *protocol, &mut output.bytes),
            Items::Collected(items, _) => items.push(item),
        }
    }

    /// An array of a string and another item, in place of one item.
    pub(crate) fn pair(&mut self, first: &Blob, second: Reply) {
        match self {
            Items::Written(output, _) => {
                resp::encode_array(2, &mut output.bytes);
                self.blob(first);
                self.reply(second);
            }
            Items::Collected(items, _) => {
                let first = Reply::Bulk(first.to_bytes());
                items.push(Reply::Array(vec![first, second]));
            }
        }
    }

    /// The reply, which must have as many items as was said.
    pub(crate) fn end(self) -> Reply {
        match self {
            Items::Written(..) => WRITTEN,
            Items::Collected(items, wrap) => wrap(items),
        }
    }
}

#[inline]
fn encode_string(value: &Str, out: &mut Vec<u8>) {
    match value {
        Str::Blob(data) => resp::encode_bulk(data, out),
        Str::Int(value) => resp::encode_int_bulk(*value, out),
        Str::Shared(data) => resp::encode_bulk(data, out),
        Str::Raw(data) => resp::encode_bulk(data, out),
    }
}
