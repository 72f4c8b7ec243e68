//! All data as of one moment, in pieces for a replica.

use std::{
    io::{self, Write},
    sync::Arc,
};

use bytes::Bytes;
use tokio::sync::{OwnedMutexGuard, mpsc};

use crate::{Engine, aof, engine::State, memory, random::Random, rdb};

/// The size of a piece.
const PIECE: usize = 256 * 1024;
/// How many pieces wait for the connection.
const AHEAD: usize = 4;
/// Data that takes no more memory than this is encoded at once: that is over sooner than its log is read.
const LITTLE: u64 = 8 * 1024 * 1024;

/// The data, noted but perhaps not read yet.
pub(crate) enum Snapshot {
    Encoded(Bytes),
    Files(aof::Copy),
}

/// The turn of one copy that is read from the log: another second copy of the data would be one too many.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// Pieces of the reply that carries the data, or why there are no more.
pub(crate) type Pieces = mpsc::Receiver<io::Result<Bytes>>;

impl Snapshot {
    /// The data as it is now.
    pub(super) fn take(state: &State, now_micros: i64) -> io::Result<Snapshot> {
        if memory::used(state) > LITTLE
            && let Some(log) = state.inner.upgrade().and_then(|inner| inner.log.get())
        {
            match log.copy() {
                Ok(copy) => return Ok(Snapshot::Files(copy)),
                Err(error) => {
                    tracing::warn!(%error, "the log cannot be read: all wait while the data is encoded");
                }
            }
        }
        Ok(Snapshot::Encoded(rdb::encode(state, now_micros)?.into()))
    }

    /// Whether it is read from the log, which needs a turn.
    pub(crate) fn needs_turn(&self) -> bool {
        matches!(self, Snapshot::Files(_))
    }

    /// Begins to send it. With `eof` its length need not be known, and it ends in a mark. Whether it does.
    pub(crate) fn send(self, eof: bool, turn: Option<Turn>) -> io::Result<(Pieces, bool)> {
        let (sender, pieces) = mpsc::channel(AHEAD);
        let unknown = eof && matches!(self, Snapshot::Files(_));
        let work = move || {
            let mut out = Sending {
                sender,
                piece: Vec::with_capacity(PIECE),
            };
            let sent = match self {
                Snapshot::Encoded(data) => out.whole(&data),
                Snapshot::Files(copy) if eof => out.marked(copy),
                Snapshot::Files(copy) => out.encode(copy),
            };
            if let Err(error) = sent {
                // If the connection is gone, nobody asks.
                let _ = out.sender.blocking_send(Err(error));
            }
            // The data that was read is freed by now.
            drop(turn);
        };
        std::thread::Builder::new()
            .name("redstart-snapshot".into())
            .spawn(work)?;
        Ok((pieces, unknown))
    }
}

/// Where the pieces go.
struct Sending {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Sending {
    /// The data, unless the replica goes meanwhile.
    fn read(&self, copy: aof::Copy) -> io::Result<Engine> {
        let sender = self.sender.clone();
        let wanted = Arc::new(move || !sender.is_closed());
        copy.load(wanted).map_err(other)
    }

    /// Data of known length.
    fn whole(&mut self, data: &[u8]) -> io::Result<()> {
        write!(self, "${}\r\n", data.len())?;
        self.write_all(data)?;
        self.flush()
    }

    /// What is in the files of a log, with a mark at both ends.
    fn marked(&mut self, copy: aof::Copy) -> io::Result<()> {
        let mut random = Random::new();
        let mark: String = (0..5)
            .map(|_| format!("{:08x}", random.next() as u32))
            .collect();
        let engine = self.read(copy)?;
        write!(self, "$EOF:{mark}\r\n")?;
        engine.save_rdb(&mut *self, |_| ()).map_err(other)?;
        self.write_all(mark.as_bytes())?;
        self.flush()
    }

    /// What is in the files of a log, for a replica that must know the length first.
    fn encode(&mut self, copy: aof::Copy) -> io::Result<()> {
        let engine = self.read(copy)?;
        let mut data = Vec::new();
        engine.save_rdb(&mut data, |_| ()).map_err(other)?;
        drop(engine);
        self.whole(&data)
    }
}

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE - self.piece.len();
        let count = bytes.len().min(room);
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() == PIECE {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        let sent = self.sender.blocking_send(Ok(piece.into()));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}
