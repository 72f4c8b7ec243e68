use std::{num::NonZeroU32, time::Duration};

use anyhow::Context as _;
use redstart::locking::{Leader, Mutex, Released, Semaphore, Ticket};
use redstart_testkit::{Backend, eventually, matrix};

use crate::{PATIENCE, connect};

matrix! {
    async fn a_ticket_holds_the_lock_in_any_process_until_it_is_released(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let here = Mutex::builder(&store, backend.namespace(), "m").without_renewal().build()?;
        let elsewhere = Mutex::builder(&store, backend.namespace(), "m").build()?;
        let guard = here.try_lock().await?.context("not granted")?;
        let text = guard.into_ticket()?.expose().to_owned();
        store.settle().await;
        assert!(elsewhere.try_lock().await?.is_none(), "giving up the guard must not release the lock");

        let ticket: Ticket = text.parse()?;
        assert!(elsewhere.extend_held(&ticket, Duration::from_secs(90)).await?);
        let holder = elsewhere.holder().await?.context("it is held")?;
        assert!(holder.remaining > Some(Duration::from_secs(60)));
        let waiter = elsewhere.clone();
        let waiting = tokio::spawn(async move { waiter.lock(PATIENCE).await });
        assert!(eventually(PATIENCE, async || {
            matches!(here.holder().await, Ok(Some(holder)) if holder.waiting > 0)
        }).await);
        assert_eq!(elsewhere.release_held(&ticket).await?, Released::Released);
        let next = waiting.await??.context("a release by ticket wakes the waiters")?;
        assert_eq!(elsewhere.release_held(&ticket).await?, Released::AlreadyLost);
        assert!(!elsewhere.extend_held(&ticket, Duration::from_secs(90)).await?);
        assert!(next.is_valid(), "an old ticket must not touch the next holder");
        next.release().await?;
        Ok(())
    }

    async fn semaphores_and_offices_have_tickets_too(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let permits = NonZeroU32::new(1).context("one")?;
        let semaphore = Semaphore::builder(&store, backend.namespace(), "s", permits).without_renewal().build()?;
        let ticket = semaphore.try_acquire().await?.context("not granted")?.into_ticket()?;
        assert!(semaphore.try_acquire().await?.is_none());
        assert!(semaphore.extend_held(&ticket, Duration::from_secs(60)).await?);
        assert_eq!(semaphore.release_held(&ticket).await?, Released::Released);
        assert!(semaphore.try_acquire().await?.is_some());

        let office = Leader::builder(&store, backend.namespace(), "l").id("a").without_renewal().build()?;
        let (ticket, term) = office.try_campaign().await?.context("not elected")?.into_ticket()?;
        assert_eq!(office.leader().await?.context("there is a leader")?.term, term);
        assert!(office.extend_held(&ticket, Duration::from_secs(60)).await?);
        assert_eq!(office.release_held(&ticket).await?, Released::Released);
        assert!(office.leader().await?.is_none());
        Ok(())
    }
}

#[test]
fn a_text_that_is_no_ticket_is_refused() {
    for bad in [
        "",
        "x",
        "rs-1+",
        "theirs",
        "rs-a\nb",
        &format!("rs-{}", "x".repeat(300)),
    ] {
        assert!(bad.parse::<Ticket>().unwrap_err().is_config(), "{bad}");
    }
}
