//! Whether a URL leads to this machine, and how it is shown.

use redstart::Store;

use crate::error::Result;

/// The first server that the URL leads to and that is not this machine, as `host:port` or as the URL names it; `None` if all
/// are. Load on somebody else's server needs a confirmation.
///
/// Sentinels and seeds on this machine may lead to servers elsewhere, so they are asked; no other server is connected to.
/// A host name other than `localhost` is not this machine, wherever it leads.
///
/// # Errors
///
/// If the URL is invalid, and if no sentinel or seed answers.
///
/// # Cancel safety
///
/// Nothing is changed anywhere.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redstart_load::Error> {
/// use redstart_load::elsewhere;
/// assert_eq!(elsewhere("redis://:secret@127.0.0.1:7000/0").await?, None);
/// assert_eq!(elsewhere("redis://:secret@10.0.0.7:7000/0").await?.as_deref(), Some("10.0.0.7:7000"));
/// # Ok(()) }
/// ```
pub async fn elsewhere(url: &str) -> Result<Option<String>> {
    let named = hosts(url).into_iter().flatten();
    if let Some(host) = named.into_iter().find(|host| !is_this_machine(host)) {
        return Ok(Some(host.to_owned()));
    }
    if !is_found_by_asking(url) {
        return Ok(None);
    }
    let store = Store::builder(url).lazy().connect().await?;
    let found = store.addresses().await?;
    Ok(found.into_iter().find(|address| !is_this_machine(address)))
}

/// Whether the servers are those that sentinels or seeds name.
pub(crate) fn is_found_by_asking(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.contains("sentinel") || scheme.contains("cluster")
}

/// The hosts of a URL with their ports; `None` if it needs no network.
fn hosts(url: &str) -> Option<Vec<&str>> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if matches!(scheme, "memory" | "file") || scheme.ends_with("unix") {
        return None;
    }
    // As the store reads it: what is before the last @ of this are credentials, whatever is in them.
    let place = rest.split('?').next().unwrap_or_default();
    let hosts = match place.rsplit_once('@') {
        Some((_, hosts)) => hosts,
        // The beginning of a password with a question mark must not be shown as a host.
        None if rest.contains('@') => "a host behind an @",
        None => place,
    };
    let hosts = hosts.split('/').next().unwrap_or_default();
    Some(hosts.split(',').collect())
}

/// Whether `host:port`, or the path of a socket, is this machine.
pub(crate) fn is_this_machine(address: &str) -> bool {
    if address.starts_with('/') {
        return true;
    }
    let name = match address.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => address.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_hosts_of_a_url_tell_before_anybody_is_asked() {
        for url in [
            "memory://",
            "file:///tmp/data",
            "redis+unix:///run/redis.sock",
            "redis://127.0.0.1",
            "redis://ann:secret@LOCALHOST:7000/0",
            "redis://:sec/ret@127.0.0.1/0?timeout=1s",
            "redis://[::1]:7001?timeout=1s",
        ] {
            assert_eq!(elsewhere(url).await.unwrap(), None, "{url}");
        }
        for (url, other) in [
            ("redis://localhost.example.com", "localhost.example.com"),
            ("redis+sentinel://127.0.0.1,10.0.0.7/main", "10.0.0.7"),
            (
                "redis+cluster://[::1]:7001,[fd00::1]:7001",
                "[fd00::1]:7001",
            ),
            ("redis://127.0.0.1@10.0.0.7:1", "10.0.0.7:1"),
            ("ann:secret@nonsense", "nonsense"),
            ("redis://:hunter2?x@127.0.0.1", "a host behind an @"),
            ("redis://127.0.0.1/0@10.0.0.7", "10.0.0.7"),
            ("redis://ann@127.0.0.1/x@10.0.0.7/0", "10.0.0.7"),
        ] {
            let found = elsewhere(url).await.unwrap();
            assert_eq!(found.as_deref(), Some(other), "{url}");
        }
    }
}
