//! Positions.

use redstart_engine::Protocol;
use redstart_testkit::Kind;

use crate::{Pair, Server, compare};

#[test]
fn positions_answer_alike() {
    compare(
        r#"
        GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
        GEOADD g NX 13.583333 37.316667 Agrigento 1 1 Palermo
        GEOADD g XX CH 13.361389 38.2 Palermo 5 5 new
        GEOADD g CH 13.361389 38.115556 Palermo
        GEOADD g NX XX 1 1 a
        GEOADD g 1 1
        GEOADD g 1 1 a 2
        GEOADD g 200 1 a
        GEOADD g 1 86 a
        GEOADD g 1 inf a
        GEOADD g -inf 5 a
        GEOADD g x 1 a
        GEOADD g 1 x a
        GEOADD g nan 1 a
        GEOADD g NX CH XX 1
        GEOADD g 180 85.05112878 ne -180 -85.05112878 sw 0 0 zero
        ZRANGE g 0 -1 WITHSCORES
        GEODIST g Palermo Catania
        GEODIST g Palermo Catania km
        GEODIST g Palermo Catania MI
        GEODIST g Palermo Catania ft
        GEODIST g Palermo Catania yd
        GEODIST g Palermo Catania m x
        GEODIST g Palermo nobody
        GEODIST g Palermo Palermo
        GEODIST g ne sw
        GEODIST nothing a b
        GEODIST nothing a b yd
        GEOHASH g Palermo Catania nobody ne sw zero
        GEOHASH g
        GEOHASH nothing a
        GEOPOS g Palermo nobody Catania ne sw zero
        GEOPOS g
        GEOPOS nothing a
        SET s x
        GEOADD s 1 1 a
        GEODIST s a b
        GEOHASH s a
        GEOPOS s a
        GEOSEARCH s FROMLONLAT 1 1 BYRADIUS 1 m
        GEORADIUS s x y z w
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km ASC
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km DESC WITHCOORD WITHDIST WITHHASH
        GEOSEARCH g FROMLONLAT 15 37 BYBOX 400 400 km ASC WITHDIST
        GEOSEARCH g FROMMEMBER Palermo BYRADIUS 100 mi ASC WITHDIST COUNT 2
        GEOSEARCH g FROMMEMBER Palermo BYRADIUS 0 m
        GEOSEARCH g FROMMEMBER nobody BYRADIUS 100 mi
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km COUNT 1
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km COUNT 1 ANY
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km ANY
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km COUNT 0
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km COUNT x
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS -1 km
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS x km
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 1 yd
        GEOSEARCH g FROMLONLAT 15 37 BYBOX -1 1 km
        GEOSEARCH g FROMLONLAT 15 37 BYBOX x 1 km
        GEOSEARCH g FROMLONLAT 15 37 BYBOX 1 x km
        GEOSEARCH g FROMLONLAT 15 37 ASC DESC ASC
        GEOSEARCH g BYRADIUS 200 km ASC ASC ASC
        GEOSEARCH g FROMLONLAT 15 37 FROMMEMBER Palermo BYRADIUS 200 km
        GEOSEARCH g FROMMEMBER Palermo FROMLONLAT 15 37 BYRADIUS 200 km
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km BYBOX 1 1 km
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km STORE x
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km STOREDIST
        GEOSEARCH g FROMLONLAT 200 37 BYRADIUS 200 km
        GEOSEARCH nothing FROMLONLAT 15 37 BYRADIUS 200 km
        GEOSEARCH nothing FROMMEMBER x BYRADIUS 200 km
        GEOSEARCH nothing FROMMEMBER x ASC ASC ASC
        geosearch nothing FROMMEMBER x ASC ASC ASC
        GEOSEARCHSTORE t g FROMLONLAT 15 37 BYRADIUS 200 km
        ZRANGE t 0 -1 WITHSCORES
        GEOSEARCHSTORE t g FROMLONLAT 15 37 BYRADIUS 200 km STOREDIST
        ZRANGE t 0 -1 WITHSCORES
        GEOSEARCHSTORE t g FROMLONLAT 15 37 BYRADIUS 200 km COUNT 1 DESC
        ZRANGE t 0 -1 WITHSCORES
        GEOSEARCHSTORE t g FROMLONLAT 15 37 BYRADIUS 200 km WITHDIST
        GEOSEARCHSTORE t g FROMLONLAT -100 0 BYRADIUS 1 m
        EXISTS t
        GEOSEARCHSTORE t nothing FROMLONLAT 15 37 BYRADIUS 200 km
        GEOSEARCHSTORE s g FROMLONLAT 15 37 BYRADIUS 200 km
        TYPE s
        GEORADIUS g 15 37 200 km
        GEORADIUS g 15 37 200 km WITHDIST WITHCOORD WITHHASH ASC COUNT 2
        GEORADIUS g 15 37 200 km STORE t
        ZRANGE t 0 -1 WITHSCORES
        GEORADIUS g 15 37 200 km STOREDIST t
        ZRANGE t 0 -1 WITHSCORES
        GEORADIUS g 15 37 200 km STORE t WITHDIST
        GEORADIUS g 15 37 200 km STORE
        GEORADIUS g 15 37 -5 km
        GEORADIUS g 15 37 x km
        GEORADIUS g 15 x 5 km
        GEORADIUS g 15 37 200 km FROMMEMBER Palermo
        GEORADIUS nothing 15 37 200 km
        GEORADIUS nothing 15 37 200 km STORE t
        EXISTS t
        GEORADIUS_RO g 15 37 200 km ASC
        GEORADIUS_RO g 15 37 200 km STORE t
        GEORADIUSBYMEMBER g Palermo 200 km ASC
        GEORADIUSBYMEMBER g nobody 200 km
        GEORADIUSBYMEMBER g Palermo 200 km STORE t
        ZRANGE t 0 -1 WITHSCORES
        GEORADIUSBYMEMBER nothing Palermo x yd
        GEORADIUSBYMEMBER_RO g Palermo 200 km DESC WITHDIST
        GEORADIUSBYMEMBER_RO g Palermo 200 km STOREDIST t
        ZADD z 1 a -5 b 1e300 c inf d 4503599627370496 e 0.5 f
        GEOPOS z a b c d e f
        GEOHASH z a b c d e f
        GEODIST z a e
        "#,
    );
}

