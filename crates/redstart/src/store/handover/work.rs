//! A hand-over under way: its steps, and how they are undone.

mod comparison;

use std::time::Duration;

use redis::RedisError;
use tokio::time::Instant;

use super::{
    Handover, HandoverReport, HandoverStep,
    progress::{Progress, fits},
    server::Server,
};
use crate::error::{Error, Result};

/// How far behind the server may be when writes are held back.
const NEAR: u64 = 256 * 1024;
/// How often the engine hears that this goes on; after a minute of silence, another hand-over may begin.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// How long the engine is asked whether it has moved.
const ANSWER: Duration = Duration::from_secs(10);
/// The engine's reply that it has not moved.
const NOT_MOVED: &str = "NOTMOVED";
/// How long a side that cannot be reached is asked to undo what was done to it.
const UNDO: Duration = Duration::from_secs(10);

/// Whether the engine has moved, after a failure.
pub(super) enum Settled {
    NotMoved,
    Moved(HandoverReport),
    /// It was asked to, and does not answer.
    Unknown,
}

/// A hand-over under way.
pub(super) struct Work<'a> {
    plan: &'a Handover,
    /// What the engine knows it by.
    name: String,
    /// The engine may know of it, and when it last heard of it.
    begun: Option<Instant>,
    /// The engine was asked to move, and no answer came.
    in_doubt: bool,
    told: &'a mut dyn FnMut(&HandoverStep),
    from: Server,
    pub(super) to: Server,
    /// The server was made a replica.
    attached: bool,
    /// What the server presented to its masters before.
    pub(super) credentials: Option<(String, String)>,
    paused: Option<Paused>,
    /// Keys changed that the engine did not note.
    missed: bool,
    clock_ahead_micros: i64,
    /// The processes that this began with: a restart may lose what they had.
    run_ids: RunIds,
    keys: u64,
    keys_in_pause: u64,
}

#[derive(Default)]
struct RunIds {
    engine: String,
    server: String,
}

struct Paused {
    since: Instant,
    token: i64,
}

impl<'a> Work<'a> {
    pub(super) fn new(plan: &'a Handover, told: &'a mut dyn FnMut(&HandoverStep)) -> Self {
        Self {
            from: Server::new(&plan.from),
            to: Server::new(&plan.to),
            plan,
            name: crate::token::token(),
            begun: None,
            in_doubt: false,
            told,
            attached: false,
            credentials: None,
            paused: None,
            missed: false,
            clock_ahead_micros: 0,
            run_ids: RunIds::default(),
            keys: 0,
            keys_in_pause: 0,
        }
    }

    fn tell(&mut self, step: &HandoverStep) {
        (self.told)(step);
    }

    pub(super) async fn prepare(&mut self) -> Result<()> {
        self.check().await?;
        self.begin().await?;
        self.attach().await?;
        self.wait_until_near().await?;
        self.check_room().await?;
        let suspects = self.compare_all().await?;
        self.pause().await?;
        self.compare_last(suspects).await?;
        self.compare_sizes().await?;
        self.compare_functions().await?;
        self.check_room().await
    }

    /// Asks the engine for something that belongs to this hand-over.
    async fn request(&mut self, what: &str, words: &[&str]) -> Result<redis::Value> {
        let name = self.name.clone();
        let mut all = vec!["REDSTART", "HANDOVER", what, &name];
        all.extend(words);
        self.from.ask(0, &all).await
    }

    /// Begins it, unless there is another one.
    async fn begin(&mut self) -> Result<()> {
        self.begun = Some(Instant::now());
        self.request("BEGIN", &[]).await?;
        Ok(())
    }

    /// Tells the engine from time to time that it goes on.
    async fn go_on(&mut self) -> Result<()> {
        match self.begun {
            Some(heard) if heard.elapsed() < SIGN_OF_LIFE => Ok(()),
            _ => self.begin().await,
        }
    }

    /// As a replica the server ignores its limit: what does not fit it would evict or refuse as a master.
    async fn check_room(&mut self) -> Result<()> {
        let to = self.to.info("memory").await?;
        let uncounted = to.number("mem_not_counted_for_evict");
        let used = to.number("used_memory").saturating_sub(uncounted);
        fits(used, to.number("maxmemory"))
    }

    /// Whether both are what they have to be.
    async fn check(&mut self) -> Result<()> {
        if self.from.ask(0, &["REDSTART", "HELP"]).await.is_err() {
            return Err(Error::config(
                "the source of a hand-over must be an engine of redstart",
            ));
        }
        let (from, to) = (self.from.info("all").await?, self.to.info("all").await?);
        if from.field("role") != "master" {
            return Err(Error::config("the engine is a replica itself"));
        }
        if to.field("cluster_enabled") == "1" {
            return Err(Error::config("the server is a node of a Cluster"));
        }
        if from.field("run_id") == to.field("run_id") {
            return Err(Error::config("the engine and the server are the same"));
        }
        if to.field("role") != "master" {
            return Err(Error::config(
                "the server is a replica already: tell it REPLICAOF NO ONE first",
            ));
        }
        let there: u64 = to.databases().iter().map(|(_, keys)| keys).sum();
        if there > 0 && !self.plan.overwrite {
            return Err(Error::config(format!(
                "the server has {there} keys, which would be replaced: allow that, or empty it"
            )));
        }
        fits(from.number("used_memory"), to.number("maxmemory"))?;
        self.run_ids = RunIds {
            engine: from.field("run_id").to_owned(),
            server: to.field("run_id").to_owned(),
        };
        // A command that reads is refused by an engine that has moved.
        self.from.ask(0, &["DBSIZE"]).await?;
        let (here, there) = (self.from.time().await?, self.to.time().await?);
        self.clock_ahead_micros = there - here;
        Ok(())
    }

