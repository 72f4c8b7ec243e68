//! One side of a hand-over: connections to one server, one per database.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use crate::{
    error::Result,
    store::{
        location::{Address, Location, Settings, Target},
        request::{Body, Request},
        transport::{Dial, Wire},
    },
};

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Server {
    address: Address,
    settings: Settings,
    wires: BTreeMap<i64, Arc<Wire>>,
    /// Whether fields of hashes can expire there, once it was asked.
    expires_fields: Option<bool>,
}

/// The text of INFO.
pub(super) struct Info(String);

impl Info {
    /// A field; empty if it is not there.
    pub(super) fn field(&self, name: &str) -> &str {
        let mut lines = self.0.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_default()
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap_or(0)
    }

    /// The databases that have keys, and how many.
    pub(super) fn databases(&self) -> Vec<(i64, u64)> {
        let database = |line: &str| {
            let (db, facts) = line.strip_prefix("db")?.split_once(":keys=")?;
            let (keys, _) = facts.split_once(',')?;
            Some((db.parse().ok()?, keys.parse().ok()?))
        };
        self.0.lines().filter_map(database).collect()
    }
}

impl Server {
    pub(super) fn new(location: &Location) -> Self {
        let address = match &location.target {
            Target::Single(address) => address.clone(),
            // The builder has refused all others.
            _ => Address::Tcp {
                host: String::new(),
                port: 0,
            },
        };
        Self {
            address,
            settings: location.settings.clone(),
            wires: BTreeMap::new(),
            expires_fields: None,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Forgets all connections.
    pub(super) fn begin_anew(&mut self) {
        self.wires.clear();
        self.expires_fields = None;
    }

    async fn wire(&mut self, db: i64) -> Result<Arc<Wire>> {
        if let Some(wire) = self.wires.get(&db) {
            return Ok(wire.clone());
        }
        let mut settings = self.settings.clone();
        settings.db = db;
        let dial = Dial::server(self.address.clone(), settings);
        let wire = Arc::new(dial.wire().await?);
        self.wires.insert(db, wire.clone());
        Ok(wire)
    }

    /// The connection to a database, for several requests at a time that only read.
    pub(super) async fn reads(&mut self, db: i64) -> Result<Reads> {
        let expires_fields = match self.expires_fields {
            Some(known) => known,
            None => {
                // Asked for by its name: an error of an unknown command would repeat what is in the hash.
                let told = self.ask(0, &["COMMAND", "INFO", "HPEXPIRETIME"]).await?;
                let known = told.as_sequence().and_then(<[_]>::first);
                *self
                    .expires_fields
                    .insert(known.is_some_and(|told| *told != Value::Nil))
            }
        };
        Ok(Reads {
            wire: self.wire(db).await?,
            place: self.address.to_string(),
            expires_fields,
        })
    }

    async fn send(&mut self, db: i64, body: Body<'_>, harmless: bool) -> Result<Value> {
        let place = self.address.to_string();
        let wire = self.wire(db).await?;
        let sent = wire
            .send(Request::new(body, Instant::now() + PATIENCE))
            .await;
        match sent {
            Ok(Value::ServerError(error)) => Err(redis::RedisError::from(error).into()),
            Ok(value) => Ok(value),
            Err(failure) => {
                self.wires.remove(&db);
                Err(failure.into_error(|| place, harmless))
            }
        }
    }

    /// Sends one command that can be undone, or that only reads: if its reply is lost, there is no doubt to report.
    pub(super) async fn ask(&mut self, db: i64, words: &[&str]) -> Result<Value> {
        let mut cmd = Cmd::new();
        cmd.arg(words);
        self.send(db, Body::One(&cmd), true).await
    }

    /// The same for a command that is not undone: if its reply is lost, the error is in doubt.
    pub(super) async fn ask_or_doubt(&mut self, words: &[&str]) -> Result<Value> {
        let mut cmd = Cmd::new();
        cmd.arg(words);
        self.send(0, Body::One(&cmd), false).await
    }

    pub(super) async fn info(&mut self, section: &str) -> Result<Info> {
        let text = self.ask(0, &["INFO", section]).await?;
        Ok(Info(redis::from_redis_value(text)?))
    }

    /// The clock, in unix microseconds.
    pub(super) async fn time(&mut self) -> Result<i64> {
        let reply = self.ask(0, &["TIME"]).await?;
        let (seconds, micros): (i64, i64) = redis::from_redis_value(reply)?;
        Ok(seconds * 1_000_000 + micros)
    }

    pub(super) async fn setting(&mut self, name: &str) -> Result<String> {
        let reply = self.ask(0, &["CONFIG", "GET", name]).await?;
        let pair: Vec<String> = redis::from_redis_value(reply)?;
        Ok(pair.into_iter().nth(1).unwrap_or_default())
    }

    pub(super) async fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.ask(0, &["CONFIG", "SET", name, value]).await?;
        Ok(())
    }
}

/// A connection that several requests share.
pub(super) struct Reads {
    wire: Arc<Wire>,
    place: String,
    /// Whether fields of hashes can expire there.
    pub(super) expires_fields: bool,
}

impl Reads {
    /// Sends commands, and reads all their replies.
    ///
    /// # Errors
    ///
    /// Also if one of them failed.
    pub(super) async fn all(&self, pipeline: &Pipeline) -> Result<Vec<Value>> {
        let replies = self.all_or_gone(pipeline).await?.into_iter();
        let replies = replies.map(|reply| Ok(reply.extract_error()?));
        replies.collect()
    }

    /// As [`Reads::all`]; an error is a reply as well, such as that of a key which is gone or has another type by now.
    pub(super) async fn all_or_gone(&self, pipeline: &Pipeline) -> Result<Vec<Value>> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let request = Request::new(Body::all(pipeline), Instant::now() + PATIENCE);
        match self.wire.send(request).await {
            Ok(replies) => Ok(replies.into_sequence().unwrap_or_default()),
            Err(failure) => Err(failure.into_error(|| self.place.clone(), true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_by_line() {
        let info = Info(
            "# Keyspace\r\ndb0:keys=5,expires=1,avg_ttl=0\r\ndb12:keys=7,expires=0\r\nrole:master\r\n".into(),
        );
        assert_eq!(info.databases(), [(0, 5), (12, 7)]);
        assert_eq!(info.field("role"), "master");
        assert_eq!(info.field("rol"), "");
        assert_eq!(info.number("role"), 0);
    }
}
