//! Whether a URL leads to this machine, and how it is shown.

/// Whether every host of the URL is this machine: load on somebody else's server needs a confirmation.
///
/// ```
/// use redstart_load::is_loopback;
/// assert!(is_loopback("memory://") && is_loopback("redis://:secret@127.0.0.1:7000/0"));
/// assert!(is_loopback("redis+cluster://localhost:7000,[::1]:7001?timeout=1s"));
/// assert!(!is_loopback("redis://localhost.example.com") && !is_loopback("redis+sentinel://127.0.0.1,10.0.0.7/main"));
/// ```
pub fn is_loopback(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    if matches!(scheme, "memory" | "file") || scheme.ends_with("unix") {
        return true;
    }
    let rest = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    hosts.split(',').all(|host| {
        let name = match host.strip_prefix('[') {
            Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        name.eq_ignore_ascii_case("localhost")
            || name
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    })
}

/// The URL without what precedes an `@`.
///
/// ```
/// assert_eq!(redstart_load::without_credentials("redis://ann:secret@h:1"), "redis://…@h:1");
/// ```
pub fn without_credentials(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => url.to_owned(),
    }
}
