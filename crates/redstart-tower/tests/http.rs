//! Over real HTTP: clients that hang up, and browsers whose requests race each other.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
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
            .route("/login", post(|session: CookieSession| async move { Ok::<_, Problem>(session.login("ann", &()).await?) }))
            .route("/me", post(move |session: CookieSession| async move { Ok::<_, Problem>(found(session.user().await?)) }))
            .route("/patch", post(|session: CookieSession| async move {
                let patched = session.patch(&json!({ "n": 1 })).await?;
                Ok::<_, Problem>(if patched == Patched::Gone { "nobody" } else { "ann" })
            }))
            .route("/rotate", post(|session: CookieSession| async move {
                Ok::<_, Problem>(if session.rotate().await? { "ann" } else { "nobody" })
            }))
            .route("/logout", post(|session: CookieSession| async move { Ok::<_, Problem>(session.logout().await?) }))
            .layer(CookieLayer::new(sessions.clone()));
        let (server, _running) = serve(app).await?;

        let requests = scale(320, "racing requests");
        let (mut sent, mut rotations, mut logouts) = (0, 0, 0);
        while sent < requests {
            let browser = Browser { server, jar: Arc::default(), rotations: Arc::default() };
            assert_eq!(browser.send("/login").await?.status, 200);
            // Four tasks load, patch and rotate: each of their requests finds the session.
            let mut tasks = JoinSet::new();
            for task in 0..4 {
                let browser = browser.clone();
                tasks.spawn(async move {
                    for n in 0..8 {
                        let path = ["/me", "/patch", "/rotate", "/me"][(task + n) % 4];
                        let answer = browser.send(path).await?;
                        ensure!(answer.status == 200 && answer.body == "ann", "{path} found {} {:?}", answer.status, answer.body);
                        ensure!(!answer.head.contains("max-age=0"), "{path} removed the cookie");
                    }
                    Ok(())
                });
            }
            for ended in tasks.join_all().await {
                ended?;
            }
            assert_eq!(browser.send("/me").await?.body, "ann", "the browser has a cookie that opens nothing");
            let mut tasks = JoinSet::new();
            // One more time, with a logout among them: nothing brings the session back.
            for path in ["/rotate", "/patch", "/logout", "/patch", "/rotate", "/me"] {
                let browser = browser.clone();
                tasks.spawn(async move {
                    let answer = browser.send(path).await?;
                    ensure!(answer.status == 200, "{path}: {}", answer.status);
                    ensure!(path == "/logout" || !answer.head.contains("max-age=0"), "{path} removed the cookie");
                    Ok(())
                });
            }
            for ended in tasks.join_all().await {
                ended?;
            }
            assert_eq!(browser.send("/me").await?.body, "nobody", "a request brought the session back");
            assert_eq!(sessions.list("ann").await?.len(), 0, "a request brought the session back");
            sent += 40;
            rotations += browser.rotations.load(Ordering::SeqCst);
            logouts += 1;
        }
        assert!(rotations >= logouts, "no rotation raced");
        figure(format!("{}: {sent} requests, {rotations} rotations, {logouts} logouts, 0 logged out by another, 0 revived", backend.test()));
        Ok(())
    }
}

/// A browser: all its requests share one cookie, and the response that comes last decides it.
#[derive(Clone)]
struct Browser {
    server: SocketAddr,
    jar: Arc<Mutex<Option<String>>>,
    rotations: Arc<AtomicUsize>,
}

impl Browser {
    async fn send(&self, path: &str) -> Result<Answer> {
        let cookie = self.jar.lock().unwrap().clone();
        let headers = cookie.map_or_else(String::new, |cookie| format!("cookie: {cookie}\r\n"));
        let mut socket = send(self.server, path, &headers).await?;
        let mut text = String::new();
        socket.read_to_string(&mut text).await?;
        let (head, body) = text.split_once("\r\n\r\n").context("a response")?;
        let set = head
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        if let Some(set) = set {
            let pair = set.split(';').next().context("a cookie")?.to_owned();
            *self.jar.lock().unwrap() = (!set.contains("Max-Age=0")).then_some(pair);
            self.rotations
                .fetch_add(usize::from(path == "/rotate"), Ordering::SeqCst);
        }
        let status = head.split(' ').nth(1).context("a status")?.parse()?;
        Ok(Answer {
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        })
    }
}
