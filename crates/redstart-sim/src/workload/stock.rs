//! Stock: what was put on sale is free, held or sold; nothing is sold twice; every answer is repeated as it was.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    commerce::{Request, ReservationState, Reserve, Stock, Transition},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History, Model},
    world::World,
};

const SKU: &str = "console";
const CAP: u64 = 3;
const HOUR: Duration = Duration::from_secs(3600);
/// The shortest hold.
const SHORTEST: Duration = Duration::from_millis(300);

pub(super) struct Selling {
    units: u64,
    shards: u32,
    sales: Mutex<BTreeMap<String, Sale>>,
}

/// What is known of one request.
#[derive(Default)]
struct Sale {
    user: String,
    qty: u64,
    sold: bool,
    /// It may have been confirmed.
    perhaps: bool,
    history: Arc<History<Call>>,
}

/// A call for one request, with its answer.
#[derive(Clone, Debug, PartialEq)]
enum Call {
    Reserve(Option<Reserve>),
    Confirm(Option<Transition>),
    Cancel(Option<Transition>),
    /// The hold ends, of which was told at this time, if nothing happened to it before.
    Expire(Duration),
}

/// What the server knows of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    Nothing,
    Held,
    Sold,
    Cancelled,
    /// Cancelled before it arrived.
    Void,
    Expired,
    /// Data was lost.
    Unknown,
}

impl Known {
    fn of(state: &ReservationState) -> Option<Self> {
        match state {
            ReservationState::Held { .. } => Some(Self::Held),
            ReservationState::Sold => Some(Self::Sold),
            ReservationState::Cancelled => Some(Self::Cancelled),
            ReservationState::Expired => Some(Self::Expired),
            // Nobody takes anything back.
            ReservationState::Returned => None,
        }
    }

    /// The state `then`, if the server can have been in the state `this`.
    fn only(self, this: Self, then: Self) -> Option<Self> {
        (self == this || self == Self::Unknown).then_some(then)
    }
}

struct OneAnswer;

impl OneAnswer {
    fn settle(state: Known, answer: Option<&Transition>, to: Known) -> Option<Known> {
        let cancels = to == Known::Cancelled;
        match answer {
            None if state == Known::Unknown => Some(Known::Unknown),
            None if cancels && state == Known::Nothing => Some(Known::Void),
            None | Some(Transition::Done) => state.only(Known::Held, to),
            Some(Transition::Repeated) => state.only(to, to),
            Some(Transition::Refused(other)) => {
                let other = Known::of(other).filter(|other| *other != Known::Held)?;
                Self::seen(state, other)
            }
            // Where data was lost there may be no sale, and nothing is recorded.
            Some(Transition::Unknown) if state == Known::Unknown => Some(state),
            Some(Transition::Unknown) if cancels => match state {
                Known::Nothing | Known::Void => Some(Known::Void),
                _ => None,
            },
            Some(Transition::Unknown) => state.only(Known::Nothing, Known::Nothing),
        }
    }

    /// The request was in the state `known`, and stays there.
    fn seen(state: Known, known: Known) -> Option<Known> {
        match (state, known) {
            // Before or after it arrived, which answers do not tell.
            (Known::Void | Known::Unknown, Known::Cancelled) => Some(state),
            _ => state.only(known, known),
        }
    }
}

impl Model for OneAnswer {
    type State = Known;
    type Call = Call;

    fn initial(&self) -> Known {
        Known::Nothing
    }

    fn unknown(&self) -> Known {
        Known::Unknown
    }

    fn step(&self, state: &Known, call: &Call) -> Option<Known> {
        match call {
            Call::Reserve(None) if *state == Known::Unknown => Some(Known::Unknown),
            Call::Reserve(None | Some(Reserve::Held { .. })) => {
                state.only(Known::Nothing, Known::Held)
            }
            Call::Reserve(Some(Reserve::Replayed(known))) => Self::seen(*state, Known::of(known)?),
            Call::Reserve(Some(Reserve::SoldOut { .. } | Reserve::UserCap { .. })) => {
                state.only(Known::Nothing, Known::Nothing)
            }
            // Whether the sale was there is judged elsewhere.
            Call::Reserve(Some(Reserve::NotWarmed)) => Some(*state),
            Call::Reserve(Some(Reserve::Conflict | Reserve::Closed)) => None,
            Call::Confirm(answer) => Self::settle(*state, answer.as_ref(), Known::Sold),
            Call::Cancel(answer) => Self::settle(*state, answer.as_ref(), Known::Cancelled),
            Call::Expire(_) => Some(match state {
                Known::Held => Known::Expired,
                other => *other,
            }),
        }
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        Some(match call {
            Call::Reserve(_) => Call::Reserve(None),
            Call::Confirm(_) => Call::Confirm(None),
            Call::Cancel(_) => Call::Cancel(None),
            Call::Expire(at) => Call::Expire(*at),
        })
    }
}

