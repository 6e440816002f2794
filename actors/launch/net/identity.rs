//! The identity in a certificate: `loongforge://RUN/role/ROLE` as its subject alternative name.

use super::Party;
use super::error::Refusal;
use rustls::pki_types::CertificateDer;
use std::fmt;
use std::str::FromStr;
use webpki::EndEntityCert;

/// The identity of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub run: String,
    pub party: Party,
}

impl Identity {
    /// Returns the identity in a peer's certificate, without checking its signature by the run's authority.
    ///
    /// # Errors
    /// Fails if it names no run and role, or more than one.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, Refusal> {
        let certificate = EndEntityCert::try_from(certificate).map_err(|_| Refusal::NoIdentity)?;
        let mut names = certificate.valid_uri_names().map(str::parse::<Identity>);
        match (names.next(), names.next()) {
            (Some(Ok(identity)), None) => Ok(identity),
            _ => Err(Refusal::NoIdentity),
        }
    }

    /// # Errors
    /// Another run's.
    pub fn expect_run(&self, ours: &str) -> Result<(), Refusal> {
        match self.run == ours {
            true => Ok(()),
            false => Err(Refusal::OtherRun { theirs: self.run.clone(), ours: ours.to_owned() }),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("loongforge://")?;
        for byte in self.run.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    write!(f, "{}", char::from(byte))?
                }
                byte => write!(f, "%{byte:02X}")?,
            }
        }
        write!(f, "/role/{}", self.party)
    }
}

impl FromStr for Identity {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let rest = text.strip_prefix("loongforge://").ok_or(Refusal::NoIdentity)?;
        let (run, role) = rest.split_once("/role/").ok_or(Refusal::NoIdentity)?;
        let run = decode(run).filter(|run| !run.is_empty()).ok_or(Refusal::NoIdentity)?;
        let party = Party::ALL.into_iter().find(|party| party.name() == role).ok_or(Refusal::NoIdentity)?;
        Ok(Self { run, party })
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else if first == b'/' {
            return None;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod names {
    use super::*;

    #[test]
    fn a_name_comes_back_whatever_the_run_is_called() {
        for run in ["vlm-sft", "a b/c%d", "длинный", "~._-"] {
            for party in Party::ALL {
                let identity = Identity { run: run.into(), party };
                assert_eq!(identity.to_string().parse(), Ok(identity));
            }
        }
        let run = |run: &str, party: &str| {
            Identity { run: run.into(), party: Party::Operator }.to_string().replace("operator", party)
        };
        assert_eq!(run("a b", "operator"), "loongforge://a%20b/role/operator");
        for text in [
            "",
            "https://a/role/encoder",
            "loongforge:///role/encoder",
            "loongforge://a/role/root",
            "loongforge://a%2/role/data",
            "loongforge://a/b/role/data",
        ] {
            assert_eq!(text.parse::<Identity>(), Err(Refusal::NoIdentity), "{text}");
        }
    }
}
