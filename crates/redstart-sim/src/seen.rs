//! What the servers of a world did, for judges that cannot tell from the answers alone.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use redstart_engine::Reply;

use crate::{
    late_grant::LateGrants, lock_view::LockView, network::Peer, probe_place::ProbePlaces,
    view_lease::ViewLeases,
};

/// What the servers carried out.
#[derive(Default)]
pub struct Seen {
    /// Locks that were granted once more.
    pub late_grants: LateGrants,
    /// The locks that have several kinds of holders or a line.
    pub locks: LockView,
    /// The places of a breaker's probes.
    pub probes: ProbePlaces,
    /// The right to build a sorted view.
    pub views: ViewLeases,
    refusals: Mutex<BTreeSet<String>>,
}

/// Errors by which an engine says what is so: a script was forgotten, a disk or the memory is full, a group is or is not there,
/// or a transaction was discarded.
const USUAL: &[&str] = &[
    "NOSCRIPT",
    "MISCONF",
    "OOM",
    "BUSYGROUP",
    "NOGROUP",
    "EXECABORT",
];

/// Commands that are sent to servers which may not have them: the library asks another way then.
const OPTIONAL: &[&[u8]] = &[b"DELIFEQ", b"DELEX"];

impl Seen {
    /// A server answered a command.
    pub fn look(&self, client: Peer, command: &[Bytes], reply: &Reply, now: Duration) {
        self.late_grants.look(command, reply, now);
        self.locks.look(command, reply, now);
        self.probes.look(client, command, reply, now);
        self.views.look(command, reply, now);
    }

    /// An engine itself answered with an error: the request was wrong, unless it is one of the usual ones.
    pub fn refused(&self, name: &[u8], error: &str) {
        let usual = USUAL.iter().any(|code| error.starts_with(code));
        let optional = OPTIONAL.contains(&name) && error.contains("unknown command");
        if !usual && !optional {
            let name = String::from_utf8_lossy(name);
            let text = format!("a server refuses {name}: {error}");
            self.refusals.lock().insert(text);
        }
    }

    /// Requests that were wrong.
    pub fn refusals(&self) -> BTreeSet<String> {
        self.refusals.lock().clone()
    }
}
