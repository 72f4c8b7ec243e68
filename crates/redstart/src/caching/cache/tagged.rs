//! The entries of a tag, without an index: every entry carries its tags.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Inner,
    entry::{self, Head, TagStamp},
    lease,
};
use crate::{
    codec::Codec,
    error::{Error, Result},
};

/// How many entries one step reads.
const PAGE: usize = 500;
/// How much of an entry is read at first: more than its tags need, as a rule, and less than most values have.
const START: usize = 1024;

/// An entry that carries the tag.
struct Candidate {
    name: String,
    group: Option<Vec<u8>>,
    tags: Vec<TagStamp>,
    /// It is beside one of another version.
    beside: bool,
}

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// The names of the entries that carry a tag and are good, whichever version of the program stored them.
    pub(super) async fn tagged_by_scan(&self, tag: &str) -> Result<Vec<String>> {
        let Some(prefix) = self.keys.prefix() else {
            return Err(Error::config(
                "without Tags::Index the entries of a tag are found by their common prefix, which a layout does not have",
            ));
        };
        let found = self.store.scan(&format!("{prefix}{{*")).await?;
        let entries: Vec<(&String, String, bool)> = found
            .iter()
            .filter_map(|key| {
                let (entry, part) = key.split_at(key.find('}')? + 1);
                let name = self.keys.name_of(entry.as_bytes())?.into_owned();
                let beside = match part.strip_prefix(':') {
                    None => false,
                    Some(part) if lease::is_version(part) => true,
                    // A lease or a fence.
                    Some(_) => return None,
                };
                Some((key, name, beside))
            })
            .collect();
        let mut candidates = Vec::new();
        let mut groups = BTreeMap::new();
        for page in entries.chunks(PAGE) {
            let keys: Vec<&String> = page.iter().map(|(key, ..)| *key).collect();
            for ((_, name, beside), head) in page.iter().zip(self.heads(&keys).await?) {
                let Some((group, tags)) = head else { continue };
                if !*beside {
                    groups.insert(name.clone(), group.clone());
                }
                if tags.iter().any(|stamp| *stamp.tag == *tag) {
                    candidates.push(Candidate {
                        name: name.clone(),
                        group,
                        tags,
                        beside: *beside,
                    });
                }
            }
        }
        // An entry beside another one ends with it.
        candidates.retain(|one| !one.beside || groups.get(&one.name) == Some(&one.group));
        let mut names = BTreeSet::new();
        for page in candidates.chunks(PAGE) {
            let lists: Vec<&[TagStamp]> = page.iter().map(|one| &one.tags[..]).collect();
            let valid = self.tags.valid(&self.store, &lists).await?;
            let good = page.iter().zip(valid).filter(|(_, valid)| *valid);
            names.extend(good.map(|(one, _)| one.name.clone()));
        }
        Ok(names.into_iter().collect())
    }

    /// Group and tags of entries; `None` for what is gone or no entry.
    async fn heads(
        &self,
        keys: &[&String],
    ) -> Result<Vec<Option<(Option<Vec<u8>>, Vec<TagStamp>)>>> {
        let mut starts = self.starts(keys, START as i64).await?;
        let short: Vec<usize> = (0..starts.len())
            .filter(|at| matches!(entry::head(&starts[*at]), Head::Longer))
            .collect();
        if !short.is_empty() {
            let keys: Vec<&String> = short.iter().map(|at| keys[*at]).collect();
            for (at, whole) in short.into_iter().zip(self.starts(&keys, 0).await?) {
                starts[at] = whole;
            }
        }
        let head = |bytes: &Vec<u8>| match entry::head(bytes) {
            Head::Tags(tags) => Some((entry::group(bytes).map(<[u8]>::to_vec), tags)),
            Head::Longer | Head::Foreign => None,
        };
        Ok(starts.iter().map(head).collect())
    }

    /// The first `length` bytes of keys; all of them for 0.
    async fn starts(&self, keys: &[&String], length: i64) -> Result<Vec<Vec<u8>>> {
        let mut pipeline = redis::Pipeline::with_capacity(keys.len());
        for key in keys {
            pipeline.cmd("GETRANGE").arg(key).arg(0).arg(length - 1);
        }
        self.store.pipeline(&pipeline).await
    }
}
