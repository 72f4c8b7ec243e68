//! The settings that processes send along with Redstart's scripts: the quota of a limiter, the TTL of a cache.

use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

/// Keys and connections that are compared.
const MOST: usize = 10_000;

/// What a script's arguments say.
#[derive(Clone, Copy)]
enum Reads {
    /// Arguments 2 and 3 are limit and window.
    LimitAndWindow,
    /// Arguments 1 and 2 add up to the capacity, argument 3 is the rate.
    CapacityAndRate,
    /// Arguments 1 and 2 add up to the capacity.
    Capacity,
    /// Argument 3 is how long an entry is kept.
    Ttl,
}

/// By the script's digest.
static SCRIPTS: LazyLock<HashMap<String, Reads>> = LazyLock::new(|| {
    redstart::script::all()
        .into_iter()
        .filter_map(|script| {
            let reads = match script.name() {
                "fixed_window.check" | "sliding_window.check" | "sliding_counter.check" => {
                    Reads::LimitAndWindow
                }
                "token_bucket.check_exact" | "token_bucket.check_ledger" => Reads::CapacityAndRate,
                "token_bucket.check_whole" => Reads::Capacity,
                "cache.fill" => Reads::Ttl,
                _ => return None,
            };
            Some((script.digest().to_owned(), reads))
        })
        .collect()
});

/// Quotas and TTLs, by who sent them.
#[derive(Default)]
pub(crate) struct Settings {
    /// For each key of a limiter, the quotas and the last connection that sent each.
    quotas: HashMap<Vec<u8>, BTreeMap<String, u32>>,
    /// For each cache, the shortest and the longest TTL that each connection sent, and how often.
    ttls: HashMap<String, BTreeMap<u32, (f64, f64, u64)>>,
}

impl Settings {
    /// Takes the words of an EVALSHA.
    pub(crate) fn see(&mut self, words: &[Vec<u8>], client: u32) {
        let text = |i: usize| words.get(i).and_then(|word| std::str::from_utf8(word).ok());
        let Some(reads) = text(1).and_then(|digest| SCRIPTS.get(digest)) else {
            return;
        };
        let Some((keys, key)) = text(2)
            .and_then(|keys| keys.parse::<usize>().ok())
            .zip(words.get(3))
        else {
            return;
        };
        let argument =
            |n: usize| text(2 + keys.min(64) + n).and_then(|text| text.parse::<f64>().ok());
        let quota = match reads {
            Reads::LimitAndWindow => argument(2)
                .zip(argument(3))
                .map(|(limit, window)| format!("{limit} per {window}")),
            Reads::CapacityAndRate => argument(1)
                .zip(argument(2))
                .zip(argument(3))
                .map(|((cost, room), rate)| format!("{} at {rate}", cost + room)),
            Reads::Capacity => argument(1)
                .zip(argument(2))
                .map(|(cost, room)| format!("{}", cost + room)),
            Reads::Ttl => {
                if let Some(ttl) = argument(3) {
                    self.ttl(key, ttl, client);
                }
                None
            }
        };
        if let Some(quota) = quota
            && (self.quotas.len() < MOST || self.quotas.contains_key(key))
        {
            let quotas = self.quotas.entry(key.clone()).or_default();
            if quotas.len() < 16 {
                quotas.insert(quota, client);
            }
        }
    }

    fn ttl(&mut self, key: &[u8], ttl: f64, client: u32) {
        // `shop:cache.product:{7}` is an entry of the cache `shop:cache.product`.
        let Some(cache) = std::str::from_utf8(key)
            .ok()
            .and_then(|key| key.split(":{").next())
        else {
            return;
        };
        if self.ttls.len() >= MOST && !self.ttls.contains_key(cache) {
            return;
        }
        let clients = self.ttls.entry(cache.to_owned()).or_default();
        if clients.len() < 1000 {
            let (low, high, fills) = clients.entry(client).or_insert((ttl, ttl, 0));
            *low = low.min(ttl);
            *high = high.max(ttl);
            *fills += 1;
        }
    }

    /// Keys whose limiter was asked with different quotas by different connections, and how many quotas.
    pub(crate) fn two_quotas(&self) -> Vec<(&[u8], usize)> {
        self.quotas
            .iter()
            .filter(|(_, quotas)| {
                let mut clients: Vec<u32> = quotas.values().copied().collect();
                clients.sort_unstable();
                clients.dedup();
                quotas.len() > 1 && clients.len() > 1
            })
            .map(|(key, quotas)| (key.as_slice(), quotas.len()))
            .collect()
    }

    /// Caches into which connections put entries of clearly different TTLs: name, shortest and longest in ms.
    pub(crate) fn two_ttls(&self) -> Vec<(&str, f64, f64)> {
        self.ttls
            .iter()
            .filter_map(|(cache, clients)| {
                // Jitter spreads the TTLs of one connection; two settings do not overlap.
                let usual = clients.values().filter(|(_, _, fills)| *fills >= 3);
                let shortest = usual
                    .clone()
                    .map(|(_, high, _)| *high)
                    .fold(f64::INFINITY, f64::min);
                let longest = usual.map(|(low, _, _)| *low).fold(0.0, f64::max);
                (longest > shortest * 1.5).then_some((cache.as_str(), shortest, longest))
            })
            .collect()
    }
}
