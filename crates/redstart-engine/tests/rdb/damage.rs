//! Damaged and hostile payloads and files are refused.

use std::fs;

use bytes::Bytes;
use redstart_engine::{Clock, Compat, Engine, Reply};
use redstart_testkit::{Kind, scale};

use super::{
    Server,
    contents::{Client as _, describe, everything},
    dump, fill, old,
    random::{Chance, KINDS, expiring_hash, value},
    restore, run, seed, with_bytes,
};

#[test]
fn damaged_logs_are_refused_or_cut() {
    let rounds = scale(40, "damaged logs");
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(Kind::Redis, dir.path(), &["--appendonly", "yes"]);
    let mut wire = server.connect();
    let mut chance = Chance::new(seed());
    fill(&mut wire, &mut chance, 12);
    drop((wire, server));
    let folder = dir.path().join("appendonlydir");
    let files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("appendonly.aof.manifest"))
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    let before = peak();
    let (mut refused, mut cut) = (0, 0);
    for round in 0..rounds {
        let (path, whole) = &files[chance.below(files.len() as u64) as usize];
        let mut data = whole.clone();
        damage(&mut chance, &mut data);
        fs::write(path, &data).unwrap();
        let engine = Engine::builder()
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build();
        let is_base = path.extension().is_some_and(|end| end == "rdb");
        match engine {
            Err(_) => refused += 1,
            Ok(engine) => {
                assert!(
                    !is_base || data == *whole,
                    "round {round}: a damaged base is loaded"
                );
                cut += 1;
                everything(&mut engine.session());
            }
        }
        for (path, whole) in &files {
            fs::write(path, whole).unwrap();
        }
    }
    assert!(peak() < before + (512 << 20), "{} bytes", peak());
    redstart_testkit::figure(format!(
        "{rounds} damaged logs: {refused} refused, {cut} cut or other data"
    ));
}

#[test]
fn a_bloom_filter_that_would_look_at_billions_of_bits_is_refused() {
    let mut session = Engine::new().session();
    session.line("BF.RESERVE k 0.01 100");
    let key = Bytes::from_static(b"k");
    let good = dump(&mut session, &key);
    let bits = |value: f64| value.to_le_bytes();
    let usual = bits((0.005f64.ln() / 0.480_453_013_918_201).abs());
    let hashes = [&[2, 8, 4][..], &usual].concat();
    for (value, count) in [
        (1e10, &[0x80, 0xFF, 0xFF, 0xFF, 0xFF][..]),
        (f64::NAN, &[0]),
    ] {
        let bad = [&[2][..], count, &[4], &bits(value)].concat();
        let reply = restore(&mut session, &key, &with_bytes(&good, &hashes, &bad));
        assert!(old::is_refused(&reply), "{value}: {reply:?}");
    }
    assert_eq!(restore(&mut session, &key, &good), Reply::OK);
}

#[test]
fn two_nodes_of_a_stream_with_one_id_are_refused() {
    let node = |ms: u8| {
        let items: [&[u8]; 11] = [
            &[1],
            &[0],
            &[1],
            &[0x81, b'a'],
            &[0],
            &[2],
            &[ms],
            &[0],
            &[0x81, b'b'],
            &[4],
            &[],
        ];
        let body: Vec<u8> = items
            .iter()
            .filter(|item| !item.is_empty())
            .flat_map(|item| [*item, &[item.len() as u8]].concat())
            .collect();
        let len = body.len() as u8 + 7;
        let pack = [&[len, 0, 0, 0, 10, 0][..], &body, &[0xFF]].concat();
        [&[len][..], &pack].concat()
    };
    let id = |ms: u8| [&[16, 0, 0, 0, 0, 0, 0, 0, ms][..], &[0; 8]].concat();
    let payload = |second: u8, at: u8| {
        let end = [2, 2, 0, 1, 0, 0, 0, 2, 0];
        let all = [&[19, 2][..], &id(1), &node(0), &id(second), &node(at), &end].concat();
        old::with_footer(all, 10)
    };
    let mut session = Engine::new().session();
    let key = Bytes::from_static(b"k");
    assert_eq!(restore(&mut session, &key, &payload(2, 0)), Reply::OK);
    assert_eq!(session.line("XLEN k"), Reply::Int(2));
    assert!(old::is_refused(&restore(
        &mut session,
        &key,
        &payload(1, 1)
    )));
}

#[test]
fn code_of_a_file_that_never_ends_is_refused() {
    let code = b"#!lua name=x\nwhile true do end";
    let mut file = [&b"REDIS0010\xf5"[..], &[code.len() as u8], code, &[0xFF]].concat();
    let checksum = old::crc64(&file);
    file.extend(checksum.to_le_bytes());
    let engine = Engine::new();
    engine.session().line("SET a 1");
    assert!(engine.load_rdb(&file[..], |_| ()).is_err());
    assert_eq!(engine.session().line("GET a"), Reply::bulk("1"));
}

