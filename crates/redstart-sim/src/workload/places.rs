//! Places: members are found where they were put, by name and by searches, and not after they became stale
//! (linearizable).

use std::{sync::Arc, time::Duration};

use redstart::{
    Error, Store,
    location::{Area, Places, Position},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History, Model},
    world::World,
};

/// Longitude and latitude: two points of a town, and two on both sides of the antimeridian.
const POINTS: [(f64, f64); 4] = [
    (13.361_389, 38.115_556),
    (13.37, 38.12),
    (179.99, -17.0),
    (-179.99, -17.0),
];
/// Searches from one point find those of its pair.
const RADIUS: f64 = 5_000.0;
/// What servers store is less than this away, in metres.
const NEARLY: f64 = 1.0;
/// Deadlines are whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// The number of a point.
type Point = usize;

/// When a call was sent and answered.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    from: Duration,
    /// Not known if there was no answer.
    to: Duration,
}

/// How a member is changed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// With the time after which it is stale.
    Put(Point, Option<Duration>),
    /// The same, if it has a position.
    Move(Point, Option<Duration>),
    Remove,
}

#[derive(Clone, Debug, PartialEq)]
enum Call {
    /// A member, and whether it had a position.
    Change(usize, Change, Span, Option<bool>),
    Look(usize, Option<Point>, Span),
    /// A search around a point, and where it found each member.
    Search(Point, Vec<Option<Point>>, Span),
}

/// What is known of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Unknown,
    Nowhere,
    At {
        point: Point,
        /// It becomes stale then at the earliest,
        earliest: Duration,
        /// and then at the latest.
        latest: Duration,
    },
}

impl Place {
    /// Whether a call may have found a position.
    fn may_be_there(self, span: Span) -> bool {
        match self {
            Self::Unknown => true,
            Self::Nowhere => false,
            Self::At { latest, .. } => span.from <= latest,
        }
    }

    /// Whether a call may have found none.
    fn may_be_gone(self, span: Span) -> bool {
        match self {
            Self::Unknown | Self::Nowhere => true,
            Self::At { earliest, .. } => span.to >= earliest,
        }
    }
}

struct Members {
    count: usize,
    /// Nobody can tell when a member becomes stale.
    clocks_differ: bool,
}

impl Members {
    fn put(&self, point: Point, life: Option<Duration>, span: Span) -> Place {
        let (earliest, latest) = match life {
            None => (Duration::MAX, Duration::MAX),
            Some(_) if self.clocks_differ => (Duration::ZERO, Duration::MAX),
            Some(life) => (
                (span.from + life).saturating_sub(ROUNDING),
                span.to.saturating_add(life + ROUNDING),
            ),
        };
        Place::At {
            point,
            earliest,
            latest,
        }
    }

    fn change(&self, place: Place, change: Change, span: Span, had: Option<bool>) -> Option<Place> {
        let fits = match had {
            Some(true) => place.may_be_there(span),
            Some(false) => place.may_be_gone(span),
            None => true,
        };
        if !fits {
            return None;
        }
        Some(match (change, had) {
            (Change::Put(point, life), _) => self.put(point, life, span),
            (Change::Move(point, life), Some(true)) => self.put(point, life, span),
            (Change::Move(..), Some(false)) | (Change::Remove, _) => Place::Nowhere,
            (Change::Move(point, life), None) => match place {
                Place::Unknown | Place::Nowhere => place,
                // If it was stale, it is as if the call had not arrived.
                Place::At { .. } => match place.may_be_there(span) {
                    true => self.put(point, life, span),
                    false => Place::Nowhere,
                },
            },
        })
    }