    /// Makes the server a replica.
    async fn attach(&mut self) -> Result<()> {
        let settings = self.from.settings();
        let (user, password) = (settings.username.clone(), settings.password.clone());
        if let Some(password) = password {
            let before = (
                self.to.setting("masteruser").await?,
                self.to.setting("masterauth").await?,
            );
            self.credentials = Some(before);
            let user = user.unwrap_or_default();
            self.to.set("masteruser", &user).await?;
            self.to.set("masterauth", &password).await?;
        }
        self.attached = true;
        let (host, port) = self.plan.source.clone();
        self.to
            .ask(0, &["REPLICAOF", &host, &port.to_string()])
            .await?;
        Ok(())
    }

    async fn wait_until_near(&mut self) -> Result<()> {
        let mut progress = Progress::new(Instant::now());
        loop {
            self.go_on().await?;
            let to = self.to.info("replication").await?;
            if to.field("master_link_status") == "up" {
                let behind = self.behind(to.number("slave_repl_offset")).await?;
                self.tell(&HandoverStep::CatchingUp(behind));
                if behind <= NEAR {
                    return Ok(());
                }
                progress.is_behind(behind, Instant::now())?;
            } else {
                let bytes = to.number("master_sync_read_bytes");
                self.tell(&HandoverStep::Copying(bytes));
                progress.has_read(bytes, Instant::now())?;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many bytes of the stream the server lacks.
    async fn behind(&mut self, offset: u64) -> Result<u64> {
        let from = self.from.info("replication").await?;
        Ok(from.number("master_repl_offset").saturating_sub(offset))
    }

    /// Holds writes back, and waits until the server has all of them.
    async fn pause(&mut self) -> Result<()> {
        let millis = self.plan.longest_pause.as_millis().to_string();
        let since = Instant::now();
        let reply = self.request("PAUSE", &[&millis]).await?;
        let (token, offset): (i64, u64) = redis::from_redis_value(reply)?;
        self.paused = Some(Paused { since, token });
        self.tell(&HandoverStep::Paused);
        loop {
            let to = self.to.info("replication").await?;
            if to.field("master_link_status") == "up" && to.number("slave_repl_offset") >= offset {
                return Ok(());
            }
            self.check_pause()?;
            self.go_on().await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn check_pause(&self) -> Result<()> {
        let spent = self.paused.as_ref().map(|paused| paused.since.elapsed());
        match spent {
            Some(spent) if spent >= self.plan.longest_pause => Err(Error::timeout(
                "the server did not become level within the longest pause of writes",
            )),
            _ => Ok(()),
        }
    }

    /// Makes the server a master and sends everybody there. Not to be cancelled.
    pub(super) async fn commit(&mut self) -> Result<HandoverReport> {
        let Some(Paused { since, token }) = self.paused else {
            return Err(Error::config("hand-over: writes are not paused"));
        };
        self.check_pause()?;
        self.to.ask(0, &["REPLICAOF", "NO", "ONE"]).await?;
        self.attached = false;
        self.tell(&HandoverStep::Promoted);
        self.move_engine(token).await?;
        Ok(self.moved(since.elapsed()).await)
    }

    /// Asks the engine to move, until it says whether it did: asking again does no harm.
    async fn move_engine(&mut self, token: i64) -> Result<()> {
        let (host, port) = self.plan.place.clone();
        let (token, port) = (token.to_string(), port.to_string());
        let until = Instant::now() + ANSWER;
        loop {
            self.check_server().await?;
            let name = self.name.clone();
            let commit = [
                "REDSTART", "HANDOVER", "COMMIT", &name, &token, &host, &port,
            ];
            let Err(error) = self.from.ask_or_doubt(&commit).await else {
                return Ok(());
            };
            // A request before this one may have arrived, whatever became of this one.
            self.in_doubt |= error.is_in_doubt();
            if error.server_code() == Some(NOT_MOVED) {
                // An engine that was restarted without its folder does not know what it did before.
                self.in_doubt = self.in_doubt && !self.is_same_engine().await;
                return Err(error);
            }
            if Instant::now() >= until {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether the server is the one that was compared, and a master.
    async fn check_server(&mut self) -> Result<()> {
        let to = self.to.info("all").await?;
        match to.field("run_id") == self.run_ids.server && to.field("role") == "master" {
            true => Ok(()),
            false => Err(Error::unavailable(
                "the server was restarted, or is not a master any more, since it was compared",
            )),
        }
    }

    async fn is_same_engine(&mut self) -> bool {
        let from = self.from.info("server").await;
        from.is_ok_and(|from| from.field("run_id") == self.run_ids.engine)
    }

    /// The engine has moved. A server that was restarted since it was compared may have lost what it had.
    pub(super) async fn confirm(&mut self, report: HandoverReport) -> Result<HandoverReport> {
        let until = Instant::now() + UNDO;
        let to = loop {
            match self.to.info("server").await {
                Err(error) if error.server_code().is_none() && Instant::now() < until => {
                    tracing::debug!(%error, "asking again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                told => break told,
            }
        };
        match to {
            Ok(to) if to.field("run_id") != self.run_ids.server => Err(Error::unavailable(
                "the data has moved, but the server was restarted meanwhile and may have lost it: the engine has it as \
                 it was, and serves it again after REDSTART HANDOVER RETURN",
            )
            .doubt(true)),
            Ok(_) => Ok(report),
            Err(error) => {
                tracing::warn!(%error, "the data has moved, and the server does not answer");
                Ok(report)
            }
        }
    }

    async fn moved(&mut self, pause: Duration) -> HandoverReport {
        self.tell(&HandoverStep::Moved);
        restore(&mut self.to, self.credentials.take()).await;
        HandoverReport {
            place: self.place(),
            keys: self.keys,
            keys_in_pause: self.keys_in_pause,
            pause,
            clock_ahead_micros: self.clock_ahead_micros,
        }
    }

    fn place(&self) -> String {
        let (host, port) = &self.plan.place;
        format!("{host}:{port}")
    }

    /// What became of the engine after a failure. If it was asked to move and no answer came, it is asked to end the
    /// hand-over, which one that has moved refuses.
    pub(super) async fn settle(&mut self, error: &Error) -> Settled {
        if !self.in_doubt {
            return Settled::NotMoved;
        }
        self.from.begin_anew();
        match self.request("ABORT", &[]).await {
            Ok(_) if self.is_same_engine().await => Settled::NotMoved,
            Ok(_) => {
                tracing::warn!(%error, "the engine was restarted, and does not know whether it has moved");
                Settled::Unknown
            }
            Err(told) if self.has_moved(&told) => {
                let since = self.paused.as_ref().map(|paused| paused.since);
                let pause = since.map_or(Duration::ZERO, |since| since.elapsed());
                Settled::Moved(self.moved(pause).await)
            }
            Err(told) => {
                tracing::warn!(%error, %told, "the engine does not say whether it has moved");
                Settled::Unknown
            }
        }
    }

    /// Writes go on, and the server is on its own again, with the data that it got. An engine that has moved stays
    /// so.
    pub(super) async fn back_out(&mut self) {
        self.tell(&HandoverStep::BackingOut);
        self.from.begin_anew();
        self.to.begin_anew();
        let attached = std::mem::take(&mut self.attached);
        let begun = self.begun.take().is_some();
        let credentials = self.credentials.take();
        let name = self.name.clone();
        let (from, to) = (&mut self.from, &mut self.to);
        // A side that is away must not keep the other one waiting.
        let engine = async {
            if begun {
                let aborted = insist(from, &["REDSTART", "HANDOVER", "ABORT", &name]).await;
                if let Err(error) = aborted {
                    tracing::warn!(%error, "writes go on after the longest pause");
                }
            }
        };
        let server = async {
            if attached && let Err(error) = insist(to, &["REPLICAOF", "NO", "ONE"]).await {
                tracing::warn!(%error, "the server is still a replica");
            }
            restore(to, credentials).await;
        };
        tokio::join!(engine, server);
    }

    /// Whether the engine says that its data is where this was to bring it.
    fn has_moved(&self, error: &Error) -> bool {
        let there = error.redis().and_then(RedisError::detail);
        error.server_code() == Some("REDIRECT")
            && there.map(str::trim) == Some(self.place().as_str())
    }
}

/// Gives the server back what it presented to its masters before.
pub(super) async fn restore(to: &mut Server, credentials: Option<(String, String)>) {
    let Some((user, password)) = credentials else {
        return;
    };
    let restored = async {
        insist(to, &["CONFIG", "SET", "masteruser", &user]).await?;
        insist(to, &["CONFIG", "SET", "masterauth", &password]).await
    };
    if let Err(error) = restored.await {
        tracing::warn!(%error, "masteruser and masterauth of the server were not restored");
    }
}

/// Sends what may be sent twice, until it is answered.
async fn insist(server: &mut Server, words: &[&str]) -> Result<()> {
    let until = Instant::now() + UNDO;
    loop {
        match server.ask(0, words).await {
            Err(error)
                if matches!(error.server_code(), None | Some("LOADING" | "BUSY"))
                    && Instant::now() < until =>
            {
                tracing::debug!(%error, "asking again");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            done => return done.map(drop),
        }
    }
}
