//! Sessions: the answers about each session fit together, what was ended stays ended, and the index of a user is complete.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    sessions::{Patched, Rotated, Sessions, Token},
};
use serde::{Deserialize, Serialize};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    history::{Event, History, Model},
    world::World,
};

#[derive(Serialize, Deserialize, Clone, Debug)]
struct Data {
    count: u64,
}

/// How long sessions of the short-lived kind last, and for how long they may be idle. A renewal within a part of the idle
/// time after the last one is left out.
const SHORT: Duration = Duration::from_secs(4);
const SHORT_IDLE: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_millis(16);

pub(super) struct Browsing {
    /// All sessions whose creation was acknowledged.
    sessions: Mutex<Vec<Arc<Known>>>,
    /// Logouts everywhere, by user.
    logouts: [History<()>; 3],
}

/// A session, and what happened to it.
struct Known {
    user: usize,
    /// When its creation was sent and acknowledged.
    created: (Duration, Duration),
    short: bool,
    history: History<Call>,
    /// Calls that renew the idle time if they find the session; true if they did.
    uses: History<bool>,
}

/// A session as its client has it.
struct Mine {
    known: Arc<Known>,
    token: Token,
    /// The last value that was tried.
    count: u64,
}

/// A call about one session, with its answer.
#[derive(Clone, Debug, PartialEq)]
enum Call {
    Patch(u64, Option<Patched>),
    /// The value, or nothing if there is no session.
    Load(Option<u64>),
    /// Whether it is in the list of its user.
    List(bool),
    Rotate(Option<Turned>),
    /// Whether there was a session.
    Revoke(Option<bool>),
    /// A logout everywhere, or the end of its time.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Turned {
    To,
    Already,
    Gone,
}

/// A session as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// It has this value.
    Live(u64),
    /// The same, but under a token that its client has not: the reply to a rotation was lost. The old token opens it for a
    /// short while.
    Away(u64),
    Gone,
    Unknown,
}

struct OneSession;

impl Model for OneSession {
    type State = State;
    type Call = Call;

    fn initial(&self) -> State {
        State::Live(1)
    }

    fn unknown(&self) -> State {
        State::Unknown
    }

    fn step(&self, state: &State, call: &Call) -> Option<State> {
        use State::{Away, Gone, Live, Unknown};
        let state = *state;
        match (call, state) {
            (Call::End | Call::Revoke(Some(true)), Unknown) => Some(Gone),
            (_, Unknown) => Some(Unknown),
            (Call::End, _) => Some(Gone),

            (Call::Patch(value, Some(Patched::Done) | None), Live(_)) => Some(Live(*value)),
            (Call::Patch(value, Some(Patched::Done) | None), Away(_)) => Some(Away(*value)),
            (Call::Patch(_, Some(Patched::Gone)), Gone | Away(_)) => Some(state),
            (Call::Patch(_, None), Gone) => Some(Gone),
            (Call::Patch(..), _) => None,

            (Call::Load(Some(value)), Live(known) | Away(known)) => {
                (*value == known).then_some(state)
            }
            (Call::Load(None), Gone | Away(_)) => Some(state),
            (Call::Load(_), _) => None,

            (Call::List(there), _) => (*there == (state != Gone)).then_some(state),

            (Call::Rotate(Some(Turned::To)), Live(_)) => Some(state),
            (Call::Rotate(Some(Turned::Already)), Away(_)) => Some(state),
            (Call::Rotate(Some(Turned::Gone)), Gone | Away(_)) => Some(state),
            (Call::Rotate(None), Live(value)) => Some(Away(value)),
            (Call::Rotate(None), _) => Some(state),
            (Call::Rotate(_), _) => None,

            (Call::Revoke(Some(true) | None), Live(_) | Away(_)) => Some(Gone),
            (Call::Revoke(Some(false)), Gone | Away(_)) => Some(state),
            (Call::Revoke(None), Gone) => Some(Gone),
            (Call::Revoke(_), _) => None,
        }
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match call {
            Call::Patch(value, _) => Some(Call::Patch(*value, None)),
            Call::Rotate(_) => Some(Call::Rotate(None)),
            Call::Revoke(_) => Some(Call::Revoke(None)),
            Call::End => Some(Call::End),
            Call::Load(_) | Call::List(_) => None,
        }
    }
}

impl Browsing {
    pub(super) fn new(_: &World) -> Self {
        Self {
            sessions: Mutex::default(),
            logouts: Default::default(),
        }
    }

