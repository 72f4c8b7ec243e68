//! The HTML report in a real Chromium.

use std::path::PathBuf;

use redstart_testkit::{Browser, Kind, Server, figure};

use crate::{doctor, examine};

/// Names as long as they come, with findings of every severity, patterns with and without TTL, and things that were not seen.
async fn crowded() -> anyhow::Result<Server> {
    let server = Server::builder(Kind::Redis).start().await?;
    let long = "x".repeat(300);
    for i in 0..30 {
        let names = [
            format!("cache:{long}:{i}"),
            format!("<script>alert({i})</script>:cache:{i}"),
            format!("sess:9f86d08188{i}4c7d65"),
            format!("game:score:{i}"),
        ];
        for name in &names {
            let value = if name.contains("score") {
                "17"
            } else {
                "{\"id\":1}"
            };
            server.command(&["SET", name, value]).await?;
        }
        let name = format!("page:{i}");
        server.command(&["SET", &name, "{}", "EX", "600"]).await?;
    }
    server.command(&["SET", "lock:report", "1"]).await?;
    server
        .command(&["SETRANGE", &long, "20000000", "x"])
        .await?;
    // A user who may not ask for everything.
    let guest = [
        "ACL", "SETUSER", "guest", "on", ">secret", "~*", "+@all", "-config", "-slowlog",
    ];
    server.command(&guest).await?;
    Ok(server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_html_report_is_accessible_on_a_phone_and_on_a_desk() -> anyhow::Result<()> {
    let server = crowded().await?;
    let url = format!("redis://guest:secret@{}", server.addr());
    let report = examine(doctor(&url).sampled()).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("report.html");
    std::fs::write(&file, report.html())?;
    let page = format!("file://{}", file.display());

    let shots = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    let browser = Browser::start(shots).await?;
    // What is wrong is noticed.
    let wrong = folder.path().join("wrong.html");
    let outside = "http://127.0.0.1:1/picture.png";
    std::fs::write(
        &wrong,
        format!("<title>x</title><img src=\"{outside}\" width=\"2000\">"),
    )?;
    browser.look(375, "light").await?;
    browser.open(&format!("file://{}", wrong.display())).await?;
    let noticed = browser.faults().await?.join("\n");
    assert!(
        noticed.contains("image-alt") && noticed.contains("wider"),
        "{noticed}"
    );
    let requests = browser.requests().await?;
    assert!(requests.iter().any(|url| url == outside), "{requests:?}");

    let mut faults = Vec::new();
    for (width, theme) in [
        (375, "light"),
        (375, "dark"),
        (1280, "light"),
        (1280, "dark"),
    ] {
        browser.look(width, theme).await?;
        browser.requests().await?;
        browser.open(&page).await?;
        // What is folded is looked at too.
        let unfold = "document.querySelectorAll('details').forEach((one) => { one.open = true }); \
            return document.querySelectorAll('article').length";
        let shown = browser.run(unfold).await?;
        assert!(shown.as_u64() >= Some(5), "{shown} findings");
        let found = browser.faults().await?;
        faults.extend(
            found
                .iter()
                .map(|fault| format!("{width} {theme}: {fault}")),
        );
        for other in browser.requests().await? {
            if other != page {
                faults.push(format!("{width} {theme}: {other} was requested"));
            }
        }
        browser.shoot(&format!("doctor-{width}-{theme}")).await?;
    }
    browser.close().await?;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    figure(format!(
        "HTML report of {} findings at 375 and 1280 px in two themes: 0 violations of axe-core, 0 requests besides the page",
        report.findings.len()
    ));
    Ok(())
}
