//! Whole files: all databases, with what belongs to them.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
};

use bytes::Bytes;

use super::{
    Fault, VALKEY, module,
    read::{self, Loaded, Setting},
    source::Source,
    write::{Form, Writer},
};
use crate::{
    commands::database,
    config::Config,
    crc64,
    engine::State,
    error::Stop,
    eviction, feed,
    keyspace::{Db, NEVER},
    number::parse_int,
    script::function::{Loader, Policy},
    types::Value,
};

const SLOT_INFO: u8 = 244;
pub(super) const FUNCTION: u8 = 245;
const MODULE_AUX: u8 = 247;
const IDLE: u8 = 248;
const FREQ: u8 = 249;
const AUX: u8 = 250;
const RESIZE_DB: u8 = 251;
const EXPIRES_MS: u8 = 252;
const EXPIRES: u8 = 253;
const SELECT_DB: u8 = 254;
const EOF: u8 = 255;

/// How keys without a value are counted that were left out.
const EMPTY: &str = "empty";

/// After how many keys progress is told.
const TOLD_EVERY: u64 = 1000;

/// What was read or written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The version of the format.
    pub version: u32,
    /// How many keys there were of each type, as TYPE names it.
    pub keys: BTreeMap<String, u64>,
    /// How many of them have a deadline.
    pub volatile: u64,
    /// Keys that were left out because their deadline had passed.
    pub expired: u64,
    /// Keys that were left out because nothing here can hold them, by type.
    pub left_out: BTreeMap<String, u64>,
    /// How many libraries of functions there were.
    pub libraries: u64,
    /// How many bytes were read or written.
    pub bytes: u64,
    /// The CRC-64 at the end of the file; 0 if the server that wrote it did not compute one.
    pub checksum: u64,
}

impl Summary {
    /// How many keys there were in all.
    pub fn total(&self) -> u64 {
        self.keys.values().sum()
    }

    fn count(&mut self, kind: &str) {
        match self.keys.get_mut(kind) {
            Some(count) => *count += 1,
            None => drop(self.keys.insert(kind.to_owned(), 1)),
        }
    }

    fn leave_out(&mut self, kind: String) {
        *self.left_out.entry(kind).or_default() += 1;
    }

    /// That a folder which is opened has no values of unknown modules: what is written to it next would be without them.
    pub(crate) fn refuse_modules(&self) -> Result<(), String> {
        let mut unknown = self.left_out.iter().filter(|(kind, _)| *kind != EMPTY);
        match unknown.next() {
            None => Ok(()),
            Some((kind, keys)) => Err(format!(
                "{keys} keys are of {kind}, the type of a module that is not known here; \
                 load the file by `Engine::load_rdb` or `redstart engine import` to leave them out"
            )),
        }
    }
}

/// What becomes of keys whose deadline has passed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    LeftOut,
    /// The log that follows may still speak of them.
    Kept,
}

/// All that a file holds.
pub(crate) struct Contents {
    pub(crate) dbs: Vec<Db>,
    /// The sources of libraries of functions.
    pub(crate) libraries: Vec<Bytes>,
    /// The database that the stream of changes after this copy has selected.
    pub(crate) stream_db: usize,
    pub(crate) summary: Summary,
}

/// Reads a file from its first byte to its checksum, and nothing beyond.
pub(crate) fn load(
    from: impl Read,
    databases: usize,
    config: &Config,
    now_ms: i64,
    expired: Expired,
    progress: &mut dyn FnMut(&Summary),
) -> Result<Contents, Fault> {
    let mut reader = FileReader {
        source: Source::new(from),
        setting: Setting {
            config,
            version: 0,
            // Fields are kept where keys are.
            now_ms: match expired {
                Expired::LeftOut => now_ms,
                Expired::Kept => i64::MIN,
            },
        },
        now_ms,
        expired,
        contents: Contents {
            dbs: (0..databases).map(|_| Db::default()).collect(),
            libraries: Vec::new(),
            stream_db: 0,
            summary: Summary::default(),
        },
        db: 0,
    };
    let loaded = reader.run(progress);
    let at = reader.source.at();
    match loaded {
        Ok(()) => Ok(reader.contents),
        Err(Fault::Io(error)) => Err(Fault::Io(error)),
        Err(fault) => Err(Fault::Refused(format!("{fault}, near byte {at}"))),
    }
}

struct FileReader<'a, R> {
    source: Source<R>,
    setting: Setting<'a>,
    now_ms: i64,
    expired: Expired,
    contents: Contents,
    db: usize,
}

/// What was said of the next key.
#[derive(Default)]
struct About {
    deadline: Option<i64>,
    idle: Option<u64>,
    frequency: Option<u8>,
}

