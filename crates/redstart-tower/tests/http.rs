//! Over real HTTP: clients that hang up, and browsers whose requests race each other.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use axum::{Router, extract::Request, middleware, response::IntoResponse as _, routing::post};
use redstart::{
    Store,
    resilience::Idempotency,
    sessions::{Patched, Sessions},
};
use redstart_testkit::{Backend, eventually, figure, matrix, scale};
use redstart_tower::{CookieLayer, CookieSession, IdempotencyLayer, Problem, Subject};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
    task::JoinSet,
};

const LONG: Duration = Duration::from_secs(60);

/// A server that stops with the test.
async fn serve(app: Router) -> Result<(SocketAddr, tokio_util::task::AbortOnDropHandle<()>)> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Ok((address, tokio_util::task::AbortOnDropHandle::new(server)))
}

/// Sends a request; the response is read from what is returned, or never.
async fn send(server: SocketAddr, path: &str, headers: &str) -> Result<TcpStream> {
    let mut socket = TcpStream::connect(server).await?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n"
    );
    socket.write_all(request.as_bytes()).await?;
    Ok(socket)
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    async fn read(mut socket: TcpStream) -> Result<Self> {
        let mut text = String::new();
        socket.read_to_string(&mut text).await?;
        let (head, body) = text.split_once("\r\n\r\n").context("a response")?;
        let status = head.split(' ').nth(1).context("a status")?.parse()?;
        Ok(Self {
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        })
    }

    /// A response of a connection that stays open.
    async fn of(socket: &mut TcpStream) -> Result<Self> {
        let mut bytes = Vec::new();
        loop {
            let read = socket.read_buf(&mut bytes).await?;
            ensure!(read > 0, "the server hung up");
            let text = std::str::from_utf8(&bytes)?;
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() == length.context("a length")?.parse::<usize>()? {
                let status = head.split(' ').nth(1).context("a status")?.parse()?;
                let (head, body) = (head.to_owned(), body.to_owned());
                return Ok(Self { status, head, body });
            }
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name))
    }

    fn removes_the_cookie(&self) -> bool {
        self.header("set-cookie: ")
            .is_some_and(|set| set.contains("Max-Age=0"))
    }

    fn is_replayed(&self) -> bool {
        self.head.contains("idempotency-replayed: true")
    }
}

/// A handler that charges and has several await points, at one of which it stops.
#[derive(Default)]
struct Charging {
    charged: AtomicUsize,
    stop_at: AtomicUsize,
    stopped: AtomicBool,
    gone_on: Notify,
    hung_up: AtomicUsize,
}

const AWAITS: usize = 6;

impl Charging {
    async fn charge(&self) -> String {
        for point in 0..AWAITS {
            if point == AWAITS / 2 {
                self.charged.fetch_add(1, Ordering::SeqCst);
            }
            // Only the first request that comes here stops.
            let go_on = usize::MAX;
            let stop =
                self.stop_at
                    .compare_exchange(point, go_on, Ordering::SeqCst, Ordering::SeqCst);
            match stop {
                Ok(_) => {
                    self.stopped.store(true, Ordering::SeqCst);
                    self.gone_on.notified().await;
                }
                Err(_) => tokio::task::yield_now().await,
            }
        }
        format!("charge {}", self.charged.load(Ordering::SeqCst))
    }
}

/// Counts the requests whose future was dropped before it had an answer.
struct HangUp(Option<Arc<Charging>>);

impl Drop for HangUp {
    fn drop(&mut self) {
        if let Some(charging) = &self.0 {
            charging.hung_up.fetch_add(1, Ordering::SeqCst);
        }
    }
}

