mod index;
mod outcome;

pub use outcome::{Patched, Rotated, Session, SessionInfo};

use std::{fmt, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value as Json};
use sha2::{Digest as _, Sha256};

use super::{
    builder::SessionsBuilder,
    login::Login,
    record::{self, Fit, PREFIX, Record},
    token::{Token, hex},
};
use crate::{
    duration::{micros, millis},
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::{Call, Script},
    store::Store,
};

/// A script after the fragments that it uses.
macro_rules! session_script {
    ($name:literal, $($file:literal),+) => {
        Script::new($name, concat!(include_str!("../script/now.lua"), $("\n", include_str!($file)),+))
    };
}

pub(super) static ACCOUNT: Script =
    Script::new("session.account", include_str!("session/account.lua"));
pub(super) static CREATE: Script =
    session_script!("session.create", "session/index.lua", "session/create.lua");
pub(super) static LIST: Script =
    session_script!("session.list", "session/index.lua", "session/list.lua");
pub(super) static LOAD: Script = session_script!(
    "session.load",
    "session/index.lua",
    "session/open.lua",
    "session/load.lua"
);
pub(super) static LOGIN: Script = session_script!(
    "session.login",
    "session/index.lua",
    "session/open.lua",
    "session/login.lua"
);
pub(super) static PATCH: Script = session_script!(
    "session.patch",
    "session/index.lua",
    "session/open.lua",
    "session/patch.lua"
);
pub(super) static REVOKE: Script = session_script!(
    "session.revoke",
    "session/index.lua",
    "session/open.lua",
    "session/revoke.lua"
);
pub(super) static ROTATE: Script = session_script!(
    "session.rotate",
    "session/index.lua",
    "session/open.lua",
    "session/rotate.lua"
);

/// A renewal this soon after the last is left out.
const SLACK: Duration = Duration::from_secs(1);
/// An account outlives its sessions by this: it is found before the session is made.
const MARGIN: Duration = Duration::from_secs(60);

/// Sessions with an idle and an absolute timeout, whose tokens the store never sees. Cheap to clone.
///
/// # Promises
///
/// - A session ends when it was not used for the idle timeout, and at the latest at the absolute one, however often it
///   is used. Each use renews the idle timeout; a renewal within a second of the last one is left out.
/// - A token has 256 random bits. The store keeps only their SHA-256: a dump of the server opens no session. A token
///   reveals nothing about its user.
/// - [`patch`](Self::patch) changes single fields and never revives a session: after a logout it does nothing.
/// - [`rotate`](Self::rotate) and [`elevate`](Self::elevate) give a session a new token. Requests that were sent with the
///   old one before the new one arrived still find the session for a short
///   [grace](SessionsBuilder::rotation_grace), but none of the rights of the elevation.
/// - [`login`](Self::login) makes a new session under a new token and ends the old one at once: a token that an attacker
///   planted before the login is worth nothing after it.
/// - The index of a user contains the live sessions and no others, and outlives the longest of them, whatever the
///   settings of the processes that share it. [`revoke_all`](Self::revoke_all) ends all of them.
///
/// # Limits
///
/// It does not check who the user is, nor where a request comes from. A session has at most 1,000 fields and 1 MiB.
/// The store must not evict keys (`maxmemory-policy noeviction` or a `volatile-*` policy with room to spare): an evicted
/// session is a logout, and an evicted index hides sessions from a logout everywhere. So does a failover that loses the
/// last writes, for users whose first session was among them.
///
/// # Keys
///
/// | key | type | content |
/// |---|---|---|
/// | `<namespace>:session.<name>:{user.<digest>}` | string | the account of a user: 128 random bits that stand for the user in the other keys and in tokens |
/// | `<namespace>:session.<name>:{<account>}` | sorted set | the ids of the sessions of an account by their ends |
/// | `<namespace>:session.<name>:{<account>}:<id>` | hash | one session |
///
/// An anonymous session has an account of its own and no index. All keys expire.
///
/// # Round trips
///
/// One for each operation, O(fields). `load` takes a second one to renew the idle timeout, at most once per second and
/// session. `create`, `list`, `revoke_one` and `revoke_all` also look up the user's account; `login` also reads and ends
/// the session that it replaces, and writes what was patched in it meanwhile.
///
/// # While the store is down
///
/// Everything fails: nobody is logged in unless the store says so.
///
/// # Metrics
///
/// Operations `session.create`, `session.login`, `session.load`, `session.patch`, `session.rotate`, `session.elevate`,
/// `session.revoke`, `session.revoke_all`, `session.list`; events `session.gone`, `session.malformed_token`,
/// `session.fields_dropped`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, sessions::{Patched, Sessions}};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Default)]
/// struct Data { theme: String, cart: Vec<u32> }
///
/// let store = Store::connect("memory://").await?;
/// let sessions = Sessions::builder(&store, "shop", "web").build()?;
///
/// let token = sessions.create("ann", &Data { theme: "dark".into(), cart: vec![] }).await?;
/// assert_eq!(sessions.patch(&token, &serde_json::json!({ "cart": [7] })).await?, Patched::Done);
/// let session = sessions.load::<Data>(&token).await?.unwrap();
/// assert_eq!((session.user.as_deref(), session.data.cart), (Some("ann"), vec![7]));
///
/// assert_eq!(sessions.revoke_all("ann").await?, 1);
/// assert_eq!(sessions.patch(&token, &serde_json::json!({ "cart": [8] })).await?, Patched::Gone);
/// assert!(sessions.load::<Data>(&token).await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sessions(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) keys: Keys,
    pub(super) idle: Duration,
    pub(super) absolute: Duration,
    pub(super) remember: Duration,
    pub(super) rotation_grace: Duration,
}

