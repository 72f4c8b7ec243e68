//! A server that answers what a test says, for what real servers do only now and then.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// What a [`Stub`] does about a command. Replies are in RESP.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Replies.
    Reply(String),
    /// Replies after a while; commands behind it on the same connection wait.
    Later(Duration, String),
    /// Says nothing.
    Never,
    /// Closes the connection.
    HangUp,
    /// Replies, closes all connections, and takes none until [`Stub::open`].
    Last(String),
}

impl Answer {
    /// `+OK`.
    pub fn ok() -> Self {
        Self::Reply("+OK\r\n".to_owned())
    }
}

/// A bulk string in RESP.
pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// A server on loopback whose answers a function gives. Its connections end with it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart_testkit::{Answer, Stub};
///
/// let stub = Stub::start(|command| match command[0].as_str() {
///     "GET" => Answer::Reply("-LOADING later\r\n".to_owned()),
///     _ => Answer::ok(),
/// })
/// .await?;
/// assert!(stub.heard().is_empty());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Stub {
    address: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

type Respond = Box<dyn Fn(&[String]) -> Answer + Send + Sync>;

struct State {
    respond: Respond,
    heard: Mutex<Vec<Vec<String>>>,
    /// Connections that have subscribed to something.
    listeners: Mutex<Vec<mpsc::UnboundedSender<String>>>,
    /// `false` while connections are closed as soon as they are made.
    open: watch::Sender<bool>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl Stub {
    /// Begins to listen. The function gets each command with its arguments, the name in upper case.
    ///
    /// # Errors
    ///
    /// If no port can be had.
    pub async fn start(
        respond: impl Fn(&[String]) -> Answer + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let state = Arc::new(State {
            respond: Box::new(respond),
            heard: Mutex::default(),
            listeners: Mutex::default(),
            open: watch::Sender::new(true),
        });
        let task = tokio::spawn(accept(listener, state.clone()));
        Ok(Self {
            address,
            state,
            task,
        })
    }

    /// `host:port`.
    pub fn addr(&self) -> &str {
        &self.address
    }

    /// Where it is, as a server.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// All commands so far.
    pub fn heard(&self) -> Vec<Vec<String>> {
        lock(&self.state.heard).clone()
    }

    /// How often a command with this name came.
    pub fn count(&self, name: &str) -> usize {
        let heard = lock(&self.state.heard);
        heard.iter().filter(|command| command[0] == name).count()
    }

    /// How many connections that are open have subscribed.
    pub fn listeners(&self) -> usize {
        let mut listeners = lock(&self.state.listeners);
        listeners.retain(|listener| !listener.is_closed());
        listeners.len()
    }

    /// Sends this to all connections that have subscribed.
    pub fn push(&self, text: &str) {
        for listener in &*lock(&self.state.listeners) {
            let _ = listener.send(text.to_owned());
        }
    }

    /// Closes all connections, and every one that is made until [`open`](Self::open).
    pub fn close(&self) {
        self.state.open.send_replace(false);
    }

    /// Takes connections again.
    pub fn open(&self) {
        self.state.open.send_replace(true);
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
        self.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        if *state.open.borrow() {
            tokio::spawn(serve(stream, state.clone()));
        }
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let mut open = state.open.subscribe();
    let (read, mut write) = stream.into_split();
    let (replies, mut to_send) = mpsc::unbounded_channel::<String>();
    let mut reading = tokio::spawn(respond(read, replies, state));
    loop {
        // What is to be sent comes first, also if nothing more is read.
        let text = tokio::select! {
            biased;
            text = to_send.recv() => text,
            _ = &mut reading => break,
            _ = open.wait_for(|open| !open) => None,
        };
        match text {
            Some(text) if write.write_all(text.as_bytes()).await.is_ok() => {}
            _ => break,
        }
    }
    reading.abort();
}

/// Answers commands until the connection ends or is to end.
async fn respond(
    mut read: OwnedReadHalf,
    replies: mpsc::UnboundedSender<String>,
    state: Arc<State>,
) {
    let (mut buffer, mut chunk) = (Vec::new(), vec![0; 16 * 1024]);
    while let Ok(got @ 1..) = read.read(&mut chunk).await {
        buffer.extend_from_slice(&chunk[..got]);
        while let Some(command) = next_command(&mut buffer) {
            lock(&state.heard).push(command.clone());
            if command[0].ends_with("SUBSCRIBE") {
                lock(&state.listeners).push(replies.clone());
            }
            let reply = match (state.respond)(&command) {
                Answer::Reply(reply) => reply,
                Answer::Later(after, reply) => {
                    tokio::time::sleep(after).await;
                    reply
                }
                Answer::Never => continue,
                Answer::HangUp => return,
                Answer::Last(reply) => {
                    let _ = replies.send(reply);
                    state.open.send_replace(false);
                    return;
                }
            };
            if replies.send(reply).is_err() {
                return;
            }
        }
    }
}

/// Takes a whole command off the front.
fn next_command(buffer: &mut Vec<u8>) -> Option<Vec<String>> {
    let mut at = 0;
    let mut number = |sign: u8| -> Option<(usize, usize)> {
        let rest = buffer.get(at..)?;
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let text = std::str::from_utf8(&rest[1..end]).ok()?;
        assert_eq!(rest[0], sign, "not a command");
        let value = text.parse().ok()?;
        at += end + 2;
        let start = at;
        if sign == b'$' {
            at += value + 2;
        }
        Some((value, start))
    };
    let (count, _) = number(b'*')?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        words.push(number(b'$')?);
    }
    let text = |(len, start): (usize, usize)| {
        let bytes = buffer.get(start..start + len)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let mut command: Vec<String> = words.into_iter().map(text).collect::<Option<_>>()?;
    if buffer.len() < at {
        return None;
    }
    buffer.drain(..at);
    command[0].make_ascii_uppercase();
    Some(command)
}
