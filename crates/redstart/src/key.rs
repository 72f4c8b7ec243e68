//! Keys: every key is built here.
//!
//! A key is `<namespace>:<pattern>:{<entity>}[:<part>]`. A pattern that keeps many entities under one name, such
//! as a cache, has that name in its keys: `<namespace>:<pattern>.<name>:{<entity>}[:<part>]`. Everything that one
//! script touches belongs to one entity, so it shares the `{…}` hash tag and lives in one Cluster slot. A [`Call`](crate::script::Call) is
//! started on an [`Entity`] and takes parts by name: a set of keys over two slots cannot be written down.
//!
//! # Rules for names
//!
//! | name | rule |
//! |---|---|
//! | namespace | 1 to 128 bytes; letters, digits and `- _ . : /`; anything else is an error |
//! | name of a pattern with many entities | as a namespace, but without `:`, so that no two instances share a key |
//! | entity, part | 1 to 1024 bytes; `{`, `}`, `%` and control characters are percent-encoded, so that two names never make one key and a tag never ends early; the rest is kept as it is |
//!
//! An empty entity is an error, because `{}` is not a hash tag and its parts would be spread over slots.
//!
//! # Adopting keys that exist
//!
//! [`Layout::new`] takes a function from the entity to the key that the application already uses. Its parts
//! are then `{<that key>}:<part>`, which hash to the slot of the key itself, so scripts work on Cluster
//! without renaming anything.
//!
//! ```
//! use redstart::key::{Keys, Layout};
//!
//! let keys = Keys::new("shop", "lock")?;
//! let order = keys.entity("order:5001")?;
//! assert_eq!(order.key().as_str(), "shop:lock:{order:5001}");
//! assert_eq!(order.part("fence").as_str(), "shop:lock:{order:5001}:fence");
//!
//! let legacy = keys.layout(Layout::new(|entity| format!("mylock-{entity}")));
//! let order = legacy.entity("5001")?;
//! assert_eq!(order.key().as_str(), "mylock-5001");
//! assert_eq!(order.part("fence").as_str(), "{mylock-5001}:fence");
//! assert_eq!(order.key().slot(), order.part("fence").slot());
//! # Ok::<(), redstart::Error>(())
//! ```

use std::{fmt, sync::Arc};

use crate::error::{Error, Result};

const MAX_NAMESPACE: usize = 128;
const MAX_NAME: usize = 1024;

/// The number of slots of a Cluster.
pub(crate) const SLOTS: u16 = 16384;

/// One key, with the Cluster slot it lives in.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    text: Arc<str>,
    slot: u16,
}

impl Key {
    pub(crate) fn raw(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        let slot = slot(text.as_bytes());
        Self { text, slot }
    }

    /// The key as it is sent to the server.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The Cluster slot the key lives in.
    pub fn slot(&self) -> u16 {
        self.slot
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl redis::ToRedisArgs for Key {
    fn write_redis_args<W: ?Sized + redis::RedisWrite>(&self, out: &mut W) {
        out.write_arg(self.text.as_bytes());
    }
}

impl redis::ToSingleRedisArg for Key {}

/// How an entity's name becomes its key, for applications that already have keys.
#[derive(Clone)]
pub struct Layout(Arc<dyn Fn(&str) -> String + Send + Sync>);

impl Layout {
    /// A layout that gives each entity the key that `base` returns for its name.
    ///
    /// The returned key must not be empty. Braces are allowed only as one whole, non-empty hash tag.
    pub fn new(base: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(base))
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Layout")
    }
}

/// The keys of one pattern in one namespace.
#[derive(Clone, Debug)]
pub struct Keys {
    namespace: Arc<str>,
    /// `<pattern>` or `<pattern>.<name>`.
    pattern: Arc<str>,
    layout: Option<Layout>,
}

impl Keys {
    /// The keys of `pattern` in `namespace`.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the namespace breaks the [rules](self#rules-for-names).
    pub fn new(namespace: &str, pattern: &'static str) -> Result<Self> {
        check_label("a namespace", namespace, "- _ . : /")?;
        Ok(Self {
            namespace: namespace.into(),
            pattern: pattern.into(),
            layout: None,
        })
    }

    /// The keys of `pattern` in `namespace`, for one `name` under which the pattern keeps many entities.
    ///
    /// ```
    /// use redstart::key::Keys;
    ///
    /// let products = Keys::named("shop", "cache", "product")?;
    /// assert_eq!(products.entity("42")?.key().as_str(), "shop:cache.product:{42}");
    /// # Ok::<(), redstart::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the namespace or the name breaks the [rules](self#rules-for-names).
    pub fn named(namespace: &str, pattern: &'static str, name: &str) -> Result<Self> {
        check_label("a namespace", namespace, "- _ . : /")?;
        check_label("a name", name, "- _ . /")?;
        Ok(Self {
            namespace: namespace.into(),
            pattern: format!("{pattern}.{name}").into(),
            layout: None,
        })
    }

