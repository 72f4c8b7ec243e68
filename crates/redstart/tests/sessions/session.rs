use std::{collections::HashMap, time::Duration};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    sessions::{Patched, Sessions, Token},
};
use redstart_testkit::{Backend, Kind, Server, eventually, figure, matrix, scale};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(20);

async fn open(backend: &Backend) -> Result<(Store, Sessions)> {
    let store = Store::connect(backend.url()).await?;
    let sessions = Sessions::builder(&store, backend.namespace()).build()?;
    Ok((store, sessions))
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
                }
            }
            let left = store.scan(&format!("{}:session:*", backend.namespace())).await?;
            assert!(left.iter().all(|key| key.ends_with(":out")), "something was revived: {left:?}");
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
                    let new = sessions.rotate(&live[at].1).await?.unwrap();
                    assert!(sessions.load::<Value>(&live[at].1).await?.is_none(), "the old token still opens");
                    live[at].1 = new;
                }
                6 if !live.is_empty() => {
                    assert_eq!(sessions.patch(&live[at].1, &json!({ "n": 1 })).await?, Patched::Done);
                }
                7 if !live.is_empty() => {
                    let user = users[rand::random_range(0..3)];
                    let token = sessions.elevate(Some(&live[at].1), user, &json!({})).await?;
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
        let hashes = store.scan(&format!("{}:session:{{*}}:????????????????????????????????????????????????????????????????", backend.namespace())).await?;
        assert_eq!(hashes.len(), live.len());
        // The index itself, not what is made of it.
        let mut indexed = 0;
        for key in store.scan(&format!("{}:session:*", backend.namespace())).await? {
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
        let sessions = Sessions::builder(&store, backend.namespace()).idle(idle).absolute(absolute).build()?;
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
            // A machine that let no access through for an idle time shows nothing; try again.
            if pause >= idle && attempt < 5 { continue; }
            assert!(last - created > idle, "access did not renew the idle timeout");
            assert!(ended.unwrap() - before + Duration::from_millis(50) >= absolute, "it ended too early");
            assert!(sessions.load::<Value>(&idle_one).await?.is_none());
            break;
        }
        assert_eq!(sessions.list("ann").await?.len(), 0);
        if backend.is_embedded() { store.advance(Duration::from_secs(200))?; }
        ensure!(eventually(LONG, async || {
            store.scan(&format!("{}:*", backend.namespace())).await.is_ok_and(|keys| keys.is_empty())
        }).await, "sessions leave keys behind");
        Ok(())
    }

    async fn a_session_that_is_being_rotated_does_not_escape_a_logout_everywhere(backend: &Backend) -> Result<()> {
        let (_store, sessions) = open(backend).await?;
        for _ in 0..scale(20, "rotation rounds") {
            let token = sessions.create("ann", &json!({})).await?;
            let rotating = {
                let (sessions, mut token) = (sessions.clone(), token.clone());
                tokio::spawn(async move {
                    while let Ok(Some(new)) = sessions.rotate(&token).await {
                        token = new;
                    }
                    token
                })
            };
            tokio::task::yield_now().await;
            sessions.revoke_all("ann").await?;
            let last = rotating.await?;
            assert!(sessions.load::<Value>(&last).await?.is_none(), "a rotated session survived");
            assert_eq!(sessions.list("ann").await?.len(), 0);
        }
        Ok(())
    }

    async fn a_session_made_before_a_logout_everywhere_is_not_rotated_after_it(backend: &Backend) -> Result<()> {
        let (store, sessions) = open(backend).await?;
        let before = sessions.create("ann", &json!({})).await?;
        // A logout everywhere notes its time first, then ends the sessions that it found. This one is stopped
        // in between.
        sessions.create("ann", &json!({})).await?;
        sessions.revoke_all("ann").await?;
        let mark = store.scan(&format!("{}:session:*:out", backend.namespace())).await?.remove(0);
        assert!(sessions.rotate(&before).await?.is_none());
        store.query::<()>(redis::cmd("DEL").arg(&mark)).await?;
        let before = sessions.create("ann", &json!({})).await?;
        let now = store.time().await?.as_micros() as u64 + 1;
        store.query::<()>(redis::cmd("SET").arg(&mark).arg(now).arg("PX").arg(60_000)).await?;
        assert!(sessions.rotate(&before).await?.is_none(), "it escaped");
        assert!(sessions.load::<Value>(&before).await?.is_none());
        assert_eq!(sessions.list("ann").await?.len(), 0);
        // A login after it is not its business.
        let after = sessions.create("ann", &json!({})).await?;
        assert!(sessions.rotate(&after).await?.is_some());
        Ok(())
    }

    async fn a_login_takes_over_anonymous_fields_but_not_another_users(backend: &Backend) -> Result<()> {
        let (_store, sessions) = open(backend).await?;
        let anonymous = sessions.create_anonymous(&json!({ "cart": [1] })).await?;
        let ann = sessions.elevate(Some(&anonymous), "ann", &json!({ "role": "user" })).await?;
        assert!(sessions.load::<Value>(&anonymous).await?.is_none());
        assert_eq!(sessions.load::<Value>(&ann).await?.unwrap().data, json!({ "cart": [1], "role": "user" }));
        let bob = sessions.elevate(Some(&ann), "bob", &json!({})).await?;
        assert_eq!(sessions.load::<Value>(&bob).await?.unwrap().data, json!({}));
        assert!(sessions.load::<Value>(&ann).await?.is_none());
        let handle = sessions.list("bob").await?[0].handle.clone();
        assert!(!sessions.revoke_one("ann", &handle).await?, "a handle works for its own user only");
        assert!(sessions.revoke_one("bob", &handle).await?);
        Ok(())
    }

    async fn bad_input_and_tampered_tokens_open_nothing(backend: &Backend) -> Result<()> {
        let (store, sessions) = open(backend).await?;
        let token = sessions.create("ann", &json!({})).await?;
        let text = token.expose();
        for bad in ["", "x", &text[..63], &format!("{text}A"), &text.replace(|c: char| c == text.chars().next().unwrap(), "é"), &"=".repeat(64)] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?}");
        }
        // Each bit of it counts.
        for at in [0, 10, 21, 22, 40, 63] {
            let mut tampered = text.clone().into_bytes();
            tampered[at] = if tampered[at] == b'A' { b'B' } else { b'A' };
            if let Ok(tampered) = String::from_utf8(tampered)?.parse::<Token>() {
                assert!(sessions.load::<Value>(&tampered).await?.is_none());
                assert_eq!(sessions.patch(&tampered, &json!({ "a": 1 })).await?, Patched::Gone);
                assert!(sessions.rotate(&tampered).await?.is_none());
                assert!(!sessions.revoke(&tampered).await?);
            }
        }
        assert!(sessions.load::<Value>(&token).await?.is_some());
        assert!(sessions.create("", &json!({})).await.unwrap_err().is_config());
        assert!(sessions.create("ann", &json!([1])).await.unwrap_err().is_config());
        assert!(sessions.create("ann", &json!({ "big": "x".repeat(1 << 20) })).await.unwrap_err().is_config());
        assert!(sessions.revoke_one("ann", "../etc").await.unwrap_err().is_config());
        let builder = || Sessions::builder(&store, backend.namespace());
        assert!(builder().idle(Duration::ZERO).build().unwrap_err().is_config());
        assert!(builder().idle(LONG).absolute(LONG / 2).build().unwrap_err().is_config());
        assert!(Sessions::builder(&store, "").build().unwrap_err().is_config());
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
    let sessions = Sessions::builder(&store, "dump").build()?;
    let mut secrets = Vec::new();
    for n in 0..20 {
        let token = sessions
            .create(&format!("user-{n}"), &json!({ "n": "needle" }))
            .await?;
        let rotated = sessions.rotate(&token).await?.unwrap();
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
        // Neither as text nor as bytes; the first 22 letters are the user's digest, which is no secret.
        assert!(!has(secret.as_bytes()) && !has(&secret.as_bytes()[24..]));
    }
    Ok(())
}
