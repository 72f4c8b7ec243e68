//! The manifest: which files make up the log, in Redis's format.

use std::{
    fmt,
    io::{self, Read},
};

use super::{file::LogFile, folder::Folder};
use crate::error::EngineError;

const PREFIX: &str = "appendonly.aof";
const NAME: &str = "appendonly.aof.manifest";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Part {
    name: String,
    seq: u64,
}

/// The files of a log, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    base: Option<Part>,
    pub(super) increments: Vec<Increment>,
}

/// A file that is or was appended to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Increment(Part);

/// The highest numbers that files were ever given, whether they became part of the log or not. A file whose manifest could not
/// be saved may be named by the manifest that is on the disk all the same: nothing may take its place.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    base: u64,
    increment: u64,
}

/// Why a manifest was not saved.
#[derive(Debug)]
pub(super) struct Unsaved {
    error: io::Error,
    /// It was complete and may have taken the place of the previous one.
    pub(super) in_doubt: bool,
}

impl From<Unsaved> for EngineError {
    fn from(unsaved: Unsaved) -> EngineError {
        unsaved.error.into()
    }
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Manifest {
    /// Reads the manifest of a folder; an empty one if there is none.
    pub(super) fn load(folder: &dyn Folder) -> Result<Manifest, EngineError> {
        let mut file = match folder.read(NAME) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Manifest::none(folder, "missing");
            }
            Err(error) => return Err(error.into()),
        };
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        if text.trim().is_empty() {
            return Manifest::none(folder, "empty");
        }
        Manifest::parse(&text).ok_or_else(|| EngineError::Log(format!("{NAME} is damaged")))
    }

    /// The first start may have ended before it wrote a manifest; but data is not overwritten.
    fn none(folder: &dyn Folder, what: &str) -> Result<Manifest, EngineError> {
        match parts(folder).find(|(_, len)| *len > 0) {
            None => Ok(Manifest::default()),
            Some((name, _)) => Err(EngineError::Log(format!(
                "{NAME} is {what}, but {name} holds data"
            ))),
        }
    }

    fn parse(text: &str) -> Option<Manifest> {
        let mut manifest = Manifest::default();
        for line in text.lines() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let value = |key: &str| {
                let at = words.iter().step_by(2).position(|word| *word == key)?;
                words.get(at * 2 + 1).copied()
            };
            let name = value("file")?.trim_matches('"');
            // Only names: a path would lead out of the folder.
            if name.contains('/') {
                return None;
            }
            let part = Part {
                name: name.into(),
                seq: value("seq")?.parse().ok()?,
            };
            match value("type")? {
                "b" if manifest.base.is_none() => manifest.base = Some(part),
                "i" => manifest.increments.push(Increment(part)),
                "h" => {}
                _ => return None,
            }
        }
        let sorted = manifest.increments.is_sorted_by(|a, b| a.0.seq < b.0.seq);
        sorted.then_some(manifest)
    }

    fn text(&self) -> String {
        let base = self.base.iter().map(|part| (part, 'b'));
        let rest = self.increments.iter().map(|part| (&part.0, 'i'));
        base.chain(rest)
            .map(|(part, kind)| format!("file {} seq {} type {kind}\n", part.name, part.seq))
            .collect()
    }

    /// Replaces the folder's manifest at once.
    pub(super) fn save(&self, folder: &dyn Folder) -> Result<(), Unsaved> {
        let temporary = format!("temp-{NAME}");
        let written = self.write(folder, &temporary);
        written.map_err(|error| Unsaved {
            error,
            in_doubt: false,
        })?;
        let renamed = folder.rename(&temporary, NAME);
        let kept = renamed.and_then(|()| folder.sync());
        kept.map_err(|error| Unsaved {
            error,
            in_doubt: true,
        })
    }

    /// Writes the manifest to a file that nothing reads yet.
    fn write(&self, folder: &dyn Folder, temporary: &str) -> io::Result<()> {
        // A file whose sync has failed is not to be used again.
        let _ = folder.remove(temporary);
        let file = LogFile::new(folder.create(temporary)?);
        file.append(self.text().as_bytes())?;
        file.sync()?;
        // What it names must be there whenever it is: a folder's changes are not kept in order.
        folder.sync()
    }

    /// Removes what a process that died while it rewrote the log has left.
    pub(super) fn remove_orphans(&self, folder: &dyn Folder) {
        self.remove_others(folder);
        for name in temporaries(folder) {
            remove(folder, &name);
        }
    }

    /// Removes the parts of a log that this manifest, which is on the disk for certain, does not name.
    pub(super) fn remove_others(&self, folder: &dyn Folder) {
        let known = self.files();
        for (name, _) in parts(folder).filter(|(name, _)| !known.contains(name)) {
            remove(folder, &name);
        }
    }

    /// The names of all files, in the order of loading.
    pub(super) fn files(&self) -> Vec<String> {
        let base = self.base.iter().map(|part| part.name.clone());
        let rest = self.increments.iter().map(|part| part.0.name.clone());
        base.chain(rest).collect()
    }

    /// The files before the one that is being written.
    pub(super) fn without_current(&self) -> Manifest {
        let mut before = self.clone();
        before.increments.pop();
        before
    }

    /// The file that is being written.
    pub(super) fn current(&self) -> &str {
        self.increments.last().map_or("", |part| &part.0.name)
    }

    pub(super) fn add_increment(&mut self, numbers: &mut Numbers) {
        let last = self.increments.last().map_or(0, |part| part.0.seq);
        let seq = numbers.increment.max(last) + 1;
        numbers.increment = seq;
        let name = format!("{PREFIX}.{seq}.incr.aof");
        self.increments.push(Increment(Part { name, seq }));
    }

    /// Replaces all files of `old` by a new base; returns its name.
    pub(super) fn replace_base(&mut self, old: &Manifest, numbers: &mut Numbers) -> String {
        let last = self.base.as_ref().map_or(0, |part| part.seq);
        let seq = numbers.base.max(last) + 1;
        numbers.base = seq;
        let name = format!("{PREFIX}.{seq}.base.aof");
        self.base = Some(Part {
            name: name.clone(),
            seq,
        });
        self.increments
            .retain(|part| !old.increments.contains(part));
        name
    }

    pub(super) fn has_base(&self) -> bool {
        self.base.is_some()
    }

    pub(super) fn base_len(&self, folder: &dyn Folder) -> u64 {
        let base = self.base.as_ref();
        base.and_then(|part| folder.len(&part.name).ok())
            .unwrap_or(0)
    }
}

