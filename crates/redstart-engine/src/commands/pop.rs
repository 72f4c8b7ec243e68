//! Pops from the first of several keys that holds anything, now or after waiting for it: what LMPOP,
//! BLPOP, ZMPOP, BZPOPMIN and their relatives share.

use bytes::Bytes;

use crate::{
    blocking::{Served, Wait},
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    number::range_arg,
    reply::Reply,
    types::Typed,
};

/// A type whose elements are popped from one of two ends.
pub(crate) trait Poppable: Typed {
    type End: Copy + Send + 'static;
    type Item: Clone + Send + 'static;

    /// Takes up to `count` elements; events and the removal of an emptied key included.
    fn take(
        cx: &mut Ctx<'_>,
        key: &[u8],
        end: Self::End,
        count: usize,
    ) -> Result<Vec<Self::Item>, Stop>;

    /// The command that takes these elements again.
    fn effect(pop: &Pop<Self>, key: &Bytes, items: &[Self::Item]) -> Vec<Bytes>;

    /// Puts elements back that were taken for a client that is gone.
    fn put_back(cx: &mut Ctx<'_>, key: &Bytes, end: Self::End, items: Vec<Self::Item>);
}

/// What to pop and how to answer.
pub(crate) struct Pop<P: Poppable> {
    pub(crate) end: P::End,
    /// The largest number of elements; `None` is one, for commands that have no count.
    pub(crate) count: Option<usize>,
    pub(crate) reply: fn(&Bytes, &[P::Item]) -> Reply,
}

impl<P: Poppable + 'static> Pop<P> {
    fn take(&self, cx: &mut Ctx<'_>, key: &Bytes) -> Result<Option<Vec<P::Item>>, Stop> {
        if cx.get_mut::<P>(key)?.is_none() {
            return Ok(None);
        }
        P::take(cx, key, self.end, self.count.unwrap_or(1)).map(Some)
    }

    /// Pops from the first key that holds anything.
    pub(crate) fn run(&self, cx: &mut Ctx<'_>, keys: &[Bytes]) -> Result<Option<Reply>, Stop> {
        for key in keys {
            if let Some(items) = self.take(cx, key)? {
                cx.propagate(P::effect(self, key, &items));
                return Ok(Some((self.reply)(key, &items)));
            }
        }
        Ok(None)
    }

    /// As [`Pop::run`]; waits if no key holds anything.
    pub(crate) fn run_or_wait(
        self,
        cx: &mut Ctx<'_>,
        keys: &[Bytes],
        deadline: Option<i64>,
    ) -> CommandResult {
        if let Some(reply) = self.run(cx, keys)? {
            return Ok(reply);
        }
        cx.block(Wait {
            keys: keys.to_vec(),
            deadline,
            synced: None,
            hears_of_absence: false,
            on_timeout: Reply::NilArray,
            serve: Box::new(move |cx, key| {
                let items = self.take(cx, key).ok()??;
                cx.record(P::effect(&self, key, &items));
                let (end, key) = (self.end, key.clone());
                Some(Served {
                    reply: (self.reply)(&key, &items),
                    undo: Some(Box::new(move |cx| P::put_back(cx, &key, end, items))),
                })
            }),
        })
    }
}

/// The keys, the end and the count of LMPOP and ZMPOP, from the position of `numkeys` on.
pub(crate) fn mpop_args<E>(
    args: &[Bytes],
    end_arg: fn(&[u8]) -> Result<E, Stop>,
) -> Result<(&[Bytes], E, usize), Stop> {
    let error = "ERR numkeys should be greater than 0";
    let count = range_arg(&args[0], 1, i64::MAX, error)?;
    let rest = &args[1..];
    if count as u64 >= rest.len() as u64 {
        return Err(SYNTAX.into());
    }
    let (keys, rest) = rest.split_at(count as usize);
    let end = end_arg(&rest[0])?;
    Ok((keys, end, count_arg(&rest[1..])?))
}

/// The `COUNT n` at the end of LMPOP and ZMPOP; 1 if it is left out.
fn count_arg(args: &[Bytes]) -> Result<usize, Stop> {
    let mut limit = None;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match rest.next() {
            Some(value) if limit.is_none() && arg.eq_ignore_ascii_case(b"count") => {
                let error = "ERR count should be greater than 0";
                limit = Some(range_arg(value, 1, i64::MAX, error)? as usize);
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    Ok(limit.unwrap_or(1))
}
