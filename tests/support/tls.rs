//! Certificates of a test's own, and what speaks TLS in front of a server that does not.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::gateway::scratch;

/// An authority, and the folder that its files are written to.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// A certificate with its key: as files, and for a server here.
pub(crate) struct Identity {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    secret: PrivateKeyDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self {
            issuer,
            folder: scratch(),
        }
    }

    /// The file that says whom it is to believe who believes this authority.
    pub(crate) fn file(&self) -> PathBuf {
        write(&self.folder, "ca.crt", &self.issuer.pem())
    }

    /// A certificate for this host.
    pub(crate) fn issue(&self, host: &str) -> Identity {
        self.issued(
            host,
            &CertificateParams::new(vec![host.to_owned()]).unwrap(),
        )
    }

    /// The same, good until the first of January of `year`.
    pub(crate) fn issue_until(&self, host: &str, year: i32) -> Identity {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        self.issued(host, &params)
    }

    fn issued(&self, host: &str, params: &CertificateParams) -> Identity {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let key = KeyPair::generate().unwrap();
        let name = format!("{host}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity {
            cert: write(&self.folder, &format!("{name}.crt"), &certificate.pem()),
            key: write(&self.folder, &format!("{name}.key"), &key.serialize_pem()),
            chain: vec![certificate.der().clone()],
            secret: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }

    /// A client that believes it.
    pub(crate) fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        roots
    }
}

impl Identity {
    /// The certificate as it is sent.
    pub(crate) fn der(&self) -> &[u8] {
        &self.chain[0]
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    fs::write(&file, text).unwrap();
    file
}

/// Speaks TLS with `identity` in front of `server`, until the test's process ends; believes only clients that `clients`
/// has issued a certificate to, if it is given.
pub(crate) fn in_front_of(
    server: String,
    identity: Identity,
    clients: Option<&Authority>,
) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = Arc::new(authority.roots());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let config = builder
        .with_single_cert(identity.chain, identity.secret)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        runtime.block_on(async {
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, server) = (acceptor.clone(), server.clone());
                tokio::spawn(async move {
                    let mut client = acceptor.accept(client).await?;
                    let mut server = TcpStream::connect(server).await?;
                    copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
    });
    address
}
