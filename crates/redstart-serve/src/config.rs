//! The configuration file: TOML. An error names the line.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use redstart::limiting::{Algorithm, Quota};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    auth::{Role, TokenHash},
    envoy::domain::{self, DomainConfig},
    network::Network,
    tls::TlsConfig,
    trace::OtlpConfig,
};

/// The configuration of the service. An empty file is a valid one.
///
/// ```
/// use redstart_serve::Config;
///
/// let config = Config::parse(r#"
/// namespace = "shop"
///
/// [[token]]
/// name = "ci"
/// sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
/// role = "operate"
///
/// [limiter.api]
/// algorithm = "token-bucket"
/// quota = "100/m"
/// burst = 20
/// tiers = { pro = "1000/m" }
/// "#)?;
///
/// let error = Config::parse("namespace = \"shop\"\nlimiter.api.quota = \"100/fortnight\"").unwrap_err();
/// assert!(error.to_string().contains("line 2"), "{error}");
/// # Ok::<(), redstart_serve::ConfigError>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The namespace of requests that name none.
    pub(crate) namespace: Name,
    /// Where the service lies behind a proxy, such as `/redstart`.
    pub(crate) base_path: BasePath,
    pub(crate) read_only: bool,
    /// A header in which a proxy names the user whom it has authenticated.
    pub(crate) trusted_header: Option<TrustedHeader>,
    pub(crate) token: Vec<TokenConfig>,
    pub(crate) limits: Limits,
    pub(crate) limiter: BTreeMap<String, LimiterConfig>,
    /// What Envoy's rate-limit service decides by.
    pub(crate) domain: Vec<DomainConfig>,
    pub(crate) tls: Option<TlsConfig>,
    /// Where spans are sent.
    pub(crate) otlp: Option<OtlpConfig>,
    pub(crate) redact: Vec<String>,
    /// How long the audit log keeps a change.
    pub(crate) audit: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: Name("app".to_owned()),
            base_path: BasePath::default(),
            read_only: false,
            trusted_header: None,
            token: Vec::new(),
            limits: Limits::default(),
            limiter: BTreeMap::new(),
            domain: Vec::new(),
            tls: None,
            otlp: None,
            redact: ["password", "secret", "token", "authorization", "card"]
                .map(str::to_owned)
                .to_vec(),
            audit: Span(Duration::from_secs(30 * 86_400)),
        }
    }
}

