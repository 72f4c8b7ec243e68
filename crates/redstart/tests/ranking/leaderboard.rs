use std::{collections::BTreeMap, time::Duration};

use jiff::{Timestamp, civil::date, tz::TimeZone};
use proptest::prelude::*;
use redstart::{
    Store,
    key::Layout,
    ranking::{BoardCursor, BoardEntry, Leaderboard, Order, Period, Policy, Submitted, Ties},
};
use redstart_testkit::{Backend, matrix, scale};

const RETAIN: Duration = Duration::from_secs(8 * 86400);

/// A board as a list that is sorted for every question.
#[derive(Default)]
struct Model {
    /// Score, and the number of the submission that reached it.
    members: BTreeMap<String, (f64, u64)>,
    submissions: u64,
}

impl Model {
    fn submit(&mut self, member: &str, score: f64, policy: Policy, order: Order) {
        let old = self.members.get(member).map(|(score, _)| *score);
        let new = match (old, policy) {
            (None, _) | (_, Policy::Last) => score,
            (Some(old), Policy::Sum) => old + score,
            (Some(old), Policy::Best) if order == Order::HighestFirst => old.max(score),
            (Some(old), Policy::Best) => old.min(score),
        };
        if old != Some(new) {
            self.submissions += 1;
            self.members
                .insert(member.to_owned(), (new, self.submissions));
        }
    }

    /// `(rank, member, score)`, the best first.
    fn list(&self, ties: Ties, order: Order) -> Vec<(u64, String, f64)> {
        let mut rows: Vec<(&String, f64, u64)> = self
            .members
            .iter()
            .map(|(member, (score, at))| (member, *score, *at))
            .collect();
        rows.sort_by(|a, b| {
            let scores = match order {
                Order::HighestFirst => b.1.total_cmp(&a.1),
                Order::LowestFirst => a.1.total_cmp(&b.1),
            };
            let names = match order {
                Order::HighestFirst => b.0.cmp(a.0),
                Order::LowestFirst => a.0.cmp(b.0),
            };
            match ties {
                Ties::EarliestFirst { .. } => scores.then(a.2.cmp(&b.2)),
                _ => scores.then(names),
            }
        });
        let mut list: Vec<(u64, String, f64)> = Vec::new();
        for (place, (member, score, _)) in (1..).zip(rows) {
            let rank = match (list.last(), ties) {
                (_, Ties::EarliestFirst { .. }) | (None, _) => place,
                (Some((rank, _, above)), _) if *above == score => *rank,
                (Some((rank, _, _)), Ties::Dense) => rank + 1,
                (Some(_), _) => place,
            };
            list.push((rank, member.clone(), score));
        }
        list
    }
}

fn rows(entries: Vec<BoardEntry>) -> Vec<(u64, String, f64)> {
    entries
        .into_iter()
        .map(|e| (e.rank, e.member, e.score))
        .collect()
}

/// A member, a score, a policy, and whether the member is removed instead.
type Step = (u8, u16, Policy, bool);

fn history() -> impl Strategy<Value = (Order, Ties, Vec<Step>)> {
    let order = prop_oneof![Just(Order::HighestFirst), Just(Order::LowestFirst)];
    let ties = prop_oneof![
        Just(Ties::EarliestFirst { max_points: 1000 }),
        Just(Ties::Competition),
        Just(Ties::Dense)
    ];
    let policy = prop_oneof![Just(Policy::Best), Just(Policy::Last), Just(Policy::Sum)];
    let step = (0..12u8, 0..8u16, policy, prop::bool::weighted(0.1));
    (order, ties, prop::collection::vec(step, 1..60))
}

