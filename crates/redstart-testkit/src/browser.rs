//! A real Chromium, driven over WebDriver.

use std::{net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
};

use crate::{eventually, find};

/// Whatever the machine does meanwhile, a page comes within this.
const PATIENCE: Duration = Duration::from_secs(90);

/// One browser with one window. It ends with the value.
pub struct Browser {
    driver: SocketAddr,
    session: String,
    axe: String,
    shots: PathBuf,
    _process: Child,
}

impl Browser {
    /// Starts chromedriver and a window. Screenshots go to `REDSTART_SCREENSHOTS`, or to `shots`.
    ///
    /// # Errors
    ///
    /// If chromedriver, Chromium or axe-core is missing, which `cargo xtask servers` installs, or does not start.
    pub async fn start(shots: PathBuf) -> Result<Self> {
        let (driver, axe) = find::browser()?;
        let mut process = Command::new(driver)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(process.stdout.take().context("no output")?).lines();
        let port: u16 = loop {
            let line = lines.next_line().await?.context("chromedriver ended")?;
            // Its first line names the port that was asked for, which is 0.
            if let Some((_, port)) = line.split_once("successfully on port ") {
                break port.trim_end_matches('.').parse()?;
            }
        };
        let driver = SocketAddr::from(([127, 0, 0, 1], port));
        let options = json!({"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]});
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"performance": "ALL"},
        }}});
        let (_, answer) = request(driver, "POST", "/session", Some(&wanted)).await?;
        let session = answer["value"]["sessionId"]
            .as_str()
            .with_context(|| format!("no session: {answer}"))?
            .to_owned();
        let shots = std::env::var_os("REDSTART_SCREENSHOTS").map_or(shots, PathBuf::from);
        std::fs::create_dir_all(&shots)?;
        Ok(Self {
            driver,
            session,
            axe: std::fs::read_to_string(axe)?,
            shots,
            _process: process,
        })
    }

    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let path = format!("/session/{}{path}", self.session);
        let (status, answer) = request(self.driver, method, &path, body).await?;
        let value = answer["value"].clone();
        ensure!(status == 200, "{path}: {value}");
        Ok(value)
    }

    async fn call(&self, path: &str, body: Value) -> Result<Value> {
        self.send("POST", &format!("/{path}"), Some(&body)).await
    }

    /// Opens a page.
    ///
    /// # Errors
    ///
    /// Those of the browser.
    pub async fn open(&self, url: &str) -> Result<()> {
        self.call("url", json!({"url": url})).await.map(drop)
    }

    /// Runs a script in the page; what it returns.
    ///
    /// # Errors
    ///
    /// Those of the script.
    pub async fn run(&self, script: &str) -> Result<Value> {
        let script = json!({"script": script, "args": []});
        self.call("execute/sync", script).await
    }

    /// Sends a command of the DevTools protocol.
    ///
    /// # Errors
    ///
    /// Those of the command.
    pub async fn tool(&self, command: &str, params: Value) -> Result<Value> {
        let command = json!({"cmd": command, "params": params});
        self.call("goog/cdp/execute", command).await
    }

    /// Sets the width of the window in pixels and the colour scheme, `light` or `dark`.
    ///
    /// # Errors
    ///
    /// Those of the browser.
    pub async fn look(&self, width: u32, theme: &str) -> Result<()> {
        self.tool(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}),
        )
        .await?;
        self.tool(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": theme}]}),
        )
        .await?;
        Ok(())
    }

    /// Clicks an element. A live part may be replaced between finding it and clicking.
    ///
    /// # Errors
    ///
    /// If there is no such element, or it cannot be clicked.
    pub async fn click(&self, css: &str) -> Result<()> {
        let ends = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.try_click(css).await {
                Err(error)
                    if error.to_string().contains("stale element")
                        && tokio::time::Instant::now() < ends => {}
                other => return other,
            }
        }
    }

    async fn try_click(&self, css: &str) -> Result<()> {
        let found = self
            .call("element", json!({"using": "css selector", "value": css}))
            .await?;
        let id = found
            .as_object()
            .and_then(|map| map.values().next())
            .and_then(Value::as_str)
            .context("no element")?
            .to_owned();
        self.call(&format!("element/{id}/click"), json!({}))
            .await
            .map(drop)
    }

    /// The text of the page, as it is shown.
    ///
    /// # Errors
    ///
    /// Those of the browser.
    pub async fn text(&self) -> Result<String> {
        let text = self.run("return document.body.innerText").await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// The HTML of the page.
    ///
    /// # Errors
    ///
    /// Those of the browser.
    pub async fn source(&self) -> Result<String> {
        let source = self.send("GET", "/source", None).await?;
        Ok(source.as_str().unwrap_or_default().to_owned())
    }

    /// Waits for a page with this text.
    ///
    /// # Errors
    ///
    /// If it does not come; the message has the text that is there.
    pub async fn until(&self, text: &str) -> Result<()> {
        let seen = eventually(
            PATIENCE,
            async || matches!(self.text().await, Ok(page) if page.contains(text)),
        );
        ensure!(seen.await, "no {text:?} in {}", self.text().await?);
        Ok(())
    }

    /// Writes a picture of the window.
    ///
    /// # Errors
    ///
    /// Those of the browser and of the file system.
    pub async fn shoot(&self, name: &str) -> Result<()> {
        let picture = self.send("GET", "/screenshot", None).await?;
        let picture = base64::engine::general_purpose::STANDARD
            .decode(picture.as_str().context("no picture")?)?;
        std::fs::write(self.shots.join(format!("{name}.png")), picture)?;
        Ok(())
    }

    /// What axe-core finds on the page, and whether it is wider than the window.
    ///
    /// # Errors
    ///
    /// If axe-core does not run.
    pub async fn faults(&self) -> Result<Vec<String>> {
        self.run(&self.axe).await?;
        let script = "const done = arguments[arguments.length - 1]; \
            axe.run(document, {resultTypes: ['violations']}).then((r) => done(r.violations.map((v) => \
            v.id + ': ' + v.help + ' ' + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(' | '))));";
        let found = self
            .call("execute/async", json!({"script": script, "args": []}))
            .await?;
        let mut faults: Vec<String> = found
            .as_array()
            .context("axe did not answer")?
            .iter()
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect();
        let wide = "return document.documentElement.scrollWidth > innerWidth";
        if self.run(wide).await? == true {
            faults.push("the page is wider than the window".to_owned());
        }
        Ok(faults)
    }

    /// The addresses of everything that was requested since the last call, pages included.
    ///
    /// # Errors
    ///
    /// Those of the browser.
    pub async fn requests(&self) -> Result<Vec<String>> {
        let log = self.call("se/log", json!({"type": "performance"})).await?;
        let mut urls = Vec::new();
        for entry in log.as_array().context("no log")? {
            let message = entry["message"].as_str().unwrap_or_default();
            let message: Value = serde_json::from_str(message)?;
            let message = &message["message"];
            if message["method"] == "Network.requestWillBeSent"
                && let Some(url) = message["params"]["request"]["url"].as_str()
            {
                urls.push(url.to_owned());
            }
        }
        Ok(urls)
    }

    /// Closes the window.
    ///
    /// # Errors
    ///
    /// Those of the browser.
    pub async fn close(self) -> Result<()> {
        self.send("DELETE", "", None).await.map(drop)
    }
}

/// One request on a connection of its own: the status and the JSON of the answer.
async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<(u16, Value)> {
    let exchange = async {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = BufReader::new(TcpStream::connect(address).await?);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body.as_bytes());
        stream.get_mut().write_all(&bytes).await?;
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let status = line.split(' ').nth(1).context("no status")?.parse()?;
        let mut length = 0;
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).await?;
        Ok((
            status,
            serde_json::from_slice(&answer).unwrap_or(Value::Null),
        ))
    };
    tokio::time::timeout(PATIENCE, exchange)
        .await
        .with_context(|| format!("{method} {path} was not answered"))?
}
