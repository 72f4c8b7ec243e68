//! XDELEX and XACKDEL: entries are deleted with regard to the groups that know them.

use bytes::Bytes;

use super::id_arg;
use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    notify::class,
    number::parse_int,
    reply::Reply,
    types::stream::{Id, Stream},
};

/// What becomes of references that groups have to a deleted entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum References {
    /// They stay, as after XDEL.
    Keep,
    /// They are removed.
    Remove,
    /// An entry that a group has not acknowledged is not deleted.
    Respect,
}

/// There is no such entry, or it is not pending.
const MISSING: i64 = -1;
const DELETED: i64 = 1;
/// A group still needs it.
const REFERENCED: i64 = 2;

/// `[KEEPREF | DELREF | ACKED] IDS count id …`.
fn parse(args: &[Bytes]) -> Result<(References, Vec<Id>), Stop> {
    let mut references = None;
    let mut rest = args;
    loop {
        let (word, after) = rest.split_first().ok_or(Stop::from(SYNTAX))?;
        rest = after;
        let choice = match &word.to_ascii_lowercase()[..] {
            b"keepref" => References::Keep,
            b"delref" => References::Remove,
            b"acked" => References::Respect,
            b"ids" => break,
            _ => return Err(SYNTAX.into()),
        };
        if references.replace(choice).is_some() {
            return Err(SYNTAX.into());
        }
    }
    let (count, ids) = rest.split_first().ok_or(Stop::from(SYNTAX))?;
    let count = parse_int(count)
        .filter(|count| *count > 0)
        .ok_or(Stop::from("ERR Number of IDs must be a positive integer"))?;
    if count as u64 != ids.len() as u64 {
        return Err("ERR The `numids` parameter must match the number of arguments".into());
    }
    let ids = ids
        .iter()
        .map(|id| id_arg(id, 0))
        .collect::<Result<_, _>>()?;
    Ok((references.unwrap_or(References::Keep), ids))
}

pub(super) fn xdelex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (references, ids) = parse(&args[2..])?;
    delete(cx, &args[1], None, references, &ids)
}

pub(super) fn xackdel(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (references, ids) = parse(&args[3..])?;
    delete(cx, &args[1], Some(&args[2]), references, &ids)
}

fn delete(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    group: Option<&Bytes>,
    references: References,
    ids: &[Id],
) -> CommandResult {
    let missing = || Ok(Reply::Array(vec![Reply::Int(MISSING); ids.len()]));
    let Some(stream) = cx.get_mut::<Stream>(key)? else {
        return missing();
    };
    if group.is_some_and(|group| !stream.groups.contains_key(group.as_ref())) {
        return missing();
    }
    let mut done = Done::default();
    let codes = ids.iter().map(|&id| {
        if let Some(group) = group {
            let Some(group_of) = stream.groups.get_mut(group.as_ref()) else {
                return Reply::Int(MISSING);
            };
            if !group_of.release(id) {
                return Reply::Int(MISSING);
            }
            done.acknowledged.push((group.clone(), id));
        }
        Reply::Int(delete_one(
            stream,
            id,
            references,
            group.is_some(),
            &mut done,
        ))
    });
    let codes = Reply::Array(codes.collect());
    done.tell(cx, key);
    Ok(codes)
}

fn delete_one(
    stream: &mut Stream,
    id: Id,
    references: References,
    acknowledged: bool,
    done: &mut Done,
) -> i64 {
    if !has(stream, id) {
        // What is acknowledged may have been deleted before.
        return if acknowledged { DELETED } else { MISSING };
    }
    let needed = |stream: &Stream| {
        let mut groups = stream.groups.values();
        groups.any(|group| group.last_id < id || group.pending.contains_key(&id))
    };
    match references {
        References::Respect if needed(stream) => return REFERENCED,
        References::Remove => {
            for (name, group) in &mut stream.groups {
                if group.release(id) {
                    done.acknowledged.push((name.to_bytes(), id));
                }
            }
        }
        References::Keep | References::Respect => {}
    }
    stream.delete(id);
    done.deleted.push(id);
    DELETED
}

fn has(stream: &Stream, id: Id) -> bool {
    let mut found = false;
    stream.range(id, id, |_, _| {
        found = true;
        false
    });
    found
}

/// What was changed.
#[derive(Default)]
struct Done {
    acknowledged: Vec<(Bytes, Id)>,
    deleted: Vec<Id>,
}

impl Done {
    /// Tells others; the log as commands that every server has.
    fn tell(self, cx: &mut Ctx<'_>, key: &Bytes) {
        if self.acknowledged.is_empty() && self.deleted.is_empty() {
            return;
        }
        cx.modified(key);
        cx.dirty(self.acknowledged.len() + self.deleted.len());
        for (group, id) in &self.acknowledged {
            let words = [Bytes::from_static(b"XACK"), key.clone(), group.clone()];
            cx.propagate(words.into_iter().chain([id.to_bytes()]));
        }
        if !self.deleted.is_empty() {
            cx.notify(class::STREAM, "xdel", key);
            let words = [Bytes::from_static(b"XDEL"), key.clone()];
            let ids = self.deleted.iter().map(|id| id.to_bytes());
            cx.propagate(words.into_iter().chain(ids));
        }
    }
}
