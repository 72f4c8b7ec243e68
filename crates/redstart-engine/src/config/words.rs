//! Settings whose values consist of several words, or follow a rule of their own.

use bytes::Bytes;

use super::{
    Config, OUTPUT_CLASSES, OutputLimit,
    parameter::{memory, not_one_of, one_of},
};
use crate::{notify::class, number::parse_int};

fn joined(words: &[Bytes]) -> String {
    let words: Vec<_> = words.iter().map(|w| String::from_utf8_lossy(w)).collect();
    words.join(" ")
}

/// `seconds changes …`
pub(super) fn save(_: &Config, words: &[Bytes]) -> Result<String, String> {
    const WRONG: &str = "Invalid save parameters";
    if let [word] = words
        && word.is_empty()
    {
        return Ok(String::new());
    }
    if !words.len().is_multiple_of(2) {
        return Err(WRONG.into());
    }
    for pair in words.chunks_exact(2) {
        let seconds = parse_int(&pair[0]).ok_or(WRONG)?;
        let changes = parse_int(&pair[1]).ok_or(WRONG)?;
        if seconds < 1 || changes < 0 {
            return Err(WRONG.into());
        }
    }
    Ok(joined(words))
}

/// `class hard soft seconds …`; the classes that are not named stay as they are.
pub(super) fn output_limits(config: &Config, words: &[Bytes]) -> Result<String, String> {
    if !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    let mut limits = config.output_limits;
    for four in words.chunks_exact(4) {
        let names = [
            OUTPUT_CLASSES[0],
            OUTPUT_CLASSES[1],
            OUTPUT_CLASSES[2],
            "replica",
        ];
        let class = match one_of(&names, &four[0]) {
            Some(3) => 1,
            Some(class) => class,
            None => {
                return Err("Invalid client class specified in buffer limit configuration.".into());
            }
        };
        let seconds = parse_int(&four[3]).and_then(|seconds| u64::try_from(seconds).ok());
        let (Some(hard), Some(soft), Some(seconds)) = (memory(&four[1]), memory(&four[2]), seconds)
        else {
            return Err(
                "Error in hard, soft or soft_seconds setting in buffer limit configuration.".into(),
            );
        };
        limits[class] = OutputLimit {
            hard,
            soft,
            seconds,
        };
    }
    Ok(limits_text(&limits))
}

pub(super) fn limits_text(limits: &[OutputLimit; 3]) -> String {
    let one = |(name, limit): (&str, &OutputLimit)| {
        format!("{name} {} {} {}", limit.hard, limit.soft, limit.seconds)
    };
    let all: Vec<String> = OUTPUT_CLASSES.into_iter().zip(limits).map(one).collect();
    all.join(" ")
}

/// Reads what [`limits_text`] wrote.
pub(super) fn parse_limits(text: &[u8]) -> Option<[OutputLimit; 3]> {
    let text = std::str::from_utf8(text).ok()?;
    let mut numbers = text.split(' ').filter_map(|word| word.parse::<u64>().ok());
    let mut limits = Config::default().output_limits;
    for limit in &mut limits {
        *limit = OutputLimit {
            hard: numbers.next()?,
            soft: numbers.next()?,
            seconds: numbers.next()?,
        };
    }
    Some(limits)
}

/// Three numbers for the master, replicas and background processes.
pub(super) fn oom_scores(_: &Config, words: &[Bytes]) -> Result<String, String> {
    if words.len() != 3 {
        return Err("wrong number of arguments".into());
    }
    let fine = |word: &Bytes| parse_int(word).is_some_and(|n| (-2000..=2000).contains(&n));
    if words.iter().all(fine) {
        Ok(joined(words))
    } else {
        Err("Invalid oom-score-adj-values, elements must be between -2000 and 2000.".into())
    }
}

pub(super) fn percentiles(_: &Config, words: &[Bytes]) -> Result<String, String> {
    let mut numbers = Vec::with_capacity(words.len());
    for word in words {
        let number = std::str::from_utf8(word)
            .ok()
            .and_then(|word| word.parse::<f64>().ok())
            .filter(|number| !number.is_nan())
            .ok_or("Invalid latency-tracking-info-percentiles parameters")?;
        if !(0.0..=100.0).contains(&number) {
            return Err(
                "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]"
                    .into(),
            );
        }
        numbers.push(number);
    }
    Ok(percentiles_text(&numbers))
}

pub(super) fn percentiles_text(numbers: &[f64]) -> String {
    let texts: Vec<String> = numbers.iter().map(|n| percentile_text(*n)).collect();
    texts.join(" ")
}

