use std::collections::{BTreeMap, HashSet};

use rand::RngExt as _;
use redstart::{
    Store,
    ranking::{Replacement, WeightedChoice},
};
use redstart_testkit::{Backend, matrix, scale};

/// The chi-square statistic of what was drawn against what the weights say, and its mean and deviation.
async fn chi_square(
    choice: &WeightedChoice,
    model: &BTreeMap<String, u64>,
    draws: u64,
) -> anyhow::Result<(f64, f64, f64)> {
    let mut drawn: BTreeMap<String, u64> = BTreeMap::new();
    let mut left = draws;
    while left > 0 {
        let n = left.min(1000) as u32;
        for member in choice.pick_many(n, Replacement::With).await? {
            *drawn.entry(member).or_default() += 1;
        }
        left -= u64::from(n);
    }
    assert_eq!(drawn.values().sum::<u64>(), draws);
    assert!(drawn.keys().all(|member| model.contains_key(member)));
    let total: u64 = model.values().sum();
    let statistic = model
        .iter()
        .map(|(member, weight)| {
            let expected = *weight as f64 / total as f64 * draws as f64;
            let seen = drawn.get(member).copied().unwrap_or(0) as f64;
            (seen - expected).powi(2) / expected
        })
        .sum();
    let freedom = (model.len() - 1) as f64;
    Ok((statistic, freedom, (2.0 * freedom).sqrt()))
}

matrix! {
    async fn draws_follow_the_weights_after_many_changes(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let choice = WeightedChoice::new(&store, backend.namespace(), "c")?;
        let mut model: BTreeMap<String, u64> = BTreeMap::new();
        for _ in 0..scale(400, "WEIGHTED_CHANGES") {
            let (member, weight) = {
                let mut rng = rand::rng();
                (format!("m{}", rng.random_range(0..60)), rng.random_range(1..100))
            };
            let old = if weight % 4 == 0 {
                let old = choice.remove(&member).await?;
                assert_eq!(old, model.remove(&member));
                continue;
            } else {
                choice.set(&member, weight).await?
            };
            assert_eq!(old, model.insert(member, weight));
        }
        assert_eq!(choice.total().await?, (model.len() as u64, model.values().sum()));
        let (statistic, mean, deviation) =
            chi_square(&choice, &model, scale(20_000, "WEIGHTED_PICKS")).await?;
        // Six deviations: a right sampler fails this less than once in a million runs.
        assert!(statistic < mean + 6.0 * deviation, "{statistic} for {mean} ± {deviation}");
        for member in model.keys() {
            choice.remove(member).await?;
        }
        assert_eq!(choice.pick().await?, None);
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), 0);
        Ok(())
    }

    async fn without_replacement_nobody_is_drawn_twice_and_nothing_changes(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let choice = WeightedChoice::new(&store, backend.namespace(), "c")?;
        for n in 1..=50 {
            choice.set(&format!("m{n}"), n).await?;
        }
        for n in [1, 10, 50, 80] {
            let drawn = choice.pick_many(n, Replacement::Without).await?;
            assert_eq!(drawn.len(), n.min(50) as usize);
            assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), drawn.len());
        }
        assert_eq!(choice.total().await?, (50, 1275));
        Ok(())
    }

    async fn draws_follow_the_weights_up_to_the_largest_sum(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let choice = WeightedChoice::new(&store, backend.namespace(), "c")?;
        let mut model: BTreeMap<String, u64> = BTreeMap::new();
        for n in 0..1024 {
            choice.set(&format!("m{n}"), WeightedChoice::MAX_WEIGHT).await?;
        }
        assert_eq!(choice.total().await?.1, 1 << 50);
        assert!(choice.set("more", 1).await.unwrap_err().is_config());
        // Most of the weight on two members, so that few draws say something.
        for n in 2..1024 {
            choice.remove(&format!("m{n}")).await?;
        }
        choice.set("m1", 1 << 39).await?;
        model.insert("m0".to_owned(), 1 << 40);
        model.insert("m1".to_owned(), 1 << 39);
        let (statistic, mean, deviation) = chi_square(&choice, &model, 6_000).await?;
        assert!(statistic < mean + 15.0 * deviation, "{statistic} for {mean} ± {deviation}");
        Ok(())
    }

    async fn bad_weights_are_refused_before_the_network(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let choice = WeightedChoice::new(&store, backend.namespace(), "c")?;
        for weight in [0, WeightedChoice::MAX_WEIGHT + 1] {
            assert!(choice.set("a", weight).await.unwrap_err().is_config());
        }
        assert!(choice.set("", 1).await.unwrap_err().is_config());
        assert!(choice.pick_many(1001, Replacement::With).await.unwrap_err().is_config());
        assert_eq!(choice.total().await?, (0, 0));
        Ok(())
    }
}

/// A change of one weight touches a number of fields that grows with the logarithm.
#[tokio::test]
async fn a_change_touches_few_numbers() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let choice = WeightedChoice::new(&store, "touch", "c")?;
    let size = 2000u64;
    for n in 0..size {
        choice.set(&format!("m{n}"), 1 + n % 7).await?;
    }
    let tree = store.scan("touch:*:tree").await?.remove(0);
    let read = async || {
        store
            .query::<BTreeMap<u64, i64>>(redis::cmd("HGETALL").arg(&tree))
            .await
    };
    let before = read().await?;
    choice.set("m3", 1000).await?;
    let after = read().await?;
    let touched = after
        .iter()
        .filter(|(node, sum)| before.get(node) != Some(sum))
        .count() as f64;
    assert!(
        touched <= (size as f64).log2().ceil() + 1.0,
        "{touched} nodes"
    );
    Ok(())
}