/// What a client may ask for.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Bytes of a body.
    pub(crate) body: usize,
    /// Bytes of a name in a path.
    pub(crate) name: usize,
    pub(crate) wait: Span,
    /// Requests that wait at the same time.
    pub(crate) long_polls: usize,
    /// Event streams that are open at the same time.
    pub(crate) streams: usize,
    pub(crate) connections: usize,
    /// How long a body may take to arrive.
    pub(crate) body_time: Span,
    /// How long a request may take that does not wait for anything; one that waits has as much more.
    pub(crate) request_time: Span,
    /// How long a client may take nothing of what it asked for, before its connection ends.
    pub(crate) stall: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 1 << 20,
            name: 512,
            wait: Span(Duration::from_secs(60)),
            long_polls: 5_000,
            streams: 1_000,
            connections: 10_000,
            body_time: Span(Duration::from_secs(10)),
            request_time: Span(Duration::from_secs(30)),
            stall: Span(Duration::from_secs(30)),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenConfig {
    pub(crate) name: String,
    pub(crate) sha256: TokenHash,
    pub(crate) role: Role,
    /// The namespaces it may use; empty for all.
    #[serde(default)]
    pub(crate) namespaces: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrustedHeader {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The addresses of the proxies. The header of any other client is ignored.
    #[serde(deserialize_with = "some_networks")]
    pub(crate) proxies: Vec<Network>,
}

fn some_networks<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Network>, D::Error> {
    let networks = Vec::<Network>::deserialize(input)?;
    if networks.is_empty() {
        return Err(D::Error::custom("proxies must have at least one address"));
    }
    Ok(networks)
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimiterConfig {
    #[serde(default)]
    pub(crate) algorithm: AlgorithmName,
    pub(crate) quota: QuotaText,
    pub(crate) burst: Option<u64>,
    #[serde(default)]
    pub(crate) refundable: bool,
    /// Other quotas, for requests that name a tier.
    #[serde(default)]
    pub(crate) tiers: BTreeMap<String, QuotaText>,
    /// Decides, and lets everything pass: to try a limit out.
    #[serde(default)]
    pub(crate) shadow: bool,
    /// The most units that are taken from the store at once for a hot subject, to be handed out without a round trip.
    pub(crate) lease_blocks: Option<toml::Spanned<u64>>,
}

impl LimiterConfig {
    /// The block, if it can be leased.
    pub(crate) fn block(&self) -> Option<u64> {
        self.lease_blocks.as_ref().map(|units| *units.get_ref())
    }

    /// Whether blocks of that size can be leased; if not, where it stands and why.
    fn check_block(&self) -> Result<(), (usize, String)> {
        let Some(block) = &self.lease_blocks else {
            return Ok(());
        };
        let QuotaText { units, period } = self.quota;
        let capacity = self.burst.unwrap_or(units);
        // As the library has it: of a bucket, a tenth stays untouched, which must not come back within a millisecond.
        let most = match self.algorithm {
            AlgorithmName::FixedWindow => Ok(units / 2),
            AlgorithmName::TokenBucket if self.refundable => {
                Err("what a bucket has leased in blocks cannot be refunded")
            }
            AlgorithmName::TokenBucket => {
                let reserve = u128::from(capacity / 10) * period.as_micros();
                let is_slow = reserve >= 1000 * u128::from(units);
                Ok(if is_slow {
                    (capacity - capacity.div_ceil(10)) / 2
                } else {
                    0
                })
            }
            AlgorithmName::SlidingWindow | AlgorithmName::SlidingCounter => {
                Err("lease_blocks is for token-bucket and fixed-window")
            }
        };
        let fault = match most {
            Ok(most) if (2..=most).contains(block.get_ref()) => return Ok(()),
            Ok(0..=3) => "this quota is too small to be leased in blocks".to_owned(),
            Ok(most) => format!("lease_blocks must be from 2 to {most} for this quota"),
            Err(fault) => fault.to_owned(),
        };
        Err((block.span().start, fault))
    }
}

#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Deserialize,
    serde::Serialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AlgorithmName {
    #[default]
    TokenBucket,
    FixedWindow,
    SlidingWindow,
    SlidingCounter,
}

impl From<AlgorithmName> for Algorithm {
    fn from(name: AlgorithmName) -> Self {
        match name {
            AlgorithmName::TokenBucket => Self::TokenBucket,
            AlgorithmName::FixedWindow => Self::FixedWindow,
            AlgorithmName::SlidingWindow => Self::SlidingWindow,
            AlgorithmName::SlidingCounter => Self::SlidingCounter,
        }
    }
}

/// `100/s`, `100/m`, `100/h`, `100/d`, or `100/15m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuotaText {
    units: u64,
    period: Duration,
}

impl QuotaText {
    /// Both must be above zero.
    pub(crate) fn new(units: u64, period: Duration) -> Self {
        Self { units, period }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        const FORM: &str = "a quota must be units per period, such as 100/s, 20/m or 5/15m";
        let (units, period) = text.split_once('/').ok_or(FORM)?;
        let units: u64 = units.trim().parse().map_err(|_| FORM)?;
        let period = period.trim();
        let period = match period.starts_with(|c: char| c.is_ascii_digit()) {
            true => Span::parse(period).map_err(|_| FORM)?,
            false => Span::parse(&format!("1{period}")).map_err(|_| FORM)?,
        };
        if units == 0 || period.0.is_zero() {
            return Err("a quota must have at least one unit and a period");
        }
        Ok(Self {
            units,
            period: period.0,
        })
    }

    pub(crate) fn quota(self, burst: Option<u64>) -> Quota {
        let quota = Quota::per(self.units, self.period);
        match burst {
            Some(burst) => quota.burst(burst),
            None => quota,
        }
    }
}

impl fmt::Display for QuotaText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { units, period } = self;
        match period.as_millis() {
            1_000 => write!(f, "{units}/s"),
            60_000 => write!(f, "{units}/m"),
            3_600_000 => write!(f, "{units}/h"),
            86_400_000 => write!(f, "{units}/d"),
            millis if millis % 1_000 == 0 => write!(f, "{units}/{}s", millis / 1_000),
            millis => write!(f, "{units}/{millis}ms"),
        }
    }
}

