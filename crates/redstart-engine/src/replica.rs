//! Data of another server: copied once.

mod link;

pub use link::Master;

use link::{Answer, Link};

use crate::{
    Engine,
    error::EngineError,
    rdb::{self, Expired, Summary},
};

impl Engine {
    /// Puts a copy of all data of a running Redis or Valkey in the place of all data here.
    ///
    /// The server sends it as it would to a replica, as of one moment. Blocks the thread; nothing
    /// changes here if the copy does not arrive whole.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached or refuses, or the data folder cannot be written.
    pub fn copy_from(
        &self,
        master: &Master,
        mut progress: impl FnMut(&Summary),
    ) -> Result<Summary, EngineError> {
        let failed = |error: std::io::Error| EngineError::Copy(error.to_string());
        let config = self.inner.lock().config.clone();
        let mut link = Link::connect(master).map_err(failed)?;
        let Answer::Full { .. } = link.synchronize(None).map_err(failed)? else {
            return Err(EngineError::Copy("the server sends no copy".into()));
        };
        let contents = link
            .receive(
                self.inner.databases,
                &config,
                self.now_micros() / 1000,
                Expired::LeftOut,
                &mut progress,
            )
            .map_err(failed)?;
        rdb::replace_and_keep(self, contents)
    }
}
