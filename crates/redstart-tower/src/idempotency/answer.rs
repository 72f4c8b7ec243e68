//! An answer as it is kept.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use serde::{Deserialize, Serialize};

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The headers that are kept: what the body is, and where the result is. All others belong to one response only.
pub(super) const KEPT: [HeaderName; 9] = [
    header::CONTENT_TYPE,
    header::CONTENT_LANGUAGE,
    header::CONTENT_ENCODING,
    header::CONTENT_DISPOSITION,
    header::CONTENT_LOCATION,
    header::LOCATION,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
];

/// The headers that are never kept and never replayed: they would put credentials into the store, or hand those of one
/// response to another client.
pub(super) const CREDENTIALS: [HeaderName; 8] = [
    header::SET_COOKIE,
    header::COOKIE,
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::WWW_AUTHENTICATE,
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("proxy-authentication-info"),
];

/// An answer as it is kept. Without a body if that was too large.
#[derive(Serialize, Deserialize)]
pub(super) struct Kept {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Vec<u8>>,
}

impl Kept {
    pub(super) fn new(parts: &Parts, body: &Bytes, names: &[HeaderName], max_body: usize) -> Self {
        let headers = parts.headers.iter();
        Self {
            status: parts.status.as_u16(),
            headers: headers
                .filter(|(name, _)| allowed(name, names))
                .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                .collect(),
            body: (body.len() <= max_body).then(|| body.to_vec()),
        }
    }

    /// The answer again; `None` if its body was too large to keep.
    pub(super) fn replay<R: From<Bytes>>(self, names: &[HeaderName]) -> Option<Response<R>> {
        let mut response = Response::new(R::from(Bytes::from(self.body?)));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK);
        for (name, value) in self.headers {
            // What another version of the program kept is looked at again.
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::from_bytes(&value))
                && allowed(&name, names)
            {
                response.headers_mut().append(name, value);
            }
        }
        let headers = response.headers_mut();
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
        Some(response)
    }
}

fn allowed(name: &HeaderName, names: &[HeaderName]) -> bool {
    names.contains(name) && !CREDENTIALS.contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_kept_even_if_they_are_on_the_list() {
        let response = Response::builder()
            .header("set-cookie", "secret")
            .header("content-type", "text/plain")
            .header("x-request-id", "7")
            .body(())
            .unwrap();
        let (parts, ()) = response.into_parts();
        let mut names = KEPT.to_vec();
        names.push(header::SET_COOKIE);
        let kept = Kept::new(&parts, &Bytes::from("paid"), &names, 10);
        assert_eq!(
            kept.headers,
            [("content-type".to_owned(), b"text/plain".to_vec())]
        );
        // Nor replayed, if another version kept them.
        let old = Kept {
            status: 201,
            headers: vec![("set-cookie".to_owned(), b"secret".to_vec())],
            body: Some(b"paid".to_vec()),
        };
        let again: Response<Bytes> = old.replay(&names).unwrap();
        assert_eq!(again.status(), 201);
        assert!(!again.headers().contains_key("set-cookie"));
    }
}
