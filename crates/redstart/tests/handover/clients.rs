//! Clients of other makers that count up while the data moves. They are told `REDIRECT <host>:<port>` and nothing
//! else; what that means is in the few lines of each.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use redstart_testkit::{find, redis_cli};

/// What a client did, by its own word.
#[derive(Default)]
pub(crate) struct Counts {
    acknowledged: AtomicU64,
    moves: AtomicU64,
}

impl Counts {
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }
}

/// A client at work.
pub(crate) struct Counting {
    pub(crate) name: &'static str,
    pub(crate) counts: Arc<Counts>,
    program: Option<Child>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Counting {
    /// redis-cli, redis-py and ioredis, each with a key of its name.
    pub(crate) fn all(address: &str) -> anyhow::Result<Vec<Counting>> {
        let script = |name: &str| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover/clients");
            folder.join(name)
        };
        let mut python = Command::new(find::redis_py()?);
        python
            .arg(script("redis_py.py"))
            .args([address, "redis-py"]);
        let (node, modules) = find::ioredis()?;
        let mut ioredis = Command::new(node);
        ioredis.arg(script("ioredis.js")).args([address, "ioredis"]);
        ioredis.env("NODE_PATH", modules);
        Ok(vec![
            Self::shell(address),
            Self::program("redis-py", python)?,
            Self::program("ioredis", ioredis)?,
        ])
    }

    /// A program that says after each count how far it is.
    fn program(name: &'static str, mut command: Command) -> anyhow::Result<Self> {
        let command = command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut program = command.spawn()?;
        let out = program.stdout.take().expect("it is piped");
        let counts = Arc::new(Counts::default());
        let noted = counts.clone();
        let thread = std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
                if let (Some(acknowledged), Some(moves)) = (numbers.next(), numbers.next()) {
                    noted.acknowledged.store(acknowledged, Ordering::Relaxed);
                    noted.moves.store(moves, Ordering::Relaxed);
                }
            }
        });
        Ok(Self {
            name,
            counts,
            program: Some(program),
            stop: Arc::default(),
            thread: Some(thread),
        })
    }

    /// One redis-cli after the other, as a shell script would.
    fn shell(address: &str) -> Self {
        let (counts, stop) = (
            Arc::new(Counts::default()),
            Arc::new(AtomicBool::new(false)),
        );
        let (noted, stopped) = (counts.clone(), stop.clone());
        let mut port = address.rsplit(':').next().unwrap_or_default().to_owned();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let said = redis_cli(&["-p", &port, "INCR", "redis-cli"], "");
                let said = said.expect("redis-cli runs");
                match said.trim().strip_prefix("REDIRECT ") {
                    Some(place) => {
                        port = place.rsplit(':').next().unwrap_or_default().to_owned();
                        noted.moves.fetch_add(1, Ordering::Relaxed);
                    }
                    None => {
                        let count: u64 = said.trim().parse().expect("a number");
                        noted.acknowledged.store(count, Ordering::Relaxed);
                    }
                }
            }
        });
        Self {
            name: "redis-cli",
            counts,
            program: None,
            stop,
            thread: Some(thread),
        }
    }

    /// Ends it; whether it was content.
    pub(crate) fn end(&mut self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        let content = match &mut self.program {
            None => true,
            Some(program) => {
                drop(program.stdin.take());
                program.wait().is_ok_and(|status| status.success())
            }
        };
        let thread = self.thread.take();
        content && thread.is_some_and(|thread| thread.join().is_ok())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(program) = &mut self.program {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}
