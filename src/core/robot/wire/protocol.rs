//! The protocols by their names.

use super::dialogue::{Dialogue, Offer};
use super::loongforge::LoongForge;
use super::openpi::OpenPi;
use super::vla_eval::VlaEval;
use std::sync::Arc;

/// A protocol that a server speaks. One port speaks one: the server of openpi begins, and the client of vla-eval does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    OpenPi,
    VlaEval,
    LoongForge,
}

impl Protocol {
    pub const NAMES: [&str; 3] = ["openpi", "vla-eval", "loongforge"];

    /// Returns the protocol of that name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "openpi" => Some(Self::OpenPi),
            "vla-eval" => Some(Self::VlaEval),
            "loongforge" => Some(Self::LoongForge),
            _ => None,
        }
    }

    /// Returns the port that its clients try first.
    pub fn port(self) -> u16 {
        match self {
            Self::OpenPi | Self::VlaEval => 8000,
            Self::LoongForge => 10093,
        }
    }

    /// Begins a connection.
    pub fn begin(self, offer: Arc<Offer>) -> Box<dyn Dialogue> {
        match self {
            Self::OpenPi => Box::new(OpenPi::new(offer)),
            Self::VlaEval => Box::new(VlaEval::new(offer)),
            Self::LoongForge => Box::new(LoongForge::new(offer)),
        }
    }

    /// Returns the type and the text that a path of the same port has over HTTP; `None`: there is no such path.
    pub fn page(self, path: &str) -> Option<(&'static str, &'static str)> {
        const JSON: &str = "application/json";
        match (self, path) {
            (Self::OpenPi, "/healthz") => Some(("text/plain; charset=utf-8", "OK\n")),
            (Self::VlaEval, "/health") => Some((JSON, "{\"status\": \"ok\"}\n")),
            // Nothing of a policy can be changed from outside.
            (Self::VlaEval, "/config") => Some((JSON, "{\"applied\": {}, \"config\": {}}\n")),
            (Self::LoongForge, "/healthz") => Some((JSON, "{\"ready\": true}\n")),
            _ => None,
        }
    }
}