matrix! {
    async fn a_client_that_hangs_up_at_any_await_of_the_handler_is_charged_once(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let charging = Arc::new(Charging::default());
        let (handler, watch) = (charging.clone(), charging.clone());
        let app = Router::new()
            .route("/pay", post(async move || handler.charge().await))
            .layer(IdempotencyLayer::new(keys, Subject::everyone()))
            .layer(middleware::from_fn(move |request: Request, next: middleware::Next| {
                let hang_up = HangUp(Some(watch.clone()));
                async move {
                    let mut hang_up = hang_up;
                    let response = next.run(request).await;
                    hang_up.0 = None;
                    response.into_response()
                }
            }));
        let (server, _running) = serve(app).await?;
        for point in 0..AWAITS {
            charging.stop_at.store(point, Ordering::SeqCst);
            charging.stopped.store(false, Ordering::SeqCst);
            let headers = format!("idempotency-key: \"order-{point}\"\r\n");
            let socket = send(server, "/pay", &headers).await?;
            ensure!(eventually(LONG, async || charging.stopped.load(Ordering::SeqCst)).await, "the handler was not called");
            drop(socket);
            let noticed = eventually(LONG, async || charging.hung_up.load(Ordering::SeqCst) == point + 1);
            ensure!(noticed.await, "the server did not notice that the client hung up");
            // The client tries again while the handler is still running, and afterwards.
            let busy = Answer::read(send(server, "/pay", &headers).await?).await?;
            assert_eq!(busy.status, 409, "the key was freed at await point {point}: {}", busy.body);
            charging.gone_on.notify_one();
            let replayed = eventually(LONG, async || {
                let answer = Answer::read(send(server, "/pay", &headers).await.unwrap()).await.unwrap();
                assert!(answer.status == 409 || answer.is_replayed(), "{} {}", answer.status, answer.body);
                answer.status == 200 && answer.body == format!("charge {}", point + 1)
            });
            ensure!(replayed.await, "the work was stopped at await point {point}");
            assert_eq!(charging.charged.load(Ordering::SeqCst), point + 1, "charged twice at await point {point}");
        }
        Ok(())
    }

    async fn requests_of_one_browser_race_and_none_logs_out_another(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let sessions = Sessions::new(&store, backend.namespace(), "web")?;
        let found = |user: Option<String>| user.unwrap_or_else(|| "nobody".to_owned());
        let app = Router::new()
            .route("/login", post(|session: CookieSession, user: String| async move { Ok::<_, Problem>(session.login(&user, &()).await?) }))
            .route("/me", post(move |session: CookieSession| async move { Ok::<_, Problem>(found(session.user().await?)) }))
            .route("/patch", post(move |session: CookieSession| async move {
                let patched = session.patch(&json!({ "n": 1 })).await?;
                Ok::<_, Problem>(found(if patched == Patched::Gone { None } else { session.user().await? }))
            }))
            .route("/rotate", post(move |session: CookieSession| async move {
                let rotated = session.rotate().await?;
                Ok::<_, Problem>(found(if rotated { session.user().await? } else { None }))
            }))
            .route("/logout", post(|session: CookieSession| async move { Ok::<_, Problem>(session.logout().await?) }))
            .layer(CookieLayer::new(sessions.clone()));
        let (server, _running) = serve(app).await?;

        // Three users log in and out again and again; a fourth stays logged in all the time.
        let target = scale(320, "racing requests");
        let racing = Arc::new(Racing::default());
        let mut tasks = JoinSet::<Result<()>>::new();
        let wires = Wires::default();
        for task in 0..3 {
            let (racing, sessions, wires) = (racing.clone(), sessions.clone(), wires.clone());
            tasks.spawn(async move {
                let user = format!("ann-{task}");
                while racing.requests() < target {
                    let browser = Browser::new(server, &wires, &racing);
                    browser.race(&user, &sessions).await?;
                }
                Ok(())
            });
        }
        let (wires, racing_too) = (wires.clone(), racing.clone());
        tasks.spawn(async move {
            let browser = Browser::new(server, &wires, &racing_too);
            browser.login("bob").await?;
            while racing_too.requests() < target {
                for path in ["/rotate", "/patch", "/me"] {
                    browser.finds(path, "bob").await?;
                }
            }
            Ok(())
        });
        for ended in tasks.join_all().await {
            ended?;
        }
        assert_eq!(sessions.list("bob").await?.len(), 1);
        let [rotations, patches, logouts] = racing.counts();
        assert!(rotations > logouts && patches > logouts && logouts > 0, "too little raced");
        let all = rotations + patches + logouts;
        figure(format!("{}: {all} racing requests ({rotations} rotations, {patches} patches, {logouts} logouts), 0 logged out by another, 0 revived", backend.test()));
        Ok(())
    }
}

/// How many requests raced.
#[derive(Default)]
struct Racing([AtomicU64; 3]);

