//! Limiters: never more than the quota in any window, no refusal without a reason, exact waiting times, refunds that count.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    limiting::{DecidedBy, Decision, Limiter, Quota},
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    TokenBucket,
    Refundable,
    FixedWindow,
    SlidingWindow,
    SlidingCounter,
}

pub(super) struct Limiting {
    kind: Kind,
    units: u32,
    period: Duration,
    subjects: u64,
    grants: Mutex<Vec<Grant>>,
    /// Everything that may have been taken, also by calls that are under way or in doubt.
    charges: Mutex<Vec<Charge>>,
}

/// Something that may have been taken.
struct Charge {
    number: u64,
    other: bool,
    subject: u64,
    cost: u64,
    from: Duration,
    /// When the answer came; without one it may still be on its way.
    to: Option<Duration>,
}

/// Something was admitted between these times.
#[derive(Clone, Debug)]
struct Grant {
    /// Whose settings admitted it: the state belongs to the subject and the quota.
    other: bool,
    subject: u64,
    cost: u64,
    from: Duration,
    to: Duration,
}

impl Limiting {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[11]);
        Self {
            kind: *dice.pick(&[
                Kind::TokenBucket,
                Kind::Refundable,
                Kind::FixedWindow,
                Kind::SlidingWindow,
                Kind::SlidingCounter,
            ]),
            units: dice.between(1, 8) as u32,
            period: dice.millis(500, 6000),
            subjects: dice.between(1, 2),
            grants: Mutex::default(),
            charges: Mutex::default(),
        }
    }

    /// The most that a server may count at some time between these two, before it looks at the request.
    fn most_used(&self, subject: u64, other: bool, from: Duration, to: Duration) -> f64 {
        // A server rounds, and its windows begin at its own times.
        let rounding = Duration::from_millis(2);
        let charges = self.charges.lock();
        let of: Vec<&Charge> = charges
            .iter()
            .filter(|charge| (charge.subject, charge.other) == (subject, other))
            .filter(|charge| charge.from <= to)
            .collect();
        let since = |start: Duration| {
            let later = of.iter().filter(|one| one.to.is_none_or(|to| to >= start));
            later.map(|one| one.cost).sum::<u64>() as f64
        };
        let lasts = match self.kind {
            Kind::FixedWindow | Kind::SlidingWindow => self.period,
            Kind::SlidingCounter => 2 * self.period,
            Kind::TokenBucket | Kind::Refundable => {
                // The debt began with one of them, and was paid off since.
                let rate = self.units_of(other) as f64 / self.period.as_secs_f64();
                let debts = of.iter().map(|first| {
                    let begun = first.to.unwrap_or(from).min(from) + rounding;
                    let paid = from.saturating_sub(begun).as_secs_f64() * rate;
                    since(first.from) - paid
                });
                return debts.fold(0.0, f64::max);
            }
        };
        since(from.saturating_sub(lasts + rounding))
    }

    /// A check was refused between these times. Was there a reason?
    fn refused(&self, client: &Client, subject: u64, cost: u64, from: Duration) {
        let world = &client.world;
        let (other, now) = (client.has_other_settings(), world.now());
        // A memory of refusals follows the clock of the process, which may be slow.
        let slow = match world.plan.rates_differ {
            true => self.period / 50,
            false => Duration::ZERO,
        };
        let used = self.most_used(subject, other, from.saturating_sub(slow), now);
        let units = self.units_of(other);
        // Under another clock a window begins or ends at another time.
        let jumped = world.clock_jumped(Duration::ZERO, now);
        // The clock of a suspended machine stands still, and its memory of a refusal lasts longer by that.
        let excused = jumped || world.is_suspended_since(client.index, Duration::ZERO);
        if used + cost as f64 <= units as f64 && !excused {
            world.breach(format!(
                "{:?} of {units} per {:?} refuses {cost} of subject {subject} at {now:?}, and at most {used:.2} were taken",
                self.kind, self.period
            ));
        }
    }

    /// What was taken and given back can be taken again at once.
    async fn judge_refunds(&self, client: &Client, limiter: &Limiter) {
        if !matches!(
            self.kind,
            Kind::Refundable | Kind::FixedWindow | Kind::SlidingWindow
        ) {
            return;
        }
        let all = self.units_of(client.has_other_settings());
        for round in 0..3 {
            let checked = limiter.check("refunded", all).await;
            let Ok(Decision::Allowed(grant)) = checked else {
                return client.world.breach(format!(
                    "{:?} answers {checked:?} in round {round}, after all was given back",
                    self.kind
                ));
            };
            if let Err(error) = limiter.refund(grant).await {
                return client.world.breach(format!("a refund fails: {error}"));
            }
        }
    }

    /// After a while without any calls, every subject has its whole quota again.
    async fn judge_quotas(&self, client: &Client, limiter: &Limiter) {
        // Another clock may be behind by some seconds.
        let behind = match client.world.plan.clocks_differ {
            true => Duration::from_secs(5),
            false => Duration::ZERO,
        };
        tokio::time::sleep(2 * self.period + behind).await;
        let all = self.units_of(client.has_other_settings());
        for subject in 0..self.subjects {
            let checked = limiter.check(&format!("subject{subject}"), all).await;
            if !matches!(checked, Ok(Decision::Allowed(_))) {
                client.world.breach(format!(
                    "{:?} answers {checked:?} about subject {subject}, which has its whole quota",
                    self.kind
                ));
            }
        }
    }

    /// The quota; with other settings, another one.
    fn units_of(&self, other: bool) -> u64 {
        u64::from(self.units) + u64::from(other)
    }

    fn limiter(&self, client: &Client, store: &Store, deny_cache: bool) -> Limiter {
        let units = self.units_of(client.has_other_settings());
        let quota = Quota::per(units, self.period);
        let mut builder = match self.kind {
            Kind::TokenBucket => Limiter::token_bucket(store, "sim", "rate", quota),
            Kind::Refundable => Limiter::token_bucket(store, "sim", "rate", quota).refundable(),
            Kind::FixedWindow => Limiter::fixed_window(store, "sim", "rate", quota),
            Kind::SlidingWindow => Limiter::sliding_window(store, "sim", "rate", quota),
            Kind::SlidingCounter => Limiter::sliding_counter(store, "sim", "rate", quota),
        };
        if deny_cache {
            builder = builder.deny_cache(16);
        }
        match builder.build() {
            Ok(limiter) => limiter,
            Err(error) => panic!("a limiter cannot be made: {error}"),
        }
    }

    /// The most that may be admitted within a time, both ends included.
    fn most(&self, within: Duration, other: bool) -> u64 {
        let units = self.units_of(other);
        let periods = |more: u64| (within.as_micros() / self.period.as_micros()) as u64 + more;
        match self.kind {
            Kind::TokenBucket | Kind::Refundable => {
                let back = within.as_secs_f64() / self.period.as_secs_f64() * units as f64;
                units + back as u64 + 1
            }
            Kind::SlidingWindow => units * periods(1),
            // A window may begin in the middle of the time.
            Kind::FixedWindow | Kind::SlidingCounter => units * periods(2),
        }
    }

    /// In every stretch of time, what was surely admitted within it is within the quota.
    fn judge(&self, world: &World) {
        let grants = self.grants.lock();
        for number in 0..2 * self.subjects {
            let (subject, other) = (number / 2, number % 2 == 1);
            let of: Vec<_> = grants
                .iter()
                .filter(|grant| grant.subject == subject && grant.other == other)
                .collect();
            for first in &of {
                for last in &of {
                    let (from, to) = (first.from, last.to);
                    let excused = world.may_have_lost(from, to) || world.clock_jumped(from, to);
                    if to < from || excused {
                        continue;
                    }
                    let inside = of
                        .iter()
                        .filter(|grant| grant.from >= from && grant.to <= to);
                    let taken: u64 = inside.map(|grant| grant.cost).sum();
                    let most = self.most(to - from, other);
                    if taken > most {
                        world.breach(format!(
                            "{:?} of {} per {:?} admitted {taken} between {from:?} and {to:?}, and {most} is the most",
                            self.kind, self.units_of(other), self.period
                        ));
                        return;
                    }
                }
            }
        }
    }
}