/// Six digits after the point at most.
pub(crate) fn percentile_text(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Addresses: one that begins with `-` may be absent.
pub(super) fn addresses(_: &Config, words: &[Bytes]) -> Result<String, String> {
    if words.len() > 16 {
        return Err("Too many bind addresses specified.".into());
    }
    Ok(joined(words))
}

/// What SIGTERM and SIGINT mean.
pub(super) fn shutdown(_: &Config, words: &[Bytes]) -> Result<String, String> {
    const NAMES: [&str; 5] = ["default", "save", "nosave", "now", "force"];
    let mut chosen = [false; 5];
    for word in words {
        match one_of(&NAMES, word) {
            Some(at) => chosen[at] = true,
            None => return Err(not_one_of(&NAMES)),
        }
    }
    if words.is_empty() {
        return Err(not_one_of(&NAMES));
    }
    if chosen[1] && chosen[2] {
        return Err("shutdown options SAVE and NOSAVE can't be used simultaneously".into());
    }
    let mut names: Vec<&str> = (1..5)
        .filter(|at| chosen[*at])
        .map(|at| NAMES[at])
        .collect();
    if names.is_empty() {
        names.push(NAMES[0]);
    }
    Ok(names.join(" "))
}

pub(super) fn title_template(text: &[u8]) -> Result<(), String> {
    const NAMES: [&str; 7] = [
        "title",
        "listen-addr",
        "server-mode",
        "port",
        "tls-port",
        "unixsocket",
        "config-file",
    ];
    let text = String::from_utf8_lossy(text);
    let mut rest = text.as_ref();
    let mut fine = !rest.is_empty();
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        // A doubled brace stands for itself.
        if let Some(after) = rest.strip_prefix('{') {
            rest = after;
            continue;
        }
        match rest.find('}') {
            Some(end) if NAMES.contains(&&rest[..end]) => rest = &rest[end + 1..],
            _ => {
                fine = false;
                break;
            }
        }
    }
    if fine {
        Ok(())
    } else {
        Err("template format is invalid or contains unknown variables".into())
    }
}

pub(super) fn hostname(text: &[u8]) -> Result<(), String> {
    if text.len() >= 256 {
        return Err("Hostnames must be less than 256 characters".into());
    }
    let fine = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if text.iter().all(fine) {
        Ok(())
    } else {
        Err("Hostnames may only contain alphanumeric characters, hyphens or dots".into())
    }
}

/// A name of a file without a folder.
pub(super) fn file_name(text: &[u8]) -> Result<(), String> {
    if text.contains(&b'/') || text.is_empty() {
        return Err("the value can't be a path, just a filename".into());
    }
    Ok(())
}

// ---- keyspace events ----

/// The classes that `A` means.
const ALL_EVENTS: u32 = class::GENERIC
    | class::STRING
    | class::LIST
    | class::SET
    | class::HASH
    | class::SORTED_SET
    | class::EXPIRED
    | class::EVICTED
    | class::STREAM
    | class::MODULE;

const EVENT_LETTERS: [(u8, u32); 11] = [
    (b'g', class::GENERIC),
    (b'$', class::STRING),
    (b'l', class::LIST),
    (b's', class::SET),
    (b'h', class::HASH),
    (b'z', class::SORTED_SET),
    (b'x', class::EXPIRED),
    (b'e', class::EVICTED),
    (b't', class::STREAM),
    (b'd', class::MODULE),
    (b'n', class::NEW),
];

pub(super) fn parse_events(text: &[u8]) -> Option<u32> {
    let mut classes = 0;
    for letter in text {
        classes |= match letter {
            b'A' => ALL_EVENTS,
            b'K' => class::KEYSPACE,
            b'E' => class::KEYEVENT,
            b'm' => class::KEY_MISS,
            letter => EVENT_LETTERS.iter().find(|(l, _)| l == letter)?.1,
        };
    }
    Some(classes)
}

pub(super) fn check_events(text: &[u8]) -> Result<(), String> {
    match parse_events(text) {
        Some(_) => Ok(()),
        None => Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".into()),
    }
}

/// As Redis prints it, with `A` where all of its classes are on.
pub(super) fn events_text(classes: u32) -> String {
    let mut text = String::new();
    if classes & ALL_EVENTS == ALL_EVENTS {
        text.push('A');
    } else {
        for (letter, bit) in EVENT_LETTERS {
            if classes & bit != 0 {
                text.push(letter as char);
            }
        }
    }
    for (letter, bit) in [
        ('K', class::KEYSPACE),
        ('E', class::KEYEVENT),
        ('m', class::KEY_MISS),
    ] {
        if classes & bit != 0 {
            text.push(letter);
        }
    }
    text
}
