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
    /// it with [`is_csrf`](Self::is_csrf). It stays the same when the session is rotated and changes with a login.
    pub fn csrf(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(b"redstart csrf");
        digest.update(self.account);
        digest.update(self.id);
        BASE64_URL_SAFE_NO_PAD.encode(digest.finalize())
    }

    /// Whether this text is the session's [`csrf`](Self::csrf) token. Takes the same time wherever they differ.
    pub fn is_csrf(&self, text: &str) -> bool {
        let own = self.csrf();
        own.len() == text.len()
            && own
                .bytes()
                .zip(text.bytes())
                .fold(0, |differs, (a, b)| differs | (a ^ b))
                == 0
    }
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
}
