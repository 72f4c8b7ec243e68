use redstart::{
    Store,
    key::{Key, Keys},
    redis,
};
use sha2::{Digest as _, Sha256};
use tower_sessions_core::{
    session::{Id, Record},
    session_store::{Error, Result},
};

/// A session store for [`tower-sessions`](tower_sessions_core), on a Redstart [`Store`].
///
/// For applications that use tower-sessions already. A new application finds more in the
/// [`CookieLayer`](crate::CookieLayer): fields that are patched one by one, an absolute timeout, logout everywhere.
///
/// # Promises
///
/// - The key is made from the SHA-256 of the session's id: a dump of the server opens no session.
/// - `save` never revives: a session that was deleted in the meantime, by a logout in another request, stays deleted.
/// - The server ends a session at its expiry date, by its own clock. Nothing has to be swept.
///
/// # Keys
///
/// `<namespace>:tower_session.<name>:{<digest>}`, strings with a TTL.
///
/// # Round trips
///
/// One for each operation.
///
/// # While the store is down
///
/// Every operation fails, and tower-sessions answers 500.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use redstart_tower::SessionStore;
/// use tower_sessions_core::Session;
///
/// let store = redstart::Store::connect("memory://").await?;
/// let sessions = Arc::new(SessionStore::new(&store, "shop", "web")?);
///
/// let session = Session::new(None, sessions.clone(), None);
/// session.insert("cart", vec![7]).await?;
/// session.save().await?;
///
/// let again = Session::new(session.id(), sessions, None);
/// assert_eq!(again.get::<Vec<u32>>("cart").await?, Some(vec![7]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SessionStore {
    store: Store,
    keys: Keys,
}

/// How many ids `create` tries. With 128 random bits the first one is always free.
const DRAWS: usize = 5;

impl SessionStore {
    /// The sessions of this name.
    ///
    /// # Errors
    ///
    /// [`is_config`](redstart::Error::is_config) for a bad namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> redstart::Result<Self> {
        Ok(Self {
            store: store.clone(),
            keys: Keys::named(namespace, "tower_session", name)?,
        })
    }

    fn key(&self, id: &Id) -> Result<Key> {
        let digest = Sha256::digest(id.0.to_le_bytes());
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let entity = self.keys.entity(&name).map_err(backend)?;
        Ok(entity.key().clone())
    }

    /// Writes a record if the condition holds, `NX` or `XX`; returns whether it did.
    async fn write(&self, record: &Record, condition: &str) -> Result<bool> {
        // The id is not stored: it is the secret.
        let value = serde_json::to_vec(&(&record.data, &record.expiry_date))
            .map_err(|error| Error::Encode(error.to_string()))?;
        let millis = record.expiry_date.unix_timestamp_nanos() / 1_000_000;
        let mut set = redis::cmd("SET");
        set.arg(self.key(&record.id)?)
            .arg(value)
            .arg(condition)
            .arg("PXAT")
            .arg(i64::try_from(millis.max(1)).unwrap_or(i64::MAX));
        let reply: Option<String> = self.store.query(&set).await.map_err(backend)?;
        Ok(reply.is_some())
    }
}

fn backend(error: redstart::Error) -> Error {
    Error::Backend(error.to_string())
}

#[async_trait::async_trait]
impl tower_sessions_core::SessionStore for SessionStore {
    async fn create(&self, record: &mut Record) -> Result<()> {
        for _ in 0..DRAWS {
            if self.write(record, "NX").await? {
                return Ok(());
            }
            record.id = Id::default();
        }
        Err(Error::Backend("no free session id found".into()))
    }

    async fn save(&self, record: &Record) -> Result<()> {
        if !self.write(record, "XX").await? {
            tracing::debug!("a session ended before it could be saved");
        }
        Ok(())
    }

    async fn load(&self, id: &Id) -> Result<Option<Record>> {
        let get = redis::cmd("GET").arg(self.key(id)?).to_owned();
        let value: Option<Vec<u8>> = self.store.query(&get).await.map_err(backend)?;
        let Some(value) = value else { return Ok(None) };
        let (data, expiry_date) =
            serde_json::from_slice(&value).map_err(|error| Error::Decode(error.to_string()))?;
        Ok(Some(Record {
            id: *id,
            data,
            expiry_date,
        }))
    }

    async fn delete(&self, id: &Id) -> Result<()> {
        let del = redis::cmd("DEL").arg(self.key(id)?).to_owned();
        self.store.query::<()>(&del).await.map_err(backend)
    }
}
