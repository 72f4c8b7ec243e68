use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand::RngExt as _;
use redstart::{
    Store,
    location::{Area, Places, Position, PrivateNearby},
};
use redstart_testkit::{Backend, eventually, matrix, scale};

/// Points everywhere, more of them where it is hard: at the antimeridian and at high latitudes.
fn random_position() -> Position {
    let mut rng = rand::rng();
    let longitude = match rng.random_range(0..3) {
        0 => rng.random_range(-180.0..=180.0),
        1 => rng.random_range(175.0..=180.0),
        _ => rng.random_range(-180.0..=-175.0),
    };
    let latitude = match rng.random_range(0..3) {
        0 => rng.random_range(-Position::MAX_LATITUDE..=Position::MAX_LATITUDE),
        1 => {
            rng.random_range(78.0..=Position::MAX_LATITUDE) * if rng.random() { 1.0 } else { -1.0 }
        }
        _ => rng.random_range(-5.0..=5.0),
    };
    Position::new(longitude, latitude).expect("on the map")
}

/// Whether a point is in the area, with the room that rounding may take: `None` if it is too near to the edge.
fn inside(origin: Position, area: Area, point: Position) -> Option<bool> {
    let within = |length: f64, limit: f64| {
        ((length - limit).abs() > 0.01 + limit * 1e-9).then_some(length <= limit)
    };
    match area {
        Area::Radius(radius) => within(origin.distance(point), radius),
        Area::Box { width, height } => {
            // As the server measures a box: along the meridian, and along the point's own parallel.
            let on_meridian =
                Position::new(origin.longitude(), point.latitude()).expect("on the map");
            let up = within(origin.distance(on_meridian), height / 2.0)?;
            let across = within(on_meridian.distance(point), width / 2.0)?;
            Some(up && across)
        }
        _ => None,
    }
}

