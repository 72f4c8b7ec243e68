//! Libraries that are recognised by the keys they keep.
//!
//! A library's own keys get no general findings: what looks like a fault there (a list that is popped, a hash
//! without TTL) is part of a protocol that the library looks after. Rules of their own speak about them.
//!
//! What keys hold decides, and `redstart-adopt` knows what each library writes. Names are seen during the walk over
//! all of them, so that a queue is known even if it is one among a million keys, but a name alone makes no owner: keys
//! whose names are like those of a library are *suspected*, and general findings about them are not sure.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use redstart_adopt::{Found, Library as Known, Recognition};

use crate::observation::{KeyFact, Shape};

mod sign;

pub(crate) use sign::{
    RedstartName, Signs, is_channel_of_library, is_redstart_script, suspect_of_stream,
};

/// A library that was found.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) name: String,
    /// Which names are its own.
    pub(crate) owns: Vec<Owns>,
}

/// How a library's keys are told from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owns {
    Prefix(Vec<u8>),
    Name(Vec<u8>),
    Suffix(Vec<u8>),
    /// Keys of Redstart's form in this namespace.
    Redstart(String),
}

impl Owns {
    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Prefix(prefix) => name.starts_with(prefix),
            Self::Name(own) => name == own,
            Self::Suffix(suffix) => name.ends_with(suffix),
            Self::Redstart(namespace) => {
                RedstartName::parse(name).is_some_and(|own| own.namespace == namespace)
            }
        }
    }
}

/// From this confidence on, a recognised library owns its keys.
const ENOUGH: f64 = 0.7;

/// A library's name in reports.
fn title(found: &Found) -> &'static str {
    match found.library {
        Known::BullMq => "BullMQ",
        Known::Bull => "Bull",
        Known::Sidekiq => "Sidekiq",
        Known::Celery => "Celery",
        Known::Rq => "RQ",
        Known::Dramatiq => "Dramatiq",
        Known::Redisson => "Redisson",
        Known::SpringSession => "Spring Session",
        Known::Redstart => "Redstart",
        other => other.name(),
    }
}

/// The libraries of one server, and what was found in their keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Libraries {
    /// Proven by what their keys hold, or by what their processes do.
    pub(crate) found: Vec<Library>,
    /// Names that are like those of a library, without a proof.
    suspected: Vec<Library>,
    /// What the keys spoke against.
    refuted: Vec<Owns>,
    pub(crate) bull: Vec<BullQueue>,
    pub(crate) sidekiq: Option<Sidekiq>,
    pub(crate) celery: Option<Celery>,
    /// Queues and write-behind shards of Redstart.
    pub(crate) waiting: Vec<Waiting>,
    /// Digests of scripts of libraries that the server has.
    scripts: BTreeSet<&'static str>,
    /// What the contents of keys say.
    recognised: Option<Arc<Recognition>>,
}

/// One queue of BullMQ.
#[derive(Clone, Debug, Default)]
pub(crate) struct BullQueue {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    /// On the second look.
    pub(crate) version_later: Option<String>,
    /// Where it is: the number of the node, and the beginning of its keys.
    pub(crate) place: (usize, Vec<u8>),
    pub(crate) wait: u64,
    pub(crate) paused: u64,
    pub(crate) active: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    /// Ids whose job hash was missing on both looks, of those that were checked.
    pub(crate) missing: u64,
    pub(crate) checked: u64,
    /// Job hashes that no list or set mentioned on both looks, of those that were checked.
    pub(crate) orphans: u64,
    pub(crate) jobs_checked: u64,
    /// Active jobs without a lock on both looks.
    pub(crate) unlocked: u64,
}

