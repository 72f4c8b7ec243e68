//! The server itself.

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::CommandResult,
    registry::{Spec, flag::*},
};

pub(crate) static COMMANDS: &[Spec] = &[Spec::new("dbsize", 1, READONLY | FAST, (0, 0, 0), dbsize)];

fn dbsize(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(cx.db().len().into())
}
