//! tower layers and axum extractors on [`redstart`]'s patterns.
//!
//! | type | what it does |
//! |---|---|
//! | [`CookieLayer`] | sessions by cookie: login, logout, step-up, list of devices; [`CookieSession`] and [`LoggedIn`] are extractors |
//! | [`LoginLayer`] | refuses requests without a login, or without a recent step-up |
//! | [`CsrfLayer`] | refuses changes without the session's token against cross-site request forgery |
//! | [`LimitLayer`] | rate limits: 429, `Retry-After`, the `RateLimit` headers |
//! | [`IdempotencyLayer`] | `Idempotency-Key`: a request that arrives twice is carried out once |
//! | [`PolicyLayer`] | for clients: timeout, repetitions within a budget, bulkhead, hedging and circuit breaker |
//! | [`SessionStore`] | a session store for `tower-sessions` |
//!
//! # How layers are made
//!
//! `X::new(…)` takes what has no sensible default and returns the layer; `X::builder(…)` takes the same and has the
//! settings, then `build()`. A [`Subject`] says whose limit or whose key it is; it is always an explicit choice.
//!
//! # Order
//!
//! A layer that is added later to an axum router sees the request earlier. [`Subject::user`], [`LoginLayer`] and
//! [`CsrfLayer`] need the session, so the [`CookieLayer`] is added after them:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, routing::post};
//! use redstart::{Store, sessions::Sessions};
//! use redstart_tower::{CookieLayer, CsrfLayer, LoginLayer};
//!
//! let store = Store::connect("memory://").await?;
//! let app: Router = Router::new()
//!     .route("/orders", post(|| async { "ordered" }))
//!     .layer(CsrfLayer::new())
//!     .layer(LoginLayer::new())
//!     .layer(CookieLayer::new(Sessions::new(&store, "shop", "web")?));
//! # let _ = app;
//! # Ok(()) }
//! ```
//!
//! # Refusals
//!
//! Every refusal is a [`Problem`]: `application/problem+json` by RFC 9457. `render_problem` on a layer's builder writes
//! another body. Handlers can return a `Problem` as their error; a [`redstart::Error`] becomes one by `?`.

#![forbid(unsafe_code)]

mod cookie;
mod csrf;
mod idempotency;
mod limit;
mod login;
mod policy;
mod problem;
mod session_store;
mod subject;

pub use cookie::{
    CookieFuture, CookieLayer, CookieLayerBuilder, CookieService, CookieSession, InvalidCookie,
    SameSite,
};
pub use csrf::{CsrfLayer, CsrfLayerBuilder, CsrfService};
pub use idempotency::{
    IdempotencyKey, IdempotencyLayer, IdempotencyLayerBuilder, IdempotencyService,
};
pub use limit::{LimitLayer, LimitLayerBuilder, LimitService, QuotaUnit};
#[cfg(feature = "axum")]
pub use login::LoggedIn;
pub use login::{LoginLayer, LoginLayerBuilder, LoginService};
pub use policy::{PolicyLayer, PolicyService};
pub use problem::Problem;
pub use session_store::SessionStore;
pub use subject::Subject;

type BoxFuture<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;

/// A name made of several parts, none of which can be read from it or taken for another.
fn digest(parts: &[&[u8]]) -> String {
    let hex = |byte: &u8| format!("{byte:02x}");
    sha256(parts).iter().take(16).map(hex).collect()
}

/// The SHA-256 of several parts, each behind its length.
fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    use sha2::Digest as _;
    let mut hash = sha2::Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
