//! `redstart serve` as a process: its configuration is read again while it runs, and a signal ends it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The token `test-token-of-16-and-more`.
const TOKEN: &str = "test-token-of-16-and-more";

struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    fn start(config: &Path) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_redstart"))
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(config)
            .env_remove("REDSTART_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = process.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready: http://").unwrap();
        Self {
            address: address.to_owned(),
            process,
        }
    }

    /// The status and the text of an answer.
    fn get(&self, path: &str, token: Option<&str>) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let token = token.map_or(String::new(), |token| {
            format!("authorization: Bearer {token}\r\n")
        });
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let kill = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(kill.success());
    }

    /// Waits until the configuration has this limiter; nobody gets in without a token meanwhile.
    fn until_limiter(&self, name: &str) {
        let ends = Instant::now() + PATIENCE;
        loop {
            assert_eq!(self.get("/v1/limiters", None).0, 401);
            let (status, text) = self.get("/v1/limiters", Some(TOKEN));
            if status == 200 && text.contains(name) {
                return;
            }
            assert!(Instant::now() < ends, "{name} is not in {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn hash() -> String {
    let mut process = Command::new(env!("CARGO_BIN_EXE_redstart"))
        .args(["serve", "--hash-token"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    writeln!(input, "{TOKEN}").unwrap();
    drop(input);
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_configuration_is_read_again_and_never_switches_authentication_off() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redstart.toml");
    let hash = hash();
    let write = |limiter: &str| {
        let text = format!(
            "[limiter.{limiter}]\nquota = \"1/s\"\n[[token]]\nname = \"t\"\nsha256 = \"{hash}\"\nrole = \"read\"\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    write("first");
    let mut serving = Serving::start(&file);
    serving.until_limiter("first");
    // By looking at the file, and by a signal.
    write("second");
    serving.until_limiter("second");
    write("third");
    serving.signal("-HUP");
    serving.until_limiter("third");
    // A file that is cut short, or broken, changes nothing.
    for broken in ["", "[limiter.third]\nquota = \"1/s\"\n", "[[token]\n"] {
        std::fs::write(&file, broken).unwrap();
        serving.signal("-HUP");
        for _ in 0..10 {
            serving.until_limiter("third");
        }
    }
    write("fourth");
    serving.until_limiter("fourth");
    serving.signal("-TERM");
    assert!(serving.process.wait().unwrap().success());
}
