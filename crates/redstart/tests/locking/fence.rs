use redstart::locking::{FenceToken, FencedStore, fence::Write};
use redstart_testkit::{Backend, matrix};
use tokio::task::JoinSet;

use crate::connect;

matrix! {
    async fn a_lower_token_is_refused_and_changes_nothing(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fenced = FencedStore::new(&store, backend.namespace())?;
        let token = |n| FenceToken::new(n).expect("a token");
        assert_eq!(fenced.get("x").await?, None);
        assert_eq!(fenced.highest("x").await?, None);
        assert_eq!(fenced.set("x", "five", token(5)).await?, Write::Done);
        assert_eq!(fenced.set("x", "again", token(5)).await?, Write::Done);
        let stale = Write::Stale { highest: token(5) };
        assert_eq!(fenced.set("x", "four", token(4)).await?, stale);
        assert_eq!(fenced.delete("x", token(4)).await?, stale);
        assert_eq!(fenced.admit("x", token(4)).await?, stale);
        assert_eq!(fenced.get("x").await?.as_deref(), Some(&b"again"[..]));

        // The mark outlives the value, and can be raised without one.
        assert_eq!(fenced.delete("x", token(6)).await?, Write::Done);
        assert_eq!(fenced.get("x").await?, None);
        assert_eq!(fenced.set("x", "five", token(5)).await?, Write::Stale { highest: token(6) });
        assert_eq!(fenced.admit("x", token(1_700_000_000_000_001)).await?, Write::Done);
        assert_eq!(
            fenced.set("x", "late", token(1_700_000_000_000_000)).await?,
            Write::Stale { highest: token(1_700_000_000_000_001) }
        );
        assert_eq!(fenced.highest("x").await?, Some(token(1_700_000_000_000_001)));
        assert!(fenced.set("", "v", token(1)).await.unwrap_err().is_config());
        Ok(())
    }

    async fn of_many_writers_at_once_the_highest_token_stays(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fenced = FencedStore::new(&store, backend.namespace())?;
        let mut tasks = JoinSet::new();
        for n in 1..=50u64 {
            let fenced = fenced.clone();
            // An order that has nothing to do with the tokens'.
            let n = n * 37 % 51;
            tasks.spawn(async move {
                fenced.set("x", n.to_string(), FenceToken::new(n)?).await
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        assert_eq!(fenced.get("x").await?.as_deref(), Some(&b"50"[..]));
        Ok(())
    }
}
