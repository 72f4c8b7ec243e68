//! What the dashboard says of things that are not Redstart's: queues of other libraries, and faults of the server.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use redstart::{Store, messaging::Queue};
use redstart_adopt::{
    Library,
    bullmq::{BullQueue, NewJob},
};
use redstart_serve::hash_token;
use redstart_testkit::{Foreign, Kind, Language, Proxy, Server, eventually};
use serde_json::json;

use crate::{
    Served,
    client::{Client, PATIENCE},
};

fn tokens() -> String {
    let token = |name: &str, role: &str, more: &str| {
        let hash = hash_token(&format!("{name}-secret"));
        format!("[[token]]\nname = {name:?}\nsha256 = {hash:?}\nrole = {role:?}\n{more}\n")
    };
    token("reader", "read", "") + &token("tenant", "admin", "namespaces = [\"shop\"]")
}

/// The screen of the queues, once others were recognised and this was read of them.
async fn until_shown(client: &mut Client, jobs: &str) -> Result<String> {
    let mut queues = String::new();
    let shown = eventually(PATIENCE, async || {
        let page = client.get("/queues?namespace=shop").await;
        queues = page.map(|page| page.text()).unwrap_or_default();
        queues.contains("Queues of other libraries") && queues.contains(jobs)
    });
    ensure!(shown.await, "{queues}");
    Ok(queues)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_queues_are_shown_before_others_are_recognised() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let direct = Store::connect(&server.url()).await?;
    let mail = BullQueue::new(&direct, "mail")?;
    let _ = mail.add(NewJob::new("welcome", &json!({}))?).await?;
    Queue::new(&direct, "shop", "own")?
        .enqueue_raw("k", b"1")
        .await?;
    // Each round trip is slow, and a recognition needs several.
    let proxy = Proxy::start(&server).await?;
    proxy.delay_replies(Duration::from_millis(50));
    let store = Store::builder(proxy.url())
        .deadline(PATIENCE)
        .connect()
        .await?;
    let served = Served::on(&store, "shop", "").await?;
    let mut client = served.client();
    let queues = client.get("/queues?namespace=shop").await?.text();
    ensure!(queues.contains("/queues/own"), "{queues}");
    ensure!(
        !queues.contains("Queues of other libraries"),
        "it waited for the recognition: {queues}"
    );
    let queues = until_shown(&mut client, "waiting 1").await?;
    ensure!(queues.contains("bull:mail"), "{queues}");
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_of_other_libraries_are_read_in_the_same_screens() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let mail = BullQueue::new(&store, "mail")?;
    let payload = json!({"to": "ann", "password": "hunter2"});
    for _ in 0..3 {
        let _ = mail.add(NewJob::new("welcome", &payload)?).await?;
    }
    Queue::new(&store, "shop", "own")?
        .enqueue_raw("k", b"1")
        .await?;
    let served = Served::on(&store, "shop", &tokens()).await?;
    let with = |name: &str| {
        let token = format!("Bearer {name}-secret");
        served.client().header("authorization", &token)
    };
    let (mut reader, mut tenant) = (with("reader"), with("tenant"));
    let queues = until_shown(&mut reader, "waiting 3").await?;
    ensure!(
        queues.contains("bull:mail") && queues.contains("waiting 3"),
        "{queues}"
    );
    let library = redstart_adopt::Library::BullMq.to_string();
    let path = format!("/foreign?namespace=shop&library={library}&subject=bull%3Amail");
    ensure!(
        queues.contains(&path.replace('&', "&amp;")),
        "no link: {queues}"
    );
    let page = reader.get(&path).await?;
    let text = page.text();
    ensure!(
        page.status == 200 && text.contains("welcome") && text.contains("ann"),
        "{text}"
    );
    ensure!(
        !text.contains("hunter2"),
        "a field that is hidden by name: {text}"
    );
    ensure!(
        reader
            .get(&format!("{path}&state=failed"))
            .await?
            .text()
            .contains("No jobs in this state.")
    );
    ensure!(reader.get(&format!("{path}&state=none")).await?.status == 400);
    // Only what was recognised can be asked for.
    for (other, status) in [
        ("library=bullmq&subject=shop%3Aqueue%3A%7Bown%7D", 404),
        ("library=none&subject=x", 404),
        ("", 404),
    ] {
        let refused = reader
            .get(&format!("/foreign?namespace=shop&{other}"))
            .await?;
        ensure!(refused.status == status, "{other}: {}", refused.status);
    }
    ensure!(
        reader.post(&path, json!({})).await?.status == 405,
        "nothing can be changed"
    );
    // They belong to no namespace, so a token of some namespaces does not see them.
    ensure!(
        !tenant
            .get("/queues?namespace=shop")
            .await?
            .text()
            .contains("bull:mail")
    );
    ensure!(tenant.get(&path).await?.status == 403);
    served.stop().await
}

