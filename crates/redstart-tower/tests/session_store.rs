//! The store for tower-sessions.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use redstart::Store;
use redstart_testkit::{Backend, matrix};
use redstart_tower::SessionStore;
use serde_json::json;
use tower_sessions_core::{Session, SessionStore as _, session::Id};

matrix! {
    async fn a_tower_session_is_saved_loaded_cycled_and_never_revived(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let sessions = Arc::new(SessionStore::new(&store, backend.namespace(), "web")?);
        let session = Session::new(None, sessions.clone(), None);
        session.insert("n", 1).await?;
        session.save().await?;
        let id = session.id().context("an id")?;
        let again = Session::new(Some(id), sessions.clone(), None);
        assert_eq!(again.get::<u32>("n").await?, Some(1));
        again.insert("n", 2).await?;
        again.save().await?;

        // The key has a TTL, and nothing in the store reveals the id.
        let keys = store.scan(&format!("{}:*", backend.namespace())).await?;
        assert_eq!(keys.len(), 1);
        let ttl: i64 = store.query(redstart::redis::cmd("PTTL").arg(&keys[0])).await?;
        assert!(ttl > 0);
        let value: String = store.query(redstart::redis::cmd("GET").arg(&keys[0])).await?;
        for secret in [id.to_string(), id.0.to_string()] {
            assert!(!keys[0].contains(&secret) && !value.contains(&secret));
        }

        // A login cycles the id.
        again.cycle_id().await?;
        again.save().await?;
        let new = again.id().context("an id")?;
        assert_ne!(new, id);
        assert!(sessions.load(&id).await?.is_none());
        let mut record = sessions.load(&new).await?.context("the session")?;
        assert_eq!(record.data["n"], 2);

        // A request that was under way when the session ended saves nothing.
        sessions.delete(&new).await?;
        record.data.insert("late".into(), json!(true));
        sessions.save(&record).await?;
        assert!(sessions.load(&new).await?.is_none());
        assert!(sessions.load(&Id(0)).await?.is_none());

        // An id that is taken is not overwritten.
        let mut first = record.clone();
        sessions.create(&mut first).await?;
        let mut second = record.clone();
        sessions.create(&mut second).await?;
        assert_ne!(first.id, second.id);
        assert!(SessionStore::new(&store, "a b", "web").is_err());
        Ok(())
    }
}
