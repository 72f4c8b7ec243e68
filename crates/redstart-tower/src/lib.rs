//! tower layers on [`redstart`]'s patterns.
//!
//! | layer | what it does |
//! |---|---|
//! | [`CookieLayer`] | sessions by cookie: login, logout, logout everywhere |
//! | [`StoredSessions`] | a session store for `tower-sessions` |

#![forbid(unsafe_code)]

pub mod cookie;
pub mod session;

pub use cookie::{CookieLayer, CookieSession};
pub use session::StoredSessions;
