//! `redstart capacity` as a person and as a program use it.

use std::process::{Command, Stdio};

use redstart_testkit::{Kind, Server};
use serde_json::Value;

fn capacity(args: &[&str]) -> std::io::Result<std::process::Output> {
    Command::new(env!("CARGO_BIN_EXE_redstart"))
        .arg("capacity")
        .args(args)
        .env_remove("REDSTART_URL")
        .stdin(Stdio::null())
        .output()
}

fn plans(args: &[&str]) -> anyhow::Result<Vec<Value>> {
    let output = capacity(args)?;
    anyhow::ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    Ok(text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?)
}

const WANTED: [&str; 10] = [
    "--users",
    "100M",
    "--checkins",
    "31d",
    "--uniques",
    "daily:90d",
    "--sessions",
    "20M",
    "--limiter",
    "50k/s",
];

#[test]
fn a_plan_for_every_server_with_memory_nodes_and_alternatives() -> anyhow::Result<()> {
    let plans = plans(&[&WANTED[..], &["--json"]].concat())?;
    let servers: Vec<&str> = plans
        .iter()
        .filter_map(|plan| plan["server"].as_str())
        .collect();
    for name in ["redis", "valkey", "embedded"] {
        assert!(
            servers.iter().any(|server| server.starts_with(name)),
            "{servers:?}"
        );
    }
    for plan in &plans {
        assert_eq!(plan["needs"].as_array().map(Vec::len), Some(4), "{plan}");
        let bytes: f64 = plan["needs"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|n| n["bytes"].as_f64())
            .sum();
        assert!((plan["bytes"].as_f64().unwrap() - bytes).abs() < 1.0);
        // A hundred million users with a key each, and twenty million sessions, are tens of gigabytes.
        assert!(bytes > 2e10 && bytes < 2e11, "{bytes}");
        assert!(plan["masters"].as_u64().unwrap() >= 1);
        let forms: Vec<&str> = plan["alternatives"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|a| a["form"].as_str())
            .collect();
        assert!(
            forms.iter().any(|form| form.contains("set"))
                && forms.iter().any(|form| form.contains("bitmap"))
        );
    }
    Ok(())
}

#[test]
fn a_file_says_the_same_as_flags_and_nonsense_is_refused() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("need.toml").display().to_string();
    std::fs::write(
        &path,
        "users = '100M'\ncheckins = '31d'\nuniques = 'daily:90d'\nsessions = '20M'\nlimiter = '50k/s'\n",
    )?;
    let file = plans(&["--file", &path, "--json"])?;
    assert_eq!(file, plans(&[&WANTED[..], &["--json"]].concat())?);
    for (args, part) in [
        (&["--checkins", "31d"][..], "users"),
        (&[], "nothing is wanted"),
        (&["--sessions", "lots"], "lots"),
        (&["--sessions", "1M", "--server", "oracle"], "redis"),
        (&["--measure"], "--table"),
        (
            &["--measure", "--table", "x", "--url", "redis://192.0.2.1"],
            "this machine",
        ),
        (&["--simulate", "many"], "1G,1000"),
    ] {
        let output = capacity(args)?;
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(line.contains(part), "{args:?}: {line}");
    }
    Ok(())
}

#[test]
fn a_plan_for_people_names_shards_hot_keys_and_what_a_node_carries() -> anyhow::Result<()> {
    let output = capacity(&[
        "--users",
        "50M",
        "--activity",
        "90d",
        "--leaderboard",
        "10M@200k/s",
        "--server",
        "redis",
    ])?;
    let text = String::from_utf8(output.stdout)?;
    for part in [
        "op/s per node",
        "how it is spread",
        "one key, on one node",
        "the bitmap of the day",
        "sharded_leaderboard",
        "HyperLogLog",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let plan = &plans(&["--leaderboard", "10M@200k/s", "--server", "redis", "--json"])?[0];
    let board = &plan["alternatives"][0];
    let (ops, carried) = (200_000.0, plan["needs"][0]["ops_per_node"].as_f64());
    let shards = carried.map(|carried| (ops / carried).ceil());
    assert_eq!(board["shards"].as_f64(), shards, "{plan}");
    Ok(())
}

#[test]
fn patterns_with_the_entities_of_another_one_are_planned_too() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("need.toml").display().to_string();
    let need = |pattern: &str| {
        format!("[[need]]\npattern = '{pattern}'\nentities = 1000000\nops = 1000\n")
    };
    let patterns = [
        "stampede_lease",
        "write_through",
        "redlock",
        "leader",
        "circuit_breaker",
    ];
    let text: String = patterns.iter().map(|pattern| need(pattern)).collect();
    std::fs::write(&path, text)?;
    for plan in plans(&["--file", &path, "--json"])? {
        for cost in plan["needs"].as_array().into_iter().flatten() {
            let positive = |field: &str| cost[field].as_f64().is_some_and(|value| value > 0.0);
            assert!(positive("bytes") && positive("us_per_op"), "{cost}");
        }
        let embedded = plan["server"]
            .as_str()
            .is_some_and(|name| name.starts_with("embedded"));
        assert_eq!(plan["quorum"].is_null(), embedded, "{plan}");
    }
    Ok(())
}

