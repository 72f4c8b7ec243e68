//! Healthy instances of real libraries, examined while they work.

use std::{path::PathBuf, time::Duration};

use redstart_testkit::{Foreign, Kind, Language, Server};

use crate::{doctor, examine, sure};

fn specimen(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../redstart-adopt/tests/libraries")
        .join(name)
}

/// BullMQ 5 and 6, Bull, redlock, rate-limiter-flexible, express-rate-limit, connect-redis; Celery, RQ, Dramatiq,
/// redis-py's Lock, limits, Django; Sidekiq.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_libraries_are_recognised_and_not_accused() -> anyhow::Result<()> {
    for (language, script, expected) in [
        (
            Language::Node,
            "specimens.js",
            &["BullMQ", "Bull", "rate-limiter-flexible", "connect-redis"][..],
        ),
        (
            Language::Python,
            "specimens.py",
            &["Celery", "RQ", "Dramatiq"],
        ),
        (Language::Ruby, "specimens.rb", &["Sidekiq"]),
    ] {
        let server = Server::builder(Kind::Redis).start().await?;
        let (port, script) = (server.port().to_string(), specimen(script));
        let args = [port.as_str()];
        let observation = doctor(&server.url())
            .sampled()
            .observed(Duration::from_secs(3));
        // The first examination sees them at work, the second what they have left.
        let (at_work, done) =
            tokio::join!(examine(observation), Foreign::run(language, &script, &args));
        done?;
        let at_work = at_work?;
        assert_eq!(sure(&at_work), [] as [&str; 0], "{script:?} at work");
        let at_rest = examine(doctor(&server.url()).sampled()).await?;
        assert_eq!(sure(&at_rest), [] as [&str; 0], "{script:?} at rest");
        for library in expected {
            assert!(
                at_rest.libraries.iter().any(|known| known == library),
                "{library} of {:?}",
                at_rest.libraries
            );
        }
    }
    Ok(())
}
