use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    sessions::{Login, Patched, Rotated, Sessions, Token},
};
use redstart_testkit::{Backend, Kind, Server, eventually, figure, matrix, scale};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(20);

async fn open(backend: &Backend) -> Result<(Store, Sessions)> {
    let store = Store::connect(backend.url()).await?;
    let sessions = Sessions::new(&store, backend.namespace(), "web")?;
    Ok((store, sessions))
}

/// Time passes: at once on the embedded engine, really on a server.
async fn pass(store: &Store, time: Duration) -> Result<()> {
    if store.is_embedded() {
        return Ok(store.advance(time)?);
    }
    let until = store.time().await? + time;
    let passed = eventually(LONG, async || {
        store.time().await.is_ok_and(|now| now >= until)
    });
    ensure!(passed.await);
    Ok(())
}

/// More than two pages of the index.
async fn many_are_listed_and_ended(sessions: &Sessions) -> Result<()> {
    const MANY: usize = 1_100;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..11 {
        let sessions = sessions.clone();
        tasks.spawn(async move {
            for _ in 0..MANY / 11 {
                sessions.create("ann", &()).await?;
            }
            anyhow::Ok(())
        });
    }
    for made in tasks.join_all().await {
        made?;
    }
    let mut handles: Vec<String> = Vec::new();
    for session in sessions.list("ann").await? {
        handles.push(session.handle);
    }
    handles.sort_unstable();
    handles.dedup();
    assert_eq!(handles.len(), MANY);
    assert_eq!(sessions.revoke_all("ann").await?, MANY as u64);
    assert!(sessions.list("ann").await?.is_empty());
    Ok(())
}

/// While the clock stands still, all sessions end at the same microsecond.
#[tokio::test(start_paused = true)]
async fn sessions_that_end_at_the_same_time_are_all_listed_and_ended() -> Result<()> {
    let store = Store::connect("memory://").await?;
    many_are_listed_and_ended(&Sessions::new(&store, "app", "web")?).await
}

/// The index of an account: 1,100 sessions that end in an hour, at one moment, and 600 that end in two.
struct Index {
    store: Store,
    soon: BTreeSet<String>,
    later: BTreeSet<String>,
}

impl Index {
    const KEY: &str = "app:session:{a}";

    async fn new() -> Result<Self> {
        let store = Store::connect("memory://").await?;
        let ids = |of: std::ops::Range<u32>| -> BTreeSet<String> {
            // In another order than they were made.
            of.map(|n| format!("{:032x}", n * 7919 % 10_007)).collect()
        };
        let (soon, later) = (ids(0..1_100), ids(1_100..1_700));
        let now = store.time().await?;
        let mut pipeline = redis::pipe();
        for (hours, ids) in [(1, &soon), (2, &later)] {
            let ends = now + Duration::from_secs(3600 * hours);
            for id in ids {
                let add = pipeline.cmd("ZADD").arg(Self::KEY);
                add.arg(ends.as_micros() as u64).arg(id).ignore();
            }
        }
        store.pipeline::<()>(&pipeline).await?;
        Ok(Self { store, soon, later })
    }

