//! Against brute force: on the engine inside the process, whose clock stands still until it is moved.

use std::time::Duration;

use proptest::prelude::*;
use redstart::{
    Store,
    limiting::{Decision, Grant, Limiter},
};
use redstart_engine::{Clock, Engine};
use redstart_testkit::scale;

use crate::Way;

/// 2026-01-01, so that windows begin in the midst of nothing round.
const BASE: i64 = 1_767_225_600_123_456;

#[derive(Clone, Debug)]
enum Step {
    /// Lets microseconds pass.
    Pass(u64),
    /// Asks for so much.
    Take(u64),
    /// Gives back one of the grants.
    Refund(usize),
}

#[derive(Clone, Debug)]
struct Case {
    units: u64,
    /// In milliseconds.
    period: u64,
    steps: Vec<Step>,
}

fn cases() -> impl Strategy<Value = Case> {
    (1..=8u64, prop_oneof![Just(8u64), 1..=60u64, Just(1000)]).prop_flat_map(|(units, period)| {
        let us = period * 1000;
        let step = prop_oneof![
            3 => prop_oneof![0..=us / 8, 0..=us * 2, Just(1), Just(1000), Just(us)].prop_map(Step::Pass),
            5 => (1..=units + 1).prop_map(Step::Take),
            1 => any::<usize>().prop_map(Step::Refund),
        ];
        proptest::collection::vec(step, 1..60).prop_map(move |steps| Case {
            units,
            period,
            steps,
        })
    })
}

/// What was admitted and not given back, and the definition of the limit, word by word.
struct Model {
    way: Way,
    units: u64,
    /// In microseconds.
    period: u64,
    admitted: Vec<(u64, u64, usize)>,
}

impl Model {
    /// The smallest step of the way's clock, in microseconds.
    fn tick(&self) -> u64 {
        match self.way {
            Way::ExactBucket | Way::Ledger | Way::SlidingWindow => 1,
            Way::WholeBucket | Way::FixedWindow | Way::SlidingCounter => 1000,
        }
    }

    /// Whether the definition admits the cost at a time.
    fn admits(&self, now: u64, cost: u64) -> bool {
        let tick = self.tick();
        let now = now / tick * tick;
        let sum = |of: &dyn Fn(u64) -> bool| -> u64 {
            let admitted = self.admitted.iter();
            admitted
                .filter(|(at, ..)| of(at / tick * tick))
                .map(|(_, cost, _)| cost)
                .sum()
        };
        let window = self.period;
        match self.way {
            // In every span of time that ends now: at most the capacity and what came back in it.
            Way::WholeBucket | Way::ExactBucket | Way::Ledger => {
                let starts = self.admitted.iter().map(|(at, ..)| at / tick * tick);
                starts.chain([now]).all(|start| {
                    let taken = u128::from(sum(&|at| at >= start) + cost);
                    let (units, period) = (u128::from(self.units), u128::from(self.period));
                    taken * period <= units * period + u128::from(now - start) * units
                })
            }
            Way::FixedWindow => sum(&|at| at / window == now / window) + cost <= self.units,
            Way::SlidingWindow => sum(&|at| now - at < window) + cost <= self.units,
            Way::SlidingCounter => {
                let current = sum(&|at| at / window == now / window);
                let previous = sum(&|at| at / window + 1 == now / window);
                let left = window - now % window;
                u128::from(previous) * u128::from(left)
                    + u128::from(current + cost) * u128::from(window)
                    <= u128::from(self.units) * u128::from(window)
            }
        }
    }
}

struct Bench {
    store: Store,
    limiter: Limiter,
    now: u64,
    model: Model,
    grants: Vec<(usize, u64, Grant)>,
    next: usize,
}

impl Bench {
    fn new(way: Way, units: u64, period: u64) -> Self {
        let engine = Engine::builder()
            .cluster_strict(true)
            .clock(Clock::manual_at(BASE))
            .build()
            .unwrap();
        let store = Store::try_from(engine).unwrap();
        let limiter = way
            .limiter(&store, "model", units, Duration::from_millis(period))
            .build()
            .unwrap();
        let quota = limiter.limits().next().unwrap().1;
        Self {
            store,
            limiter,
            now: BASE as u64,
            model: Model {
                way,
                units,
                period: quota.period().as_micros() as u64,
                admitted: Vec::new(),
            },
            grants: Vec::new(),
            next: 0,
        }
    }

    fn pass(&mut self, us: u64) {
        self.store.advance(Duration::from_micros(us)).unwrap();
        self.now += us;
    }