    /// Two versions of the program, with other settings, share the sessions.
    fn sessions(&self, store: &Store, short: bool) -> Sessions {
        let mut builder =
            Sessions::builder(store, "sim", "web").rotation_grace(Duration::from_millis(500));
        if short {
            builder = builder.idle(SHORT_IDLE).absolute(SHORT);
        }
        match builder.build() {
            Ok(sessions) => sessions,
            Err(error) => panic!("sessions cannot be made: {error}"),
        }
    }

    async fn create(&self, client: &mut Client, sessions: &Sessions, short: bool) -> Option<Mine> {
        let world = client.world.clone();
        let user = client.dice.below(3) as usize;
        let begun = world.now();
        let name = format!("user{user}");
        let data = Data { count: 1 };
        let created = sessions.create(&name, &data);
        let token = client.call("create", 2, created).await?.ok()?;
        client.note(format_args!("a session of {name}"));
        let known = Arc::new(Known {
            user,
            created: (begun, world.now()),
            short,
            history: History::default(),
            uses: History::default(),
        });
        self.sessions.lock().push(known.clone());
        Some(Mine {
            known,
            token,
            count: 1,
        })
    }

    async fn look(&self, client: &mut Client, sessions: &Sessions, mine: &Mine) {
        let from = client.world.now();
        let used = mine.known.uses.begin(false, from);
        // It reads the session, renews it, and reads it once more if it was about to end.
        let limit = 3 * client.world.plan.deadline;
        let load = sessions.load::<Data>(&mine.token);
        let load = client.twin().timed("load", limit, load).await;
        client.heard(&load, from);
        let Ok(found) = load else {
            return;
        };
        let uses = &mine.known.uses;
        uses.end(used, found.is_some(), client.world.now());
        let user = format!("user{}", mine.known.user);
        if let Some(session) = &found
            && session.user.as_deref() != Some(&user)
        {
            client
                .world
                .breach("a session belongs to another user".to_owned());
        }
        mine.known.history.add(Event {
            call: Call::Load(found.map(|session| session.data.count)),
            from,
            to: Some(client.world.now()),
        });
    }

    async fn change(&self, client: &mut Client, sessions: &Sessions, mine: &mut Mine) {
        let world = client.world.clone();
        let history = &mine.known.history;
        let from = world.now();
        let user = format!("user{}", mine.known.user);
        match client.dice.below(10) {
            0..=4 => {
                mine.count += 1;
                let count = mine.count;
                let number = history.begin(Call::Patch(count, None), from);
                let data = Data { count };
                let used = mine.known.uses.begin(false, from);
                let patch = sessions.patch(&mine.token, &data);
                if let Some(Ok(patched)) = client.call("patch", 1, patch).await {
                    history.end(number, Call::Patch(count, Some(patched)), world.now());
                    let found = patched == Patched::Done;
                    mine.known.uses.end(used, found, world.now());
                }
            }
            5 | 6 => {
                let number = history.begin(Call::Rotate(None), from);
                let rotate = sessions.rotate(&mine.token);
                let turned = match client.call("rotate", 1, rotate).await {
                    Some(Ok(Rotated::To(token))) => {
                        mine.token = token;
                        Turned::To
                    }
                    Some(Ok(Rotated::Already)) => Turned::Already,
                    Some(Ok(Rotated::Gone)) => Turned::Gone,
                    _ => return,
                };
                history.end(number, Call::Rotate(Some(turned)), world.now());
            }
            7 => {
                let number = history.begin(Call::Revoke(None), from);
                let revoke = sessions.revoke(&mine.token);
                if let Some(Ok(ended)) = client.call("revoke", 1, revoke).await {
                    // Sent again after a lost reply, it finds nothing because it did it before.
                    if !ended {
                        history.begin(Call::Revoke(None), from);
                    }
                    history.end(number, Call::Revoke(Some(ended)), world.now());
                }
            }
            8 => {
                let logouts = &self.logouts[mine.known.user];
                let number = logouts.begin((), from);
                let revoke = sessions.revoke_all(&user);
                // The account, its sessions, and their end.
                if let Some(Ok(count)) = client.call("revoke_all", 3, revoke).await {
                    client.note(format_args!("{count} sessions of {user} ended"));
                    logouts.end(number, (), world.now());
                }
            }
            _ => {
                // The account, the index, and the sessions.
                let list = sessions.list(&user);
                if let Some(Ok(listed)) = client.call("list", 3, list).await {
                    let handle = mine.token.handle();
                    let there = listed.iter().any(|info| info.handle == handle);
                    history.add(Event {
                        call: Call::List(there),
                        from,
                        to: Some(world.now()),
                    });
                }
            }
        }
    }

