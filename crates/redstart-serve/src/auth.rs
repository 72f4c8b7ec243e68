//! Who asks, and what they may do.

use std::{fmt, net::IpAddr};

use http::{HeaderMap, Method, Version, header};
use serde::{Deserialize, Deserializer, de::Error as _};
use sha2::Digest as _;

use crate::{
    config::Config,
    problem::{Kind, Problem},
};

/// What a token allows. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Look, and change nothing.
    Read,
    /// Use the patterns: check, lock, enqueue, publish.
    Operate,
    /// Also what an operator does by hand: force, delete, retry in bulk.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        })
    }
}

/// The SHA-256 of a token. The token itself is not in the configuration.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    fn of(token: &str) -> Self {
        Self(sha2::Sha256::digest(token.as_bytes()).into())
    }

    /// Compares in constant time.
    fn equals(&self, other: &Self) -> bool {
        let differing = self.0.iter().zip(&other.0);
        differing.fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = String::deserialize(input)?;
        let invalid = || D::Error::custom("sha256 must be 64 hexadecimal digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(invalid());
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
        }
        Ok(Self(hash))
    }
}

/// The SHA-256 of a token, as the configuration has it.
///
/// ```
/// assert!(redstart_serve::hash_token("test").starts_with("9f86d081884c7d65"));
/// ```
pub fn hash_token(token: &str) -> String {
    let hash = TokenHash::of(token);
    hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How it is known who asks. Names of different sources are different callers.
#[derive(Clone, Copy, Debug)]
enum Source {
    Local,
    Token,
    Proxy,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    source: Source,
    pub(crate) name: String,
    pub(crate) role: Role,
    namespaces: Vec<String>,
}

impl Identity {
    /// Any caller that can reach a service without authentication; it listens on loopback only.
    fn local() -> Self {
        Self {
            source: Source::Local,
            name: "local".to_owned(),
            role: Role::Admin,
            namespaces: Vec::new(),
        }
    }

    /// Somebody without a token, where none is needed.
    pub(crate) fn nobody() -> Self {
        Self {
            source: Source::Local,
            name: "nobody".to_owned(),
            role: Role::Read,
            namespaces: Vec::new(),
        }
    }

    /// A text that no other caller has, and that no other caller's begins with.
    pub(crate) fn id(&self) -> String {
        let source = match self.source {
            Source::Local => "local",
            Source::Token => "token",
            Source::Proxy => "user",
        };
        format!("{source}:{}:{}", self.name.len(), self.name)
    }

    /// Whether a trusted proxy sent the request.
    pub(crate) fn is_of_proxy(&self) -> bool {
        matches!(self.source, Source::Proxy)
    }

    pub(crate) fn require(&self, role: Role) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        Err(Problem::new(Kind::Forbidden)
            .detail(format!("this needs the role {role}, not {}", self.role)))
    }

    pub(crate) fn may_use(&self, namespace: &str) -> Result<(), Problem> {
        let all = self.namespaces.is_empty();
        if all || self.namespaces.iter().any(|known| known == namespace) {
            return Ok(());
        }
        Err(Problem::new(Kind::Forbidden).detail("the token may not use this namespace"))
    }

    /// The namespaces it may use; empty for all.
    pub(crate) fn namespaces(&self) -> &[String] {
        &self.namespaces
    }
}

/// The name of the cookie with which the dashboard remembers a token.
pub(crate) const COOKIE: &str = "redstart_token";

/// Finds out who asks. `peer` is the other end of the connection; without it, a proxy's header is not believed.
pub(crate) fn identify(
    config: &Config,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Result<Identity, Problem> {
    if !config.has_authentication() {
        return Ok(Identity::local());
    }
    if let Some(trusted) = &config.trusted_header
        && peer.is_some_and(|peer| trusted.proxies.iter().any(|proxy| proxy.contains(peer)))
        && let Some(user) = headers.get(&trusted.name).and_then(|v| v.to_str().ok())
        && !user.is_empty()
    {
        return Ok(Identity {
            source: Source::Proxy,
            name: user.chars().take(128).collect(),
            role: trusted.role,
            namespaces: Vec::new(),
        });
    }
    let token = bearer(headers).or_else(|| cookie(headers));
    let known = token.and_then(|token| {
        let hash = TokenHash::of(token);
        // All are compared, so that the time says nothing about which one is close.
        let mut found = None;
        for known in &config.token {
            if known.sha256.equals(&hash) {
                found = Some(known);
            }
        }
        found
    });
    match known {
        Some(token) => Ok(Identity {
            source: Source::Token,
            name: token.name.clone(),
            role: token.role,
            namespaces: token.namespaces.clone(),
        }),
        None => Err(Problem::new(Kind::Unauthorized).header(
            header::WWW_AUTHENTICATE,
            http::HeaderValue::from_static("Bearer realm=\"redstart\""),
        )),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter();
    let mut pairs = all
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// Refuses changes that a browser sends from another site, and requests under a foreign host name to a service without
/// authentication (a page of another site whose name resolves to this machine).
pub(crate) fn same_site(
    config: &Config,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let host = text(header::HOST.as_str()).unwrap_or_default();
    if !config.has_authentication() && !is_local_name(host) {
        return Err(Problem::new(Kind::CrossSite)
            .detail("a service without authentication answers to localhost only"));
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    if let Some(site) = text("sec-fetch-site") {
        return match site {
            "same-origin" | "none" => Ok(()),
            _ => Err(Problem::new(Kind::CrossSite)),
        };
    }
    match text(header::ORIGIN.as_str()) {
        None => Ok(()),
        Some(origin) => {
            let origin = origin.split_once("://").map_or(origin, |(_, rest)| rest);
            if origin.eq_ignore_ascii_case(host) {
                return Ok(());
            }
            Err(Problem::new(Kind::CrossSite))
        }
    }
}

/// Refuses calls by gRPC that a browser may have sent.
///
/// Their authority is not looked at: a gateway puts there what it likes, such as Envoy the name of its cluster. A page whose
/// name resolves to this machine is of the same site for its browser, so that no preflight protects from it, but its
/// calls do not get here: no browser speaks HTTP/2 without TLS, with TLS the certificate is not for the name of that
/// page, and each POST of a browser names its origin.
pub(crate) fn no_browser(version: Version, headers: &HeaderMap) -> Result<(), Problem> {
    if version != Version::HTTP_2 {
        return Err(Problem::new(Kind::CrossSite).detail("a call by gRPC must come by HTTP/2"));
    }
    match headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        true => Err(Problem::new(Kind::CrossSite)),
        false => Ok(()),
    }
}

fn is_local_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.insert(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn changes_from_other_sites_are_refused() {
        let config = Config::default();
        let ok = |pairs: &[_]| same_site(&config, &Method::POST, &headers(pairs)).is_ok();
        let host = ("host", "localhost:8380");
        assert!(ok(&[host]));
        assert!(ok(&[host, ("sec-fetch-site", "same-origin")]));
        assert!(ok(&[host, ("origin", "http://localhost:8380")]));
        assert!(!ok(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(!ok(&[host, ("sec-fetch-site", "same-site")]));
        assert!(!ok(&[host, ("origin", "http://evil.example")]));
        assert!(!ok(&[host, ("origin", "null")]));
        assert!(!ok(&[("host", "evil.example")]), "a rebound name");
        assert!(!ok(&[]) && !ok(&[("host", "")]), "no name");
        assert!(ok(&[("host", "127.0.0.1:1")]) && ok(&[("host", "[::1]:1")]));
    }
}