    async fn take(&mut self, cost: u64) -> Decision {
        let decision = self.limiter.check("u", cost).await.unwrap();
        if decision.is_allowed() {
            self.model.admitted.push((self.now, cost, self.next));
        }
        decision
    }

    fn keep(&mut self, cost: u64, grant: Grant) {
        self.grants.push((self.next, cost, grant));
        self.next += 1;
    }

    async fn refund(&mut self, which: usize) -> Option<(u64, u64)> {
        if self.grants.is_empty() {
            return None;
        }
        let (id, cost, grant) = self.grants.swap_remove(which % self.grants.len());
        let credited = self.limiter.refund(grant).await.unwrap();
        self.model.admitted.retain(|(_, _, other)| *other != id);
        Some((cost, credited))
    }
}

fn run(test: impl Future<Output = Result<(), TestCaseError>>) -> Result<(), TestCaseError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(scale(48, "LIMITER_CASES") as u32)
    }
}

/// Every decision, every `retry_after` and what remains are what the definition says.
async fn agrees(way: Way, case: Case) -> Result<(), TestCaseError> {
    let mut bench = Bench::new(way, case.units, case.period);
    for step in case.steps {
        match step {
            Step::Pass(us) => bench.pass(us),
            Step::Refund(which) => {
                // A bucket's refund is its own test: what time has paid is not credited.
                if way.is_refundable() && way != Way::Ledger {
                    bench.refund(which).await;
                }
            }
            Step::Take(cost) => {
                let expected = bench.model.admits(bench.now, cost);
                match bench.take(cost).await {
                    Decision::Never { max } => {
                        prop_assert!(cost > case.units && max == case.units);
                    }
                    Decision::Allowed(grant) => {
                        prop_assert!(expected, "{way:?} admitted {cost} too much");
                        let left = grant.snapshot().remaining;
                        prop_assert!(left == 0 || bench.model.admits(bench.now, left));
                        prop_assert!(!bench.model.admits(bench.now, left + 1));
                        bench.keep(cost, grant);
                    }
                    Decision::Limited {
                        retry_after,
                        snapshot,
                    } => {
                        prop_assert!(!expected, "{way:?} refused {cost}");
                        let wait = retry_after.as_micros() as u64;
                        let tick = bench.model.tick();
                        prop_assert_eq!(wait % tick, 0);
                        prop_assert!(bench.model.admits(bench.now + wait, cost));
                        prop_assert!(!bench.model.admits(bench.now + wait - tick, cost));
                        let left = snapshot.remaining;
                        prop_assert!(left == 0 || bench.model.admits(bench.now, left));
                        prop_assert!(!bench.model.admits(bench.now, left + 1));
                    }
                }
            }
        }
    }
    Ok(())
}

/// One tick less than `retry_after` is not enough, `retry_after` is: on the limiter itself.
async fn exact_to_the_tick(way: Way, case: Case) -> Result<(), TestCaseError> {
    let mut bench = Bench::new(way, case.units, case.period);
    for step in case.steps {
        match step {
            Step::Pass(us) => bench.pass(us),
            Step::Refund(_) => {}
            Step::Take(cost) => {
                let Decision::Limited { retry_after, .. } = bench.take(cost).await else {
                    continue;
                };
                let tick = bench.model.tick();
                bench.pass(retry_after.as_micros() as u64 - tick);
                let again = bench.take(cost).await;
                prop_assert_eq!(again.retry_after(), Some(Duration::from_micros(tick)));
                bench.pass(tick);
                prop_assert!(bench.take(cost).await.is_allowed());
            }
        }
    }
    Ok(())
}

