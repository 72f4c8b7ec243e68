//! Examinations of servers that work, of servers that race, and of servers that do not help.

mod cost;
mod hostile;
mod libraries;
mod race;

use std::time::Duration;

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use redstart_doctor::{Doctor, DoctorBuilder, Progress, Report, SURE};

/// A client over TCP, as programs on other hosts are, with time for a busy machine.
async fn client(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(60)))
        .set_response_timeout(Some(Duration::from_secs(60)));
    redis::Client::open(url)?
        .get_multiplexed_async_connection_with_config(&patient)
        .await
}

/// An examination with time for a busy machine.
fn doctor(url: &str) -> DoctorBuilder {
    Doctor::builder(url)
        .gap(Duration::from_millis(100))
        .patience(Duration::from_secs(60))
}

async fn examine(builder: DoctorBuilder) -> anyhow::Result<Report> {
    Ok(builder.build()?.examine(&Progress::default()).await?)
}

/// What the report is sure of, in words.
fn sure(report: &Report) -> Vec<String> {
    report
        .findings
        .iter()
        .filter(|finding| finding.confidence >= SURE)
        .map(|finding| format!("{} {}: {}", finding.rule, finding.subject, finding.evidence))
        .collect()
}

fn has(report: &Report, rule: &str) -> bool {
    report
        .findings
        .iter()
        .any(|finding| finding.rule == rule && finding.confidence >= SURE)
}
