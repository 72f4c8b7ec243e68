use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::{HeaderName, request::Parts};

use crate::{BoxFuture, CookieSession, Problem, digest};

type Find = dyn Fn(&Parts) -> Option<String> + Send + Sync;
type FindLater = dyn Fn(&Parts) -> BoxFuture<redstart::Result<Option<String>>> + Send + Sync;

/// Who a request comes from: whose limit, or whose idempotency key it is.
///
/// | subject | who |
/// |---|---|
/// | [`ip`](Self::ip) | the peer: its IPv4 address, or the /64 network of its IPv6 address |
/// | [`user`](Self::user) | the user of the session; needs the [`CookieLayer`](crate::CookieLayer) |
/// | [`header`](Self::header) | a header, such as an API key; only its digest is stored |
/// | [`by`](Self::by), [`by_async`](Self::by_async) | what the application says |
/// | [`everyone`](Self::everyone) | all requests are one subject |
///
/// Choose something that stays the same when a client repeats a request. The `Authorization` header does not: it changes
/// when an access token is refreshed. Use the user that the token was issued for.
#[derive(Clone)]
pub struct Subject(Source);

#[derive(Clone)]
enum Source {
    Ip,
    User,
    Everyone,
    Header(HeaderName),
    By(Arc<Find>),
    ByAsync(Arc<FindLater>),
}

impl Subject {
    /// The address of the peer: axum's `ConnectInfo<SocketAddr>`, or a `SocketAddr` among the request's extensions.
    /// Behind a proxy that is the proxy's; use [`by`](Self::by) and the header that your proxy sets and clients cannot.
    pub fn ip() -> Self {
        Self(Source::Ip)
    }

    /// The user of the session. Nobody if no user is logged in.
    pub fn user() -> Self {
        Self(Source::User)
    }

    /// All requests are from one subject.
    pub fn everyone() -> Self {
        Self(Source::Everyone)
    }

    /// The value of a header, such as an API key. A digest of it is stored, not the value.
    pub fn header(name: HeaderName) -> Self {
        Self(Source::Header(name))
    }

    /// What a function of the request returns; `None` for nobody.
    pub fn by(subject: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Source::By(Arc::new(subject)))
    }

    /// What an asynchronous function of the request returns; `None` for nobody. It must not borrow from the request:
    /// clone what the future needs.
    ///
    /// ```
    /// use redstart_tower::{CookieSession, Subject};
    /// // By tenant, which the application keeps in the session.
    /// let tenant = Subject::by_async(|parts| {
    ///     let session = parts.extensions.get::<CookieSession>().cloned();
    ///     async move {
    ///         let Some(session) = session else { return Ok(None) };
    ///         let loaded = session.load::<serde_json::Value>().await?;
    ///         Ok(loaded.and_then(|session| Some(session.data["tenant"].as_str()?.to_owned())))
    ///     }
    /// });
    /// # let _ = tenant;
    /// ```
    pub fn by_async<F>(subject: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = redstart::Result<Option<String>>> + Send + 'static,
    {
        Self(Source::ByAsync(Arc::new(move |parts| {
            Box::pin(subject(parts))
        })))
    }

    /// The subject of a request; `None` for nobody.
    pub(crate) async fn find(&self, parts: &Parts) -> Result<Option<String>, Problem> {
        let found = match &self.0 {
            Source::Ip => peer(parts).map(subnet),
            Source::Everyone => Some("everyone".to_owned()),
            Source::Header(name) => parts
                .headers
                .get(name)
                .map(|value| digest(&[value.as_bytes()])),
            Source::By(find) => find(parts),
            Source::ByAsync(find) => find(parts).await?,
            Source::User => match parts.extensions.get::<CookieSession>() {
                Some(session) => session.user().await?,
                None => return Err(Problem::no_cookie_layer()),
            },
        };
        Ok(found)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Source::Ip => "Subject::ip",
            Source::User => "Subject::user",
            Source::Everyone => "Subject::everyone",
            Source::Header(_) => "Subject::header",
            Source::By(_) => "Subject::by",
            Source::ByAsync(_) => "Subject::by_async",
        })
    }
}

fn peer(parts: &Parts) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = parts
        .extensions
        .get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(info.0.ip());
    }
    let address = parts.extensions.get::<SocketAddr>()?;
    Some(address.ip())
}

/// One customer has a whole /64 of IPv6 addresses to choose from.
fn subnet(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => {
            let network = u128::from(ip) >> 64 << 64;
            format!("{}/64", std::net::Ipv6Addr::from(network))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_customer_is_one_subject_and_a_mapped_ipv4_address_is_itself() {
        let of = |ip: &str| subnet(ip.parse().unwrap());
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    }
}
