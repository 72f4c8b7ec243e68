//! Sessions of people who logged in, and the trail of what they looked at.
//!
//! | module | what it is |
//! |---|---|
//! | [`session`] | sessions with idle and absolute timeout, hashed tokens, rotation, logout everywhere |
//! | [`trail`] | the last pages of a visit |

pub mod session;
pub mod trail;

pub use session::{Patched, Session, SessionInfo, Sessions, Token};
pub use trail::Trail;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
