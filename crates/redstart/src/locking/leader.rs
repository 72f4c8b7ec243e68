//! One leader among many candidates, and everybody knows who.
//!
//! What all locks promise is on the [family's page](super). This one adds:
//!
//! - The leader has a name ([`LeaderBuilder::id`]) and a term, which rises from leader to leader: it is the
//!   [fence token](super::fence) of what the leader writes.
//! - [`Leader::observe`] tells every change: by message when a leader is elected or resigns, at the end of its
//!   lease when it died, and in any case within a ttl.
//! - A leader that cannot renew hears of the loss before another is elected, as every holder does. It must
//!   stop then; [`Leadership::lost`] says when.
//!
//! # Keys
//!
//! | key | type | TTL |
//! |---|---|---|
//! | `<namespace>:leader:{<name>}` | hash: `token`, `id`, `term` | the leader's lease |
//! | `…:fence` | string: the last term | none: a term must never come again |
//! | `…:wake` | sharded channel | |
//!
//! # Round trips and cost
//!
//! One for each question, renewal and resignation, each a script of 2 to 5 commands. An observer asks once for
//! each message and at the end of each lease. While the store is down nobody is elected, and the leader's
//! lease runs out.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    fence::FenceToken,
    lease::{Guard, Lease, Released, names},
    place::{Acquire, Kind, Line, Place, Settings, lease_settings},
    wake::Ear,
};
use crate::{
    error::{Error, Result},
    observe,
    script::Script,
    store::Store,
};

static CAMPAIGN: Script = Script::new(
    "leader.campaign",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("leader/campaign.lua")
    ),
);
static RENEW: Script = Script::new("leader.renew", include_str!("leader/renew.lua"));
static RESIGN: Script = Script::new("leader.resign", include_str!("leader/resign.lua"));

static KIND: Kind = Kind {
    pattern: "leader",
    names: names!("leader"),
    parts: &["fence"],
    acquire: Acquire::Script(&CAMPAIGN),
    renew: &RENEW,
    release: &RESIGN,
    plain: false,
    line: Line::Turns,
    poll: None,
};

/// A candidate, or an observer, for one office. Cheap to clone. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::Leader};
/// let store = Store::connect("memory://").await?;
/// let office = Leader::builder(&store, "shop", "scheduler").id("node-1").build()?;
///
/// let leadership = office.campaign(Duration::from_secs(1)).await?.expect("nobody else stands");
/// let elected = office.leader().await?.expect("there is a leader");
/// assert_eq!((elected.id.as_str(), elected.term), ("node-1", leadership.term()));
/// leadership.resign().await?;
/// assert!(office.leader().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Leader {
    place: Arc<Place>,
}

/// The settings of a [`Leader`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LeaderBuilder {
    settings: Settings,
    id: Option<String>,
}

impl LeaderBuilder {
    lease_settings!();

    /// The name under which this candidate is known to the observers (default: 128 random bits).
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    /// Makes the candidate. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an id that is empty or over 1024 bytes, a ttl out of the
    /// [limits](super::MIN_TTL), and for a namespace or name that breaks the
    /// [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Leader> {
        let id = self.id.unwrap_or_else(super::place::token);
        if id.is_empty() || id.len() > 1024 {
            return Err(Error::config("a candidate's id has 1 to 1024 bytes"));
        }
        Ok(Leader {
            place: self.settings.place(&KIND, vec![id])?,
        })
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elected {
    /// The candidate's id.
    pub id: String,
    /// The term, higher than all before.
    pub term: FenceToken,
}

impl Leader {
    /// Starts with the office `name` in `namespace`, with a lease of 30 s.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> LeaderBuilder {
        LeaderBuilder {
            settings: Settings::new(store, namespace, name),
            id: None,
        }
    }

    /// Stands for the office until it is won; `None` if another has had it for all of `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached it is asked again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, an office that was won is given back in the background.
    pub async fn campaign(&self, wait: Duration) -> Result<Option<Leadership>> {
        let guard = self.place.lock(wait).await?;
        Ok(guard.map(|guard| Leadership { guard }))
    }

    /// Takes the office if nobody has it.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, an office that was won is given back in the background.
    pub async fn try_campaign(&self) -> Result<Option<Leadership>> {
        let guard = self.place.try_lock().await?;
        Ok(guard.map(|guard| Leadership { guard }))
    }