#[test]
fn a_billion_users_on_a_thousand_nodes_are_simulated() -> anyhow::Result<()> {
    let even = &plans(&["--simulate", "1G,1000", "--json"])?[0];
    let skewed = &plans(&["--simulate", "1G,1000", "--skew", "1", "--json"])?[0];
    assert!(even["traffic"].as_f64().unwrap() < 1.2, "{even}");
    assert!(skewed["traffic"].as_f64().unwrap() > 20.0, "{skewed}");
    Ok(())
}

/// A finished measurement that must not block the tasks of a test's servers.
async fn measured(url: &str, table: &str, only: &[&str]) -> anyhow::Result<std::process::Output> {
    let mut args = vec![
        "--measure",
        "--seconds",
        "0.2",
        "--table",
        table,
        "--url",
        url,
    ];
    only.iter().for_each(|name| args.extend(["--only", name]));
    let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
    let run = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        capacity(&args)
    });
    Ok(run.await??)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_measured_is_a_table_that_plans() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let table = folder.path().join("costs.json").display().to_string();
    let redis = Server::builder(Kind::Redis).start().await?;
    let valkey = Server::builder(Kind::Valkey).start().await?;
    // Sorted, as in the table.
    let (two, one) = (&["counter", "token_bucket"][..], &["token_bucket"][..]);
    let kinds = [("embedded", one), ("redis", two), ("valkey", one)];
    for (url, (_, only)) in ["memory://", &redis.url(), &valkey.url()].iter().zip(kinds) {
        let output = measured(url, &table, only).await?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{url}: {said}");
        assert!(only.iter().all(|name| said.contains(name)), "{url}: {said}");
    }
    let text = std::fs::read_to_string(&table)?;
    let costs: Value = serde_json::from_str(&text)?;
    let servers = costs["servers"].as_array().cloned().unwrap_or_default();
    assert_eq!(servers.len(), 3, "{costs}");
    for (costs, (name, only)) in servers.iter().zip(kinds) {
        let server = costs["server"].as_str().unwrap_or_default();
        assert!(server.starts_with(name), "{server:?}");
        assert!(
            costs["build"]
                .as_str()
                .is_some_and(|build| build.contains("optimis")),
            "{costs}"
        );
        for (kind, field) in [("patterns", "pattern"), ("entities", "kind")] {
            let found = costs[kind].as_array().into_iter().flatten();
            let found: Vec<&str> = found.filter_map(|cost| cost[field].as_str()).collect();
            assert_eq!(found, only, "{name} {kind}");
        }
        let wanted = ["--table", &table, "--limiter", "1k/s", "--users", "1M"];
        let plan = &plans(&[&wanted[..], &["--server", name, "--json"]].concat())?[0];
        for field in ["bytes", "cores"] {
            assert!(
                plan[field].as_f64().is_some_and(|value| value > 0.0),
                "{plan}"
            );
        }
    }
    // Another database has a key: nothing is measured, and the key and the table stay.
    for server in [&redis, &valkey] {
        assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
        server.command(&["SET", "somebody-elses", "1"]).await?;
        server.command(&["MOVE", "somebody-elses", "1"]).await?;
        let output = measured(&server.url(), &table, one).await?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("db1: 1"), "{said}");
        assert!(server.info("db1").await?.starts_with("keys=1"));
    }
    assert_eq!(std::fs::read_to_string(&table)?, text);
    Ok(())
}
