//! The end of a job, written through an outage of the store.

use std::time::Duration;

use serde::Serialize;

use super::taken::{Ended, JobError, Taken};
use crate::error::Error;

/// How long it waits before it tries again, first and at most.
const WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Writes how a job went. A job whose end cannot be written runs again: while its lease lasts it is worth trying.
pub(super) async fn write<R: Serialize>(job: &Taken, mut result: Result<R, JobError>) {
    let mut wait = WAIT.0;
    loop {
        let ended = match &result {
            Ok(value) => job.complete(value).await,
            Err(error) => job.fail(error.clone()).await,
        };
        match ended {
            Ok(Ended::Lost) => {
                tracing::warn!("a job was not held any more when it ended, so its result is lost");
                return;
            }
            Ok(_) => return,
            // The result is no JSON.
            Err(error) if error.is_invalid() && result.is_ok() => {
                result = Err(JobError::new(error.to_string()));
            }
            Err(error) if is_final(&error) || !job.may_be_held() => {
                tracing::warn!(%error, "the end of a job could not be written");
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "the end of a job is written again");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(WAIT.1);
            }
        }
    }
}

/// Whether the server would say the same again.
fn is_final(error: &Error) -> bool {
    let code = error.store().and_then(redstart::Error::server_code);
    error.is_invalid() || code.is_some_and(|code| ["ERR", "NOPERM", "WRONGTYPE"].contains(&code))
}
