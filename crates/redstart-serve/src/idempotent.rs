//! `Idempotency-Key`: a change that arrives twice is carried out once and answered twice.

use http::{HeaderName, HeaderValue, StatusCode};
use redstart::{
    Store,
    resilience::{Idempotency, Run, WorkError},
};
use serde::{Deserialize, Serialize};

use crate::{
    call::{Call, OWN_NAMESPACE},
    problem::{Kind, Problem},
    reply::{Content, Reply},
    route::Handler,
};

/// The header with the key.
pub(crate) const HEADER: &str = "idempotency-key";
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// A reply as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// The keys of this service.
pub(crate) struct Repeats(Idempotency);

impl Repeats {
    pub(crate) fn new(store: &Store) -> redstart::Result<Self> {
        Ok(Self(Idempotency::new(store, OWN_NAMESPACE, "requests")?))
    }

    /// Carries a change out, once for each key.
    pub(crate) async fn run(&self, call: Call, handler: &Handler) -> Result<Reply, Problem> {
        let Some(key) = call.headers.get(HEADER) else {
            return handler(call).await;
        };
        let key = key
            .to_str()
            .ok()
            .map(|key| key.trim().trim_matches('"').to_owned())
            .filter(|key| !key.is_empty() && key.len() <= 255)
            .ok_or_else(|| Problem::invalid("an Idempotency-Key must have 1 to 255 characters"))?;
        let mut print = Vec::new();
        for part in [call.method.as_str(), &call.path, call.query.text()] {
            print.extend_from_slice(&(part.len() as u64).to_le_bytes());
            print.extend_from_slice(part.as_bytes());
        }
        print.extend_from_slice(&call.body);
        // A key belongs to whoever sent it.
        let name = format!("{}/{key}", call.identity.id());
        let work = handler(call);
        let run = self.0.run(&name, &print, async move {
            match work.await {
                Ok(reply) => keep(&reply).ok_or(WorkError::Unknown(Problem::new(Kind::Failed))),
                Err(problem) if problem.kind == Kind::InDoubt => Err(WorkError::Unknown(problem)),
                Err(problem) if again(problem.status) => Err(WorkError::NotDone(problem)),
                Err(problem) => keep(&problem.into_reply())
                    .ok_or(WorkError::Unknown(Problem::new(Kind::Failed))),
            }
        });
        match run.await? {
            Run::Done(kept) => Ok(restore(kept)),
            Run::Replayed(kept) => {
                Ok(restore(kept).with(REPLAYED, HeaderValue::from_static("true")))
            }
            Run::NotDone(problem) => Err(problem),
            Run::Busy { retry_after } => {
                Err(Problem::new(Kind::Repeating).retry_after(retry_after))
            }
            Run::Mismatch => Err(Problem::new(Kind::KeyReused)),
            Run::Unknown(Some(problem)) => Err(problem.with("id", key)),
            Run::Unknown(None) => Err(Problem::new(Kind::Unknown).with("id", key)),
        }
    }
}

/// Whether a repeat of the request should be carried out.
fn again(status: StatusCode) -> bool {
    status.is_server_error()
        || status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
}

fn keep(reply: &Reply) -> Option<Kept> {
    let Content::Whole(body) = &reply.body else {
        return None;
    };
    let headers = reply.headers.iter();
    Some(Kept {
        status: reply.status.as_u16(),
        headers: headers
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect(),
        body: body.to_vec(),
    })
}

fn restore(kept: Kept) -> Reply {
    let headers = kept.headers.into_iter().filter_map(|(name, value)| {
        Some((name.parse().ok()?, HeaderValue::from_bytes(&value).ok()?))
    });
    Reply {
        status: StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK),
        headers: headers.collect(),
        body: Content::Whole(kept.body.into()),
    }
}
