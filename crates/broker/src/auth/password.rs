//! Password hashes as RabbitMQ stores and exports them: base64 of four bytes of salt followed by the hash of salt and
//! password (its "Credentials and Passwords" guide), so that exported users keep their passwords in both directions.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::Digest;
use subtle::ConstantTimeEq;

use super::AuthError;

/// Bytes of salt in front of a hash: part of the format.
const SALT_BYTES: usize = 4;

/// The hash function of a stored password.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// `rabbit_password_hashing_sha256`: the default, and what new passwords get.
    #[default]
    Sha256,
    /// `rabbit_password_hashing_sha512`.
    Sha512,
    /// `rabbit_password_hashing_md5`: only for users that were exported from very old brokers.
    Md5,
}

impl HashAlgorithm {
    /// The name in exported definitions.
    #[must_use]
    pub fn module_name(self) -> &'static str {
        match self {
            Self::Sha256 => "rabbit_password_hashing_sha256",
            Self::Sha512 => "rabbit_password_hashing_sha512",
            Self::Md5 => "rabbit_password_hashing_md5",
        }
    }

    /// The algorithm with that name in definitions.
    #[must_use]
    pub fn from_module_name(name: &str) -> Option<Self> {
        [Self::Sha256, Self::Sha512, Self::Md5].into_iter().find(|algorithm| algorithm.module_name() == name)
    }

    fn hash_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
            Self::Md5 => 16,
        }
    }

    fn hash(self, salt: &[u8], password: &[u8]) -> Vec<u8> {
        fn salted<D: Digest>(salt: &[u8], password: &[u8]) -> Vec<u8> {
            D::new().chain_update(salt).chain_update(password).finalize().to_vec()
        }
        match self {
            Self::Sha256 => salted::<sha2::Sha256>(salt, password),
            Self::Sha512 => salted::<sha2::Sha512>(salt, password),
            Self::Md5 => salted::<md5::Md5>(salt, password),
        }
    }
}

impl fmt::Display for HashAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "SHA-256",
            Self::Sha512 => "SHA-512",
            Self::Md5 => "MD5",
        })
    }
}

/// How a password is given when a user is created or changed.
#[derive(Clone, Copy)]
pub enum Password<'a> {
    /// In clear; hashed with a fresh salt and forgotten. An empty one makes a user without a password.
    Plain(&'a str),
    /// As exported: base64 of salt and hash. An empty one makes a user without a password.
    Hash {
        /// Base64 of salt and hash.
        base64: &'a str,
        /// The hash function it was made with.
        algorithm: HashAlgorithm,
    },
    /// A user who cannot log in with a password.
    None,
}

impl fmt::Debug for Password<'_> {
    /// Passwords and hashes do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain(..)",
            Self::Hash { .. } => "Hash(..)",
            Self::None => "None",
        })
    }
}

/// A stored password: salt and hash.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    algorithm: HashAlgorithm,
    salt: [u8; SALT_BYTES],
    /// As long as the algorithm's hashes are.
    hash: Vec<u8>,
}

impl PasswordHash {
    /// The hash of a password as given; `None` for a user without a password. A replicated change is made with a
    /// [`Password::Hash`] that one node made: two nodes would draw two salts.
    ///
    /// # Errors
    /// [`AuthError::InvalidHash`], [`AuthError::NoEntropy`].
    pub fn new(password: Password<'_>) -> Result<Option<Self>, AuthError> {
        match password {
            Password::None | Password::Plain("") | Password::Hash { base64: "", .. } => Ok(None),
            Password::Plain(plain) => {
                let mut salt = [0; SALT_BYTES];
                getrandom::fill(&mut salt).map_err(|error| AuthError::NoEntropy(error.to_string()))?;
                let algorithm = HashAlgorithm::default();
                Ok(Some(Self { algorithm, salt, hash: algorithm.hash(&salt, plain.as_bytes()) }))
            }
            Password::Hash { base64, algorithm } => Self::decode(base64, algorithm).map(Some),
        }
    }

    fn decode(base64: &str, algorithm: HashAlgorithm) -> Result<Self, AuthError> {
        let bytes = STANDARD.decode(base64.trim()).map_err(|_| AuthError::InvalidHash(algorithm))?;
        match bytes.split_first_chunk() {
            Some((salt, hash)) if hash.len() == algorithm.hash_bytes() => {
                Ok(Self { algorithm, salt: *salt, hash: hash.to_vec() })
            }
            _ => Err(AuthError::InvalidHash(algorithm)),
        }
    }

