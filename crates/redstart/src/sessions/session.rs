//! Sessions with an idle and an absolute timeout, whose tokens the server never sees.
//!
//! # What it promises
//!
//! - A session ends when it was not used for the idle timeout, and at the latest at the absolute one, however
//!   often it is used. Each access renews the idle timeout; within a second of a renewal the next may be left
//!   out.
//! - A token is 256 random bits. The store keeps only its SHA-256: a dump of the server opens no session.
//! - [`patch`](Sessions::patch) changes single fields and never revives: racing a logout it does nothing.
//! - [`rotate`](Sessions::rotate) and [`elevate`](Sessions::elevate) give a new token and end the old one, for
//!   every login and change of privileges: a token that an attacker planted is worth nothing afterwards.
//! - The index of a user holds the live sessions and no others; [`revoke_all`](Sessions::revoke_all) ends all of
//!   them, also those that are being rotated at that moment.
//!
//! It does not check who the user is, nor where a request comes from.
//!
//! # Keys
//!
//! `<namespace>:session:{<user>}` is the index of a user, a sorted set by the sessions' ends, where `<user>` is a
//! digest of the user's name; `…:<digest of the token>` is a hash with the session's fields, in the same slot.
//! The token carries the user's digest, so that the slot can be found from it. Both expire by themselves.
//!
//! # Round trips
//!
//! One for each operation, O(fields). A `load` that renews the idle timeout takes two: at most one a second
//! for each session, or one in a 64th of a shorter idle timeout. `revoke_all` and `list` take two; `elevate`
//! three or four.
//!
//! # While the store is down
//!
//! Everything fails: nobody is logged in without the store's word.
//!
//! # Names
//!
//! Operations `session.create`, `session.load`, `session.patch`, `session.rotate`, `session.elevate`,
//! `session.revoke`, `session.revoke_all`, `session.list`; events `session.gone`, `session.malformed_token`.
//!
//! # Example
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, sessions::{Patched, Sessions}};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Default)]
//! struct Data { theme: String, cart: Vec<u32> }
//!
//! let store = Store::connect("memory://").await?;
//! let sessions = Sessions::builder(&store, "shop").build()?;
//!
//! let token = sessions.create("ann", &Data { theme: "dark".into(), cart: vec![] }).await?;
//! assert_eq!(sessions.patch(&token, &serde_json::json!({ "cart": [7] })).await?, Patched::Done);
//! let session = sessions.load::<Data>(&token).await?.unwrap();
//! assert_eq!((session.user.as_deref(), session.data.cart), (Some("ann"), vec![7]));
//!
//! assert_eq!(sessions.revoke_all("ann").await?, 1);
//! assert_eq!(sessions.patch(&token, &serde_json::json!({ "cart": [8] })).await?, Patched::Gone);
//! assert!(sessions.load::<Data>(&token).await?.is_none());
//! # Ok(()) }
//! ```

use std::{collections::HashMap, fmt, str::FromStr, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value as Json};
use sha2::{Digest as _, Sha256};

use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Script,
    store::Store,
};

static CREATE: Script = Script::new("session.create", include_str!("session/create.lua"));
static TOUCH: Script = Script::new("session.touch", include_str!("session/touch.lua"));
static ROTATE: Script = Script::new("session.rotate", include_str!("session/rotate.lua"));
static REVOKE: Script = Script::new("session.revoke", include_str!("session/revoke.lua"));
static ROLL: Script = Script::new("session.roll", include_str!("session/roll.lua"));

/// A renewal that would gain less than this may be left out.
const SLACK: Duration = Duration::from_secs(1);
/// The fields of one session: a script passes them in one piece.
const MAX_FIELDS: usize = 1000;
const MAX_BYTES: usize = 1024 * 1024;
/// Sessions ended by one script.
const PIECE: usize = 500;
/// How long a logout everywhere is noted: longer than its two steps can take.
const NOTE: Duration = Duration::from_secs(60);
/// The application's fields begin with this, so that they never meet the session's own.
const OWN: &str = "d:";

