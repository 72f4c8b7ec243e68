/// The count that a test uses, if `default` is enough for the ordinary run.
///
/// `REDSTART_SCALE_<NAME>` gives the count itself; otherwise `REDSTART_SCALE` multiplies the
/// default. `name` is upper-cased and everything but letters and digits becomes `_`, so
/// `scale(200, "lock rounds")` reads `REDSTART_SCALE_LOCK_ROUNDS`. The soak runs the same
/// tests with these raised.
///
/// # Panics
///
/// If a variable is set to something that is not a positive whole number: a soak that silently
/// ran the short version would be worse.
pub fn scale(default: u64, name: &str) -> u64 {
    let name: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    from_env(default, |key| std::env::var(key).ok(), &name)
}

/// Prints what a test measured; the soak shows it beside the outcome.
///
/// The name of the test comes first, and with it the backend of one that runs on several. It is that of the thread, so call
/// this from the test itself and not from a task that it spawned.
///
/// ```
/// redstart_testkit::figure("100 kills, 0 lost");
/// ```
pub fn figure(measured: impl std::fmt::Display) {
    let line = figure_of(std::thread::current().name(), &measured.to_string());
    // The runner may have printed the beginning of a line.
    println!("\nfigure: {line}");
}

fn figure_of(thread: Option<&str>, measured: &str) -> String {
    match thread {
        Some(test) if test.contains("::") && !measured.contains(test) => {
            format!("{test}: {measured}")
        }
        _ => measured.to_owned(),
    }
}

fn from_env(default: u64, get: impl Fn(&str) -> Option<String>, name: &str) -> u64 {
    let number = |key: &str| {
        get(key)
            .filter(|text| !text.is_empty())
            .map(|text| match text.parse::<u64>() {
                Ok(n) if n > 0 => n,
                _ => panic!("{key} must be a positive whole number, not {text:?}"),
            })
    };
    number(&format!("REDSTART_SCALE_{name}"))
        .unwrap_or_else(|| default.saturating_mul(number("REDSTART_SCALE").unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::{figure_of, from_env};

    #[test]
    fn a_figure_names_its_test_once() {
        let test = "nonce::a_reply::valkey";
        let named = "nonce::a_reply::valkey: 3 of 4";
        assert_eq!(figure_of(Some(test), "3 of 4"), named);
        assert_eq!(figure_of(Some(test), named), named);
        for thread in [None, Some("main"), Some("tokio-rt-worker")] {
            assert_eq!(figure_of(thread, "3 of 4"), "3 of 4");
        }
        // This is such a thread.
        let thread = std::thread::current();
        assert!(
            thread
                .name()
                .is_some_and(|name| name.ends_with("::a_figure_names_its_test_once"))
        );
    }

    #[test]
    fn a_named_count_wins_over_the_common_factor() {
        let env = |key: &str| match key {
            "REDSTART_SCALE" => Some("10".to_owned()),
            "REDSTART_SCALE_ROUNDS" => Some("7".to_owned()),
            _ => None,
        };
        assert_eq!(from_env(200, env, "ROUNDS"), 7);
        assert_eq!(from_env(200, env, "TASKS"), 2000);
        assert_eq!(from_env(200, |_| None, "TASKS"), 200);
    }

    #[test]
    #[should_panic(expected = "REDSTART_SCALE must be a positive whole number")]
    fn a_factor_that_is_no_number_is_refused() {
        from_env(
            1,
            |key| (key == "REDSTART_SCALE").then(|| "lots".to_owned()),
            "X",
        );
    }
}