    /// The hash function.
    #[must_use]
    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// Base64 of salt and hash, as in exported definitions.
    #[must_use]
    pub fn to_base64(&self) -> String {
        STANDARD.encode([&self.salt[..], &self.hash].concat())
    }

    /// Whether this is the hash of the password; takes the same time wherever the difference is. The empty password never matches.
    #[must_use]
    pub fn matches(&self, password: &[u8]) -> bool {
        let same: bool = self.algorithm.hash(&self.salt, password).ct_eq(&self.hash).into();
        same && !password.is_empty()
    }

    /// Does the work of a comparison for a user who does not exist, so that the time does not tell.
    pub(super) fn verify_nothing(password: &[u8]) {
        let nobody = Self { algorithm: HashAlgorithm::default(), salt: [0; SALT_BYTES], hash: vec![0; 32] };
        std::hint::black_box(nobody.matches(password));
    }
}

impl fmt::Debug for PasswordHash {
    /// Hashes do not belong in logs: four bytes of salt do not stop a guesser for long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordHash({})", self.algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same salt and password in all three algorithms; the first is the example of RabbitMQ's guide.
    const VECTORS: [(HashAlgorithm, &str); 3] = [
        (HashAlgorithm::Sha256, "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"),
        (
            HashAlgorithm::Sha512,
            "kI3GChuNuIYf8lRbCCxZjgjKwsY19ns6+uFO0zcXRBGA/XGJPYD8OWMy7EB8TaOmAzjP2azv84GbINYwX2cDWb4DHnc=",
        ),
        (HashAlgorithm::Md5, "kI3GChNpte2FApYFXScl+0dIluk="),
    ];

    fn decoded(base64: &str, algorithm: HashAlgorithm) -> PasswordHash {
        PasswordHash::new(Password::Hash { base64, algorithm }).expect("valid").expect("not empty")
    }

    #[test]
    fn exported_hashes_of_rabbitmq_match_their_password_and_come_back_unchanged() {
        for (algorithm, base64) in VECTORS {
            let hash = decoded(base64, algorithm);
            assert!(hash.matches(b"test12"), "{algorithm}");
            assert!(!hash.matches(b"test13") && !hash.matches(b"test1") && !hash.matches(b""), "{algorithm}");
            assert_eq!(hash.to_base64(), base64);
            assert_eq!(HashAlgorithm::from_module_name(algorithm.module_name()), Some(algorithm));
        }
    }

    #[test]
    fn plain_password_gets_a_salt_of_its_own() {
        let one = PasswordHash::new(Password::Plain("sécret")).unwrap().unwrap();
        let other = PasswordHash::new(Password::Plain("sécret")).unwrap().unwrap();
        assert!(one.matches("sécret".as_bytes()) && other.matches("sécret".as_bytes()));
        assert_ne!(one.to_base64(), other.to_base64());
    }

    #[test]
    fn hash_of_wrong_length_or_alphabet_is_refused() {
        for base64 in ["kI3GCg==", "AAAA", "kI3GChNpte2FApYFXScl+0dIluk=", "not base64!", "%%%"] {
            let password = Password::Hash { base64, algorithm: HashAlgorithm::Sha256 };
            assert_eq!(PasswordHash::new(password), Err(AuthError::InvalidHash(HashAlgorithm::Sha256)), "{base64}");
        }
    }

    #[test]
    fn stored_hash_of_the_empty_password_still_refuses_it() {
        let salt = [1, 2, 3, 4];
        let algorithm = HashAlgorithm::Sha256;
        let hash = PasswordHash { algorithm, salt, hash: algorithm.hash(&salt, b"") };
        assert!(!hash.matches(b""));
    }

    #[test]
    fn debug_output_shows_neither_password_nor_hash() {
        let hash = decoded(VECTORS[0].1, HashAlgorithm::Sha256);
        assert_eq!(format!("{hash:?}"), "PasswordHash(SHA-256)");
        assert_eq!(format!("{:?}", Password::Plain("geheim")), "Plain(..)");
    }
}