    /// A call has found this.
    fn learn(&self, place: Place, found: Option<Point>, span: Span) -> Option<Place> {
        match (place, found) {
            (Place::Unknown, Some(point)) => Some(Place::At {
                point,
                earliest: Duration::ZERO,
                latest: Duration::MAX,
            }),
            (Place::At { point, .. }, Some(found)) => {
                (point == found && place.may_be_there(span)).then_some(place)
            }
            (Place::Nowhere, Some(_)) => None,
            (_, None) => place.may_be_gone(span).then_some(Place::Nowhere),
        }
    }
}

/// Whether a search around one point finds the other.
fn is_near(one: Point, other: Point) -> bool {
    one / 2 == other / 2
}

impl Model for Members {
    type State = Vec<Place>;
    type Call = Call;

    fn initial(&self) -> Vec<Place> {
        vec![Place::Nowhere; self.count]
    }

    fn unknown(&self) -> Vec<Place> {
        vec![Place::Unknown; self.count]
    }

    fn step(&self, state: &Vec<Place>, call: &Call) -> Option<Vec<Place>> {
        let mut next = state.clone();
        match call {
            Call::Change(member, change, span, had) => {
                next[*member] = self.change(next[*member], *change, *span, *had)?;
            }
            Call::Look(member, found, span) => {
                next[*member] = self.learn(next[*member], *found, *span)?;
            }
            Call::Search(around, found, span) => {
                for (place, found) in next.iter_mut().zip(found) {
                    let elsewhere = match *place {
                        Place::Unknown => true,
                        Place::Nowhere => false,
                        Place::At { point, .. } => !is_near(*around, point),
                    };
                    match found {
                        None if elsewhere => {}
                        Some(found) if !is_near(*around, *found) => return None,
                        found => *place = self.learn(*place, *found, *span)?,
                    }
                }
            }
        }
        Some(next)
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match call {
            Call::Change(member, change, span, _) => {
                Some(Call::Change(*member, *change, *span, None))
            }
            Call::Look(..) | Call::Search(..) => None,
        }
    }
}

pub(super) struct Locating {
    members: usize,
    /// After what time members are stale, and for processes with other settings.
    stale_after: [Option<Duration>; 2],
    history: History<Call>,
}

fn position(point: Point) -> Position {
    let (longitude, latitude) = POINTS[point];
    match Position::new(longitude, latitude) {
        Ok(position) => position,
        Err(error) => panic!("no position: {error}"),
    }
}

/// Which point it is; one that nobody has put is none of them.
fn point(found: Position) -> Point {
    let mut points = 0..POINTS.len();
    let near = points.find(|point| position(*point).distance(found) < NEARLY);
    near.unwrap_or(usize::MAX)
}

fn name(member: usize) -> String {
    format!("courier{member}")
}

