//! What recognition asks.

use std::{future::Future, pin::Pin, time::Duration};

use redis::{Cmd, Value};
use redstart::Store;

use crate::error::Result;

/// An answer that is on its way.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// What [`recognise_from`](crate::recognise_from) asks: a [`Store`], or connections of a program's own, such as one that counts
/// its commands and prefers replicas.
///
/// All commands that it is given only read.
pub trait Source: Send {
    /// The server's time since the Unix epoch.
    fn now(&mut self) -> Answer<'_, Duration>;

    /// Names of keys that match a glob pattern: a sample, at most this many on each node.
    fn names<'a>(&'a mut self, matching: &'a str, at_most: usize) -> Answer<'a, Vec<Vec<u8>>>;

    /// As [`names`](Self::names), for at most this long, and whether these are all the keys that match.
    ///
    /// By default they are, if there are fewer than were asked for and the pattern matches every key.
    fn sample<'a>(
        &'a mut self,
        matching: &'a str,
        at_most: usize,
        time: Duration,
    ) -> Answer<'a, (Vec<Vec<u8>>, bool)> {
        let _ = time;
        Box::pin(async move {
            let names = self.names(matching, at_most).await?;
            let complete = names.len() < at_most && matching == "*";
            Ok((names, complete))
        })
    }

    /// Which of these scripts the server has cached, in their order. A server that does not say knows none of them.
    fn scripts<'a>(&'a mut self, digests: &'a [&'static str]) -> Answer<'a, Vec<bool>>;

    /// The replies to commands on single keys, in their order. One that fails has `None` in its place: a key may have
    /// changed its type meanwhile, and rules may forbid a command.
    fn ask(&mut self, commands: Vec<Cmd>) -> Answer<'_, Vec<Option<Value>>>;

    /// Keys that are looked at before the sample, because something speaks for a library there.
    fn hints(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

impl Source for &Store {
    fn now(&mut self) -> Answer<'_, Duration> {
        Box::pin(async { Ok(self.time().await?) })
    }

    fn names<'a>(&'a mut self, matching: &'a str, at_most: usize) -> Answer<'a, Vec<Vec<u8>>> {
        Box::pin(async move { Ok(Store::sample(self, matching, at_most).await?) })
    }

    fn sample<'a>(
        &'a mut self,
        matching: &'a str,
        at_most: usize,
        time: Duration,
    ) -> Answer<'a, (Vec<Vec<u8>>, bool)> {
        Box::pin(async move {
            let sample = self.sample_for(matching, at_most, time).await?;
            Ok((sample.keys, sample.complete))
        })
    }

    fn scripts<'a>(&'a mut self, digests: &'a [&'static str]) -> Answer<'a, Vec<bool>> {
        Box::pin(async move {
            let mut exists = redis::cmd("SCRIPT");
            exists.arg("EXISTS").arg(digests);
            Ok(self.query(&exists).await.unwrap_or_default())
        })
    }

    /// One pipeline.
    fn ask(&mut self, commands: Vec<Cmd>) -> Answer<'_, Vec<Option<Value>>> {
        Box::pin(async move {
            let mut pipeline = redis::pipe();
            pipeline.ignore_errors();
            for command in commands {
                pipeline.add_command(command);
            }
            let replies: Vec<Value> = self.pipeline(&pipeline).await?;
            let fine = |reply| match reply {
                Value::ServerError(_) => None,
                reply => Some(reply),
            };
            Ok(replies.into_iter().map(fine).collect())
        })
    }
}
