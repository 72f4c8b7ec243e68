//! Sessions of express-session in connect-redis, read, extended and rotated here while Node serves them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use redis::cmd;
use redstart::Store;
use redstart_adopt::sessions::{ConnectSessions, Cookies};
use redstart_testkit::{Language, unique_namespace};
use serde_json::{Value, json};

use crate::{Side, dialogue::Dialogue, on};

async fn beside_node(side: Side) -> Result<()> {
    let store = side.store().await?;
    let prefix = format!("{}:", unique_namespace("sess"));
    let (port, cookies) = (side.port.to_string(), Cookies::new("keyboard cat"));
    let mut node = Dialogue::start(Language::Node, "sessions.js", &[&port, &prefix])?;
    let sessions = ConnectSessions::new(&store).prefix(&prefix);

    // Node logs a user in; the session is read here.
    let visit = node.ask(json!([null, "ann"])).await?;
    let cookie = visit["cookie"].as_str().context("a cookie")?.to_owned();
    let old = cookies.session_id(&cookie).context("signed by Node")?;
    assert_eq!(Cookies::new("another cat").session_id(&cookie), None);
    let session = sessions.get(&old).await?.context("the session")?;
    assert_eq!(session.field::<String>("user").as_deref(), Some("ann"));
    // express-session subtracts two times of its clock, between which a millisecond may pass.
    let age = session.max_age().context("an age")?;
    assert!(
        (Duration::from_secs(3500)..=Duration::from_secs(3600)).contains(&age),
        "{age:?}"
    );
    // What we sign is what Node signs.
    assert_eq!(cookies.sign(&old), cookie);

    // It is about to end, and is extended.
    let key = format!("{prefix}{old}");
    let () = store.query(cmd("EXPIRE").arg(&key).arg(600)).await?;
    assert!(sessions.touch(&old).await?);
    let left = sessions.get(&old).await?.context("the session")?.remaining;
    assert!(
        left.is_some_and(|left| left > Duration::from_secs(3000)),
        "{left:?}"
    );

    // Rotated: Node knows the user by the new id, and nobody by the old one.
    let new = sessions.rotate(&old).await?.context("it is there")?;
    let visit = node.ask(json!([cookie, null])).await?;
    assert_eq!(visit["user"], Value::Null);
    let visit = node.ask(json!([cookies.sign(&new), null])).await?;
    assert_eq!(visit["user"], "ann");
    assert_eq!(sessions.rotate(&old).await?, None);
    assert!(!sessions.touch(&old).await?);
    let kept = sessions.get(&new).await?.context("the session")?;
    assert_eq!(kept.data["user"], "ann");
    assert!(kept.remaining.is_some());

    // Node writes it, and what it wrote is read here.
    let visit = node.ask(json!([cookies.sign(&new), "bob"])).await?;
    assert_eq!(visit["user"], "bob");
    let session = sessions.get(&new).await?.context("the session")?;
    assert_eq!(session.field::<String>("user").as_deref(), Some("bob"));

    assert!(sessions.destroy(&new).await?);
    let visit = node.ask(json!([cookies.sign(&new), null])).await?;
    assert_eq!(visit["user"], Value::Null);
    Ok(())
}
on!(beside_node: sessions_are_read_extended_and_rotated_while_node_serves_them);

#[tokio::test]
async fn a_session_without_a_ttl_stays_without_one_and_other_values_are_refused() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let sessions = ConnectSessions::new(&store).ttl(Duration::from_secs(100));
    let json = r#"{"cookie":{"originalMaxAge":null,"path":"/"}}"#;
    let () = store.query(cmd("SET").arg("sess:a").arg(json)).await?;
    assert!(sessions.touch("a").await?);
    let session = sessions.get("a").await?.context("the session")?;
    assert_eq!((session.max_age(), session.remaining), (None, None));
    // A cookie that ends with the browser: the ttl of the store.
    let () = store
        .query(cmd("SET").arg("sess:b").arg(json).arg("EX").arg(5))
        .await?;
    assert!(sessions.touch("b").await?);
    let left = sessions.get("b").await?.context("the session")?.remaining;
    assert!(left > Some(Duration::from_secs(90)), "{left:?}");
    for odd in ["", "7", "{}", "[1]", "{\"cookie\":1}"] {
        let () = store.query(cmd("SET").arg("sess:c").arg(odd)).await?;
        assert!(sessions.get("c").await.unwrap_err().is_invalid(), "{odd:?}");
    }
    assert!(sessions.get("").await.unwrap_err().is_invalid());
    for forged in ["", "s:", "s:a", "s:a.", "s:a.b", "a.b", "s%3", "s%zz"] {
        assert_eq!(Cookies::new("x").session_id(forged), None, "{forged:?}");
    }
    Ok(())
}
