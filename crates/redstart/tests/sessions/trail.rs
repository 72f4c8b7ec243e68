use std::time::Duration;

use anyhow::Result;
use redstart::{Store, sessions::Trail};
use redstart_testkit::{Backend, eventually, matrix};

matrix! {
    async fn a_trail_keeps_the_last_pages_of_a_visit_and_ends_with_it(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let gap = if backend.is_embedded() { Duration::from_secs(60) } else { Duration::from_millis(400) };
        let trail = Trail::builder(&store, backend.namespace(), "pages").pages(5).gap(gap).build()?;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..50 {
            let trail = trail.clone();
            tasks.spawn(async move { trail.visit("ann", &format!("/{n}")).await });
        }
        for length in tasks.join_all().await {
            assert!((1..=5).contains(&length?));
        }
        trail.visit("ann", "/last").await?;
        let pages = trail.pages("ann").await?;
        assert_eq!((pages.len(), pages.last().map(String::as_str)), (5, Some("/last")));
        assert_eq!(trail.pages("bob").await?, Vec::<String>::new());
        if backend.is_embedded() {
            store.advance(gap - Duration::from_secs(1))?;
            trail.visit("ann", "/again").await?;
            store.advance(gap - Duration::from_secs(1))?;
            assert_eq!(trail.pages("ann").await?.len(), 5, "each page restarts the minute");
            store.advance(Duration::from_secs(2))?;
        }
        assert!(eventually(Duration::from_secs(20), async || trail.pages("ann").await.is_ok_and(|p| p.is_empty())).await);
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?, Vec::<String>::new());
        Ok(())
    }

    async fn bad_trails_are_refused(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let builder = || Trail::builder(&store, backend.namespace(), "pages");
        assert!(builder().pages(0).build().unwrap_err().is_config());
        assert!(builder().gap(Duration::ZERO).build().unwrap_err().is_config());
        assert!(Trail::new(&store, "a b", "pages").unwrap_err().is_config());
        let trail = builder().gap(Duration::MAX).build()?;
        assert_eq!(trail.visit("ann", "/").await?, 1);
        assert!(trail.visit("", "/").await.unwrap_err().is_config());
        assert!(trail.visit("ann", &"x".repeat(8193)).await.unwrap_err().is_config());
        Ok(())
    }
}
