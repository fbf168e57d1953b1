//! Certificates: whom we believe, and who we are. Made of what stands in an operator's PEM files; nothing of a key is
//! ever quoted.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use thiserror::Error;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// What is made from files of an operator's, and is not what it should be.
#[derive(Debug, Error)]
pub enum TlsError {
    /// There is no certificate.
    #[error("there is no certificate in it")]
    NoCertificate,
    /// There is no private key.
    #[error("there is no private key in it")]
    NoKey,
    /// The key is of another certificate.
    #[error("the key is not that of the certificate")]
    Mismatch,
    /// The machine has no certificates of authorities.
    #[error("this machine knows no certificate authority")]
    NoSystemRoots,
    /// Not PEM. What stands there instead may be a key, and is not repeated.
    #[error("it is not in PEM format")]
    NotPem,
    /// Not a certificate.
    #[error("a certificate in it cannot be read")]
    Unreadable,
    /// A certificate or key that cannot be used.
    #[error("{0}")]
    Unusable(#[from] rustls::Error),
}

impl From<pem::Error> for TlsError {
    fn from(error: pem::Error) -> Self {
        match error {
            // Certificates are looked for one by one, a key at once.
            pem::Error::NoItemsFound => Self::NoKey,
            _ => Self::NotPem,
        }
    }
}

/// Authorities whose certificates are believed; at least one.
#[derive(Clone)]
pub struct Authorities {
    certificates: Arc<[CertificateDer<'static>]>,
    roots: Arc<RootCertStore>,
}

impl Authorities {
    /// Those in a PEM file.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if there are none, or one of them cannot be used.
    pub fn in_pem(pem: &[u8]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let certificates = certificates(pem)?;
        for certificate in &certificates {
            roots.add(certificate.clone())?;
            parsed(certificate)?;
        }
        Ok(Self {
            certificates: certificates.into(),
            roots: Arc::new(roots),
        })
    }

    /// Those that the machine believes. What some of them are, nobody can use: the others do.
    ///
    /// # Errors
    ///
    /// [`TlsError::NoSystemRoots`].
    pub fn of_the_machine() -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs().certs;
        let usable: Vec<_> = found
            .into_iter()
            .filter(|certificate| {
                parsed(certificate).is_ok() && roots.add(certificate.clone()).is_ok()
            })
            .collect();
        if usable.is_empty() {
            return Err(TlsError::NoSystemRoots);
        }
        Ok(Self {
            certificates: usable.into(),
            roots: Arc::new(roots),
        })
    }

    /// Their certificates. Each can be read.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// The same, ready to verify others by.
    #[must_use]
    pub fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.roots)
    }

    /// Whether these are the very same in memory.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.certificates, &other.certificates)
    }
}

/// How many there are.
impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authorities")
            .field(&self.certificates.len())
            .finish()
    }
}

/// A certificate, and those between it and its authority.
#[derive(Clone, Debug)]
pub struct Chain {
    certificates: Vec<CertificateDer<'static>>,
    validity: Validity,
}

/// From when until when a certificate is good, in seconds since the epoch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Validity {
    /// From then.
    pub from_s: i64,
    /// Until then.
    pub until_s: i64,
}

impl Chain {
    /// What stands in a PEM file, our own first.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if there is none, or ours cannot be read.
    pub fn in_pem(pem: &[u8]) -> Result<Self, TlsError> {
        let certificates = certificates(pem)?;
        let ours = certificates.first().ok_or(TlsError::NoCertificate)?;
        let validity = parsed(ours)?.validity().clone();
        Ok(Self {
            validity: Validity {
                from_s: validity.not_before.timestamp(),
                until_s: validity.not_after.timestamp(),
            },
            certificates,
        })
    }

    /// From when until when ours is good.
    #[must_use]
    pub const fn validity(&self) -> Validity {
        self.validity
    }
}

/// A private key.
pub struct Key(PrivateKeyDer<'static>);

impl Key {
    /// The first that stands in a PEM file.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if there is none, or it cannot be used.
    pub fn in_pem(pem: &[u8]) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(pem)?;
        ring::sign::any_supported_type(&key)?;
        Ok(Self(key))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// The oldest version of TLS that is spoken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Oldest {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// How a listener speaks TLS. Clients are told that it speaks HTTP/1.1.
#[derive(Clone)]
pub struct Listening {
    server: Arc<ServerConfig>,
    validity: Validity,
    oldest: Oldest,
    made_from: blake3::Hash,
}

impl Listening {
    /// Shows `chain`, which `key` is of.
    ///
    /// # Errors
    ///
    /// [`TlsError::Mismatch`] if it is not.
    pub fn new(chain: Chain, key: &Key, oldest: Oldest) -> Result<Self, TlsError> {
        let mut hasher = blake3::Hasher::new();
        for certificate in &chain.certificates {
            hasher.update(blake3::hash(certificate).as_bytes());
        }
        let signing = ring::sign::any_supported_type(&key.0)?;
        let certified = CertifiedKey::new(chain.certificates, signing);
        match certified.keys_match() {
            // What cannot be told is no mistake.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => return Err(TlsError::Mismatch),
            Err(other) => return Err(other.into()),
        }
        let versions: &[_] = match oldest {
            Oldest::Tls12 => &[&TLS12, &TLS13],
            Oldest::Tls13 => &[&TLS13],
        };
        let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A client that comes back is spared most of the handshake, and we remember nothing of it.
        server.ticketer = ring::Ticketer::new()?;
        Ok(Self {
            server: Arc::new(server),
            validity: chain.validity,
            oldest,
            made_from: hasher.finalize(),
        })
    }

    /// What connections are accepted with.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// From when until when the certificate is good.
    #[must_use]
    pub const fn validity(&self) -> Validity {
        self.validity
    }

    /// Whether both show the same certificate.
    #[must_use]
    pub fn shows_the_same(&self, other: &Self) -> bool {
        self.made_from == other.made_from
    }

    /// Whether nobody could tell them apart.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        // A certificate has one key.
        self.shows_the_same(other) && self.oldest == other.oldest
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening")
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

/// The certificates in a PEM file; at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate);
    }
    Ok(found)
}

fn parsed<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, TlsError> {
    match X509Certificate::from_der(certificate) {
        Ok((_, certificate)) => Ok(certificate),
        Err(_) => Err(TlsError::Unreadable),
    }
}