    /// Who leads now, by the server's word.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    pub async fn leader(&self) -> Result<Option<Elected>> {
        observe::operation("leader.look", self.place.entity.namespace(), async {
            Ok(look(&self.place).await?.map(|(elected, _)| elected))
        })
        .await
    }

    /// Watches who leads. The first answer is who leads now.
    pub fn observe(&self) -> Observer {
        Observer {
            place: self.place.clone(),
            ear: None,
            last: None,
        }
    }
}

/// The leader, and for how long its lease still runs.
async fn look(place: &Place) -> Result<Option<(Elected, Option<Duration>)>> {
    let key = place.entity.key();
    let mut both = redis::pipe();
    both.cmd("HMGET").arg(key).arg("id").arg("term");
    both.cmd("PTTL").arg(key);
    let ((id, term), pttl): ((Option<String>, Option<u64>), i64) =
        place.store.pipeline(&both).await?;
    let (Some(id), Some(term)) = (id, term) else {
        return Ok(None);
    };
    let left = u64::try_from(pttl).ok().map(Duration::from_millis);
    let term = FenceToken::new(term)?;
    Ok(Some((Elected { id, term }, left)))
}

/// The office, held. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "an office that is not kept is given back at once"]
pub struct Leadership {
    guard: Guard,
}

impl Leadership {
    /// The term: the [fence token](super::fence) of what this leader writes.
    pub fn term(&self) -> FenceToken {
        self.guard.fence()
    }

    /// Whether the office is held for certain now; see [`Lease::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// The lease, to hand to the work.
    pub fn lease(&self) -> Lease {
        self.guard.lease()
    }

    /// Waits until the office is lost; see [`Lease::lost`].
    ///
    /// # Cancel safety
    ///
    /// Waiting changes nothing.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Gives the office back; the next candidate is elected at once.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. The lease is not renewed any more in any case.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the resignation goes on in the background.
    pub async fn resign(self) -> Result<Released> {
        self.guard.release().await
    }
}

/// Tells who leads, change by change. Made by [`Leader::observe`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::Leader};
/// let store = Store::connect("memory://").await?;
/// let office = Leader::builder(&store, "shop", "scheduler").id("node-1").build()?;
/// let mut observer = office.observe();
/// assert_eq!(observer.next().await?, None);
///
/// let leadership = office.campaign(Duration::from_secs(1)).await?.expect("nobody else stands");
/// assert_eq!(observer.next().await?.expect("elected").id, "node-1");
/// leadership.resign().await?;
/// assert_eq!(observer.next().await?, None);
/// # Ok(()) }
/// ```
pub struct Observer {
    place: Arc<Place>,
    ear: Option<Ear>,
    /// What was told last.
    last: Option<Option<Elected>>,
}

impl Observer {
    /// Waits until who leads is not what was told last, and tells it; the first call tells at once. `None`
    /// means that nobody leads. Leaders that came and went between two looks are not told.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. The observer stays good: call it again.
    ///
    /// # Cancel safety
    ///
    /// No change is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<Elected>> {
        let place = self.place.clone();
        if self.ear.is_none() {
            // Listening begins before the first look, so that no change falls between the two.
            self.ear = match place.wake.listen(&place.store, &place.channel).await {
                Ok(ear) => Some(ear),
                // A store that cannot listen looks once in a while.
                Err(error) if error.is_config() => None,
                Err(error) => return Err(error),
            };
        }
        loop {
            let seen = look(&place).await?;
            let left = seen.as_ref().and_then(|(_, left)| *left);
            let now = seen.map(|(elected, _)| elected);
            if self.last.as_ref() != Some(&now) {
                self.last = Some(now.clone());
                return Ok(now);
            }
            let mut pause = left.unwrap_or(place.terms.ttl) + Duration::from_millis(1);
            pause = pause.min(place.terms.ttl);
            match &mut self.ear {
                Some(ear) => tokio::select! {
                    () = ear.heard_any() => {}
                    () = sleep_until(Instant::now() + pause) => {}
                },
                None => sleep_until(Instant::now() + pause.min(place.terms.ttl / 3)).await,
            }
        }
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leader")
            .field(self.place.entity.key())
            .finish()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