/// A queue or a write-behind shard of Redstart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) name: String,
    /// Jobs that are ready, or writes that are not applied.
    pub(crate) count: u64,
    /// How long the oldest of them has waited, in milliseconds; `None` if that is not known.
    pub(crate) oldest: Option<u64>,
    /// A worker has a lease.
    pub(crate) served: bool,
    /// Nothing is handed out, because somebody said so.
    pub(crate) paused: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sidekiq {
    pub(crate) processes: u64,
    /// Processes that no longer beat and still have work.
    pub(crate) dead_with_work: u64,
    pub(crate) work: u64,
    /// Processes that ended without saying so; what they worked on has expired with them.
    pub(crate) vanished: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Celery {
    pub(crate) unacked: u64,
    /// Seconds since the oldest unacknowledged message was delivered.
    pub(crate) oldest: f64,
    /// Whether a worker is connected; `None` if the clients could not be seen.
    pub(crate) worker: Option<bool>,
    /// Messages whose ETA is more than the visibility time-out after their delivery.
    pub(crate) far_eta: u64,
}

impl Celery {
    /// What is known of the visibility time-out, in seconds: an hour is the default. A worker gives back what is older,
    /// so while one is connected an older message proves that its time-out is longer.
    pub(crate) fn visibility(&self) -> f64 {
        const DEFAULT: f64 = 3600.0;
        match self.worker {
            Some(true) => self.oldest.max(DEFAULT),
            _ => DEFAULT,
        }
    }
}

impl Libraries {
    /// Takes note of a script that the server has.
    pub(crate) fn see_script(&mut self, digest: &'static str) {
        self.scripts.insert(digest);
    }

    pub(crate) fn has_script(&self, digest: &str) -> bool {
        self.scripts.contains(digest)
    }

    /// The library that owns a key.
    pub(crate) fn owner(&self, name: &[u8]) -> Option<&str> {
        let by_contents = self.recognised.as_deref().and_then(|recognition| {
            recognition
                .found
                .iter()
                .find(|found| found.confidence >= ENOUGH && found.owns(name))
        });
        match by_contents {
            Some(found) => Some(title(found)),
            None => matching(&self.found, name),
        }
    }

    /// The library that a key's name speaks for, unless one owns it or the keys spoke against it.
    pub(crate) fn suspect(&self, name: &[u8]) -> Option<&str> {
        if self.owner(name).is_some() || self.refuted.iter().any(|owns| owns.matches(name)) {
            return None;
        }
        matching(&self.suspected, name)
    }

    /// Owner and suspect of a key that was looked at.
    pub(crate) fn of(&self, fact: &KeyFact) -> (Option<String>, Option<String>) {
        let owner = self.owner(&fact.name);
        let suspect = self.suspect(&fact.name);
        let fits = |name: &&str| *name != "Redstart" || !is_handmade(fact);
        (
            owner.filter(fits).map(str::to_owned),
            suspect.filter(fits).map(str::to_owned),
        )
    }

    /// Adds what names speak for.
    pub(crate) fn suspect_all(&mut self, libraries: Vec<Library>) {
        for library in libraries {
            for owns in library.owns {
                add(&mut self.suspected, &library.name, owns);
            }
        }
    }

    /// Adds beginnings of the names of keys that hold sessions of Express.
    pub(crate) fn suspect_sessions(&mut self, prefixes: &HashSet<Vec<u8>>) {
        for prefix in prefixes {
            let owns = Owns::Prefix(prefix.clone());
            add(&mut self.suspected, "connect-redis", owns);
        }
    }

    /// Adds a namespace whose keys Redstart's own scripts use.
    pub(crate) fn prove_redstart(&mut self, namespace: &str) {
        let owns = Owns::Redstart(namespace.to_owned());
        add(&mut self.found, "Redstart", owns);
    }

    /// Beginnings of the keys of queues that are BullMQ's by name, and neither proven nor refuted.
    pub(crate) fn unproven_queues(&self) -> Vec<Vec<u8>> {
        let proven = |prefix: &[u8]| self.owner(prefix).is_some();
        prefixes(&self.suspected, "BullMQ")
            .filter(|prefix| {
                !proven(prefix) && !self.refuted.contains(&Owns::Prefix(prefix.to_vec()))
            })
            .map(<[u8]>::to_vec)
            .collect()
    }

    /// These keys do not hold what the library of their names would.
    pub(crate) fn refute(&mut self, prefix: Vec<u8>) {
        self.refuted.push(Owns::Prefix(prefix));
    }

    /// Adds what was recognised by contents.
    pub(crate) fn recognise(&mut self, recognition: Recognition) {
        for found in recognition
            .found
            .iter()
            .filter(|found| found.confidence >= ENOUGH)
        {
            let name = title(found);
            match found.library {
                // BullMQ's rules look at each queue by its prefix.
                Known::BullMq => {
                    let prefix = Owns::Prefix(format!("{}:", found.subject).into_bytes());
                    add(&mut self.found, name, prefix);
                }
                // A namespace that is Redstart's has patterns that were not among the keys looked at.
                Known::Redstart => {
                    let namespace = found.subject.strip_suffix(":*").unwrap_or(&found.subject);
                    self.prove_redstart(namespace);
                }
                _ if !self.found.iter().any(|library| library.name == name) => {
                    self.found.push(Library {
                        name: name.to_owned(),
                        owns: Vec::new(),
                    });
                }
                _ => {}
            }
        }
        self.recognised = Some(Arc::new(recognition));
    }

    /// Queues of BullMQ that were proven, by the beginnings of their keys.
    pub(crate) fn bull_queues(&self) -> Vec<Vec<u8>> {
        prefixes(&self.found, "BullMQ")
            .map(<[u8]>::to_vec)
            .collect()
    }

    /// What stands before the keys of each Sidekiq: nothing, or a namespace.
    pub(crate) fn sidekiq_namespaces(&self) -> Vec<String> {
        let recognised = self.recognised.as_deref();
        let mut namespaces: Vec<String> = recognised
            .into_iter()
            .flat_map(|recognition| recognition.of(Known::Sidekiq))
            .filter(|found| found.confidence >= ENOUGH)
            .filter_map(|found| found.subject.split_once("queue:"))
            .map(|(namespace, _)| namespace.to_owned())
            .collect();
        if self.has("Sidekiq") && namespaces.is_empty() {
            namespaces.push(String::new());
        }
        namespaces.sort();
        namespaces.dedup();
        namespaces
    }

    /// Whether it was found, or its names were.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.all().any(|library| library.name == name)
    }

    /// Whether any of them is a queue whose jobs must not be evicted or lost.
    pub(crate) fn queue(&self) -> Option<&str> {
        const QUEUES: &[&str] = &[
            "BullMQ",
            "Bull",
            "Sidekiq",
            "Celery",
            "RQ",
            "asynq",
            "Resque",
            "Dramatiq",
            "arq",
            "Bee-Queue",
            "Huey",
            "Hangfire",
        ];
        self.all()
            .map(|library| library.name.as_str())
            .find(|name| QUEUES.contains(name))
    }

    /// Found and suspected, except what was refuted.
    fn all(&self) -> impl Iterator<Item = &Library> {
        let open =
            |library: &&Library| library.owns.iter().any(|owns| !self.refuted.contains(owns));
        self.found.iter().chain(self.suspected.iter().filter(open))
    }
}

