//! Certificates for a run: its own authority, and one certificate per role. They are for tests and for clusters without an authority; an
//! existing authority signs certificates with the same names.

use super::security::certificates;
use super::{Identity, NetError, Party};
use loongforge_core::clock::since_epoch;
use loongforge_core::files;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Clocks of two machines may differ by as much.
const SKEW: Duration = Duration::from_secs(24 * 3600);

/// Creates `ca.pem` and `ca.key` in `dir`, for certificates valid for at most `valid`.
///
/// # Errors
/// Fails if a file exists already or cannot be written.
pub fn new_authority(dir: &Path, run: &str, valid: Duration) -> Result<(), NetError> {
    fs::create_dir_all(dir).map_err(|source| NetError::File { path: dir.to_owned(), source })?;
    let key = KeyPair::generate()?;
    write(&dir.join("ca.key"), &key.serialize_pem(), 0o600)?;
    write(&dir.join("ca.pem"), &authority(run, from_now(valid))?.self_signed(&key)?.pem(), 0o644)
}

/// Creates `ROLE.pem` and `ROLE.key` in `dir`, signed by the authority there.
///
/// # Errors
/// Fails if there is no authority, or a file exists already or cannot be written.
pub fn issue(dir: &Path, run: &str, party: Party, valid: Duration) -> Result<(), NetError> {
    sign(dir, run, &Identity { run: run.to_owned(), party }, from_now(valid))
}

/// Works like [`issue`], but replaces the certificate that exists by one rename. A key that can be used stays, as it fits both of them:
/// whenever this is interrupted, the two files are a pair.
///
/// # Errors
/// Fails if there is no authority, a file cannot be written, or the certificate that exists is another run's.
pub fn renew(dir: &Path, run: &str, party: Party, valid: Duration) -> Result<(), NetError> {
    expect_no_others(dir.join(format!("{party}.pem")), run)?;
    let identity = Identity { run: run.to_owned(), party };
    let path = dir.join(format!("{party}.key"));
    let kept = usable_key(&path);
    let is_kept = kept.is_some();
    let key = kept.map_or_else(KeyPair::generate, Ok)?;
    let certificate = signed(dir, run, &identity, &key, from_now(valid))?;
    if !is_kept {
        replace(&path, &key.serialize_pem(), 0o600)?;
    }
    replace(&dir.join(format!("{party}.pem")), &certificate, 0o644)
}

/// Checks that a certificate that exists is not another run's. One that cannot be read is replaced.
fn expect_no_others(path: PathBuf, run: &str) -> Result<(), NetError> {
    let found = certificates(&path).ok().and_then(|chain| Identity::of(&chain[0]).ok());
    match found.filter(|found| found.run != run) {
        Some(found) => Err(NetError::OfOtherRun { path, theirs: found.run, ours: run.to_owned() }),
        None => Ok(()),
    }
}

/// Returns the key in a file; `None` if it is missing, damaged or readable by others, so that no process would take it.
fn usable_key(path: &Path) -> Option<KeyPair> {
    let is_open = fs::metadata(path).ok()?.permissions().mode() & 0o007 != 0;
    if is_open { None } else { KeyPair::from_pem(&files::read_text(path).ok()?).ok() }
}

/// `of`: the run that the authority was made for. `until`: seconds since 1970.
fn sign(dir: &Path, of: &str, identity: &Identity, until: Duration) -> Result<(), NetError> {
    let (key, party) = (KeyPair::generate()?, identity.party);
    let certificate = signed(dir, of, identity, &key, until)?;
    write(&dir.join(format!("{party}.key")), &key.serialize_pem(), 0o600)?;
    write(&dir.join(format!("{party}.pem")), &certificate, 0o644)
}

/// Returns the certificate of a key as PEM; see [`sign`].
fn signed(dir: &Path, of: &str, identity: &Identity, key: &KeyPair, until: Duration) -> Result<String, NetError> {
    let party = identity.party;
    let path = dir.join("ca.key");
    let of_authority = fs::read_to_string(&path).map_err(|source| NetError::File { path, source })?;
    // Of the authority only its name and key go into a certificate.
    let issuer = Issuer::new(authority(of, until)?, KeyPair::from_pem(&of_authority)?);
    let mut params = params(&format!("loongforge {party}"), until)?;
    params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into()?)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Every actor connects to some and is connected to by others.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params.signed_by(key, &issuer)?.pem())
}

fn authority(run: &str, until: Duration) -> Result<CertificateParams, rcgen::Error> {
    let mut params = params(&format!("loongforge authority of {run}"), until)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn params(name: &str, until: Duration) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(1970, 1, 1) + from_now(Duration::ZERO).saturating_sub(SKEW);
    params.not_after = date_time_ymd(1970, 1, 1) + until;
    Ok(params)
}

/// Returns the time since 1970 that is `valid` from now.
fn from_now(valid: Duration) -> Duration {
    since_epoch() + valid
}

/// Works like [`issue`], by the authority that was made for run `of`.
#[cfg(test)]
pub(super) fn issue_for(dir: &Path, of: &str, run: &str, party: Party, valid: Duration) -> Result<(), NetError> {
    sign(dir, of, &Identity { run: run.to_owned(), party }, from_now(valid))
}

/// Works like [`issue`], valid until so many seconds ago.
#[cfg(test)]
pub(super) fn issue_expired(dir: &Path, run: &str, party: Party, seconds: u64) -> Result<(), NetError> {
    let until = from_now(Duration::ZERO) - Duration::from_secs(seconds);
    sign(dir, run, &Identity { run: run.to_owned(), party }, until)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), NetError> {
    let failed = |source| NetError::File { path: path.to_owned(), source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

/// Writes a file in the place of the one that may be there: at every moment there is one of the two, whole.
fn replace(path: &Path, text: &str, mode: u32) -> Result<(), NetError> {
    files::replace_synced(path, text.as_bytes(), mode)
        .map_err(|source| NetError::File { path: path.to_owned(), source })
}
