//! A follow graph over many shards: both sides or neither, suggestions, a block, and a repair.
//!
//! Run it with `cargo run -p redstart-examples --example follow_graph`.

use std::time::Duration;

use redstart::social::Graph;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    let graph = Graph::builder(&store, "app", "people").shards(16).build()?;

    for (a, b) in [
        ("ann", "bob"),
        ("ann", "cid"),
        ("ann", "dee"),
        ("bob", "ann"),
        ("bob", "eve"),
        ("cid", "eve"),
        ("dee", "eve"),
        ("cid", "fay"),
        ("dee", "fay"),
        ("bob", "gus"),
    ] {
        println!("{a} follows {b}: {:?}", graph.follow(a, b).await?);
    }
    println!("again: {:?}", graph.follow("ann", "bob").await?);

    let counts = graph.counts("eve").await?;
    println!("\neve has {} followers:", counts.followers);
    let mut from = None;
    loop {
        let page = graph.followers("eve", from.as_ref(), 2).await?;
        for edge in &page.edges {
            println!("  {}", edge.account);
        }
        match page.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    for edge in graph.mutuals("ann", None, 10).await?.edges {
        println!("ann and {} follow each other", edge.account);
    }

    println!("\nsuggestions for ann");
    for suggestion in graph.suggestions("ann", 5).await? {
        println!(
            "  {}, followed by {}",
            suggestion.account,
            suggestion.common.join(", ")
        );
    }

    graph.block("eve", "bob").await?;
    println!(
        "\neve blocks bob; bob follows eve: {:?}",
        graph.follow("bob", "eve").await?
    );
    println!("eve has {} followers", graph.counts("eve").await?.followers);
    // Run it every few seconds: it completes what a crashed caller left on one side only.
    let repaired = graph.repair(Duration::from_secs(5)).await?;
    println!("repaired: {}", repaired.completed);
    Ok(())
}
