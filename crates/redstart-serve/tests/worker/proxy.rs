//! A proxy between workers and the service that answers wrongly or not at all, as a test says.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// What a client gets instead of the service's answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A proxy's own page.
    Page,
    /// JSON, but no object.
    Null,
    /// 200 with something that is not the service's.
    Foreign,
    /// A body that is shorter than its head says.
    Cut,
    /// The connection is closed without a word.
    Closed,
}

impl Fault {
    fn answer(self) -> &'static str {
        match self {
            Self::Page => {
                "HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 24\r\n\r\n<html>bad gateway</html>"
            }
            Self::Null => {
                "HTTP/1.1 503 Busy\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\nnull"
            }
            Self::Foreign => "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nwelcome",
            Self::Cut => "HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{\"jobs\":",
            Self::Closed => "",
        }
    }
}

#[derive(Default)]
struct State {
    /// Faults of the next requests of each verb.
    faults: HashMap<String, Vec<Fault>>,
    /// How many requests of each verb got such an answer: the status, or 0 for a fault.
    answers: HashMap<(String, u16), usize>,
}

pub(crate) struct Proxy {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(service: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = shared.clone();
                // A client that goes away ends its connection with an error; that is not the test's.
                tokio::spawn(async move { drop(serve(stream, service, &state).await) });
            }
        });
        Ok(Self { url, state, task })
    }

    /// The next requests of this verb meet these faults, in this order.
    pub(crate) fn break_next(&self, verb: &str, faults: &[Fault]) {
        let mut state = self.state.lock().unwrap();
        let mut faults = faults.to_vec();
        faults.reverse();
        state.faults.insert(verb.to_owned(), faults);
    }

    /// How many requests of this verb got such a status, or met a fault for 0.
    pub(crate) fn answered(&self, verb: &str, status: u16) -> usize {
        let state = self.state.lock().unwrap();
        let found = state.answers.get(&(verb.to_owned(), status));
        found.copied().unwrap_or(0)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: TcpStream, service: SocketAddr, state: &Mutex<State>) -> Result<()> {
    let mut client = BufReader::new(client);
    let mut upstream = None;
    loop {
        let Some((request, target)) = message(&mut client).await? else {
            return Ok(());
        };
        let path = target.split('?').next().unwrap_or_default();
        let verb = path.rsplit(':').next().unwrap_or_default().to_owned();
        let fault = {
            let mut state = state.lock().unwrap();
            let fault = state.faults.get_mut(&verb).and_then(Vec::pop);
            if fault.is_some() {
                *state.answers.entry((verb.clone(), 0)).or_default() += 1;
            }
            fault
        };
        if let Some(fault) = fault {
            client
                .get_mut()
                .write_all(fault.answer().as_bytes())
                .await?;
            match fault {
                Fault::Cut | Fault::Closed => return Ok(()),
                _ => continue,
            }
        }
        let connection = match &mut upstream {
            Some(connection) => connection,
            none => none.insert(BufReader::new(TcpStream::connect(service).await?)),
        };
        connection.get_mut().write_all(&request).await?;
        let (answer, status) = message(connection).await?.context("no answer")?;
        client.get_mut().write_all(&answer).await?;
        let mut state = state.lock().unwrap();
        *state.answers.entry((verb, status.parse()?)).or_default() += 1;
    }
}

/// One request or answer as it is, and the second word of its first line; `None` at the end.
async fn message(input: &mut BufReader<TcpStream>) -> Result<Option<(Vec<u8>, String)>> {
    let mut bytes = Vec::new();
    let mut length = 0;
    let mut second = String::new();
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(line.as_bytes());
        if second.is_empty() {
            second = line.split(' ').nth(1).unwrap_or_default().to_owned();
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let head = bytes.len();
    bytes.resize(head + length, 0);
    input.read_exact(&mut bytes[head..]).await?;
    Ok(Some((bytes, second)))
}