/// Plays a history on a board and on the model; every answer must be the same.
async fn play(
    store: &Store,
    namespace: &str,
    name: &str,
    (order, ties, steps): (Order, Ties, Vec<Step>),
) -> anyhow::Result<()> {
    let board = Leaderboard::builder(store, namespace, name)
        .order(order)
        .ties(ties)
        .build()?;
    let mut model = Model::default();
    for (member, score, policy, remove) in steps {
        let member = format!("m{member}");
        if remove {
            let was = model.members.remove(&member).is_some();
            anyhow::ensure!(board.remove(&member).await? == was, "removing {member}");
            continue;
        }
        let previous = model.members.get(&member).map(|(score, _)| *score);
        model.submit(&member, f64::from(score), policy, order);
        let placed = board.submit(&member, f64::from(score), policy).await?;
        let list = model.list(ties, order);
        let expected = list.iter().find(|(_, m, _)| *m == member);
        let (rank, _, score) = expected.expect("it was placed");
        let placed = (placed.rank, placed.score, placed.previous);
        anyhow::ensure!(placed == (*rank, *score, previous), "{member}: {placed:?}");
    }
    let list = model.list(ties, order);
    anyhow::ensure!(board.len().await? == list.len() as u64, "the length");
    anyhow::ensure!(rows(board.top(100).await?) == list, "the top");
    for (place, (rank, member, score)) in list.iter().enumerate() {
        let entry = board.rank(member).await?.expect("on the board");
        anyhow::ensure!(
            (entry.rank, entry.score) == (*rank, *score),
            "{member}: {entry:?}"
        );
        let around = rows(board.around(member, 2).await?);
        let expected = &list[place.saturating_sub(2)..(place + 3).min(list.len())];
        anyhow::ensure!(around == expected, "around {member}: {around:?}");
    }
    let page = rows(board.slice(3, 4).await?);
    anyhow::ensure!(page == list[3.min(list.len())..7.min(list.len())], "a page");
    Ok(())
}

/// With shrinking, so that a fault comes with its shortest history.
#[test]
fn every_rule_equals_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = runtime
        .block_on(Store::connect("memory://?cluster_strict=1"))
        .expect("a store");
    let boards = std::cell::Cell::new(0);
    let cases = scale(80, "LEADERBOARD_CASES") as u32;
    proptest!(ProptestConfig::with_cases(cases), |(history in history())| {
        boards.set(boards.get() + 1);
        let name = format!("b{}", boards.get());
        let played = runtime.block_on(play(&store, "model", &name, history));
        played.map_err(|error| TestCaseError::fail(error.to_string()))?;
    });
}

matrix! {
    async fn every_rule_equals_the_model_on_every_backend(backend: &Backend) -> anyhow::Result<()> {
        use proptest::{strategy::ValueTree as _, test_runner::TestRunner};
        let store = Store::connect(backend.url()).await?;
        let mut runner = TestRunner::default();
        for case in 0..scale(20, "LEADERBOARD_HISTORIES") {
            let history = history().new_tree(&mut runner).expect("a history").current();
            let told = format!("{history:?}");
            let played = play(&store, backend.namespace(), &format!("b{case}"), history).await;
            assert!(played.is_ok(), "{played:?} in {told}");
        }
        Ok(())
    }
}

