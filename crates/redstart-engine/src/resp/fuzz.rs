//! Batches of requests are what they are one at a time: whatever is sent, however the bytes are cut, however many are
//! parsed at once, and however many of them are run before more are parsed.

use bytes::Bytes;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

use super::{Commands, Limits, Parser, encode_command};

const LIMITS: Limits = Limits {
    bulk: 2000,
    authenticated: true,
};

/// What was parsed, the error that ended it, and how many bytes wait for more if there was none.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    commands: Vec<Vec<Bytes>>,
    error: Option<String>,
    waiting: usize,
}

fn one_at_a_time(input: &[u8]) -> Parsed {
    let mut parser = Parser::default();
    parser.buffer().extend_from_slice(input);
    let mut parsed = Parsed::default();
    loop {
        match parser.next(LIMITS) {
            Ok(Some(command)) => parsed.commands.push(command),
            Ok(None) => break,
            Err(error) => {
                parsed.error = Some(error.0);
                return parsed;
            }
        }
    }
    parsed.waiting = parser.len();
    parsed
}

/// As a connection does it, with any number of commands at a time; how many batches had more than one.
fn in_batches(input: &[u8], random: &mut StdRng) -> (Parsed, u64) {
    let (mut parser, mut commands) = (Parser::default(), Commands::default());
    let (mut parsed, mut batches) = (Parsed::default(), 0);
    let largest = *[1, 2, 7, 300].choose(random).expect("there are some");
    let longest = *[1, 3, 30, 5000].choose(random).expect("there are some");
    let mut rest = input;
    while !rest.is_empty() && parsed.error.is_none() {
        let (piece, after) = rest.split_at(random.random_range(1..=rest.len().min(longest)));
        rest = after;
        parser.buffer().extend_from_slice(piece);
        loop {
            let before = commands.len();
            let most = before + random.random_range(1..=largest);
            let filled = parser.fill(&mut commands, most, LIMITS);
            assert!(commands.len() <= most, "more than was asked for");
            let added = commands.len() - before;
            batches += u64::from(added > 1);
            // A part of them is run: the client does not take its replies, or is paused.
            let left = commands.rest().count();
            let run = match filled {
                Ok(()) => random.random_range(0..=left),
                Err(_) => left,
            };
            let ran = commands.rest().take(run).map(<[Bytes]>::to_vec);
            parsed.commands.extend(ran);
            commands.ran(run);
            if let Err(error) = filled {
                parsed.error = Some(error.0);
                break;
            }
            if added == 0 {
                break;
            }
        }
    }
    let left = commands.rest().map(<[Bytes]>::to_vec);
    parsed.commands.extend(left);
    if parsed.error.is_none() {
        parsed.waiting = parser.len();
    }
    (parsed, batches)
}

/// Requests of all kinds and lengths, some of them damaged.
fn input(random: &mut StdRng) -> Vec<u8> {
    const WORDS: &[&[u8]] = &[
        b"*",
        b"$",
        b"\r\n",
        b"\n",
        b"\r",
        b"-1",
        b"0",
        b"1",
        b"2001",
        b"9223372036854775808",
        b"\"",
        b"*0\r\n",
        b"*-1\r\n",
        b"*1\r\n$04\r\nPING\r\n",
        b"$-1\r\n",
        b"\r\n\r\n",
    ];
    let mut input = Vec::new();
    for _ in 0..random.random_range(1..40) {
        match random.random_range(0..8) {
            0 => input.extend_from_slice(b"SET 'a b' \"\\x41\"\r\n"),
            1 => input.extend_from_slice(b"PING\n"),
            _ => {
                // Those of 512 bytes and more have memory of their own.
                let longest = *[3, 3, 40, 600].choose(random).expect("there are some");
                let args: Vec<Bytes> = (0..random.random_range(1..6))
                    .map(|_| vec![random.random::<u8>(); random.random_range(0..longest)].into())
                    .collect();
                encode_command(&args, &mut input);
            }
        }
    }
    let damages = random.random_range(0..4) * random.random_range(0..2);
    for _ in 0..damages {
        let at = random.random_range(0..=input.len());
        let end = (at + random.random_range(0..8)).min(input.len());
        match random.random_range(0..3) {
            0 => drop(input.drain(at..end)),
            1 if at < input.len() => input[at] = random.random(),
            _ => {
                let word = WORDS.choose(random).expect("there are words");
                input.splice(at..at, word.iter().copied());
            }
        }
    }
    input
}

/// `cargo xtask fuzz --parser` gives it more rounds and a seed.
#[test]
fn fuzz_parser_in_batches() {
    let seed = match std::env::var("REDSTART_FUZZ_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => rand::random(),
    };
    let rounds = redstart_testkit::scale(1_000, "parser");
    println!("{rounds} rounds of REDSTART_FUZZ_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut parsed, mut refused, mut batches) = (0, 0, 0);
    for round in 0..rounds {
        let input = input(&mut random);
        let expected = one_at_a_time(&input);
        let (got, many) = in_batches(&input, &mut random);
        assert_eq!(got, expected, "round {round}: {}", input.escape_ascii());
        parsed += expected.commands.len() as u64;
        refused += u64::from(expected.error.is_some());
        batches += many;
    }
    println!("{parsed} commands parsed, {batches} batches of several, {refused} inputs refused");
    assert!(
        parsed > rounds && batches > rounds / 4 && refused > rounds / 100,
        "{parsed} {batches} {refused}"
    );
}
