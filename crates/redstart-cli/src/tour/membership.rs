//! Bloom filter, places, social graph.

use redstart::{
    location::{Area, Places, Position},
    membership::Bloom,
    social::{Followed, Graph},
};

use super::{Family, Stage, Step};

pub(crate) const FAMILY: Family = Family {
    name: "membership, location and graph",
    steps: &[
        Step {
            pattern: "bloom",
            run: |stage| Box::pin(bloom(stage)),
        },
        Step {
            pattern: "places",
            run: |stage| Box::pin(places(stage)),
        },
        Step {
            pattern: "graph",
            run: |stage| Box::pin(graph(stage)),
        },
    ],
};

async fn bloom(stage: &mut Stage) -> anyhow::Result<()> {
    let (store, namespace) = (stage.store().clone(), stage.namespace().to_owned());
    let open = |capacity| {
        Bloom::builder(&store, &namespace, "urls")
            .capacity(capacity)
            .error_rate(0.01)
            .create()
    };
    let seen = open(5000).await?;
    let urls: Vec<String> = (0..5000)
        .map(|n| format!("https://example.com/{n}"))
        .collect();
    for chunk in urls.chunks(1000) {
        seen.add_many(chunk).await?;
    }
    let mut missed = 0;
    for chunk in urls.chunks(1000) {
        missed += seen
            .contains_many(chunk)
            .await?
            .iter()
            .filter(|known| !**known)
            .count();
    }
    stage.claim(missed == 0, "an added element is always found")?;
    let others: Vec<String> = (0..5000)
        .map(|n| format!("https://example.org/{n}"))
        .collect();
    let mut wrong = 0;
    for chunk in others.chunks(1000) {
        wrong += seen
            .contains_many(chunk)
            .await?
            .iter()
            .filter(|known| **known)
            .count();
    }
    // 50 are expected; 100 is seven standard deviations away.
    stage.claim(
        wrong <= 100,
        "about one in a hundred of the others is taken for known",
    )?;
    stage.claim(
        open(99).await.is_err(),
        "reopening with another capacity is refused",
    )?;
    stage.did(15_000);
    stage.show(format!(
        "5,000 URLs all found; {wrong} of 5,000 others wrongly taken for known, at a rate of 1 %"
    ));
    Ok(())
}

async fn places(stage: &mut Stage) -> anyhow::Result<()> {
    let people = Places::new(stage.store(), stage.namespace(), "people")?;
    let (mut surely, mut perhaps) = (0, 0);
    let home = Position::new(179.99, 10.0)?;
    people.put("home", home).await?;
    for n in 0..200 {
        // Around the antimeridian, where naive boxes break.
        let longitude = 179.9 + f64::from(n % 20) * 0.01;
        let longitude = if longitude > 180.0 {
            longitude - 360.0
        } else {
            longitude
        };
        let position = Position::new(longitude, 9.95 + f64::from(n / 20) * 0.01)?;
        // Positions are stored to within a metre.
        surely += usize::from(home.distance(position) < 4_998.0);
        perhaps += usize::from(home.distance(position) < 5_002.0);
        people.put(&format!("person-{n}"), position).await?;
    }
    let found = people
        .nearby("home", Area::Radius(5_000.0))
        .limit(1000)
        .exclude_self()
        .find()
        .await?;
    stage.claim(
        (surely..=perhaps).contains(&found.len()),
        &format!(
            "a search finds {} people, geometry says {surely} to {perhaps}",
            found.len()
        ),
    )?;
    stage.claim(
        found.iter().all(|nearby| nearby.member != "home"),
        "the searching member is excluded",
    )?;
    stage.claim(
        Position::new(0.0, 89.0).is_err(),
        "a latitude that the server cannot store is refused before the call",
    )?;
    let private = people.private(500.0)?;
    let hidden = private.nearby("home", 5_000.0, 5).await?;
    stage.claim(
        hidden.iter().all(|nearby| nearby.within % 500.0 == 0.0),
        "the private view reveals rounded distances only",
    )?;
    stage.did(203);
    stage.show(format!(
        "{} of 200 people found within 5 km, on both sides of the antimeridian",
        found.len()
    ));
    Ok(())
}

async fn graph(stage: &mut Stage) -> anyhow::Result<()> {
    let graph = Graph::new(stage.store(), stage.namespace(), "people")?;
    for (a, b) in [
        ("ann", "bob"),
        ("ann", "cid"),
        ("bob", "ann"),
        ("bob", "dan"),
        ("cid", "dan"),
        ("cid", "eve"),
        ("dan", "ann"),
    ] {
        stage.claim(
            graph.follow(a, b).await? == Followed::New,
            "a first follow is new",
        )?;
    }
    stage.claim(
        graph.follow("ann", "bob").await? != Followed::New,
        "a second one is not",
    )?;
    let counts = graph.counts("ann").await?;
    stage.claim(
        (counts.followers, counts.following) == (2, 2),
        "both sides are written",
    )?;
    let suggestions: Vec<String> = graph
        .suggestions("ann", 5)
        .await?
        .into_iter()
        .map(|s| s.account)
        .collect();
    stage.claim(
        suggestions == ["dan", "eve"],
        "friends of friends, those with most common friends first",
    )?;
    graph.block("eve", "ann").await?;
    stage.claim(
        graph.follow("ann", "eve").await? == Followed::Blocked,
        "a blocked account cannot follow",
    )?;
    stage.claim(
        graph.unfollow("ann", "bob").await? && !graph.is_following("ann", "bob").await?,
        "unfollow removes both sides",
    )?;
    stage.did(13);
    stage.show("dan is suggested to ann before eve, because two of her friends follow him");
    Ok(())
}
