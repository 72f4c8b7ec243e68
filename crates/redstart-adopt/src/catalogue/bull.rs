//! Bull 3 and 4: the keys of BullMQ without `meta` and `events`; the options of a job repeat its delay and timestamp.

use crate::{
    error::Result,
    found::{Found, KeySet},
    glimpse::json_has,
    library::Library,
    look::Look,
};

use super::bullmq::{a_job, bases};

pub(super) async fn find(look: &mut Look<'_>, found: &mut Vec<Found>) -> Result<()> {
    for base in bases(look) {
        let known = format!("{base}:id");
        if super::is_owned(found, known.as_bytes()) {
            continue;
        }
        let Some(job) = a_job(look, &base).await? else {
            continue;
        };
        let id = look.one(&known).await?;
        let options = job.field("opts").unwrap_or_default().as_bytes();
        let repeats = json_has(options, &["attempts", "delay", "timestamp"]);
        let confidence = match (repeats, id.is_count()) {
            (true, true) => 0.92,
            (true, false) => 0.75,
            (false, _) => 0.5,
        };
        found.push(
            Found::new(Library::Bull, &base, confidence)
                .because(format!("{} has the fields of a job", job.name()))
                .because("there are neither events nor a declared version, as BullMQ has them")
                .keys(KeySet::default().prefix(format!("{base}:"))),
        );
    }
    Ok(())
}
