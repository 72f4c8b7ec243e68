//! Random values of every type and encoding, as the commands that make them.

use bytes::Bytes;

/// Numbers by a seed (SplitMix64).
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// An integer of a random size, also near the borders of the encodings.
    fn int(&mut self) -> i64 {
        let value = (self.next() >> self.below(64)) as i64;
        match self.below(4) {
            0 => value.wrapping_neg(),
            1 => (1i64 << self.below(63)).wrapping_sub(1 - self.below(3) as i64),
            2 => (1i64 << self.below(63))
                .wrapping_neg()
                .wrapping_sub(1 - self.below(3) as i64),
            _ => value,
        }
    }

    /// A string of some kind, seldom a long one.
    fn text(&mut self) -> Bytes {
        let len = match self.below(20) {
            0 => 0,
            1..=12 => self.below(12),
            13..=16 => self.below(80),
            17..=18 => self.below(400),
            _ => self.below(9000),
        } as usize;
        match self.below(6) {
            0 => Bytes::from(self.int().to_string()),
            1 => Bytes::from(format!("{}.{}", self.int() % 1000, self.below(1000))),
            2 => (0..len).map(|_| self.next() as u8).collect(),
            3 => "again and again ".repeat(len / 16 + 1)[..len]
                .to_owned()
                .into(),
            4 => Bytes::from(vec![b'a' + self.below(26) as u8; len]),
            _ => (0..len).map(|_| b'a' + self.below(26) as u8).collect(),
        }
    }

    fn score(&mut self) -> String {
        match self.below(8) {
            0 => "inf".into(),
            1 => "-inf".into(),
            2 => format!("{}", self.int() % (1 << 53)),
            3 => format!(
                "{:e}",
                f64::from_bits(self.next() & !(0x7FF << 52) | 900 << 52)
            ),
            4 => format!("{}", self.below(1000) as f64 / 8.0),
            _ => format!("{}", self.below(300)),
        }
    }
}