    /// The page after this session and its end.
    async fn page(&self, after: &(String, String)) -> Result<Vec<(String, String)>> {
        let all = redstart::script::all().into_iter();
        let mut named = all.filter(|script| script.name() == "session.list");
        let script = named.next().expect("there is such a script");
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.source()).arg(1).arg(Self::KEY);
        let (id, ends) = after;
        Ok(self.store.query(eval.arg(500).arg(ends).arg(id)).await?)
    }

    /// All pages; `meanwhile` is done between the second and the third with what they had.
    async fn walk(
        &self,
        meanwhile: impl AsyncFnOnce(&[String]) -> Result<()>,
    ) -> Result<BTreeSet<String>> {
        let (mut ids, mut after) = (Vec::new(), Default::default());
        for _ in 0..2 {
            let page = self.page(&after).await?;
            after = page[499].clone();
            ids.extend(page.into_iter().map(|(id, _)| id));
        }
        assert_eq!(ids.len(), 1_000);
        meanwhile(&ids).await?;
        loop {
            let page = self.page(&after).await?;
            let Some(last) = page.last().cloned() else {
                let count = ids.len();
                let ids: BTreeSet<String> = ids.into_iter().collect();
                assert_eq!(ids.len(), count, "none is listed twice");
                return Ok(ids);
            };
            after = last;
            ids.extend(page.into_iter().map(|(id, _)| id));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_session_is_passed_over_when_others_end_between_two_pages() -> Result<()> {
    let index = Index::new().await?;
    let store = index.store.clone();
    let listed = index
        .walk(async move |_| Ok(store.advance(Duration::from_secs(3601))?))
        .await?;
    ensure!(listed.is_superset(&index.later));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn no_session_is_passed_over_when_others_are_ended_between_two_pages() -> Result<()> {
    let index = Index::new().await?;
    let store = index.store.clone();
    let listed = index
        .walk(async move |ids: &[String]| {
            // One at the beginning, and the last ones of both pages.
            let mut end = redis::cmd("ZREM");
            end.arg(Index::KEY).arg(&[&ids[0], &ids[499], &ids[999]]);
            assert_eq!(store.query::<u64>(&end).await?, 3);
            Ok(())
        })
        .await?;
    ensure!(listed.is_superset(&index.later) && listed.is_superset(&index.soon));
    Ok(())
}

matrix! {
    async fn fields_are_patched_one_by_one(backend: &Backend) -> Result<()> {
        let (_store, sessions) = open(backend).await?;
        let token = sessions.create("ann", &json!({ "theme": "dark", "cart": [1], "created": "mine" })).await?;
        assert_eq!(sessions.patch(&token, &json!({ "cart": [1, 2], "theme": null })).await?, Patched::Done);
        let session = sessions.load::<Value>(&token).await?.unwrap();
        assert_eq!(session.user.as_deref(), Some("ann"));
        assert_eq!(session.data, json!({ "cart": [1, 2], "created": "mine" }));
        assert!(session.left <= Duration::from_secs(1800) && session.left > Duration::from_secs(1790));
        // Patches of different fields do not undo each other.
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..50 {
            let (sessions, token) = (sessions.clone(), token.clone());
            tasks.spawn(async move { sessions.patch(&token, &json!({ format!("f{n}"): n })).await });
        }
        for patched in tasks.join_all().await {
            assert_eq!(patched?, Patched::Done);
        }
        assert_eq!(sessions.load::<HashMap<String, Value>>(&token).await?.unwrap().data.len(), 52);
        assert!(sessions.load::<Vec<u8>>(&token).await.unwrap_err().is_codec());
        Ok(())
    }

    async fn patches_that_race_a_logout_revive_nothing(backend: &Backend) -> Result<()> {
        let (store, sessions) = open(backend).await?;
        let (mut done, mut gone) = (0, 0);
        for round in 0..scale(4, "logout races") {
            let token = sessions.create("ann", &json!({ "n": 0 })).await?;
            let mut tasks = tokio::task::JoinSet::new();
            let patches = scale(1000, "racing patches");
            let mut out = None;
            for n in 0..patches {
                let (sessions, token) = (sessions.clone(), token.clone());
                if n == patches / 2 {
                    let (sessions, token) = (sessions.clone(), token.clone());
                    out = Some(tokio::spawn(async move {
                        match round % 2 {
                            0 => sessions.revoke(&token).await.map(u64::from),
                            _ => sessions.revoke_all("ann").await,
                        }
                    }));
                }
                tasks.spawn(async move {
                    tokio::task::yield_now().await;
                    sessions.patch(&token, &json!({ "n": n })).await
                });
            }
            assert_eq!(out.unwrap().await??, 1);
            for patched in tasks.join_all().await {
                match patched? {
                    Patched::Done => done += 1,
                    Patched::Gone => gone += 1,
                    Patched::Full => panic!("one field fits"),
                }
            }
            let left = store.scan(&format!("{}:session.web:*", backend.namespace())).await?;
            assert!(left.iter().all(|key| key.contains("{user.")), "something was revived: {left:?}");
            assert_eq!(sessions.list("ann").await?.len(), 0);
            assert!(sessions.load::<Value>(&token).await?.is_none());
        }
        figure(format!("{}: {done} patches before the logout, {gone} after it, 0 revived", backend.test()));
        assert!(done > 0 && gone > 0, "there was no race: {done} before, {gone} after");
        Ok(())
    }

    async fn the_index_is_the_set_of_live_sessions_after_random_operations(backend: &Backend) -> Result<()> {
        let (store, sessions) = open(backend).await?;
        let users = ["ann", "bob", "eve"];
        let mut live: Vec<(&str, Token)> = Vec::new();
        for _ in 0..scale(400, "session operations") {
            let at = if live.is_empty() { 0 } else { rand::random_range(0..live.len()) };
            match rand::random_range(0..10) {
                0..4 => {
                    let user = users[rand::random_range(0..3)];
                    live.push((user, sessions.create(user, &json!({})).await?));
                }
                4 if !live.is_empty() => {
                    let (_, token) = live.swap_remove(at);
                    assert!(sessions.revoke(&token).await?);
                    assert!(!sessions.revoke(&token).await?);
                }
                5 if !live.is_empty() => {
                    live[at].1 = sessions.rotate(&live[at].1).await?.token().unwrap();
                }
                6 if !live.is_empty() => {
                    assert_eq!(sessions.patch(&live[at].1, &json!({ "n": 1 })).await?, Patched::Done);
                }
                7 if !live.is_empty() => {
                    let user = users[rand::random_range(0..3)];
                    let token = sessions.login(Login::new(user).replacing(&live[at].1), &()).await?;
                    live[at] = (user, token);
                }
                8 if rand::random_range(0..5) == 0 => {
                    let user = users[rand::random_range(0..3)];
                    let before = live.len();
                    live.retain(|(whose, _)| *whose != user);
                    assert_eq!(sessions.revoke_all(user).await?, (before - live.len()) as u64);
                }
                _ if !live.is_empty() => {
                    assert!(sessions.load::<Value>(&live[at].1).await?.is_some());
                }
                _ => {}
            }
        }
        for user in users {
            let expected = live.iter().filter(|(whose, _)| *whose == user).count();
            assert_eq!(sessions.list(user).await?.len(), expected, "{user}");
        }
        let hashes = store.scan(&format!("{}:session.web:{{*}}:*", backend.namespace())).await?;
        assert_eq!(hashes.len(), live.len());
        // The index itself, not what is made of it.
        let mut indexed = 0;
        for key in store.scan(&format!("{}:session.web:*", backend.namespace())).await? {
            if store.query::<String>(redis::cmd("TYPE").arg(&key)).await? == "zset" {
                indexed += store.query::<usize>(redis::cmd("ZCARD").arg(&key)).await?;
            }
        }
        assert_eq!(indexed, live.len());
        let operations = scale(400, "session operations");
        figure(format!("{}: {operations} operations, {indexed} in the index, {} live", backend.test(), live.len()));
        Ok(())
    }

    async fn both_timeouts_hold(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let (idle, absolute) = match backend.is_embedded() {
            true => (Duration::from_secs(60), Duration::from_secs(150)),
            false => (Duration::from_millis(700), Duration::from_millis(2000)),
        };
        let sessions = Sessions::builder(&store, backend.namespace(), "web").idle(idle).absolute(absolute).build()?;
        for attempt in 0.. {
            let idle_one = sessions.create("ann", &json!({})).await?;
            let before = store.time().await?;
            let busy = sessions.create("ann", &json!({})).await?;
            let created = store.time().await?;
            // Constant access keeps it alive beyond the idle timeout, not beyond the absolute one.
            let (mut last, mut pause) = (created, Duration::ZERO);
            let mut ended = None;
            ensure!(eventually(LONG, async || {
                if backend.is_embedded() { let _ = store.advance(Duration::from_secs(20)); }
                let loaded = sessions.load::<Value>(&busy).await;
                let now = store.time().await.unwrap_or(last);
                pause = pause.max(now - last);
                match loaded {
                    Ok(Some(session)) => {
                        assert!(session.left <= idle);
                        last = now;
                        false
                    }
                    Ok(None) => { ended = Some(now); true }
                    Err(_) => false,
                }
            }).await);
            assert!(last - before <= absolute + pause, "it lived {:?}, beyond the absolute timeout", last - before);
            // A machine so busy that no access came within the idle timeout shows nothing; try again.
            if pause >= idle && attempt < 5 { continue; }
            assert!(last - created > idle, "access did not renew the idle timeout");
            assert!(ended.unwrap() - before + Duration::from_millis(50) >= absolute, "it ended too early");
            assert!(sessions.load::<Value>(&idle_one).await?.is_none());
            break;
        }
        assert_eq!(sessions.list("ann").await?.len(), 0);
        if backend.is_embedded() { store.advance(Duration::from_secs(200))?; }
        // The account of a user lasts a minute longer than the sessions.
        ensure!(eventually(LONG, async || {
            let keys = store.scan(&format!("{}:*", backend.namespace())).await;
            keys.is_ok_and(|keys| keys.iter().all(|key| key.contains("{user.")))
        }).await, "sessions leave keys behind");
        for key in store.scan(&format!("{}:*", backend.namespace())).await? {
            let left: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
            assert!((0..=62_000).contains(&left), "{key} stays {left} ms");
        }
        Ok(())
    }

    async fn a_session_that_is_being_rotated_does_not_escape_a_logout_everywhere(backend: &Backend) -> Result<()> {
        let (_store, sessions) = open(backend).await?;
        for _ in 0..scale(20, "rotation rounds") {
            let token = sessions.create("ann", &json!({})).await?;
            let rotating = {
                let (sessions, mut token) = (sessions.clone(), token.clone());
                tokio::spawn(async move {
                    while let Ok(Rotated::To(new)) = sessions.rotate(&token).await {
                        token = new;
                    }
                    token
                })
            };
            tokio::task::yield_now().await;
            assert_eq!(sessions.revoke_all("ann").await?, 1);
            let last = rotating.await?;
            assert!(sessions.load::<Value>(&last).await?.is_none(), "a rotated session survived");
            assert_eq!(sessions.list("ann").await?.len(), 0);
        }
        Ok(())
    }

    async fn a_rotated_token_opens_the_session_for_the_grace_and_no_longer(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let grace = if backend.is_embedded() { Duration::from_secs(10) } else { Duration::from_millis(800) };
        let sessions = Sessions::builder(&store, backend.namespace(), "web").rotation_grace(grace).build()?;
        let old = sessions.create("ann", &json!({ "n": 1 })).await?;
        let handle = old.handle();
        let new = sessions.rotate(&old).await?.token().unwrap();
        assert_ne!(new.expose(), old.expose());
        let begun = store.time().await?;
        // A request that was sent with the old token works as before; it cannot rotate the session again.
        let patched = sessions.patch(&old, &json!({ "n": 2 })).await?;
        let again = sessions.rotate(&old).await?;
        let loaded = sessions.load::<Value>(&old).await?;
        // A machine so slow that the grace is over shows nothing.
        if store.time().await? < begun + grace {
            assert_eq!((patched, again), (Patched::Done, Rotated::Already));
            assert_eq!(loaded.unwrap().data, json!({ "n": 2 }));
        }
        pass(&store, grace).await?;
        assert!(sessions.load::<Value>(&old).await?.is_none(), "the grace does not end");
        assert_eq!(sessions.patch(&old, &json!({ "n": 3 })).await?, Patched::Gone);
        assert_eq!(sessions.rotate(&old).await?, Rotated::Gone);
        assert!(!sessions.revoke(&old).await?);
        assert!(sessions.load::<Value>(&new).await?.is_some());
        assert_eq!(sessions.list("ann").await?[0].handle, handle, "the session is listed under the same handle");

        // Several rotations in a row: each of their tokens has its own grace.
        let first = sessions.create("bob", &json!({})).await?;
        let begun = store.time().await?;
        let mut last = first.clone();
        for _ in 0..5 {
            last = sessions.rotate(&last).await?.token().unwrap();
        }
        let found = sessions.load::<Value>(&first).await?.is_some();
        assert!(found || store.time().await? >= begun + grace, "a request under way is logged out");
        pass(&store, grace).await?;
        assert!(sessions.load::<Value>(&first).await?.is_none());

        // A logout with the old token, within the grace, ends the session.
        let newest = sessions.rotate(&new).await?.token().unwrap();
        if sessions.revoke(&new).await? {
            assert!(sessions.load::<Value>(&newest).await?.is_none());
        }
        // Without a grace there is none.
        let strict = Sessions::builder(&store, backend.namespace(), "strict").rotation_grace(Duration::ZERO).build()?;
        let old = strict.create("ann", &json!({})).await?;
        assert!(strict.rotate(&old).await?.token().is_some());
        assert!(strict.load::<Value>(&old).await?.is_none());
        Ok(())
    }

    async fn an_elevation_ends_and_the_token_before_it_has_none_of_it(backend: &Backend) -> Result<()> {
        let (store, sessions) = open(backend).await?;
        let lasting = if backend.is_embedded() { Duration::from_secs(300) } else { Duration::from_millis(1500) };
        let old = sessions.create("ann", &json!({})).await?;
        assert_eq!(sessions.load::<Value>(&old).await?.unwrap().elevated, None);
        let token = sessions.elevate(&old, lasting).await?.token().unwrap();
        let elevated = sessions.load::<Value>(&token).await?.unwrap().elevated;
        let close = |left: Option<Duration>| left.is_some_and(|left| left <= lasting && left > lasting - LONG);
        if backend.is_embedded() {
            assert!(close(elevated), "{elevated:?}");
            let before = sessions.load::<Value>(&old).await?.expect("the grace");
            assert_eq!(before.elevated, None, "the old token is elevated too");
        }
        // A rotation keeps it.
        let token = sessions.rotate(&token).await?.token().unwrap();
        if backend.is_embedded() {
            assert!(close(sessions.load::<Value>(&token).await?.unwrap().elevated));
        }
        pass(&store, lasting).await?;
        let session = sessions.load::<Value>(&token).await?.expect("only the elevation has ended");
        assert_eq!(session.elevated, None);
        Ok(())
    }

    async fn all_sessions_of_a_user_are_listed_and_ended_however_many_they_are(backend: &Backend) -> Result<()> {
        let (store, sessions) = open(backend).await?;
        many_are_listed_and_ended(&sessions).await?;
        // Those that have ended on their own are removed some at a time, and are not listed meanwhile.
        let brief = Sessions::builder(&store, backend.namespace(), "web")
            .idle(Duration::from_millis(200)).absolute(Duration::from_millis(200)).build()?;
        for _ in 0..250 {
            brief.create("bob", &()).await?;
        }
        let last = sessions.create("bob", &()).await?;
        pass(&store, Duration::from_millis(300)).await?;
        assert_eq!(sessions.list("bob").await?.len(), 1);
        assert_eq!(sessions.revoke_all("bob").await?, 1);
        assert!(sessions.load::<Value>(&last).await?.is_none());
        Ok(())
    }

    async fn a_logout_everywhere_finds_sessions_that_were_made_with_longer_timeouts(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let short = if backend.is_embedded() { Duration::from_secs(60) } else { Duration::from_millis(300) };
        let builder = |absolute: Duration| {
            Sessions::builder(&store, backend.namespace(), "web").idle(absolute).absolute(absolute).build()
        };
        let (longer, shorter) = (builder(Duration::from_secs(3600))?, builder(short)?);
        let token = longer.create("ann", &json!({})).await?;
        // The next version of the program has shorter timeouts.
        shorter.create("ann", &json!({})).await?;
        pass(&store, short + Duration::from_secs(2)).await?;
        assert_eq!(shorter.list("ann").await?.len(), 1, "the index is gone and the session is not");
        // A use in the long run keeps the index as well.
        assert!(longer.load::<Value>(&token).await?.is_some());
        for key in store.scan(&format!("{}:*", backend.namespace())).await? {
            let left: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
            assert!(left > 3_000_000, "{key} ends in {left} ms");
        }
        assert_eq!(shorter.revoke_all("ann").await?, 1);
        assert!(longer.load::<Value>(&token).await?.is_none());
        Ok(())
    }

    async fn patches_never_make_a_session_too_large_to_log_in_with(backend: &Backend) -> Result<()> {
        let (_store, sessions) = open(backend).await?;
        let token = sessions.create_anonymous(&json!({ "first": 1 })).await?;
        let fields = |from: usize, to: usize| -> HashMap<String, usize> { (from..to).map(|n| (format!("f{n}"), n)).collect() };
        assert_eq!(sessions.patch(&token, &fields(0, 600)).await?, Patched::Done);
        assert_eq!(sessions.patch(&token, &fields(600, 1000)).await?, Patched::Full);
        assert_eq!(sessions.patch(&token, &fields(600, 999)).await?, Patched::Done);
        // What is there already, or goes, takes no room.
        assert_eq!(sessions.patch(&token, &fields(0, 999)).await?, Patched::Done);
        assert_eq!(sessions.patch(&token, &json!({ "one": 1 })).await?, Patched::Full);
        assert_eq!(sessions.patch(&token, &json!({ "one": 1, "first": null, "never": null })).await?, Patched::Done);
        assert_eq!(sessions.load::<HashMap<String, Value>>(&token).await?.unwrap().data.len(), 1000);
        // Bytes are bounded too.
        let large = json!({ "f0": "x".repeat(1_000_000) });
        assert_eq!(sessions.patch(&token, &large).await?, Patched::Done);
        assert_eq!(sessions.patch(&token, &json!({ "f1": "x".repeat(60_000) })).await?, Patched::Full);
        assert_eq!(sessions.patch(&token, &json!({ "f0": 1, "f1": "x".repeat(60_000) })).await?, Patched::Done);
        // A full session does not keep its visitor from logging in.
        let ann = sessions.login(Login::new("ann").replacing(&token), &()).await?;
        assert_eq!(sessions.load::<HashMap<String, Value>>(&ann).await?.unwrap().data.len(), 1000);
        let again = sessions.login(Login::new("ann").replacing(&ann), &json!({ "more": 1 })).await?;
        assert_eq!(sessions.load::<Value>(&again).await?.unwrap().data, json!({ "more": 1 }));
        Ok(())
    }

    async fn a_login_takes_over_anonymous_fields_but_not_another_users(backend: &Backend) -> Result<()> {
        let (_store, sessions) = open(backend).await?;
        let anonymous = sessions.create_anonymous(&json!({ "cart": [1] })).await?;
        let ann = sessions.login(Login::new("ann").replacing(&anonymous), &json!({ "role": "user" })).await?;
        assert!(sessions.load::<Value>(&anonymous).await?.is_none());
        assert_eq!(sessions.load::<Value>(&ann).await?.unwrap().data, json!({ "cart": [1], "role": "user" }));
        let bob = sessions.login(Login::new("bob").replacing(&ann), &()).await?;
        assert_eq!(sessions.load::<Value>(&bob).await?.unwrap().data, json!({}));
        assert!(sessions.load::<Value>(&ann).await?.is_none());
        let handle = sessions.list("bob").await?[0].handle.clone();
        assert_eq!(handle, bob.handle());
        assert!(!sessions.revoke_one("ann", &handle).await?, "a handle works for its own user only");
        assert!(sessions.revoke_one("bob", &handle).await?);
        Ok(())
    }

    async fn a_patch_during_a_login_is_in_the_new_session(backend: &Backend) -> Result<()> {
        let (_store, sessions) = open(backend).await?;
        let mut late = 0;
        for round in 0..scale(10, "login races") {
            let fields: HashMap<String, u64> = (0..200).map(|n| (format!("old{n}"), n)).collect();
            let token = sessions.create_anonymous(&fields).await?;
            // Patches set one field and remove another, until the session is gone.
            let mut tasks = tokio::task::JoinSet::new();
            for part in 0..4 {
                let (sessions, token) = (sessions.clone(), token.clone());
                tasks.spawn(async move {
                    let mut done = Vec::new();
                    for n in (part..200).step_by(4) {
                        let patch = json!({ format!("new{n}"): n, format!("old{n}"): null, "role": "visitor" });
                        match sessions.patch(&token, &patch).await? {
                            Patched::Done => done.push(n),
                            _ => break,
                        }
                    }
                    anyhow::Ok(done)
                });
            }
            for _ in 0..round % 5 {
                tokio::task::yield_now().await;
            }
            let before = sessions.load::<HashMap<String, Value>>(&token).await?.unwrap().data;
            let ann = sessions.login(Login::new("ann").replacing(&token), &json!({ "role": "user" })).await?;
            assert!(sessions.load::<Value>(&token).await?.is_none());
            let mut done = Vec::new();
            for task in tasks.join_all().await {
                done.extend(task?);
            }
            let after = sessions.load::<HashMap<String, Value>>(&ann).await?.unwrap().data;
            assert_eq!(after["role"], "user", "the login's own fields win");
            for n in &done {
                assert_eq!(after.get(&format!("new{n}")), Some(&json!(n)), "a patch is lost in round {round}");
                assert!(!after.contains_key(&format!("old{n}")), "a removal is lost in round {round}");
            }
            assert_eq!(after.len(), 201, "one field comes for each that goes");
            late += done.iter().filter(|n| !before.contains_key(&format!("new{n}"))).count();
        }
        ensure!(late > 0, "no patch met a login");
        Ok(())
    }

    async fn the_list_has_labels_and_the_last_use(backend: &Backend) -> Result<()> {
        let (store, sessions) = open(backend).await?;
        let phone = sessions.login(Login::new("ann").label("phone").remember(), &()).await?;
        let laptop = sessions.login(Login::new("ann").label(&"é".repeat(200)), &()).await?;
        let step = if backend.is_embedded() { Duration::from_secs(600) } else { Duration::from_millis(1200) };
        pass(&store, step).await?;
        assert!(sessions.load::<Value>(&phone).await?.unwrap().remembered);
        let list = sessions.list("ann").await?;
        let of = |token: &Token| list.iter().find(|info| info.handle == token.handle()).unwrap();
        assert_eq!(of(&phone).label.as_deref(), Some("phone"));
        assert!(of(&phone).remembered && !of(&laptop).remembered);
        assert_eq!(of(&laptop).label.as_ref().unwrap().len(), 256, "a long label is cut");
        assert!(of(&phone).seen >= of(&phone).created + step);
        assert_eq!(of(&laptop).seen, of(&laptop).created);
        // A remembered session outlives both of the ordinary timeouts.
        if backend.is_embedded() {
            store.advance(Duration::from_secs(13 * 3600))?;
            assert!(sessions.load::<Value>(&laptop).await?.is_none());
            assert!(sessions.load::<Value>(&phone).await?.is_some());
            store.advance(Duration::from_secs(30 * 86_400))?;
            assert!(sessions.load::<Value>(&phone).await?.is_none());
        }
        Ok(())
    }

    async fn a_token_reveals_nothing_about_its_user_and_names_are_kept_apart(backend: &Backend) -> Result<()> {
        let (store, sessions) = open(backend).await?;
        let other = Sessions::new(&store, backend.namespace(), "admin")?;
        let token = sessions.create("ann", &()).await?;
        let same = other.create("ann", &()).await?;
        // The same user in two places has nothing in common.
        assert_ne!(&token.expose()[..21], &same.expose()[..21]);
        assert!(other.load::<Value>(&token).await?.is_none());
        assert_eq!(other.revoke_all("ann").await?, 1);
        assert!(sessions.load::<Value>(&token).await?.is_some());
        Ok(())
    }

    async fn bad_input_and_tampered_tokens_open_nothing(backend: &Backend) -> Result<()> {
        let (store, sessions) = open(backend).await?;
        let token = sessions.create("ann", &json!({})).await?;
        let text = token.expose();
        for bad in ["", "x", &text[..85], &format!("{text}A"), &text.replace(|c: char| c == text.chars().next().unwrap(), "é"), &"=".repeat(86)] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?}");
        }
        // Each bit of it counts.
        for at in [0, 10, 21, 22, 41, 43, 60, 85] {
            let mut tampered = text.clone().into_bytes();
            tampered[at] = if tampered[at] == b'A' { b'B' } else { b'A' };
            if let Ok(tampered) = String::from_utf8(tampered)?.parse::<Token>() {
                assert!(sessions.load::<Value>(&tampered).await?.is_none());
                assert_eq!(sessions.patch(&tampered, &json!({ "a": 1 })).await?, Patched::Gone);
                assert_eq!(sessions.rotate(&tampered).await?, Rotated::Gone);
                assert!(!sessions.revoke(&tampered).await?);
            }
        }
        assert!(sessions.load::<Value>(&token).await?.is_some());
        assert_eq!(sessions.list("ann").await?.len(), 1, "a tampered token changed the index");
        assert!(sessions.create("", &json!({})).await.unwrap_err().is_config());
        assert!(sessions.create("ann", &json!([1])).await.unwrap_err().is_config());
        assert!(sessions.create("ann", &json!({ "big": "x".repeat(1 << 20) })).await.unwrap_err().is_config());
        assert!(sessions.revoke_one("ann", "../etc").await.unwrap_err().is_config());
        let builder = || Sessions::builder(&store, backend.namespace(), "web");
        assert!(builder().idle(Duration::ZERO).build().unwrap_err().is_config());
        assert!(builder().idle(LONG).absolute(LONG / 2).build().unwrap_err().is_config());
        assert!(builder().remember(Duration::MAX).build().unwrap_err().is_config());
        assert!(Sessions::new(&store, "", "web").unwrap_err().is_config());
        assert!(Sessions::new(&store, "shop", "a:b").unwrap_err().is_config());
        Ok(())
    }
}

/// The server's own dump, byte by byte.
#[tokio::test]
async fn no_token_is_in_a_dump_of_the_server() -> Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        no_token_in_dump(kind).await?;
    }
    Ok(())
}

async fn no_token_in_dump(kind: Kind) -> Result<()> {
    let server = Server::builder(kind).start().await?;
    let store = Store::connect(&server.url()).await?;
    let sessions = Sessions::new(&store, "dump", "web")?;
    let mut secrets = Vec::new();
    for n in 0..20 {
        let token = sessions
            .create(&format!("user-{n}"), &json!({ "n": "needle" }))
            .await?;
        let rotated = sessions.rotate(&token).await?.token().unwrap();
        secrets.extend([token.expose(), rotated.expose()]);
    }
    server
        .command(&["CONFIG", "SET", "rdbcompression", "no"])
        .await?;
    server.command(&["SAVE"]).await?;
    let dump = std::fs::read(server.dir().join("dump.rdb"))?;
    let has = |part: &[u8]| dump.windows(part.len()).any(|window| window == part);
    assert!(has(b"needle"), "the search itself must work");
    for secret in secrets {
        // The first 43 letters are the account and the id, which are no secrets.
        assert!(!has(secret.as_bytes()) && !has(&secret.as_bytes()[44..]));
    }
    Ok(())
}
