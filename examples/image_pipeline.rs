//! An image pipeline: a flow of jobs with their results.
//!
//! An upload is resized to three widths side by side. When all are there, a page is published with their sizes. One
//! width fails for good; the page is published without it.
//!
//! ```text
//! cargo run -p redstart-examples --example image_pipeline [redis://localhost]
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use redstart::messaging::{
    Backoff, ChildFailure, ChildResult, Flow, Job, JobContext, JobOutput, JobPolicy, JobRegistry,
    Outcome, Payload, Queue, Returned, State,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Resize {
    image: String,
    width: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Resized {
    width: u32,
    bytes: usize,
}

impl Job for Resize {
    const NAME: &'static str = "resize";

    fn policy() -> JobPolicy {
        JobPolicy::new()
            .attempts(2)
            .backoff(Backoff::fixed(Duration::from_millis(20)))
            .timeout(Duration::from_secs(30))
    }
}

impl JobOutput for Resize {
    type Output = Resized;
}

#[derive(Serialize, Deserialize)]
struct Publish {
    image: String,
}

impl Job for Publish {
    const NAME: &'static str = "publish";
}

impl JobOutput for Publish {
    type Output = Vec<u32>;
}

/// Stands for the place where images are.
#[derive(Clone)]
struct Images {
    bytes_per_pixel: usize,
}

async fn resize(
    Payload(job): Payload<Resize>,
    State(images): State<Images>,
    cx: JobContext,
) -> Result<Returned<Resize>> {
    if job.width > 4000 {
        bail!("{} px is more than {} has", job.width, job.image);
    }
    cx.progress(0.5).await?;
    Ok(Returned(Resized {
        width: job.width,
        bytes: job.width as usize * images.bytes_per_pixel,
    }))
}

async fn publish(Payload(job): Payload<Publish>, cx: JobContext) -> Result<Returned<Publish>> {
    let mut widths = Vec::new();
    for child in cx.children::<Resized>().await? {
        match child {
            ChildResult::Done(Some(resized)) => {
                println!(
                    "  {}: {} px, {} bytes",
                    job.image, resized.width, resized.bytes
                );
                widths.push(resized.width);
            }
            ChildResult::Failed { reason } => println!("  {}: left out, {reason}", job.image),
            _ => {}
        }
    }
    Ok(Returned(widths))
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = redstart_examples::store().await?;
    let queue = Queue::builder(&store, "example", "images")
        .keep_done(1000, Duration::from_secs(60))
        .build()?;
    let registry = JobRegistry::new(Images { bytes_per_pixel: 3 })
        .on(resize)
        .on(publish);
    let worker = queue.serve(&registry).concurrency(8).start().await?;

    let image = "cat.jpg".to_owned();
    let mut flow = Flow::new(&Publish {
        image: image.clone(),
    })?;
    for width in [320, 1280, 9999] {
        let job = Resize {
            image: image.clone(),
            width,
        };
        flow = flow.child(Flow::new(&job)?.on_failure(ChildFailure::Continue));
    }
    let added = queue.add_flow(flow).await?;
    let published = queue.handle::<Publish>(added.root().context("the queue is full")?);
    let outcome = published.result_within(Duration::from_secs(30)).await?;
    ensure!(outcome == Outcome::Done(vec![320, 1280]), "{outcome:?}");
    println!("published with {} of 3 sizes", 2);

    let letters = queue.inspect().dead_letters();
    ensure!(letters.groups().await?[0].count == 1);
    letters.purge(|_| true).await?;
    worker.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}
