//! A leaderboard: ranks, scores and pages as a model has them.

use std::{sync::Arc, time::Duration};

use redstart::{
    Store,
    ranking::{BoardEntry, Leaderboard, Order, Policy, Ties},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History, Model},
    world::World,
};

/// Rank, member and score.
type Row = (u64, u64, i64);

#[derive(Clone, Debug, PartialEq)]
enum Call {
    /// Member, points, and the answer: rank, score now, score before.
    Submit(u64, i64, Option<(u64, i64, Option<i64>)>),
    /// Member, and whether it was there.
    Remove(u64, Option<bool>),
    /// Member, and its rank and score.
    Rank(u64, Option<(u64, i64)>),
    /// The whole board, by rank and member.
    Top(Vec<Row>),
}

/// Members and scores, in the order in which they reached them; `None` if data was lost.
type Board = Option<Vec<(u64, i64)>>;

#[derive(Clone, Copy, Debug)]
struct Rules {
    order: Order,
    ties: Ties,
    policy: Policy,
}

impl Rules {
    fn is_better(&self, one: i64, other: i64) -> bool {
        match self.order {
            Order::HighestFirst => one > other,
            Order::LowestFirst => one < other,
        }
    }

    fn rank(&self, board: &[(u64, i64)], member: u64) -> Option<(u64, i64)> {
        let at = board.iter().position(|(other, _)| *other == member)?;
        let score = board[at].1;
        let mut ahead: Vec<_> = board
            .iter()
            .enumerate()
            .filter(|(place, (_, other))| {
                let first = matches!(self.ties, Ties::EarliestFirst { .. }) && *place < at;
                self.is_better(*other, score) || *other == score && first
            })
            .map(|(_, (_, other))| *other)
            .collect();
        if self.ties == Ties::Dense {
            ahead.sort_unstable();
            ahead.dedup();
        }
        Some((ahead.len() as u64 + 1, score))
    }

    fn rows(&self, board: &[(u64, i64)]) -> Vec<Row> {
        let mut rows: Vec<Row> = board
            .iter()
            .filter_map(|(member, score)| Some((self.rank(board, *member)?.0, *member, *score)))
            .collect();
        rows.sort_unstable();
        rows
    }
}

impl Model for Rules {
    type State = Board;
    type Call = Call;

    fn initial(&self) -> Board {
        Some(Vec::new())
    }

    fn unknown(&self) -> Board {
        None
    }

    fn step(&self, state: &Board, call: &Call) -> Option<Board> {
        let Some(board) = state else {
            // A whole board tells; of equal scores, the one with the better rank came first.
            return Some(match call {
                Call::Top(rows) => {
                    let rows = rows.iter();
                    Some(rows.map(|(_, member, score)| (*member, *score)).collect())
                }
                _ => None,
            });
        };
        let mut board = board.clone();
        match call {
            Call::Submit(member, points, answer) => {
                let at = board.iter().position(|(other, _)| other == member);
                let before = at.map(|at| board[at].1);
                let score = match (before, self.policy) {
                    (Some(before), Policy::Sum) => before + points,
                    (Some(before), Policy::Best) if !self.is_better(*points, before) => before,
                    _ => *points,
                };
                if before != Some(score) {
                    board.retain(|(other, _)| other != member);
                    board.push((*member, score));
                }
                let (rank, score) = self.rank(&board, *member)?;
                let fits = answer.is_none_or(|answer| answer == (rank, score, before));
                fits.then_some(Some(board))
            }
            Call::Remove(member, answer) => {
                let count = board.len();
                board.retain(|(other, _)| other != member);
                let there = board.len() < count;
                answer
                    .is_none_or(|answer| answer == there)
                    .then_some(Some(board))
            }
            Call::Rank(member, answer) => {
                (self.rank(&board, *member) == *answer).then_some(Some(board))
            }
            Call::Top(rows) => (self.rows(&board) == *rows).then_some(Some(board)),
        }
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match call {
            Call::Submit(member, points, _) => Some(Call::Submit(*member, *points, None)),
            Call::Remove(member, _) => Some(Call::Remove(*member, None)),
            Call::Rank(..) | Call::Top(_) => None,
        }
    }
}

pub(super) struct Placing {
    rules: Rules,
    members: u64,
    history: History<Call>,
}

fn number(member: &str) -> u64 {
    member.trim_start_matches("player").parse().unwrap_or(99)
}

fn rows(entries: &[BoardEntry]) -> Vec<Row> {
    let row = |entry: &BoardEntry| (entry.rank, number(&entry.member), entry.score as i64);
    let mut rows: Vec<Row> = entries.iter().map(row).collect();
    rows.sort_unstable();
    rows
}