/// A quota as the configuration has it: units per period, such as `100/s`, `20/m` or `5/15m`, and how many may come at once.
///
/// ```
/// let quota = redstart_serve::parse_quota("5/15m", None)?;
/// assert_eq!((quota.units(), quota.period().as_secs()), (5, 900));
/// # Ok::<(), redstart_serve::ConfigError>(())
/// ```
///
/// # Errors
///
/// If the text is no quota.
pub fn parse_quota(text: &str, burst: Option<u64>) -> Result<Quota, ConfigError> {
    let quota = QuotaText::parse(text).map_err(ConfigError::new)?;
    Ok(quota.quota(burst))
}

impl<'de> Deserialize<'de> for QuotaText {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(input)?).map_err(D::Error::custom)
    }
}

/// A duration as people write it: `500ms`, `30s`, `15m`, `2h`, `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl Span {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        const FORM: &str = "a duration must be a number with ms, s, m, h or d, such as 30s";
        let at = text.find(|c: char| !c.is_ascii_digit()).ok_or(FORM)?;
        let (number, unit) = text.split_at(at);
        let number: u64 = number.parse().map_err(|_| FORM)?;
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(FORM),
        };
        let millis = number.checked_mul(millis).ok_or(FORM)?;
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(input)?).map_err(D::Error::custom)
    }
}

/// A namespace that the library accepts.
#[derive(Clone, Debug)]
pub(crate) struct Name(pub(crate) String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let name = String::deserialize(input)?;
        redstart::key::Keys::new(&name, "queue").map_err(D::Error::custom)?;
        Ok(Self(name))
    }
}

/// Empty, or a path that begins with `/` and does not end with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct BasePath(pub(crate) String);

impl<'de> Deserialize<'de> for BasePath {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let path = String::deserialize(input)?;
        let path = path.trim_end_matches('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
        if !path.is_empty() && !path.starts_with('/') || !path.chars().all(plain) {
            return Err(D::Error::custom(
                "base_path must begin with / and have letters, digits and - _ . /",
            ));
        }
        Ok(Self(path.to_owned()))
    }
}