/// As the libraries themselves write them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_of_sidekiq_celery_and_rq_are_in_the_same_screens() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let port = server.port().to_string();
    let specimens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../redstart-adopt/tests/libraries");
    let (python, ruby) = (
        specimens.join("specimens.py"),
        specimens.join("specimens.rb"),
    );
    let args = [port.as_str()];
    tokio::try_join!(
        Foreign::run(Language::Python, &python, &args),
        Foreign::run(Language::Ruby, &ruby, &args),
    )?;
    let store = Store::connect(&server.url()).await?;
    let served = Served::on(&store, "shop", &tokens()).await?;
    let token = "Bearer reader-secret";
    let mut reader = served.client().header("authorization", token);
    let before = digest(&server).await?;
    for (library, subject, shown, state, job) in [
        (
            Library::Sidekiq,
            "queue:default",
            "enqueued 1",
            "enqueued",
            "Charge",
        ),
        (
            Library::Celery,
            "celery",
            "waiting 3",
            "waiting",
            "shop.charge",
        ),
        (
            Library::Rq,
            "rq:queue:default",
            "queued 2",
            "queued",
            "shop.charge(1)",
        ),
    ] {
        let queues = until_shown(&mut reader, shown).await?;
        let subject = subject.replace(':', "%3A");
        let path = format!("/foreign?namespace=shop&library={library}&subject={subject}");
        ensure!(
            queues.contains(&path.replace('&', "&amp;")),
            "{path} is not in {queues}"
        );
        for path in [path.clone(), format!("{path}&state={state}")] {
            let page = reader.get(&path).await?;
            let text = page.text();
            ensure!(page.status == 200 && text.contains(job), "{path}: {text}");
        }
        let none = reader.get(&format!("{path}&state=nonsense")).await?;
        ensure!(none.status == 400, "{library}: {}", none.text());
    }
    assert_eq!(digest(&server).await?, before, "they are only read");
    served.stop().await
}

/// What all keys hold that are not the service's own.
async fn digest(server: &Server) -> Result<Vec<String>> {
    let mut keys: Vec<String> = server.query(&["KEYS", "*"]).await?;
    keys.retain(|key| !key.starts_with("redstart-serve:"));
    keys.sort();
    let mut all = Vec::new();
    for key in keys {
        let value: Vec<String> = server.query(&["DEBUG", "DIGEST-VALUE", &key]).await?;
        all.push(format!("{key} {value:?}"));
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn findings_of_the_doctor_are_on_the_overview() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    for _ in 0..8 {
        server.command(&["KEYS", "*"]).await?;
    }
    let store = Store::connect(&server.url()).await?;
    let served = Served::on_server(&store, "shop", &tokens(), &server.url()).await?;
    let with = |name: &str| {
        let token = format!("Bearer {name}-secret");
        served.client().header("authorization", &token)
    };
    let (mut reader, mut tenant) = (with("reader"), with("tenant"));
    let found = eventually(PATIENCE, async || {
        match reader.get("/?namespace=shop").await {
            Ok(page) => page
                .text()
                .contains("/findings?namespace=shop&amp;rule=keys-command"),
            Err(_) => false,
        }
    });
    ensure!(
        found.await,
        "{}",
        reader.get("/?namespace=shop").await?.text()
    );
    let page = reader
        .get("/findings?namespace=shop&rule=keys-command")
        .await?;
    let text = page.text();
    ensure!(
        page.status == 200 && text.contains("calls since the server started"),
        "{text}"
    );
    ensure!(
        text.contains("redstart doctor explain keys-command"),
        "{text}"
    );
    ensure!(
        reader
            .get("/findings?namespace=shop")
            .await?
            .text()
            .contains("How this comes about")
    );
    ensure!(
        !tenant
            .get("/?namespace=shop")
            .await?
            .text()
            .contains("What is wrong")
    );
    ensure!(tenant.get("/findings?namespace=shop").await?.status == 403);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_is_shown_as_a_command_and_as_curl_to_where_it_was_asked() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "shop", "").await?;
    let page = served
        .client()
        .get("/act/queue.pause?namespace=shop&queue=ma%27il")
        .await?
        .text();
    let host = served.address;
    ensure!(
        page.contains(&format!(
            "http://{host}/v1/queues/ma%27il:pause?namespace=shop"
        )),
        "{page}"
    );
    let command =
        r#"redstart queue --url "$REDSTART_URL" --namespace='shop' --name='ma'\''il' pause"#;
    let escaped = command.replace('"', "&quot;");
    ensure!(page.contains(&escaped) || page.contains(command), "{page}");
    let strange = [("host", "localhost:1/'><script>")];
    let page = served
        .client()
        .send(
            "GET",
            "/act/queue.pause?namespace=shop&queue=m",
            &strange,
            b"",
        )
        .await?;
    ensure!(
        !page.text().contains("<script>'") && !page.text().contains("localhost:1/"),
        "{}",
        page.text()
    );
    served.stop().await
}
