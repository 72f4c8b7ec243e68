//! The manifest: which files make up the log, in Redis's format.

use std::{fs, io::Write, path::Path};

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

impl Manifest {
    /// Reads the manifest of a folder; an empty one if there is none.
    pub(super) fn load(folder: &Path) -> Result<Manifest, EngineError> {
        let text = match fs::read_to_string(folder.join(NAME)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // The first start may have ended before it wrote one; but data is not overwritten.
                return match parts(folder).find(|(_, len)| *len > 0) {
                    None => Ok(Manifest::default()),
                    Some((name, _)) => Err(EngineError::Log(format!(
                        "{NAME} is missing, but {name} holds data"
                    ))),
                };
            }
            Err(error) => return Err(error.into()),
        };
        Manifest::parse(&text).ok_or_else(|| EngineError::Log(format!("{NAME} is damaged")))
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
    pub(super) fn save(&self, folder: &Path) -> std::io::Result<()> {
        let temporary = folder.join(format!("temp-{NAME}"));
        let mut file = fs::File::create(&temporary)?;
        file.write_all(self.text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, folder.join(NAME))?;
        super::sync_folder(folder)
    }

    /// Removes what a process that died while it rewrote the log has left.
    pub(super) fn remove_orphans(&self, folder: &Path) {
        let known = self.files();
        let unknown = parts(folder).filter(|(name, _)| !known.contains(name));
        for name in unknown.map(|(name, _)| name).chain(temporaries(folder)) {
            tracing::info!(file = name, "removing a file that the log no longer needs");
            let _ = fs::remove_file(folder.join(name));
        }
    }

    /// The names of all files, in the order of loading.
    pub(super) fn files(&self) -> Vec<String> {
        let base = self.base.iter().map(|part| part.name.clone());
        let rest = self.increments.iter().map(|part| part.0.name.clone());
        base.chain(rest).collect()
    }

    /// The file that is being written.
    pub(super) fn current(&self) -> &str {
        self.increments.last().map_or("", |part| &part.0.name)
    }

    pub(super) fn add_increment(&mut self) {
        let seq = self.increments.last().map_or(0, |part| part.0.seq) + 1;
        let name = format!("{PREFIX}.{seq}.incr.aof");
        self.increments.push(Increment(Part { name, seq }));
    }

    /// Replaces all files of `old` by a new base; returns its name.
    pub(super) fn replace_base(&mut self, old: &Manifest) -> String {
        let seq = self.base.as_ref().map_or(0, |part| part.seq) + 1;
        let name = format!("{PREFIX}.{seq}.base.aof");
        self.base = Some(Part {
            name: name.clone(),
            seq,
        });
        self.increments
            .retain(|part| !old.increments.contains(part));
        name
    }

    pub(super) fn base_len(&self, folder: &Path) -> u64 {
        let base = self.base.as_ref();
        base.and_then(|part| fs::metadata(folder.join(&part.name)).ok())
            .map_or(0, |file| file.len())
    }
}

fn names(folder: &Path) -> impl Iterator<Item = (String, u64)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let len = entry.metadata().ok()?.len();
        Some((entry.file_name().into_string().ok()?, len))
    })
}

/// The bases and increments in a folder with their lengths, whether a manifest names them or not.
fn parts(folder: &Path) -> impl Iterator<Item = (String, u64)> {
    names(folder).filter(|(name, _)| {
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

fn temporaries(folder: &Path) -> impl Iterator<Item = String> {
    let temporary =
        |name: &String| name.starts_with("temp-rewriteaof-") || *name == format!("temp-{NAME}");
    names(folder).map(|(name, _)| name).filter(temporary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_written_as_redis_writes_them() {
        let mut manifest = Manifest::default();
        manifest.add_increment();
        let old = manifest.clone();
        manifest.add_increment();
        manifest.replace_base(&old);
        let text = "file appendonly.aof.1.base.aof seq 1 type b\n\
                    file appendonly.aof.2.incr.aof seq 2 type i\n";
        assert_eq!(manifest.text(), text);
        assert_eq!(Manifest::parse(text), Some(manifest));
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