/// An invalid configuration file, whose line the message names, or one that a running service does not take.
#[derive(Debug)]
pub struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(message: &str) -> Self {
        Self(message.to_owned())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl From<redstart::Error> for ConfigError {
    fn from(error: redstart::Error) -> Self {
        Self(error.to_string())
    }
}

impl Config {
    /// Reads a configuration file's text.
    ///
    /// # Errors
    ///
    /// If the text is not TOML or a setting is unknown or invalid; the message names the line.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let line_of = |at: usize| {
            let before = &text.as_bytes()[..at.min(text.len())];
            1 + before.iter().filter(|byte| **byte == b'\n').count()
        };
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(span.start));
            ConfigError(format!("line {line}: {}", error.message()))
        })?;
        domain::check(&config.domain, &config.limiter)
            .map_err(|(at, what)| ConfigError(format!("line {}: {what}", line_of(at))))?;
        for limiter in config.limiter.values() {
            limiter
                .check_block()
                .map_err(|(at, what)| ConfigError(format!("line {}: {what}", line_of(at))))?;
        }
        let mut seen = std::collections::HashSet::new();
        for token in &config.token {
            if token.name.is_empty() || !seen.insert(&token.name) {
                let line = text
                    .lines()
                    .position(|line| line.contains(&format!("\"{}\"", token.name)));
                return Err(ConfigError(format!(
                    "line {}: the names of tokens must be given and differ: {:?}",
                    line.map_or(1, |line| line + 1),
                    token.name
                )));
            }
        }
        Ok(config)
    }

    /// Switches changes off.
    pub fn read_only(&mut self) {
        self.read_only = true;
    }

    /// Listens with TLS: the files of the certificate (with those that lead to its authority) and of its key, in PEM.
    pub fn tls(&mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) {
        self.tls = Some(TlsConfig {
            certificate: certificate.into(),
            key: key.into(),
        });
    }

    /// Sends spans to this collector, such as `http://127.0.0.1:4318`. Other settings of `[otlp]` stay as they are.
    ///
    /// # Errors
    ///
    /// If it is not an address of HTTP.
    pub fn otlp(&mut self, endpoint: &str) -> Result<(), ConfigError> {
        OtlpConfig::set(&mut self.otlp, endpoint).map_err(ConfigError::new)
    }

    /// The files that the configuration names: when one changes, [reload](crate::Service::reload) the configuration.
    pub fn files(&self) -> Vec<PathBuf> {
        let files = self.tls.iter().flat_map(|tls| [&tls.certificate, &tls.key]);
        files.cloned().collect()
    }

    /// Whether the service listens with TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether requests must authenticate.
    pub fn has_authentication(&self) -> bool {
        !self.token.is_empty() || self.trusted_header.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_line() {
        for (text, line, word) in [
            ("namespace = \"a b\"", 1, "namespace"),
            ("\n\nnonsense = 1", 3, "nonsense"),
            ("[limits]\nwait = \"soon\"", 2, "duration"),
            ("[limiter.api]\nquota = \"0/s\"", 2, "at least one"),
            (
                "[limiter.api]\nquota = \"100/s\"\nlease_blocks = 1",
                3,
                "from 2 to 45",
            ),
            (
                "[limiter.api]\nquota = \"100000/s\"\nburst = 20\nlease_blocks = 4",
                4,
                "too small",
            ),
            (
                "[limiter.api]\nquota = \"100/s\"\nlease_blocks = 5\nalgorithm = \"sliding-window\"",
                3,
                "fixed-window",
            ),
            (
                "[limiter.api]\nquota = \"100/s\"\nlease_blocks = 5\nrefundable = true",
                3,
                "refunded",
            ),
            (
                "[[token]]\nname=\"a\"\nsha256=\"xyz\"\nrole=\"read\"",
                3,
                "64",
            ),
            (
                "[[token]]\nname=\"a\"\nsha256=\"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"\nrole=\"boss\"",
                4,
                "boss",
            ),
            ("base_path = \"x\"", 1, "base_path"),
            ("[tls]\ncertificate = \"a\"", 1, "key"),
            ("[otlp]\nendpoint = \"ftp://a\"", 2, "http"),
            ("[otlp]\nendpoint = \"http://a\"\nsample = 1.5", 3, "0 to 1"),
            (
                "[otlp]\nendpoint = \"http://a\"\nheaders = { \"a b\" = \"c\" }",
                3,
                "header",
            ),
            (
                "[trusted_header]\nname = \"x-user\"\nrole = \"admin\"",
                1,
                "proxies",
            ),
            (
                "[trusted_header]\nname = \"x-user\"\nrole = \"admin\"\nproxies = []",
                4,
                "at least one",
            ),
            (
                "[trusted_header]\nname = \"x-user\"\nrole = \"admin\"\nproxies = [\"10.0.0.0/40\"]",
                4,
                "network",
            ),
            ("namespace = ", 1, ""),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("line {line}: ")),
                "{text:?}: {error}"
            );
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }

    /// What is refused here is what the library refuses, so that no request finds it out.
    #[tokio::test]
    async fn blocks_that_the_file_may_have_are_leased() {
        let store = redstart::Store::connect("memory://").await.unwrap();
        for algorithm in ["token-bucket", "fixed-window"] {
            for (quota, burst) in [(8, 8), (10, 10), (100, 20), (1000, 3000), (7, 64)] {
                for block in [2, 4, 9, 31, 500, 1349, 1350] {
                    let text = format!(
                        "[limiter.api]\nalgorithm = \"{algorithm}\"\nquota = \"{quota}/s\"\nburst = {burst}\nlease_blocks = {block}"
                    );
                    let Ok(config) = Config::parse(&text) else {
                        continue;
                    };
                    let limiter = &config.limiter["api"];
                    let (algorithm, quota) = (limiter.algorithm.into(), limiter.quota);
                    let burst = match limiter.algorithm {
                        AlgorithmName::TokenBucket => limiter.burst,
                        _ => None,
                    };
                    let built = redstart::limiting::Limiter::builder(
                        &store,
                        "n",
                        "api",
                        algorithm,
                        quota.quota(burst),
                    );
                    let built = built.lease_blocks(block).build();
                    assert!(built.is_ok(), "{text}: {built:?}");
                }
            }
        }
    }

    #[test]
    fn quotas_are_units_per_period() {
        let period = |text| QuotaText::parse(text).map(|q| (q.units, q.period.as_secs()));
        assert_eq!(period("100/m"), Ok((100, 60)));
        assert_eq!(period("5/15m"), Ok((5, 900)));
        assert_eq!(period("7/d"), Ok((7, 86_400)));
        for bad in ["", "5", "/s", "x/s", "5/y", "5/0s", "-5/s"] {
            assert!(period(bad).is_err(), "{bad}");
        }
    }
}
