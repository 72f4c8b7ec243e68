//! Accounts that an account might want to follow.

use std::collections::{BTreeMap, HashSet};

use super::{Graph, Side, check_account};
use crate::{error::Result, observe, script::Batch};

/// An account that another might want to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Suggestion {
    /// The account.
    pub account: String,
    /// Who follows it among the accounts that the other follows, by name.
    pub common: Vec<String>,
}

type Rows = Vec<(String, f64, u8)>;

impl Graph {
    /// Accounts that the follows of an account follow and the account itself does not, by name, with who follows
    /// them. Excludes the account itself and those that it follows or blocks, however many these are.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a bad account; otherwise those of the [store](crate::Store::query).
    pub async fn followed_by_my_friends(&self, account: &str) -> Result<Vec<Suggestion>> {
        check_account(account)?;
        observe::operation("graph.suggestions", self.namespace(), async {
            let mut batch = Batch::new();
            for side in [Side::Following, Side::Blocks] {
                batch.push(self.page_call(side, None, account, None, Self::MAX_FRIENDS)?);
            }
            let mut lists = Vec::with_capacity(2);
            for list in batch.run::<Rows>(&self.store).await? {
                lists.push(names(list?));
            }
            let (blocked, friends) = (
                lists.pop().unwrap_or_default(),
                lists.pop().unwrap_or_default(),
            );
            let mut found = self.follows_of(&friends).await?;
            found.remove(account);
            for known in friends.iter().chain(&blocked) {
                found.remove(known);
            }
            let most = Self::MAX_FRIENDS as usize;
            if friends.len() >= most || blocked.len() >= most {
                self.remove_known(account, &mut found).await?;
            }
            let suggestions = found.into_iter().map(|(account, mut common)| {
                common.sort_unstable();
                Suggestion { account, common }
            });
            Ok(suggestions.collect())
        })
        .await
    }

    /// The accounts that these accounts follow, each with its followers among them. One round trip to each node.
    async fn follows_of(&self, friends: &[String]) -> Result<BTreeMap<String, Vec<String>>> {
        let mut batch = Batch::new();
        for friend in friends {
            batch.push(self.page_call(Side::Following, None, friend, None, Self::MAX_FOLLOWS)?);
        }
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (friend, list) in friends.iter().zip(batch.run::<Rows>(&self.store).await?) {
            for candidate in names(list?) {
                found.entry(candidate).or_default().push(friend.clone());
            }
        }
        Ok(found)
    }

    /// Removes the candidates that the account follows or blocks: its lists are longer than what was read of them.
    async fn remove_known(
        &self,
        account: &str,
        found: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<()> {
        /// Members of one command; more would block the server for others.
        const CHUNK: usize = 1000;
        let candidates: Vec<&String> = found.keys().collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let shard = self.shard(account);
        let mut pipeline = redis::Pipeline::new();
        for chunk in candidates.chunks(CHUNK) {
            for side in [Side::Following, Side::Blocks] {
                let scores = pipeline.cmd("ZMSCORE").arg(shard.part(&side.of(account)));
                for candidate in chunk {
                    scores.arg(candidate.as_str());
                }
            }
        }
        let scores: Vec<Vec<Option<f64>>> = self.store.pipeline(&pipeline).await?;
        let mut known: HashSet<String> = HashSet::new();
        for (chunk, sides) in candidates.chunks(CHUNK).zip(scores.chunks(2)) {
            for side in sides {
                let listed = chunk.iter().zip(side).filter(|(_, score)| score.is_some());
                known.extend(listed.map(|(candidate, _)| (*candidate).clone()));
            }
        }
        found.retain(|candidate, _| !known.contains(candidate));
        Ok(())
    }

    /// The `n` accounts of [`followed_by_my_friends`](Self::followed_by_my_friends) with the most common friends; by
    /// name among equals.
    ///
    /// # Errors
    ///
    /// As [`followed_by_my_friends`](Self::followed_by_my_friends).
    pub async fn suggestions(&self, account: &str, n: usize) -> Result<Vec<Suggestion>> {
        let mut all = self.followed_by_my_friends(account).await?;
        // The sort is stable, and they are ordered by name.
        all.sort_by_key(|suggestion| std::cmp::Reverse(suggestion.common.len()));
        all.truncate(n);
        Ok(all)
    }
}

fn names(rows: Rows) -> Vec<String> {
    rows.into_iter().map(|(account, _, _)| account).collect()
}
