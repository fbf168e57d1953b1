//! The token of the admin API.

use std::fmt;

/// What whoever uses the admin API has to name. Only its hash is kept, and it does not print.
#[derive(Clone, Copy)]
pub struct Token(blake3::Hash);

/// Without the hash: a short token could be guessed from it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// The fewest bytes that a token has.
    pub const LENGTH_MIN: usize = 16;

    /// Of what its file holds; `None` if that is too short, or cannot stand in a header field.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let fits = bytes.len() >= Self::LENGTH_MIN && bytes.iter().all(u8::is_ascii_graphic);
        fits.then(|| Self(blake3::hash(bytes)))
    }

    /// Whether this is the token. Takes as long wherever the two begin to differ.
    #[must_use]
    pub fn is(&self, named: &[u8]) -> bool {
        // The comparison of two hashes is constant in time.
        self.0 == blake3::hash(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let token = Token::from_bytes(b"0123456789abcdef").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdef0",
            "0123456789abcdeF",
        ] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
        assert_eq!(format!("{token:?}"), "Token(…)");
        for unfit in ["0123456789abcde", "0123456789 abcdef", "0123456789abcdeü"] {
            assert!(Token::from_bytes(unfit.as_bytes()).is_none(), "{unfit}");
        }
    }
}
