//! A connection to a real server, with replies as the engine has them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use bytes::Bytes;
use redstart_engine::Reply;

/// How long a server may take for a reply.
const PATIENCE: Duration = Duration::from_secs(20);

/// A raw connection that reads replies as the engine's own type.
pub(crate) struct Wire {
    reader: BufReader<UnixStream>,
}

impl Wire {
    pub(crate) fn new(stream: UnixStream) -> Wire {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire {
            reader: BufReader::new(stream),
        }
    }

    pub(crate) fn send(&mut self, args: &[Bytes]) {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.reader.get_mut().write_all(&request).unwrap();
    }

    pub(crate) fn call(&mut self, args: &[Bytes]) -> Reply {
        self.send(args);
        self.read()
    }

    /// The next reply, if it comes in time.
    #[allow(dead_code, reason = "not every test waits")]
    pub(crate) fn read_within(&mut self, patience: Duration) -> Option<Reply> {
        let late = |error: &std::io::Error| {
            matches!(
                error.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            )
        };
        if self.reader.buffer().is_empty() {
            self.reader
                .get_ref()
                .set_read_timeout(Some(patience))
                .unwrap();
            match self.reader.fill_buf() {
                Err(error) if late(&error) => return None,
                other => assert!(
                    !other.unwrap().is_empty(),
                    "connection closed by the server"
                ),
            }
        }
        Some(self.read())
    }

    /// Whether there is something to read.
    #[allow(dead_code, reason = "not every test waits")]
    pub(crate) fn pending(&mut self) -> bool {
        self.reader.get_ref().set_nonblocking(true).unwrap();
        let there = self.reader.fill_buf().is_ok_and(|data| !data.is_empty());
        self.reader.get_ref().set_nonblocking(false).unwrap();
        there
    }

    pub(crate) fn read(&mut self) -> Reply {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).unwrap();
        assert!(line.ends_with(b"\r\n"), "connection closed by the server");
        line.truncate(line.len() - 2);
        let rest = String::from_utf8_lossy(&line[1..]).into_owned();
        let count = || rest.parse::<i64>().unwrap();
        match line[0] {
            b'+' => Reply::Status(rest.into()),
            b'-' => Reply::Error(rest),
            b':' => Reply::Int(rest.parse().unwrap()),
            b'$' if count() < 0 => Reply::Nil,
            b'$' => Reply::Bulk(self.bytes(count() as usize)),
            b'*' if count() < 0 => Reply::NilArray,
            b'*' => Reply::Array(self.items(count() as usize)),
            b'~' => Reply::Set(self.items(count() as usize)),
            b'>' => Reply::Push(self.items(count() as usize)),
            b'%' => Reply::Map((0..count()).map(|_| (self.read(), self.read())).collect()),
            b'_' => Reply::Nil,
            b'#' => Reply::Bool(rest == "t"),
            b',' => Reply::Double(rest.parse().unwrap()),
            b'(' => Reply::BigNumber(rest),
            b'=' => {
                let all = self.bytes(count() as usize);
                Reply::Verbatim {
                    format: [all[0], all[1], all[2]],
                    text: all.slice(4..),
                }
            }
            other => panic!("unknown reply type {:?}", other as char),
        }
    }

    fn items(&mut self, count: usize) -> Vec<Reply> {
        (0..count).map(|_| self.read()).collect()
    }

    fn bytes(&mut self, count: usize) -> Bytes {
        let mut data = vec![0; count + 2];
        self.reader.read_exact(&mut data).unwrap();
        data.truncate(count);
        data.into()
    }
}
