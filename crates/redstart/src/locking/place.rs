//! One lock on one store: asking for it, waiting for it, and giving it back. The locks of the family differ
//! in their scripts and in little else.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    fence::Fencing,
    lease::{Claim, Guard, Names, Step, Terms, give_back, millis, valid_until},
    wake::Wake,
};
use crate::{
    error::{Error, Result},
    key::{Channel, Entity, Key, Keys, Layout},
    observe,
    script::{Call, Script},
    store::{Optional, Store},
};

/// What makes one kind of lock different from another.
///
/// All scripts take the entity's key and its `parts` as KEYS. ARGV begins with the owner's token; then
/// acquire has ttl in ms, 1 to queue, the waiter's lease in ms, the channel; renew has ttl in ms; release has
/// the channel. What the place itself adds comes last. Acquire returns the fence token as text or the ms until
/// it is worth asking again as a number; or both as `{1, fence}` and `{0, ms}`.
pub(crate) struct Kind {
    pub(crate) pattern: &'static str,
    pub(crate) names: Names,
    pub(crate) parts: &'static [&'static str],
    pub(crate) acquire: Acquire,
    pub(crate) renew: &'static Script,
    pub(crate) release: &'static Script,
    /// The key holds the owner's token and nothing else: native commands can give it back, and acquire needs
    /// only token, ttl and whether to wait.
    pub(crate) plain: bool,
    pub(crate) line: Line,
    /// How often to ask while waiting, where holders may go without a word.
    pub(crate) poll: Option<Duration>,
}

pub(crate) enum Acquire {
    Script(&'static Script),
    /// `SET key token NX PX ttl` for a lock without fence tokens; the script for whoever waits for it.
    SetNx(&'static Script),
}

/// How a question is put.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Without waiting.
    Once,
    /// For the first time, by one who will wait.
    First,
    /// By one who waits.
    Again,
}

/// Who of several waiters in one process asks the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// One for each handle, in the order they came; a release wakes one waiter of a process, not all.
    Turns,
    /// Everybody: several may be let in at once.
    All,
    /// Everybody, and each has a leased place in a line on the server.
    Queue,
}

/// Settings that all builders of the family have.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) store: Store,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    pub(crate) renewed: bool,
    pub(crate) layout: Option<Layout>,
}

impl Settings {
    pub(crate) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ttl: Duration::from_secs(30),
            renewed: true,
            layout: None,
        }
    }

    pub(crate) fn terms(&self) -> Result<Terms> {
        Terms::new(self.ttl, self.renewed)
    }

    pub(crate) fn entity(&self, pattern: &'static str) -> Result<Entity> {
        let mut keys = Keys::new(&self.namespace, pattern)?;
        if let Some(layout) = &self.layout {
            keys = keys.layout(layout.clone());
        }
        keys.entity(&self.name)
    }

    pub(crate) fn place(&self, kind: &'static Kind, extra: Vec<String>) -> Result<Arc<Place>> {
        let terms = self.terms()?;
        let entity = self.entity(kind.pattern)?;
        let parts = kind.parts.iter().map(|part| entity.part(part));
        let keys = std::iter::once(entity.key().clone()).chain(parts).collect();
        Ok(Arc::new(Place {
            channel: entity.channel("wake"),
            keys,
            store: self.store.clone(),
            entity,
            kind,
            extra,
            terms,
            turn: Mutex::new(()),
            wake: Wake::default(),
            crowd: parking_lot::Mutex::new(None),
        }))
    }
}

/// The settings of [`Settings`] on a builder that has one.
macro_rules! lease_settings {
    () => {
        /// For how long the lock outlives a holder that says nothing more (default 30 s).
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.settings.ttl = ttl;
            self
        }

        /// The lease is not renewed by itself: it ends after its ttl, unless the holder extends it.
        pub fn fixed(mut self) -> Self {
            self.settings.renewed = false;
            self
        }

        /// Uses keys that the application already has.
        pub fn layout(mut self, layout: $crate::key::Layout) -> Self {
            self.settings.layout = Some(layout);
            self
        }
    };
}
pub(crate) use lease_settings;

pub(crate) struct Place {
    pub(crate) store: Store,
    pub(crate) entity: Entity,
    pub(crate) channel: Channel,
    /// The entity's own and its parts', in the order of KEYS.
    keys: Vec<Key>,
    pub(crate) kind: &'static Kind,
    extra: Vec<String>,
    pub(crate) terms: Terms,
    turn: Mutex<()>,
    pub(crate) wake: Wake,
    /// How many waited when this handle last gave the lock back, and when that was.
    crowd: parking_lot::Mutex<Option<(u32, Instant)>>,
}