impl Placing {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[31]);
        let earliest = Ties::EarliestFirst { max_points: 10_000 };
        Self {
            rules: Rules {
                order: *dice.pick(&[Order::HighestFirst, Order::LowestFirst]),
                ties: *dice.pick(&[earliest, Ties::Competition, Ties::Dense]),
                policy: *dice.pick(&[Policy::Best, Policy::Last, Policy::Sum]),
            },
            members: dice.between(2, 4),
            history: History::default(),
        }
    }

    fn board(&self, store: &Store, name: &str) -> Leaderboard {
        let builder = Leaderboard::builder(store, "sim", name);
        let builder = builder.order(self.rules.order).ties(self.rules.ties);
        match builder.build() {
            Ok(board) => board,
            Err(error) => panic!("a leaderboard cannot be made: {error}"),
        }
    }

    async fn operate(&self, client: &mut Client, board: &Leaderboard) {
        let world = client.world.clone();
        let deadline = world.plan.deadline;
        let member = client.dice.below(self.members);
        let name = format!("player{member}");
        let twin = client.twin();
        let now = || world.now();
        match client.dice.below(10) {
            0..=4 => {
                let points = client.dice.between(1, 4) as i64;
                let call = self
                    .history
                    .begin(Call::Submit(member, points, None), now());
                let submit = board.submit(&name, points as f64, self.rules.policy);
                let submit = client.perhaps_dropped(100, submit);
                let placed = match twin.timed("submit", deadline, submit).await {
                    Some(Ok(placed)) => placed,
                    Some(Err(error)) if !error.is_in_doubt() => return self.history.cancel(call),
                    _ => return,
                };
                let before = placed.previous.map(|score| score as i64);
                let answer = Some((placed.rank, placed.score as i64, before));
                client.note(format_args!("{name} +{points}: {answer:?}"));
                let answered = Call::Submit(member, points, answer);
                self.history.end(call, answered, now());
            }
            5 => {
                // If its connection breaks it is repeated, and its first copy may arrive too, at any time.
                if !world.plan.faults.is_empty() {
                    self.history.begin(Call::Remove(member, None), now());
                }
                let call = self.history.begin(Call::Remove(member, None), now());
                match client.call("remove", 1, board.remove(&name)).await {
                    Some(Ok(there)) => {
                        let answered = Call::Remove(member, Some(there));
                        self.history.end(call, answered, now());
                    }
                    Some(Err(error)) if world.surely_failed(&error, true) => {
                        self.history.cancel(call);
                    }
                    _ => {}
                }
            }
            6 | 7 => {
                let call = self.history.begin(Call::Rank(member, None), now());
                match client.call("rank", 1, board.rank(&name)).await {
                    Some(Ok(entry)) => {
                        let answer = entry.map(|entry| (entry.rank, entry.score as i64));
                        self.history.end(call, Call::Rank(member, answer), now());
                    }
                    _ => self.history.cancel(call),
                }
            }
            _ => {
                let call = self.history.begin(Call::Top(Vec::new()), now());
                match client.call("top", 1, board.top(10)).await {
                    Some(Ok(entries)) => {
                        let answered = Call::Top(rows(&entries));
                        self.history.end(call, answered, now());
                    }
                    _ => self.history.cancel(call),
                }
            }
        }
    }
}

impl Workload for Placing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let board = self.board(&store, "board");
            while client.next_operation() {
                client.rest(0, 400).await;
                self.operate(&mut client, &board).await;
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let board = self.board(store, &format!("works{}", client.index));
        Box::pin(async move {
            let failed = |error: redstart::Error| error.to_string();
            let placed = board.submit("one", 5.0, Policy::Last).await;
            match placed.map_err(failed)?.rank {
                1 => Ok(()),
                rank => Err(format!("the only member has rank {rank}")),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let store = client.store().await;
            let board = self.board(&store, "board");
            // After a loss, what follows is judged by what this finds.
            let from = client.world.now();
            match board.top(10).await {
                Ok(entries) => self.history.add(Event {
                    call: Call::Top(rows(&entries)),
                    from,
                    to: Some(client.world.now()),
                }),
                Err(error) => client
                    .world
                    .breach(format!("the board cannot be read: {error}")),
            }
            for _ in 0..6 {
                self.operate(&mut client, &board).await;
            }
            let events = self.history.events();
            // A board has several keys, and a loss while they moved one by one leaves parts of two times.
            if !client.world.may_be_torn() {
                client.world.explain("the board", &self.rules, &events);
            }
        })
    }
}