fn word(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn start(name: &str, key: &Bytes) -> Vec<Bytes> {
    vec![word(name), key.clone()]
}

/// The commands that make a value.
pub(crate) struct Recipe {
    pub(crate) commands: Vec<Vec<Bytes>>,
    /// Two servers that run them have the same value to the last byte: no times, and no order by chance.
    pub(crate) exact: bool,
}

/// The kinds of values that every server has, in turn.
pub(crate) const KINDS: u64 = 8;

/// A hash of which some or all fields expire some day: for servers that have such.
pub(crate) fn expiring_hash(chance: &mut Chance, key: &Bytes) -> Recipe {
    let mut set = start("HSET", key);
    let mut fields = Vec::new();
    for n in 0..chance.one_of(&[1, 2, 5, 60, 700]) {
        let field = match chance.below(4) {
            0 => chance.text(),
            _ => word(&format!("field:{n}")),
        };
        set.extend([field.clone(), chance.text()]);
        fields.push(field);
    }
    let mut commands = vec![set];
    let keeps = chance.below(3);
    let common = chance.below(1 << 40);
    for field in fields {
        if keeps > 0 && chance.below(3) < keeps {
            continue;
        }
        let at = match chance.below(3) {
            0 => common,
            _ => chance.below(1 << 44),
        };
        let mut expire = start("HPEXPIREAT", key);
        expire.push(word(&(33_177_117_420_000 + at).to_string()));
        expire.extend([word("FIELDS"), word("1"), field]);
        commands.push(expire);
    }
    Recipe {
        commands,
        exact: false,
    }
}

pub(crate) fn value(chance: &mut Chance, kind: u64, key: &Bytes) -> Recipe {
    let mut exact = true;
    let commands = match kind % KINDS {
        0 => {
            let mut set = start("SET", key);
            set.push(chance.text());
            vec![set]
        }
        1 => {
            let count = chance.one_of(&[1, 3, 20, 200, 1500]);
            let mut commands = Vec::new();
            for _ in 0..count {
                let mut push = start("RPUSH", key);
                push.push(chance.text());
                commands.push(push);
            }
            commands
        }
        2 => {
            let ints = chance.below(2) == 0;
            let count = chance.one_of(&[1, 5, 100, 600]);
            let bits = chance.below(60);
            let mut add = start("SADD", key);
            for _ in 0..count {
                add.push(if ints {
                    word(&((chance.next() >> bits) as i64).to_string())
                } else {
                    chance.text()
                });
            }
            exact = false;
            vec![add]
        }
        3 => {
            let count = chance.one_of(&[1, 5, 100, 700]);
            let mut set = start("HSET", key);
            for _ in 0..count {
                set.extend([chance.text(), chance.text()]);
            }
            exact = false;
            vec![set]
        }
        4 => {
            let count = chance.one_of(&[1, 5, 100, 300]);
            let mut add = start("ZADD", key);
            for _ in 0..count {
                let score = chance.score();
                add.extend([word(&score), chance.text()]);
            }
            vec![add]
        }
        5 => {
            let mut add = start("PFADD", key);
            for _ in 0..chance.one_of(&[1, 50, 3000]) {
                add.push(word(&chance.next().to_string()));
            }
            vec![add]
        }
        6 => {
            let (commands, has_groups) = stream(chance, key);
            exact = !has_groups;
            commands
        }
        _ => {
            // A hash and a set that stay small enough to be packed.
            let mut set = start("HSET", key);
            for field in 0..chance.one_of(&[1, 4, 60]) {
                set.extend([
                    word(&format!("field:{field}")),
                    word(&chance.int().to_string()),
                ]);
            }
            vec![set]
        }
    };
    Recipe { commands, exact }
}

fn stream(chance: &mut Chance, key: &Bytes) -> (Vec<Vec<Bytes>>, bool) {
    let mut commands = Vec::new();
    let mut ids = Vec::new();
    let (mut ms, mut seq) = (chance.below(1 << 40), chance.below(1 << 20));
    for _ in 0..chance.one_of(&[1, 10, 150, 400]) {
        if chance.below(3) == 0 {
            ms += 1 + chance.below(1 << 30);
            seq = chance.below(3);
        } else {
            seq += 1 + chance.below(300);
        }
        let id = word(&format!("{ms}-{seq}"));
        let mut add = start("XADD", key);
        add.push(id.clone());
        if chance.below(5) > 0 {
            add.extend([
                word("temperature"),
                chance.text(),
                word("place"),
                word("here"),
            ]);
        } else {
            for _ in 0..=chance.below(4) {
                add.extend([chance.text(), chance.text()]);
            }
        }
        commands.push(add);
        ids.push(id);
    }
    for id in &ids {
        if chance.below(8) == 0 {
            let mut delete = start("XDEL", key);
            delete.push(id.clone());
            commands.push(delete);
        }
    }
    let mut line = |line: String| {
        let words = line.split(' ').map(word);
        let replaced = words.map(|word| if word == "KEY" { key.clone() } else { word });
        commands.push(replaced.collect());
    };
    if chance.below(4) == 0 {
        line(format!("XTRIM KEY MAXLEN {}", chance.below(200)));
    }
    let groups = chance.below(3);
    for group in 0..groups {
        line(format!("XGROUP CREATE KEY group:{group} 0"));
        for consumer in 0..chance.below(4) {
            line(format!(
                "XGROUP CREATECONSUMER KEY group:{group} idle:{consumer}"
            ));
            line(format!(
                "XGROUP CREATECONSUMER KEY group:{group} reader:{consumer}"
            ));
            let count = 1 + chance.below(50);
            line(format!(
                "XREADGROUP GROUP group:{group} reader:{consumer} COUNT {count} STREAMS KEY >"
            ));
        }
        for id in &ids {
            if chance.below(6) == 0 {
                line(format!(
                    "XACK KEY group:{group} {}",
                    String::from_utf8_lossy(id)
                ));
            }
        }
    }
    (commands, groups > 0)
}
