//! The jobs of a flow in a row, as the script that adds them reads them.

use super::{BullQueue, Flow, NewJob};

/// A job of a flow.
pub(super) struct Row {
    pub(super) queue: BullQueue,
    /// The place of its parent in the row, from 1; 0 for the parent of all.
    above: usize,
    id: String,
    job: NewJob,
    /// The queue and the id of its parent.
    parent: Option<(String, String)>,
    has_children: bool,
    is_last: bool,
}

impl Row {
    pub(super) fn fields(&self) -> Vec<String> {
        let parent = self.parent.as_ref();
        let parent = parent.map(|(base, id)| (base.as_str(), id.as_str()));
        let mut all = vec![self.queue.prefix.clone(), self.above.to_string()];
        all.extend(fields(
            &self.job,
            &self.id,
            parent,
            self.has_children,
            self.is_last,
        ));
        all
    }
}

/// The parent first, each job before those below it.
pub(super) fn flatten(
    queue: &BullQueue,
    flow: Flow,
    parent: Option<(usize, String, String)>,
    is_last: bool,
    rows: &mut Vec<Row>,
) {
    let id = match flow.job.id_text() {
        "" => uuid(),
        id => id.to_owned(),
    };
    let (above, parent) = match parent {
        Some((above, base, id)) => (above, Some((base, id))),
        None => (0, None),
    };
    rows.push(Row {
        queue: queue.clone(),
        above,
        id: id.clone(),
        job: flow.job,
        parent,
        has_children: !flow.children.is_empty(),
        is_last,
    });
    let (place, count) = (rows.len(), flow.children.len());
    for (n, (queue_of_child, child)) in flow.children.into_iter().enumerate() {
        let parent = Some((place, queue.base.clone(), id.clone()));
        flatten(&queue_of_child, child, parent, n + 1 == count, rows);
    }
}

/// A job as `adding.lua` reads it.
pub(super) fn fields(
    job: &NewJob,
    id: &str,
    parent: Option<(&str, &str)>,
    has_children: bool,
    is_last: bool,
) -> Vec<String> {
    let (parent_key, parent_json) = match parent {
        Some((base, id)) => (format!("{base}:{id}"), job.parent_json(base, id)),
        None => (String::new(), String::new()),
    };
    let (deduplication, ttl) = job.deduplication();
    vec![
        id.to_owned(),
        job.name.clone(),
        job.data.clone(),
        job.options(parent),
        job.delay_ms().to_string(),
        job.priority_level().to_string(),
        job.push().to_owned(),
        deduplication.to_owned(),
        ttl.to_string(),
        parent_key,
        parent_json,
        u8::from(has_children).to_string(),
        u8::from(is_last).to_string(),
    ]
}

/// A random UUID, as Node gives the jobs of a flow.
fn uuid() -> String {
    let bits = rand::random::<u128>();
    let bits = bits & !(0xf << 76) & !(0b11 << 62) | 0x4 << 76 | 0b10 << 62;
    let hex = format!("{bits:032x}");
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_id_is_a_random_uuid() {
        let id = super::uuid();
        assert_eq!((id.len(), &id[14..15]), (36, "4"), "{id}");
        assert!("89ab".contains(&id[19..20]), "{id}");
    }
}
