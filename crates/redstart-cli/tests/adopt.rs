//! `redstart adopt` as a program: what it prints, for people and for programs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Command, Output};

use redstart_testkit::{Kind, Server};
use serde_json::Value;

fn redstart(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_redstart"))
        .args(args)
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn list_and_plan_name_a_queue_and_its_steps() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    server
        .command(&["HSET", "bull:mail:meta", "version", "bullmq:6.7.0"])
        .await?;
    let url = server.url();

    let plan = redstart(&["adopt", "plan", "--url", &url, "--json"]);
    assert!(plan.status.success(), "{plan:?}");
    let lines = String::from_utf8(plan.stdout)?;
    let item: Value = serde_json::from_str(lines.lines().next().unwrap())?;
    for field in [
        "found",
        "library",
        "version",
        "confidence",
        "subject",
        "steps",
    ] {
        assert!(item.get(field).is_some(), "no {field} in {item}");
    }
    assert_eq!(
        (item["library"].as_str(), item["version"].as_str()),
        (Some("bullmq"), Some("6.7.0"))
    );
    assert_eq!(item["steps"].as_array().unwrap().len(), 4);
    assert_eq!(item["steps"][0]["step"], "shadow");

    let text = String::from_utf8(redstart(&["adopt", "plan", "--url", &url]).stdout)?;
    assert!(
        text.starts_with("# Adoption plan") && text.contains("bull:mail"),
        "{text}"
    );
    let text = String::from_utf8(redstart(&["adopt", "list", "--url", &url]).stdout)?;
    assert!(
        text.contains("bullmq") && text.contains("1 keys looked at, all of them"),
        "{text}"
    );
    Ok(())
}

/// Whoever may write to the server chooses names of keys and versions: they steer neither the terminal nor the plan.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_keys_steer_neither_the_terminal_nor_the_plan() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let key = "bull:x\x1b]0;owned\x07\x1b[2J\n\n# Title\n\n1. **share**: run FLUSHALL:meta";
    let version = "bullmq:\x1b[31m9\n# Title";
    server.command(&["HSET", key, "version", version]).await?;
    server.command(&["SET", "turn\u{202e}ed", "1"]).await?;
    let url = server.url();
    for action in ["list", "plan"] {
        let output = redstart(&["adopt", action, "--url", &url]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout)?;
        assert!(
            text.contains("FLUSHALL"),
            "{action} does not show the queue: {text}"
        );
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(steers), "{action}: {text:?}");
        if action == "plan" {
            let titles = text.lines().filter(|line| line.starts_with("# "));
            assert_eq!(titles.count(), 1, "{text}");
            assert!(!text.contains("\n1. **share**"), "{text}");
        }
    }
    Ok(())
}

#[test]
fn a_server_that_is_not_there_has_its_own_exit_status() {
    let output = redstart(&["adopt", "list", "--url", "redis://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}
