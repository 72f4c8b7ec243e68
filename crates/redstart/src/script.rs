//! Lua scripts: each is a file beside the pattern that uses it and runs on an entity's keys.
//!
//! A script is sent by its digest (`EVALSHA`); only when the server does not know it is the source sent,
//! once. Its keys are named as parts of one [`Entity`], so they are in one slot by construction. The same
//! source runs on the embedded engine.
//!
//! A script holds up everybody on its server. What a script of this library does grows with what it is asked for, such
//! as the size of a page, and not with what is in its keys: leases, holds, sessions and letters that are over are removed
//! some at a time. On keys that are filled to their limits that takes up to a millisecond of the server's time. The pages of the
//! patterns name the exceptions and what they cost: [`SortedView`](crate::caching::SortedView),
//! [`Windowed`](crate::counting::Windowed), [`Activity`](crate::counting::Activity), [`Uniques`](crate::counting::Uniques),
//! [`Places`](crate::location::Places), [`Bloom`](crate::membership::Bloom), [`EventStream`](crate::messaging::EventStream),
//! [`ReliableList`](crate::messaging::ReliableList), [`Ring`](crate::messaging::Ring), and workers with a large
//! [`concurrency`](crate::messaging::WorkerBuilder::concurrency). A call that carries many jobs, as
//! [`enqueue_many`](crate::messaging::Queue::enqueue_many) and [`add_flow`](crate::messaging::Queue::add_flow), sends up to
//! 1,000 of them to one script, about 4 µs for each.

use std::sync::{Arc, OnceLock};

use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, ServerErrorKind, ToRedisArgs, Value};
use tokio::time::Instant;

use crate::{
    error::{Error, Result},
    key::{Entity, Key},
    store::{BoxFuture, Store, convert},
};

/// Every script of the enabled families, in the order of their names.
///
/// For people who call a pattern's script from another language: [`source`](Script::source) is the exact text that
/// is sent, with its KEYS, ARGV and reply in the comments.
///
/// ```
/// for script in redstart::script::all() {
///     println!("{} {}", script.digest(), script.name());
/// }
/// ```
pub fn all() -> Vec<&'static Script> {
    let families: &[&[&'static Script]] = &[
        #[cfg(feature = "caching")]
        crate::caching::SCRIPTS,
        #[cfg(feature = "commerce")]
        crate::commerce::SCRIPTS,
        #[cfg(feature = "counting")]
        crate::counting::SCRIPTS,
        #[cfg(feature = "limiting")]
        crate::limiting::SCRIPTS,
        #[cfg(feature = "location")]
        crate::location::SCRIPTS,
        #[cfg(feature = "locking")]
        crate::locking::SCRIPTS,
        #[cfg(feature = "membership")]
        crate::membership::SCRIPTS,
        #[cfg(feature = "messaging")]
        crate::messaging::SCRIPTS,
        #[cfg(feature = "ranking")]
        crate::ranking::SCRIPTS,
        #[cfg(feature = "resilience")]
        crate::resilience::SCRIPTS,
        #[cfg(feature = "sessions")]
        crate::sessions::SCRIPTS,
        #[cfg(feature = "social")]
        crate::social::SCRIPTS,
        #[cfg(feature = "storage")]
        crate::storage::SCRIPTS,
    ];
    let mut scripts: Vec<_> = families
        .iter()
        .flat_map(|family| family.iter().copied())
        .collect();
    scripts.sort_by_key(|script| script.name());
    scripts
}

/// A script's source and its digest. Made once, as a `static`.
///
/// ```
/// use redstart::{Store, key::Keys, script::Script};
///
/// static APPEND: Script = Script::new("example.append", "return redis.call('APPEND', KEYS[1], ARGV[1])");
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// let store = Store::connect("memory://").await?;
/// let log = Keys::new("app", "log")?.entity("today")?;
/// let length: usize = APPEND.on(&log).key().arg("hello").run(&store).await?;
/// assert_eq!(length, 5);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Script {
    name: &'static str,
    source: &'static str,
    digest: OnceLock<String>,
}

impl Script {
    /// A script with a name for spans and errors, and its Lua source.
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self {
            name,
            source,
            digest: OnceLock::new(),
        }
    }

    /// The name, such as `"mutex.acquire"`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The Lua source.
    pub fn source(&self) -> &'static str {
        #[cfg(feature = "sim")]
        if let Some((source, _)) = crate::sim::replaced(self.name) {
            return source;
        }
        #[cfg(feature = "mutation")]
        if let Some(broken) = broken(self.name) {
            return broken;
        }
        self.source
    }

    /// The SHA-1 of the source in hexadecimal, as `EVALSHA` takes it.
    pub fn digest(&self) -> &str {
        #[cfg(feature = "sim")]
        if let Some((_, digest)) = crate::sim::replaced(self.name) {
            return digest;
        }
        self.digest
            .get_or_init(|| sha1_smol::Sha1::from(self.source()).digest().to_string())
    }

    /// Starts a call on the keys of one entity.
    pub fn on<'a>(&'static self, entity: &'a Entity) -> Call<'a> {
        Call {
            script: self,
            entity,
            keys: Vec::with_capacity(4),
            cmd: None,
            idempotent: false,
        }
    }
}