/// The secret that opens a session. It is shown by [`expose`](Self::expose) only; `Debug` hides it.
///
/// ```
/// use redstart::sessions::Token;
/// let token: Token = "A".repeat(64).parse().unwrap();
/// assert!(!format!("{token:?}").contains("AAAA"));
/// assert!("short".parse::<Token>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    owner: [u8; 16],
    secret: [u8; 32],
}

impl Token {
    fn new(owner: [u8; 16]) -> Self {
        Self {
            owner,
            secret: rand::random(),
        }
    }

    /// The token as text, for the cookie: 64 letters, digits, `-` and `_`.
    pub fn expose(&self) -> String {
        let mut bytes = [0; 48];
        bytes[..16].copy_from_slice(&self.owner);
        bytes[16..].copy_from_slice(&self.secret);
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// What the store knows the session by.
    fn name(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(self.owner);
        digest.update(self.secret);
        hex(&digest.finalize())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let malformed = || {
            observe::event("session.malformed_token");
            Error::config("this is no session token")
        };
        let mut bytes = [0; 48];
        if text.len() != 64 || BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) != Ok(48) {
            return Err(malformed());
        }
        let (mut owner, mut secret) = ([0; 16], [0; 32]);
        owner.copy_from_slice(&bytes[..16]);
        secret.copy_from_slice(&bytes[16..]);
        Ok(Self { owner, secret })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Settings of [`Sessions`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct SessionsBuilder {
    store: Store,
    namespace: String,
    idle: Duration,
    absolute: Duration,
}

impl SessionsBuilder {
    /// A session ends when it was not used for this long (default: 30 minutes).
    pub fn idle(mut self, timeout: Duration) -> Self {
        self.idle = timeout;
        self
    }

    /// A session ends this long after it was made, however often it is used (default: 12 hours).
    pub fn absolute(mut self, timeout: Duration) -> Self {
        self.absolute = timeout;
        self
    }

    /// The sessions. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace or timeouts that cannot be used.
    pub fn build(self) -> Result<Sessions> {
        let year = Duration::from_secs(366 * 86_400);
        if self.idle < Duration::from_millis(1) || self.absolute < self.idle || self.absolute > year
        {
            return Err(Error::config(
                "timeouts are 1 ms at least, the idle one is the shorter, and both are a year at most",
            ));
        }
        Ok(Sessions(Arc::new(Inner {
            keys: Keys::new(&self.namespace, "session")?,
            store: self.store,
            idle: self.idle,
            absolute: self.absolute,
        })))
    }
}

/// The sessions of an application. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    store: Store,
    keys: Keys,
    idle: Duration,
    absolute: Duration,
}

/// A session that was loaded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Session<T> {
    /// Whose it is; `None` before a login.
    pub user: Option<String>,
    /// The application's data.
    pub data: T,
    /// When it was made, since the Unix epoch.
    pub created: Duration,
    /// How long it lives on if it is not used again.
    pub left: Duration,
}

/// What became of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the session may be gone"]
pub enum Patched {
    /// The fields are written.
    Done,
    /// There is no such session; nothing was written.
    Gone,
}

/// A session in the list of its user, for a page that shows where one is logged in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Names the session without opening it; see [`Sessions::revoke_one`].
    pub handle: String,
    /// When it was made, since the Unix epoch.
    pub created: Duration,
    /// The application's fields.
    pub fields: Map<String, Json>,
}

