//! Who is the master: asked of the sentinels, and told by them.
//!
//! A master that was replaced although it is alive keeps answering until a sentinel reaches it, for up to
//! ten seconds. A client that still talks to it reads old values and writes what will be thrown away. So the store
//! listens to each sentinel, and closes a line to another server than the one they name at once.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::{ProtocolVersion, PushInfo, PushKind};
use tokio::{
    runtime::{self, Handle},
    sync::{mpsc::unbounded_channel, watch},
    task::JoinSet,
    time::timeout,
};

use super::client::{client, open};
use crate::{
    error::{Error, Result},
    store::location::{Address, Settings},
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
    /// One task per sentinel, from the first question on, and the runtime they live in.
    listeners: Mutex<Option<(runtime::Id, JoinSet<()>)>>,
}

/// What the sentinels said last.
struct Word {
    named: Mutex<Option<Address>>,
    /// Counts the times that one of them named another server than `named`.
    switches: watch::Sender<u64>,
}

impl Word {
    /// A sentinel names this server.
    fn heard(&self, address: &Address) {
        let other = self
            .named
            .lock()
            .as_ref()
            .is_some_and(|named| named != address);
        if other {
            self.switches.send_modify(|switches| *switches += 1);
        }
    }
}

impl Sentinels {
    pub(crate) fn new(addresses: Vec<Address>, master: String, settings: &Settings) -> Self {
        let mut settings = settings.clone();
        settings.username = settings.sentinel_username.take();
        settings.password = settings.sentinel_password.take();
        settings.db = 0;
        Self {
            addresses,
            master: master.into(),
            settings,
            word: Arc::new(Word {
                named: Mutex::new(None),
                switches: watch::Sender::new(0),
            }),
            listeners: Mutex::new(None),
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
    pub(crate) async fn ask(&self) -> Result<Address> {
        let mut asking = JoinSet::new();
        for sentinel in &self.addresses {
            let (sentinel, settings) = (sentinel.clone(), self.settings.clone());
            let master = self.master.clone();
            asking.spawn(async move {
                let client = client(&sentinel, &settings, ProtocolVersion::RESP2)?;
                named_by(&mut open(&client, None).await?, &master).await
            });
        }
        let majority = self.addresses.len() / 2 + 1;
        let mut votes: HashMap<Address, usize> = HashMap::new();
        let mut unknown = 0;
        let mut failure = None;
        // After the first answer the others get a moment, not the whole time-out.
        let mut grace = self.patience();
        while let Ok(Some(answer)) = timeout(grace, asking.join_next()).await {
            match answer {
                Ok(Ok(Some(address))) => {
                    let count = votes.entry(address).or_default();
                    *count += 1;
                    if *count >= majority {
                        break;
                    }
                    grace = Duration::from_millis(100).min(self.patience());
                }
                Ok(Ok(None)) => unknown += 1,
                Ok(Err(error)) => failure = Some(error),
                Err(_) => {}
            }
        }
        if let Some((address, _)) = votes.into_iter().max_by_key(|(_, count)| *count) {
            *self.word.named.lock() = Some(address.clone());
            self.listen();
            return Ok(address);
        }
        if unknown > 0 {
            return Err(Error::config(format!(
                "the sentinels know no master named {:?}",
                self.master
            )));
        }
        Err(failure.unwrap_or_else(|| Error::timeout("no sentinel answered")))
    }

    /// Begins to listen, unless it does already. The tasks end with this, or with their runtime.
    fn listen(&self) {
        let here = Handle::current().id();
        let mut listeners = self.listeners.lock();
        if let Some((runtime, tasks)) = &mut *listeners {
            while tasks.try_join_next().is_some() {}
            if *runtime == here && !tasks.is_empty() {
                return;
            }
        }
        let mut tasks = JoinSet::new();
        for sentinel in &self.addresses {
            let (sentinel, settings) = (sentinel.clone(), self.settings.clone());
            let (master, word, patience) =
                (self.master.clone(), self.word.clone(), self.patience());
            tasks.spawn(async move {
                loop {
                    let ended = follow(&sentinel, &settings, &master, &word, patience).await;
                    if let Err(error) = ended {
                        tracing::debug!(%sentinel, %error, "a sentinel cannot be reached");
                    }
                    tokio::time::sleep(PAUSE.mul_f64(rand::random_range(0.5..=1.0))).await;
                }
            });
        }
        *listeners = Some((here, tasks));
    }
}

/// Listens to one sentinel until its line is lost.
async fn follow(
    sentinel: &Address,
    settings: &Settings,
    master: &str,
    word: &Word,
    patience: Duration,
) -> Result<()> {
    let late = |_| Error::timeout("a sentinel did not answer in time");
    let (sender, mut pushes) = unbounded_channel();
    let client = client(sentinel, settings, ProtocolVersion::RESP3)?;
    let opening = open(&client, Some(sender));
    let mut connection = timeout(patience, opening).await.map_err(late)??;
    let subscribing = connection.subscribe(SWITCH);
    timeout(patience, subscribing).await.map_err(late)??;
    // What happened before we listened.
    let asking = named_by(&mut connection, master);
    if let Some(address) = timeout(patience, asking).await.map_err(late)?? {
        word.heard(&address);
    }
    let ping = redis::cmd("PING");
    loop {
        match timeout(PING, pushes.recv()).await {
            Ok(Some(push)) if push.kind == PushKind::Disconnection => return Ok(()),
            Ok(Some(push)) => {
                if let Some(address) = switched_to(push, master) {
                    word.heard(&address);
                }
            }
            Ok(None) => return Ok(()),
            Err(_) => {
                let asking = connection.send_packed_command(&ping);
                timeout(patience, asking).await.map_err(late)??;
            }
        }
    }
}

async fn named_by(
    connection: &mut redis::aio::MultiplexedConnection,
    master: &str,
) -> Result<Option<Address>> {
    let answer: Option<(String, u16)> = redis::cmd("SENTINEL")
        .arg("get-master-addr-by-name")
        .arg(master)
        .query_async(connection)
        .await?;
    Ok(answer.map(|(host, port)| Address::Tcp { host, port }))
}

/// `<master> <old host> <old port> <new host> <new port>`, if it is of this master.
fn switched_to(push: PushInfo, master: &str) -> Option<Address> {
    if push.kind != PushKind::Message {
        return None;
    }
    let text: String = redis::from_redis_value(push.data.into_iter().nth(1)?).ok()?;
    let words: Vec<&str> = text.split(' ').collect();
    let [name, _, _, host, port] = words[..] else {
        return None;
    };
    (name == master).then_some(Address::Tcp {
        host: host.to_owned(),
        port: port.parse().ok()?,
    })
}
