//! dramatiq: `dramatiq:<queue>` (a list of ids), `dramatiq:<queue>.msgs` (a hash of messages by id), `dramatiq:__heartbeats__`.
//! The namespace can be another.

use crate::{
    error::Result,
    found::{Found, KeySet},
    glimpse::json_has,
    library::Library,
    look::Look,
};

pub(super) async fn find(look: &mut Look<'_>, found: &mut Vec<Found>) -> Result<()> {
    let candidates: Vec<String> = look
        .keys
        .iter()
        .filter_map(|key| std::str::from_utf8(key).ok()?.strip_suffix(".msgs"))
        .map(str::to_owned)
        .take(50)
        .collect();
    for queue in candidates {
        let messages = look.one(format!("{queue}.msgs")).await?;
        let shaped = messages.fields().iter().any(|(_, message)| {
            let message = message.as_deref().unwrap_or_default();
            json_has(message, &["queue_name", "actor_name", "args", "message_id"])
        });
        let namespace = queue.split_once(':').map_or("", |(namespace, _)| namespace);
        let heartbeats = look.one(format!("{namespace}:__heartbeats__")).await?;
        let large = !messages.fields().is_empty()
            && messages
                .fields()
                .iter()
                .all(|(id, value)| id.len() == 36 && value.is_none());
        let confidence = match (shaped, large, heartbeats.exists()) {
            (true, _, true) => 0.97,
            (true, _, false) => 0.9,
            (false, true, true) => 0.8,
            _ => continue,
        };
        // A queue has a second one for delayed messages and a third for dead ones.
        let name = queue.trim_end_matches(".DQ").trim_end_matches(".XQ");
        if found
            .iter()
            .any(|one| one.library == Library::Dramatiq && one.subject == name)
        {
            continue;
        }
        let mut one = Found::new(Library::Dramatiq, name, confidence)
            .because(format!("{queue}.msgs holds messages by id"))
            .keys(
                KeySet::default()
                    .key(name)
                    .prefix(format!("{name}."))
                    .prefix(format!("{namespace}:__")),
            );
        if heartbeats.exists() {
            one = one.because(format!("{namespace}:__heartbeats__ lists consumers"));
        }
        found.push(one);
    }
    Ok(())
}