    /// Everything that happened to a session, also by others and on its own.
    fn events(&self, world: &World, known: &Known) -> Vec<Event<Call>> {
        let (sent, made) = known.created;
        let mut events = known.history.events();
        for logout in self.logouts[known.user].events() {
            // If a server lost which account the user has, its sessions are not found.
            let all = logout
                .to
                .filter(|to| logout.from >= made && !world.may_have_lost(sent, *to));
            // One that was over before knows nothing of the session.
            if logout.to.is_none_or(|to| to >= sent) {
                events.push(Event {
                    call: Call::End,
                    from: logout.from.max(sent),
                    to: all,
                });
            }
        }
        if known.short {
            let (from, to) = match world.plan.clocks_differ {
                true => (sent, None),
                false => ends(world, known),
            };
            let call = Call::End;
            events.push(Event { call, from, to });
        }
        events
    }
}

/// When a short session ends on its own, at the earliest and at the latest.
fn ends(world: &World, known: &Known) -> (Duration, Option<Duration>) {
    let rounding = Duration::from_millis(2);
    let (sent, made) = known.created;
    let (mut earliest, mut latest) = (sent + SHORT_IDLE, made + SHORT_IDLE);
    // From here on a copy of a request may be under way for long.
    let calm_until = world
        .plan
        .faults
        .first()
        .map_or(Duration::MAX, |first| first.at);
    for used in known.uses.events() {
        if used.call {
            earliest = earliest.max(used.from + SHORT_IDLE - SLACK);
        }
        // What was dropped or failed was sent by its deadline, and arrives soon after that if nothing goes wrong.
        let by = || used.from + world.plan.deadline + 2 * world.slowest();
        let by = used.to.unwrap_or_else(by);
        latest = match by < calm_until {
            true => latest.max(by + SHORT_IDLE),
            false => Duration::MAX,
        };
    }
    let earliest = earliest.min(sent + SHORT) - rounding;
    let latest = latest.min(made + SHORT) + rounding;
    (earliest, Some(latest))
}

impl Workload for Browsing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let short = client.dice.per_mille(400);
            let sessions = self.sessions(&store, short);
            let mut mine: Vec<Mine> = Vec::new();
            while client.next_operation() {
                client.rest(0, if short { 800 } else { 500 }).await;
                if mine.is_empty() || client.dice.per_mille(250) {
                    mine.extend(self.create(&mut client, &sessions, short).await);
                    continue;
                }
                let at = client.dice.below(mine.len() as u64) as usize;
                let (changes, looks) =
                    *client
                        .dice
                        .pick(&[(true, true), (true, false), (false, true)]);
                if changes {
                    self.change(&mut client, &sessions, &mut mine[at]).await;
                }
                if looks {
                    self.look(&mut client, &sessions, &mine[at]).await;
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let sessions = self.sessions(store, false);
        let user = format!("works{}", client.index);
        Box::pin(async move {
            let failed = |error: redstart::Error| error.to_string();
            let created = sessions.create(&user, &Data { count: 1 }).await;
            let token = created.map_err(failed)?;
            match sessions.load::<Data>(&token).await.map_err(failed)? {
                Some(_) => Ok(()),
                None => Err("a new session is gone".to_owned()),
            }
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let known = self.sessions.lock().clone();
            for (number, known) in known.iter().enumerate() {
                let what = format!("session {number} of user{}", known.user);
                world.explain(&what, &OneSession, &self.events(&world, known));
            }
            let store = client.store().await;
            let sessions = self.sessions(&store, false);
            // Everything of a user ends at once, whatever happened before.
            for number in 0..3 {
                let user = format!("user{number}");
                let token = sessions.create(&user, &Data { count: 1 }).await;
                let ended = sessions.revoke_all(&user).await;
                let listed = sessions.list(&user).await;
                let left = match &token {
                    Ok(token) => sessions.load::<Data>(token).await,
                    Err(_) => Ok(None),
                };
                let fine = token.is_ok()
                    && ended.as_ref().is_ok_and(|count| *count > 0)
                    && listed.as_ref().is_ok_and(Vec::is_empty)
                    && matches!(left, Ok(None));
                if !fine {
                    world.breach(format!(
                        "sessions of {user} cannot be ended: {ended:?}, {listed:?}, {left:?}"
                    ));
                }
            }
            for (key, ttl) in world.keys() {
                if ttl < 0 {
                    world.breach(format!("{key} never expires"));
                }
            }
        })
    }
}