impl Selling {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[12]);
        Self {
            units: dice.between(2, 12),
            shards: *dice.pick(&[1, 1, 2, 3]),
            sales: Mutex::default(),
        }
    }

    fn stock(&self, store: &Store) -> Stock {
        let builder = Stock::builder(store, "sim", "sale");
        match builder.per_user(CAP).shards(self.shards).build() {
            Ok(stock) => stock,
            Err(error) => panic!("a stock cannot be made: {error}"),
        }
    }

    async fn prewarm(&self, client: &Client, stock: &Stock) {
        while stock.prewarm(SKU, self.units, HOUR).await.is_err() {
            if client.world.now() > Duration::from_secs(100) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn buy(&self, client: &mut Client, stock: &Stock, number: usize) {
        let world = client.world.clone();
        let user = format!("user{}", client.dice.below(3));
        let id = format!("request-{}-{number}", client.index);
        let request = Request::new(SKU, &user, &id);
        let qty = client.dice.between(1, 2);
        let hold = client.dice.millis(SHORTEST.as_millis() as u64, 4000);
        let history = {
            let mut sales = self.sales.lock();
            let sale = sales.entry(id.clone()).or_default();
            if sale.qty != 0 {
                // An earlier incarnation asked for it.
                return;
            }
            (sale.user, sale.qty) = (user, qty);
            sale.history.clone()
        };
        let deadline = world.plan.deadline;
        let (mut held, mut doubtful) = (false, false);
        for _ in 0..client.dice.between(1, 4) {
            let begun = world.now();
            let number = history.begin(Call::Reserve(None), begun);
            let twin = client.twin();
            let call = client.perhaps_dropped(100, stock.reserve(&request, qty, hold));
            // It asks again if the sale that it knew is over. With shards, it asks the others, borrows, and asks again.
            let most = deadline * if self.shards > 1 { 7 } else { 2 };
            let call = twin.timed("reserve", most, call).await;
            match call {
                Some(Ok(answer)) => {
                    client.note(format_args!("{id}: {answer:?}"));
                    // Sent again after a lost reply, it finds what it did before.
                    if matches!(answer, Reserve::Replayed(_)) {
                        history.begin(Call::Reserve(None), begun);
                    }
                    history.end(number, Call::Reserve(Some(answer)), world.now());
                    let lost = world.may_have_lost(Duration::ZERO, world.now());
                    if answer == Reserve::NotWarmed && !lost && begun < HOUR {
                        world.breach("the sale is not warmed".to_owned());
                    }
                    let left = match answer {
                        Reserve::Held { left } => Some(left),
                        Reserve::Replayed(ReservationState::Held { left }) => Some(left),
                        _ => None,
                    };
                    (held, doubtful) = (left.is_some(), false);
                    if !held {
                        world.met();
                    }
                    self.expires(&world, &history, begun, left);
                    // Sometimes it is asked for again.
                    if !held || !client.dice.per_mille(200) {
                        break;
                    }
                }
                // Also if the error is not in doubt: the request can be repeated, so nobody asks whether it was sent.
                _ => {
                    doubtful = true;
                    self.expires(&world, &history, begun, None);
                    client.rest(10, 300).await;
                }
            }
        }
        if held {
            client.rest(0, 3000).await;
        }
        // The caller gives up while the request may still be on its way.
        if held || (doubtful && client.dice.per_mille(500)) {
            self.end(client, stock, &id, &request, &history).await;
        }
    }

    /// A hold ends on its own, by the clock of its server: `left` after some moment between `begun` and now, if that was
    /// answered.
    fn expires(
        &self,
        world: &World,
        history: &History<Call>,
        begun: Duration,
        left: Option<Duration>,
    ) {
        let rounding = Duration::from_millis(2);
        let (from, to) = match left {
            // Under another clock it may end at any time.
            _ if world.plan.clocks_differ => (begun, None),
            Some(left) => (begun + left - rounding, Some(world.now() + left + rounding)),
            None => (begun + SHORTEST - rounding, None),
        };
        let call = Call::Expire(world.now());
        history.add(Event { call, from, to });
    }

    /// Confirms or cancels what is held, perhaps several times.
    async fn end(
        &self,
        client: &mut Client,
        stock: &Stock,
        id: &str,
        request: &Request,
        history: &History<Call>,
    ) {
        let world = client.world.clone();
        let change = |change: &dyn Fn(&mut Sale)| {
            if let Some(sale) = self.sales.lock().get_mut(id) {
                change(sale);
            }
        };
        for _ in 0..client.dice.between(1, 3) {
            // Now and then both are tried: whichever comes first counts.
            let sells = client.dice.per_mille(600);
            let asked = |answer| match sells {
                true => Call::Confirm(answer),
                false => Call::Cancel(answer),
            };
            if sells {
                change(&|sale| sale.perhaps = true);
            }
            let begun = world.now();
            let number = history.begin(asked(None), begun);
            let twin = client.twin();
            let call = async {
                match sells {
                    true => stock.confirm(request).await,
                    false => stock.cancel(request).await,
                }
            };
            let call = client.perhaps_dropped(100, call);
            match twin.timed("settle", world.plan.deadline, call).await {
                Some(Ok(transition)) => {
                    client.note(format_args!("{id}: {transition:?}"));
                    if transition == Transition::Repeated {
                        history.begin(asked(None), begun);
                    }
                    history.end(number, asked(Some(transition)), world.now());
                    if sells && matches!(transition, Transition::Done | Transition::Repeated) {
                        change(&|sale| sale.sold = true);
                    }
                    if transition == Transition::Unknown {
                        // The request may arrive after that.
                        client.rest(0, 1500).await;
                    } else if client.dice.per_mille(700) {
                        break;
                    }
                }
                _ => client.rest(10, 300).await,
            }
        }
    }

    async fn look(&self, client: &Client, stock: &Stock) {
        let world = &client.world;
        let Ok(Some(report)) = stock.report(SKU).await else {
            return;
        };
        // A count below zero is read as a huge one.
        let counts = [report.free, report.held, report.sold];
        let total = counts.into_iter().fold(0, u64::saturating_add);
        let lost = world.may_have_lost(Duration::ZERO, world.now());
        // Shards may lose different parts of their past.
        if total != self.units && !(lost && self.shards > 1) {
            world.breach(format!(
                "{} units were put on sale, and {total} are there: {report:?}",
                self.units
            ));
        }
    }
}

impl Workload for Selling {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let stock = self.stock(&store);
            self.prewarm(&client, &stock).await;
            let mut number = 0;
            while client.next_operation() {
                client.rest(0, 700).await;
                number += 1;
                self.buy(&mut client, &stock, number).await;
                if client.dice.per_mille(200) {
                    self.look(&client, &stock).await;
                }
            }
        })
    }

    fn works(self: Arc<Self>, _: &Client, store: &Store) -> Attempt {
        let stock = self.stock(store);
        Box::pin(async move {
            let failed = |error: redstart::Error| error.to_string();
            let _ = stock.prewarm("works", 1, HOUR).await.map_err(failed)?;
            match stock.report("works").await.map_err(failed)? {
                Some(report) if report.free == 1 => Ok(()),
                other => Err(format!("another sale has {other:?}")),
            }
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            // All holds have ended by then, also by a clock that was set back.
            tokio::time::sleep(Duration::from_secs(10)).await;
            let world = client.world.clone();
            let store = client.store().await;
            let stock = self.stock(&store);
            self.look(&client, &stock).await;
            for (id, sale) in self.sales.lock().iter() {
                let mut events = sale.history.events();
                for event in &mut events {
                    // A hold that was lost does not end, and a later one of the same request has an end of its own.
                    if let Call::Expire(told) = event.call
                        && world.may_have_lost(told, event.from)
                    {
                        event.to = None;
                    }
                }
                world.explain(id, &OneAnswer, &events);
            }
            for (key, ttl) in world.keys() {
                if ttl < 0 && !key.ends_with(":orders") {
                    world.breach(format!("{key} never expires"));
                }
            }
            if world.may_have_lost(Duration::ZERO, world.now()) {
                return;
            }
            let report = match stock.report(SKU).await {
                Ok(Some(report)) => report,
                other => return world.breach(format!("there is no report: {other:?}")),
            };
            let sales = self.sales.lock();
            let sure: u64 = sales
                .values()
                .filter(|sale| sale.sold)
                .map(|sale| sale.qty)
                .sum();
            let most = sales.values().filter(|sale| sale.sold || sale.perhaps);
            let most: u64 = most.map(|sale| sale.qty).sum();
            if report.held != 0 || report.sold < sure || report.sold > most {
                world.breach(format!(
                    "{sure} to {most} units are sold, and the report says {report:?}"
                ));
            }
            for user in 0..3 {
                let user = format!("user{user}");
                let bought = sales.values().filter(|sale| sale.sold && sale.user == user);
                let bought: u64 = bought.map(|sale| sale.qty).sum();
                if bought > CAP {
                    world.breach(format!(
                        "{user} bought {bought} units, and {CAP} is the most"
                    ));
                }
            }
        })
    }
}