/// Replaces one script by another, to prove that the tests notice a missing check:
/// `REDSTART_BREAK_SCRIPT='mutex.release=return 1'`. Compiled only into this repository's own tests.
#[cfg(feature = "mutation")]
fn broken(name: &str) -> Option<&'static str> {
    static BROKEN: OnceLock<Option<(String, String)>> = OnceLock::new();
    let broken = BROKEN.get_or_init(|| {
        let text = std::env::var("REDSTART_BREAK_SCRIPT").ok()?;
        let (name, source) = text.split_once('=')?;
        Some((name.to_owned(), source.to_owned()))
    });
    broken
        .as_ref()
        .filter(|(broken, _)| broken == name)
        .map(|(_, source)| source.as_str())
}

/// A call of a [`Script`] in the making.
#[must_use = "a call does nothing until it is run"]
pub struct Call<'a> {
    script: &'static Script,
    entity: &'a Entity,
    keys: Vec<Key>,
    /// `EVALSHA` with all keys; there once the first argument is.
    cmd: Option<Cmd>,
    idempotent: bool,
}

impl<'a> Call<'a> {
    /// Adds the entity's own key to KEYS. Keys come before arguments.
    pub fn key(self) -> Self {
        let key = self.entity.key().clone();
        self.with_key(key)
    }

    /// Adds the key of a part of the entity to KEYS.
    pub fn part(self, part: &str) -> Self {
        let key = self.entity.part(part);
        self.with_key(key)
    }

    /// Adds keys of the same entity that were made before to KEYS.
    #[cfg(any(feature = "locking", feature = "messaging", feature = "ranking"))]
    pub(crate) fn keys(mut self, keys: &[Key]) -> Self {
        for key in keys {
            self = self.with_key(key.clone());
        }
        self
    }

    fn with_key(mut self, key: Key) -> Self {
        debug_assert_eq!(key.slot(), self.entity.slot());
        self.keys.push(key);
        if let Some(before) = self.cmd.take() {
            // A key after an argument: the command is rewritten.
            let args = before.args_iter().skip(3 + self.keys.len() - 1);
            self.cmd = Some(copy(self.head(), args));
        }
        self
    }

    /// Adds an argument (or several, for a slice) to ARGV.
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        if self.cmd.is_none() {
            self.cmd = Some(self.head());
        }
        if let Some(cmd) = &mut self.cmd {
            cmd.arg(arg);
        }
        self
    }

    /// States that running the script twice with these arguments is the same as running it once, because it
    /// carries a token that it checks. Only then is it sent again after a lost reply.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// The command up to its keys.
    fn head(&self) -> Cmd {
        let mut cmd = Cmd::with_capacity(12 + self.keys.len(), 256);
        cmd.arg("EVALSHA").arg(self.script.digest());
        cmd.arg(self.keys.len()).arg(&self.keys[..]);
        cmd
    }

    /// The whole command by digest.
    fn command(&mut self) -> &Cmd {
        if self.cmd.is_none() {
            self.cmd = Some(self.head());
        }
        // Made above if it was not there.
        self.cmd.as_ref().expect("a call has its command")
    }

    /// The same command with the script's source.
    fn with_source(&mut self) -> Cmd {
        let source = self.script.source();
        let mut cmd = Cmd::new();
        cmd.arg("EVAL").arg(source);
        copy(cmd, self.command().args_iter().skip(2))
    }

    /// The call as one command that needs no script on the server.
    #[cfg(feature = "messaging")]
    pub(crate) fn into_command(mut self) -> Cmd {
        self.with_source()
    }

    /// Runs the script and reads its reply.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`], and [`is_codec`](Error::is_codec) if the reply is not a `T`. The script has run then, so that error is
    /// [in doubt](Error::is_in_doubt) unless the call is [idempotent](Self::idempotent).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the script may or may not run; never half of it.
    pub async fn run<T: FromRedisValue>(mut self, store: &Store) -> Result<T> {
        self.run_value(store)
            .await
            .and_then(|value| convert(value, self.idempotent))
            .map_err(|error: Error| error.during_script(self.script.name, self.entity.namespace()))
    }

    async fn run_value(&mut self, store: &Store) -> Result<Value> {
        let idempotent = self.idempotent;
        let slot = self.entity.slot();
        // One deadline for both: it is one call.
        let ends = store.ends();
        let first = store.request_one_until(self.command(), slot, idempotent, ends);
        match first.await {
            Err(error) if is_noscript(&error) => {
                // Once for each script and server; the others' futures need no room for it.
                let whole = self.with_source();
                let again: BoxFuture<'_, _> = Box::pin(async move {
                    let again = store.request_one_until(&whole, slot, idempotent, ends);
                    again.await
                });
                // The first one was sent, and more than once if its reply was lost: another server may have carried it out
                // before this one said that it does not know the script.
                let again = again.await.map_err(|error| error.unsent(false));
                match crate::mend::is_missing("a script that was forgotten is no error") {
                    true => again.and(Err(Error::unavailable("the store cannot be reached"))),
                    false => again,
                }
            }
            result => result,
        }
    }
}