pub(crate) enum Answer {
    /// With the fence token, or 0 where there is none.
    Granted(u64),
    /// With the time after which it is worth asking again; `None` if the holder's lease has no end.
    Busy(Option<Duration>),
}

impl Answer {
    fn read(reply: Value) -> Result<Self> {
        Ok(match reply {
            Value::Int(ms) => Self::Busy(pause(ms)),
            Value::Array(_) => match redis::from_redis_value(reply)? {
                (1, fence) => Self::Granted(u64::try_from(fence).unwrap_or(0)),
                (_, ms) => Self::Busy(pause(ms)),
            },
            fence => Self::Granted(redis::from_redis_value(fence)?),
        })
    }
}

/// From PTTL's answer; a key that is gone (-2) is worth asking for at once.
fn pause(pttl: i64) -> Option<Duration> {
    match u64::try_from(pttl) {
        // The server lets it go within the millisecond after.
        Ok(ms) => Some(Duration::from_millis(ms + 1)),
        Err(_) if pttl == -1 => None,
        Err(_) => Some(Duration::ZERO),
    }
}

/// 128 random bits that nobody else has, marked as this library's.
pub(crate) fn token() -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut token = String::with_capacity(35);
    token.push_str("rs-");
    for byte in rand::random::<[u8; 16]>() {
        token.push(char::from(DIGITS[usize::from(byte >> 4)]));
        token.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    token
}

/// One owner's claim on a place.
pub(crate) struct Ticket {
    pub(crate) place: Arc<Place>,
    pub(crate) token: String,
}

impl Ticket {
    pub(crate) fn new(place: &Arc<Place>, token: String) -> Self {
        Self {
            place: place.clone(),
            token,
        }
    }

