//! A small HTTP client: it sends exactly what a test says, also what no well-behaved client would.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

/// One keep-alive connection.
pub(crate) struct Client {
    address: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
    headers: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The last word of a problem's type.
    pub(crate) fn problem(&self) -> String {
        let kind = self.json()["type"].as_str().unwrap_or_default().to_owned();
        kind.trim_start_matches("urn:redstart:").to_owned()
    }
}

/// Whatever the machine does meanwhile, an answer comes within this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connection: None,
            headers: Vec::new(),
        }
    }

    /// Sends this header with every request.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Answer> {
        self.send("GET", path, &[], b"").await
    }

    pub(crate) async fn post(&mut self, path: &str, body: Value) -> Result<Answer> {
        self.json("POST", path, body).await
    }

    pub(crate) async fn json(&mut self, method: &str, path: &str, body: Value) -> Result<Answer> {
        let body = body.to_string();
        let kind = [("content-type", "application/json")];
        self.send(method, path, &kind, body.as_bytes()).await
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer> {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head += &format!("host: {}\r\n", self.address);
        }
        let own = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(headers.iter().copied()) {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", body.len());
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        tokio::time::timeout(PATIENCE, self.exchange(&bytes, method == "HEAD"))
            .await
            .with_context(|| format!("{method} {path} was not answered"))?
    }

    /// Sends bytes as they are, and reads one answer. A connection that the server has closed is opened again.
    pub(crate) async fn exchange(&mut self, bytes: &[u8], head: bool) -> Result<Answer> {
        let reused = self.connection.is_some();
        match self.try_exchange(bytes, head).await {
            Err(_) if reused => {
                self.connection = None;
                self.try_exchange(bytes, head).await
            }
            other => other,
        }
    }

    async fn try_exchange(&mut self, bytes: &[u8], head: bool) -> Result<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(TcpStream::connect(self.address).await?),
        };
        // A server that refuses early need not read it all.
        let _ = connection.get_mut().write_all(bytes).await;
        let answer = read(&mut connection, head).await?;
        if answer.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(answer)
    }

    /// Opens an event stream and returns its lines.
    pub(crate) async fn events(&mut self, path: &str) -> Result<Events> {
        let stream = TcpStream::connect(self.address).await?;
        let mut lines = BufReader::new(stream);
        let mut head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n", self.address);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        lines
            .get_mut()
            .write_all(format!("{head}\r\n").as_bytes())
            .await?;
        let (status, _) = read_head(&mut lines).await?;
        if status != 200 {
            bail!("the stream was refused with {status}");
        }
        Ok(Events(lines))
    }
}

/// An open event stream.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    /// The next line that begins with `data: ` or `event: `; `None` at the end.
    pub(crate) async fn line(&mut self) -> Result<Option<String>> {
        loop {
            let mut line = String::new();
            let read = self.0.read_line(&mut line);
            if tokio::time::timeout(PATIENCE, read).await?? == 0 {
                return Ok(None);
            }
            if line.starts_with("data: ") || line.starts_with("event: ") {
                return Ok(Some(line.trim_end().to_owned()));
            }
        }
    }
}

async fn read_head(input: &mut BufReader<TcpStream>) -> Result<(u16, Vec<(String, String)>)> {
    let mut line = String::new();
    if input.read_line(&mut line).await? == 0 {
        bail!("the connection was closed");
    }
    let status = line.split(' ').nth(1).context("no status")?.parse()?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            return Ok((status, headers));
        };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
}

async fn read(input: &mut BufReader<TcpStream>, head: bool) -> Result<Answer> {
    let (status, headers) = read_head(input).await?;
    let mut answer = Answer {
        status,
        headers,
        body: Vec::new(),
    };
    if head {
        return Ok(answer);
    }
    if answer.header("transfer-encoding") == Some("chunked") {
        loop {
            let mut line = String::new();
            input.read_line(&mut line).await?;
            let size = usize::from_str_radix(line.trim(), 16)?;
            let mut chunk = vec![0; size + 2];
            input.read_exact(&mut chunk).await?;
            if size == 0 {
                return Ok(answer);
            }
            answer.body.extend_from_slice(&chunk[..size]);
        }
    }
    let length = answer.header("content-length").unwrap_or("0").parse()?;
    answer.body.resize(length, 0);
    input.read_exact(&mut answer.body).await?;
    Ok(answer)
}