impl Sessions {
    /// Starts with the usual settings.
    pub fn builder(store: &Store, namespace: &str) -> SessionsBuilder {
        SessionsBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            idle: Duration::from_secs(30 * 60),
            absolute: Duration::from_secs(12 * 3600),
        }
    }

    fn entity(&self, owner: &[u8; 16]) -> Result<Entity> {
        self.0.keys.entity(&hex(owner))
    }

    fn owner(&self, user: &str) -> Result<[u8; 16]> {
        if user.is_empty() || user.len() > 1024 {
            return Err(Error::config("a user's name has 1 to 1024 bytes"));
        }
        let digest = Sha256::digest(user.as_bytes());
        let mut owner = [0; 16];
        owner.copy_from_slice(&digest[..16]);
        Ok(owner)
    }

    fn namespace(&self) -> &Arc<str> {
        self.0.keys.namespace()
    }

    /// Makes a session for a user who has just logged in.
    ///
    /// The fields of `data` (a struct or a map) are stored one by one, so that they can be patched one by one.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty user, or data that has no fields or too many; otherwise those
    /// of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a session may be left that nobody has the token of, until it expires.
    pub async fn create<T: Serialize + ?Sized>(&self, user: &str, data: &T) -> Result<Token> {
        observe::operation("session.create", self.namespace(), async {
            let owner = self.owner(user)?;
            self.make(owner, user, fields(data)?).await
        })
        .await
    }

    /// Makes a session for somebody who has not logged in yet; see [`elevate`](Self::elevate).
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub async fn create_anonymous<T: Serialize + ?Sized>(&self, data: &T) -> Result<Token> {
        observe::operation("session.create", self.namespace(), async {
            self.make(rand::random(), "", fields(data)?).await
        })
        .await
    }

    async fn make(&self, owner: [u8; 16], user: &str, fields: Map<String, Json>) -> Result<Token> {
        let token = Token::new(owner);
        let (entity, name) = (self.entity(&owner)?, token.name());
        let mut call = CREATE
            .on(&entity)
            .part(&name)
            .key()
            .arg(micros(self.0.idle))
            .arg(micros(self.0.absolute))
            .arg(&name)
            .arg(user);
        for (field, value) in &fields {
            call = call.arg(format!("{OWN}{field}")).arg(value.to_string());
        }
        let _: u8 = call.idempotent().run(&self.0.store).await?;
        Ok(token)
    }

    /// Opens a session and renews its idle timeout. `None` if there is none (any more).
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the fields are no `T`; otherwise those of the store.
    pub async fn load<T: DeserializeOwned>(&self, token: &Token) -> Result<Option<Session<T>>> {
        observe::operation("session.load", self.namespace(), async {
            let Some(raw) = self.read(token).await? else {
                return Ok(None);
            };
            let data = serde_json::from_value(Json::Object(raw.fields))
                .map_err(|_| Error::codec("the session's fields are not of the expected type"))?;
            Ok(Some(Session {
                user: raw.user,
                data,
                created: raw.created,
                left: raw.left,
            }))
        })
        .await
    }

    fn touch<'a>(&self, entity: &'a Entity, name: &str) -> crate::script::Call<'a> {
        TOUCH
            .on(entity)
            .part(name)
            .key()
            .arg(micros(self.0.idle))
            .arg(micros(self.slack()))
            .arg(name)
            .idempotent()
    }

    async fn read(&self, token: &Token) -> Result<Option<Raw>> {
        let (entity, name) = (self.entity(&token.owner)?, token.name());
        let key = entity.part(&name);
        let mut pipeline = redis::Pipeline::with_capacity(2);
        pipeline.cmd("PTTL").arg(&key);
        pipeline.cmd("HGETALL").arg(&key);
        let (left, pairs): (i64, Vec<(String, String)>) = self.0.store.pipeline(&pipeline).await?;
        if let Ok(left @ 1..) = u64::try_from(left)
            && !pairs.is_empty()
        {
            let raw = Raw::read(pairs, Duration::from_millis(left))?;
            // A key never outlives its session, so one that is there is alive.
            if raw.at_its_end || raw.left + self.slack() >= self.0.idle {
                return Ok(Some(raw));
            }
        }
        // A renewal is due, or the index has to forget a session that is gone.
        let reply: Option<Vec<String>> = self.touch(&entity, &name).run(&self.0.store).await?;
        let Some(mut reply) = reply else {
            observe::event("session.gone");
            return Ok(None);
        };
        let left = reply.pop().and_then(|left| left.parse().ok()).unwrap_or(0);
        let mut flat = reply.into_iter();
        let pairs = std::iter::from_fn(|| Some((flat.next()?, flat.next()?)));
        Raw::read(pairs, Duration::from_micros(left)).map(Some)
    }

    /// A short idle timeout gets a short slack.
    fn slack(&self) -> Duration {
        SLACK.min(self.0.idle / 64)
    }

    /// Sets single fields; one whose value is `null` is removed. Renews the idle timeout.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub async fn patch<T: Serialize + ?Sized>(&self, token: &Token, data: &T) -> Result<Patched> {
        observe::operation("session.patch", self.namespace(), async {
            let fields = fields(data)?;
            let (entity, name) = (self.entity(&token.owner)?, token.name());
            let (gone, set): (Vec<_>, Vec<_>) =
                fields.into_iter().partition(|(_, value)| value.is_null());
            let mut call = self.touch(&entity, &name).arg(set.len());
            for (field, value) in set {
                call = call.arg(format!("{OWN}{field}")).arg(value.to_string());
            }
            for (field, _) in gone {
                call = call.arg(format!("{OWN}{field}"));
            }
            let reply: Option<Vec<String>> = call.run(&self.0.store).await?;
            Ok(match reply {
                Some(_) => Patched::Done,
                None => {
                    observe::event("session.gone");
                    Patched::Gone
                }
            })
        })
        .await
    }

    /// Gives the session a new token and ends the old one. `None` if there is no such session (any more).
    ///
    /// Do this on every change of privileges. The session keeps its fields and its absolute timeout.
    ///
    /// # Errors
    ///
    /// Those of the store. If it is [in doubt](Error::is_in_doubt), the old token may be worth nothing already,
    /// and the user has to log in again.
    ///
    /// # Cancel safety
    ///
    /// As for an error in doubt.
    pub async fn rotate(&self, token: &Token) -> Result<Option<Token>> {
        observe::operation("session.rotate", self.namespace(), async {
            let new = Token::new(token.owner);
            let (entity, from, to) = (self.entity(&token.owner)?, token.name(), new.name());
            let rotated: u8 = ROTATE
                .on(&entity)
                .part(&from)
                .part(&to)
                .key()
                .part("out")
                .arg(&from)
                .arg(&to)
                .run(&self.0.store)
                .await?;
            Ok((rotated == 1).then_some(new))
        })
        .await
    }

    /// Logs a user in who has an anonymous session already: its fields move to a new session under a new token,
    /// `data` is set over them, and the old session ends. Without an old session a new one is made.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the old session, the new one or both may be there; nobody has the new token.
    pub async fn elevate<T: Serialize + ?Sized>(
        &self,
        old: Option<&Token>,
        user: &str,
        data: &T,
    ) -> Result<Token> {
        observe::operation("session.elevate", self.namespace(), async {
            let owner = self.owner(user)?;
            let over = fields(data)?;
            let mut all = Map::new();
            if let Some(old) = old
                && let Some(raw) = self.read(old).await?
                // What another user left on this machine is not this one's.
                && raw.user.as_deref().is_none_or(|before| before == user)
            {
                all = raw.fields;
            }
            all.extend(over);
            check(&all)?;
            let token = self.make(owner, user, all).await?;
            if let Some(old) = old {
                self.end(&old.owner, &[old.name()]).await?;
            }
            Ok(token)
        })
        .await
    }

    /// Ends a session; `false` if there was none.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn revoke(&self, token: &Token) -> Result<bool> {
        observe::operation("session.revoke", self.namespace(), async {
            Ok(self.end(&token.owner, &[token.name()]).await? == 1)
        })
        .await
    }

    /// Ends one of a user's sessions by its [handle](SessionInfo::handle).
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for something that is no handle; otherwise those of the store.
    pub async fn revoke_one(&self, user: &str, handle: &str) -> Result<bool> {
        observe::operation("session.revoke", self.namespace(), async {
            if handle.len() != 64
                || !handle
                    .bytes()
                    .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            {
                return Err(Error::config("this is no session's handle"));
            }
            Ok(self.end(&self.owner(user)?, &[handle.to_owned()]).await? == 1)
        })
        .await
    }

    /// Ends all of a user's sessions; how many there were. When it returns, none that was made before the call
    /// lives.
    ///
    /// # Errors
    ///
    /// Those of the store; some sessions may have ended.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some sessions may have ended.
    pub async fn revoke_all(&self, user: &str) -> Result<u64> {
        observe::operation("session.revoke_all", self.namespace(), async {
            let owner = self.owner(user)?;
            let names = self.roll(&owner, NOTE).await?;
            let mut ended = 0;
            for piece in names.chunks(PIECE) {
                ended += self.end(&owner, piece).await?;
            }
            Ok(ended)
        })
        .await
    }

    /// A user's live sessions.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn list(&self, user: &str) -> Result<Vec<SessionInfo>> {
        observe::operation("session.list", self.namespace(), async {
            let owner = self.owner(user)?;
            let entity = self.entity(&owner)?;
            let names = self.roll(&owner, Duration::ZERO).await?;
            if names.is_empty() {
                return Ok(Vec::new());
            }
            let mut pipeline = redis::pipe();
            for name in &names {
                pipeline.cmd("HGETALL").arg(entity.part(name));
            }
            let sessions: Vec<HashMap<String, String>> = self.0.store.pipeline(&pipeline).await?;
            names
                .into_iter()
                .zip(sessions)
                .filter(|(_, fields)| !fields.is_empty())
                .map(|(handle, fields)| {
                    let raw = Raw::read(fields, Duration::ZERO)?;
                    Ok(SessionInfo {
                        handle,
                        created: raw.created,
                        fields: raw.fields,
                    })
                })
                .collect()
        })
        .await
    }

    async fn roll(&self, owner: &[u8; 16], note: Duration) -> Result<Vec<String>> {
        ROLL.on(&self.entity(owner)?)
            .key()
            .part("out")
            .arg(note.as_millis() as u64)
            .idempotent()
            .run(&self.0.store)
            .await
    }

    async fn end(&self, owner: &[u8; 16], names: &[String]) -> Result<u64> {
        let entity = self.entity(owner)?;
        let mut call = REVOKE.on(&entity).key();
        for name in names {
            call = call.part(name).arg(name);
        }
        call.idempotent().run(&self.0.store).await
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("namespace", self.namespace())
            .field("idle", &self.0.idle)
            .field("absolute", &self.0.absolute)
            .finish_non_exhaustive()
    }
}

