//! What a handler answers with.

use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;

/// A response: whole, or a stream of events.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Content,
}

pub(crate) enum Content {
    Whole(Bytes),
    Stream(futures_util::stream::BoxStream<'static, Bytes>),
}

impl Reply {
    pub(crate) fn whole(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![(header::CONTENT_TYPE, HeaderValue::from_static(kind))],
            body: Content::Whole(body.into()),
        }
    }

    pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Self {
        // The types of the API have string keys and finite numbers, so this does not fail.
        let body = serde_json::to_vec(value).unwrap_or_else(|_| b"null".to_vec());
        Self::whole(status, "application/json", body)
    }

    pub(crate) fn ok(value: &impl Serialize) -> Self {
        Self::json(StatusCode::OK, value)
    }

    pub(crate) fn html(markup: maud::Markup) -> Self {
        Self::whole(
            StatusCode::OK,
            "text/html; charset=utf-8",
            markup.into_string(),
        )
    }

    /// Sends the browser to another page after a change.
    pub(crate) fn see_other(path: &str) -> Self {
        let mut reply = Self::whole(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", "");
        if let Ok(path) = HeaderValue::try_from(path) {
            reply.set(header::LOCATION, path);
        }
        reply
    }

    /// Server-sent events. A comment is sent every 15 s, so that proxies keep the connection.
    pub(crate) fn events(events: impl Stream<Item = Event> + Send + 'static) -> Self {
        let beat = tokio_stream::StreamExt::throttle(
            futures_util::stream::repeat(Bytes::from_static(b": \n\n")).skip(1),
            std::time::Duration::from_secs(15),
        );
        // The heartbeat ends with the events.
        let events = events.map(|event| Some(event.to_bytes()));
        let events = events.chain(futures_util::stream::iter([None]));
        let both = futures_util::stream::select(events, beat.skip(1).map(Some));
        let both =
            futures_util::StreamExt::take_while(both, |item| std::future::ready(item.is_some()));
        Self {
            status: StatusCode::OK,
            headers: vec![
                (
                    header::CONTENT_TYPE,
                    HeaderValue::from_static("text/event-stream"),
                ),
                (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
                (
                    HeaderName::from_static("x-accel-buffering"),
                    HeaderValue::from_static("no"),
                ),
            ],
            body: Content::Stream(both.filter_map(std::future::ready).boxed()),
        }
    }

    pub(crate) fn set(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value));
    }

    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.set(name, value);
        self
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let body = match self.body {
            Content::Whole(bytes) => Body::from(bytes),
            Content::Stream(stream) => {
                Body::from_stream(stream.map(Ok::<_, std::convert::Infallible>))
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        for (name, value) in self.headers {
            response.headers_mut().append(name, value);
        }
        response
    }
}

/// One server-sent event.
pub(crate) struct Event {
    pub(crate) name: &'static str,
    pub(crate) id: Option<String>,
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn new(name: &'static str, data: impl Into<String>) -> Self {
        Self {
            name,
            id: None,
            data: data.into(),
        }
    }

    pub(crate) fn json(name: &'static str, value: &impl Serialize) -> Self {
        Self::new(name, serde_json::to_string(value).unwrap_or_default())
    }

    fn to_bytes(&self) -> Bytes {
        let mut text = format!("event: {}\n", self.name);
        if let Some(id) = &self.id {
            text.push_str(&format!("id: {id}\n"));
        }
        for line in self.data.split(['\n', '\r']) {
            text.push_str(&format!("data: {line}\n"));
        }
        text.push('\n');
        text.into()
    }
}
