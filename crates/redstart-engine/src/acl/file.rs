//! Users in a file, one line each: `user alice on #hash ~a* +get`.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    path::Path,
};

use bytes::Bytes;

use super::{
    Acl,
    user::{User, joined, words},
};
use crate::{compat::Compat, registry::printable};

/// The users of a file.
///
/// # Errors
///
/// All that is wrong with it, in one line.
pub(super) fn read(path: &Path, all_channels: bool) -> Result<BTreeMap<Bytes, User>, String> {
    let text = std::fs::read(path).map_err(|error| {
        format!(
            "Error loading ACLs, opening file '{}': {error}",
            path.display()
        )
    })?;
    let mut users = BTreeMap::new();
    let mut problems = String::new();
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let parts: Vec<&[u8]> = words(line).collect();
        if parts.is_empty() {
            continue;
        }
        let place = format!("{}:{}", path.display(), at + 1);
        match line_of(&parts, &place, at + 1, &users, all_channels) {
            Ok((name, user)) => {
                users.insert(name, user);
            }
            Err((Some(name), problem)) => {
                users.insert(name, User::new(all_channels));
                problems.push_str(&problem);
            }
            Err((None, problem)) => problems.push_str(&problem),
        }
    }
    match problems.is_empty() {
        true => Ok(users),
        false => Err(problems),
    }
}

type Problem = (Option<Bytes>, String);

fn line_of(
    parts: &[&[u8]],
    place: &str,
    number: usize,
    known: &BTreeMap<Bytes, User>,
    all_channels: bool,
) -> Result<(Bytes, User), Problem> {
    let [b"user", name, rules @ ..] = parts else {
        let text = format!("{place} should start with user keyword followed by the username. ");
        return Err((None, text));
    };
    let name = Bytes::copy_from_slice(name);
    if known.contains_key(&name) {
        let name = printable(&name);
        let text = format!("WARNING: Duplicate user '{name}' found on line {number}. ");
        return Err((None, text));
    }
    let Ok(rules) = joined(rules) else {
        let text = format!("{place}: Unmatched parenthesis in selector definition.");
        return Err((Some(name), text));
    };
    let mut user = User::new(all_channels);
    for rule in rules {
        if let Err(error) = user.apply(&rule, all_channels) {
            let text = match error {
                super::RuleError::Syntax => format!("{place}: Syntax error. "),
                error => {
                    let rule = super::shown(&rule);
                    format!("{place}: Error in applying operation '{rule}': {error}. ")
                }
            };
            return Err((Some(name), text));
        }
    }
    Ok((name, user))
}

/// Writes all users; the old file stays as it is until the new one is complete and on the disk.
pub(super) fn write(path: &Path, acl: &Acl, compat: Compat) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut text = Vec::new();
    for line in acl.list(compat) {
        text.extend_from_slice(&line);
        text.push(b'\n');
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".tmp-{}", std::process::id()));
    let temporary = Path::new(&name);
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(temporary)
        .and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(temporary);
    }
    written
}