/// Redstart never writes these without a TTL; a key of such a name that has none was made by hand.
fn is_handmade(fact: &KeyFact) -> bool {
    let plain = !matches!(fact.shape, Shape::Binary | Shape::Unknown)
        || fact.kind != crate::observation::Kind::String;
    let expires = RedstartName::parse(&fact.name).is_some_and(|name| {
        name.main && matches!(name.pattern, "cache" | "idempotency" | "lock" | "session")
    });
    expires && plain && fact.is_permanent()
}

/// The library whose names these are.
fn matching<'a>(libraries: &'a [Library], name: &[u8]) -> Option<&'a str> {
    libraries
        .iter()
        .find(|library| library.owns.iter().any(|owns| owns.matches(name)))
        .map(|library| library.name.as_str())
}

fn prefixes<'a>(libraries: &'a [Library], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    libraries
        .iter()
        .filter(move |library| library.name == name)
        .flat_map(|library| &library.owns)
        .filter_map(|owns| match owns {
            Owns::Prefix(prefix) => Some(prefix.as_slice()),
            _ => None,
        })
}

fn add(libraries: &mut Vec<Library>, name: &str, owns: Owns) {
    match libraries.iter_mut().find(|library| library.name == name) {
        Some(library) if library.owns.contains(&owns) => {}
        Some(library) => library.owns.push(owns),
        None => libraries.push(Library {
            name: name.to_owned(),
            owns: vec![owns],
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Libraries {
        let mut signs = Signs::default();
        for name in names {
            signs.see(name.as_bytes());
        }
        let mut libraries = Libraries::default();
        libraries.suspect_all(signs.libraries());
        libraries
    }

    #[test]
    fn libraries_are_suspected_by_several_signs_together() {
        let found = of(&["bull:mail:meta", "bull:mail:id", "bull:mail:1"]);
        assert_eq!(found.suspect(b"bull:mail:17"), Some("BullMQ"));
        assert_eq!(found.suspect(b"cache:mail"), None);
        let found = of(&["_kombu.binding.celery", "celery"]);
        assert_eq!(found.suspect(b"celery"), Some("Celery"));
        let found = of(&["queues", "stat:processed", "queue:default"]);
        assert_eq!(found.suspect(b"queue:default"), Some("Sidekiq"));
        assert_eq!(
            of(&["shop:lock:{a}"]).suspect(b"shop:lock:{b}:fence"),
            Some("Redstart")
        );
    }

    #[test]
    fn a_name_alone_makes_no_owner() {
        for names in [
            &["bull:mail:meta", "bull:mail:id"][..],
            &["queues", "stat:processed"],
            &["_kombu.binding.celery"],
            &["rq:queues"],
            &["shop:lock:{a}"],
        ] {
            let found = of(names);
            for name in names {
                assert_eq!(found.owner(name.as_bytes()), None, "{name}");
            }
            assert!(found.found.is_empty());
        }
    }

    #[test]
    fn one_sign_that_others_use_too_is_not_enough() {
        assert_eq!(
            of(&["user:meta", "app:queues:meta"]).suspect(b"user:1"),
            None
        );
        assert_eq!(of(&["queues"]).suspect(b"queue:default"), None);
        assert_eq!(of(&["lock:{a}"]).suspect(b"lock:{a}"), None);
        assert_eq!(of(&["flower:17:lock"]).suspect(b"flower:17:lock"), None);
    }

    #[test]
    fn a_lock_that_never_expires_is_not_of_redstart() {
        let mut libraries = of(&["shop:lock:{42}"]);
        let mut fact = KeyFact {
            name: b"shop:lock:{42}".to_vec(),
            shape: Shape::Marker,
            size: 1,
            ..KeyFact::default()
        };
        assert_eq!(libraries.of(&fact), (None, None));
        libraries.prove_redstart("shop");
        assert_eq!(libraries.of(&fact), (None, None));
        fact.ttl = Some(900);
        assert_eq!(libraries.of(&fact), (Some("Redstart".to_owned()), None));
    }
}
