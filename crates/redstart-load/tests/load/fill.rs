//! What the table of costs predicts is what real fills take.

use redstart::Store;
use redstart_load::capacity::{CostTable, fillings, measure_fill};
use redstart_testkit::{Kind, Server, figure, scale};

/// Fills an empty server of this kind, and compares with the table.
async fn predicted(kind: Kind, name: &str) -> anyhow::Result<()> {
    let entities = scale(20_000, "fill entities");
    let table = CostTable::built_in()?;
    let costs = table.server(name)?;
    for filling in fillings() {
        // Those of which a large deployment has most, small and large, one key per entity and one key for all.
        if !["token_bucket", "check_ins", "leaderboard", "session"].contains(&filling.kind()) {
            continue;
        }
        let server = Server::builder(kind).start().await?;
        let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
        let value = filling.values()[0];
        let taken = measure_fill(&store, "fill", &filling, value, entities).await?;
        let cost = costs.entity(filling.kind()).expect("a measured entity");
        let ratio = taken / cost.bytes(value as f64);
        figure(format!(
            "{name} {}: {entities} entities, {ratio:.3} of the prediction",
            filling.kind()
        ));
        assert!(
            (0.875..=1.125).contains(&ratio),
            "{name} {}: {ratio}",
            filling.kind()
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_on_redis_is_predicted_within_an_eighth() -> anyhow::Result<()> {
    predicted(Kind::Redis, "redis").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_on_valkey_is_predicted_within_an_eighth() -> anyhow::Result<()> {
    predicted(Kind::Valkey, "valkey").await
}