impl Locating {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[49]);
        let short = Duration::from_millis(1500);
        let usual = *dice.pick(&[None, Some(short), Some(2 * short)]);
        let other = match usual {
            Some(_) if dice.per_mille(300) => None,
            _ => Some(3 * short),
        };
        Self {
            members: dice.between(2, 3) as usize,
            stale_after: [usual, other],
            history: History::default(),
        }
    }

    fn stale_after(&self, client: &Client) -> Option<Duration> {
        self.stale_after[usize::from(client.has_other_settings())]
    }

    fn places(&self, client: &Client, store: &Store, name: &str) -> Places {
        let builder = Places::builder(store, "sim", name);
        let built = match self.stale_after(client) {
            Some(time) => builder.stale_after(time).build(),
            None => builder.build(),
        };
        match built {
            Ok(places) => places,
            Err(error) => panic!("places cannot be made: {error}"),
        }
    }

    async fn change(&self, client: &mut Client, places: &Places) {
        let world = client.world.clone();
        let member = client.dice.below(self.members as u64) as usize;
        let at = client.dice.below(POINTS.len() as u64) as usize;
        let life = self.stale_after(client);
        let change = match client.dice.below(10) {
            0..=5 => Change::Put(at, life),
            6 | 7 => Change::Move(at, life),
            _ => Change::Remove,
        };
        let from = world.now();
        // Without an answer it may arrive at any time.
        let to = Duration::MAX;
        let call = Call::Change(member, change, Span { from, to }, None);
        let call = self.history.begin(call, from);
        let name = name(member);
        let ended = match change {
            Change::Put(..) => {
                let put = places.put(&name, position(at));
                let put = client.call("put", 1, put).await;
                put.map(|ended| ended.map(|new| !new))
            }
            Change::Move(..) => {
                let moved = places.move_to(&name, position(at));
                client.call("move_to", 1, moved).await
            }
            Change::Remove => client.call("remove", 1, places.remove(&name)).await,
        };
        match ended {
            Some(Ok(had)) => {
                let to = world.now();
                let answered = Call::Change(member, change, Span { from, to }, Some(had));
                self.history.end(call, answered, to);
            }
            Some(Err(error)) if world.surely_failed(&error, false) => self.history.cancel(call),
            _ => {}
        }
    }

    /// Reads a position or searches; `None` if the call was dropped.
    async fn look(&self, client: &mut Client, places: &Places) -> Option<Result<(), Error>> {
        let world = client.world.clone();
        let from = world.now();
        let span = || Span {
            from,
            to: world.now(),
        };
        let member = client.dice.below(self.members as u64) as usize;
        let around = client.dice.below(POINTS.len() as u64) as usize;
        let found = match client.dice.per_mille(500) {
            true => {
                let name = name(member);
                let found = client.call("position", 1, places.position(&name)).await?;
                found.map(|found| Call::Look(member, found.map(point), span()))
            }
            false => {
                let search = places.nearby(position(around), Area::Radius(RADIUS));
                let found = client.call("nearby", 1, search.limit(10).find()).await?;
                found.map(|found| {
                    let mut points = vec![None; self.members];
                    for (member, place) in points.iter_mut().enumerate() {
                        let found = found.iter().find(|found| found.member == name(member));
                        *place = found.map(|found| point(found.position));
                    }
                    Call::Search(around, points, span())
                })
            }
        };
        let to = Some(world.now());
        Some(found.map(|call| self.history.add(Event { call, from, to })))
    }
}

impl Workload for Locating {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let places = self.places(&client, &store, "couriers");
            while client.next_operation() {
                client.rest(0, 600).await;
                match client.dice.per_mille(550) {
                    true => self.change(&mut client, &places).await,
                    false => drop(self.look(&mut client, &places).await),
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let places = self.places(client, store, &format!("works{}", client.index));
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            places.put("one", position(0)).await.map_err(failed)?;
            let near = places.nearby(position(1), Area::Radius(RADIUS)).find();
            match near.await.map_err(failed)?.len() {
                1 => Ok(()),
                count => Err(format!("{count} members are near instead of one")),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let places = self.places(&client, &store, "couriers");
            tokio::time::sleep(Duration::from_secs(1)).await;
            for _ in 0..6 {
                if let Some(Err(error)) = self.look(&mut client, &places).await {
                    world.breach(format!("places cannot be read: {error}"));
                }
                self.change(&mut client, &places).await;
            }
            let members = Members {
                count: self.members,
                clocks_differ: world.plan.clocks_differ,
            };
            world.explain("the places", &members, &self.history.events());
            let all_stale = match world.plan.settings_differ {
                true => self.stale_after[0].max(self.stale_after[1]),
                false => self.stale_after[0],
            };
            let ends = self.stale_after[0].is_some() && self.stale_after[1].is_some()
                || !world.plan.settings_differ;
            if let Some(life) = all_stale
                && ends
                && !world.may_be_torn()
            {
                // A clock may be wrong by two seconds, and another one two seconds the other way.
                tokio::time::sleep(life + Duration::from_secs(5)).await;
                for (key, _) in world.keys() {
                    world.breach(format!("{key} is left after all members became stale"));
                }
            }
        })
    }
}
