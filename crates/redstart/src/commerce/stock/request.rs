//! Who wants what.

use crate::error::{Error, Result};

const MAX_LENGTH: usize = 512;

/// Who wants what: the name of a reservation. The id is the buyer's own; the same one means the same reservation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub(super) sku: Box<str>,
    pub(super) user: Box<str>,
    pub(super) id: Box<str>,
}

impl Request {
    /// The request `id` of `user` for `sku`.
    pub fn new(sku: &str, user: &str, id: &str) -> Self {
        Self {
            sku: sku.into(),
            user: user.into(),
            id: id.into(),
        }
    }

    /// The request's name within its shard; the length keeps "a" + "bc" and "ab" + "c" apart.
    pub(super) fn name(&self) -> String {
        format!("{}:{}{}", self.user.len(), self.user, self.id)
    }

    pub(super) fn check(&self) -> Result<()> {
        check_id("user", &self.user)?;
        check_id("request id", &self.id)
    }
}

pub(super) fn check_id(what: &str, id: &str) -> Result<()> {
    match (1..=MAX_LENGTH).contains(&id.len()) {
        true => Ok(()),
        false => Err(Error::config(format!(
            "a {what} must have 1 to {MAX_LENGTH} bytes"
        ))),
    }
}
