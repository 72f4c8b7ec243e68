//! Sessions of express-session in connect-redis, read, extended and rotated from Rust.
//!
//! A session is JSON under `sess:<id>`, with the settings of its cookie in the field `cookie`. The browser has the id in a signed cookie, by
//! default `connect.sid`: [`Cookies`] reads and writes it.
//!
//! # Promises
//!
//! What is read is what Node wrote; numbers that JSON can hold and Rust cannot (over 64 bits) lose precision as they do in
//! Node. Extending and rotating change no data.
//!
//! # Limits
//!
//! express-session writes the whole session at the end of a request. A request that Node began before a rotation can write the old id
//! again when it ends; `regenerate` in Node has the same gap. On a Cluster, rotating needs a prefix with a hash tag, so that old and new
//! id are in one slot.
//!
//! # Keys
//!
//! | key | type | TTL |
//! |---|---|---|
//! | `<prefix><id>` | string: JSON | the cookie's `maxAge`, or the store's `ttl` |
//!
//! # Round trips
//!
//! One to read; two to extend (read, script); one to rotate.
//!
//! # While the store is down
//!
//! The error is returned.

use std::time::Duration;

use base64::Engine as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use redis::cmd;
use redstart::Store;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::Sha256;

use crate::{
    error::{Error, Result},
    script::Lua,
};

static ROTATE: Lua = Lua::new(include_str!("sessions/rotate.lua"));
static TOUCH: Lua = Lua::new(include_str!("sessions/touch.lua"));

/// The sessions of connect-redis.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart::Store;
/// use redstart_adopt::sessions::ConnectSessions;
///
/// let store = Store::connect("memory://").await?;
/// let json = r#"{"cookie":{"originalMaxAge":3600000,"httpOnly":true,"path":"/"},"user":7}"#;
/// store.query::<()>(redis::cmd("SET").arg("sess:old").arg(json).arg("EX").arg(60)).await?;
///
/// let sessions = ConnectSessions::new(&store);
/// let session = sessions.get("old").await?.expect("Node wrote it");
/// assert_eq!(session.field::<u64>("user"), Some(7));
/// let id = sessions.rotate("old").await?.expect("it is there");
/// assert!(sessions.get("old").await?.is_none());
/// assert!(sessions.touch(&id).await?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ConnectSessions {
    store: Store,
    prefix: String,
    ttl: Duration,
}

/// A session as Node wrote it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConnectSession {
    /// Its data, with the field `cookie`.
    pub data: Map<String, Value>,
    /// How long it still lives; `None` if it never ends.
    pub remaining: Option<Duration>,
}

impl ConnectSession {
    /// A field of its data; `None` if it is missing or of another type.
    pub fn field<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_value(self.data.get(name)?.clone()).ok()
    }

    /// How long the cookie lives after each request; `None` if it ends with the browser.
    pub fn max_age(&self) -> Option<Duration> {
        let age = self.data.get("cookie")?.get("originalMaxAge")?.as_f64()?;
        Duration::try_from_secs_f64(age / 1000.0).ok()
    }
}

/// The data of a session; `None` for what express-session did not write.
pub(crate) fn session_data(json: &[u8]) -> Option<Map<String, Value>> {
    let data: Map<String, Value> = serde_json::from_slice(json).ok()?;
    data.get("cookie")?.is_object().then_some(data)
}