impl Racing {
    fn note(&self, path: &str) {
        let at = ["/rotate", "/patch", "/logout"]
            .iter()
            .position(|known| *known == path);
        if let Some(at) = at {
            self.0[at].fetch_add(1, Ordering::SeqCst);
        }
    }

    fn counts(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.0[at].load(Ordering::SeqCst))
    }

    fn requests(&self) -> u64 {
        self.counts().iter().sum()
    }
}

/// Open connections that nobody uses just now.
type Wires = Arc<Mutex<Vec<TcpStream>>>;

/// A browser: all its requests share one cookie, and the response that comes last decides it.
#[derive(Clone)]
struct Browser {
    server: SocketAddr,
    jar: Arc<Mutex<Option<String>>>,
    wires: Wires,
    racing: Arc<Racing>,
}

impl Browser {
    fn new(server: SocketAddr, wires: &Wires, racing: &Arc<Racing>) -> Self {
        Self {
            server,
            jar: Arc::default(),
            wires: wires.clone(),
            racing: racing.clone(),
        }
    }

    async fn send(&self, path: &str) -> Result<Answer> {
        self.send_with(path, "").await
    }

    async fn send_with(&self, path: &str, body: &str) -> Result<Answer> {
        let cookie = self.jar.lock().unwrap().clone();
        let cookie = cookie.map_or_else(String::new, |cookie| format!("cookie: {cookie}\r\n"));
        let idle = self.wires.lock().unwrap().pop();
        let mut socket = match idle {
            Some(socket) => socket,
            None => TcpStream::connect(self.server).await?,
        };
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: shop\r\ncontent-length: {length}\r\n{cookie}\r\n{body}"
        );
        socket.write_all(request.as_bytes()).await?;
        let answer = Answer::of(&mut socket).await?;
        self.wires.lock().unwrap().push(socket);
        if let Some(set) = answer.header("set-cookie: ") {
            let pair = set.split(';').next().context("a cookie")?.to_owned();
            *self.jar.lock().unwrap() = (!set.contains("Max-Age=0")).then_some(pair);
        }
        self.racing.note(path);
        Ok(answer)
    }

    async fn login(&self, user: &str) -> Result<()> {
        let answer = self.send_with("/login", user).await?;
        ensure!(answer.status == 200, "login: {}", answer.status);
        Ok(())
    }

    /// The request finds the session, and leaves the cookie in place.
    async fn finds(&self, path: &str, user: &str) -> Result<()> {
        let answer = self.send(path).await?;
        let (status, body) = (answer.status, &answer.body);
        ensure!(
            status == 200 && body == user,
            "{path} of {user} found {status} {body:?}"
        );
        ensure!(
            !answer.removes_the_cookie(),
            "{path} removed the cookie of {user}"
        );
        Ok(())
    }

    /// From a login to a logout, with requests that race each other all the time.
    async fn race(&self, user: &str, sessions: &Sessions) -> Result<()> {
        self.login(user).await?;
        // Four tasks load, patch and rotate: each of their requests finds the session.
        let mut tasks = JoinSet::new();
        for task in 0..4 {
            let (browser, user) = (self.clone(), user.to_owned());
            tasks.spawn(async move {
                for n in 0..8 {
                    let path = ["/me", "/patch", "/rotate", "/patch"][(task + n) % 4];
                    browser.finds(path, &user).await?;
                }
                anyhow::Ok(())
            });
        }
        for ended in tasks.join_all().await {
            ended?;
        }
        self.finds("/me", user)
            .await
            .context("the cookie opens nothing")?;
        // One more time, with a logout among them: nothing brings the session back.
        let mut tasks = JoinSet::new();
        for path in ["/rotate", "/patch", "/logout", "/patch", "/rotate", "/me"] {
            let browser = self.clone();
            tasks.spawn(async move {
                let answer = browser.send(path).await?;
                ensure!(answer.status == 200, "{path}: {}", answer.status);
                ensure!(
                    path == "/logout" || !answer.removes_the_cookie(),
                    "{path} removed the cookie"
                );
                Ok(())
            });
        }
        for ended in tasks.join_all().await {
            ended?;
        }
        let found = self.send("/me").await?.body;
        ensure!(
            found == "nobody",
            "a request brought the session of {user} back"
        );
        let left = sessions.list(user).await?.len();
        ensure!(
            left == 0,
            "a request brought {left} sessions of {user} back"
        );
        Ok(())
    }
}
