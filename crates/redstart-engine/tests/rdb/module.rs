//! What modules leave in files and payloads: their settings and values are passed over by name, damage is an error.

use std::{
    fmt::{Debug, Write as _},
    process::Command,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use redstart_engine::{Engine, EngineError, Fsync, Reply, Settings};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use super::{contents::Client, old, restore};

/// The letters of a module's name, six bits each.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const NAME: &str = "made-here";

/// What is in front of a module's settings and values: nine letters of its name, and a version.
fn module() -> Vec<u8> {
    let place = |letter| LETTERS.iter().position(|&other| other == letter).unwrap() as u64;
    let id = NAME.bytes().fold(0, |id, letter| id << 6 | place(letter));
    [&[0x81][..], &(id << 10 | 3).to_be_bytes()].concat()
}

/// One of each kind that a module may write, and the end.
fn parts() -> Vec<u8> {
    let long = [&[5, 0x41, 0x2C][..], &[b'x'; 300]].concat();
    [
        &[1, 7][..],
        &[2, 0x80, 1, 2, 3, 4],
        &[3, 0, 0, 0x80, 0x3F],
        &[4, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F],
        b"\x05\x04text",
        &long,
        &[0],
    ]
    .concat()
}

/// A file with a key before and a key behind what is given.
fn file(between: &[u8]) -> Vec<u8> {
    let mut file = [
        b"REDIS0010\xFE\x00\x00\x06before\x011",
        between,
        b"\x00\x05after\x012\xFF",
    ]
    .concat();
    let checksum = old::crc64(&file);
    file.extend(checksum.to_le_bytes());
    file
}

/// The settings of a module, as they are before the keys that they are about.
fn settings() -> Vec<u8> {
    [&[0xF7][..], &module(), &[2, 1], &parts()].concat()
}

/// A key with a value of the module.
fn value(key: &str) -> Vec<u8> {
    let head = [7, key.len() as u8];
    [&head[..], key.as_bytes(), &module(), &parts()].concat()
}

/// Keeps what is warned of, as text.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = self.0.lock().unwrap();
        write!(text, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// What a file loads, and what was warned of.
fn load(
    file: &[u8],
) -> (
    Engine,
    Result<redstart_engine::Summary, EngineError>,
    String,
) {
    let engine = Engine::new();
    engine.session().line("SET own 1");
    let warnings = Warnings::default();
    let loaded =
        tracing::subscriber::with_default(warnings.clone(), || engine.load_rdb(file, |_| ()));
    let text = warnings.0.lock().unwrap().clone();
    (engine, loaded, text)
}

/// That Redis's own program reads a file that was made here as it was meant.
fn is_sound(file: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump.rdb");
    std::fs::write(&path, file).unwrap();
    let check = Command::new("redis-check-rdb").arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&check.stdout);
    assert!(text.contains("RDB looks OK"), "{text}");
}

#[test]
fn the_settings_of_a_module_are_passed_over_with_a_warning() {
    let file = file(&settings());
    is_sound(&file);
    let (engine, loaded, warned) = load(&file);
    let summary = loaded.unwrap();
    assert_eq!((summary.total(), summary.left_out.len()), (2, 0));
    assert!(warned.contains(NAME), "{warned}");
    assert!(warned.contains("settings of a module"), "{warned}");
    let mut session = engine.session();
    for (key, value) in [("before", "1"), ("after", "2")] {
        assert_eq!(session.line(&format!("GET {key}")), Reply::bulk(value));
    }
}

#[test]
fn a_files_values_of_an_unknown_module_are_left_out_by_name() {
    let file = file(&[value("one"), value("two")].concat());
    is_sound(&file);
    let (engine, loaded, warned) = load(&file);
    let summary = loaded.unwrap();
    assert_eq!(summary.total(), 2);
    assert_eq!(summary.left_out, [(NAME.to_owned(), 2)].into());
    assert_eq!(warned.matches(NAME).count(), 2, "{warned}");
    let mut session = engine.session();
    assert_eq!(session.line("EXISTS before after"), Reply::Int(2));
    assert_eq!(session.line("EXISTS one two"), Reply::Int(0));
}

/// What is saved to the folder next would be without them.
#[test]
fn a_folder_with_values_of_an_unknown_module_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump.rdb");
    let open = |log: bool| match log {
        true => Engine::builder().append_only(dir.path(), Fsync::No).build(),
        false => {
            let mut settings = Settings::new();
            settings.set("dir", dir.path().to_str().unwrap()).unwrap();
            Engine::builder().settings(settings).build()
        }
    };
    let with_values = file(&[value("one"), value("two")].concat());
    for log in [false, true] {
        std::fs::write(&path, &with_values).unwrap();
        let error = open(log).expect_err("it is not opened").to_string();
        assert!(error.contains("2 keys are of made-here"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), with_values);
        // Settings alone are no data.
        std::fs::write(&path, file(&settings())).unwrap();
        let engine = open(log).unwrap();
        assert_eq!(engine.session().line("DBSIZE"), Reply::Int(2));
    }
}

#[test]
fn a_payload_of_an_unknown_module_is_refused() {
    let payload = [&[7][..], &module(), &parts()].concat();
    let payload = old::with_footer(payload, 10);
    let mut session = Engine::new().session();
    let reply = restore(&mut session, &Bytes::from_static(b"k"), &payload);
    assert_eq!(reply, Reply::Error("ERR Bad data format".into()));
    assert_eq!(session.line("EXISTS k"), Reply::Int(0));
}

#[test]
fn damaged_settings_and_values_of_a_module_change_nothing() {
    let end = |all: &[u8]| all[..all.len() - 1].to_vec();
    let cases = [
        // The time to load them is a number.
        [&[0xF7][..], &module(), &[5, 1, b'x'], &parts()].concat(),
        // A kind of part that there is not.
        [&end(&settings())[..], &[6, 0]].concat(),
        [&end(&value("one"))[..], &[9, 0]].concat(),
        // Without an end: what follows is read as parts.
        end(&settings()),
        end(&value("one")),
        // A string that is longer than the file.
        [&end(&value("one"))[..], &[5, 0x80, 0x7F, 0xFF, 0xFF, 0xFF]].concat(),
    ];
    for (at, between) in cases.iter().enumerate() {
        let (engine, loaded, _) = load(&file(between));
        let error = loaded.expect_err("it is damaged").to_string();
        assert!(
            error.contains("module") || error.contains("ends too early"),
            "{at}: {error}"
        );
        let mut session = engine.session();
        assert_eq!(session.line("GET own"), Reply::bulk("1"), "{at}");
        assert_eq!(session.line("DBSIZE"), Reply::Int(1), "{at}");
    }
}
