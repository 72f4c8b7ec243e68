//! A recorded sequence of commands, as text: what a failure prints and `regressions/` keeps.
//!
//! One step a line: `@2 "LPUSH" "list1" "a"`; a `~` before the command says that the reply has no
//! order, `@2 gives up` ends a wait. Empty lines and lines with `#` say what it is about;
//! `# only redis` is for what Valkey does in another way, `# only valkey` for what Redis 7.0 does not have.

use std::fmt;

use bytes::Bytes;

use crate::split;

#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// 0 to 2 send commands, 3 only subscribes.
    pub(crate) client: usize,
    pub(crate) action: Action,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Command {
        args: Vec<Bytes>,
        unordered: bool,
    },
    /// A client that waits is unblocked.
    GiveUp,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{} ", self.client + 1)?;
        match &self.action {
            Action::GiveUp => f.write_str("gives up"),
            Action::Command { args, unordered } => {
                if *unordered {
                    f.write_str("~ ")?;
                }
                let words: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
                f.write_str(&words.join(" "))
            }
        }
    }
}

/// As [`split`] reads it.
fn quoted(arg: &[u8]) -> String {
    match arg.first() {
        Some(&letter)
            if arg.len() > 60
                && letter.is_ascii_alphanumeric()
                && arg.iter().all(|byte| *byte == letter) =>
        {
            format!("{{{}*{}}}", letter as char, arg.len())
        }
        _ => format!("\"{}\"", arg.escape_ascii()),
    }
}

pub(crate) fn parse(text: &str) -> Vec<Step> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(parse_step).collect()
}

fn parse_step(line: &str) -> Step {
    let (client, rest) = line
        .strip_prefix('@')
        .and_then(|line| line.split_once(' '))
        .unwrap_or_else(|| panic!("a step starts with its client, as in @1: {line}"));
    let client: usize = client.parse().expect("the number of a client");
    let (unordered, rest) = match rest.strip_prefix('~') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let action = match rest.trim() {
        "gives up" => Action::GiveUp,
        words => Action::Command {
            args: split(words),
            unordered,
        },
    };
    Step {
        client: client - 1,
        action,
    }
}

#[test]
fn what_is_printed_is_read_back() {
    let args = [
        &b""[..],
        b"\x00\xff\r\n\t'\"\\",
        b" a b ",
        &[b'w'; 9000],
        b"\xc3\xa4",
    ];
    let step = Step {
        client: 2,
        action: Action::Command {
            args: args.iter().map(|arg| Bytes::copy_from_slice(arg)).collect(),
            unordered: true,
        },
    };
    let again = &parse(&format!("# text\n{step}\n@1 gives up\n"))[0];
    assert_eq!(format!("{again:?}"), format!("{step:?}"));
}
