//! Open pages that show the same thing are rendered once per second, however many they are.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::{
    call::Call,
    problem::Problem,
    reply::{Content, Reply},
    route::Route,
};

/// How long a rendered page is good for. Pages ask every two seconds.
const FRESH: Duration = Duration::from_secs(1);
/// Pages that are kept at most.
const MOST: usize = 1024;

/// The header that htmx sends with its requests. Loading a page, or returning to it after a change, does not send it.
const TICK: &str = "hx-request";

/// Who asks, by which address, and for what. Pages show commands with the address.
type Key = (String, String, String);

struct Page {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

/// When a page was asked for first, and the page as soon as it is made.
type Made = (Instant, Arc<OnceCell<Page>>);

/// The pages of the last second.
#[derive(Default)]
pub(crate) struct Rendered(Mutex<HashMap<Key, Made>>);

/// Whether the request is the tick of an open page.
pub(crate) fn is_tick(call: &Call, route: &Route) -> bool {
    !route.writes && route.doc.is_none() && call.headers.contains_key(TICK)
}

impl Rendered {
    /// The page as it was at most a second ago, or as `render` makes it; those who come meanwhile wait for it.
    pub(crate) async fn get(
        &self,
        key: Key,
        render: impl Future<Output = Result<Reply, Problem>>,
    ) -> Result<Reply, Problem> {
        let cell = self.cell(key);
        let made = cell.get_or_try_init(|| async {
            let reply = render.await.map_err(Ok)?;
            match reply.body {
                Content::Whole(body) => Ok(Page {
                    status: reply.status,
                    headers: reply.headers,
                    body,
                }),
                // What has no end cannot be kept.
                Content::Stream(_) => Err(Err(reply)),
            }
        });
        match made.await {
            Ok(page) => Ok(Reply {
                status: page.status,
                headers: page.headers.clone(),
                body: Content::Whole(page.body.clone()),
            }),
            Err(Ok(problem)) => Err(problem),
            Err(Err(stream)) => Ok(stream),
        }
    }

    /// Forgets all pages: what was rendered before a change must not be shown after it.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    pub(crate) fn key(call: &Call) -> Key {
        let page = format!("{}?{}", call.path, call.query.text());
        (call.identity.id(), call.origin(), page)
    }

    fn cell(&self, key: Key) -> Arc<OnceCell<Page>> {
        let mut pages = self.0.lock();
        if let Some((at, cell)) = pages.get(&key)
            && at.elapsed() < FRESH
        {
            return cell.clone();
        }
        if pages.len() >= MOST {
            pages.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        let cell = Arc::new(OnceCell::new());
        if pages.len() < MOST {
            pages.insert(key, (Instant::now(), cell.clone()));
        }
        cell
    }
}
