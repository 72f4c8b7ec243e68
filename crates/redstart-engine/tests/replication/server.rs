//! A real server on one side of the replication, and when both sides are equal.

use std::{
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redstart_engine::Reply;
use redstart_testkit::{Kind, block_until, find};

use crate::{
    change::{field, told},
    contents::{Client, assert_same, words},
    wire::Wire,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A server that can be ended and started again on its data.
pub(crate) struct RealServer {
    kind: Kind,
    dir: PathBuf,
    pub(crate) port: u16,
    settings: Vec<String>,
    password: Option<&'static str>,
    process: Option<Child>,
}

impl RealServer {
    /// Starts one with more settings than the usual ones, as words of its command line.
    pub(crate) fn new(kind: Kind, dir: &Path, settings: &[&str]) -> RealServer {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut server = RealServer {
            kind,
            dir: dir.into(),
            port,
            settings: settings.iter().map(|&word| word.to_owned()).collect(),
            password: None,
            process: None,
        };
        server.start();
        server
    }

    /// As [`RealServer::new`]; clients must present this password.
    pub(crate) fn with_password(
        kind: Kind,
        dir: &Path,
        password: &'static str,
        settings: &[&str],
    ) -> RealServer {
        let settings = [&["--requirepass", password][..], settings].concat();
        let mut server = RealServer::new(kind, dir, &settings);
        server.password = Some(password);
        server
    }

    fn start(&mut self) {
        let program = find::server(self.kind).expect("a server, see `cargo xtask servers`");
        let process = Command::new(program)
            .args(["--port", &self.port.to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .args(["--unixsocket", "s.sock", "--dir"])
            .arg(&self.dir)
            .args(&self.settings)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    pub(crate) fn connect(&self) -> Wire {
        connect(&self.dir.join("s.sock"), self.password)
    }

    /// Makes it a replica.
    pub(crate) fn follow(&self, addr: SocketAddr) -> Wire {
        let mut wire = self.connect();
        let line = format!("REPLICAOF {} {}", addr.ip(), addr.port());
        assert_eq!(wire.line(&line), Reply::OK);
        wire
    }

    /// Ends it, with its data on the disk (SAVE) or without (NOSAVE), and starts it again.
    pub(crate) fn restart(&mut self, how: &str) {
        self.connect().send(&words(&format!("SHUTDOWN {how}")));
        self.process.take().unwrap().wait().unwrap();
        self.start();
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.as_ref().unwrap().id().to_string();
        let status = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A client of whatever listens on a unix socket, once it answers.
pub(crate) fn connect(path: &Path, password: Option<&str>) -> Wire {
    let answers = || {
        let mut wire = Wire::new(UnixStream::connect(path).ok()?);
        if let Some(password) = password {
            wire.line(&format!("AUTH {password}"));
        }
        (wire.line("PING") == Reply::Status("PONG".into())).then_some(wire)
    };
    block_until("the server to answer", PATIENCE, answers).unwrap()
}

/// Whether the replica has all that the master sent.
pub(crate) fn is_level(master: &mut impl Client, replica: &mut impl Client) -> bool {
    field(replica, "master_link_status").as_deref() == Some("up")
        && field(replica, "slave_repl_offset") == field(master, "master_repl_offset")
}

/// Waits until the replica has all that the master sent, and compares them.
pub(crate) fn assert_level(master: &mut impl Client, replica: &mut impl Client, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if is_level(master, replica) {
            let (ours, theirs) = (told(master), told(replica));
            // A key may expire between the two.
            if ours == theirs {
                return;
            }
            if Instant::now() > deadline {
                assert_same(&ours, &theirs, what);
            }
        }
        assert!(
            Instant::now() < deadline,
            "{what}: {:?} {:?}",
            master.line("INFO replication"),
            replica.line("INFO replication")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
