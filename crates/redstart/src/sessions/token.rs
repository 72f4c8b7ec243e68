use std::{fmt, str::FromStr};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};

use crate::{
    error::{Error, Result},
    observe,
};

/// The bytes of a token, and the letters of its text.
const BYTES: usize = 64;
const LETTERS: usize = 86;
/// The bytes of a token against request forgery, and the letters of its text, which also has the mask.
const CSRF: usize = 32;
const CSRF_LETTERS: usize = 86;

/// The secret that opens a session. Only [`expose`](Self::expose) shows it; `Debug` hides it.
///
/// It has three parts: the account and the id, which say where the session is stored, and 256 random bits, of which
/// the store has only the SHA-256. All three are random: a token reveals nothing about its user.
///
/// ```
/// use redstart::sessions::Token;
/// let token: Token = "A".repeat(86).parse().unwrap();
/// assert!(!format!("{token:?}").contains("AAAA"));
/// assert!("short".parse::<Token>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub(super) account: [u8; 16],
    id: [u8; 16],
    secret: [u8; 32],
}

impl Token {
    /// The token of a new session.
    pub(super) fn new(account: [u8; 16]) -> Self {
        Self {
            account,
            id: crate::chance::random(),
            secret: crate::chance::random(),
        }
    }

    /// Another token of the same session.
    pub(super) fn rotated(&self) -> Self {
        Self {
            secret: crate::chance::random(),
            ..self.clone()
        }
    }

    /// The token as text, for the cookie: 86 letters, digits, `-` and `_`.
    pub fn expose(&self) -> String {
        let mut bytes = [0; BYTES];
        bytes[..16].copy_from_slice(&self.account);
        bytes[16..32].copy_from_slice(&self.id);
        bytes[32..].copy_from_slice(&self.secret);
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The [handle](crate::sessions::SessionInfo::handle) of the session, to find it in the list of its user.
    pub fn handle(&self) -> String {
        hex(&self.id)
    }

    /// What the store keeps of the secret.
    pub(super) fn digest(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(self.secret))
    }

    /// A token against cross-site request forgery, bound to this session: put it into forms and headers, and compare
    /// it with [`is_csrf`](Self::is_csrf). All that were given out stay valid when the session is rotated, and none after
    /// a login.
    ///
    /// Each call returns another text for the same token: a random mask, and the token under it. A page that is compressed
    /// together with text of an attacker's choice does not reveal it by its length (BREACH), because no two pages have the
    /// same text.
    pub fn csrf(&self) -> String {
        let mask: [u8; CSRF] = crate::chance::random();
        let mut bytes = [0; 2 * CSRF];
        bytes[..CSRF].copy_from_slice(&mask);
        bytes[CSRF..].copy_from_slice(&xor(mask, self.csrf_secret()));
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Whether this text is one of the session's [`csrf`](Self::csrf) tokens. Takes the same time wherever they differ.
    pub fn is_csrf(&self, text: &str) -> bool {
        let mut bytes = [0; 2 * CSRF];
        if text.len() != CSRF_LETTERS
            || BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) != Ok(bytes.len())
        {
            return false;
        }
        let (mut mask, mut masked) = ([0; CSRF], [0; CSRF]);
        mask.copy_from_slice(&bytes[..CSRF]);
        masked.copy_from_slice(&bytes[CSRF..]);
        // All bytes are looked at, whichever of them differ.
        let differs = xor(xor(mask, masked), self.csrf_secret());
        std::hint::black_box(differs.iter().fold(0, |any, byte| any | byte)) == 0
    }

    /// What the texts of [`csrf`](Self::csrf) stand for.
    fn csrf_secret(&self) -> [u8; CSRF] {
        let mut digest = Sha256::new();
        digest.update(b"redstart csrf");
        digest.update(self.account);
        digest.update(self.id);
        digest.finalize().into()
    }
}

fn xor(mut a: [u8; CSRF], b: [u8; CSRF]) -> [u8; CSRF] {
    for (a, b) in a.iter_mut().zip(b) {
        *a ^= b;
    }
    a
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut bytes = [0; BYTES];
        if text.len() != LETTERS
            || BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) != Ok(BYTES)
        {
            observe::event("session.malformed_token");
            return Err(Error::config("malformed session token"));
        }
        let (mut account, mut id, mut secret) = ([0; 16], [0; 16], [0; 32]);
        account.copy_from_slice(&bytes[..16]);
        id.copy_from_slice(&bytes[16..32]);
        secret.copy_from_slice(&bytes[32..]);
        Ok(Self {
            account,
            id,
            secret,
        })
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |number: u8| char::from(DIGITS[usize::from(number)]);
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.extend([digit(byte >> 4), digit(byte & 15)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_and_its_csrf_token_survives_a_rotation() {
        let token = Token::new(crate::chance::random());
        assert_eq!(token.expose().len(), LETTERS);
        assert_eq!(token.expose().parse::<Token>().unwrap(), token);
        let rotated = token.rotated();
        assert_ne!(rotated.expose(), token.expose());
        assert_ne!(rotated.digest(), token.digest());
        assert!(rotated.is_csrf(&token.csrf()));
        assert!(!rotated.is_csrf("") && !rotated.is_csrf(&token.csrf()[1..]));
        let other = Token::new(token.account);
        assert!(!other.is_csrf(&token.csrf()));
    }

    #[test]
    fn every_csrf_text_is_another_and_only_those_of_the_session_are_accepted() {
        let token = Token::new(crate::chance::random());
        let texts: Vec<String> = (0..100).map(|_| token.csrf()).collect();
        let distinct: std::collections::HashSet<&String> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len());
        assert!(texts.iter().all(|text| text.len() == CSRF_LETTERS));
        assert!(texts.iter().all(|text| token.is_csrf(text)));
        // No stretch of text is common to two pages: that is what BREACH looks for.
        let bare = BASE64_URL_SAFE_NO_PAD.encode(token.csrf_secret());
        assert!(texts.iter().all(|text| !text.contains(&bare[..6])));
        assert!(!token.is_csrf(&bare), "a token without its mask");

        // Each bit of mask and token counts.
        let good = BASE64_URL_SAFE_NO_PAD.decode(&texts[0]).unwrap();
        for bit in 0..8 * good.len() {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !token.is_csrf(&BASE64_URL_SAFE_NO_PAD.encode(&bad)),
                "{bit}"
            );
        }
        assert!(
            !token.is_csrf(&"A".repeat(CSRF_LETTERS)),
            "no mask and no token"
        );
        assert!(!token.is_csrf(&"ä".repeat(CSRF_LETTERS / 2)));
        let masks: Vec<&str> = texts.iter().map(|text| &text[..8]).collect();
        assert!(masks.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
