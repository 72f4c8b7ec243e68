//! Which field of a JSON text could not be decoded: its path, never a part of the input.
//!
//! The path that the decoder tells has the keys of maps in it, which are data. So the type is asked again, along the path:
//! what it takes for the name of a field is shown, and every other key is `*`.

use std::cell::RefCell;

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, Error as _, IntoDeserializer, Visitor,
        value::{Error, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_path_to_error::Segment;

/// Names the field, with what is to be said of it; empty if there is none to be named.
pub(super) fn field<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> String {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let path: Vec<Segment> = match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Err(error) => error.path().iter().cloned().collect(),
        Ok(_) => Vec::new(),
    };
    let mut path = shown::<T>(&path);
    let text = error.to_string();
    // The name of a missing field is that of the type, not of the input.
    let missing = text.strip_prefix("missing field `");
    let state = match missing.and_then(|text| text.split_once('`')) {
        Some((name, _)) => {
            push(&mut path, name);
            " is missing"
        }
        None => "",
    };
    match path.is_empty() {
        true => path,
        false => format!(
            "field {}{state}, ",
            path.chars().take(200).collect::<String>()
        ),
    }
}

fn push(path: &mut String, name: &str) {
    if !path.is_empty() && !name.starts_with('[') {
        path.push('.');
    }
    path.push_str(name);
}

/// The path as text, without the keys of maps.
fn shown<T: DeserializeOwned>(path: &[Segment]) -> String {
    let names = RefCell::new(Vec::new());
    // It always fails: there are no values along the path.
    let _ = T::deserialize(Follow {
        path,
        names: &names,
    });
    let mut names = names.into_inner();
    for segment in path.iter().skip(names.len()) {
        names.push(match segment {
            Segment::Seq { index } => format!("[{index}]"),
            _ => "*".to_owned(),
        });
    }
    let mut text = String::new();
    for name in names {
        push(&mut text, &name);
    }
    text
}

/// Leads a type along a path, and notes how each step is shown.
struct Follow<'a> {
    path: &'a [Segment],
    names: &'a RefCell<Vec<String>>,
}

impl<'a> Follow<'a> {
    fn step(self, name: String) -> Self {
        self.names.borrow_mut().push(name);
        Self {
            path: &self.path[1..],
            names: self.names,
        }
    }
}

fn end() -> Error {
    Error::custom("the path ends")
}

impl<'de> Deserializer<'de> for Follow<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.path.first() {
            Some(Segment::Map { key }) if fields.contains(&key.as_str()) => {
                let next = (key.as_str(), self.step(key.clone()));
                visitor.visit_map(MapDeserializer::new(std::iter::once(next)))
            }
            _ => Err(end()),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.path.first() {
            Some(Segment::Map { key }) => {
                let next = (key.as_str(), self.step("*".to_owned()));
                visitor.visit_map(MapDeserializer::new(std::iter::once(next)))
            }
            _ => Err(end()),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.path.first() {
            Some(Segment::Seq { index }) => {
                let next = self.step(format!("[{index}]"));
                visitor.visit_seq(SeqDeserializer::new(std::iter::once(next)))
            }
            _ => Err(end()),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(end())
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        tuple tuple_struct enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for Follow<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;

    use crate::codec::{Codec as _, Json};

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    struct Order {
        items: Vec<Item>,
        by_user: Option<HashMap<String, Item>>,
        pair: Option<(u32, Item)>,
        state: Option<State>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    struct Item {
        price: Price,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    struct Price(u32);

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    enum State {
        Paid { by: u32 },
    }

    #[test]
    fn an_error_of_json_names_the_field_and_no_part_of_the_input() {
        let why = |json: &str| {
            Json::decode::<Order>(json.as_bytes())
                .unwrap_err()
                .to_string()
        };
        for (json, field) in [
            (
                r#"{"items":[{"price":1},{"price":"secret"}]}"#,
                "field items[1].price, Data",
            ),
            (
                r#"{"items":[{"price":1},{"secret":7}]}"#,
                "field items[1].price is missing, Data",
            ),
            (r#"{"secret":7}"#, "field items is missing, Data"),
            (r#"{"items":"secret"}"#, "field items, Data"),
            (
                r#"{"items":[],"by_user":{"secret":{"price":"secret"}}}"#,
                "field by_user.*.price, Data",
            ),
            (
                r#"{"items":[],"by_user":{"secret":{}}}"#,
                "field by_user.*.price is missing, Data",
            ),
            (
                r#"{"items":[],"by_user":{"price":7}}"#,
                "field by_user.*, Data",
            ),
            (
                r#"{"items":[],"pair":[1,{"price":"secret"}]}"#,
                "field pair[1].*, Data",
            ),
            (
                r#"{"items":[],"state":{"Paid":{"by":"secret"}}}"#,
                "field state.*.*, Data",
            ),
        ] {
            let error = why(json);
            assert!(error.contains(field), "{json}: {error}");
            assert!(!error.contains("secret"), "{json}: {error}");
        }
        for (json, kind) in [
            ("", "(Eof"),
            ("secret", "(Syntax"),
            ("7", "(Data"),
            (r#"{"items":[]} x"#, "(Syntax"),
        ] {
            let error = why(json);
            assert!(
                error.contains(kind) && !error.contains("secret"),
                "{json}: {error}"
            );
        }
        // The whole type is a map.
        let map = Json::decode::<HashMap<String, Item>>(br#"{"secret":{"price":"x"}}"#);
        let error = map.unwrap_err().to_string();
        assert!(
            error.contains("field *.price, Data") && !error.contains("secret"),
            "{error}"
        );
        let any = Json::decode::<HashMap<u32, serde_json::Value>>(br#"{"7":1,"secret":2}"#);
        let error = any.unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