matrix! {
    async fn concurrent_ties_are_in_the_order_of_their_submission(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let board = Leaderboard::builder(&store, backend.namespace(), "race")
            .ties(Ties::EarliestFirst { max_points: 100 })
            .build()?;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..64 {
            let board = board.clone();
            tasks.spawn(async move {
                let member = format!("m{n}");
                let placed = board.submit(&member, 7.0, Policy::Best).await?;
                // Repeating a score does not lose the place.
                board.submit(&member, 7.0, Policy::Best).await?;
                board.submit(&member, 3.0, Policy::Best).await?;
                Ok::<_, redstart::Error>((placed.rank, member))
            });
        }
        let mut placed = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            placed.push(ended??);
        }
        // With equal scores everybody is placed last at first, so the ranks are the order of submission.
        placed.sort();
        let list: Vec<(u64, String)> =
            board.top(64).await?.into_iter().map(|e| (e.rank, e.member)).collect();
        assert_eq!(list, placed);
        assert_eq!(placed.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), (1..=64).collect::<Vec<_>>());
        Ok(())
    }

    async fn no_key_of_a_period_is_without_expiry(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for (n, ties) in [Ties::EarliestFirst { max_points: 9 }, Ties::Competition, Ties::Dense].into_iter().enumerate() {
            let board = Leaderboard::builder(&store, backend.namespace(), &format!("b{n}"))
                .ties(ties)
                .period(Period::Day, TimeZone::UTC, RETAIN)
                .build()?;
            for score in [1.0, 2.0, 2.0] {
                board.submit("a", score, Policy::Last).await?;
                board.submit("b", score, Policy::Last).await?;
            }
            let day = board.current().await?;
            let end = day.end().expect("a day ends").as_millisecond() + RETAIN.as_millis() as i64;
            let keys = store.scan(&format!("{}:*b{n}*", backend.namespace())).await?;
            assert!(!keys.is_empty());
            for key in keys {
                assert_eq!(store.query::<i64>(redis::cmd("PEXPIRETIME").arg(&key)).await?, end, "{key}");
            }
        }
        Ok(())
    }

    async fn a_closed_period_takes_nothing(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let board = Leaderboard::builder(&store, backend.namespace(), "b")
            .period(Period::Week, TimeZone::UTC, RETAIN)
            .build()?;
        let long_ago = board.period_at("2020-01-01T00:00:00Z".parse::<Timestamp>()?)?;
        let far_away = board.period_at("2060-01-01T00:00:00Z".parse::<Timestamp>()?)?;
        for period in [&long_ago, &far_away] {
            assert_eq!(board.at(period).submit("a", 1.0, Policy::Best).await?, Submitted::Closed);
        }
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), 0);
        let current = board.current().await?;
        assert!(board.at(&current).submit("a", 1.0, Policy::Best).await?.placed().is_some());
        Ok(())
    }

    async fn bad_input_is_refused_before_the_network(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let build = |ties| Leaderboard::builder(&store, backend.namespace(), "b").ties(ties).build();
        assert!(build(Ties::EarliestFirst { max_points: 1 << 40 }).unwrap_err().is_config());
        assert!(Leaderboard::builder(&store, "x", "").build().unwrap_err().is_config());
        let board = build(Ties::Competition)?;
        for score in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(board.submit("a", score, Policy::Best).await.unwrap_err().is_config());
        }
        let long = "x".repeat(513);
        for member in ["", &long] {
            assert!(board.submit(member, 1.0, Policy::Best).await.unwrap_err().is_config());
        }
        let by_time = build(Ties::EarliestFirst { max_points: 10 })?;
        for score in [0.5, -1.0, 11.0] {
            assert!(by_time.submit("a", score, Policy::Best).await.unwrap_err().is_config());
        }
        by_time.submit("a", 8.0, Policy::Best).await?;
        assert!(by_time.submit("a", 3.0, Policy::Sum).await.unwrap_err().is_config());
        assert_eq!(by_time.rank("a").await?.map(|entry| entry.score), Some(8.0));
        assert_eq!(by_time.submit("a", -8.0, Policy::Sum).await?.score, 0.0);
        Ok(())
    }
}

