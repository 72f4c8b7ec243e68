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

/// A step is looked at, refused without a confirmation, done, and taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_shown_confirmed_done_and_taken_back() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    server.command(&["SET", "product:7", "{}"]).await?;
    let url = server.url();
    let run = |action: &str, more: &[&str]| {
        let args = [
            &["adopt", action, "product:*", "--as", "cache", "--url", &url],
            more,
        ]
        .concat();
        let output = redstart(&args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (status, text) = run("step", &["--dry-run"]);
    assert!(
        status == Some(0) && text.contains("would do the step shadow"),
        "{text}"
    );
    // Nobody can be asked.
    assert_eq!(run("step", &[]).0, Some(2));
    assert_eq!(run("step", &["--yes"]).0, Some(0));
    let (status, text) = run("step", &["--dry-run", "--ttl", "2h"]);
    assert!(
        status == Some(0) && text.contains("change: gives 1 entries a TTL of up to 7200 s"),
        "{text}"
    );
    let ttl = async || -> anyhow::Result<String> {
        Ok(format!(
            "{:?}",
            server.command(&["TTL", "product:7"]).await?
        ))
    };
    let before = ttl().await?;
    assert!(before.contains("-1"), "{before}");
    let (status, line) = run("step", &["--yes", "--ttl", "2h", "--json"]);
    let report: Value = serde_json::from_str(line.trim())?;
    assert_eq!(
        (status, &report["outcome"], &report["step"]),
        (Some(0), &Value::from("done"), &Value::from("share"))
    );
    assert_ne!(ttl().await?, before);
    assert!(run("step", &["--yes"]).1.contains("all steps are done"));
    assert_eq!(run("back", &["--yes"]).0, Some(0));
    assert_eq!(ttl().await?, before);
    assert_eq!(run("back", &["--yes"]).0, Some(0));
    assert!(run("back", &["--yes"]).1.contains("no step was done"));

    // A subject that the plan does not have, and a step that is blocked.
    let unknown = redstart(&["adopt", "step", "bull:none", "--url", &url, "--yes"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    server
        .command(&["HSET", "bull:mail:meta", "version", "bullmq:6.7.0"])
        .await?;
    server.command(&["LPUSH", "bull:mail:wait", "1"]).await?;
    let mail = |more: &[&str]| {
        redstart(
            &[
                &["adopt", "step", "bull:mail", "--url", &url, "--yes"],
                more,
            ]
            .concat(),
        )
    };
    for _ in ["shadow", "share", "drain"] {
        let output = mail(&[]);
        assert!(output.status.success(), "{output:?}");
    }
    let blocked = mail(&[]);
    let text = String::from_utf8_lossy(&blocked.stdout).into_owned();
    assert!(
        !blocked.status.success() && text.contains("blocked: 1 jobs are not finished"),
        "{blocked:?}"
    );

    let held = redstart(&["adopt", "lock", "product:7", "--url", &url]);
    let text = String::from_utf8_lossy(&held.stdout).into_owned();
    assert!(text.contains("without a TTL"), "{text}");
    let free = redstart(&["adopt", "lock", "product:8", "--url", &url, "--json"]);
    assert_eq!(
        String::from_utf8_lossy(&free.stdout).trim(),
        r#"{"held":false}"#
    );
    Ok(())
}

/// What was begun is remembered: its keys need not be there for the next step or the way back.
#[tokio::test(flavor = "multi_thread")]
async fn a_subject_whose_keys_are_gone_goes_on_and_back() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let url = server.url();
    let meta = ["HSET", "bull:mail:meta", "version", "bullmq:6.7.0"];
    server.command(&meta).await?;
    let run = |action: &str| {
        let output = redstart(&["adopt", action, "bull:mail", "--url", &url, "--yes"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    assert_eq!(run("step").0, Some(0));
    server.command(&["DEL", "bull:mail:meta"]).await?;
    for step in ["share", "drain", "switch"] {
        let (status, text) = run("step");
        assert!(
            status == Some(0) && text.contains(&format!("done: {step}")),
            "{step}: {text}"
        );
    }
    for step in ["switch", "drain", "share", "shadow"] {
        let (status, text) = run("back");
        assert!(
            status == Some(0) && text.contains(&format!("taken back: {step}")),
            "{step}: {text}"
        );
    }
    let left: u64 = server.query(&["DBSIZE"]).await?;
    assert_eq!(left, 0, "the record is gone");
    assert_eq!(run("back").0, Some(2), "nothing is known of it any more");
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
