//! `redstart engine import` and `export` as a person and as a program use them.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use redstart_engine::Engine;
use redstart_testkit::{Kind, Server};
use serde_json::Value;

fn redstart(args: &[&str], dir: &Path) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_redstart"))
        .arg("engine")
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
}

fn json(args: &[&str], dir: &Path) -> anyhow::Result<Value> {
    let output = redstart(args, dir)?;
    let error = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{error}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn check_rdb(file: &Path) -> anyhow::Result<()> {
    let check = Command::new("redis-check-rdb").arg(file).output()?;
    let text = String::from_utf8_lossy(&check.stdout);
    anyhow::ensure!(check.status.success(), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_a_server_goes_into_a_folder_and_out_of_it() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind)
            .requirepass("secret")
            .config("repl-diskless-sync-delay", "0")
            .start()
            .await?;
        server.command(&["SET", "a", "1"]).await?;
        server.command(&["SET", "b", "2", "EX", "1000"]).await?;
        server.command(&["RPUSH", "list", "x", "y"]).await?;
        let dir = tempfile::tempdir()?;
        let url = format!("redis://:secret@127.0.0.1:{}", server.port());
        let imported = json(&["import", &url, "--data", "store", "--json"], dir.path())?;
        assert_eq!(imported["keys"]["string"], 2);
        assert_eq!(imported["keys"]["list"], 1);
        assert_eq!(imported["volatile"], 1);
        let exported = json(
            &["export", "out.rdb", "--data", "store", "--json"],
            dir.path(),
        )?;
        assert_eq!(exported["keys"], imported["keys"]);
        let file = dir.path().join("out.rdb");
        let bytes = fs::read(&file)?;
        assert_eq!(exported["bytes"], bytes.len());
        let end: [u8; 8] = bytes[bytes.len() - 8..].try_into()?;
        assert_eq!(
            exported["checksum"],
            format!("{:016x}", u64::from_le_bytes(end))
        );
        check_rdb(&file)?;
        let again = json(
            &["import", "out.rdb", "--data", "other", "--json"],
            dir.path(),
        )?;
        assert_eq!(again["keys"], imported["keys"]);
        assert_eq!(again["checksum"], exported["checksum"]);
        let direct = json(
            &["export", "direct.rdb", "--url", &url, "--json"],
            dir.path(),
        )?;
        assert_eq!(direct["keys"], imported["keys"]);
    }
    Ok(())
}

#[test]
fn a_folder_with_data_is_replaced_only_when_asked() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let engine = Engine::new();
    let set = ["SET", "k", "v"].map(bytes::Bytes::from);
    engine.session().execute(&set);
    engine.save_rdb(fs::File::create(dir.path().join("one.rdb"))?, |_| ())?;
    let import = ["import", "one.rdb", "--data", "store"];
    let first = redstart(&import, dir.path())?;
    let text = String::from_utf8(first.stdout)?;
    assert!(
        text.contains("string") && text.contains("imported"),
        "{text}"
    );
    let second = redstart(&import, dir.path())?;
    assert!(!second.status.success());
    let error = String::from_utf8(second.stderr)?;
    assert!(error.contains("--replace"), "{error}");
    let third = redstart(&[&import[..], &["--replace"]].concat(), dir.path())?;
    assert!(third.status.success());
    Ok(())
}

#[test]
fn damaged_and_missing_files_are_refused() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("bad.rdb"), b"REDIS0010\xfe\x00\x00")?;
    for source in ["bad.rdb", "nosuch.rdb", "rediss://127.0.0.1:1"] {
        let output = redstart(&["import", source, "--data", "store"], dir.path())?;
        assert!(!output.status.success(), "{source}");
        assert!(output.stdout.is_empty(), "{source}");
    }
    let output = redstart(&["export", "out.rdb", "--data", "nosuch"], dir.path())?;
    assert!(!output.status.success());
    assert!(!dir.path().join("out.rdb").exists());
    Ok(())
}
