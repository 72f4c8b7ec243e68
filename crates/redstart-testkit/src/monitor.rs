//! MONITOR, to count the commands that reach a server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::{Server, unique_namespace, wait_until};

/// One command, as the server ran it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// Name and arguments. Bytes that are not printable are escaped as MONITOR does.
    pub words: Vec<String>,
    /// The client's address; `lua` for what a script called.
    pub client: String,
}

impl Seen {
    /// The command's name in upper case.
    pub fn name(&self) -> String {
        self.words
            .first()
            .map(|word| word.to_ascii_uppercase())
            .unwrap_or_default()
    }

    /// Whether a script called it. Such a command costs no round trip.
    pub fn is_from_script(&self) -> bool {
        self.client == "lua"
    }

    /// Whether any argument contains `text`, such as a namespace.
    pub fn mentions(&self, text: &str) -> bool {
        self.words.iter().any(|word| word.contains(text))
    }
}

/// A MONITOR connection that collects every command a server runs.
///
/// It slows the server down, so it is for counting, not for measuring.
///
/// ```no_run
/// # async fn f() -> anyhow::Result<()> {
/// use redstart_testkit::{Kind, MonitorTap, Server};
///
/// let server = Server::builder(Kind::Redis).start().await?;
/// let tap = MonitorTap::start(&server).await?;
/// server.command(&["SET", "k", "v"]).await?;
/// assert_eq!(tap.round_trips("k").await?.len(), 1);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MonitorTap<'a> {
    server: &'a Server,
    seen: Arc<Mutex<Vec<Seen>>>,
    reader: JoinHandle<()>,
}

impl<'a> MonitorTap<'a> {
    /// Starts to collect. Every command that is sent after this returns will be seen.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached or refuses MONITOR.
    pub async fn start(server: &'a Server) -> Result<Self> {
        let mut stream = BufReader::new(UnixStream::connect(server.socket()).await?);
        let mut line = String::new();
        if let Some((user, password)) = server.credentials() {
            let auth = format!("AUTH {user} {password}\r\n");
            stream.get_mut().write_all(auth.as_bytes()).await?;
            stream.read_line(&mut line).await?;
            ensure!(
                line.starts_with("+OK"),
                "AUTH was refused: {}",
                line.trim_end()
            );
            line.clear();
        }
        stream.get_mut().write_all(b"MONITOR\r\n").await?;
        stream.read_line(&mut line).await?;
        ensure!(
            line.starts_with("+OK"),
            "MONITOR was refused: {}",
            line.trim_end()
        );
        let seen = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&seen);
        let reader = tokio::spawn(async move {
            let mut lines = stream.lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(command) = parse(&line) {
                    collected
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(command);
                }
            }
        });
        Ok(Self {
            server,
            seen,
            reader,
        })
    }

    /// Everything the server ran until now, in order, including the handshakes of the kit.
    ///
    /// It waits for a marker that it sends through the server, so nothing that was answered before
    /// this call is missing.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached.
    pub async fn commands(&self) -> Result<Vec<Seen>> {
        let marker = unique_namespace("monitor-marker");
        self.server.command(&["ECHO", &marker]).await?;
        wait_until(
            "MONITOR to show a marker",
            Duration::from_secs(30),
            async || {
                let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                let end = seen.iter().position(|command| command.mentions(&marker))?;
                Some(seen[..end].to_vec())
            },
        )
        .await
        .map(|mut commands| {
            commands.retain(|command| !command.mentions("monitor-marker-"));
            commands
        })
        .context("a MONITOR connection fell silent")
    }

    /// The commands about `text` (a namespace, a key) that clients sent; not those that scripts
    /// called, which cost no round trip.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached.
    pub async fn round_trips(&self, text: &str) -> Result<Vec<Seen>> {
        let mut commands = self.commands().await?;
        commands.retain(|command| !command.is_from_script() && command.mentions(text));
        Ok(commands)
    }

    /// Forgets what was seen so far.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached.
    pub async fn clear(&self) -> Result<()> {
        self.commands().await?;
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        Ok(())
    }
}

impl Drop for MonitorTap<'_> {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// `+1700000000.123456 [0 127.0.0.1:5000] "SET" "k" "v"`
fn parse(line: &str) -> Option<Seen> {
    let (_, rest) = line.split_once('[')?;
    let (origin, rest) = rest.split_once(']')?;
    let (_database, client) = origin.split_once(' ')?;
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut escaped = false;
    for c in rest.chars() {
        match (&mut word, c) {
            (Some(text), _) if escaped => {
                if !matches!(c, '"' | '\\') {
                    text.push('\\');
                }
                text.push(c);
                escaped = false;
            }
            (Some(_), '\\') => escaped = true,
            (Some(text), '"') => {
                words.push(std::mem::take(text));
                word = None;
            }
            (Some(text), _) => text.push(c),
            (None, '"') => word = Some(String::new()),
            (None, _) => {}
        }
    }
    Some(Seen {
        words,
        client: client.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_into_its_words() {
        let seen = parse(r#"+1.5 [0 127.0.0.1:1] "SET" "a \"b\" [c]" "\x00\n\\""#).unwrap();
        assert_eq!(seen.words, ["SET", r#"a "b" [c]"#, r"\x00\n\"]);
        assert!(!seen.is_from_script());
        assert!(parse(r#"+1.5 [3 lua] "GET" "k""#).unwrap().is_from_script());
    }
}