/// Numbers between two, always the same ones.
fn numbers() -> impl FnMut(f64, f64) -> f64 {
    let mut seed = 7u64;
    move |min: f64, max: f64| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        min + (max - min) * ((seed >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// Puts 600 places there, in each of four parts of the world.
fn settle(pair: &mut Pair, random: &mut impl FnMut(f64, f64) -> f64) {
    for at in 0..600 {
        let (lon, lat) = match at % 4 {
            0 => (random(-180.0, 180.0), random(-85.0, 85.0)),
            1 => (random(13.0, 14.0), random(52.0, 53.0)),
            2 => (random(179.0, 180.0), random(-85.0, -80.0)),
            // Many at the very same place, for the order among equals.
            _ => (random(0.0, 4.0).floor(), random(0.0, 4.0).floor()),
        };
        pair.line(&format!("GEOADD g {lon} {lat} m{at}"));
    }
}

#[test]
fn searches_find_the_same_in_the_same_order() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    let mut random = numbers();
    settle(&mut pair, &mut random);
    for round in 0..400 {
        let (lon, lat) = match round % 4 {
            0 => (random(-180.0, 180.0), random(-85.0, 85.0)),
            1 => (random(13.0, 14.0), random(52.0, 53.0)),
            2 => (
                random(-180.0, 180.0),
                random(80.0, 85.0) * random(-1.0, 1.0).signum(),
            ),
            _ => (2.0, 2.0),
        };
        let size = 10f64.powf(random(0.0, 4.6));
        let other = size * random(0.1, 3.0);
        let shape = if round % 3 == 0 {
            format!("BYBOX {size} {other} km")
        } else {
            format!("BYRADIUS {size} km")
        };
        let options = [
            "",
            "ASC",
            "DESC",
            "COUNT 5",
            "COUNT 20 DESC",
            "COUNT 50 ASC",
            "COUNT 7 ANY",
            "COUNT 30 ANY DESC",
        ][round % 8];
        pair.line(&format!(
            "GEOSEARCH g FROMLONLAT {lon} {lat} {shape} {options} WITHDIST WITHCOORD WITHHASH"
        ));
    }
    for at in 0..100 {
        pair.line(&format!("GEODIST g m{at} m{}", at + 300));
    }
}

/// 2^52 as a score decodes to the northern edge, whose cell lies beyond the grid.
#[test]
fn a_member_on_the_last_edge_finds_itself() {
    compare(
        r#"
        ZADD edge 4503599627370496 north 4503599627370495 corner 0 origin 13510798882111488 both
        GEOSEARCH edge FROMMEMBER north BYBOX 4000 900 mi DESC WITHHASH
        GEOSEARCH edge FROMMEMBER north BYRADIUS 3000 km ASC WITHHASH
        GEOSEARCH edge FROMMEMBER both BYRADIUS 3000 km ASC WITHHASH
        GEOSEARCH edge FROMMEMBER origin BYRADIUS 9000 km ASC WITHHASH
        GEOSEARCH edge FROMMEMBER corner BYRADIUS 10 m ASC WITHHASH
        GEOSEARCH edge FROMLONLAT 180 85 BYRADIUS 10000 km ASC WITHHASH
        "#,
    );
}

#[test]
fn polygons_hold_the_same_places_in_the_same_order() {
    let server = Server::start_kind(Kind::Valkey);
    let mut pair = Pair::new(&server, Protocol::Resp2);
    let mut random = numbers();
    settle(&mut pair, &mut random);
    for round in 0..400 {
        let (lon, lat) = match round % 4 {
            0 => (random(-180.0, 180.0), random(-85.0, 85.0)),
            1 => (random(13.0, 14.0), random(52.0, 53.0)),
            2 => (random(179.0, 180.0), random(-85.0, -80.0)),
            // The corners are where the places are.
            _ => (2.0, 2.0),
        };
        let size = 10f64.powf(random(-1.0, 2.0));
        // Seldom convex, often with edges that cross.
        let corners: Vec<String> = (0..3 + round % 6)
            .map(|_| {
                let place = (
                    (lon + random(-size, size)).clamp(-180.0, 180.0),
                    (lat + random(-size, size)).clamp(-85.0, 85.0),
                );
                match round % 4 {
                    3 => format!("{} {}", place.0.round(), place.1.round()),
                    _ => format!("{} {}", place.0, place.1),
                }
            })
            .collect();
        let options = ["", "ASC", "DESC", "COUNT 5", "COUNT 20 DESC", "COUNT 7 ANY"][round % 6];
        let (count, corners) = (corners.len(), corners.join(" "));
        pair.line(&format!(
            "GEOSEARCH g BYPOLYGON {count} {corners} {options} WITHDIST WITHCOORD WITHHASH"
        ));
    }
}
