//! Lua on keys that another library lays out.
//!
//! Redstart's own scripts touch only keys that they are given. On a foreign layout that is not possible: the id of the next
//! job decides the keys of the job. These scripts are given the fixed keys of the queue and derive the others from them, as the
//! library's own scripts do. On a Cluster all of them share a slot if the prefix has a hash tag, which these libraries
//! require there.

use std::sync::OnceLock;

use redis::{Cmd, FromRedisValue, ToRedisArgs, cmd};
use redstart::Store;

use crate::error::Result;

/// A script, sent by its digest and once by its source.
pub(crate) struct Lua {
    source: &'static str,
    digest: OnceLock<String>,
}

impl Lua {
    pub(crate) const fn new(source: &'static str) -> Self {
        Self {
            source,
            digest: OnceLock::new(),
        }
    }

    fn digest(&self) -> &str {
        self.digest
            .get_or_init(|| sha1_smol::Sha1::from(self.source).digest().to_string())
    }

    /// Runs it on these keys with these arguments.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        store: &Store,
        keys: &[String],
        args: &[&(dyn Arg + Sync)],
    ) -> Result<T> {
        let whole = |name: &str, script: &str| {
            let mut command = cmd(name);
            command.arg(script).arg(keys.len()).arg(keys);
            for arg in args {
                arg.append(&mut command);
            }
            command
        };
        let known = store.query(&whole("EVALSHA", self.digest())).await;
        match known {
            Err(error) if error.server_code() == Some("NOSCRIPT") => {
                Ok(store.query(&whole("EVAL", self.source)).await?)
            }
            known => Ok(known?),
        }
    }
}

/// An argument of a script.
pub(crate) trait Arg {
    fn append(&self, command: &mut Cmd);
}

impl<T: ToRedisArgs> Arg for T {
    fn append(&self, command: &mut Cmd) {
        command.arg(self);
    }
}
