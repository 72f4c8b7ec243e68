//! A worker that sends mail: retries, a dead letter, and its replay.
//!
//! One address is invalid and one mail server is down for a while. The mail to the invalid address becomes a dead
//! letter at once. The mail to the server that is down becomes one after three attempts, and is replayed when the
//! server is up again.
//!
//! ```text
//! cargo run -p redstart-examples --example mail_worker [redis://localhost]
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::messaging::{Backoff, Job, JobContext, Queue, UniqueUntil, Verdict};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

#[derive(Serialize, Deserialize)]
struct SendMail {
    to: String,
    subject: String,
}

impl Job for SendMail {
    const NAME: &'static str = "send_mail";
}

fn mail(to: &str, subject: &str) -> SendMail {
    SendMail {
        to: to.to_owned(),
        subject: subject.to_owned(),
    }
}

/// Stands for the mail server.
struct Smtp {
    down: AtomicBool,
}

impl Smtp {
    async fn send(&self, mail: &SendMail) -> Result<()> {
        if mail.to.ends_with("@slow.example") {
            ensure!(
                !self.down.load(Ordering::Relaxed),
                "slow.example does not answer"
            );
        }
        println!("  sent {:?} to {}", mail.subject, mail.to);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = redstart_examples::store().await?;
    let namespace = format!("example-mail-{:08x}", rand::random::<u32>());
    let queue = Queue::new(&store, &namespace, "mail")?;

    println!("three mails, one of them enqueued twice");
    for (to, subject) in [
        ("ann@example.com", "welcome"),
        ("not an address", "welcome"),
        ("bob@slow.example", "your invoice"),
        ("bob@slow.example", "your invoice"),
    ] {
        let enqueued = queue
            .enqueue(&mail(to, subject))
            .unique(&format!("{to}/{subject}"), UniqueUntil::Done)
            .timeout(Duration::from_secs(10))
            .await?;
        println!("  {to}: {enqueued:?}");
    }

    let smtp = Arc::new(Smtp {
        down: AtomicBool::new(true),
    });
    let worker = {
        let smtp = smtp.clone();
        queue
            .worker(move |mail: SendMail, cx: JobContext| {
                let smtp = smtp.clone();
                async move {
                    if !mail.to.contains('@') {
                        return Ok(Verdict::dead("no such address"));
                    }
                    // If this runs again after the mail went out, it does not go out again.
                    cx.once("send", smtp.send(&mail)).await?;
                    anyhow::Ok(Verdict::Done)
                }
            })
            .concurrency(8)
            .retry(
                Backoff::exponential(Duration::from_millis(10), Duration::from_secs(1)),
                3,
            )
            .start()
            .await?
    };

    let letters = queue.inspect().dead_letters();
    let dead = timeout(Duration::from_secs(30), async {
        loop {
            let dead = letters.list(None).await?;
            if dead.len() == 2 {
                return anyhow::Ok(dead);
            }
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await??;
    println!("dead letters");
    for letter in &dead {
        let job = letter.job.as_ref().context("a readable job")?;
        let mail: SendMail = job.decode()?;
        println!(
            "  {} after {} attempts: {}",
            mail.to, job.attempts, letter.reason
        );
    }

    println!("slow.example is up again: replay what failed for that reason");
    smtp.down.store(false, Ordering::Relaxed);
    let replayed = letters
        .replay(|letter| letter.reason.contains("does not answer"))
        .await?;
    ensure!(replayed == 1, "one letter is replayed, not {replayed}");
    timeout(Duration::from_secs(30), async {
        while queue.inspect().counts().await?.unfinished() > 0 {
            sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    })
    .await??;

    let report = worker.shutdown(Duration::from_secs(5)).await?;
    println!(
        "{report:?}; still dead: {}",
        letters.list(None).await?.len()
    );
    letters.purge(|_| true).await?;
    Ok(())
}
