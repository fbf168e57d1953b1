//! TLS to the store.

use std::fmt;
use std::io;
use std::sync::Arc;

use redis::RedisResult;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::tls::{Authorities, TlsError};

/// Whom to believe, and who we are.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
    /// Of what it was made from: two that are made of the same are the same.
    made_from: blake3::Hash,
}

impl Tls {
    /// Believes servers whose certificate comes from `ca`, a PEM file's content, or from whomever the machine believes;
    /// shows `identity`, a certificate chain and its key in PEM, to a server that asks.
    ///
    /// # Errors
    ///
    /// [`TlsError`], which quotes nothing of a key.
    pub fn new(ca: Option<&[u8]>, identity: Option<(&[u8], &[u8])>) -> Result<Self, TlsError> {
        let mut made_from = blake3::Hasher::new();
        let (cert, key) = identity.unwrap_or_default();
        for part in [ca.unwrap_or_default(), cert, key] {
            made_from.update(blake3::hash(part).as_bytes());
        }
        let roots = match ca {
            Some(pem) => Authorities::in_pem(pem)?,
            None => Authorities::of_the_machine()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots.roots());
        let config = match identity {
            Some((cert, key)) => {
                let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>()?;
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            made_from: made_from.finalize(),
        })
    }

    /// Encrypts `stream`, once the server has shown a certificate for `host`.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> RedisResult<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(self.connector.connect(name, stream).await?)
    }
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        self.made_from == other.made_from
    }
}

impl Eq for Tls {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