    /// The same keys under the application's own layout.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The namespace.
    pub fn namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    /// What all keys of the pattern begin with; `None` under a layout of the application's own.
    pub fn prefix(&self) -> Option<String> {
        match self.layout {
            None => Some(format!("{}:{}:", self.namespace, self.pattern)),
            Some(_) => None,
        }
    }

    /// The name of the entity whose own key this is; `None` for the key of a part, for a foreign key, and
    /// under a layout of the application's own.
    #[cfg(any(feature = "caching", test))]
    pub(crate) fn name_of<'a>(&self, key: &'a [u8]) -> Option<std::borrow::Cow<'a, str>> {
        let key = std::str::from_utf8(key).ok()?;
        if self.layout.is_some() {
            return None;
        }
        key.strip_prefix(&*self.namespace)?
            .strip_prefix(':')?
            .strip_prefix(&*self.pattern)?
            .strip_prefix(":{")?
            .strip_suffix('}')
            .filter(|name| !name.contains('}'))
            .and_then(|name| {
                percent_encoding::percent_decode_str(name)
                    .decode_utf8()
                    .ok()
            })
    }

    /// The keys of one entity: a user, an order, a queue.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the name is empty or over 1024 bytes, or if the layout made a key
    /// that cannot be used.
    pub fn entity(&self, name: &str) -> Result<Entity> {
        check_name("an entity's name", name)?;
        let (base, tagged) = match &self.layout {
            None => {
                let mut base = String::with_capacity(
                    self.namespace.len() + self.pattern.len() + name.len() + 4,
                );
                base.push_str(&self.namespace);
                base.push(':');
                base.push_str(&self.pattern);
                base.push_str(":{");
                encode(name, &mut base);
                base.push('}');
                (base, true)
            }
            Some(layout) => {
                let base = layout.0(name);
                check_name("the key that a layout made", &base)?;
                let tagged = match (base.find('{'), base.find('}')) {
                    (None, None) => false,
                    (Some(open), Some(close))
                        if close > open + 1 && base.matches(['{', '}']).count() == 2 =>
                    {
                        true
                    }
                    _ => {
                        return Err(Error::config(
                            "a layout's key may contain braces only as one complete, non-empty hash tag",
                        ));
                    }
                };
                (base, tagged)
            }
        };
        let key = Key::raw(base);
        Ok(Entity {
            namespace: self.namespace.clone(),
            key,
            tagged,
        })
    }
}

/// The keys of one entity; all of them live in one slot.
#[derive(Clone, Debug)]
pub struct Entity {
    namespace: Arc<str>,
    key: Key,
    tagged: bool,
}

impl Entity {
    /// The entity's own key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The key of a part of the entity, in the same slot.
    pub fn part(&self, part: &str) -> Key {
        let base = self.key.as_str();
        let mut text = String::with_capacity(base.len() + part.len() + 3);
        if self.tagged {
            text.push_str(base);
        } else {
            text.push('{');
            text.push_str(base);
            text.push('}');
        }
        text.push(':');
        encode(part, &mut text);
        Key {
            text: text.into(),
            slot: self.key.slot,
        }
    }

    /// The sharded channel of a part of the entity, in the same slot.
    pub fn channel(&self, part: &str) -> Channel {
        Channel(self.part(part))
    }

    /// The namespace the entity belongs to.
    pub fn namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    /// The Cluster slot all of the entity's keys live in.
    pub fn slot(&self) -> u16 {
        self.key.slot
    }
}

/// The name of a sharded pub/sub channel. It lives in the slot of the entity it belongs to.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Channel(Key);

impl Channel {
    /// The channel as it is sent to the server.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The Cluster slot the channel lives in.
    pub fn slot(&self) -> u16 {
        self.0.slot
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl redis::ToRedisArgs for Channel {
    fn write_redis_args<W: ?Sized + redis::RedisWrite>(&self, out: &mut W) {
        self.0.write_redis_args(out);
    }
}

impl redis::ToSingleRedisArg for Channel {}

/// Checks a namespace, or a name that stands before the hash tag.
fn check_label(what: &str, label: &str, punctuation: &str) -> Result<()> {
    if label.is_empty() {
        return Err(Error::config(format!("{what} must not be empty")));
    }
    if label.len() > MAX_NAMESPACE {
        return Err(Error::config(format!(
            "{what} must have at most {MAX_NAMESPACE} bytes, not {}",
            label.len()
        )));
    }
    let allowed = |c: char| c.is_alphanumeric() || (c != ' ' && punctuation.contains(c));
    if let Some(bad) = label.chars().find(|c| !allowed(*c)) {
        return Err(Error::config(format!(
            "{what} may contain letters, digits and {punctuation} only, not {bad:?}"
        )));
    }
    Ok(())
}

fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::config(format!("{what} must not be empty")));
    }
    if name.len() > MAX_NAME {
        return Err(Error::config(format!(
            "{what} must have at most {MAX_NAME} bytes, not {}",
            name.len()
        )));
    }
    Ok(())
}

