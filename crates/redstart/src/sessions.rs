//! Sessions of users and anonymous visitors, and the trail of the pages that they visited.
//!
//! | type | what it is |
//! |---|---|
//! | [`Sessions`] | sessions with an idle and an absolute timeout, hashed tokens, rotation, step-up, logout everywhere |
//! | [`Trail`] | the last pages of a visit |
//!
//! For HTTP services the crate `redstart-tower` has a cookie layer on [`Sessions`], and a store for `tower-sessions`.

mod builder;
mod login;
mod record;
mod session;
mod token;
mod trail;

pub use builder::SessionsBuilder;
pub use login::Login;
pub use session::{Patched, Rotated, Session, SessionInfo, Sessions};
pub use token::Token;
pub use trail::{Trail, TrailBuilder};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[
    &session::ACCOUNT,
    &session::CREATE,
    &session::LIST,
    &session::LOAD,
    &session::LOGIN,
    &session::PATCH,
    &session::REVOKE,
    &session::ROTATE,
    &trail::VISIT,
];
