//! Counters, visitors, check-ins, activity, arrays: counts equal to those of a model.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use jiff::civil::Date;
use redstart::{
    Result,
    counting::{Activity, CheckIns, Counter, DaySpan, Estimate, Keep, Uniques},
    storage::FixedArray,
};

use super::{Bed, Claims, DAY, Op, Tally, Workload, counters};

super::patterns! { "counting and storage":
    "counter", "counter", 0.98,
    "drained counts plus the rest equal what was added", Clicks::open;
    "unique_visitors", "page and day", 1.0,
    "each estimate is within five standard errors of the exact count", Visitors::open;
    "check_ins", "user", 0.8,
    "each user's month has exactly the days that were marked", Visits::open;
    "activity", "user and day", 1.0,
    "each day has exactly the users that were marked", Active::open;
    "array", "record", 0.5,
    "no record is torn, and none is older than a write that has returned", Records::open;
}

const MONTH: Duration = Duration::from_secs(40 * 86_400);

/// The write share is the share of additions; the rest drain.
struct Clicks {
    counter: Counter,
    added: Vec<Tally>,
    drained: Vec<AtomicU64>,
    /// Drained counts whose acknowledgement was lost, by counter.
    unsure: Vec<AtomicU64>,
    claims: Claims,
}

impl Clicks {
    async fn open(bed: &Bed) -> Result<Self> {
        let counts = bed.entities(100_000);
        Ok(Self {
            counter: Counter::new(&bed.store, &bed.namespace, "clicks", Keep::For(DAY))?,
            added: (0..counts).map(|_| Tally::default()).collect(),
            drained: counters(counts),
            unsure: counters(counts),
            claims: Claims::default(),
        })
    }
}

