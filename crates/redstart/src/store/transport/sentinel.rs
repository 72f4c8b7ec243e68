//! Who is the master: asked of the sentinels, and told by them.
//!
//! A master that was replaced although it is alive keeps answering until a sentinel reaches it, for up to
//! ten seconds. A client that still talks to it reads old values and writes what will be thrown away. So the store
//! listens to each sentinel, and closes a line to another server than the one they name at once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redis::{Pipeline, PushKind, Value};
use tokio::{
    runtime::{self, Handle},
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};

use super::{
    dial::{Protocol, greeting, refused},
    duplex::Duplex,
    stream::Stream,
};
use crate::{
    error::{Error, Result},
    store::location::{Address, Settings},
    watch,
};

const SWITCH: &str = "+switch-master";
/// How often a sentinel that says nothing is asked whether it is there.
const PING: Duration = Duration::from_secs(5);
/// How long a sentinel that went away is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// The sentinels of one master.
pub(crate) struct Sentinels {
    addresses: Vec<Address>,
    master: Arc<str>,
    settings: Settings,
    word: Arc<Word>,
    /// One task per sentinel, from the first question on, in each runtime that asked: another runtime may end, or not be
    /// driven, while this one has connections.
    listeners: Mutex<HashMap<runtime::Id, JoinSet<()>>>,
}

/// What the sentinels said last.
struct Word {
    named: Mutex<Option<Address>>,
    /// By sentinel, what it told the task that listens to it; `None` if it is not heard.
    told: Mutex<Vec<Option<Address>>>,
    /// Counts the times that one of them named another server than `named`.
    switches: watch::Sender<u64>,
}

impl Word {
    /// A sentinel names this server.
    fn heard(&self, sentinel: usize, address: &Address) {
        if let Some(told) = self.told.lock().get_mut(sentinel) {
            *told = Some(address.clone());
        }
        let other = self
            .named
            .lock()
            .as_ref()
            .is_some_and(|named| named != address);
        if other && !crate::mend::is_missing("sentinels are listened to") {
            self.switches.send_modify(|switches| *switches += 1);
        }
    }

    /// A sentinel is not heard any more.
    ///
    /// If it named the master that we have, it may have outvoted those that name another one: they are asked again. One that
    /// was not heard before changes nothing, however often its line fails.
    fn silent(&self, sentinel: usize) {
        let mut told = self.told.lock();
        let said = told.get_mut(sentinel).and_then(Option::take);
        let named = self.named.lock();
        let decided = said.is_some() && said == *named;
        if decided
            && told
                .iter()
                .flatten()
                .any(|word| said.as_ref() != Some(word))
        {
            self.switches.send_modify(|switches| *switches += 1);
        }
    }

    /// Most sentinels name this server. If they named another one before, its lines lead to an old master, and nobody
    /// else may ever say so: the sentinels may all have spoken.
    fn settle(&self, address: &Address) {
        let before = self.named.lock().replace(address.clone());
        if before.is_some_and(|before| before != *address) {
            self.switches.send_modify(|switches| *switches += 1);
        }
    }
}

impl Sentinels {
    pub(crate) fn new(addresses: Vec<Address>, master: String, settings: &Settings) -> Self {
        let mut settings = settings.clone();
        settings.username = settings.sentinel_username.take();
        settings.password = settings.sentinel_password.take();
        settings.provider = None;
        settings.db = 0;
        settings.read_only = false;
        Self {
            word: Arc::new(Word {
                named: Mutex::new(None),
                told: Mutex::new(vec![None; addresses.len()]),
                switches: watch::Sender::new(0),
            }),
            addresses,
            master: master.into(),
            settings,
            listeners: Mutex::default(),
        }
    }

    pub(crate) fn master(&self) -> &str {
        &self.master
    }

    /// Counts up when the lines that were made before lead to a server that is no longer the master.
    pub(crate) fn switches(&self) -> u64 {
        *self.word.switches.borrow()
    }

    /// Ends when the count is another one.
    pub(crate) async fn switched(&self, since: u64) {
        let mut switches = self.word.switches.subscribe();
        if switches.wait_for(|now| *now != since).await.is_err() {
            // The sender lives as long as this.
            std::future::pending().await
        }
    }

    fn patience(&self) -> Duration {
        self.settings.patience()
    }