impl<R: Read> FileReader<'_, R> {
    fn run(&mut self, progress: &mut dyn FnMut(&Summary)) -> Result<(), Fault> {
        self.header()?;
        let mut about = About::default();
        let mut keys = 0;
        loop {
            match self.source.byte()? {
                EOF => break,
                SELECT_DB => self.select()?,
                RESIZE_DB => {
                    // A hint only: memory is taken as keys come.
                    self.source.length()?;
                    self.source.length()?;
                }
                SLOT_INFO => {
                    for _ in 0..3 {
                        self.source.length()?;
                    }
                }
                AUX => {
                    let (name, value) = (self.source.string()?, self.source.string()?);
                    if name.as_ref() == b"repl-stream-db" {
                        self.contents.stream_db = self.stream_db(&value)?;
                    }
                }
                EXPIRES_MS => about.deadline = Some(self.source.time()?),
                EXPIRES => {
                    let seconds = i32::from_le_bytes(self.source.array()?);
                    about.deadline = Some(i64::from(seconds) * 1000);
                }
                IDLE => about.idle = Some(self.source.length()?),
                FREQ => about.frequency = Some(self.source.byte()?),
                FUNCTION => {
                    let source = self.source.string()?;
                    self.contents.libraries.push(source);
                    self.contents.summary.libraries += 1;
                }
                MODULE_AUX => {
                    let name = module::read_aux(&mut self.source)?;
                    tracing::warn!(module = name, "the settings of a module are passed over");
                }
                kind => {
                    self.key(kind, std::mem::take(&mut about))?;
                    keys += 1;
                    if keys % TOLD_EVERY == 0 {
                        self.contents.summary.bytes = self.source.at();
                        progress(&self.contents.summary);
                    }
                }
            }
        }
        let checksum = self.source.crc();
        let written = u64::from_le_bytes(self.source.array()?);
        // A server that was told not to compute it writes 0.
        if written != 0 && written != checksum {
            return Err(Fault::Damaged("the file: its checksum"));
        }
        let summary = &mut self.contents.summary;
        summary.checksum = written;
        summary.bytes = self.source.at();
        progress(summary);
        Ok(())
    }

    fn header(&mut self) -> Result<(), Fault> {
        let start: [u8; 9] = self.source.array()?;
        let (digits, versions) = if let Some(digits) = start.strip_prefix(b"REDIS") {
            (digits, super::REDIS)
        } else if let Some(digits) = start.strip_prefix(b"VALKEY") {
            (digits, VALKEY)
        } else {
            return Err(Fault::Refused("this is not an RDB file".into()));
        };
        let version = std::str::from_utf8(digits)
            .ok()
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse::<u32>().ok())
            .ok_or(Fault::Damaged("the version"))?;
        if !versions.contains(&version) {
            return Err(Fault::Refused(format!("version {version} is not known")));
        }
        self.setting.version = version;
        self.contents.summary.version = version;
        Ok(())
    }

    fn select(&mut self) -> Result<(), Fault> {
        let number = self.source.length()?;
        self.db = self.known(number)?;
        Ok(())
    }

    fn known(&self, number: u64) -> Result<usize, Fault> {
        usize::try_from(number)
            .ok()
            .filter(|&number| number < self.contents.dbs.len())
            .ok_or_else(|| Fault::Refused(format!("database {number} is beyond the last one")))
    }

    /// The database that the stream has selected; a server that has selected none yet will do so.
    fn stream_db(&self, text: &[u8]) -> Result<usize, Fault> {
        let number = parse_int(text).ok_or(Fault::Damaged("the database of the stream"))?;
        u64::try_from(number).map_or(Ok(0), |number| self.known(number))
    }

    fn key(&mut self, kind: u8, about: About) -> Result<(), Fault> {
        let key = self.source.string()?;
        let loaded = read::value(&mut self.source, kind, self.setting);
        let summary = &mut self.contents.summary;
        let value = match loaded {
            Ok(Loaded::Value(value)) => value,
            Ok(Loaded::Skipped(name)) => {
                tracing::warn!(module = name, "a value of a module is passed over");
                summary.leave_out(name);
                return Ok(());
            }
            Err(Fault::Empty) => {
                tracing::warn!("a key without a value is passed over");
                summary.leave_out(EMPTY.into());
                return Ok(());
            }
            Err(fault) => return Err(fault),
        };
        // A deadline of 0 is long past, but would read as none.
        let deadline = about
            .deadline
            .map_or(NEVER, |at| if at == NEVER { -1 } else { at });
        if self.expired == Expired::LeftOut && about.deadline.is_some_and(|at| at < self.now_ms) {
            summary.expired += 1;
            return Ok(());
        }
        let db = &mut self.contents.dbs[self.db];
        if db.find(&key).is_some() {
            return Err(Fault::Damaged("a key that is there twice"));
        }
        summary.count(value.type_name());
        summary.volatile += u64::from(deadline != NEVER);
        let now = (self.now_ms / 1000) as u32;
        let idle = u32::try_from(about.idle.unwrap_or(0)).unwrap_or(u32::MAX);
        let used = match (self.setting.config.policy.counts_uses(), about.frequency) {
            (true, Some(frequency)) => eviction::used_so_often(frequency.into(), now),
            (true, None) => eviction::first_use(self.setting.config, now),
            (false, _) => now.saturating_sub(idle),
        };
        db.insert_new(&key, value, deadline, used);
        Ok(())
    }
}

