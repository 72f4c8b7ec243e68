//! The sessions of a user: listing them, and ending one or all.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use super::{
    super::{record::Record, token::Token},
    LIST, REVOKE, SessionInfo, Sessions,
};
use crate::{
    error::{Error, Result},
    observe,
};

/// Sessions that one script ends.
const BATCH: usize = 100;
/// Sessions that one script lists.
const PAGE: usize = 500;
/// How often the sessions of a user who has many are looked through for those that moved.
const PASSES: usize = 10;

impl Sessions {
    /// Ends a session; `false` if there was none.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// If dropped before completion, the session may or may not have ended.
    pub async fn revoke(&self, token: &Token) -> Result<bool> {
        let end = self.end_by_token(token);
        observe::operation("session.revoke", self.namespace(), end).await
    }

    pub(super) async fn end_by_token(&self, token: &Token) -> Result<bool> {
        let (digest, id) = (token.digest(), token.handle());
        Ok(self.end(&token.account, &digest, &[id]).await? == 1)
    }

    /// Ends one of a user's sessions by its [handle](SessionInfo::handle); `false` if the user has no such session.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for text that is no handle; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// As for [`revoke`](Self::revoke).
    pub async fn revoke_one(&self, user: &str, handle: &str) -> Result<bool> {
        observe::operation("session.revoke", self.namespace(), async {
            let hexadecimal = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            if handle.len() != 32 || !handle.bytes().all(hexadecimal) {
                return Err(Error::config("malformed session handle"));
            }
            let Some(account) = self.known_account(user).await? else {
                return Ok(false);
            };
            Ok(self.end(&account, "", &[handle.to_owned()]).await? == 1)
        })
        .await
    }

    /// Ends all of a user's sessions and returns how many there were. When it returns, no session that was made before
    /// the call is alive.
    ///
    /// # Errors
    ///
    /// Those of the store; some sessions may have ended.
    ///
    /// # Cancel safety
    ///
    /// If dropped before completion, some sessions may have ended.
    pub async fn revoke_all(&self, user: &str) -> Result<u64> {
        observe::operation("session.revoke_all", self.namespace(), async {
            let Some(account) = self.known_account(user).await? else {
                return Ok(0);
            };
            let mut all = 0;
            for _ in 0..PASSES {
                let ids = self.ids(&account).await?;
                let mut ended = 0;
                for batch in ids.chunks(BATCH) {
                    ended += self.end(&account, "", batch).await?;
                }
                all += ended;
                // One page is one moment. Between two of them, a process with a shorter idle timeout may have renewed a
                // session to an earlier end, so another look must find none.
                if ids.len() < PAGE || ended == 0 {
                    break;
                }
            }
            Ok(all)
        })
        .await
    }

    /// A user's live sessions.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn list(&self, user: &str) -> Result<Vec<SessionInfo>> {
        observe::operation("session.list", self.namespace(), async {
            let Some(account) = self.known_account(user).await? else {
                return Ok(Vec::new());
            };
            let entity = self.entity(&account)?;
            let ids = self.ids(&account).await?;
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let mut pipeline = redis::pipe();
            for id in &ids {
                pipeline.cmd("HGETALL").arg(entity.part(id));
            }
            let sessions: Vec<HashMap<String, String>> = self.0.store.pipeline(&pipeline).await?;
            ids.into_iter()
                .zip(sessions)
                .filter(|(_, fields)| !fields.is_empty())
                .map(|(handle, fields)| {
                    let record = Record::read(fields, Duration::ZERO)?;
                    Ok(SessionInfo {
                        handle,
                        label: record.label,
                        created: record.created,
                        seen: record.seen,
                        remembered: record.remembered,
                        fields: record.fields,
                    })
                })
                .collect()
        })
        .await
    }

    async fn ids(&self, account: &[u8; 16]) -> Result<Vec<String>> {
        let entity = self.entity(account)?;
        let (mut ids, mut seen) = (Vec::new(), HashSet::new());
        let (mut after, mut ends) = (String::new(), String::new());
        loop {
            let page: Vec<(String, String)> = LIST
                .on(&entity)
                .key()
                .arg(PAGE)
                .arg(&ends)
                .arg(&after)
                .idempotent()
                .run(&self.0.store)
                .await?;
            let is_last = page.len() < PAGE;
            if let Some(last) = page.last() {
                (after, ends) = last.clone();
            }
            for (id, _) in page {
                // One that was renewed meanwhile is in a later page again.
                if seen.insert(id.clone()) {
                    ids.push(id);
                }
            }
            if is_last {
                return Ok(ids);
            }
        }
    }

    /// Ends sessions of an account. With a digest, only if that is of the first one's token.
    async fn end(&self, account: &[u8; 16], digest: &str, ids: &[String]) -> Result<u64> {
        let entity = self.entity(account)?;
        let mut call = REVOKE.on(&entity).key();
        for id in ids {
            call = call.part(id);
        }
        let call = call.arg(digest).arg(ids);
        call.idempotent().run(&self.0.store).await
    }
}