matrix! {
    async fn a_cursor_stays_right_while_members_come_and_go(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for (n, (order, ties)) in [
            (Order::HighestFirst, Ties::Competition),
            (Order::LowestFirst, Ties::Dense),
            (Order::HighestFirst, Ties::EarliestFirst { max_points: 1000 }),
        ].into_iter().enumerate() {
            let board = Leaderboard::builder(&store, backend.namespace(), &format!("b{n}"))
                .order(order).ties(ties).build()?;
            // Many equal scores: names decide.
            for m in 0..60 {
                board.submit(&format!("m{m:02}"), f64::from(m % 4), Policy::Last).await?;
            }
            let whole: Vec<String> = board.top(100).await?.into_iter().map(|entry| entry.member).collect();
            let (mut seen, mut from) = (Vec::new(), None);
            loop {
                let page = board.page(from.as_ref(), 7).await?;
                seen.extend(page.entries.iter().map(|entry| entry.member.clone()));
                let Some(next) = page.next else { break };
                // The entry that the cursor names leaves, and others join at both ends.
                board.remove(&page.entries.last().expect("a page").member).await?;
                let end = if order == Order::HighestFirst { 999.0 } else { 0.0 };
                board.submit(&format!("first-{}", seen.len()), end, Policy::Last).await?;
                from = Some(BoardCursor::from_text(next.as_str()));
            }
            seen.retain(|member| member.starts_with('m'));
            assert_eq!(seen, whole, "{ties:?}");
        }
        let board = Leaderboard::new(&store, backend.namespace(), "bad")?;
        for text in ["", "x", "1:", "a:b", "inf:b"] {
            let cursor = BoardCursor::from_text(text);
            assert!(board.page(Some(&cursor), 1).await.unwrap_err().is_config());
        }
        assert!(board.page(None, 0).await.unwrap_err().is_config());
        assert!(board.slice(u64::MAX, 10).await?.is_empty());
        Ok(())
    }

    async fn a_board_with_other_rules_does_not_misread_the_numbers(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let build = |order, ties| Leaderboard::builder(&store, backend.namespace(), "b").order(order).ties(ties).build();
        let by_time = build(Order::HighestFirst, Ties::EarliestFirst { max_points: 100 })?;
        by_time.submit("a", 7.0, Policy::Best).await?;
        for (order, ties) in [
            (Order::HighestFirst, Ties::Competition),
            (Order::HighestFirst, Ties::Dense),
            (Order::HighestFirst, Ties::EarliestFirst { max_points: 1_000_000 }),
            (Order::LowestFirst, Ties::EarliestFirst { max_points: 100 }),
        ] {
            assert_eq!(build(order, ties)?.rank("a").await?, None);
        }
        assert_eq!(by_time.rank("a").await?.expect("on the board").score, 7.0);
        Ok(())
    }

    async fn a_board_adopts_the_sorted_set_of_an_application(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let key = format!("{}-scores", backend.namespace());
        store.query::<()>(redis::cmd("ZADD").arg(&key).arg(5).arg("ann").arg(9).arg("bob")).await?;
        let legacy = key.clone();
        let board = Leaderboard::builder(&store, backend.namespace(), "scores")
            .layout(Layout::new(move |_| legacy.clone()))
            .build()?;
        assert_eq!(board.rank("ann").await?.expect("on the board").rank, 2);
        assert_eq!(board.submit("ann", 10.0, Policy::Best).await?.rank, 1);
        assert_eq!(store.query::<f64>(redis::cmd("ZSCORE").arg(&key).arg("ann")).await?, 10.0);
        store.query::<()>(redis::cmd("DEL").arg(&key)).await?;
        Ok(())
    }
}

/// The engine's clock walks through years of days; the client's own clock stays where it is.
#[tokio::test]
async fn the_servers_clock_decides_the_period_whatever_the_clients_says() -> anyhow::Result<()> {
    let store = Store::connect("memory://?cluster_strict=1").await?;
    let zone = TimeZone::get("America/New_York")?;
    let board = Leaderboard::builder(&store, "walk", "daily")
        .period(Period::Day, zone.clone(), Duration::from_secs(3 * 86400))
        .build()?;
    for _ in 0..scale(60, "LEADERBOARD_DAYS") {
        let before = board.current().await?;
        board.submit("a", 1.0, Policy::Sum).await?;
        let now = Timestamp::from_microsecond(store.time().await?.as_micros() as i64)?;
        assert_eq!(
            before.label(),
            now.to_zoned(zone.clone()).date().to_string()
        );
        assert_eq!(board.at(&before).len().await?, 1);
        // Three days are kept, beside the one that runs.
        assert!(store.scan("walk:*").await?.len() <= 5);
        store.advance(Duration::from_secs(86400))?;
    }
    store.advance(Duration::from_secs(4 * 86400))?;
    assert_eq!(store.scan("walk:*").await?.len(), 0);
    assert_eq!(
        Period::Week.of(date(2027, 1, 1), &zone)?.label(),
        "2026-W53"
    );
    Ok(())
}
