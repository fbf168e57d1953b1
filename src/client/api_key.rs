//! API keys: who holds which, found by the hash of what a client sent. No key is kept, and none is compared.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use constant_time_eq::constant_time_eq_32;
use hashbrown::HashTable;
use ring::digest;

/// SHA-256 of an API key. That is enough for a key of at least 128 random bits, and for no other: whoever sees the hash
/// can try the likely ones. So it does not print, and two of them take as long to compare wherever they begin to
/// differ.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Of what a client sent, however long.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        let mut hash = [0; 32];
        // A digest of SHA-256 has 32 bytes.
        for (to, from) in hash
            .iter_mut()
            .zip(digest::digest(&digest::SHA256, key).as_ref())
        {
            *to = *from;
        }
        Self(hash)
    }

    /// From 64 hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
            return None;
        };
        let pairs: &[[u8; 2]; 32] = pairs.try_into().ok()?;
        let mut hash = [0; 32];
        for (to, [high, low]) in hash.iter_mut().zip(pairs) {
            *to = (nibble(*high)? << 4) | nibble(*low)?;
        }
        Some(Self(hash))
    }

    /// 64 hexadecimal digits, for the file of keys.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        constant_time_eq_32(&self.0, &other.0)
    }
}

impl Eq for KeyHash {}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// Who holds which key. What is known of a holder is for others to say.
pub struct Ring<T> {
    keys: HashTable<(KeyHash, Arc<T>)>,
    /// Where a hash lies in memory is this process's secret.
    places: RandomState,
}

impl<T> Ring<T> {
    /// Nobody holds a key.
    #[must_use]
    pub fn new() -> Self {
        Self {
            keys: HashTable::new(),
            places: RandomState::new(),
        }
    }

    /// Gives a key to a holder. Returns who has it already, and keeps it.
    pub fn insert(&mut self, hash: KeyHash, holder: &Arc<T>) -> Option<&Arc<T>> {
        let place = self.places.hash_one(hash.0);
        let known = self.keys.find(place, |(known, _)| *known == hash).is_some();
        if !known {
            let again = |(hash, _): &(KeyHash, Arc<T>)| self.places.hash_one(hash.0);
            self.keys
                .insert_unique(place, (hash, Arc::clone(holder)), again);
            return None;
        }
        self.holder(hash)
    }

    /// Who holds the key that a client sent.
    #[must_use]
    pub fn find(&self, sent: &[u8]) -> Option<&Arc<T>> {
        self.holder(KeyHash::of(sent))
    }

    fn holder(&self, hash: KeyHash) -> Option<&Arc<T>> {
        let place = self.places.hash_one(hash.0);
        self.keys
            .find(place, |(known, _)| *known == hash)
            .map(|(_, holder)| holder)
    }

    /// Who holds a key, once for each.
    pub fn holders(&self) -> impl Iterator<Item = &Arc<T>> {
        self.keys.iter().map(|(_, holder)| holder)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nobody holds a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} keys)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_sha_256() {
        // FIPS 180-4, and of nothing at all.
        for (key, hex) in [
            (
                "abc",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                "",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
        ] {
            assert_eq!(KeyHash::of(key.as_bytes()).to_hex(), hex);
            assert_eq!(KeyHash::from_hex(hex), Some(KeyHash::of(key.as_bytes())));
            assert_eq!(
                KeyHash::from_hex(&hex.to_uppercase()),
                KeyHash::from_hex(hex)
            );
        }
    }

    #[test]
    fn what_is_not_64_digits_is_no_hash() {
        let digits = "0".repeat(64);
        for text in [
            "",
            "0",
            &digits[1..],
            &format!("{digits}0"),
            &format!("{digits}00"),
            &format!("{}g", &digits[1..]),
            &format!("{}ü", &digits[2..]),
            &format!("+{}", &digits[1..]),
        ] {
            assert_eq!(KeyHash::from_hex(text), None, "{text}");
        }
    }

    #[test]
    fn a_key_finds_its_holder_and_nobody_elses() {
        let mut ring = Ring::new();
        let (acme, globex) = (Arc::new("acme"), Arc::new("globex"));
        for (key, holder) in [("k1", &acme), ("k2", &acme), ("k3", &globex)] {
            let earlier = ring.insert(KeyHash::of(key.as_bytes()), holder).cloned();
            assert_eq!(earlier, None);
        }
        assert_eq!(ring.insert(KeyHash::of(b"k1"), &globex), Some(&acme));
        for (sent, holder) in [
            ("k1", Some(&acme)),
            ("k2", Some(&acme)),
            ("k3", Some(&globex)),
            ("k", None),
            ("k11", None),
            ("", None),
            (&"k".repeat(100_000), None),
        ] {
            assert_eq!(ring.find(sent.as_bytes()), holder);
        }
        assert_eq!(ring.len(), 3);
        assert_eq!(
            format!("{ring:?} {:?}", KeyHash::of(b"k1")),
            "Ring(3 keys) KeyHash(…)"
        );
    }
}
