//! RQ: `rq:queues`, `rq:queue:<name>` (a list of ids), `rq:job:<id>` (a hash), `rq:worker:<name>` (a hash with its version).

use std::collections::BTreeSet;

use crate::{
    error::Result,
    found::{Found, KeySet},
    library::Library,
    look::Look,
};

const JOB: &[&str] = &["created_at", "data", "origin", "status"];

pub(super) async fn find(look: &mut Look<'_>, found: &mut Vec<Found>) -> Result<()> {
    let queues = look.one("rq:queues").await?;
    let workers = look.one("rq:workers").await?;
    let mut version = None;
    if let Some(worker) = workers.members().first() {
        let worker = look.one(worker).await?;
        if worker.has_fields(&["birth", "queues", "python_version"]) {
            version = worker.field("version").map(str::to_owned);
        }
    }
    let mut names: BTreeSet<Vec<u8>> = queues.members().iter().cloned().collect();
    names.extend(
        look.keys
            .iter()
            .filter(|key| key.starts_with(b"rq:queue:"))
            .cloned(),
    );
    let sampled = look.seen().find(|glimpse| glimpse.has_fields(JOB)).cloned();
    for name in names.into_iter().take(50) {
        let Ok(name) = String::from_utf8(name) else {
            continue;
        };
        let list = look.one(&name).await?;
        let job = match list.first() {
            Some(id) => look.one([b"rq:job:", id].concat()).await?,
            None => look.one("rq:job:").await?,
        };
        let job = [Some(job), sampled.clone()]
            .into_iter()
            .flatten()
            .find(|job| job.has_fields(JOB));
        let confidence = match (&job, &version) {
            (Some(_), Some(_)) => 0.98,
            (Some(_), None) => 0.95,
            (None, Some(_)) => 0.9,
            (None, None) => continue,
        };
        let mut one = Found::new(Library::Rq, &name, confidence)
            .version(version.clone())
            .keys(KeySet::default().prefix("rq:"));
        if let Some(job) = &job {
            one = one.because(format!("{} has the fields of a job", job.name()));
        }
        if version.is_some() {
            one = one.because("a worker says its version");
        }
        found.push(one);
    }
    Ok(())
}