impl Workload for Clicks {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.added.len());
        let name = format!("e{index}");
        if op.write {
            let added = self.counter.add(&name, 1).await;
            self.added[index].add(1, &added);
            return added.map(|_| ());
        }
        if let Some(drained) = self.counter.drain(&name).await? {
            // Two clients may be handed the same drained count; only one acknowledges it.
            let acked = self.counter.ack(&name, &drained.id).await;
            if acked.is_err() {
                self.unsure[index].fetch_add(drained.count as u64, Ordering::Relaxed);
            }
            if acked? {
                self.drained[index].fetch_add(drained.count as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        for (index, added) in self.added.iter().enumerate() {
            let name = format!("e{index}");
            // Acknowledged without our knowing, a count is gone; otherwise it is handed out again.
            let unsure = self.unsure[index].load(Ordering::Relaxed);
            let mut seen = self.drained[index].load(Ordering::Relaxed);
            // What was drained and not acknowledged is handed out again.
            while let Some(drained) = self.counter.drain(&name).await? {
                if self.counter.ack(&name, &drained.id).await? {
                    seen += drained.count as u64;
                    // A count that does not end is wrong already.
                    if seen > added.most() {
                        break;
                    }
                } else {
                    self.claims.hold(false, || {
                        format!("a drained count of counter {index} could not be acknowledged")
                    });
                    break;
                }
            }
            let right = (seen..=seen + unsure).any(|seen| added.explains(seen));
            self.claims.hold(right, || {
                format!("counter {index} has {seen} of {}", added.text())
            });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.added.iter().filter(|added| added.done() > 0).count() as u64
    }
}

/// A set of small numbers, to count exactly.
struct Bits(Vec<AtomicU64>);

impl Bits {
    fn new(bits: u64) -> Self {
        Self(counters(bits.div_ceil(64) as usize))
    }

    fn set(&self, bit: u64) {
        self.0[(bit / 64) as usize].fetch_or(1 << (bit % 64), Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        let ones = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed).count_ones());
        self.0.iter().map(ones).sum()
    }
}

struct Visitors {
    uniques: Uniques,
    day: Date,
    /// The visitors of each page.
    seen: Vec<Bits>,
    unsure: AtomicU64,
    claims: Claims,
}

/// Different visitors that a page can have.
const VISITORS: u64 = 1 << 20;

impl Visitors {
    async fn open(bed: &Bed) -> Result<Self> {
        let uniques = Uniques::new(&bed.store, &bed.namespace, "visitors", Keep::For(MONTH))?;
        Ok(Self {
            day: uniques.today().await?,
            uniques,
            seen: (0..bed.entities(100))
                .map(|_| Bits::new(VISITORS))
                .collect(),
            unsure: AtomicU64::new(0),
            claims: Claims::default(),
        })
    }
}

impl Workload for Visitors {
    async fn operate(&self, op: Op) -> Result<()> {
        let page = op.index(self.seen.len());
        let visitor = op.random % VISITORS;
        let id = visitor.to_string();
        let added = self.uniques.add(&format!("e{page}"), self.day, [&id]).await;
        match added {
            Ok(_) => self.seen[page].set(visitor),
            Err(_) => {
                self.unsure.fetch_add(1, Ordering::Relaxed);
            }
        }
        added.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        let unsure = self.unsure.load(Ordering::Relaxed) as f64;
        for (page, seen) in self.seen.iter().enumerate() {
            let exact = seen.count();
            let estimate = self
                .uniques
                .count(&format!("e{page}"), &DaySpan::Day(self.day))
                .await?;
            let reach = exact as f64 * 5.0 * Estimate::STANDARD_ERROR + 2.0 + unsure;
            self.claims
                .hold(estimate.count.abs_diff(exact) as f64 <= reach, || {
                    format!(
                        "page {page} had {exact} visitors, the estimate is {}",
                        estimate.count
                    )
                });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.seen.iter().filter(|page| page.count() > 0).count() as u64
    }
}

struct Visits {
    check_ins: CheckIns,
    month: Date,
    /// The marked days of each user; days whose outcome is unknown.
    marked: Vec<AtomicU32>,
    unsure: Vec<AtomicU32>,
    claims: Claims,
}

impl Visits {
    async fn open(bed: &Bed) -> Result<Self> {
        let check_ins = CheckIns::new(&bed.store, &bed.namespace, "visits", Keep::Forever)?;
        let users = bed.entities(100_000);
        let none = || (0..users).map(|_| AtomicU32::new(0)).collect();
        Ok(Self {
            check_ins,
            month: jiff::civil::date(2027, 1, 1),
            marked: none(),
            unsure: none(),
            claims: Claims::default(),
        })
    }
}

impl Workload for Visits {
    async fn operate(&self, op: Op) -> Result<()> {
        let user = op.index(self.marked.len());
        let name = format!("e{user}");
        if !op.write {
            self.check_ins
                .streaks(&name, self.month.last_of_month())
                .await?;
            return Ok(());
        }
        let day = (op.random % 31) as i8;
        let date = Date::new(2027, 1, day + 1).unwrap_or(self.month);
        let marked = self.check_ins.mark(&name, date).await;
        match &marked {
            Ok(_) => self.marked[user].fetch_or(1 << day, Ordering::SeqCst),
            Err(_) => self.unsure[user].fetch_or(1 << day, Ordering::SeqCst),
        };
        marked.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        let step = (self.marked.len() / 2000).max(1);
        for user in (0..self.marked.len()).step_by(step) {
            let month = self
                .check_ins
                .month(&format!("e{user}"), self.month)
                .await?;
            let days = month.days().iter().enumerate();
            let seen = days.fold(0u32, |bits, (day, marked)| {
                bits | (u32::from(*marked) << day)
            });
            let marked = self.marked[user].load(Ordering::SeqCst);
            let unsure = self.unsure[user].load(Ordering::SeqCst);
            self.claims.hold(seen & !unsure == marked & !unsure, || {
                format!("user {user} marked {marked:031b}, the store has {seen:031b}")
            });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        let some = |days: &&AtomicU32| days.load(Ordering::Relaxed) > 0;
        self.marked.iter().filter(some).count() as u64
    }
}

struct Active {
    activity: Activity,
    day: Date,
    seen: Bits,
    users: u64,
    unsure: AtomicU64,
    claims: Claims,
}

impl Active {
    async fn open(bed: &Bed) -> Result<Self> {
        let users = bed.entities(10_000_000) as u64;
        let keep = Keep::For(MONTH);
        let activity = Activity::new(&bed.store, &bed.namespace, "active", users as u32, keep)?;
        Ok(Self {
            day: activity.today().await?,
            activity,
            seen: Bits::new(users),
            users,
            unsure: AtomicU64::new(0),
            claims: Claims::default(),
        })
    }
}

impl Workload for Active {
    async fn operate(&self, op: Op) -> Result<()> {
        let user = op.key % self.users;
        let marked = self.activity.mark("app", self.day, &[user as u32]).await;
        match &marked {
            Ok(_) => self.seen.set(user),
            Err(_) => {
                self.unsure.fetch_add(1, Ordering::Relaxed);
            }
        }
        marked.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        let daily = self.activity.daily("app", self.day).await?;
        let exact = self.seen.count();
        let most = exact + self.unsure.load(Ordering::Relaxed);
        self.claims.hold((exact..=most).contains(&daily), || {
            format!("{exact} users were marked, the day has {daily}")
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    super::one_target!("{app}");

    /// All of them: a bitmap has a place also for those who did not come.
    fn entities(&self) -> u64 {
        self.users
    }
}

struct Records {
    array: FixedArray<u128>,
    floors: Vec<AtomicU64>,
    next: Vec<AtomicU64>,
    /// Writers of one record take turns, as an application's do that wants its order.
    turns: Vec<tokio::sync::Mutex<()>>,
    claims: Claims,
}

impl Records {
    async fn open(bed: &Bed) -> Result<Self> {
        let records = bed.entities(100_000);
        let array =
            FixedArray::<u128>::builder(&bed.store, &bed.namespace, "records", records as u32)
                .ttl(DAY)
                .build()?;
        Ok(Self {
            array,
            floors: counters(records),
            next: counters(records),
            turns: (0..records).map(|_| tokio::sync::Mutex::new(())).collect(),
            claims: Claims::default(),
        })
    }
}

impl Workload for Records {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.floors.len());
        if op.write {
            let _turn = self.turns[index].lock().await;
            let value = u128::from(self.next[index].fetch_add(1, Ordering::SeqCst) + 1);
            // Both halves are equal, so that a torn record shows.
            self.array.set(index as u32, &(value << 64 | value)).await?;
            self.floors[index].fetch_max(value as u64, Ordering::SeqCst);
            return Ok(());
        }
        let floor = self.floors[index].load(Ordering::SeqCst);
        let record = self.array.get(index as u32).await?.unwrap_or(0);
        let (high, low) = ((record >> 64) as u64, record as u64);
        self.claims.hold(high == low, || {
            format!("record {index} is torn: {high} and {low}")
        });
        self.claims.hold(low >= floor, || {
            format!("record {index} was read as {low} after {floor} had been written")
        });
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        // The last write of each record is still there.
        let len = self.floors.len() as u32;
        let step = 1000;
        let mut index = 0u32;
        while index < len {
            let records = self.array.range(index..(index + step).min(len)).await?;
            for (offset, record) in records.iter().enumerate() {
                let at = index as usize + offset;
                let floor = self.floors[at].load(Ordering::SeqCst);
                self.claims.hold(*record as u64 >= floor, || {
                    format!(
                        "record {at} ends as {}, {floor} was written",
                        *record as u64
                    )
                });
            }
            index += step;
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    super::one_target!("{records}");

    /// All of them: an array has a place also for those that were not written.
    fn entities(&self) -> u64 {
        self.floors.len() as u64
    }
}