/// Percent-encodes what would end a hash tag early or garble a terminal. `%` itself too, so that the
/// encoding has an inverse and two names never make one key.
fn encode(name: &str, out: &mut String) {
    for c in name.chars() {
        if matches!(c, '{' | '}' | '%') || c.is_control() {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                out.push('%');
                out.push(
                    char::from_digit(u32::from(byte >> 4), 16)
                        .unwrap_or('0')
                        .to_ascii_uppercase(),
                );
                out.push(
                    char::from_digit(u32::from(byte & 15), 16)
                        .unwrap_or('0')
                        .to_ascii_uppercase(),
                );
            }
        } else {
            out.push(c);
        }
    }
}

/// The Cluster slot of a key: CRC16 (XMODEM) of its hash tag, or of the whole key, modulo 16384.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key
        .iter()
        .position(|b| *b == b'{')
        .and_then(|open| {
            let rest = &key[open + 1..];
            let close = rest.iter().position(|b| *b == b'}')?;
            (close > 0).then(|| &rest[..close])
        })
        .unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(tag) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        let crc16 = crc16::State::<crc16::XMODEM>::calculate;
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
    }

    #[test]
    fn bad_namespaces_and_empty_entities_are_refused() {
        for bad in ["", "a b", "a{b", "a}b", "a\nb", "a%b", &"x".repeat(129)] {
            assert!(Keys::new(bad, "lock").unwrap_err().is_config(), "{bad:?}");
        }
        for bad in ["", "a b", "a:b", "a{b", "a\nb"] {
            let named = Keys::named("app", "cache", bad);
            assert!(named.unwrap_err().is_config(), "{bad:?}");
        }
        let keys = Keys::new("app", "lock").unwrap();
        assert!(keys.entity("").unwrap_err().is_config());
        assert!(keys.entity(&"x".repeat(1025)).unwrap_err().is_config());
        for base in ["{", "}", "a{}b", "}{", "{a}{b}", "{{a}}"] {
            let keys = keys.clone().layout(Layout::new(move |_| base.to_owned()));
            assert!(keys.entity("x").unwrap_err().is_config(), "{base:?}");
        }
    }

    /// A namespace may hold a colon, so a careless scheme would let `a:cache` + `lock` meet `a` + `cache` + `lock`.
    #[test]
    fn instances_with_different_namespaces_patterns_or_names_share_no_key() {
        let mut seen = std::collections::HashSet::new();
        for namespace in ["a", "b", "a:cache", "a:lock", "a:cache.lock", "a.b"] {
            for pattern in ["cache", "lock"] {
                let plain = Keys::new(namespace, pattern).unwrap();
                assert!(seen.insert(plain.entity("x").unwrap().key().clone()));
                for name in ["lock", "cache", "b", "a.b", "cache.lock"] {
                    let named = Keys::named(namespace, pattern, name).unwrap();
                    let entity = named.entity("x").unwrap();
                    assert!(seen.insert(entity.key().clone()), "{:?}", entity.key());
                    let found = named.name_of(entity.key().as_str().as_bytes());
                    assert_eq!(found.as_deref(), Some("x"));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn parts_share_the_slot_of_their_entity(name in ".{1,40}", part in ".{1,20}", legacy in "[a-z:]{1,20}(\\{[a-z]{1,5}\\})?[a-z]{0,3}") {
            let keys = Keys::new("app", "lock").unwrap();
            let entity = keys.entity(&name).unwrap();
            prop_assert_eq!(slot(entity.part(&part).as_str().as_bytes()), entity.slot());
            let adopted = keys.layout(Layout::new(move |_| legacy.clone())).entity(&name).unwrap();
            prop_assert_eq!(slot(adopted.part(&part).as_str().as_bytes()), adopted.slot());
        }

        #[test]
        fn different_names_make_different_keys(a in ".{1,12}", b in ".{1,12}") {
            let keys = Keys::new("app", "lock").unwrap();
            let (ka, kb) = (keys.entity(&a).unwrap(), keys.entity(&b).unwrap());
            prop_assert_eq!(a == b, ka.key() == kb.key());
            prop_assert!(!ka.key().as_str().chars().any(char::is_control));
            let found = keys.name_of(ka.key().as_str().as_bytes());
            prop_assert_eq!(found.as_deref(), Some(&*a));
            let part = ka.part(&b);
            prop_assert_eq!(keys.name_of(part.as_str().as_bytes()), None);
        }
    }
}
