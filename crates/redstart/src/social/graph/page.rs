//! Lists of accounts, page by page.

use super::{Graph, Side, check_account};
use crate::{
    error::{Error, Result},
    observe,
    script::{Call, Script},
};

pub(in crate::social) static PAGE: Script = Script::new(
    "graph.page",
    concat!(
        include_str!("../../script/smaller.lua"),
        include_str!("../../script/position.lua"),
        include_str!("page.lua")
    ),
);

/// One account of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Edge {
    /// The account.
    pub account: String,
    /// When it was added, by the server's clock, in microseconds since the epoch.
    pub since_micros: u64,
}

/// Where a page ended: the time and the name of its last account. It is text, so that a web service can hand it out.
///
/// The next page starts behind that point. What is followed or unfollowed between two pages neither repeats nor hides
/// other accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeCursor(String);

impl EdgeCursor {
    /// The cursor as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A cursor from its text. It is validated when it is used.
    pub fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    fn after(edge: &Edge) -> Self {
        Self(format!("{}:{}", edge.since_micros, edge.account))
    }

    fn split(cursor: Option<&EdgeCursor>) -> Result<(&str, &str)> {
        let Some(cursor) = cursor else {
            return Ok(("", ""));
        };
        match cursor.0.split_once(':') {
            Some((since, account)) if since.parse::<u64>().is_ok() && !account.is_empty() => {
                Ok((since, account))
            }
            _ => Err(Error::config("invalid page cursor")),
        }
    }
}

/// Accounts, the newest first, and where the next page starts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EdgePage {
    /// The accounts.
    pub edges: Vec<Edge>,
    /// Where the next page starts; `None` after the last account.
    pub next: Option<EdgeCursor>,
}

impl Graph {
    /// The followers of an account, the newest first.
    ///
    /// A page costs the same wherever it is and however many followers there are. See [`EdgeCursor`] for what holds while
    /// accounts come and go.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad account or cursor or a page over [`MAX_PAGE`](Self::MAX_PAGE);
    /// otherwise those of the [store](crate::Store::query).
    pub async fn followers(
        &self,
        account: &str,
        from: Option<&EdgeCursor>,
        n: u32,
    ) -> Result<EdgePage> {
        self.page(Side::Followers, account, from, n).await
    }

    /// The accounts that an account follows, the newest first; as [`followers`](Self::followers).
    ///
    /// # Errors
    ///
    /// As [`followers`](Self::followers).
    pub async fn following(
        &self,
        account: &str,
        from: Option<&EdgeCursor>,
        n: u32,
    ) -> Result<EdgePage> {
        self.page(Side::Following, account, from, n).await
    }

    /// The accounts that an account blocks, the newest first; as [`followers`](Self::followers).
    ///
    /// # Errors
    ///
    /// As [`followers`](Self::followers).
    pub async fn blocked(
        &self,
        account: &str,
        from: Option<&EdgeCursor>,
        n: u32,
    ) -> Result<EdgePage> {
        self.page(Side::Blocks, account, from, n).await
    }

    async fn page(
        &self,
        side: Side,
        account: &str,
        from: Option<&EdgeCursor>,
        n: u32,
    ) -> Result<EdgePage> {
        check_account(account)?;
        check_page(n)?;
        observe::operation("graph.page", self.namespace(), async {
            let call = self.page_call(side, None, account, from, n)?;
            // Whom an account blocks decides what others may see.
            let store = match side {
                Side::Blocks => self.store.clone(),
                _ => self.store.stale_reads(),
            };
            let rows: Vec<(String, f64, u8)> = call.run(&store).await?;
            Ok(to_page(rows, n))
        })
        .await
    }

    pub(super) fn page_call(
        &self,
        side: Side,
        other: Option<Side>,
        account: &str,
        from: Option<&EdgeCursor>,
        n: u32,
    ) -> Result<Call<'_>> {
        let (since, last) = EdgeCursor::split(from)?;
        let mut call = PAGE.on(self.shard(account)).part(&side.of(account));
        if let Some(other) = other {
            call = call.part(&other.of(account));
        }
        Ok(call.arg(since).arg(last).arg(n).idempotent())
    }

    /// The accounts that an account follows and that follow it back, the newest follows first.
    ///
    /// Reads up to [`MAX_PAGE`](Self::MAX_PAGE) follows per round trip, until there are `n` mutuals or no more follows.
    ///
    /// # Errors
    ///
    /// As [`followers`](Self::followers).
    pub async fn mutuals(
        &self,
        account: &str,
        from: Option<&EdgeCursor>,
        n: u32,
    ) -> Result<EdgePage> {
        check_account(account)?;
        check_page(n)?;
        observe::operation("graph.mutuals", self.namespace(), async {
            let mut edges = Vec::new();
            let mut from = from.cloned();
            loop {
                let call = self.page_call(
                    Side::Following,
                    Some(Side::Followers),
                    account,
                    from.as_ref(),
                    Self::MAX_PAGE,
                )?;
                let reads = self.store.stale_reads();
                let rows: Vec<(String, f64, u8)> = call.run(&reads).await?;
                let whole = rows.len() < Self::MAX_PAGE as usize;
                let count = rows.len();
                for (at, (account, since, mutual)) in rows.into_iter().enumerate() {
                    let edge = Edge {
                        account,
                        since_micros: since as u64,
                    };
                    from = Some(EdgeCursor::after(&edge));
                    if mutual == 1 {
                        edges.push(edge);
                        if edges.len() == n as usize {
                            let last = whole && at + 1 == count;
                            return Ok(EdgePage {
                                edges,
                                next: from.filter(|_| !last),
                            });
                        }
                    }
                }
                if whole {
                    return Ok(EdgePage { edges, next: None });
                }
            }
        })
        .await
    }
}

fn to_page(rows: Vec<(String, f64, u8)>, n: u32) -> EdgePage {
    let edges: Vec<Edge> = rows
        .into_iter()
        .map(|(account, since, _)| Edge {
            account,
            since_micros: since as u64,
        })
        .collect();
    let whole = edges.len() < n as usize;
    let next = edges.last().filter(|_| !whole).map(EdgeCursor::after);
    EdgePage { edges, next }
}

fn check_page(n: u32) -> Result<()> {
    if (1..=Graph::MAX_PAGE).contains(&n) {
        return Ok(());
    }
    Err(Error::config(format!(
        "a page must have 1 to {} accounts",
        Graph::MAX_PAGE
    )))
}