/// Puts what was loaded in the place of all that is there; nothing changes on failure.
pub(crate) fn replace(state: &mut State, contents: Contents) -> Result<(), Fault> {
    let loader = Loader {
        limits: state.scripts.limits,
        watchdog: state.scripts.watchdog.clone(),
        compat: state.config.compat,
        // Code of a file that nobody vouches for has to end in time.
        from_log: state.loading,
        began: std::time::Instant::now(),
    };
    let functions = &mut state.scripts.functions;
    functions
        .restore(&contents.libraries, Policy::Flush, &loader)
        .map_err(|stop| match stop {
            Stop::Error(text) => Fault::Refused(format!("a library of functions: {text}")),
            Stop::Block(_) => Fault::Damaged("a library of functions"),
        })?;
    if !state.loading {
        feed::end(state);
    }
    database::replace_all(state, contents.dbs);
    Ok(())
}

/// Which values a file may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    All,
    /// Those that a server without modules loads.
    Plain,
}

/// Writes all databases.
pub(crate) fn write(
    state: &State,
    now_micros: i64,
    values: Values,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(&Summary),
) -> io::Result<Summary> {
    let entries = state.dbs.iter().flat_map(|db| db.iter());
    let (compat, held) = (state.config.compat, entries.map(|(_, entry)| &entry.value));
    let form = match values {
        Values::All => Form::of(compat, held),
        Values::Plain => Form::oldest(compat, held),
    };
    let mut summary = Summary {
        version: form.version(),
        ..Summary::default()
    };
    let mut file = Checked {
        out,
        crc: 0,
        len: 0,
    };
    let mut writer = Writer::new(form, state.config.rdb_compression);
    writer.raw(form.signature().as_bytes());
    for (name, value) in [
        ("redis-ver", state.config.compat.redis_version().to_owned()),
        ("redis-bits", usize::BITS.to_string()),
        ("ctime", (now_micros / 1_000_000).to_string()),
        ("used-mem", crate::memory::used(state).to_string()),
        ("aof-base", "0".to_owned()),
    ] {
        writer.raw(&[AUX]);
        writer.string(name.as_bytes());
        writer.string(value.as_bytes());
    }
    for library in state.scripts.functions.libraries() {
        writer.raw(&[FUNCTION]);
        writer.string(&library.code);
        summary.libraries += 1;
    }
    let wanted = |value: &Value| values == Values::All || !matches!(value, Value::Bloom(_));
    for (number, db) in state.dbs.iter().enumerate() {
        if db.len() == 0 {
            continue;
        }
        writer.raw(&[SELECT_DB]);
        writer.length(number as u64);
        writer.raw(&[RESIZE_DB]);
        writer.length(db.len() as u64);
        writer.length(db.volatile() as u64);
        for (key, entry) in db.iter() {
            if !wanted(&entry.value) {
                summary.leave_out(entry.value.type_name().to_owned());
                continue;
            }
            if entry.deadline != NEVER {
                writer.raw(&[EXPIRES_MS]);
                writer.raw(&entry.deadline.to_le_bytes());
                summary.volatile += 1;
            }
            writer.kind(&entry.value);
            writer.string(key);
            writer.value(&entry.value);
            summary.count(entry.value.type_name());
            file.take(&mut writer.out)?;
            if summary.total().is_multiple_of(TOLD_EVERY) {
                summary.bytes = file.len;
                progress(&summary);
            }
        }
    }
    writer.raw(&[EOF]);
    file.take(&mut writer.out)?;
    summary.checksum = file.crc;
    writer.raw(&file.crc.to_le_bytes());
    file.take(&mut writer.out)?;
    summary.bytes = file.len;
    progress(&summary);
    Ok(summary)
}

/// An output that knows its checksum and length.
struct Checked<'a> {
    out: &'a mut dyn Write,
    crc: u64,
    len: u64,
}

impl Checked<'_> {
    /// Writes what is in the buffer and empties it.
    fn take(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        self.crc = crc64::update(self.crc, buffer);
        self.len += buffer.len() as u64;
        self.out.write_all(buffer)?;
        buffer.clear();
        Ok(())
    }
}
