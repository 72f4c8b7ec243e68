use redstart::locking::{FenceToken, FencedValues, FencedWrite, Mutex};
use redstart_testkit::{Backend, matrix};
use tokio::task::JoinSet;

use crate::connect;

matrix! {
    async fn a_lower_token_is_refused_and_changes_nothing(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fenced = FencedValues::new(&store, backend.namespace(), "values")?;
        let token = |n| FenceToken::new(n).expect("a token");
        assert_eq!(fenced.get("x").await?, None);
        assert_eq!(fenced.highest("x").await?, None);
        assert_eq!(fenced.set("x", "five", token(5)).await?, FencedWrite::Done);
        assert_eq!(fenced.set("x", "again", token(5)).await?, FencedWrite::Done);
        let stale = FencedWrite::Stale { highest: token(5) };
        assert_eq!(fenced.set("x", "four", token(4)).await?, stale);
        assert_eq!(fenced.delete("x", token(4)).await?, stale);
        assert_eq!(fenced.admit("x", token(4)).await?, stale);
        assert_eq!(fenced.get("x").await?.as_deref(), Some(&b"again"[..]));

        // The highest token outlives the value, and can be raised without one.
        assert_eq!(fenced.delete("x", token(6)).await?, FencedWrite::Done);
        assert_eq!(fenced.get("x").await?, None);
        assert_eq!(fenced.set("x", "five", token(5)).await?, FencedWrite::Stale { highest: token(6) });
        assert_eq!(fenced.admit("x", token(1_700_000_000_000_001)).await?, FencedWrite::Done);
        assert_eq!(
            fenced.set("x", "late", token(1_700_000_000_000_000)).await?,
            FencedWrite::Stale { highest: token(1_700_000_000_000_001) }
        );
        assert_eq!(fenced.highest("x").await?, Some(token(1_700_000_000_000_001)));
        assert!(fenced.set("", "v", token(1)).await.unwrap_err().is_config());
        Ok(())
    }

    /// A token of another length, of another program, or from a server whose clock is ahead.
    async fn tokens_rise_whatever_the_counter_holds(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::new(&store, backend.namespace(), "m")?;
        let counter = format!("{}:mutex:{{m}}:fence", backend.namespace());
        let now = u64::try_from(store.time().await?.as_micros())?;
        let ahead = now + 3_600_000_000;
        let highest = 9_007_199_254_740_000;
        // Not from here; beyond what a number of Lua holds.
        let foreign = 99_999_999_999_999_999;
        for (held, least, most) in [
            ("5".to_owned(), now, ahead),
            ("0".repeat(17), now, ahead),
            ("x".repeat(16), now, ahead),
            ((now - 1).to_string(), now, ahead),
            (ahead.to_string(), ahead + 1, ahead + 1),
            (highest.to_string(), highest + 1, highest + 1),
            (foreign.to_string(), foreign + 1, foreign + 1),
        ] {
            store.query::<()>(redis::cmd("SET").arg(&counter).arg(&held)).await?;
            let guard = mutex.try_lock().await?.expect("it is free");
            let token = guard.fence().get();
            assert!((least..=most).contains(&token), "{held}: {token}");
            assert_eq!(store.query::<u64>(redis::cmd("GET").arg(&counter)).await?, token);
            guard.release().await?;
            let guard = mutex.try_lock().await?.expect("it is free");
            assert!(guard.fence().get() > token, "{held}");
            guard.release().await?;
        }
        Ok(())
    }

    async fn of_many_concurrent_writers_the_highest_token_wins(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fenced = FencedValues::new(&store, backend.namespace(), "values")?;
        let mut tasks = JoinSet::new();
        for n in 1..=50u64 {
            let fenced = fenced.clone();
            // In an order unrelated to the tokens.
            let n = n * 37 % 51;
            tasks.spawn(async move {
                fenced.set("x", n.to_string(), FenceToken::new(n)?).await
            });
        }
        while let Some(task) = tasks.join_next().await {
            let _ = task??;
        }
        assert_eq!(fenced.get("x").await?.as_deref(), Some(&b"50"[..]));
        Ok(())
    }
}