impl Workload for Limiting {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let deadline = client.world.plan.deadline;
            let deny_cache = client.dice.per_mille(300);
            let limiter = self.limiter(&client, &store, deny_cache);
            while client.next_operation() {
                client.rest(0, 600).await;
                let subject = client.dice.below(self.subjects);
                let name = format!("subject{subject}");
                let cost = client.dice.between(1, u64::from(self.units.min(3)));
                for _ in 0..client.dice.between(1, 4) {
                    let from = client.world.now();
                    let number = client.dice.next();
                    self.charges.lock().push(Charge {
                        number,
                        other: client.has_other_settings(),
                        subject,
                        cost,
                        from,
                        to: None,
                    });
                    let twin = client.twin();
                    let call = client.perhaps_dropped(100, limiter.check(&name, cost));
                    let decision = twin.timed("check", deadline, call).await;
                    let to = client.world.now();
                    match &decision {
                        Some(Ok(Decision::Allowed(_))) => {
                            let mut charges = self.charges.lock();
                            let own = charges.iter_mut().find(|one| one.number == number);
                            own.into_iter().for_each(|own| own.to = Some(to));
                        }
                        Some(Ok(_)) => self.charges.lock().retain(|one| one.number != number),
                        _ => {}
                    }
                    match decision {
                        Some(Ok(Decision::Allowed(grant)))
                            if grant.decided_by() == DecidedBy::Store =>
                        {
                            client.note(format_args!("admitted {cost} of {name}"));
                            if self.kind == Kind::Refundable && client.dice.per_mille(300) {
                                // It may be back in the bucket from now on, whatever the call says.
                                let refund = limiter.refund(grant);
                                drop(client.perhaps_dropped(100, refund).await);
                                continue;
                            }
                            self.grants.lock().push(Grant {
                                other: client.has_other_settings(),
                                subject,
                                cost,
                                from,
                                to,
                            });
                        }
                        Some(Ok(Decision::Never { max })) => {
                            client
                                .world
                                .breach(format!("a cost of {cost} is above {max}"));
                        }
                        Some(Ok(Decision::Limited { .. })) => {
                            client.world.met();
                            self.refused(&client, subject, cost, from);
                        }
                        _ => {}
                    }
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let limiter = self.limiter(client, store, true);
        let name = format!("works{}", client.index);
        Box::pin(async move {
            match limiter.check(&name, 1).await {
                Ok(Decision::Allowed(grant)) if grant.decided_by() == DecidedBy::Store => Ok(()),
                // It was asked before.
                Ok(Decision::Limited { .. }) => Ok(()),
                Ok(other) => Err(format!("{other:?}")),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            self.judge(&client.world);
            let store = client.store().await;
            // Alone, every wait is enough, also with a memory of refusals.
            let deny_cache = self.units.is_multiple_of(2);
            let limiter = self.limiter(&client, &store, deny_cache);
            let mut waited = 0;
            for _ in 0..3 * self.units {
                match limiter.check("alone", 1).await {
                    Ok(Decision::Allowed(_)) => {}
                    Ok(Decision::Limited { retry_after, .. }) => {
                        waited += 1;
                        if retry_after > self.period * 2 {
                            client
                                .world
                                .breach(format!("a wait of {retry_after:?} is too long"));
                        }
                        tokio::time::sleep(retry_after).await;
                        match limiter.check("alone", 1).await {
                            Ok(Decision::Allowed(_)) => {}
                            other => client.world.breach(format!(
                                "after the wait of {retry_after:?} that it named, {:?} answers {other:?}",
                                self.kind
                            )),
                        }
                    }
                    other => client
                        .world
                        .breach(format!("{:?} answers {other:?}", self.kind)),
                }
                if client.world.is_broken() {
                    return;
                }
            }
            client.note(format_args!("waited {waited} times"));
            self.judge_refunds(&client, &limiter).await;
            self.judge_quotas(&client, &limiter).await;
            for (key, ttl) in client.world.keys() {
                if ttl < 0 {
                    client.world.breach(format!("{key} never expires"));
                }
            }
        })
    }
}