/// The most memory that this process ever had, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

/// One to three bits, or the length.
fn damage(chance: &mut Chance, data: &mut Vec<u8>) {
    if chance.below(4) == 0 {
        data.truncate(chance.below(data.len() as u64) as usize);
        return;
    }
    for _ in 0..=chance.below(3) {
        let at = chance.below(data.len() as u64) as usize;
        data[at] ^= 1 << chance.below(8);
    }
}

#[test]
fn damaged_payloads_are_refused() {
    let rounds = scale(4000, "damaged payloads");
    let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
    let mut session = engine.session();
    let mut chance = Chance::new(seed());
    let key = Bytes::from_static(b"k");
    let mut samples: Vec<Vec<u8>> = Vec::new();
    for kind in 0..6 * KINDS {
        session.line("DEL k");
        let recipe = value(&mut chance, kind, &key);
        run(
            &mut session,
            &recipe.commands[..recipe.commands.len().min(120)],
        );
        samples.push(dump(&mut session, &key).to_vec());
    }
    let newer = Engine::builder().compat(Compat::Valkey9).build().unwrap();
    let mut newer = newer.session();
    for _ in 0..12 {
        newer.line("DEL k");
        run(&mut newer, &expiring_hash(&mut chance, &key).commands);
        samples.push(dump(&mut newer, &key).to_vec());
    }
    // Large ones only cost time.
    samples.retain(|sample| sample.len() < 20_000);
    let old = old::payloads().into_iter();
    samples.extend(old.map(|(_, version, payload)| old::with_footer(payload, version)));
    session.line("FLUSHALL");
    session.line("BF.ADD k item");
    samples.push(dump(&mut session, &key).to_vec());
    // The most that a value of these sizes can honestly need, many times over.
    let (before, allowed) = (peak(), 512 << 20);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..rounds {
        let sample = &samples[chance.below(samples.len() as u64) as usize];
        let mut data = sample.clone();
        damage(&mut chance, &mut data);
        if data == *sample {
            continue;
        }
        let reply = restore(&mut session, &key, &data);
        assert!(old::is_refused(&reply), "round {round}: {reply:?}");
        // With a checksum that fits, damage may be another value; nothing worse.
        if data.len() < 10 {
            continue;
        }
        let reply = restore(&mut session, &key, &old::with_new_checksum(data));
        if reply == Reply::OK {
            taken += 1;
            describe(&mut session, &key);
            let payload = dump(&mut session, &key);
            assert_eq!(
                restore(&mut session, &key, &payload),
                Reply::OK,
                "round {round}"
            );
        } else {
            refused += 1;
            assert!(old::is_refused(&reply), "round {round}: {reply:?}");
        }
    }
    assert!(peak() < before + allowed, "{} bytes", peak());
    assert!(
        refused > rounds / 10 && taken > 0,
        "{refused} refused, {taken} taken"
    );
    redstart_testkit::figure(format!(
        "{rounds} damaged payloads refused by their checksum; with a new one {refused} refused, {taken} other values"
    ));
}

#[test]
fn damaged_files_are_refused() {
    let rounds = scale(80, "damaged files");
    let engine = Engine::new();
    let mut session = engine.session();
    let mut chance = Chance::new(seed());
    for n in 0..3 * KINDS {
        let key = Bytes::from(format!("k{n}"));
        let recipe = value(&mut chance, n, &key);
        run(
            &mut session,
            &recipe.commands[..recipe.commands.len().min(40)],
        );
    }
    let mut file = Vec::new();
    engine.save_rdb(&mut file, |_| ()).unwrap();
    let (before, allowed) = (peak(), 512 << 20);
    let (checked, unchecked) = (Engine::new(), Engine::new());
    let mut checked_session = checked.session();
    checked_session.line("SET before 1");
    for round in 0..rounds {
        let mut data = file.clone();
        damage(&mut chance, &mut data);
        if data == file {
            continue;
        }
        assert!(
            checked.load_rdb(&data[..], |_| ()).is_err(),
            "round {round}"
        );
        assert_eq!(
            checked_session.line("GET before"),
            Reply::bulk("1"),
            "nothing changes"
        );
        // Without a checksum the contents themselves are all there is to go by.
        if let Some(end) = data.len().checked_sub(8) {
            data[end..].fill(0);
            if unchecked.load_rdb(&data[..], |_| ()).is_ok() {
                everything(&mut unchecked.session());
            }
        }
    }
    assert!(peak() < before + allowed, "{} bytes", peak());
    redstart_testkit::figure(format!("{rounds} damaged files refused"));
}
