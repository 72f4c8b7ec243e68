//! Slot balance and hot keys, simulated: a billion users on a thousand nodes in a second.
//!
//! Memory: the number of users in each of the 16,384 slots is drawn as the hash makes it, by a normal approximation of
//! the binomial distribution. Traffic: the users are weighted by Zipf's law; the busiest of them are
//! hashed one by one with the real CRC16, and the long tail, of which nobody weighs, is spread like memory.

use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use redstart::key::slot;

const SLOTS: usize = 16_384;
/// Users that are hashed one by one.
const HEAD: u64 = 200_000;

/// How evenly memory and traffic are spread.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Balance {
    /// Users.
    pub users: u64,
    /// Nodes.
    pub nodes: u64,
    /// The exponent of Zipf's law; 0 is uniform.
    pub exponent: f64,
    /// The memory of the fullest node, relative to the mean.
    pub memory: f64,
    /// The traffic of the busiest node, relative to the mean.
    pub traffic: f64,
    /// The traffic of the busiest slot, relative to the mean.
    pub slot_traffic: f64,
    /// The busiest user's share of all traffic.
    pub hottest_user: f64,
    /// The busiest user's share of its node's traffic.
    pub of_its_node: f64,
}

/// Spreads users over nodes. `exponent` is that of Zipf's law, 0 for uniform traffic.
///
/// ```
/// // Memory is even; one user in a billion is still a hot spot for one node in a thousand.
/// let balance = redstart_load::capacity::simulate(1_000_000_000, 1000, 1.0, 1);
/// assert!(balance.memory < 1.1 && balance.traffic > 20.0);
/// ```
pub fn simulate(users: u64, nodes: u64, exponent: f64, seed: u64) -> Balance {
    let (users, nodes) = (users.max(1), nodes.clamp(1, SLOTS as u64));
    let mut rng = SmallRng::seed_from_u64(seed);
    let memory: Vec<f64> = (0..SLOTS)
        .map(|_| count(&mut rng, users as f64, 1.0 / SLOTS as f64))
        .collect();
    let head = users.min(HEAD);
    let weight = |rank: u64| (rank as f64).powf(-exponent);
    let total = harmonic(users, exponent);
    let mut traffic = vec![0.0; SLOTS];
    let mut head_weight = 0.0;
    let mut hottest_slot = 0;
    for rank in 1..=head {
        let at = usize::from(slot(format!("app:session:{{user:{rank}}}").as_bytes()));
        traffic[at] += weight(rank) / total;
        head_weight += weight(rank);
        if rank == 1 {
            hottest_slot = at;
        }
    }
    let tail = (1.0 - head_weight / total).max(0.0);
    for (at, users_of_slot) in memory.iter().enumerate() {
        traffic[at] += tail * users_of_slot / users as f64;
    }
    let node_of = |at: usize| at * nodes as usize / SLOTS;
    let by_node = |slots: &[f64]| {
        let mut sums = vec![0.0; nodes as usize];
        for (at, amount) in slots.iter().enumerate() {
            sums[node_of(at)] += amount;
        }
        sums
    };
    let (node_memory, node_traffic) = (by_node(&memory), by_node(&traffic));
    let hottest_user = 1.0 / total;
    Balance {
        users,
        nodes,
        exponent,
        memory: peak(&node_memory),
        traffic: peak(&node_traffic),
        slot_traffic: peak(&traffic),
        hottest_user,
        of_its_node: hottest_user / node_traffic[node_of(hottest_slot)].max(1e-12),
    }
}

/// The largest, relative to the mean.
fn peak(amounts: &[f64]) -> f64 {
    let sum: f64 = amounts.iter().sum();
    let most = amounts.iter().copied().fold(0.0, f64::max);
    most * amounts.len() as f64 / sum.max(1e-12)
}

/// A draw of how many of `n` fall into a part of the share `p`.
fn count(rng: &mut SmallRng, n: f64, p: f64) -> f64 {
    // Box and Muller.
    let (u, v): (f64, f64) = (rng.random::<f64>().max(1e-300), rng.random());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    (n * p + normal * (n * p * (1.0 - p)).sqrt()).max(0.0)
}

/// The sum of rank^-s for all ranks up to n, exact for the first and by its integral beyond.
fn harmonic(n: u64, s: f64) -> f64 {
    let head = n.min(10_000);
    let sum: f64 = (1..=head).map(|rank| (rank as f64).powf(-s)).sum();
    let (a, b) = (head as f64 + 0.5, n as f64 + 0.5);
    let rest = if (s - 1.0).abs() < 1e-9 {
        (b / a).ln()
    } else {
        (b.powf(1.0 - s) - a.powf(1.0 - s)) / (1.0 - s)
    };
    sum + rest.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_traffic_is_even_and_the_more_users_the_evener() {
        let few = simulate(1_000_000, 100, 0.0, 1);
        let many = simulate(1_000_000_000, 100, 0.0, 1);
        assert!(many.memory < few.memory && many.memory < 1.02, "{many:?}");
        assert!(many.traffic < 1.05, "{many:?}");
    }

    #[test]
    fn the_hottest_user_is_the_floor_of_the_busiest_node() {
        let balance = simulate(1_000_000_000, 1000, 1.0, 1);
        // By Zipf's law with exponent 1: 1 / (ln 10^9 + 0.577) of all traffic goes to one user.
        assert!(
            (balance.hottest_user - 1.0 / 21.3).abs() < 0.001,
            "{balance:?}"
        );
        assert!(
            balance.traffic >= balance.hottest_user * 1000.0,
            "{balance:?}"
        );
        assert!(balance.of_its_node > 0.9, "{balance:?}");
    }

    #[test]
    fn the_draws_of_memory_agree_with_the_real_hash() {
        // A million real keys: the fullest of 16,384 slots holds what the normal draws say, about 61 + 4 × 7.8.
        let mut slots = vec![0.0f64; SLOTS];
        for n in 0..1_000_000 {
            slots[usize::from(slot(format!("app:session:{{user:{n}}}").as_bytes()))] += 1.0;
        }
        let mut rng = SmallRng::seed_from_u64(1);
        let drawn: Vec<f64> = (0..SLOTS)
            .map(|_| count(&mut rng, 1e6, 1.0 / SLOTS as f64))
            .collect();
        let (real, model) = (peak(&slots), peak(&drawn));
        assert!((real / model - 1.0).abs() < 0.15, "{real} and {model}");
    }
}
