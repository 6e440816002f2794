//! The authentication between the processes of a run.

use super::error::Refusal;
use super::{Identity, NetError, Party};
use crate::drill::PROXY;
use loongforge_core::config::Address;
use loongforge_core::files;
use loongforge_core::message::Role;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The security settings of one process. They are cheap to clone.
#[derive(Clone)]
pub struct Security {
    pub(super) run: Arc<str>,
    pub(super) tls: Option<Tls>,
    insecure: bool,
    /// The proxy that connections to other processes go through, in a drill.
    pub(super) proxy: Option<SocketAddr>,
    /// The time that a connection may stay unidentified.
    pub(super) patience: Duration,
}

/// The time that a handshake and a first message may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Both of its sides: everyone connects, and most are connected to.
#[derive(Clone)]
pub(super) struct Tls {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
}

impl Security {
    /// Returns settings without certificates: only Unix sockets and loopback.
    pub fn plain(run: &str) -> Self {
        Self { run: run.into(), tls: None, insecure: false, proxy: proxy(), patience: PATIENCE }
    }

    /// Sets whether other machines may connect without certificates.
    pub fn on_any_network(self, insecure: bool) -> Self {
        Self { insecure, ..self }
    }

    /// Reads the certificates in a folder: `ca.pem`, `ROLE.pem` and `ROLE.key`; or `ca.crt`, `tls.crt` and `tls.key`, as in
    /// Kubernetes.
    ///
    /// # Errors
    /// Fails for a file that is missing, damaged or, for a key, readable by others; or for a certificate of another run or role, or one
    /// that is not valid now.
    pub fn with_certificates(run: &str, party: Party, dir: &Path) -> Result<Self, NetError> {
        Self::with_certificates_at(run, party, dir, UnixTime::now())
    }

    /// Works like [`Security::with_certificates`] at this time.
    pub(super) fn with_certificates_at(run: &str, party: Party, dir: &Path, now: UnixTime) -> Result<Self, NetError> {
        let file = |ours: String, theirs: &str| {
            let path = dir.join(theirs);
            if path.exists() { path } else { dir.join(ours) }
        };
        let authority = certificates(&file("ca.pem".into(), "ca.crt"))?;
        let path = file(format!("{party}.pem"), "tls.crt");
        let chain = certificates(&path)?;
        let key_path = file(format!("{party}.key"), "tls.key");
        let key = key(&key_path)?;
        let not_ours = |reason| NetError::NotOurs { path: path.clone(), reason };
        let mine = Identity::of(&chain[0]).map_err(not_ours)?;
        mine.expect_run(run).map_err(not_ours)?;
        if mine.party != party {
            return Err(not_ours(Refusal::OtherRole { certified: mine.party, said: party }));
        }
        let mut roots = RootCertStore::empty();
        for certificate in authority {
            roots.add(certificate)?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(ring::default_provider());
        expect_valid(&path, &chain, &roots, &provider, now)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let verifier = verifier.map_err(|error| NetError::Damaged { path: path.clone(), reason: error.to_string() })?;
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| {
                let reason = format!("it cannot be used with {}: {error}", path.display());
                NetError::Damaged { path: key_path, reason }
            })?;
        let of_run = OfRun { run: run.into(), roots, provider: provider.clone() };
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(of_run))
            .with_client_auth_cert(chain, key)?;
        let tls = Tls { client: Arc::new(client), server: Arc::new(server) };
        Ok(Self { run: run.into(), tls: Some(tls), insecure: false, proxy: proxy(), patience: PATIENCE })
    }

    /// Works like [`Security::with_certificates`], for whatever run the certificate is for.
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn of_party(party: Party, dir: &Path) -> Result<Self, NetError> {
        let theirs = dir.join("tls.crt");
        let path = if theirs.exists() { theirs } else { dir.join(format!("{party}.pem")) };
        let mine = Identity::of(&certificates(&path)?[0]);
        let run = mine.map_err(|reason| NetError::NotOurs { path, reason })?.run;
        Self::with_certificates(&run, party, dir)
    }

    /// Sets a proxy for connections to other processes.
    pub fn through(self, proxy: SocketAddr) -> Self {
        Self { proxy: Some(proxy), ..self }
    }

    /// Sets the patience.
    #[cfg(test)]
    pub(super) fn patient_for(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Checks that it is safe to listen on, or connect to, an address.
    ///
    /// # Errors
    /// Returns LF0501 if others could connect without authentication.
    pub fn expect_secure(&self, address: &Address) -> Result<(), NetError> {
        match address.is_local() || self.tls.is_some() || self.insecure {
            true => Ok(()),
            false => Err(NetError::NotSecure { address: address.clone() }),
        }
    }

    /// Returns the TLS settings for an address: those of the run for a TCP address; `None` for a Unix socket and without certificates.
    pub(super) fn encrypts(&self, address: &Address) -> Option<&Tls> {
        self.tls.as_ref().filter(|_| matches!(address, Address::Tcp { .. }))
    }
}

/// Refuses a certificate of this process that is not valid at this time: every peer would refuse it.
fn expect_valid(
    path: &Path,
    chain: &[CertificateDer<'_>],
    roots: &RootCertStore,
    provider: &CryptoProvider,
    now: UnixTime,
) -> Result<(), NetError> {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let certificate = ParsedCertificate::try_from(&chain[0])?;
    let algorithms = provider.signature_verification_algorithms.all;
    let found = verify_server_cert_signed_by_trust_anchor(&certificate, roots, &chain[1..], now, algorithms);
    let Err(rustls::Error::InvalidCertificate(reason)) = found else { return Ok(()) };
    match reason {
        Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. } => {
            Err(NetError::Expired { path: path.to_owned(), reason: reason.to_string() })
        }
        // What else a peer may have against it, it says itself.
        _ => Ok(()),
    }
}

/// Returns what the environment says.
fn proxy() -> Option<SocketAddr> {
    std::env::var(PROXY).ok()?.parse().ok()
}

pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NetError> {
    let text =
        files::read(path, files::MAX_TEXT_BYTES).map_err(|source| NetError::File { path: path.to_owned(), source })?;
    let damaged = |reason: String| NetError::Damaged { path: path.to_owned(), reason };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| damaged(error.to_string()))?;
    if all.is_empty() { Err(damaged("there is none".into())) } else { Ok(all) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, NetError> {
    let failed = |source| NetError::File { path: path.to_owned(), source };
    // Kubernetes gives the group of the pod what it mounts; others are always wrong.
    if fs::metadata(path).map_err(failed)?.permissions().mode() & 0o007 != 0 {
        return Err(NetError::Open { path: path.to_owned() });
    }
    let text = files::read(path, files::MAX_TEXT_BYTES).map_err(failed)?;
    PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| NetError::Damaged { path: PathBuf::from(path), reason: error.to_string() })
}

/// Accepts a process that listens if its certificate names an actor of this run, whatever host it is on.
#[derive(Debug)]
struct OfRun {
    run: String,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OfRun {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        let refused = |refusal: Refusal| rustls::Error::General(refusal.to_string());
        let identity = Identity::of(end_entity).map_err(refused)?;
        identity.expect_run(&self.run).map_err(refused)?;
        // An operator's, or a data actor's: neither listens.
        if !matches!(identity.party, Party::Actor(Role::Scheduler | Role::Encoder | Role::Foundation)) {
            return Err(refused(Refusal::NotServing { certified: identity.party }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not supported".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
