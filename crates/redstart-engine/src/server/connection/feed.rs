//! The connection of a replica: the data, and then the stream.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{Connection, Flow, give_up};
use crate::{
    feed::{
        Attachment,
        snapshot::{Snapshot, Turn},
        stream::{Confirmed, Taken},
    },
    number::parse_int,
    resp::Limits,
};

/// About how much of the stream is written at once.
const PIECE: usize = 256 * 1024;
/// How often a replica hears that its copy is being prepared.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Feeds the replica until it goes or must.
    pub(super) async fn feed(&mut self, mut to: Attachment, stop: &CancellationToken) {
        // Neither the data nor the stream tells a replica what may yet be lost here.
        if let Some(request) = to.later.take() {
            if matches!(self.wait_until_fed(&to, stop, true).await, Flow::Close) {
                return;
            }
            to = match self.session.attach(request).await {
                // Others go on writing: what came since is waited for below.
                Ok(attachment) => attachment,
                Err(refused) => {
                    self.session.answer(&refused, &mut self.out);
                    let _ = self.flush_in_time(&to, stop).await;
                    return;
                }
            };
        }
        if matches!(self.wait_until_fed(&to, stop, true).await, Flow::Close) {
            return;
        }
        self.out.extend_from_slice(to.greeting.as_bytes());
        if matches!(self.flush_in_time(&to, stop).await, Flow::Close) {
            return;
        }
        if let Some(snapshot) = to.snapshot.take()
            && matches!(self.send_copy(&to, snapshot, stop).await, Flow::Close)
        {
            return;
        }
        if !to.only_copy {
            self.session.replica_is_online(&to.stream);
        }
        self.send_stream(&to, stop).await;
    }

    /// Waits until what was put into the stream is on the disk, if that is what is promised. What the replica says meanwhile
    /// is heard: the disk may take long, and the replica is not silent. Before it was answered, it hears that this is alive.
    async fn wait_until_fed(
        &mut self,
        to: &Attachment,
        stop: &CancellationToken,
        before_answer: bool,
    ) -> Flow {
        let position = self.session.fed_position();
        let mut over = std::pin::pin!(give_up(stop));
        let mut sign = tokio::time::interval(SIGN_OF_LIFE);
        sign.reset();
        loop {
            self.make_space();
            tokio::select! {
                biased;
                () = self.session.synced(position) => return Flow::Continue,
                () = self.profile.end.notified() => return Flow::Close,
                () = &mut over => return Flow::Close,
                read = self.socket.read_buf(self.parser.buffer()) => {
                    if matches!(self.hear(to, read.unwrap_or(0)).0, Flow::Close) {
                        return Flow::Close;
                    }
                    continue;
                }
                _ = sign.tick(), if before_answer => self.out.push(b'\n'),
            }
            if matches!(self.flush_in_time(to, stop).await, Flow::Close) {
                return Flow::Close;
            }
        }
    }

    /// Writes what waits, unless the replica takes none of it.
    async fn flush_in_time(&mut self, to: &Attachment, stop: &CancellationToken) -> Flow {
        match tokio::time::timeout(to.patience, self.flush(stop)).await {
            Ok(flow) => flow,
            Err(_) => self.let_go(),
        }
    }

    fn let_go(&self) -> Flow {
        let replica = &self.profile.addr;
        tracing::warn!(
            replica,
            "a replica hangs during its copy and is disconnected"
        );
        Flow::Close
    }

    /// Waits until no other copy is read from the log, while the replica hears that this one is to come.
    async fn wait_for_turn(&mut self, to: &Attachment, stop: &CancellationToken) -> Option<Turn> {
        let mut turn = std::pin::pin!(to.copying.clone().lock_owned());
        loop {
            self.make_space();
            tokio::select! {
                biased;
                () = self.profile.end.notified() => return None,
                () = stop.cancelled() => return None,
                turn = &mut turn => return Some(turn),
                read = self.socket.read_buf(self.parser.buffer()) => {
                    if matches!(self.hear(to, read.unwrap_or(0)).0, Flow::Close) {
                        return None;
                    }
                }
                () = tokio::time::sleep(SIGN_OF_LIFE) => self.out.push(b'\n'),
            }
            if matches!(self.flush_in_time(to, stop).await, Flow::Close) {
                return None;
            }
        }
    }

    async fn send_copy(
        &mut self,
        to: &Attachment,
        snapshot: Snapshot,
        stop: &CancellationToken,
    ) -> Flow {
        let mut turn = None;
        if snapshot.needs_turn() {
            turn = self.wait_for_turn(to, stop).await;
            if turn.is_none() {
                return Flow::Close;
            }
        }
        let (mut pieces, marked) = match snapshot.send(to.eof, turn) {
            Ok(sending) => sending,
            Err(error) => {
                tracing::error!(%error, "a replica cannot be sent the data");
                return Flow::Close;
            }
        };
        let mut begun = false;
        loop {
            self.make_space();
            tokio::select! {
                biased;
                () = self.profile.end.notified() => return Flow::Close,
                () = stop.cancelled() => return Flow::Close,
                piece = pieces.recv() => match piece {
                    Some(Ok(piece)) => {
                        begun = true;
                        self.out.extend_from_slice(&piece);
                    }
                    Some(Err(error)) => {
                        tracing::error!(%error, "a replica cannot be sent the data");
                        return Flow::Close;
                    }
                    None => break,
                },
                read = self.socket.read_buf(self.parser.buffer()) => {
                    if matches!(self.hear(to, read.unwrap_or(0)).0, Flow::Close) {
                        return Flow::Close;
                    }
                }
                // Empty lines before the data only show that the copy is being made.
                () = tokio::time::sleep(SIGN_OF_LIFE), if !begun => self.out.push(b'\n'),
            }
            if matches!(self.flush_in_time(to, stop).await, Flow::Close) {
                return Flow::Close;
            }
        }
        if !marked || to.only_copy {
            return Flow::Continue;
        }
        // The mark must be the last that the replica reads: it says when it has found it.
        loop {
            self.make_space();
            tokio::select! {
                biased;
                () = self.profile.end.notified() => return Flow::Close,
                () = stop.cancelled() => return Flow::Close,
                read = self.socket.read_buf(self.parser.buffer()) => {
                    match self.hear(to, read.unwrap_or(0)) {
                        (Flow::Close, _) => return Flow::Close,
                        (Flow::Continue, true) => return Flow::Continue,
                        (Flow::Continue, false) => {}
                    }
                }
                // While it loads the data, it says so.
                () = tokio::time::sleep(to.patience) => return self.let_go(),
            }
        }
    }

    async fn send_stream(&mut self, to: &Attachment, stop: &CancellationToken) {
        // Up to here the stream is known to be on the disk.
        let mut kept = 0;
        loop {
            let taken = match to.only_copy {
                true => Taken::Nothing,
                false => to.stream.take(self.profile.id, PIECE, &mut self.out),
            };
            let taken = match taken {
                Taken::Gone => return,
                Taken::Bytes(place) => Some(place),
                Taken::Nothing => None,
            };
            let (more, taken) = (taken.is_some(), taken.unwrap_or(0));
            if taken > kept {
                // Looked up before the end of the log: what is in the stream was put into the log before.
                let end = to.stream.end();
                if matches!(self.wait_until_fed(to, stop, false).await, Flow::Close) {
                    return;
                }
                kept = end;
            }
            if matches!(self.flush(stop).await, Flow::Close) {
                return;
            }
            if !more && stop.is_cancelled() {
                return;
            }
            self.make_space();
            tokio::select! {
                biased;
                () = self.profile.end.notified() => return,
                read = self.socket.read_buf(self.parser.buffer()) => {
                    if matches!(self.hear(to, read.unwrap_or(0)).0, Flow::Close) {
                        return;
                    }
                }
                () = to.wake.notified(), if !more => {}
                // What was done before the end reaches the replica.
                () = stop.cancelled(), if !more => {}
                () = std::future::ready(()), if more => {}
            }
        }
    }

    /// What the replica said, and whether it confirmed a place in the stream.
    fn hear(&mut self, to: &Attachment, count: usize) -> (Flow, bool) {
        self.session.was_read(count);
        if count == 0 {
            return (Flow::Close, false);
        }
        let limits = Limits {
            bulk: self.allowed.bulk,
            authenticated: true,
        };
        let mut confirmed = Confirmed::default();
        loop {
            match self.parser.next(limits) {
                Ok(Some(args)) => {
                    let is = |at: usize, word: &[u8]| {
                        args.get(at)
                            .is_some_and(|arg| arg.eq_ignore_ascii_case(word))
                    };
                    if is(0, b"REPLCONF") && is(1, b"ACK") {
                        let place = |at: usize| {
                            let place = args.get(at).and_then(|text| parse_int(text));
                            place.and_then(|place| u64::try_from(place).ok())
                        };
                        confirmed.applied = place(2);
                        // From Redis 7.2 on, one with a log says how much of it is on its disk.
                        if is(3, b"FACK") {
                            confirmed.synced = place(4);
                        }
                    }
                }
                Ok(None) => break,
                Err(_) => return (Flow::Close, false),
            }
        }
        self.session.replica_was_heard(&to.stream, confirmed);
        (Flow::Continue, confirmed.applied.is_some())
    }
}
