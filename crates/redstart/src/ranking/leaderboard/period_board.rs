//! One period of a board.

use super::{Leaderboard, PAGE, Policy, RANK, REMOVE, Submitted};
use crate::{
    error::{Error, Result},
    observe,
    ranking::{BoardCursor, BoardEntry, BoardPage, PeriodId, check_member, page::check_page},
    script::Call,
};

/// One period of a [`Leaderboard`]; see [`Leaderboard::at`].
#[derive(Clone, Copy, Debug)]
pub struct PeriodBoard<'a> {
    pub(super) board: &'a Leaderboard,
    pub(super) period: &'a PeriodId,
}

impl PeriodBoard<'_> {
    /// Submits a score if this is the period that the server's clock is in.
    ///
    /// # Errors
    ///
    /// As [`Leaderboard::submit`].
    ///
    /// # Cancel safety
    ///
    /// As [`Leaderboard::submit`].
    pub async fn submit(&self, member: &str, score: f64, policy: Policy) -> Result<Submitted> {
        let score = self.board.check(member, score, policy)?;
        observe::operation("leaderboard.submit", self.board.entity.namespace(), async {
            let periods = std::slice::from_ref(self.period);
            self.board.place_in(periods, member, score, policy).await
        })
        .await
    }

    /// A member's rank and score; `None` if it is not on the board.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member; otherwise those of the
    /// [store](crate::Store::query).
    pub async fn rank(&self, member: &str) -> Result<Option<BoardEntry>> {
        check_member(member)?;
        observe::operation("leaderboard.rank", self.board.entity.namespace(), async {
            let call = self.call(RANK.on(&self.board.entity)).arg(member);
            let found: Option<(u64, f64)> = call
                .idempotent()
                .run(&self.board.store.stale_reads())
                .await?;
            Ok(found.map(|(rank, score)| BoardEntry {
                rank,
                member: member.to_owned(),
                score,
            }))
        })
        .await
    }

    /// The best `n`.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page).
    pub async fn top(&self, n: u32) -> Result<Vec<BoardEntry>> {
        self.slice(0, n).await
    }

    /// Up to `n` entries behind a cursor, or the best ones without a cursor. See [`BoardCursor`] for what holds
    /// while members come and go.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `n` is 0 or over [`Leaderboard::MAX_PAGE`], or for an invalid cursor;
    /// otherwise those of the [store](crate::Store::query).
    pub async fn page(&self, from: Option<&BoardCursor>, n: u32) -> Result<BoardPage> {
        check_page(n, Leaderboard::MAX_PAGE)?;
        if n == 0 {
            return Err(Error::config("a page must have at least one entry"));
        }
        let (stored, last) = from
            .map(BoardCursor::split)
            .transpose()?
            .unwrap_or(("", ""));
        observe::operation("leaderboard.page", self.board.entity.namespace(), async {
            let call = self.call(PAGE.on(&self.board.entity));
            let call = call.arg("after").arg(stored).arg(last).arg(n);
            let rows: Vec<(u64, String, f64, String)> = call
                .idempotent()
                .run(&self.board.store.stale_reads())
                .await?;
            let next = match rows.last() {
                Some((_, member, _, stored)) if rows.len() == n as usize => {
                    Some(BoardCursor::new(stored, member))
                }
                _ => None,
            };
            let entries = rows
                .into_iter()
                .map(|(rank, member, score, _)| BoardEntry {
                    rank,
                    member,
                    score,
                })
                .collect();
            Ok(BoardPage { entries, next })
        })
        .await
    }

    /// Up to `n` entries from the one at `offset` on, the best being at 0. For "ranks 101 to 150"; to walk through a
    /// board use [`page`](Self::page), because offsets shift while members come and go.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `n` is over [`Leaderboard::MAX_PAGE`]; otherwise those of the
    /// [store](crate::Store::query).
    pub async fn slice(&self, offset: u64, n: u32) -> Result<Vec<BoardEntry>> {
        check_page(n, Leaderboard::MAX_PAGE)?;
        // A sorted set holds fewer than 2^32 members, and Lua's numbers are exact up to 2^53.
        if n == 0 || offset > 1 << 50 {
            return Ok(Vec::new());
        }
        observe::operation("leaderboard.slice", self.board.entity.namespace(), async {
            let call = self.call(PAGE.on(&self.board.entity));
            let call = call.arg("slice").arg(offset).arg(offset + u64::from(n) - 1);
            self.entries(call).await
        })
        .await
    }

    /// A member with up to `n` neighbours on each side; empty if it is not on the board.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page) and [`rank`](Self::rank).
    pub async fn around(&self, member: &str, n: u32) -> Result<Vec<BoardEntry>> {
        check_member(member)?;
        check_page(n.saturating_mul(2), Leaderboard::MAX_PAGE)?;
        observe::operation("leaderboard.around", self.board.entity.namespace(), async {
            let call = self.call(PAGE.on(&self.board.entity));
            self.entries(call.arg("around").arg(member).arg(n)).await
        })
        .await
    }

    async fn entries(&self, call: Call<'_>) -> Result<Vec<BoardEntry>> {
        let rows: Vec<(u64, String, f64)> = call
            .idempotent()
            .run(&self.board.store.stale_reads())
            .await?;
        Ok(rows
            .into_iter()
            .map(|(rank, member, score)| BoardEntry {
                rank,
                member,
                score,
            })
            .collect())
    }

    /// Removes a member; `false` if it was not on the board, or if an attempt of this call whose reply was lost has
    /// removed it.
    ///
    /// # Errors
    ///
    /// As [`rank`](Self::rank). The member may be removed all the same: call it again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the member may or may not be removed.
    pub async fn remove(&self, member: &str) -> Result<bool> {
        check_member(member)?;
        observe::operation("leaderboard.remove", self.board.entity.namespace(), async {
            let call = self.call(REMOVE.on(&self.board.entity)).arg(member);
            call.idempotent().run(&self.board.store).await
        })
        .await
    }

    /// How many members the board has.
    ///
    /// # Errors
    ///
    /// Those of the [store](crate::Store::query).
    pub async fn len(&self) -> Result<u64> {
        observe::operation("leaderboard.len", self.board.entity.namespace(), async {
            let key = self.board.period_key(self.period);
            let reads = self.board.store.stale_reads();
            reads.query(redis::cmd("ZCARD").arg(key)).await
        })
        .await
    }

    /// Whether the board has no members.
    ///
    /// # Errors
    ///
    /// Those of the [store](crate::Store::query).
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.len().await? == 0)
    }

    /// The four keys of the period and the board's rules, as the scripts that read take them.
    fn call<'c>(&self, call: Call<'c>) -> Call<'c> {
        let board = self.board;
        let label = board.label(self.period);
        let call = match label.as_str() {
            "" => call.key(),
            label => call.part(label),
        };
        call.part(&format!("{label}:seq"))
            .part(&format!("{label}:scores"))
            .part(&format!("{label}:counts"))
            .arg(board.order.name())
            .arg(board.ties.name())
            .arg(board.sequence_span)
            .arg(board.ties.max_points())
    }
}