/// The bases and increments in a folder with their lengths, whether a manifest names them or not.
fn parts(folder: &dyn Folder) -> impl Iterator<Item = (String, u64)> {
    folder.names().into_iter().filter(|(name, _)| {
        let Some(rest) = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_prefix('.'))
        else {
            return false;
        };
        let Some((seq, kind)) = rest.split_once('.') else {
            return false;
        };
        seq.parse::<u64>().is_ok() && matches!(kind, "base.aof" | "base.rdb" | "incr.aof")
    })
}

fn remove(folder: &dyn Folder, name: &str) {
    tracing::info!(file = name, "removing a file that the log no longer needs");
    let _ = folder.remove(name);
}

fn temporaries(folder: &dyn Folder) -> impl Iterator<Item = String> {
    let temporary =
        |name: &String| name.starts_with("temp-rewriteaof-") || *name == format!("temp-{NAME}");
    let names = folder.names().into_iter().map(|(name, _)| name);
    names.filter(temporary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_written_as_redis_writes_them() {
        let (mut manifest, mut numbers) = (Manifest::default(), Numbers::default());
        manifest.add_increment(&mut numbers);
        let old = manifest.clone();
        manifest.add_increment(&mut numbers);
        manifest.replace_base(&old, &mut numbers);
        let text = "file appendonly.aof.1.base.aof seq 1 type b\n\
                    file appendonly.aof.2.incr.aof seq 2 type i\n";
        assert_eq!(manifest.text(), text);
        assert_eq!(Manifest::parse(text), Some(manifest));
    }

    #[test]
    fn a_number_is_given_to_one_file_only() {
        let (mut manifest, mut numbers) = (Manifest::default(), Numbers::default());
        manifest.add_increment(&mut numbers);
        let mut failed = manifest.clone();
        failed.add_increment(&mut numbers);
        failed.replace_base(&manifest, &mut numbers);
        let old = manifest.clone();
        manifest.add_increment(&mut numbers);
        manifest.replace_base(&old, &mut numbers);
        let files = failed.files();
        assert!(manifest.files().iter().all(|name| !files.contains(name)));
    }

    #[test]
    fn damaged_manifests_are_refused() {
        for bad in [
            "file a seq x type b\n",
            "file a seq 1\n",
            "file ../a seq 1 type b\n",
            "file a seq 1 type b\nfile b seq 2 type b\n",
            "file a seq 2 type i\nfile b seq 1 type i\n",
            "nonsense\n",
        ] {
            assert_eq!(Manifest::parse(bad), None, "{bad}");
        }
    }
}