    /// Asks all sentinels at once and takes the address that most of them name, so that one sentinel on the
    /// wrong side of a partition does not decide alone.
    ///
    /// Fewer than that decide if the others cannot be reached, or do not answer in half of the time there is. A sentinel that
    /// does not answer has still said something if it is listened to.
    pub(crate) async fn ask(&self) -> Result<Address> {
        let mut asking = JoinSet::new();
        for (at, sentinel) in self.addresses.iter().enumerate() {
            let (sentinel, settings) = (sentinel.clone(), self.settings.clone());
            let master = self.master.clone();
            crate::task::spawn_into(&mut asking, async move {
                let answer = async {
                    let mut duplex = open(&sentinel, &settings, Protocol::Resp2).await?;
                    named_by(&mut duplex, &master).await
                };
                (at, answer.await)
            });
        }
        let (now, patience) = (Instant::now(), self.patience());
        let mut answers: Vec<Option<Option<Address>>> = vec![None; self.addresses.len()];
        let mut failure = None;
        let mut ends = now + patience;
        while let Ok(Some(answer)) = timeout_at(ends, asking.join_next()).await {
            match answer {
                Ok((at, Ok(named))) => {
                    if named.is_some() {
                        // The rest of the time is for the master.
                        ends = now + patience / 2;
                    }
                    answers[at] = Some(named);
                    if let Some((_, true)) = self.elect(answers.iter().flatten().flatten()) {
                        break;
                    }
                }
                Ok((_, Err(error))) => failure = Some(error),
                Err(_) => {}
            }
        }
        let told = self.word.told.lock().clone();
        let said = answers.iter().zip(&told);
        let said = said.filter_map(|(answer, told)| match answer {
            Some(named) => named.as_ref(),
            None => told.as_ref(),
        });
        let known = answers.iter().flatten().flatten().next().is_some();
        if let Some((address, _)) = self.elect(said).filter(|_| known) {
            self.word.settle(&address);
            self.listen();
            return Ok(address);
        }
        let (of, master) = (self.addresses.len(), &self.master);
        let unknown = answers.iter().flatten().count();
        if unknown == of {
            return Err(Error::config(format!(
                "the sentinels know no master named {master:?}"
            )));
        }
        if unknown > 0 {
            let error = Error::unavailable(format!(
                "{unknown} of {of} sentinels know no master named {master:?}, and the others do not answer"
            ));
            return Err(match failure {
                Some(failure) => error.with_source(failure),
                None => error,
            });
        }
        Err(failure.unwrap_or_else(|| Error::timeout("no sentinel answered")))
    }

    /// The address that is named most often, and whether most of all sentinels name it.
    fn elect<'a>(&self, named: impl Iterator<Item = &'a Address>) -> Option<(Address, bool)> {
        let mut votes: BTreeMap<&Address, usize> = BTreeMap::new();
        for address in named {
            *votes.entry(address).or_default() += 1;
        }
        let (address, count) = votes.into_iter().max_by_key(|(_, count)| *count)?;
        Some((address.clone(), count > self.addresses.len() / 2))
    }

    /// The replicas that are up and follow the master, by the first sentinel that answers.
    pub(crate) async fn replicas(&self) -> Result<Vec<Address>> {
        let mut failure = None;
        for sentinel in &self.addresses {
            let asked = async {
                let mut duplex = open(sentinel, &self.settings, Protocol::Resp2).await?;
                let mut question = Pipeline::new();
                question.cmd("SENTINEL").arg("REPLICAS").arg(&*self.master);
                let reply = duplex.ask(&question).await?.pop().unwrap_or(Value::Nil);
                let rows: Vec<HashMap<String, String>> =
                    redis::from_redis_value(reply.extract_error()?)?;
                Ok(rows.iter().filter_map(replica_at).collect())
            };
            match timeout(self.patience(), asked).await {
                Ok(Ok(replicas)) => return Ok(replicas),
                Ok(Err(error)) => failure = Some(error),
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| Error::timeout("no sentinel answered")))
    }

    /// Begins to listen, unless this runtime does already. The tasks end with this, or with their runtime.
    fn listen(&self) {
        let here = Handle::current().id();
        let mut listeners = self.listeners.lock();
        listeners.retain(|_, tasks| {
            while tasks.try_join_next().is_some() {}
            !tasks.is_empty()
        });
        if listeners.contains_key(&here) {
            return;
        }
        let mut tasks = JoinSet::new();
        for (at, sentinel) in self.addresses.iter().enumerate() {
            let (sentinel, settings) = (sentinel.clone(), self.settings.clone());
            let (master, word, patience) =
                (self.master.clone(), self.word.clone(), self.patience());
            crate::task::spawn_into(&mut tasks, async move {
                loop {
                    let heard = |address: &Address| word.heard(at, address);
                    let ended = follow(&sentinel, &settings, &master, heard, patience).await;
                    word.silent(at);
                    if let Err(error) = ended {
                        tracing::debug!(%sentinel, %error, "a sentinel cannot be reached");
                    }
                    tokio::time::sleep(PAUSE.mul_f64(crate::chance::range(0.5..=1.0))).await;
                }
            });
        }
        listeners.insert(here, tasks);
    }
}