fn copy<'a>(mut cmd: Cmd, args: impl Iterator<Item = redis::Arg<&'a [u8]>>) -> Cmd {
    for arg in args {
        if let redis::Arg::Simple(arg) = arg {
            cmd.arg(arg);
        }
    }
    cmd
}

fn is_noscript(error: &Error) -> bool {
    error
        .redis()
        .is_some_and(|e| e.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
}

/// Several calls sent together: one round trip to each node.
///
/// The calls are independent. Each has its own result; one that fails does not stop the others.
#[derive(Default)]
#[must_use = "a batch does nothing until it is run"]
pub struct Batch<'a> {
    calls: Vec<Call<'a>>,
}

impl<'a> Batch<'a> {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a call.
    pub fn push(&mut self, call: Call<'a>) {
        self.calls.push(call);
    }

    /// How many calls are in it.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there is no call in it.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Runs all calls and returns their results in order.
    ///
    /// # Errors
    ///
    /// The outer error means that the whole batch failed (and is [in doubt](Error::is_in_doubt) if it was
    /// sent); an inner one belongs to its call.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the calls may have run; each of them whole or not at all.
    pub async fn run<T: FromRedisValue>(mut self, store: &Store) -> Result<Vec<Result<T>>> {
        if self.calls.is_empty() {
            return Ok(Vec::new());
        }
        let namespace: Arc<str> = self.calls[0].entity.namespace().clone();
        let name = self.calls[0].script.name;
        let idempotent = self.calls.iter().all(|call| call.idempotent);
        let mut pipeline = Pipeline::with_capacity(self.calls.len());
        for call in &mut self.calls {
            pipeline.add_command(call.command().clone());
        }
        // One deadline for all: it is one call.
        let ends = store.ends();
        let replies = store
            .request_many_until(&pipeline, idempotent, ends)
            .await
            .map_err(|error| error.during_script(name, &namespace))?;
        let mut values: Vec<Result<Value>> = replies.into_iter().map(answer).collect();
        self.send_sources(store, ends, idempotent, &mut values)
            .await;
        let results = self.calls.iter().zip(values).map(|(call, value)| {
            value
                .and_then(|value| convert(value, call.idempotent))
                .map_err(|error: Error| error.during_script(call.script.name, &namespace))
        });
        Ok(results.collect())
    }

    /// Sends the calls whose script a server did not know again, together and with their sources. Each of them has a result
    /// of its own, also if this fails as a whole.
    async fn send_sources(
        &mut self,
        store: &Store,
        ends: Instant,
        idempotent: bool,
        values: &mut [Result<Value>],
    ) {
        let unknown = |value: &Result<Value>| value.as_ref().is_err_and(is_noscript);
        let mut sources = Pipeline::new();
        for (call, value) in self.calls.iter_mut().zip(&*values) {
            if unknown(value) {
                sources.add_command(call.with_source());
            }
        }
        if sources.is_empty() {
            return;
        }
        // Once for each script and server; the others' futures need no room for it.
        let sent: BoxFuture<'_, _> = Box::pin(store.request_many_until(&sources, idempotent, ends));
        let unanswered = values.iter_mut().filter(|value| unknown(value));
        match sent.await {
            Ok(replies) => {
                for (value, reply) in unanswered.zip(replies) {
                    *value = answer(reply);
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for value in unanswered {
                    *value = Err(Error::shared(&error));
                }
            }
        }
    }
}

/// A reply in a pipeline, where an error is a value.
fn answer(reply: Value) -> Result<Value> {
    match reply {
        Value::ServerError(error) => Err(redis::RedisError::from(error).into()),
        value => Ok(value),
    }
}
