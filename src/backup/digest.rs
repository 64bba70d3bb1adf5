//! SHA-256, by the library that does our TLS (it uses the processor's instructions for it).

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A digest; in text 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha256(pub [u8; 32]);

impl Sha256 {
    /// Of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }
}

/// Makes a [`Sha256`] piece by piece.
#[derive(Clone)]
pub struct Hasher(Context);

impl Hasher {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self(Context::new(&SHA256))
    }
    /// And of this.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    /// Of everything.
    pub fn finish(self) -> Sha256 {
        let mut bytes = [0; 32];
        for (to, from) in bytes.iter_mut().zip(self.0.finish().as_ref()) {
            *to = *from;
        }
        Sha256(bytes)
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no SHA-256")))
    }
}

fn parse(text: &str) -> Option<Sha256> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(Sha256(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let digest = Sha256::of(b"abc");
        assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(parse(&digest.to_string()), Some(digest));
        for bad in ["", "ba78", &"é".repeat(32), &"+1".repeat(32)] {
            assert_eq!(parse(bad), None);
        }
    }
}