impl ConnectSessions {
    /// The sessions under connect-redis's default prefix `sess:`, with its default ttl of a day.
    pub fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            prefix: "sess:".to_owned(),
            ttl: Duration::from_secs(86_400),
        }
    }

    /// The `prefix` of connect-redis's store.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// The `ttl` of connect-redis's store, for sessions whose cookie has no `maxAge`.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    fn key(&self, id: &str) -> Result<String> {
        if id.is_empty() {
            return Err(Error::invalid("a session needs an id"));
        }
        Ok(format!("{}{id}", self.prefix))
    }

    /// The session with this id; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an empty id and for a value that is no session of express-session; otherwise those of
    /// the store.
    pub async fn get(&self, id: &str) -> Result<Option<ConnectSession>> {
        let key = self.key(id)?;
        let mut look = redis::pipe();
        look.cmd("GET").arg(&key);
        look.cmd("PTTL").arg(&key);
        let (json, left): (Option<Vec<u8>>, i64) = self.store.pipeline(&look).await?;
        let Some(json) = json else { return Ok(None) };
        let data = session_data(&json)
            .ok_or_else(|| Error::invalid("the value is no session of express-session"))?;
        Ok(Some(ConnectSession {
            data,
            remaining: u64::try_from(left).ok().map(Duration::from_millis),
        }))
    }

    /// Lets a session live for its whole time again, as `touch` does; `false` if it does not exist. A session without a TTL stays without one.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it may have been extended.
    pub async fn touch(&self, id: &str) -> Result<bool> {
        let Some(session) = self.get(id).await? else {
            return Ok(false);
        };
        let age = session.max_age().unwrap_or(self.ttl);
        let seconds = age.as_secs() + u64::from(age.subsec_nanos() > 0);
        let key = self.key(id)?;
        TOUCH.run(&self.store, &[key], &[&seconds.max(1)]).await
    }

    /// Gives a session a new id, with its data and the rest of its time, and returns it; `None` if there is no such session. To be done when a
    /// user logs in, so that nobody can plant an id.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get). After [`is_in_doubt`](redstart::Error::is_in_doubt) the session may have an id that nobody knows: the
    /// user has to log in again.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the session may have an id that nobody knows.
    pub async fn rotate(&self, id: &str) -> Result<Option<String>> {
        // As uid-safe makes them: 24 random bytes.
        let fresh = rand::random::<[u8; 24]>();
        let fresh = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(fresh);
        let keys = [self.key(id)?, self.key(&fresh)?];
        let rotated: bool = ROTATE.run(&self.store, &keys, &[]).await?;
        Ok(rotated.then_some(fresh))
    }

    /// Removes a session; `false` if there was none.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an empty id; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the session may be gone.
    pub async fn destroy(&self, id: &str) -> Result<bool> {
        Ok(self.store.query(cmd("DEL").arg(self.key(id)?)).await?)
    }
}

/// The signed cookies of express-session.
///
/// ```
/// use redstart_adopt::sessions::Cookies;
///
/// let cookies = Cookies::new("keyboard cat").or("the secret before");
/// let value = cookies.sign("u8Zk3PqWmVtR0yXbN5cE2aLhJ7sDgF1o");
/// assert_eq!(cookies.session_id(&value).as_deref(), Some("u8Zk3PqWmVtR0yXbN5cE2aLhJ7sDgF1o"));
/// assert_eq!(cookies.session_id("s:u8Zk3PqWmVtR0yXbN5cE2aLhJ7sDgF1o.forged"), None);
/// ```
#[derive(Clone)]
pub struct Cookies {
    secrets: Vec<String>,
}

impl Cookies {
    /// Signs and accepts cookies with express-session's `secret`.
    pub fn new(secret: &str) -> Self {
        Self {
            secrets: vec![secret.to_owned()],
        }
    }

    /// Also accepts cookies that were signed with an earlier secret.
    #[must_use]
    pub fn or(mut self, secret: &str) -> Self {
        self.secrets.push(secret.to_owned());
        self
    }

    /// The value of the cookie for a session, as it stands in a `Set-Cookie` header.
    pub fn sign(&self, id: &str) -> String {
        let code = self.secrets.first().and_then(|secret| code(secret, id));
        let code = code.map(|code| code.finalize().into_bytes());
        let code =
            base64::engine::general_purpose::STANDARD_NO_PAD.encode(code.unwrap_or_default());
        let escaped: String = code.chars().map(escape).collect();
        format!("s%3A{id}.{escaped}")
    }

    /// The id of the session in the value of a cookie; `None` if it was not signed with one of the secrets.
    pub fn session_id(&self, cookie: &str) -> Option<String> {
        let cookie = unescape(cookie)?;
        let (id, signature) = cookie.strip_prefix("s:")?.rsplit_once('.')?;
        let signature = base64::engine::general_purpose::STANDARD_NO_PAD
            .decode(signature)
            .ok()?;
        // `verify_slice` takes the same time for every signature.
        let signed = |secret: &String| {
            code(secret, id).is_some_and(|code| code.verify_slice(&signature).is_ok())
        };
        self.secrets.iter().any(signed).then(|| id.to_owned())
    }
}

impl std::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cookies").finish_non_exhaustive()
    }
}

/// A secret may have any length, so there always is one.
fn code(secret: &str, id: &str) -> Option<Hmac<Sha256>> {
    let mut code = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).ok()?;
    code.update(id.as_bytes());
    Some(code)
}

/// What a cookie's value must not contain.
fn escape(c: char) -> String {
    match c {
        '+' => "%2B".to_owned(),
        '/' => "%2F".to_owned(),
        c => c.to_string(),
    }
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}
