//! SLOWLOG and COMMANDLOG: the commands that took long or were large, without what must stay secret.

use std::{borrow::Cow, collections::VecDeque};

use bytes::Bytes;

use crate::{client::Client, context::Origin, registry::Spec};

const MOST_ARGS: usize = 32;
const MOST_BYTES: usize = 128;
const REDACTED: Bytes = Bytes::from_static(b"(redacted)");

#[derive(Default)]
pub(crate) struct SlowLog {
    /// The newest first.
    pub(crate) entries: VecDeque<Entry>,
    next: u64,
}

pub(crate) struct Entry {
    pub(crate) id: u64,
    /// Unix seconds.
    pub(crate) time: i64,
    /// Microseconds, or bytes of what is large.
    pub(crate) size: u64,
    pub(crate) args: Vec<Bytes>,
    pub(crate) addr: String,
    pub(crate) name: Bytes,
}

impl SlowLog {
    pub(crate) fn add(
        &mut self,
        most: usize,
        (client, origin): (&Client, Origin),
        args: &[Bytes],
        now_micros: i64,
        size: u64,
    ) {
        let (addr, name) = match &client.profile {
            Some(profile) if origin != Origin::Script => {
                (profile.addr.clone(), profile.activity.lock().name.clone())
            }
            _ => ("?:0".to_owned(), Bytes::new()),
        };
        self.entries.push_front(Entry {
            id: self.next,
            time: now_micros / 1_000_000,
            size,
            args: shortened(args),
            addr,
            name,
        });
        self.next += 1;
        self.entries.truncate(most);
    }
}

/// Copies: an argument is a part of a read buffer, which it would keep from being freed.
fn shortened(args: &[Bytes]) -> Vec<Bytes> {
    let kept = match args.len() {
        ..=MOST_ARGS => args.len(),
        _ => MOST_ARGS - 1,
    };
    let mut shown: Vec<Bytes> = args[..kept]
        .iter()
        .map(|arg| match arg.len().checked_sub(MOST_BYTES) {
            None | Some(0) => Bytes::copy_from_slice(arg),
            Some(more) => {
                let mut text = arg[..MOST_BYTES].to_vec();
                text.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
                text.into()
            }
        })
        .collect();
    if kept < args.len() {
        let more = args.len() - kept;
        shown.push(format!("... ({more} more arguments)").into());
    }
    shown
}

/// The arguments as others may see them: passwords are hidden.
pub(crate) fn shown<'a>(spec: &Spec, args: &'a [Bytes]) -> Cow<'a, [Bytes]> {
    let secret = |from: usize| {
        let mut args = args.to_vec();
        for arg in args.iter_mut().skip(from) {
            *arg = REDACTED;
        }
        Cow::Owned(args)
    };
    match spec.full_name {
        "auth" => secret(1),
        "acl|setuser" => secret(3),
        "config|set" => {
            const SECRETS: [&[u8]; 4] = [
                b"requirepass",
                b"masterauth",
                b"tls-key-file-pass",
                b"tls-client-key-file-pass",
            ];
            let mut args = args.to_vec();
            for pair in args[2..].chunks_exact_mut(2) {
                if SECRETS
                    .iter()
                    .any(|name| pair[0].eq_ignore_ascii_case(name))
                {
                    pair[1] = REDACTED;
                }
            }
            Cow::Owned(args)
        }
        "hello" | "migrate" => {
            let mut args = args.to_vec();
            let word = |arg: &Bytes, word: &[u8]| arg.eq_ignore_ascii_case(word);
            let mut at = 0;
            while at < args.len() {
                let hidden = match &args[at] {
                    arg if word(arg, b"AUTH2") => 2,
                    arg if word(arg, b"AUTH") && spec.name == "hello" => 2,
                    arg if word(arg, b"AUTH") => 1,
                    _ => 0,
                };
                for arg in args.iter_mut().skip(at + 1).take(hidden) {
                    *arg = REDACTED;
                }
                at += 1 + hidden;
            }
            Cow::Owned(args)
        }
        _ => Cow::Borrowed(args),
    }
}