/// A session's hash, taken apart.
struct Raw {
    user: Option<String>,
    created: Duration,
    left: Duration,
    /// It ends at its absolute timeout, so that no use can renew it further.
    at_its_end: bool,
    fields: Map<String, Json>,
}

impl Raw {
    fn read(pairs: impl IntoIterator<Item = (String, String)>, left: Duration) -> Result<Self> {
        let mut raw = Self {
            user: None,
            created: Duration::ZERO,
            left,
            at_its_end: false,
            fields: Map::new(),
        };
        let (mut ends, mut until) = (None, None);
        for (field, value) in pairs {
            if let Some(own) = field.strip_prefix(OWN) {
                let value = serde_json::from_str(&value)
                    .map_err(|_| Error::codec("a field of the session cannot be read"))?;
                raw.fields.insert(own.to_owned(), value);
            } else if field == "user" && !value.is_empty() {
                raw.user = Some(value);
            } else if field == "created" {
                raw.created = Duration::from_micros(value.parse().unwrap_or(0));
            } else if field == "ends" {
                ends = Some(value);
            } else if field == "until" {
                until = Some(value);
            }
        }
        raw.at_its_end = ends.is_some() && ends == until;
        Ok(raw)
    }
}

fn fields<T: Serialize + ?Sized>(data: &T) -> Result<Map<String, Json>> {
    let fields = match serde_json::to_value(data) {
        Ok(Json::Object(fields)) => fields,
        Ok(Json::Null) => Map::new(),
        Ok(_) => return Err(Error::config("a session's data is a struct or a map")),
        Err(error) => return Err(Error::codec("the value cannot be encoded").with_source(error)),
    };
    check(&fields)?;
    Ok(fields)
}

fn check(fields: &Map<String, Json>) -> Result<()> {
    if fields.len() > MAX_FIELDS {
        return Err(Error::config(format!(
            "a session has at most {MAX_FIELDS} fields"
        )));
    }
    let bytes: usize = fields
        .iter()
        .map(|(field, value)| field.len() + value.to_string().len())
        .sum();
    if bytes > MAX_BYTES {
        return Err(Error::config(format!(
            "a session's fields have at most {MAX_BYTES} bytes"
        )));
    }
    Ok(())
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}