/// Listens to one sentinel until its line is lost, and says whom it names.
async fn follow(
    sentinel: &Address,
    settings: &Settings,
    master: &str,
    heard: impl Fn(&Address),
    patience: Duration,
) -> Result<()> {
    let late = |_| Error::timeout("a sentinel did not answer in time");
    let opening = open(sentinel, settings, Protocol::Resp3);
    let mut duplex = timeout(patience, opening).await.map_err(late)??;
    let mut subscribe = redis::cmd("SUBSCRIBE");
    subscribe.arg(SWITCH);
    duplex.queue(&subscribe);
    // What happened before we listened.
    let asking = named_by(&mut duplex, master);
    if let Some(address) = timeout(patience, asking).await.map_err(late)?? {
        heard(&address);
    }
    let ping = redis::cmd("PING");
    let mut asked = false;
    loop {
        let within = if asked { patience } else { PING };
        match timeout(within, duplex.next()).await {
            Ok(Ok(value)) => {
                asked = false;
                if let Some(address) = switched_to(value, master) {
                    heard(&address);
                }
            }
            Ok(Err(_)) => return Ok(()),
            Err(late_reply) if asked => return Err(late(late_reply)),
            Err(_) => {
                duplex.queue(&ping);
                asked = true;
            }
        }
    }
}

/// A new connection to a sentinel.
async fn open(sentinel: &Address, settings: &Settings, protocol: Protocol) -> Result<Duplex> {
    let mut duplex = Duplex::new(Stream::connect(sentinel, settings).await?);
    let (hello, told) = greeting(settings, protocol).await?;
    let replies = duplex.ask(&hello).await?;
    match refused(&hello, replies, told) {
        Some((_, error)) => Err(error.into()),
        None => Ok(duplex),
    }
}

async fn named_by(duplex: &mut Duplex, master: &str) -> Result<Option<Address>> {
    let mut question = Pipeline::new();
    question
        .cmd("SENTINEL")
        .arg("get-master-addr-by-name")
        .arg(master);
    let reply = duplex.ask(&question).await?.pop().unwrap_or(Value::Nil);
    let answer: Option<(String, u16)> = redis::from_redis_value(reply.extract_error()?)?;
    Ok(answer.map(|(host, port)| Address::Tcp { host, port }))
}

/// Where a replica is, unless a sentinel holds it for down or cut off from its master: it might answer with what was true
/// hours ago.
fn replica_at(row: &HashMap<String, String>) -> Option<Address> {
    let field = |name: &str| row.get(name).map_or("", String::as_str);
    let is_down = field("flags")
        .split(',')
        .any(|flag| matches!(flag, "s_down" | "o_down" | "disconnected"));
    if is_down || field("master-link-status") != "ok" {
        return None;
    }
    Some(Address::Tcp {
        host: field("ip").to_owned(),
        port: field("port").parse().ok()?,
    })
}

/// `<master> <old host> <old port> <new host> <new port>`, if it is of this master.
fn switched_to(value: Value, master: &str) -> Option<Address> {
    let Value::Push {
        kind: PushKind::Message,
        data,
    } = value
    else {
        return None;
    };
    let text: String = redis::from_redis_value(data.into_iter().nth(1)?).ok()?;
    let words: Vec<&str> = text.split(' ').collect();
    let [name, _, _, host, port] = words[..] else {
        return None;
    };
    (name == master).then_some(Address::Tcp {
        host: host.to_owned(),
        port: port.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_sentinel_counts_once_and_only_if_it_had_a_say() {
        let server = |port| Address::Tcp {
            host: "db".to_owned(),
            port,
        };
        let (ours, other) = (server(1), server(2));
        let word = Word {
            named: Mutex::new(Some(ours.clone())),
            told: Mutex::new(vec![None, Some(ours.clone()), Some(ours), Some(other)]),
            switches: watch::Sender::new(0),
        };
        let switches = |sentinel| {
            word.silent(sentinel);
            *word.switches.borrow()
        };
        assert_eq!(switches(0), 0, "it was never heard");
        assert_eq!(switches(1), 1, "it may have outvoted the last one");
        assert_eq!(switches(1), 1, "it is still silent");
        assert_eq!(switches(3), 1, "it had named another server");
        assert_eq!(switches(2), 1, "nobody names another server");
    }
}
