//! A server whose data has moved, and that says where to: `REDIRECT <host>:<port>`.
//!
//! The embedded engine says so after a hand-over, and a Valkey to clients that ask for it. Nothing was done then. All
//! connections of the store are made to the new place from then on, with the same credentials, database and TLS settings.
//! While that cannot be reached, the first server is asked from time to time whether the data is there again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use redis::RedisError;

use crate::{store::location::Address, watch};

pub(super) struct Moved {
    to: Mutex<Option<Address>>,
    /// How often it moved; looked at for every request.
    count: AtomicU64,
    /// How many attempts to connect have failed since the last that did not.
    failed: AtomicU32,
    /// The same, for those who wait.
    changes: watch::Sender<u64>,
}

impl Moved {
    pub(super) fn new() -> Self {
        Self {
            to: Mutex::new(None),
            count: AtomicU64::new(0),
            failed: AtomicU32::new(0),
            changes: watch::Sender::new(0),
        }
    }

    /// Where the data is, if it moved.
    pub(super) fn place(&self) -> Option<Address> {
        self.to.lock().clone()
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Ends when the count is another one.
    pub(super) async fn changed(&self, since: u64) {
        let mut changes = self.changes.subscribe();
        if changes.wait_for(|now| *now != since).await.is_err() {
            // The sender lives as long as this.
            std::future::pending().await
        }
    }

    /// The server at `from` says that the data is there.
    pub(super) fn set(&self, from: &Address, to: Address) {
        let mut place = self.to.lock();
        if place.as_ref().unwrap_or(from) == &to {
            return;
        }
        tracing::info!(%from, %to, "the data has moved, and the store follows");
        metrics::counter!("redstart_store_moves_total").increment(1);
        *place = Some(to);
        drop(place);
        self.tell();
    }

    /// The server at `home` says that the data came back to it from there.
    pub(super) fn give_back(&self, home: &Address, from: &Address) {
        let mut place = self.to.lock();
        if place.as_ref() != Some(from) {
            return;
        }
        tracing::info!(%from, to = %home, "the data is back, and the store follows");
        metrics::counter!("redstart_store_moves_total").increment(1);
        *place = None;
        drop(place);
        self.tell();
    }

    fn tell(&self) {
        let count = self.count.fetch_add(1, Ordering::AcqRel) + 1;
        self.failed.store(0, Ordering::Relaxed);
        self.changes.send_modify(|now| *now = (*now).max(count));
    }

    /// An attempt to connect succeeded or failed.
    pub(super) fn note(&self, succeeded: bool) {
        match succeeded {
            true => self.failed.store(0, Ordering::Relaxed),
            false => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Whether the place that the data moved to could not be reached for some attempts: true for every third.
    pub(super) fn is_lost(&self) -> bool {
        let failed = self.failed.load(Ordering::Relaxed);
        failed > 0 && failed.is_multiple_of(3) && self.to.lock().is_some()
    }
}

/// The place that an error names.
pub(crate) fn redirection(error: &RedisError) -> Option<Address> {
    if error.code() != Some("REDIRECT") {
        return None;
    }
    address_of(error.detail()?)
}

/// `<host>:<port>`.
pub(super) fn address_of(text: &str) -> Option<Address> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| Address::Tcp {
        host: host.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use redis::ErrorKind;

    use super::*;

    #[test]
    fn a_redirection_names_a_host_and_a_port() {
        let parse = |text: &str| {
            let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
            redirection(&reply.extract_error().unwrap_err())
        };
        let tcp = |host: &str, port| {
            Some(Address::Tcp {
                host: host.to_owned(),
                port,
            })
        };
        assert_eq!(parse("REDIRECT 10.0.0.1:7000"), tcp("10.0.0.1", 7000));
        assert_eq!(parse("REDIRECT [::1]:7000"), tcp("::1", 7000));
        assert_eq!(parse("REDIRECT ::1:7000"), tcp("::1", 7000));
        for text in [
            "REDIRECT",
            "REDIRECT host",
            "REDIRECT :1",
            "REDIRECT a:0",
            "ERR a:1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(redirection(&(ErrorKind::Io, "REDIRECT a:1").into()), None);
    }

    #[test]
    fn the_same_place_again_is_no_move() {
        let at = |port| Address::Tcp {
            host: "a".into(),
            port,
        };
        let moved = Moved::new();
        moved.set(&at(1), at(1));
        assert_eq!((moved.count(), moved.place()), (0, None));
        moved.set(&at(1), at(2));
        moved.set(&at(1), at(2));
        assert_eq!((moved.count(), moved.place()), (1, Some(at(2))));
        // Only what is back from there is back.
        moved.give_back(&at(1), &at(3));
        assert_eq!((moved.count(), moved.place()), (1, Some(at(2))));
        moved.give_back(&at(1), &at(2));
        assert_eq!((moved.count(), moved.place()), (2, None));
    }
}
