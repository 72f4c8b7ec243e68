//! A configuration file in Redis's format: read at the start, rewritten by CONFIG REWRITE.

mod rewrite;

pub(crate) use rewrite::rewrite;

use std::{
    fmt, fs, io,
    net::ToSocketAddrs,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::{Config, parameter::Parameter, table};
use crate::{glob, number::parse_int, server::ServerConfig};

/// Files that include files, at most.
const DEPTH: usize = 16;

/// The settings of an engine and its listener, under the names that Redis has for them.
///
/// ```
/// use redstart_engine::{Engine, Settings};
///
/// let mut settings = Settings::new();
/// settings.set("maxmemory", "100mb")?;
/// let engine = Engine::builder().settings(settings).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Settings {
    pub(crate) config: Config,
    /// Files that led here, outermost first.
    open: Vec<PathBuf>,
    /// `save` lines add up, and the first one replaces the default.
    saves: Vec<Bytes>,
}

impl Default for Settings {
    fn default() -> Settings {
        let config = Config {
            port: 6379,
            ..Config::default()
        };
        Settings {
            config,
            open: Vec::new(),
            saves: Vec::new(),
        }
    }
}

/// What is wrong with a setting or a configuration file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A line that does not mean anything.
    #[error("{}, line {line}: {why}\n  {text}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The line as it is written, or its first word if it may hold a secret.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file that cannot be read.
    #[error("cannot read the configuration file {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A value that is not allowed.
    #[error("{name}: {why}")]
    Value {
        /// The setting.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}

impl Settings {
    /// Redis's defaults.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Reads a configuration file in Redis's format, and those that it includes.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or has a line that is not a setting.
    pub fn read(path: impl AsRef<Path>) -> Result<Settings, SettingsError> {
        let mut settings = Settings::new();
        settings.include(path.as_ref())?;
        let path = path.as_ref();
        let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        settings.config.file = Some(Arc::new(whole));
        Ok(settings)
    }

    /// Changes a setting, as a line of a file would.
    ///
    /// # Errors
    ///
    /// If there is no such setting, or the value is not allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingsError> {
        let words = match table::find(name.as_bytes()) {
            Some(found) if takes_words(found.parameter) => value
                .split(' ')
                .filter(|word| !word.is_empty())
                .map(|word| Bytes::copy_from_slice(word.as_bytes()))
                .collect(),
            _ => vec![Bytes::copy_from_slice(value.as_bytes())],
        };
        if name.eq_ignore_ascii_case("save") {
            self.saves.clear();
            self.config.remembered.remove("save");
        }
        self.directive(name.as_bytes(), &words)
            .map_err(|why| SettingsError::Value {
                name: name.to_owned(),
                why,
            })
    }

    /// A setting as CONFIG GET would show it.
    pub fn get(&self, name: &str) -> Option<String> {
        let found = table::find(name.as_bytes())?;
        let text = found.parameter.get(&self.config);
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// Where a server with these settings listens: `bind`, `port` and `unixsocket`.
    ///
    /// # Errors
    ///
    /// If an address means nothing.
    pub fn listener(&self) -> Result<ServerConfig, SettingsError> {
        let mut listener = ServerConfig::new();
        let bind = self.get("bind").unwrap_or_default();
        for word in bind.split_whitespace().filter(|_| self.config.port != 0) {
            let (name, optional) = match word.strip_prefix('-') {
                Some(name) => (name, true),
                None => (word, false),
            };
            let name = match name {
                "*" => "0.0.0.0",
                "::*" => "::",
                name => name,
            };
            let mut found = (name, self.config.port)
                .to_socket_addrs()
                .map_err(|error| SettingsError::Value {
                    name: "bind".into(),
                    why: format!("{name}: {error}"),
                })?;
            if let Some(addr) = found.next() {
                listener = match optional {
                    true => listener.listen_if_possible(addr),
                    false => listener.listen(addr),
                };
            }
        }
        if let Some(path) = self.get("unixsocket").filter(|path| !path.is_empty()) {
            listener = listener.unix(path);
        }
        Ok(listener)
    }

    fn include(&mut self, path: &Path) -> Result<(), SettingsError> {
        let failed = |error| SettingsError::Read {
            path: path.to_owned(),
            error,
        };
        if self.open.len() >= DEPTH {
            let error = io::Error::other("too many files include each other");
            return Err(failed(error));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        self.open.push(path.to_owned());
        for (number, line) in text.lines().enumerate() {
            self.line(line).map_err(|wrong| match wrong {
                Wrong::Here(why) => SettingsError::Line {
                    path: path.to_owned(),
                    line: number + 1,
                    text: shown(line),
                    why,
                },
                Wrong::There(error) => error,
            })?;
        }
        self.open.pop();
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<(), Wrong> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let words = split(line).ok_or("Unbalanced quotes in configuration line")?;
        let Some((name, words)) = words.split_first() else {
            return Ok(());
        };
        if name.eq_ignore_ascii_case(b"include") {
            let [pattern] = words else {
                return Err("Bad directive or wrong number of arguments".into());
            };
            for path in matching(&String::from_utf8_lossy(pattern))? {
                self.include(&path).map_err(Wrong::There)?;
            }
            return Ok(());
        }
        self.directive(name, words).map_err(Wrong::Here)
    }

    fn directive(&mut self, name: &[u8], words: &[Bytes]) -> Result<(), String> {
        let refused = match name.to_ascii_lowercase().as_slice() {
            b"loadmodule" => Some("modules cannot be loaded into the embedded engine"),
            b"rename-command" => Some("commands cannot be renamed in the embedded engine"),
            _ => None,
        };
        if let Some(why) = refused {
            return Err(why.into());
        }
        if name.eq_ignore_ascii_case(b"user") {
            let [user, rules @ ..] = words else {
                return Err("Bad directive or wrong number of arguments".into());
            };
            if self.config.users.iter().any(|(known, _)| known == user) {
                return Err("Duplicate user found. A user can only be defined once in \
                     config files"
                    .into());
            }
            self.config.users.push((user.clone(), rules.to_vec()));
            self.config.users_included |= self.open.len() > 1;
            return Ok(());
        }
        let Some(found) = table::find(name) else {
            return Err("Bad directive or wrong number of arguments".into());
        };
        let parameter = found.parameter;
        if let Some(why) = unheeded(parameter, words) {
            return Err(why);
        }
        if parameter.name == "save" {
            return self.save(parameter, words);
        }
        if parameter.takes_words() && words.is_empty() {
            return Err("wrong number of arguments".into());
        }
        if parameter.name == "replicaof" {
            return self.replicaof(parameter, words);
        }
        parameter.set(&mut self.config, words)
    }

    fn replicaof(&mut self, parameter: &Parameter, words: &[Bytes]) -> Result<(), String> {
        let [host, port] = words else {
            return Err("wrong number of arguments".into());
        };
        let mut whole = [host.as_ref(), port.as_ref()].join(&b' ');
        if whole.eq_ignore_ascii_case(b"no one") {
            whole.clear();
        } else if parse_int(port).is_none_or(|port| u16::try_from(port).is_err()) {
            return Err("Invalid master port".into());
        }
        parameter.set(&mut self.config, &[whole.into()])
    }

    fn save(&mut self, parameter: &Parameter, words: &[Bytes]) -> Result<(), String> {
        if words.is_empty() {
            return Err("Invalid save parameters".into());
        }
        if words.len() == 1 && words[0].is_empty() {
            self.saves.clear();
        } else {
            // Wrong ones are noticed before they are added.
            parameter.set(&mut self.config, words)?;
            self.saves.extend_from_slice(words);
        }
        parameter.set(&mut self.config, &self.saves)
    }
}

/// Whether a value consists of several words in a line of a file.
fn takes_words(parameter: &Parameter) -> bool {
    parameter.takes_words() || parameter.name == "replicaof"
}

/// What is wrong with a line that means something this engine does not do, and that would be missed: a log must not be
/// begun beside the one there is, nor a port that is to be encrypted be left out.
fn unheeded(parameter: &Parameter, words: &[Bytes]) -> Option<String> {
    let name = parameter.name;
    let watched = ["tls-port", "appenddirname", "appendfilename"];
    let usual = match words {
        [word] => word.eq_ignore_ascii_case(parameter.default.as_bytes()),
        _ => false,
    };
    (watched.contains(&name) && !usual)
        .then(|| format!("{name} cannot be set in a file of the embedded engine"))
}

/// A line as an error may show it: without a secret.
fn shown(line: &str) -> String {
    let line = line.trim();
    let name = line.split_whitespace().next().unwrap_or_default();
    let lower = name.to_ascii_lowercase();
    let secret = lower == "user" || lower.contains("pass") || lower.contains("auth");
    match secret {
        true => format!("{name} …"),
        false => line.to_owned(),
    }
}

/// What is wrong, in this line or in a file that it includes.
enum Wrong {
    Here(String),
    There(SettingsError),
}

impl From<&str> for Wrong {
    fn from(why: &str) -> Wrong {
        Wrong::Here(why.to_owned())
    }
}

/// Files that match a pattern in the last part of a path.
fn matching(pattern: &str) -> Result<Vec<PathBuf>, Wrong> {
    let path = Path::new(pattern);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !name.contains(['*', '?', '[']) {
        return Ok(vec![path.to_owned()]);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut found = Vec::new();
    // As with a shell's pattern, no folder is no file.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if glob::matches(name.as_bytes(), entry.file_name().as_encoded_bytes()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Splits a line into words; `"…"` may have escapes, `'…'` may not. `None` if a quote is not closed.
pub(crate) fn split(line: &str) -> Option<Vec<Bytes>> {
    let mut bytes = line.bytes().peekable();
    let mut words = Vec::new();
    loop {
        while bytes.next_if(u8::is_ascii_whitespace).is_some() {}
        if bytes.peek().is_none() {
            return Some(words);
        }
        let mut word = Vec::new();
        while let Some(byte) = bytes.next_if(|byte| !byte.is_ascii_whitespace()) {
            match byte {
                b'"' => quoted(&mut bytes, &mut word)?,
                b'\'' => loop {
                    match bytes.next()? {
                        b'\'' => break,
                        b'\\' if bytes.next_if_eq(&b'\'').is_some() => word.push(b'\''),
                        byte => word.push(byte),
                    }
                },
                byte => {
                    word.push(byte);
                    continue;
                }
            }
            // A quote ends its word.
            if bytes.peek().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return None;
            }
        }
        words.push(word.into());
    }
}

fn quoted(
    bytes: &mut std::iter::Peekable<impl Iterator<Item = u8>>,
    word: &mut Vec<u8>,
) -> Option<()> {
    loop {
        match bytes.next()? {
            b'"' => return Some(()),
            b'\\' => {
                let byte = match bytes.next()? {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    b'x' => {
                        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                        let high = digit(bytes.next())?;
                        (high * 16 + digit(bytes.next())?) as u8
                    }
                    other => other,
                };
                word.push(byte);
            }
            byte => word.push(byte),
        }
    }
}

/// Text in quotes, as Redis writes it and [`split`] reads it.
pub(crate) fn quote(text: &[u8]) -> String {
    let mut out = String::from("\"");
    for &byte in text {
        match byte {
            b'\\' | b'"' => {
                out.push('\\');
                out.push(byte as char);
            }
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            7 => out.push_str("\\a"),
            8 => out.push_str("\\b"),
            b' '..=b'~' => out.push(byte as char),
            byte => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<String>> {
        let words = split(line)?;
        let text = |word: &Bytes| String::from_utf8_lossy(word).into_owned();
        Some(words.iter().map(text).collect())
    }

    #[test]
    fn quotes_are_read_as_redis_reads_them() {
        assert_eq!(words(r#"a "b c" 'd e'"#).unwrap(), ["a", "b c", "d e"]);
        assert_eq!(words(r#"a "\x41\n\"" '\''"#).unwrap(), ["a", "A\n\"", "'"]);
        assert_eq!(words(r#"save """#).unwrap(), ["save", ""]);
        assert_eq!(words(r#"a "b"#), None);
        assert_eq!(words(r#"a "b"c"#), None);
        let text = b"a \"quoted\" \\ \n\x01\xff";
        assert_eq!(split(&quote(text)).unwrap(), [Bytes::from_static(text)]);
    }
}