    pub(crate) fn call(&self, script: &'static Script) -> Call<'_> {
        let place = &self.place;
        script.on(&place.entity).keys(&place.keys).arg(&self.token)
    }

    /// A call by the holder. A plain lock's scripts need nothing but its key for that.
    fn held(&self, script: &'static Script) -> Call<'_> {
        let place = &self.place;
        match place.kind.plain {
            true => script.on(&place.entity).key().arg(&self.token),
            false => self.call(script),
        }
    }

    /// Asks once.
    pub(crate) async fn ask(&self, how: Ask) -> Result<Answer> {
        match self.place.kind.acquire {
            Acquire::Script(script) => self.ask_script(script, how).await,
            Acquire::SetNx(script) if how == Ask::Again => self.ask_script(script, how).await,
            Acquire::SetNx(script) => {
                let mut set = redis::Cmd::with_capacity(6, 128);
                set.arg("SET").arg(self.place.entity.key());
                set.arg(&self.token).arg("NX");
                set.arg("PX").arg(millis(self.place.terms.ttl));
                match self
                    .place
                    .store
                    .request_one(&set, self.place.entity.slot(), false)
                    .await
                {
                    Ok(Value::Nil) if how == Ask::Once => Ok(Answer::Busy(None)),
                    Ok(Value::Nil) => self.ask_script(script, how).await,
                    Ok(_) => Ok(Answer::Granted(0)),
                    // Only the script can tell an earlier grant from another's.
                    Err(error) if error.is_in_doubt() && !error.is_timeout() => {
                        self.ask_script(script, how).await
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    async fn ask_script(&self, script: &'static Script, how: Ask) -> Result<Answer> {
        let place = &self.place;
        let mut call = self.call(script).arg(millis(place.terms.ttl));
        let waits = how != Ask::Once;
        if !place.kind.plain {
            call = call
                .arg(u8::from(waits))
                .arg(millis(place.terms.waiter()))
                .arg(&place.channel)
                .arg(&place.extra[..]);
        } else if waits {
            call = call.arg(1);
        }
        let reply = call
            // Asked again with the same token, it gives the same answer.
            .idempotent()
            .run(&place.store)
            .await?;
        Answer::read(reply)
    }

    async fn give_back(&self) -> Result<bool> {
        let place = &self.place;
        if place.kind.plain {
            let command = match place.store.capabilities().await {
                Ok(known) if known.has(Optional::DelIfEq) => Some(("DELIFEQ", None)),
                Ok(known) if known.has(Optional::DelEx) => Some(("DELEX", Some("IFEQ"))),
                _ => None,
            };
            if let Some((command, condition)) = command {
                let mut cmd = redis::Cmd::with_capacity(4, 128);
                cmd.arg(command).arg(place.entity.key());
                if let Some(condition) = condition {
                    cmd.arg(condition);
                }
                cmd.arg(&self.token);
                match place
                    .store
                    .request_one(&cmd, place.entity.slot(), false)
                    .await
                {
                    Ok(Value::Int(1)) => {
                        *place.crowd.lock() = None;
                        return Ok(true);
                    }
                    // Another process waits for it, or it is not ours any more: the script can tell.
                    Ok(_) => {}
                    // A node that was added since is of an older version.
                    Err(error) if error.is_unknown_command() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let reply: i64 = self
            .held(place.kind.release)
            .arg(&place.channel)
            .arg(&place.extra[..])
            .run(&place.store)
            .await?;
        let told = u32::try_from(reply - 1).unwrap_or_default();
        *place.crowd.lock() = (told > 0).then(|| (told, Instant::now()));
        Ok(reply >= 1)
    }
}

impl Claim for Ticket {
    fn renew(&self, ttl: Duration) -> Step<'_> {
        Box::pin(async move {
            let reply: i64 = self
                .held(self.place.kind.renew)
                .arg(millis(ttl))
                .arg(&self.place.extra[..])
                .idempotent()
                .run(&self.place.store)
                .await?;
            Ok(reply == 1)
        })
    }

    fn release(&self) -> Step<'_> {
        Box::pin(self.give_back())
    }

    fn store(&self) -> &Store {
        &self.place.store
    }

    fn names(&self) -> &'static Names {
        &self.place.kind.names
    }

    fn namespace(&self) -> &Arc<str> {
        self.place.entity.namespace()
    }
}

/// An acquisition under way. Dropped before its end — the caller's future was — it gives back whatever the
/// server may have granted or noted by then.
pub(crate) struct Attempt<C: Claim> {
    claim: Option<Arc<C>>,
    /// Whether the server may have noted anything of it.
    pub(crate) noted: bool,
}

impl<C: Claim> Attempt<C> {
    pub(crate) fn new(claim: C) -> Self {
        Self {
            claim: Some(Arc::new(claim)),
            noted: false,
        }
    }

    pub(crate) fn claim(&self) -> &C {
        // Taken only by `win`, which takes the attempt too.
        self.claim
            .as_deref()
            .expect("an attempt has its claim until it is won")
    }

    /// Makes a guard of it, if the lease is still good.
    pub(crate) fn win<F: Fencing>(
        mut self,
        fence: u64,
        asked: Instant,
        terms: Terms,
    ) -> Result<Guard<F>> {
        if Instant::now() >= valid_until(asked, terms.ttl) {
            return Err(Error::timeout("the answer came after the lease had ended"));
        }
        match self.claim.take() {
            Some(claim) => Ok(Guard::new(claim, F::issued(fence), asked, terms)),
            None => Err(Error::config("an attempt is won once")),
        }
    }
}

impl<C: Claim> Drop for Attempt<C> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take()
            && self.noted
        {
            give_back(claim);
        }
    }
}

impl Place {
    fn attempt(self: &Arc<Self>) -> Attempt<Ticket> {
        Attempt::new(Ticket::new(self, token()))
    }

    /// Asks once and does not wait.
    pub(crate) async fn try_lock<F: Fencing>(self: &Arc<Self>) -> Result<Option<Guard<F>>> {
        let names = &self.kind.names;
        observe::operation(names.acquire, self.entity.namespace(), async {
            let mut attempt = self.attempt();
            let asked = Instant::now();
            attempt.noted = true;
            match attempt.claim().ask(Ask::Once).await {
                Ok(Answer::Granted(fence)) => attempt.win(fence, asked, self.terms).map(Some),
                Ok(Answer::Busy(_)) => {
                    attempt.noted = false;
                    observe::event(names.busy);
                    Ok(None)
                }
                Err(error) => {
                    attempt.noted = !error.is_config();
                    Err(error)
                }
            }
        })
        .await
    }

    /// Asks until it is granted or `wait` has passed. Between questions it sleeps until the holder gives the
    /// lock back, until the holder's lease ends, or until a message may have been missed.
    pub(crate) async fn lock<F: Fencing>(
        self: &Arc<Self>,
        wait: Duration,
    ) -> Result<Option<Guard<F>>> {
        observe::operation(self.kind.names.acquire, self.entity.namespace(), async {
            let deadline = deadline(wait);
            // Whose turn did not come asks once all the same: only the server can say no.
            let _turn = match self.kind.line {
                Line::Turns => timeout_at(deadline, self.turn.lock()).await.ok(),
                Line::All | Line::Queue => None,
            };
            self.wait_in_turn(deadline).await
        })
        .await
    }

    async fn wait_in_turn<F: Fencing>(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<Option<Guard<F>>> {
        let queue = self.kind.line == Line::Queue;
        let mut attempt = self.attempt();
        let mut ear = None;
        let mut deaf = false;
        let mut backoff = Duration::from_millis(5);
        let mut asked = Instant::now();
        let mut doubt = false;
        let mut how = Ask::First;
        let mut lost = 0;
        // Whoever gave it back a moment ago would ask before anybody else has heard of that.
        self.give_way(lost, deadline).await;
        loop {
            if !doubt {
                // After an answer that was lost, the lease may run from that question on.
                asked = Instant::now();
            }
            attempt.noted = true;
            let answer = attempt.claim().ask(how).await;
            how = Ask::Again;
            let (pause, failure) = match answer {
                Ok(Answer::Granted(fence)) => {
                    return attempt.win(fence, asked, self.terms).map(Some);
                }
                Ok(Answer::Busy(pause)) => {
                    // Whoever stands in no line has left nothing on the server.
                    attempt.noted = queue;
                    doubt = false;
                    (pause.unwrap_or(self.terms.ttl), None)
                }
                Err(error) if error.is_timeout() || error.is_unavailable() => {
                    doubt = true;
                    if Instant::now() >= valid_until(asked, self.terms.ttl) {
                        // A lease from back then would be over; begin anew under another token.
                        attempt = self.attempt();
                        doubt = false;
                    }
                    backoff = (backoff * 2).min(Duration::from_millis(400));
                    (backoff.mul_f64(rand::random_range(0.5..=1.0)), Some(error))
                }
                Err(error) => {
                    attempt.noted = !error.is_config();
                    return Err(error);
                }
            };
            if Instant::now() >= deadline {
                return match failure {
                    Some(error) => Err(error),
                    None => {
                        observe::event(self.kind.names.busy);
                        Ok(None)
                    }
                };
            }
            let mut pause = pause;
            if queue {
                pause = pause.min(self.terms.waiter() / 3);
            }
            if let Some(poll) = self.kind.poll {
                pause = pause.min(poll);
            }
            if ear.is_none() && !deaf {
                match self.wake.listen(&self.store, &self.channel).await {
                    Ok(new) => {
                        let stands = new.stands();
                        ear = Some(new);
                        if stands && failure.is_none() {
                            // What was given back before we listened was not heard.
                            continue;
                        }
                    }
                    Err(error) if error.is_config() => deaf = true,
                    Err(_) => {}
                }
            }
            if deaf {
                // This store cannot listen, so it has to ask.
                pause = pause.min(Duration::from_millis(rand::random_range(25..=100)));
            }
            let until = (Instant::now() + pause).min(deadline);
            match &mut ear {
                Some(ear) => {
                    let token = &attempt.claim().token;
                    tokio::select! {
                        () = ear.heard(token) => {
                            self.give_way(lost, deadline).await;
                            lost += 1;
                        }
                        () = sleep_until(until) => {}
                    }
                }
                None => sleep_until(until).await,
            }
        }
    }
}

impl Place {
    /// Servers tell waiters in an order of their own, which may be the same each time: then some would always
    /// ask first, and others never get the lock. So whoever had it lately, among many, lets those ask first
    /// who have heard of more releases in vain. Whose turn it is does not wait.
    async fn give_way(&self, lost: u32, deadline: Instant) {
        const STEP: Duration = Duration::from_micros(100);
        const MOST: Duration = Duration::from_millis(5);
        /// What was seen longer ago says nothing of now.
        const FRESH: Duration = Duration::from_secs(1);
        let Some((crowd, seen)) = *self.crowd.lock() else {
            return;
        };
        let now = Instant::now();
        if crowd > lost && now < seen + FRESH && self.kind.line == Line::Turns {
            let until = now + (STEP * (crowd - lost)).min(MOST);
            sleep_until(until.min(deadline)).await;
        }
    }
}

/// A wait without an end is one of thirty years, as with tokio's own timers.
pub(crate) fn deadline(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait)
        .unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 24 * 60 * 60))
}