impl Sessions {
    /// Starts with the usual settings. `name` tells several kinds of sessions of one application apart.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> SessionsBuilder {
        SessionsBuilder::new(store, namespace, name)
    }

    /// Sessions with the usual settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// How long a [remembered](Login::remember) session lives.
    pub fn remember(&self) -> Duration {
        self.0.remember
    }

    fn namespace(&self) -> &Arc<str> {
        self.0.keys.namespace()
    }

    fn entity(&self, account: &[u8; 16]) -> Result<Entity> {
        self.0.keys.entity(&hex(account))
    }

    /// The key under which the account of a user is stored.
    fn user(&self, user: &str) -> Result<Entity> {
        if user.is_empty() || user.len() > 1024 {
            return Err(Error::config("a user name must have 1 to 1024 bytes"));
        }
        let digest = hex(&Sha256::digest(user.as_bytes()));
        self.0.keys.entity(&format!("user.{digest}"))
    }

    /// The account of a user, for a session that lives `lifetime` at most.
    async fn account(&self, user: &str, lifetime: Duration) -> Result<[u8; 16]> {
        let entity = self.user(user)?;
        let account: String = ACCOUNT
            .on(&entity)
            .key()
            .arg(hex(&crate::chance::random::<[u8; 16]>()))
            .arg(millis(lifetime + MARGIN))
            .idempotent()
            .run(&self.0.store)
            .await?;
        unhex(&account)
    }

    /// The account of a user that may have sessions.
    async fn known_account(&self, user: &str) -> Result<Option<[u8; 16]>> {
        let entity = self.user(user)?;
        let get = redis::cmd("GET").arg(entity.key()).to_owned();
        let account: Option<String> = self.0.store.query(&get).await?;
        account.as_deref().map(unhex).transpose()
    }

    /// Makes a session for a user who has just logged in: [`login`](Self::login) with the usual settings.
    ///
    /// The fields of `data` (a struct or a map; `()` for none) are stored one by one, so that they can be patched one
    /// by one.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty user, or for data that is no struct or map or is too large;
    /// otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// If dropped before completion, a session may exist whose token nobody has, until it expires.
    pub async fn create<T: Serialize + ?Sized>(&self, user: &str, data: &T) -> Result<Token> {
        observe::operation("session.create", self.namespace(), async {
            let fields = record::fields(data)?;
            let account = self.account(user, self.0.absolute).await?;
            self.make(account, &Login::new(user), fields).await
        })
        .await
    }

    /// Makes a session for a visitor who has not logged in yet.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    ///
    /// # Cancel safety
    ///
    /// As for [`create`](Self::create).
    pub async fn create_anonymous<T: Serialize + ?Sized>(&self, data: &T) -> Result<Token> {
        observe::operation("session.create", self.namespace(), async {
            let fields = record::fields(data)?;
            self.make(crate::chance::random(), &Login::new(""), fields)
                .await
        })
        .await
    }

    /// Logs a user in: makes a session under a new token, and ends the one that it [replaces](Login::replacing).
    ///
    /// The fields of the replaced session move to the new one if it was anonymous or the same user's; `data` is set over
    /// them. Old fields that do not fit beside `data` are dropped: they must not keep a user from logging in. A
    /// [`patch`](Self::patch) of the old session during the login is in the new one too, or finds the old one gone; it is
    /// lost only if the connection breaks when the old session ends.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    ///
    /// # Cancel safety
    ///
    /// If dropped before completion, the old session, the new one or both may exist; nobody has the new token.
    pub async fn login<T: Serialize + ?Sized>(
        &self,
        login: impl Into<Login>,
        data: &T,
    ) -> Result<Token> {
        let login = login.into();
        observe::operation("session.login", self.namespace(), async {
            let mut fields = record::fields(data)?;
            let lifetime = match login.remember {
                true => self.0.remember,
                false => self.0.absolute,
            };
            let account = self.account(&login.user, lifetime).await?;
            let mut moved = None;
            if let Some(old) = &login.replaces
                && let Some((before, Fit::Current)) = self.read(old).await?
                // What another user left on this machine does not belong to this one.
                && before.user.as_ref().is_none_or(|user| *user == login.user)
            {
                let mut all = before.fields.clone();
                all.extend(fields.clone());
                match record::fits(&all) {
                    true => {
                        moved = Some((before.fields, fields));
                        fields = all;
                    }
                    false => observe::event("session.fields_dropped"),
                }
            }
            let token = self.make(account, &login, fields).await?;
            match (&login.replaces, moved) {
                (Some(old), Some((before, data))) => {
                    self.end_and_carry_over(old, &before, &data, &token).await?;
                }
                (Some(old), None) => drop(self.end_by_token(old).await?),
                (None, _) => {}
            }
            Ok(token)
        })
        .await
    }

    /// Ends the session that a login replaces. What was patched in it after its fields were read (`before`) is written
    /// into the new session too, except for the fields that the login sets.
    async fn end_and_carry_over(
        &self,
        old: &Token,
        before: &Map<String, Json>,
        data: &Map<String, Json>,
        new: &Token,
    ) -> Result<()> {
        let (entity, id) = (self.entity(&old.account)?, old.handle());
        let call = LOGIN
            .on(&entity)
            .part(&id)
            .key()
            .arg(&id)
            .arg(old.digest())
            .idempotent();
        // Gone: it ended otherwise, or the reply of a first try was lost.
        let Some(flat) = call.run::<Option<Vec<String>>>(&self.0.store).await? else {
            return Ok(());
        };
        let mut flat = flat.into_iter();
        let pairs = std::iter::from_fn(|| Some((flat.next()?, flat.next()?)));
        let after = Record::read(pairs, Duration::ZERO)?.fields;
        let mut late = record::difference(before, &after);
        late.retain(|field, _| !data.contains_key(field));
        if !late.is_empty() && self.write(new, late).await? == Patched::Full {
            observe::event("session.fields_dropped");
        }
        Ok(())
    }

    async fn make(
        &self,
        account: [u8; 16],
        login: &Login,
        fields: Map<String, Json>,
    ) -> Result<Token> {
        let token = Token::new(account);
        let (entity, id) = (self.entity(&account)?, token.handle());
        let (idle, absolute) = match login.remember {
            true => (self.0.remember, self.0.remember),
            false => (self.0.idle, self.0.absolute),
        };
        let mut call = CREATE
            .on(&entity)
            .part(&id)
            .key()
            .arg(micros(idle))
            .arg(micros(absolute))
            .arg(&id)
            .arg(&login.user)
            .arg(token.digest())
            .arg(&login.label)
            .arg(if login.remember { "1" } else { "" })
            .arg(format!("{} {}", fields.len(), record::bytes(&fields)));
        for (field, value) in &fields {
            call = call.arg(format!("{PREFIX}{field}")).arg(value.to_string());
        }
        let _: u8 = call.idempotent().run(&self.0.store).await?;
        Ok(token)
    }

    /// Opens a session and renews its idle timeout. `None` if it has ended or never existed.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the fields are not a `T`; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// If dropped before completion, the idle timeout may or may not have been renewed.
    pub async fn load<T: DeserializeOwned>(&self, token: &Token) -> Result<Option<Session<T>>> {
        observe::operation("session.load", self.namespace(), async {
            let Some((record, fit)) = self.read(token).await? else {
                observe::event("session.gone");
                return Ok(None);
            };
            let data = serde_json::from_value(Json::Object(record.fields))
                .map_err(|_| Error::codec("the session's fields are not of the expected type"))?;
            let elevated = record.elevated.saturating_sub(record.now);
            Ok(Some(Session {
                user: record.user,
                data,
                created: record.created,
                left: record.left,
                elevated: (fit == Fit::Current && !elevated.is_zero()).then_some(elevated),
                remembered: record.remembered,
            }))
        })
        .await
    }

    /// Starts a script that opens the session of a token: its keys, and its first five arguments.
    fn opening<'a>(
        &self,
        script: &'static Script,
        entity: &'a Entity,
        id: &str,
        token: &Token,
    ) -> Call<'a> {
        script
            .on(entity)
            .part(id)
            .key()
            .arg(micros(self.0.idle))
            .arg(micros(self.0.remember))
            .arg(micros(self.slack(self.0.idle)))
            .arg(id)
            .arg(token.digest())
            .idempotent()
    }

    /// Reads a session, and renews its idle timeout if that is due.
    async fn read(&self, token: &Token) -> Result<Option<(Record, Fit)>> {
        let (entity, id, digest) = (self.entity(&token.account)?, token.handle(), token.digest());
        let key = entity.part(&id);
        let mut pipeline = redis::Pipeline::with_capacity(2);
        pipeline.cmd("PTTL").arg(&key);
        pipeline.cmd("HGETALL").arg(&key);
        let (left, pairs): (i64, Vec<(String, String)>) = self.0.store.pipeline(&pipeline).await?;
        let mut read = None;
        // A key never outlives its session, so one that exists is alive.
        if let Ok(left @ 1..) = u64::try_from(left)
            && !pairs.is_empty()
        {
            // Milliseconds are rounded: rather a little too late than within a grace that is over.
            let record = Record::read(pairs, Duration::from_millis(left - 1))?;
            let fit = record.fit(&digest);
            if fit == Fit::Not {
                return Ok(None);
            }
            if record.now.saturating_sub(record.seen) <= self.slack(self.0.idle) {
                return Ok(Some((record, fit)));
            }
            read = Some((record, fit));
        }
        // A renewal is due, or the index still has a session that is gone.
        let call = self.opening(&LOAD, &entity, &id, token);
        let Some(left) = call.run::<Option<u64>>(&self.0.store).await? else {
            return Ok(None);
        };
        let left = Duration::from_micros(left);
        if let Some((mut record, fit)) = read {
            record.left = left;
            return Ok(Some((record, fit)));
        }
        // It was read in its last millisecond, and lives on.
        let mut again = redis::cmd("HGETALL");
        let pairs: Vec<(String, String)> = self.0.store.query(again.arg(&key)).await?;
        let record = Record::read(pairs, left)?;
        let fit = record.fit(&digest);
        Ok((fit != Fit::Not).then_some((record, fit)))
    }

    /// A short idle timeout gets a short slack.
    fn slack(&self, idle: Duration) -> Duration {
        SLACK.min(idle / 64)
    }

    /// Sets single fields; a field whose value is `null` is removed. Renews the idle timeout.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    ///
    /// # Cancel safety
    ///
    /// If dropped before completion, all of the fields or none of them are written.
    pub async fn patch<T: Serialize + ?Sized>(&self, token: &Token, data: &T) -> Result<Patched> {
        observe::operation("session.patch", self.namespace(), async {
            let patched = self.write(token, record::fields(data)?).await?;
            if patched == Patched::Gone {
                observe::event("session.gone");
            }
            Ok(patched)
        })
        .await
    }

    /// Sets fields, and removes those that are `null`.
    async fn write(&self, token: &Token, fields: Map<String, Json>) -> Result<Patched> {
        let (entity, id) = (self.entity(&token.account)?, token.handle());
        let (remove, set): (Vec<_>, Vec<_>) =
            fields.into_iter().partition(|(_, value)| value.is_null());
        let mut call = self
            .opening(&PATCH, &entity, &id, token)
            .arg(record::MAX_FIELDS)
            .arg(record::MAX_BYTES)
            .arg(set.len());
        for (field, value) in set {
            call = call.arg(format!("{PREFIX}{field}")).arg(value.to_string());
        }
        for (field, _) in remove {
            call = call.arg(format!("{PREFIX}{field}"));
        }
        Ok(match call.run::<u8>(&self.0.store).await? {
            1 => Patched::Done,
            2 => Patched::Full,
            _ => Patched::Gone,
        })
    }

    /// Gives the session a new token. The old one opens it for a short [grace](SessionsBuilder::rotation_grace), so that
    /// requests that are under way are not logged out.
    ///
    /// The session keeps its fields, its handle and its absolute timeout.
    ///
    /// # Errors
    ///
    /// Those of the store. If it is [in doubt](Error::is_in_doubt), the old token may be worth nothing after the grace,
    /// and the user has to log in again.
    ///
    /// # Cancel safety
    ///
    /// If dropped before completion: as for an error in doubt.
    pub async fn rotate(&self, token: &Token) -> Result<Rotated> {
        observe::operation("session.rotate", self.namespace(), self.turn(token, None)).await
    }

    /// Step-up: notes that the user has proven again who they are, for an operation that asks for it, and gives the
    /// session a new token. [`Session::elevated`] says for how long that holds; the old token does not have it.
    ///
    /// # Errors
    ///
    /// As for [`rotate`](Self::rotate).
    ///
    /// # Cancel safety
    ///
    /// As for [`rotate`](Self::rotate).
    pub async fn elevate(&self, token: &Token, lasting: Duration) -> Result<Rotated> {
        let turn = self.turn(token, Some(lasting));
        observe::operation("session.elevate", self.namespace(), turn).await
    }

    async fn turn(&self, token: &Token, elevated: Option<Duration>) -> Result<Rotated> {
        let new = token.rotated();
        let (entity, id) = (self.entity(&token.account)?, token.handle());
        let call = ROTATE
            .on(&entity)
            .part(&id)
            .key()
            .arg(&id)
            .arg(token.digest())
            .arg(new.digest())
            .arg(micros(self.0.rotation_grace))
            .arg(elevated.map_or_else(String::new, |time| micros(time).to_string()));
        Ok(match call.idempotent().run::<u8>(&self.0.store).await? {
            1 => Rotated::To(new),
            2 => Rotated::Already,
            _ => {
                observe::event("session.gone");
                Rotated::Gone
            }
        })
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

fn unhex(text: &str) -> Result<[u8; 16]> {
    u128::from_str_radix(text, 16)
        .map(u128::to_be_bytes)
        .map_err(|_| Error::codec("malformed user account"))
}