/// With refunds, a bucket never admits what it would not admit had the refunded never been.
async fn refunds_are_safe(case: Case) -> Result<(), TestCaseError> {
    let mut bench = Bench::new(Way::Ledger, case.units, case.period);
    for step in case.steps {
        match step {
            Step::Pass(us) => bench.pass(us),
            Step::Refund(which) => {
                if let Some((cost, credited)) = bench.refund(which).await {
                    prop_assert!(credited <= cost);
                }
            }
            Step::Take(cost) => {
                let expected = bench.model.admits(bench.now, cost);
                if let Decision::Allowed(grant) = bench.take(cost).await {
                    prop_assert!(expected, "admitted {cost} above the capacity");
                    bench.keep(cost, grant);
                }
            }
        }
    }
    // Given back at once, everything comes back, in whatever order.
    let full = Duration::from_millis(case.period * 2 + 1);
    bench.pass(full.as_micros() as u64);
    bench.grants.clear();
    for cost in 1..=case.units {
        if let Decision::Allowed(grant) = bench.take(cost).await {
            bench.keep(cost, grant);
        }
    }
    while let Some((cost, credited)) = bench.refund(1).await {
        prop_assert_eq!(cost, credited);
    }
    prop_assert_eq!(bench.limiter.peek("u").await.unwrap().remaining, case.units);
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whole_buckets_agree_with_brute_force(case in cases()) {
        // Only periods that are a multiple of the units have whole milliseconds.
        let case = Case { period: case.period * case.units, ..case };
        run(agrees(Way::WholeBucket, case))?;
    }

    #[test]
    fn exact_buckets_agree_with_brute_force(case in cases()) {
        run(agrees(Way::ExactBucket, case))?;
    }

    #[test]
    fn ledgers_agree_with_brute_force(case in cases()) {
        run(agrees(Way::Ledger, case))?;
    }

    #[test]
    fn fixed_windows_agree_with_brute_force(case in cases()) {
        run(agrees(Way::FixedWindow, case))?;
    }

    #[test]
    fn sliding_windows_agree_with_brute_force(case in cases()) {
        run(agrees(Way::SlidingWindow, case))?;
    }

    #[test]
    fn sliding_counters_agree_with_brute_force(case in cases()) {
        run(agrees(Way::SlidingCounter, case))?;
    }

    #[test]
    fn retry_after_is_exact_to_the_tick(case in cases(), way in 0..6usize) {
        let way = Way::ALL[way];
        let period = if way == Way::WholeBucket { case.period * case.units } else { case.period };
        run(exact_to_the_tick(way, Case { period, ..case }))?;
    }

    #[test]
    fn refunds_never_let_through_more_than_the_bucket(case in cases()) {
        run(refunds_are_safe(case))?;
    }
}

/// Requests as numbers of milliseconds from the start, for windows of a second and a limit of 100.
fn traffic(shape: &str) -> Vec<u64> {
    const WINDOWS: u64 = 24;
    let mut state = 7u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut times: Vec<u64> = match shape {
        "even, 90 % of the limit" => (0..WINDOWS * 90).map(|n| n * 1000 / 90).collect(),
        "random, 90 % of the limit" => (0..WINDOWS * 90).map(|_| random(WINDOWS * 1000)).collect(),
        "random, twice the limit" => (0..WINDOWS * 200).map(|_| random(WINDOWS * 1000)).collect(),
        "bursts of 20, twice the limit" => (0..WINDOWS * 10)
            .map(|_| random(WINDOWS * 1000))
            .flat_map(|at| [at; 20])
            .collect(),
        // The worst case: a full burst at the end of a window is forgotten evenly all through the next one.
        "a burst at the end of a window, then pressure" => (0..WINDOWS)
            .step_by(3)
            .flat_map(|window| {
                let start = window * 1000;
                let burst = (0..100).map(move |_| start + 999);
                burst.chain((0..300).map(move |n| start + 1000 + n * 1000 / 300))
            })
            .collect(),
        _ => unreachable!(),
    };
    times.sort_unstable();
    times
}

/// How far the counter is from the log, printed in its docs. The docs are checked against this.
#[tokio::test]
async fn the_published_error_of_the_sliding_counter_is_the_measured_one() {
    let shapes = [
        "even, 90 % of the limit",
        "random, 90 % of the limit",
        "random, twice the limit",
        "bursts of 20, twice the limit",
        "a burst at the end of a window, then pressure",
    ];
    let mut table = String::from(
        "| traffic, for a limit of 100 per second | admitted, against the log | most in a rolling window |\n|---|---|---|\n",
    );
    let live = |admitted: &[u64], at: u64| {
        let recent = admitted.iter().rev();
        recent.take_while(|time| at - **time < 1000).count()
    };
    for shape in shapes {
        let mut bench = Bench::new(Way::SlidingCounter, 100, 1000);
        // Begin where a window begins.
        bench.pass(1_000_000 - bench.now % 1_000_000);
        let start = bench.now;
        let (mut admitted, mut log, mut most) = (Vec::new(), Vec::new(), 0);
        for at in traffic(shape) {
            bench.pass(start + at * 1000 - bench.now);
            if live(&log, at) < 100 {
                log.push(at);
            }
            if bench.take(1).await.is_allowed() {
                admitted.push(at);
                most = most.max(live(&admitted, at));
            }
        }
        let share = 100.0 * admitted.len() as f64 / log.len() as f64;
        table.push_str(&format!("| {shape} | {share:.1} % | {most} |\n"));
    }
    let published = include_str!("../../src/limiting/sliding_counter/error.md");
    assert!(published.contains(&table), "measured:\n{table}");
}
