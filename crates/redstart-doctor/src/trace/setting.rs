//! The settings that processes send along with Redstart's scripts: the quota of a limiter, the TTL of a cache.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::LazyLock,
};

/// Keys and connections that are compared.
const MOST: usize = 10_000;
/// Quotas of one subject, and connections of one quota.
const FEW: usize = 16;
/// The longest key that is kept, in bytes.
const LONGEST: usize = 512;

/// What a script tells of its caller's settings.
#[derive(Clone, Copy)]
enum Reads {
    /// Each key ends with the quota.
    Quotas,
    /// Argument 3 is how long an entry is kept.
    Ttl,
}

/// By the script's digest.
static SCRIPTS: LazyLock<HashMap<String, Reads>> = LazyLock::new(|| {
    redstart::script::all()
        .into_iter()
        .filter_map(|script| {
            let reads = match script.name() {
                "fixed_window.check"
                | "sliding_window.check"
                | "sliding_counter.check"
                | "token_bucket.check_exact"
                | "token_bucket.check_ledger"
                | "token_bucket.check_whole"
                | "limiter.check_all" => Reads::Quotas,
                "cache.fill" => Reads::Ttl,
                _ => return None,
            };
            Some((script.digest().to_owned(), reads))
        })
        .collect()
});

/// Which connections sent which quota.
type Quotas = BTreeMap<String, BTreeSet<u32>>;

/// Quotas and TTLs, by who sent them.
#[derive(Default)]
pub(crate) struct Settings {
    /// For each limit of each subject.
    subjects: HashMap<String, Quotas>,
    /// For each limit of each limiter, whatever the subject.
    limiters: HashMap<String, Quotas>,
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
        // Redstart's own keys are short.
        if words.iter().any(|word| word.len() > LONGEST) && !matches!(reads, Reads::Ttl) {
            return;
        }
        let keys = text(2).and_then(|keys| keys.parse::<usize>().ok());
        let keys = keys.unwrap_or(0).min(64);
        match reads {
            Reads::Quotas => {
                for at in 3..3 + keys {
                    if let Some(key) = text(at) {
                        self.quota(key, client);
                    }
                }
            }
            Reads::Ttl => {
                let ttl = text(5 + keys).and_then(|text| text.parse::<f64>().ok());
                if let (Some(key), Some(ttl)) =
                    (words.get(3).filter(|key| key.len() <= LONGEST), ttl)
                {
                    self.ttl(key, ttl, client);
                }
            }
        }
    }

    /// `shop:limiter.api:{ann}:t10/1000+100`, or `shop:limiter.api:{ann}:daily:f100/86400000` for a further limit.
    fn quota(&mut self, key: &str, client: u32) {
        let Some((limit, quota)) = key.rsplit_once(':') else {
            return;
        };
        let Some((limiter, _)) = limit.split_once(":{") else {
            return;
        };
        let further = limit.rsplit_once('}').map_or("", |(_, further)| further);
        note(&mut self.subjects, limit.to_owned(), quota, client);
        note(
            &mut self.limiters,
            format!("{limiter}{further}"),
            quota,
            client,
        );
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

    /// Limits of subjects that were asked for with different quotas by different processes, and how many quotas.
    ///
    /// Plans with quotas of their own are no mistake. They are told by connections that send more than one of the quotas, to
    /// whichever subject.
    pub(crate) fn two_quotas(&self) -> Vec<(&str, usize)> {
        self.subjects
            .iter()
            .filter(|(limit, quotas)| {
                let (limiter, rest) = limit.split_once(":{").unwrap_or((limit, ""));
                let further = rest.rsplit_once('}').map_or("", |(_, further)| further);
                let Some(all) = self.limiters.get(&format!("{limiter}{further}")) else {
                    return false;
                };
                let sent: Vec<&BTreeSet<u32>> =
                    quotas.keys().filter_map(|quota| all.get(quota)).collect();
                let apart = |at: usize| {
                    sent[at + 1..]
                        .iter()
                        .any(|other| sent[at].is_disjoint(other))
                };
                (0..sent.len()).any(apart)
            })
            .map(|(limit, quotas)| (limit.as_str(), quotas.len()))
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

fn note(limits: &mut HashMap<String, Quotas>, limit: String, quota: &str, client: u32) {
    if limits.len() >= MOST && !limits.contains_key(&limit) {
        return;
    }
    let quotas = limits.entry(limit).or_default();
    if quotas.len() >= FEW && !quotas.contains_key(quota) {
        return;
    }
    let clients = quotas.entry(quota.to_owned()).or_default();
    if clients.len() < FEW {
        clients.insert(client);
    }
}
