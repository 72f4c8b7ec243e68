use std::{collections::HashSet, time::Duration};

use anyhow::Result;
use redstart::{
    Store,
    messaging::{EventStream, StartAt},
};
use redstart_testkit::{Backend, matrix, scale};

use crate::queue::LONG;

matrix! {
    async fn trimming_never_removes_what_a_group_has_not_acknowledged(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stream = EventStream::<u64>::new(&store, backend.namespace(), "s")?;
        for n in 0..10 { stream.append(&n).await?; }
        assert_eq!(stream.trim(Duration::ZERO).await?, 0, "without a group nothing is removed");
        let mut groups = Vec::new();
        for name in ["fast", "slow", "lazy"] { groups.push(stream.group(name, StartAt::Beginning).await?); }
        // What each group has acknowledged, in a model.
        let mut acknowledged: [HashSet<u64>; 3] = Default::default();
        let mut unacknowledged: [Vec<(String, u64)>; 3] = Default::default();
        let mut appended = 10;
        for _ in 0..scale(150, "stream operations") {
            let at = rand::random_range(0..3);
            match rand::random_range(0..5) {
                0 => { stream.append(&appended).await?; appended += 1; }
                1 | 2 => {
                    let read = groups[at].read("c", rand::random_range(1..4), Duration::from_millis(1)).await?;
                    unacknowledged[at].extend(read.into_iter().map(|entry| (entry.id, entry.event)));
                }
                3 if !unacknowledged[at].is_empty() => {
                    let pick = rand::random_range(0..unacknowledged[at].len());
                    let (id, event) = unacknowledged[at].swap_remove(pick);
                    assert_eq!(groups[at].ack(&[&id]).await?, 1);
                    acknowledged[at].insert(event);
                }
                _ => {
                    stream.trim(Duration::ZERO).await?;
                    let there: HashSet<u64> = stream.read(None, 4000).await?.into_iter().map(|e| e.event).collect();
                    for n in 0..appended {
                        let needed = acknowledged.iter().any(|group| !group.contains(&n));
                        assert!(!needed || there.contains(&n), "event {n} was trimmed");
                    }
                }
            }
        }
        // Once all events are acknowledged, at most one stays.
        for (group, waiting) in groups.iter_mut().zip(&unacknowledged) {
            for (id, _) in waiting { group.ack(&[id]).await?; }
            loop {
                let read = group.read("c", 100, Duration::from_millis(1)).await?;
                if read.is_empty() { break; }
                group.ack(&read.iter().map(|entry| &entry.id).collect::<Vec<_>>()).await?;
            }
        }
        stream.trim(LONG * 100).await?;
        let young = stream.len().await?;
        assert!(young > 0, "what is young stays if that was asked for");
        stream.trim(Duration::ZERO).await?;
        assert!(stream.len().await? <= 1);
        Ok(())
    }

    async fn stale_events_are_claimed_and_failing_ones_become_dead_letters(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let stream = EventStream::<u64>::new(&store, backend.namespace(), "s")?;
        let mut group = stream.group("g", StartAt::Now).await?;
        stream.append(&1).await?;
        // Written by others: not JSON.
        let key = format!("{}:stream:{{s}}", backend.namespace());
        store.query::<()>(redis::cmd("XADD").arg(&key).arg("*").arg("event").arg("{")).await?;
        stream.append(&2).await?;
        let read = group.read("a", 10, LONG).await?;
        assert_eq!(read.iter().map(|entry| entry.event).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(stream.dead_letters(None).await?[0].reason, "cannot be decoded");
        assert_eq!(group.ack(&[&read[0].id]).await?, 1);
        // The first consumer dies; the second claims, and dies too.
        assert!(group.claim("b", 10, LONG, 3).await?.is_empty(), "it is not stale yet");
        for deliveries in 2..=3 {
            let claimed = group.claim("b", 10, Duration::ZERO, 3).await?;
            assert_eq!((claimed.len(), claimed[0].event), (1, 2), "{deliveries}");
        }
        assert!(group.claim("c", 10, Duration::ZERO, 3).await?.is_empty());
        let dead = stream.dead_letters(None).await?;
        assert_eq!((dead.len(), &dead[1].id, &*dead[1].group, &dead[1].event[..]), (2, &read[1].id, "g", &b"2"[..]));
        assert_eq!(stream.dead_letters(Some(&dead[0].letter)).await?.len(), 1);
        // Replay.
        group.rewind(None).await?;
        let again = group.read("a", 10, LONG).await?;
        assert_eq!(again.iter().map(|entry| entry.event).collect::<Vec<_>>(), [1, 2]);
        group.rewind(Some(&again[0].id)).await?;
        assert_eq!(group.read("a", 10, LONG).await?[0].event, 2);
        assert_eq!(stream.read(Some(&again[0].id), 10).await?.len(), 1);
        // Bad input.
        assert!(group.read("", 1, LONG).await.unwrap_err().is_config());
        assert!(group.read("a", 0, LONG).await.unwrap_err().is_config());
        assert!(group.ack(&["1; DROP"]).await.unwrap_err().is_config());
        assert!(stream.read(Some("-"), 1).await.unwrap_err().is_config());
        assert!(stream.group("", StartAt::Now).await.unwrap_err().is_config());
        Ok(())
    }
}
