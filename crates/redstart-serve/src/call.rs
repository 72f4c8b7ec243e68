//! One request, as a handler sees it.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    app::App,
    auth::{Identity, Role},
    config::Config,
    problem::{Kind, Problem},
};

/// The namespace of what the service keeps for itself. Requests cannot use it.
pub(crate) const OWN_NAMESPACE: &str = "redstart-serve";

/// One request: who asks, for what, with what.
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) config: Arc<Config>,
    pub(crate) identity: Identity,
    pub(crate) method: Method,
    /// Below the base path, as it was sent.
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) params: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
    /// How long the client is willing to wait, if it said so.
    pub(crate) deadline: Option<Duration>,
    /// Whether the audit log has it.
    pub(crate) logged: Arc<AtomicBool>,
}

impl Call {
    /// The namespace of the request.
    pub(crate) fn namespace(&self) -> Result<String, Problem> {
        let name = self
            .query
            .get("namespace")
            .unwrap_or(&self.config.namespace.0);
        if name == OWN_NAMESPACE {
            return Err(Problem::invalid("this namespace is the service's own"));
        }
        self.identity.may_use(name)?;
        Ok(name.to_owned())
    }

    /// The fields whose values are not shown to this caller by the API.
    pub(crate) fn hidden(&self) -> &[String] {
        match self.identity.role {
            Role::Read => &self.config.redact,
            Role::Operate | Role::Admin => &[],
        }
    }

    /// What the request is about: the namespace and the names of the path. What one request granted, another one about
    /// something else cannot use.
    pub(crate) fn target(&self) -> Result<String, Problem> {
        let mut target = self.namespace()?;
        for (_, value) in &self.params {
            // No name has a control character.
            target.push('\0');
            target.push_str(value);
        }
        Ok(target)
    }

    /// A name from the path.
    pub(crate) fn param(&self, name: &str) -> &str {
        let found = self.params.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| value)
    }

    /// The scheme and the host by which the request came, for commands to copy. What a proxy says of it is believed as
    /// far as the proxy is.
    pub(crate) fn origin(&self) -> String {
        let text = |name: &str| self.headers.get(name).and_then(|value| value.to_str().ok());
        let of_proxy = |name: &str| text(name).filter(|_| self.identity.is_of_proxy());
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let host = of_proxy("x-forwarded-host").or_else(|| text("host"));
        let host = host.filter(|host| !host.is_empty() && host.chars().all(plain));
        let scheme = match of_proxy("x-forwarded-proto") {
            Some(scheme @ ("http" | "https")) => scheme,
            _ if self.config.has_tls() => "https",
            _ => "http",
        };
        format!("{scheme}://{}", host.unwrap_or("localhost"))
    }

    /// The body as JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let body: &[u8] = if self.body.is_empty() {
            b"{}"
        } else {
            &self.body
        };
        serde_json::from_slice(body)
            .map_err(|error| Problem::invalid(format!("the body is invalid: {error}")))
    }

    /// A form that a page sent.
    pub(crate) fn form(&self) -> Query {
        Query::parse(&String::from_utf8_lossy(&self.body))
    }

    /// A wait that the client asked for, within the service's limit.
    pub(crate) fn wait(&self, wait: Option<Seconds>) -> Result<Duration, Problem> {
        let Some(wait) = wait else {
            return Ok(Duration::ZERO);
        };
        let limit = self.config.limits.wait.0;
        let wait = wait.duration()?;
        if wait > limit {
            return Err(Problem::invalid(format!(
                "a wait must be at most {} s",
                limit.as_secs_f64()
            )));
        }
        Ok(wait)
    }
}

/// The pairs of a query or a form.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
    text: String,
}

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8_lossy().into_owned()
        };
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decode(name), decode(value)));
        Self {
            pairs: pairs.collect(),
            text: text.to_owned(),
        }
    }

    /// As it was sent.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.pairs.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A value that is neither missing nor empty.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("1" | "true" | "yes" | "on"))
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        match self.given(name) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(Problem::invalid(format!(
                    "{name} must be a number in its range"
                ))),
            },
        }
    }
}

/// A number of seconds, with a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub(crate) struct Seconds(pub(crate) f64);

impl Seconds {
    /// A hundred years is as good as forever.
    const LONGEST: f64 = 100.0 * 365.0 * 86_400.0;

    pub(crate) fn duration(self) -> Result<Duration, Problem> {
        if !(0.0..=Self::LONGEST).contains(&self.0) {
            return Err(Problem::invalid(
                "a time must be a number of seconds from 0 to a hundred years",
            ));
        }
        Ok(Duration::from_secs_f64(self.0))
    }

    /// The same as a moment since 1970, until the year 9999.
    pub(crate) fn moment(self) -> Result<Duration, Problem> {
        if !(0.0..=253_402_300_799.0).contains(&self.0) {
            return Err(Problem::invalid(
                "a moment must be a number of seconds since 1970, before the year 10000",
            ));
        }
        Ok(Duration::from_secs_f64(self.0))
    }

    pub(crate) fn or(this: Option<Self>, default: Duration) -> Result<Duration, Problem> {
        this.map_or(Ok(default), Self::duration)
    }
}

impl From<Duration> for Seconds {
    fn from(duration: Duration) -> Self {
        // In whole microseconds, so that people see no rounding error.
        Self((duration.as_secs_f64() * 1e6).round() / 1e6)
    }
}

/// Decodes one segment of a path.
pub(crate) fn decode_segment(text: &str, longest: usize) -> Result<String, Problem> {
    let name = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| Problem::invalid("a name in the path is not UTF-8"))?;
    if name.is_empty() || name.len() > longest {
        return Err(Problem::invalid(format!(
            "a name must have 1 to {longest} bytes"
        )));
    }
    if name.chars().any(char::is_control) {
        return Err(Problem::invalid("a name must not have control characters"));
    }
    Ok(name.into_owned())
}

/// An in-memory resource that was not found: it ended, or another instance has it.
pub(crate) fn lost(what: &'static str) -> Problem {
    Problem::new(Kind::Lost).detail(format!(
        "this {what} has ended, or another instance of the service has it"
    ))
}