matrix! {
    async fn searches_equal_a_brute_force_haversine(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let places = Places::new(&store, backend.namespace(), "p")?;
        let mut stored: BTreeMap<String, Position> = BTreeMap::new();
        for n in 0..scale(300, "PLACES") {
            let member = format!("m{n}");
            places.put(&member, random_position()).await?;
            // What is stored, not what was given: positions are rounded to 52 bits.
            let position = places.position(&member).await?.expect("just put");
            stored.insert(member, position);
        }
        let mut found_any = 0;
        for query in 0..scale(250, "PLACE_QUERIES") {
            let (area, from_member, pick) = {
                let mut rng = rand::rng();
                let mut length = |max: f64| 10f64.powf(rng.random_range(2.0..max.log10()));
                let area = if query % 2 == 0 {
                    Area::Radius(length(4_000_000.0))
                } else {
                    Area::Box { width: length(8_000_000.0), height: length(8_000_000.0) }
                };
                (area, query % 3 == 0, rng.random_range(0..stored.len()))
            };
            let (member, position) = stored.iter().nth(pick).expect("a member");
            let origin = if from_member { *position } else { random_position() };
            let search = if from_member {
                places.nearby(member, area).exclude_self()
            } else {
                places.nearby(origin, area)
            };
            let found = search.limit(Places::MAX_FOUND).find().await?;
            let names: BTreeSet<&String> = found.iter().map(|near| &near.member).collect();
            assert_eq!(names.len(), found.len());
            found_any += found.len();
            for (other, position) in &stored {
                if from_member && other == member {
                    assert!(!names.contains(other));
                } else if let Some(expected) = inside(origin, area, *position) {
                    assert_eq!(
                        names.contains(other), expected,
                        "{other} at {position:?}, {} m from {origin:?}, {area:?}", origin.distance(*position)
                    );
                }
            }
            for near in &found {
                assert!((near.distance - origin.distance(near.position)).abs() < 0.01);
                assert!((near.position.distance(stored[&near.member])) < 0.001);
            }
            assert!(found.windows(2).all(|two| two[0].distance <= two[1].distance));
            let few = places.nearby(origin, area).limit(3).find().await?;
            let nearest: Vec<f64> = found.iter().map(|near| near.distance).take(3).collect();
            if !from_member {
                assert_eq!(few.iter().map(|near| near.distance).collect::<Vec<_>>(), nearest);
            }
        }
        assert!(found_any > 100, "{found_any}");
        Ok(())
    }

    async fn a_member_on_the_antimeridian_is_found_from_both_sides(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let places = Places::new(&store, backend.namespace(), "edge")?;
        for (name, longitude) in [("east", 180.0), ("west", -180.0)] {
            places.put(name, Position::new(longitude, 10.0)?).await?;
        }
        places.put("north", Position::new(30.0, Position::MAX_LATITUDE)?).await?;
        for longitude in [179.99, -179.99, 180.0] {
            let near = places.nearby(Position::new(longitude, 10.0)?, Area::Radius(5_000.0)).limit(10).find().await?;
            assert_eq!(near.len(), 2, "from {longitude}: {near:?}");
        }
        let top = Position::new(30.0, Position::MAX_LATITUDE - 0.001)?;
        assert_eq!(places.nearby(top, Area::Radius(5_000.0)).limit(10).find().await?.len(), 1);
        Ok(())
    }

    async fn members_are_put_moved_and_removed(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let places = Places::new(&store, backend.namespace(), "p")?;
        let (palermo, catania) = (Position::new(13.361389, 38.115556)?, Position::new(15.087269, 37.502669)?);
        assert!(!places.move_to("ann", palermo).await?);
        assert_eq!(places.position("ann").await?, None);
        assert!(places.put("ann", palermo).await? && !places.put("ann", palermo).await?);
        assert!(places.put("bob", catania).await?);
        let distance = places.distance("ann", "bob").await?.expect("both are there");
        assert!((distance - 166_274.15).abs() < 1.0, "{distance}");
        assert_eq!(places.geohash("ann").await?.as_deref(), Some("sqc8b49rny0"));
        assert_eq!(places.distance("ann", "nobody").await?, None);
        assert!(places.nearby("nobody", Area::Radius(1e7)).find().await?.is_empty());
        assert!(places.move_to("ann", catania).await?);
        assert!(places.distance("ann", "bob").await?.expect("both are there") < 1.0);
        assert_eq!(places.nearby("ann", Area::Radius(10.0)).limit(1).exclude_self().find().await?[0].member, "bob");
        assert!(places.remove("ann").await? && !places.remove("ann").await?);
        assert!(places.remove("bob").await?);
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), 0);
        Ok(())
    }

    async fn stale_places_are_never_returned_and_leave_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let places = Places::new(&store, backend.namespace(), "p")?;
        let life = Duration::from_millis(if backend.is_embedded() { 60_000 } else { 1500 });
        let fleeting = Places::builder(&store, backend.namespace(), "p").stale_after(life).build()?;
        let here = Position::new(10.0, 50.0)?;
        // More than one call removes.
        let size = scale(700, "PLACES_STALE");
        for n in 0..size {
            fleeting.put(&format!("m{n}"), here).await?;
        }
        for key in store.scan(&format!("{}:*", backend.namespace())).await? {
            assert!(store.query::<i64>(redis::cmd("PTTL").arg(key)).await? > 0);
        }
        // With one that stays the keys stay too, and the stale ones must be told apart.
        places.put("stays", here).await?;
        if backend.is_embedded() {
            store.advance(life)?;
        } else {
            let gone = eventually(Duration::from_secs(20), async || {
                matches!(places.position(&format!("m{}", size - 1)).await, Ok(None))
            }).await;
            assert!(gone);
        }
        let search = |limit| places.nearby(here, Area::Radius(100.0)).limit(limit);
        let found = search(1).find().await?;
        assert_eq!((found.len(), found[0].member.as_str()), (1, "stays"));
        assert!(!fleeting.move_to("m1", here).await? && !fleeting.remove("m2").await?);
        assert!(places.nearby("m3", Area::Radius(100.0)).find().await?.is_empty());
        assert_eq!(places.distance("stays", "m4").await?, None);
        for _ in 0..size / 100 + 1 {
            assert_eq!(search(10).find().await?.len(), 1);
        }
        let entity = redstart::key::Keys::new(backend.namespace(), "places")?.entity("p")?;
        assert_eq!(store.query::<u64>(redis::cmd("ZCARD").arg(entity.key())).await?, 1);
        assert_eq!(store.query::<u64>(redis::cmd("ZCARD").arg(entity.part("deadlines"))).await?, 0);
        Ok(())
    }

    async fn private_places_reveal_rounded_distances_only(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let people = Places::new(&store, backend.namespace(), "p")?.private(1000.0)?;
        people.put("me", Position::new(0.0, 0.0)?).await?;
        // 333 m, 222 m, 1,223 m and 1,446 m to the east; the nearer one has the later name.
        for (member, longitude) in [("a", 0.003), ("b", 0.002), ("c", 0.011), ("d", 0.013)] {
            people.put(member, Position::new(longitude, 0.0)?).await?;
        }
        let told = |found: Vec<PrivateNearby>| {
            found.into_iter().map(|near| (near.member, near.within)).collect::<Vec<_>>()
        };
        let all = told(people.nearby("me", 1800.0, 10).await?);
        let expected = [("a", 1000.0), ("b", 1000.0), ("c", 2000.0), ("d", 2000.0)];
        assert_eq!(all, expected.map(|(member, within)| (member.to_owned(), within)));
        // A finely chosen radius reveals no more than a round one.
        for radius in [1.0, 250.0, 300.0, 999.0] {
            assert_eq!(told(people.nearby("me", radius, 10).await?).len(), 2);
        }
        assert_eq!(people.distance("me", "c").await?, Some(2000.0));
        assert_eq!(people.distance("me", "me").await?, Some(1000.0));
        assert!(people.remove("c").await?);
        assert_eq!(people.distance("me", "c").await?, None);
        Ok(())
    }

    async fn the_limit_of_a_private_search_does_not_reveal_the_order(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let people = Places::new(&store, backend.namespace(), "p")?.private(1000.0)?;
        people.put("me", Position::new(0.0, 0.0)?).await?;
        // Thirty within the first kilometre, the nearer ones with the later names; ten in the second one.
        for n in 0..40u32 {
            let metres = if n < 30 { f64::from(30 - n) * 30.0 } else { 1_000.0 + f64::from(40 - n) * 50.0 };
            people.put(&format!("m{n:02}"), Position::new(metres / 111_226.0, 0.0)?).await?;
        }
        let everybody: Vec<String> = (0..40).map(|n| format!("m{n:02}")).collect();
        for limit in 1..=41 {
            let found = people.nearby("me", 5_000.0, limit).await?;
            let names: Vec<String> = found.into_iter().map(|near| near.member).collect();
            assert_eq!(names, everybody[..(limit as usize).min(40)], "limit {limit}");
        }
        Ok(())
    }

    async fn bad_input_is_refused_before_the_network(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for (longitude, latitude) in [
            (f64::NAN, 0.0), (0.0, f64::NAN), (f64::INFINITY, 0.0), (0.0, f64::NEG_INFINITY),
            (180.000001, 0.0), (-181.0, 0.0), (0.0, 85.0511288), (0.0, -90.0),
        ] {
            assert!(Position::new(longitude, latitude).unwrap_err().is_config(), "{longitude} {latitude}");
        }
        let corner = Position::new(-180.0, -Position::MAX_LATITUDE)?;
        let places = Places::new(&store, backend.namespace(), "p")?;
        assert!(places.put("corner", corner).await?);
        assert!(places.remove("corner").await?);
        let long = "x".repeat(Places::MAX_MEMBER + 1);
        for member in ["", &long] {
            assert!(places.put(member, corner).await.unwrap_err().is_config());
            assert!(places.remove(member).await.unwrap_err().is_config());
            assert!(places.nearby(member, Area::Radius(1.0)).find().await.unwrap_err().is_config());
        }
        for length in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(places.nearby("a", Area::Radius(length)).find().await.unwrap_err().is_config());
            let area = Area::Box { width: 1.0, height: length };
            assert!(places.nearby("a", area).find().await.unwrap_err().is_config());
        }
        assert!(places.nearby("a", Area::Radius(1.0)).limit(Places::MAX_FOUND + 1).find().await.unwrap_err().is_config());
        let at_once = Places::builder(&store, backend.namespace(), "p").stale_after(Duration::ZERO);
        assert!(at_once.build().unwrap_err().is_config());
        for step in [0.0, 0.5, f64::NAN, 1e9] {
            assert!(places.clone().private(step).unwrap_err().is_config());
        }
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), 0);
        Ok(())
    }
}
